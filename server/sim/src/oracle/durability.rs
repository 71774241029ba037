//! Nothing acknowledged is lost (contract, points 1, 5, 6 and 8).
//!
//! Invariant checked: what a client was told stands in the entries that had committed by then: `commitment` sees to it that
//! those never change, `majority` that they were on enough disks, and the end of a run that every replica has them. It
//! knows what committed entries told, word by word. Deliberately absent: what no client was told.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockstep_core::table::{Answer, Outcome};
use lockstep_wire::reply::EndReason;
use lockstep_wire::{Epoch, FencingToken, LogIndex, SessionId};

use super::once::{RequestKey, says_the_same};
use super::{Violation, violated};

const RULE: &str = "nothing acknowledged is lost (contract 8)";

/// What the committed entries of one cell told.
#[derive(Debug, Default)]
pub struct Acknowledgements {
    applied: LogIndex,
    opened: BTreeMap<SessionId, LogIndex>,
    ended: BTreeMap<SessionId, Ended>,
    /// Holds that have ended, by the acquire that left last.
    lost: BTreeMap<RequestKey, Lost>,
    /// Each answer once, with the first entry that gave it.
    answers: BTreeMap<RequestKey, Vec<(LogIndex, Answer)>>,
    /// Of the cell, and where it began in this epoch.
    epoch: Epoch,
    began: LogIndex,
}

/// The end of a session.
#[derive(Debug)]
struct Ended {
    index: LogIndex,
    reason: EndReason,
    released_total: u32,
    released: Vec<Arc<str>>,
}

/// The end of a hold.
#[derive(Debug)]
struct Lost {
    index: LogIndex,
    name: Arc<str>,
    token: FencingToken,
    reason: EndReason,
}

/// The entry that a told word comes from.
pub type Origin = Result<LogIndex, Violation>;

impl Acknowledgements {
    /// Takes what a committed entry told.
    pub fn on_entry(&mut self, index: LogIndex, outcomes: &[Outcome]) {
        self.applied = index;
        for outcome in outcomes {
            match outcome {
                Outcome::Opened { session, .. } => {
                    self.opened.entry(*session).or_insert(index);
                }
                Outcome::SessionEnded { session, reason, released_total, released } => {
                    self.ended.entry(*session).or_insert_with(|| Ended {
                        index,
                        reason: *reason,
                        released_total: *released_total,
                        released: released.clone(),
                    });
                }
                Outcome::HoldEnded { session, acquire_id, name, token, reason } => {
                    let lost = Lost { index, name: Arc::clone(name), token: *token, reason: *reason };
                    self.lost.insert((*session, *acquire_id), lost);
                }
                Outcome::Reply { session, request_id, answer } => {
                    let known = self.answers.entry((*session, *request_id)).or_default();
                    if !known.iter().any(|(_, known)| says_the_same(known, answer)) {
                        known.push((index, *answer));
                    }
                }
                Outcome::OpenRefused { .. }
                | Outcome::WaitStarted { .. }
                | Outcome::WaitEnded { .. }
                | Outcome::ReapNeeded => {}
            }
        }
    }

    /// The cell was restored from a backup, and goes on behind this entry in a new epoch: whatever it told before, every
    /// session of an older epoch has ended.
    pub fn on_restored(&mut self, epoch: Epoch, through: LogIndex) {
        *self = Acknowledgements { applied: through, epoch, began: through, ..Acknowledgements::default() };
    }

    /// Whether a session is of a cell that was restored meanwhile.
    pub fn is_void(&self, session: SessionId) -> bool {
        session.0 < self.epoch.with(LogIndex(0)) && session.0 << 16 != 0
    }

    /// A replica confirms a session.
    ///
    /// # Errors
    /// It is of a cell that was restored meanwhile.
    pub fn on_kept_alive(&self, session: SessionId) -> super::Verdict {
        match self.is_void(session) {
            true => violated(
                "no session outlives its cell (contract 2)",
                format!("session {session} is confirmed in epoch {}", self.epoch),
            ),
            false => Ok(()),
        }
    }

    /// How far entries are known to have committed.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// A client was told that its session is open. Gives the entry that opened it.
    ///
    /// # Errors
    /// No committed entry did.
    pub fn on_opened(&self, session: SessionId) -> Origin {
        match self.opened.get(&session) {
            Some(index) => Ok(*index),
            None => violated(
                RULE,
                format!("a client was told of session {session}, which no committed entry opened"),
            ),
        }
    }

