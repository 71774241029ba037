//! Strict order of grants in the order of the log (contract, points 1 and 3; SEMANTICS section 1).
//!
//! Invariant checked, over entries and what they told: whoever waits is granted in the order of lining up across modes,
//! nobody passes a live waiter but an owner who is granted its own hold again, conflicting holds never overlap, whoever could
//! be granted is granted in the same entry (a run of sharers together), unless a later entry is announced to go on; nobody is
//! granted anything while a restored cell is quiet; and every grant of a name has a greater token than those before it, for
//! ever, restored or not, and a fence as its phase demands. Kept by its
//! own small bookkeeping: neither the table nor the model is asked. Deliberately absent: how long anybody waits.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_core::table::{Answer, Outcome};
use lockstep_wire::entry::Command;
use lockstep_wire::request::Mode;
use lockstep_wire::{FencingToken, LogIndex, Owner, SessionId};

use super::once::{self, RequestKey};
use super::{Verdict, Violation, violated};

/// Nobody passes whoever lined up before.
pub const FIFO: &str = "grants in the order of lining up (contract 3)";
/// Whoever could be granted is granted.
pub const VACANCY: &str = "nobody waits for what could be granted (contract 3)";
/// One exclusive hold, or shared ones.
pub const EXCLUSION: &str = "no two conflicting holds (contract 1)";
/// A restored cell grants nothing until everybody knows.
pub const QUIET: &str = "nothing is granted while a restored cell is quiet (contract 1)";
/// Tokens and fences grow.
pub const TOKENS: &str = "every later grant has a greater token (contract 1)";

type Holder = (SessionId, Owner);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    mode: Mode,
    token: FencingToken,
    fence: FencingToken,
}

/// What an acquire asked for.
#[derive(Clone, Debug)]
struct Asked {
    name: String,
    owner: Owner,
    mode: Mode,
}

/// A line, and who holds what it is for. Outlives the lock's record.
#[derive(Debug, Default)]
struct Name {
    line: Vec<(RequestKey, Mode)>,
    holds: BTreeMap<Holder, Held>,
    newest: FencingToken,
    newest_index: LogIndex,
    /// The greatest fence of an exclusive hold so far: later shared phases lie above it.
    newest_exclusive: FencingToken,
}

/// The lines of one cell. See the module.
#[derive(Debug)]
pub struct Lines {
    holders_per_lock_max: usize,
    names: BTreeMap<String, Name>,
    /// Every acquire that lined up or was granted.
    asked: BTreeMap<RequestKey, Asked>,
    /// Who left a line last, and from which place.
    left: Option<(RequestKey, usize)>,
    /// Names that changed since it was last certain that nothing is left to promote.
    unsettled: BTreeSet<String>,
    /// The cell was restored, and its quiet has not ended.
    is_quiet: bool,
}

impl Lines {
    /// Empty lines for locks that so many may share.
    pub fn new(holders_per_lock_max: u32) -> Lines {
        Lines {
            holders_per_lock_max: holders_per_lock_max as usize,
            names: BTreeMap::new(),
            asked: BTreeMap::new(),
            left: None,
            unsettled: BTreeSet::new(),
            is_quiet: false,
        }
    }

    /// The cell was restored from a backup: nobody holds anything any more, nor waits. The tokens that it gave stay given.
    pub fn on_restored(&mut self) {
        for name in self.names.values_mut() {
            name.line.clear();
            name.holds.clear();
            name.newest_index = LogIndex(0);
        }
        self.left = None;
        self.is_quiet = true;
    }

    /// Takes an entry and what it told.
    ///
    /// # Errors
    /// The rule that does not hold.
    pub fn on_entry(&mut self, index: LogIndex, command: &Command<'_>, outcomes: &[Outcome]) -> Verdict {
        let own = match command {
            Command::Acquire(acquire) => {
                let request = (acquire.mutation.session, acquire.mutation.request_id);
                let name = acquire.names.iter().next().unwrap_or_default().to_owned();
                Some((request, Asked { name, owner: acquire.owner, mode: acquire.mode }))
            }
            _ => None,
        };
        if matches!(command, Command::EndQuiet) {
            self.is_quiet = false;
        }
        let mut is_unfinished = false;
        for outcome in outcomes {
            match outcome {
                Outcome::Reply { session, request_id, answer } => {
                    let request = (*session, *request_id);
                    let asked = own.as_ref().filter(|(own, _)| *own == request);
                    self.on_answer(index, request, answer, asked.map(|(_, asked)| asked))?;
                }
                Outcome::WaitEnded { session, acquire_id } => self.leave((*session, *acquire_id)),
                Outcome::HoldEnded { session, acquire_id, name, .. } => {
                    self.end_hold((*session, *acquire_id), name);
                }
                Outcome::SessionEnded { session, .. } => self.end_session(*session),
                Outcome::ReapNeeded => is_unfinished = true,
                Outcome::Opened { .. } | Outcome::OpenRefused { .. } | Outcome::WaitStarted { .. } => {}
            }
        }
        if is_unfinished || self.is_quiet { Ok(()) } else { self.look_for_vacancy(index) }
    }

