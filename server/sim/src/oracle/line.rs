//! Strict order of grants in the order of the log (contract, points 1 and 3; SEMANTICS section 1).
//!
//! Invariant checked, over entries and what they told: whoever waits is granted in the order of lining up, nobody
//! passes a live waiter, conflicting holds never overlap, and every grant of a name has a greater token than
//! those before it, for ever. Kept by its own small bookkeeping: neither the table nor the model is asked.

use std::collections::BTreeMap;

use lockstep_core::table::{Answer, Outcome};
use lockstep_wire::entry::Command;
use lockstep_wire::request::Mode;
use lockstep_wire::{FencingToken, LogIndex, RequestId, SessionId};

use super::{Verdict, Violation, violated};

const FIFO: &str = "grants in the order of lining up (contract 3)";
const EXCLUSION: &str = "no two conflicting holds (contract 1)";
const TOKENS: &str = "every later grant has a greater token (contract 1)";

type Request = (SessionId, RequestId);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    mode: Mode,
    token: FencingToken,
    fence: FencingToken,
}

#[derive(Debug, Default)]
struct Name {
    line: Vec<(Request, Mode)>,
    holds: BTreeMap<Request, Held>,
    newest: FencingToken,
    newest_index: LogIndex,
    /// The greatest fence of an exclusive hold so far: later shared phases lie above it.
    newest_exclusive: FencingToken,
}

/// The lines of one cell. See the module.
#[derive(Debug, Default)]
pub struct Lines {
    names: BTreeMap<String, Name>,
    /// Where a request's acquire stands or stood.
    asked: BTreeMap<Request, (String, Mode)>,
    /// Who left a line last, and from which place.
    left: Option<(Request, usize)>,
}

impl Lines {
    /// Takes an entry and what it told.
    ///
    /// # Errors
    /// The rule that does not hold.
    pub fn on_entry(&mut self, index: LogIndex, command: &Command<'_>, outcomes: &[Outcome]) -> Verdict {
        let own = match command {
            Command::Acquire(acquire) => {
                let request = (acquire.mutation.session, acquire.mutation.request_id);
                let name = acquire.names.iter().next().unwrap_or_default().to_owned();
                Some((request, name, acquire.mode))
            }
            _ => None,
        };
        for outcome in outcomes {
            match outcome {
                Outcome::Reply { session, request_id, answer } => {
                    let request = (*session, *request_id);
                    let asked = own.as_ref().filter(|(own, _, _)| *own == request);
                    self.on_answer(index, request, answer, asked.map(|(_, name, mode)| (name, *mode)))?;
                }
                Outcome::WaitEnded { session, acquire_id } => self.leave((*session, *acquire_id)),
                Outcome::HoldEnded { session, acquire_id, name, token, .. } => {
                    self.end_hold((*session, *acquire_id), name, *token);
                }
                Outcome::SessionEnded { session, .. } => self.end_session(*session),
                Outcome::Opened { .. }
                | Outcome::OpenRefused { .. }
                | Outcome::WaitStarted { .. }
                | Outcome::ReapNeeded => {}
            }
        }
        Ok(())
    }

