//! A request has one effect and one outcome (contract, points 5 and 6).
//!
//! Invariants checked, over what committed entries told and over what clients were told in any of their lives and on any
//! connection: of all answers to one request of a session each may follow the one before (a grant may be followed by the same
//! grant or by its loss, a final answer by itself or by STALE_REQUEST); a request is granted once; what has its final answer
//! changes nothing any more; and only one content is carried out under one id. Two answers of which neither was asked for
//! after the other was heard may have been given in either order. Deliberately absent: which answer is right; see
//! `durability` and the reference model.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_core::table::{Answer, Outcome};
use lockstep_wire::entry::Command;
use lockstep_wire::{LogIndex, RequestId, SessionId};

use super::{Verdict, violated};

/// What the judge demands.
pub const RULE: &str = "a request has one effect and one outcome (contract 5)";

/// A request by its session and id.
pub type RequestKey = (SessionId, RequestId);

/// An answer that a client was given.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// To which request.
    pub request: RequestKey,
    /// A hash of the request's content.
    pub content: u64,
    /// When it was asked, by [`Once::moment`].
    pub asked: u64,
    /// What came.
    pub answer: Answer,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    content: u64,
    answer: Answer,
    at: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Once {
    granted: BTreeSet<RequestKey>,
    committed: BTreeMap<RequestKey, Answer>,
    heard: BTreeMap<RequestKey, Heard>,
    used: BTreeMap<SessionId, RequestId>,
    moments: u64,
}

impl Once {
    /// A moment after all that was heard, and before all that will be.
    pub fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    /// The highest id of a session that a client knows to be used up.
    pub fn used(&self, session: SessionId) -> RequestId {
        self.used.get(&session).copied().unwrap_or_default()
    }

    /// Whether the request that an entry carries has its outcome already.
    pub fn is_settled(&self, command: &Command<'_>) -> bool {
        own_request(command).is_some_and(|own| self.committed.get(&own).is_some_and(is_final))
    }

    /// Takes an entry and what it told.
    ///
    /// # Errors
    /// It does something a second time, or contradicts what an earlier one told.
    pub fn on_entry(&mut self, index: LogIndex, command: &Command<'_>, outcomes: &[Outcome]) -> Verdict {
        let own = own_request(command);
        let known = own.and_then(|own| self.committed.get(&own).copied());
        if let (Some(own), Some(known)) = (own, known.filter(is_final)) {
            let deed = outcomes.iter().find(|outcome| is_deed(outcome));
            if let Some(deed) = deed {
                return violated(RULE, format!("{own:?} had {known:?}, and entry {index} does {deed:?}"));
            }
        }
        for outcome in outcomes {
            let Outcome::Reply { session, request_id, answer } = outcome else { continue };
            self.on_committed(index, (*session, *request_id), *answer)?;
        }
        Ok(())
    }

    fn on_committed(&mut self, index: LogIndex, request: RequestKey, answer: Answer) -> Verdict {
        if !is_of_request(&answer) {
            return Ok(());
        }
        if let Answer::Granted(grant) = answer
            && grant.token.index() == index
            && !self.granted.insert(request)
        {
            return violated(RULE, format!("{request:?} is granted a second time by entry {index}"));
        }
        match self.committed.insert(request, answer) {
            Some(before) if !may_follow(&before, &answer) => {
                violated(RULE, format!("{request:?} had {before:?}, and entry {index} says {answer:?}"))
            }
            _ => Ok(()),
        }
    }