    fn on_answer(
        &mut self,
        index: LogIndex,
        request: RequestKey,
        answer: &Answer,
        asked: Option<&Asked>,
    ) -> Verdict {
        if let (Answer::Granted(grant), true) = (answer, self.is_quiet) {
            return violated(QUIET, format!("{request:?} is granted token {} at {index}", grant.token));
        }
        match (answer, asked) {
            (Answer::Queued { .. }, Some(asked)) if !self.asked.contains_key(&request) => {
                self.names.entry(asked.name.clone()).or_default().line.push((request, asked.mode));
                self.unsettled.insert(asked.name.clone());
                self.asked.insert(request, asked.clone());
            }
            (Answer::Granted(grant), Some(asked)) => {
                let held = Held { mode: asked.mode, token: grant.token, fence: grant.fence };
                let holder = (request.0, asked.owner);
                let name = self.names.entry(asked.name.clone()).or_default();
                // Another token than this entry's is that of a hold which is there: told again, or joined by its owner.
                if grant.token.index() == index {
                    name.admit(index, holder, held, false)?;
                } else if name.holds.get(&holder) != Some(&held) {
                    let known = name.holds.get(&holder);
                    let is_retry = self.asked.contains_key(&request);
                    return violated(
                        if is_retry { once::RULE } else { TOKENS },
                        format!(
                            "{request:?} is granted {held:?} again at {index}, and its owner has {known:?}"
                        ),
                    );
                }
                self.asked.entry(request).or_insert_with(|| asked.clone());
            }
            (Answer::Granted(grant), None) => {
                let Some(asked) = self.asked.get(&request).cloned() else {
                    return violated(FIFO, format!("{request:?} is granted at {index} and never lined up"));
                };
                if self.left != Some((request, 0)) {
                    let left = self.left;
                    return violated(
                        FIFO,
                        format!("{request:?} is granted at {index} and stood at {left:?}"),
                    );
                }
                let held = Held { mode: asked.mode, token: grant.token, fence: grant.fence };
                let name = self.names.entry(asked.name).or_default();
                name.admit(index, (request.0, asked.owner), held, true)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// A request leaves its line; if it is granted next, it must have stood first.
    fn leave(&mut self, request: RequestKey) {
        self.left = None;
        if let Some(asked) = self.asked.get(&request)
            && let Some(name) = self.names.get_mut(&asked.name)
            && let Some(at) = name.line.iter().position(|(waiting, _)| *waiting == request)
        {
            name.line.remove(at);
            self.left = Some((request, at));
            self.unsettled.insert(asked.name.clone());
        }
    }

    fn end_hold(&mut self, request: RequestKey, name: &str) {
        if let Some(asked) = self.asked.get(&request)
            && let Some(state) = self.names.get_mut(name)
            && state.holds.remove(&(request.0, asked.owner)).is_some()
        {
            self.unsettled.insert(name.to_owned());
        }
    }

    /// From here on it holds nothing and waits for nothing in the eyes of anybody.
    fn end_session(&mut self, session: SessionId) {
        for (name, state) in &mut self.names {
            let before = state.holds.len() + state.line.len();
            state.holds.retain(|(of, _), _| *of != session);
            state.line.retain(|((of, _), _)| *of != session);
            if state.holds.len() + state.line.len() != before {
                self.unsettled.insert(name.clone());
            }
        }
    }

    /// Nothing is left to promote: no first in line could be granted.
    fn look_for_vacancy(&mut self, index: LogIndex) -> Verdict {
        for name in std::mem::take(&mut self.unsettled) {
            let Some(state) = self.names.get(&name) else { continue };
            let Some((first, mode)) = state.line.first() else { continue };
            let is_grantable = match mode {
                Mode::Exclusive => state.holds.is_empty(),
                Mode::Shared => {
                    state.holds.len() < self.holders_per_lock_max
                        && state.holds.values().all(|held| held.mode == Mode::Shared)
                }
            };
            if is_grantable {
                let holds = &state.holds;
                return violated(
                    VACANCY,
                    format!("{first:?} waits for {name} after entry {index}, which is held by {holds:?}"),
                );
            }
        }
        Ok(())
    }
}

impl Name {
    /// Somebody is granted; `has_waited` says that it stood first in line.
    fn admit(
        &mut self,
        index: LogIndex,
        holder: Holder,
        held: Held,
        has_waited: bool,
    ) -> Result<(), Violation> {
        if let Some((first, _)) = self.line.first()
            && !has_waited
        {
            return violated(FIFO, format!("{holder:?} is granted at {index} past {first:?}, who waits"));
        }
        let conflict = self
            .holds
            .iter()
            .find(|(_, other)| held.mode == Mode::Exclusive || other.mode == Mode::Exclusive);
        if let Some((other, _)) = conflict {
            return violated(EXCLUSION, format!("{holder:?} is granted at {index} while {other:?} holds"));
        }
        let shares_entry = self.newest_index == index && held.mode == Mode::Shared;
        if held.token <= self.newest && !(shares_entry && held.token == self.newest) {
            return violated(
                TOKENS,
                format!(
                    "{holder:?} gets token {} at {index}, and {} was granted before",
                    held.token, self.newest
                ),
            );
        }
        self.check_fence(holder, held)?;
        (self.newest, self.newest_index) = (held.token, index);
        if held.mode == Mode::Exclusive {
            self.newest_exclusive = held.fence;
        }
        self.holds.insert(holder, held);
        Ok(())
    }

    fn check_fence(&self, holder: Holder, held: Held) -> Verdict {
        let is_right = match (held.mode, self.holds.values().next()) {
            (Mode::Exclusive, _) | (Mode::Shared, None) => held.fence == held.token,
            (Mode::Shared, Some(other)) => held.fence == other.fence,
        };
        if !is_right || held.fence <= self.newest_exclusive {
            return violated(
                TOKENS,
                format!("{holder:?} gets fence {} with token {}", held.fence, held.token),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lockstep_wire::reply::{EndReason, Grant};
    use lockstep_wire::request::{Acquire, Mutation};
    use lockstep_wire::{RequestId, Rows};

    use super::*;

    /// Acquires of sessions 1, 2, ..., each with request id 1 and owner 1, for the lock `n`.
    fn ask(lines: &mut Lines, index: u64, session: u64, mode: Mode, answer: Answer) -> Verdict {
        let mutation =
            Mutation { session: SessionId(session), request_id: RequestId(1), seen: Rows::Slice(&[]) };
        let acquire = Acquire {
            mutation,
            owner: Owner(1),
            mode,
            is_reentrant: false,
            permits: 0,
            wait_ms: 1,
            lock_delay_ms: 0,
            max_hold_ms: 0,
            names: Rows::Slice(&["n"]),
            data: b"",
        };
        lines.on_entry(LogIndex(index), &Command::Acquire(acquire), &[reply(session, answer)])
    }

    fn reply(session: u64, answer: Answer) -> Outcome {
        Outcome::Reply { session: SessionId(session), request_id: RequestId(1), answer }
    }

    fn granted(token: u64, fence: u64) -> Answer {
        let (token, fence) = (FencingToken(token), FencingToken(fence));
        Answer::Granted(Grant { token, fence, slot: 0, hold_left_ms: 0, holders: 1 })
    }

    fn freed(session: u64, token: u64) -> Outcome {
        Outcome::HoldEnded {
            session: SessionId(session),
            acquire_id: RequestId(1),
            name: "n".into(),
            token: FencingToken(token),
            reason: EndReason::Released,
        }
    }

    fn called(session: u64) -> Outcome {
        Outcome::WaitEnded { session: SessionId(session), acquire_id: RequestId(1) }
    }

    const QUEUED: Answer = Answer::Queued { position: 1 };

    /// Session 1 holds alone from entry 5 on; sessions 2, 3, ... stand in line with these modes.
    fn line(modes: &[Mode]) -> Lines {
        let mut lines = Lines::new(9);
        ask(&mut lines, 5, 1, Mode::Exclusive, granted(5, 5)).unwrap();
        for (mode, session) in modes.iter().zip(2..) {
            ask(&mut lines, 4 + session, session, *mode, QUEUED).unwrap();
        }
        lines
    }

    fn then(lines: &mut Lines, index: u64, outcomes: &[Outcome]) -> Verdict {
        lines.on_entry(LogIndex(index), &Command::Reap, outcomes)
    }

    #[test]
    fn a_grant_past_a_waiter_is_seen() {
        let mut lines = line(&[Mode::Exclusive]);
        then(&mut lines, 7, &[freed(1, 5), Outcome::ReapNeeded]).unwrap();
        assert!(ask(&mut lines, 8, 3, Mode::Shared, granted(8, 8)).is_err());
    }

    #[test]
    fn conflicting_holds_are_seen() {
        assert!(ask(&mut line(&[]), 6, 2, Mode::Shared, granted(6, 6)).is_err());
    }

    #[test]
    fn a_token_that_does_not_grow_after_its_record_was_deleted_is_seen() {
        let mut lines = line(&[]);
        then(&mut lines, 6, &[freed(1, 5)]).unwrap();
        lines.names.get_mut("n").unwrap().newest = FencingToken(9);
        assert!(ask(&mut lines, 7, 2, Mode::Exclusive, granted(7, 7)).is_err());
    }

    #[test]
    fn a_waiter_that_was_not_first_is_seen() {
        let mut lines = line(&[Mode::Exclusive, Mode::Exclusive]);
        let outcomes = [freed(1, 5), called(3), reply(3, granted(8, 8))];
        assert!(then(&mut lines, 8, &outcomes).is_err());
    }

    #[test]
    fn the_first_in_line_is_granted_as_it_should() {
        let mut lines = line(&[Mode::Exclusive, Mode::Exclusive]);
        assert!(then(&mut lines, 8, &[freed(1, 5), called(2), reply(2, granted(8, 8))]).is_ok());
    }

    #[test]
    fn a_vacancy_with_somebody_in_line_is_seen_unless_it_is_announced() {
        let mut lines = line(&[Mode::Exclusive]);
        assert!(then(&mut lines, 7, &[freed(1, 5), Outcome::ReapNeeded]).is_ok());
        assert!(then(&mut lines, 8, &[]).is_err());
    }

    #[test]
    fn a_run_of_sharers_that_is_cut_short_is_seen() {
        let mut lines = line(&[Mode::Shared, Mode::Shared]);
        assert!(then(&mut lines, 8, &[freed(1, 5), called(2), reply(2, granted(8, 8))]).is_err());
        let mut lines = line(&[Mode::Shared, Mode::Shared]);
        let run = [freed(1, 5), called(2), reply(2, granted(8, 8)), called(3), reply(3, granted(8, 8))];
        assert!(then(&mut lines, 8, &run).is_ok());
    }

    #[test]
    fn a_sharer_with_another_fence_than_its_phase_is_seen() {
        let mut lines = Lines::new(9);
        ask(&mut lines, 5, 1, Mode::Shared, granted(5, 5)).unwrap();
        assert!(ask(&mut lines, 6, 2, Mode::Shared, granted(6, 5)).is_ok());
        assert!(ask(&mut lines, 7, 3, Mode::Shared, granted(7, 7)).is_err());
    }

    #[test]
    fn a_grant_while_a_restored_cell_is_quiet_is_seen() {
        let mut lines = line(&[Mode::Exclusive]);
        lines.on_restored();
        assert!(
            ask(&mut lines, 4, 9, Mode::Exclusive, QUEUED).is_ok(),
            "nobody holds it, and yet it is not granted"
        );
        assert!(then(&mut lines, 5, &[called(9), reply(9, granted(5, 5))]).is_err());
    }

    #[test]
    fn a_token_that_a_restored_cell_gives_must_be_above_those_of_the_old_one() {
        for (token, is_right) in [(5, false), (1 << 48 | 4, true)] {
            let mut lines = line(&[]);
            lines.on_restored();
            lines.on_entry(LogIndex(3), &Command::EndQuiet, &[]).unwrap();
            let granted = ask(&mut lines, 4, 9, Mode::Exclusive, granted(token, token));
            assert_eq!(granted.is_ok(), is_right, "token {token}");
        }
    }

    #[test]
    fn a_hold_that_is_granted_again_must_be_there() {
        let mut lines = line(&[]);
        assert!(ask(&mut lines, 7, 1, Mode::Exclusive, granted(5, 5)).is_ok());
        then(&mut lines, 8, &[freed(1, 5)]).unwrap();
        assert!(ask(&mut lines, 9, 1, Mode::Exclusive, granted(5, 5)).is_err());
    }
}
