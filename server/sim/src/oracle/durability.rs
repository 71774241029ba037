//! Nothing acknowledged is lost (contract, points 1, 5 and 8).
//!
//! Invariant checked: what a client was told stands in the entries that committed, at that time and for ever:
//! `commitment` sees to it that those never change, and the end of a run that every replica has them. Deliberately
//! absent: what no client was told.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_core::table::{Answer, Outcome};
use lockstep_wire::{FencingToken, LogIndex, RequestId, SessionId};

use super::{Verdict, violated};

const RULE: &str = "nothing acknowledged is lost (contract 8)";

/// What the committed entries of one cell told.
#[derive(Debug, Default)]
pub struct Acknowledgements {
    applied: LogIndex,
    opened: BTreeSet<SessionId>,
    ended: BTreeSet<SessionId>,
    grants: BTreeMap<(SessionId, RequestId), (FencingToken, FencingToken)>,
    /// Acquires that left their hold.
    left: BTreeSet<(SessionId, FencingToken)>,
    done: BTreeSet<(SessionId, RequestId)>,
}

impl Acknowledgements {
    /// Takes what a committed entry told.
    pub fn on_entry(&mut self, index: LogIndex, outcomes: &[Outcome]) {
        self.applied = index;
        for outcome in outcomes {
            match outcome {
                Outcome::Opened { session, .. } => {
                    self.opened.insert(*session);
                }
                Outcome::SessionEnded { session, .. } => {
                    self.ended.insert(*session);
                }
                Outcome::Reply { session, request_id, answer: Answer::Granted(grant) } => {
                    self.grants.insert((*session, *request_id), (grant.token, grant.fence));
                }
                Outcome::Reply { session, request_id, answer: Answer::Done } => {
                    self.done.insert((*session, *request_id));
                }
                Outcome::HoldEnded { session, token, .. } => {
                    self.left.insert((*session, *token));
                }
                Outcome::Reply { .. }
                | Outcome::OpenRefused { .. }
                | Outcome::WaitStarted { .. }
                | Outcome::WaitEnded { .. }
                | Outcome::ReapNeeded => {}
            }
        }
    }

    /// How far entries are known to have committed.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// A client was told that its session is open.
    ///
    /// # Errors
    /// No committed entry opened it.
    pub fn on_opened(&self, session: SessionId) -> Verdict {
        if self.opened.contains(&session) {
            return Ok(());
        }
        violated(RULE, format!("a client was told of session {session}, which no committed entry opened"))
    }

    /// A client was told of a grant.
    ///
    /// # Errors
    /// No committed entry granted it so.
    pub fn on_granted(
        &self,
        session: SessionId,
        acquire_id: RequestId,
        token: FencingToken,
        fence: FencingToken,
    ) -> Verdict {
        let known = self.grants.get(&(session, acquire_id)).copied();
        if known == Some((token, fence)) {
            return Ok(());
        }
        violated(
            RULE,
            format!(
                "a client was told that acquire {acquire_id} of session {session} has token {token} and fence {fence}; \
                 the committed entries through {} say {known:?}",
                self.applied
            ),
        )
    }

    /// A client was told that its hold, the only acquire in it, was released.
    ///
    /// # Errors
    /// No committed entry ended it.
    pub fn on_released(&self, session: SessionId, token: FencingToken) -> Verdict {
        if self.left.contains(&(session, token)) {
            return Ok(());
        }
        violated(
            RULE,
            format!(
                "a client was told that session {session} gave token {token} back, and no committed entry says so"
            ),
        )
    }

    /// A client was told that its session has ended.
    ///
    /// # Errors
    /// No committed entry ended it.
    pub fn on_session_ended(&self, session: SessionId) -> Verdict {
        if self.ended.contains(&session) {
            return Ok(());
        }
        violated(
            RULE,
            format!("a client was told that session {session} has ended, and no committed entry says so"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_entry_says_must_not_be_told() {
        let mut told = Acknowledgements::default();
        told.on_entry(LogIndex(1), &[Outcome::Opened { session: SessionId(1), ttl_ms: 1, is_new: true }]);
        assert!(told.on_opened(SessionId(1)).is_ok());
        assert!(told.on_opened(SessionId(2)).is_err());
        assert!(told.on_granted(SessionId(1), RequestId(1), FencingToken(2), FencingToken(2)).is_err());
        assert!(told.on_released(SessionId(1), FencingToken(2)).is_err());
        assert!(told.on_session_ended(SessionId(1)).is_err());
    }
}