    /// A client is told.
    ///
    /// # Errors
    /// It had been told otherwise.
    pub fn on_told(&mut self, told: Told) -> Verdict {
        if !is_of_request(&told.answer) {
            return Ok(());
        }
        let at = self.moment();
        let is_stale = told.answer == Answer::StaleRequest;
        if !is_stale {
            let used = self.used.entry(told.request.0).or_default();
            *used = told.request.1.max(*used);
        }
        let Some(before) = self.heard.get(&told.request).copied() else {
            self.heard.insert(told.request, Heard { content: told.content, answer: told.answer, at });
            return Ok(());
        };
        if before.content != told.content && !is_stale && before.answer != Answer::StaleRequest {
            return violated(
                RULE,
                format!("two contents under {:?}: {:?} and {:?}", told.request, before.answer, told.answer),
            );
        }
        let follows = may_follow(&before.answer, &told.answer);
        let is_later = told.asked > before.at;
        if !follows && (is_later || !may_follow(&told.answer, &before.answer)) {
            return violated(
                RULE,
                format!(
                    "a client was told {:?} of {:?} and then {:?}",
                    before.answer, told.request, told.answer
                ),
            );
        }
        if follows {
            let content = if is_stale { before.content } else { told.content };
            self.heard.insert(told.request, Heard { content, answer: told.answer, at });
        }
        Ok(())
    }

    /// A client is told which id comes next; `used` is what [`Once::used`] said when it asked.
    ///
    /// # Errors
    /// That one was used before.
    pub fn on_next_id(&self, session: SessionId, next: RequestId, used: RequestId) -> Verdict {
        if next > used {
            return Ok(());
        }
        violated(RULE, format!("session {session} is told to go on with id {next}, and {used} was answered"))
    }
}

fn own_request(command: &Command<'_>) -> Option<RequestKey> {
    match command {
        Command::Acquire(acquire) => Some((acquire.mutation.session, acquire.mutation.request_id)),
        Command::Cancel { mutation, .. } | Command::Release { mutation, .. } => {
            Some((mutation.session, mutation.request_id))
        }
        _ => None,
    }
}

/// Whether an outcome shows that something was done.
fn is_deed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::HoldEnded { .. } | Outcome::WaitEnded { .. } | Outcome::Opened { .. })
}

/// Whether an answer is one to the request itself, and not a refusal that leaves its id as it was.
fn is_of_request(answer: &Answer) -> bool {
    match answer {
        Answer::Granted(_)
        | Answer::Queued { .. }
        | Answer::TimedOut
        | Answer::Cancelled
        | Answer::AlreadyHeld { .. }
        | Answer::Lost { .. }
        | Answer::Done
        | Answer::StaleToken
        | Answer::StaleRequest => true,
        Answer::Limit(_)
        | Answer::Invalid(_)
        | Answer::Unsupported(_)
        | Answer::SessionExpired
        | Answer::SessionUnknown => false,
    }
}

fn is_final(answer: &Answer) -> bool {
    is_of_request(answer) && !matches!(answer, Answer::Queued { .. })
}

/// Whether two answers say the same; who else holds may have changed between two tellings of a grant.
pub fn says_the_same(one: &Answer, other: &Answer) -> bool {
    match (one, other) {
        (Answer::Granted(one), Answer::Granted(other)) => {
            (one.token, one.fence) == (other.token, other.fence)
        }
        (one, other) => one == other,
    }
}