    /// A client was answered. Gives the first entry that answered so.
    ///
    /// # Errors
    /// No committed entry did.
    pub fn on_answered(&self, request: RequestKey, answer: &Answer) -> Origin {
        let known = self.answers.get(&request).map_or(&[][..], Vec::as_slice);
        match known.iter().find(|(_, known)| says_the_same(known, answer)) {
            Some((index, _)) => Ok(*index),
            None => violated(
                RULE,
                format!(
                    "a client was told {answer:?} of {request:?}; the committed entries through {} say {known:?}",
                    self.applied
                ),
            ),
        }
    }

    /// A client was told that there never was such a session.
    ///
    /// # Errors
    /// A committed entry opened it.
    pub fn on_session_unknown(&self, session: SessionId) -> super::Verdict {
        match self.opened.get(&session) {
            None if self.is_void(session) => violated(
                RULE,
                format!(
                    "a client was told that session {session} is unknown, and it was void from {} on",
                    self.began
                ),
            ),
            Some(index) => violated(
                RULE,
                format!("a client was told that session {session} is unknown, and entry {index} opened it"),
            ),
            None => Ok(()),
        }
    }

    /// A client was told that its session has ended. Gives the entry that ended it.
    ///
    /// # Errors
    /// No committed entry did, or not for the reason that was told.
    pub fn on_session_ended(&self, session: SessionId, reason: Option<EndReason>) -> Origin {
        match self.ended.get(&session) {
            None if self.is_void(session) => Ok(self.began),
            Some(known) if reason.is_none_or(|reason| reason == known.reason) => Ok(known.index),
            known => violated(
                RULE,
                format!(
                    "a client was told that session {session} has ended ({reason:?}); committed entries say {known:?}"
                ),
            ),
        }
    }
}