    fn on_answer(
        &mut self,
        index: LogIndex,
        request: Request,
        answer: &Answer,
        asked: Option<(&String, Mode)>,
    ) -> Verdict {
        match (answer, asked) {
            (Answer::Queued { .. }, Some((name, mode))) if !self.asked.contains_key(&request) => {
                self.names.entry(name.clone()).or_default().line.push((request, mode));
                self.asked.insert(request, (name.clone(), mode));
            }
            (Answer::Granted(grant), Some((name, mode))) => {
                let held = Held { mode, token: grant.token, fence: grant.fence };
                if grant.token.index() == index {
                    self.names.entry(name.clone()).or_default().admit(index, request, held, false)?;
                }
            }
            (Answer::Granted(grant), None) => {
                let Some((name, mode)) = self.asked.get(&request).cloned() else {
                    return violated(FIFO, format!("{request:?} is granted at {index} and never lined up"));
                };
                let held = Held { mode, token: grant.token, fence: grant.fence };
                if self.left != Some((request, 0)) {
                    let left = self.left;
                    return violated(
                        FIFO,
                        format!("{request:?} is granted at {index} and stood at {left:?}"),
                    );
                }
                self.names.entry(name).or_default().admit(index, request, held, true)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// A request leaves its line; if it is granted next, it must have stood first.
    fn leave(&mut self, request: Request) {
        self.left = None;
        if let Some((name, _)) = self.asked.get(&request)
            && let Some(name) = self.names.get_mut(name)
        {
            let at = name.line.iter().position(|(waiting, _)| *waiting == request);
            if let Some(at) = at {
                name.line.remove(at);
                self.left = Some((request, at));
            }
        }
    }

    fn end_hold(&mut self, request: Request, name: &str, token: FencingToken) {
        let Some(name) = self.names.get_mut(name) else { return };
        if name.holds.remove(&request).is_some() {
            return;
        }
        // The acquire that left last joined the hold later than the one that is known here.
        let known =
            name.holds.iter().find(|((session, _), held)| *session == request.0 && held.token == token);
        if let Some(known) = known.map(|(known, _)| *known) {
            name.holds.remove(&known);
        }
    }

    /// From here on it holds nothing and waits for nothing in the eyes of anybody.
    fn end_session(&mut self, session: SessionId) {
        for name in self.names.values_mut() {
            name.holds.retain(|(of, _), _| *of != session);
            name.line.retain(|((of, _), _)| *of != session);
        }
    }
}

impl Name {
    /// A request is granted; `has_waited` says that it stood first in line.
    fn admit(
        &mut self,
        index: LogIndex,
        request: Request,
        held: Held,
        has_waited: bool,
    ) -> Result<(), Violation> {
        if let Some((first, _)) = self.line.first()
            && !has_waited
        {
            return violated(FIFO, format!("{request:?} is granted at {index} past {first:?}, who waits"));
        }
        let conflict = self
            .holds
            .iter()
            .find(|(_, other)| held.mode == Mode::Exclusive || other.mode == Mode::Exclusive);
        if let Some((other, _)) = conflict {
            return violated(EXCLUSION, format!("{request:?} is granted at {index} while {other:?} holds"));
        }
        let shares_entry = self.newest_index == index && held.mode == Mode::Shared;
        if held.token <= self.newest && !(shares_entry && held.token == self.newest) {
            return violated(
                TOKENS,
                format!(
                    "{request:?} gets token {} at {index}, and {} was granted before",
                    held.token, self.newest
                ),
            );
        }
        self.check_fence(request, held)?;
        (self.newest, self.newest_index) = (held.token, index);
        if held.mode == Mode::Exclusive {
            self.newest_exclusive = held.fence;
        }
        self.holds.insert(request, held);
        Ok(())
    }

    fn check_fence(&self, request: Request, held: Held) -> Verdict {
        let is_right = match (held.mode, self.holds.values().next()) {
            (Mode::Exclusive, _) | (Mode::Shared, None) => held.fence == held.token,
            (Mode::Shared, Some(other)) => held.fence == other.fence,
        };
        if !is_right || held.fence <= self.newest_exclusive {
            return violated(
                TOKENS,
                format!("{request:?} gets fence {} with token {}", held.fence, held.token),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Request = (SessionId(1), RequestId(1));
    const TWO: Request = (SessionId(2), RequestId(1));

    fn held(mode: Mode, token: u64) -> Held {
        Held { mode, token: FencingToken(token), fence: FencingToken(token) }
    }

    #[test]
    fn a_grant_past_a_waiter_is_seen() {
        let mut name = Name::default();
        name.line.push((ONE, Mode::Exclusive));
        assert!(name.admit(LogIndex(5), TWO, held(Mode::Shared, 5), false).is_err());
    }

    #[test]
    fn conflicting_holds_are_seen() {
        let mut name = Name::default();
        name.admit(LogIndex(5), ONE, held(Mode::Exclusive, 5), false).unwrap();
        assert!(name.admit(LogIndex(6), TWO, held(Mode::Shared, 6), false).is_err());
    }

    #[test]
    fn a_token_that_does_not_grow_is_seen() {
        let mut name = Name::default();
        name.admit(LogIndex(5), ONE, held(Mode::Exclusive, 5), false).unwrap();
        name.holds.clear();
        assert!(name.admit(LogIndex(6), TWO, held(Mode::Exclusive, 5), false).is_err());
    }

    #[test]
    fn a_waiter_that_was_not_first_is_seen() {
        let mut lines = Lines::default();
        let name = lines.names.entry("n".to_owned()).or_default();
        name.line = vec![(ONE, Mode::Exclusive), (TWO, Mode::Exclusive)];
        for request in [ONE, TWO] {
            lines.asked.insert(request, ("n".to_owned(), Mode::Exclusive));
        }
        lines.leave(TWO);
        let held = held(Mode::Exclusive, 9);
        let grant = lockstep_wire::reply::Grant {
            token: held.token,
            fence: held.fence,
            slot: 0,
            hold_left_ms: 0,
            holders: 1,
        };
        assert!(lines.on_answer(LogIndex(9), TWO, &Answer::Granted(grant), None).is_err());
    }
}