fn may_follow(before: &Answer, after: &Answer) -> bool {
    match (before, after) {
        (Answer::Queued { position }, Answer::Queued { position: again }) => position == again,
        (Answer::Queued { .. }, Answer::Done | Answer::StaleToken | Answer::AlreadyHeld { .. }) => false,
        (Answer::Queued { .. }, _) => true,
        (Answer::Granted(grant), Answer::Lost { token, .. }) => grant.token == *token,
        (Answer::StaleRequest, after) => *after == Answer::StaleRequest,
        (_, Answer::StaleRequest) => true,
        (before, after) => says_the_same(before, after),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_wire::FencingToken;
    use lockstep_wire::reply::{EndReason, Grant};

    use super::*;

    const REQUEST: RequestKey = (SessionId(1), RequestId(4));

    fn granted(token: u64) -> Answer {
        let token = FencingToken(token);
        Answer::Granted(Grant { token, fence: token, slot: 0, hold_left_ms: 0, holders: 1 })
    }

    fn lost(token: u64) -> Answer {
        Answer::Lost { token: FencingToken(token), reason: EndReason::Released }
    }

    fn tell(once: &mut Once, asked: u64, answer: Answer) -> Verdict {
        once.on_told(Told { request: REQUEST, content: 1, asked, answer })
    }

    fn reply(answer: Answer) -> [Outcome; 1] {
        [Outcome::Reply { session: REQUEST.0, request_id: REQUEST.1, answer }]
    }

    #[test]
    fn another_outcome_for_a_request_is_seen() {
        for (first, second, is_right) in [
            (granted(5), granted(5), true),
            (granted(5), lost(5), true),
            (granted(5), granted(6), false),
            (granted(5), lost(6), false),
            (granted(5), Answer::TimedOut, false),
            (lost(5), granted(5), false),
            (Answer::TimedOut, granted(5), false),
            (Answer::Done, Answer::StaleToken, false),
            (Answer::Done, Answer::StaleRequest, true),
            (Answer::StaleRequest, Answer::Done, false),
            (Answer::Queued { position: 1 }, granted(5), true),
            (granted(5), Answer::Queued { position: 1 }, false),
        ] {
            let mut once = Once::default();
            assert!(tell(&mut once, 0, first).is_ok());
            let asked = once.moment();
            assert_eq!(tell(&mut once, asked, second).is_ok(), is_right, "{first:?}, then {second:?}");
        }
    }

    #[test]
    fn answers_that_cross_each_other_on_two_connections_are_no_violation() {
        let mut once = Once::default();
        let asked = once.moment();
        assert!(tell(&mut once, asked, lost(5)).is_ok());
        assert!(tell(&mut once, asked, granted(5)).is_ok());
        assert!(tell(&mut once, asked, granted(6)).is_err());
    }

    #[test]
    fn two_contents_under_one_id_are_seen() {
        let mut once = Once::default();
        assert!(tell(&mut once, 0, Answer::Done).is_ok());
        let told = Told { request: REQUEST, content: 2, asked: 0, answer: Answer::Done };
        assert!(once.on_told(told).is_err());
        assert!(once.on_told(Told { answer: Answer::StaleRequest, ..told }).is_ok());
    }

    #[test]
    fn a_second_grant_and_a_second_deed_in_the_log_are_seen() {
        let mut once = Once::default();
        assert!(once.on_entry(LogIndex(5), &Command::Blank, &reply(granted(5))).is_ok());
        assert!(once.on_entry(LogIndex(6), &Command::Blank, &reply(granted(5))).is_ok());
        assert!(once.on_entry(LogIndex(7), &Command::Blank, &reply(granted(7))).is_err());

        let mut once = Once::default();
        let mutation = lockstep_wire::request::Mutation {
            session: REQUEST.0,
            request_id: REQUEST.1,
            seen: lockstep_wire::Rows::Slice(&[]),
        };
        let release =
            Command::Release { mutation, acquire_id: RequestId(1), name: "n", token: FencingToken(2) };
        let [done] = reply(Answer::Done);
        let ended = Outcome::HoldEnded {
            session: REQUEST.0,
            acquire_id: RequestId(1),
            name: "n".into(),
            token: FencingToken(2),
            reason: EndReason::Released,
        };
        let outcomes = [ended, done.clone()];
        assert!(once.on_entry(LogIndex(5), &release, &outcomes).is_ok());
        assert!(once.on_entry(LogIndex(6), &release, &[done]).is_ok());
        assert!(once.on_entry(LogIndex(7), &release, &outcomes).is_err());
    }

    #[test]
    fn an_id_that_was_used_must_not_come_next() {
        let mut once = Once::default();
        assert!(tell(&mut once, 0, Answer::Done).is_ok());
        let used = once.used(REQUEST.0);
        assert!(once.on_next_id(REQUEST.0, RequestId(4), used).is_err());
        assert!(once.on_next_id(REQUEST.0, RequestId(5), used).is_ok());
    }
}