impl Acknowledgements {
    /// A client was told that it has closed its session, and what that has released. Gives the entry that closed it.
    ///
    /// # Errors
    /// No committed entry did, or it released something else.
    pub fn on_closed<'a>(
        &self,
        session: SessionId,
        released_total: u32,
        released: impl Iterator<Item = &'a str>,
    ) -> Origin {
        let index = self.on_session_ended(session, Some(EndReason::Closed))?;
        let told: Vec<&str> = released.collect();
        match self.ended.get(&session) {
            Some(known)
                if known.released_total == released_total
                    && known.released.iter().map(|name| &**name).eq(told.iter().copied()) =>
            {
                Ok(index)
            }
            known => violated(
                RULE,
                format!(
                    "a client was told that its session {session} has released {released_total}, {told:?}; \
                     committed entries say {known:?}"
                ),
            ),
        }
    }

    /// A client was told, unasked, that a hold has ended. Gives the entry that ended it.
    ///
    /// # Errors
    /// No committed entry did, or it was another hold or for another reason.
    pub fn on_hold_ended(
        &self,
        acquire: RequestKey,
        name: &str,
        (token, reason): (FencingToken, EndReason),
    ) -> Origin {
        match self.lost.get(&acquire) {
            Some(known) if (&*known.name, known.token, known.reason) == (name, token, reason) => {
                Ok(known.index)
            }
            known => violated(
                RULE,
                format!(
                    "a client was told that {acquire:?} has lost {name}, token {token}, {reason:?}; \
                     committed entries say {known:?}"
                ),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_wire::reply::Grant;
    use lockstep_wire::{FencingToken, RequestId};

    use super::*;

    #[test]
    fn what_no_entry_says_must_not_be_told() {
        let mut told = Acknowledgements::default();
        told.on_entry(LogIndex(1), &[Outcome::Opened { session: SessionId(1), ttl_ms: 1, is_new: true }]);
        assert!(told.on_opened(SessionId(1)).is_ok());
        assert!(told.on_opened(SessionId(2)).is_err());
        assert!(told.on_answered((SessionId(1), RequestId(1)), &Answer::Done).is_err());
        assert!(told.on_session_ended(SessionId(1), None).is_err());
        assert!(told.on_session_unknown(SessionId(1)).is_err());
        assert!(told.on_session_unknown(SessionId(2)).is_ok());
    }

    #[test]
    fn what_a_restored_cell_told_before_is_void() {
        let (old, unknown) = (SessionId(1), SessionId(1 << 40));
        let mut told = Acknowledgements::default();
        told.on_entry(LogIndex(1), &[Outcome::Opened { session: old, ttl_ms: 1, is_new: true }]);
        let request = (old, RequestId(1));
        let reply = Outcome::Reply { session: old, request_id: request.1, answer: Answer::Done };
        told.on_entry(LogIndex(9), &[reply]);
        assert!(told.on_kept_alive(old).is_ok());
        told.on_restored(Epoch(1), LogIndex(5));
        assert!(told.on_opened(old).is_err() && told.on_answered(request, &Answer::Done).is_err());
        assert!(told.on_kept_alive(old).is_err());
        for session in [old, unknown] {
            assert_eq!(told.on_session_ended(session, None), Ok(LogIndex(5)));
            assert!(told.on_session_unknown(session).is_err());
        }
        let new = SessionId(Epoch(1).with(LogIndex(6)));
        assert!(told.on_session_ended(new, None).is_err() && told.on_kept_alive(new).is_ok());
    }

    #[test]
    fn an_answer_must_be_the_one_that_was_committed() {
        let token = FencingToken(2);
        let grant = Grant { token, fence: token, slot: 0, hold_left_ms: 0, holders: 1 };
        let request = (SessionId(1), RequestId(1));
        let mut told = Acknowledgements::default();
        let answer = Answer::Granted(grant);
        let reply = Outcome::Reply { session: request.0, request_id: request.1, answer };
        told.on_entry(LogIndex(2), &[reply]);
        let again = Answer::Granted(Grant { holders: 7, ..grant });
        assert_eq!(told.on_answered(request, &again), Ok(LogIndex(2)));
        let other = Answer::Granted(Grant { token: FencingToken(3), ..grant });
        assert!(told.on_answered(request, &other).is_err());
    }

    #[test]
    fn an_end_must_have_the_reason_that_was_committed() {
        let mut told = Acknowledgements::default();
        let ended = Outcome::SessionEnded {
            session: SessionId(1),
            reason: EndReason::Expired,
            released_total: 0,
            released: Vec::new(),
        };
        told.on_entry(LogIndex(4), &[ended]);
        assert_eq!(told.on_session_ended(SessionId(1), None), Ok(LogIndex(4)));
        assert!(told.on_session_ended(SessionId(1), Some(EndReason::Closed)).is_err());
    }

    #[test]
    fn what_a_closed_session_has_released_must_be_what_was_committed() {
        let mut told = Acknowledgements::default();
        let ended = Outcome::SessionEnded {
            session: SessionId(1),
            reason: EndReason::Closed,
            released_total: 2,
            released: vec!["one".into(), "two".into()],
        };
        told.on_entry(LogIndex(4), &[ended]);
        assert_eq!(told.on_closed(SessionId(1), 2, ["one", "two"].into_iter()), Ok(LogIndex(4)));
        assert!(told.on_closed(SessionId(1), 2, ["one"].into_iter()).is_err());
        assert!(told.on_closed(SessionId(1), 1, ["one", "two"].into_iter()).is_err());
        assert!(told.on_closed(SessionId(2), 0, [].into_iter()).is_err());
    }

    #[test]
    fn a_hold_must_have_ended_as_was_committed() {
        let mut told = Acknowledgements::default();
        let (token, reason) = (FencingToken(2), EndReason::MaxHold);
        let acquire = (SessionId(1), RequestId(3));
        let ended =
            Outcome::HoldEnded { session: acquire.0, acquire_id: acquire.1, name: "n".into(), token, reason };
        told.on_entry(LogIndex(4), &[ended]);
        assert_eq!(told.on_hold_ended(acquire, "n", (token, reason)), Ok(LogIndex(4)));
        assert!(told.on_hold_ended(acquire, "m", (token, reason)).is_err());
        assert!(told.on_hold_ended(acquire, "n", (FencingToken(3), reason)).is_err());
        assert!(told.on_hold_ended(acquire, "n", (token, EndReason::Revoked)).is_err());
        assert!(told.on_hold_ended((SessionId(2), RequestId(3)), "n", (token, reason)).is_err());
    }
}
