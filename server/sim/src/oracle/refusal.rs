//! What was said not to be executed is not (contract, point 6).
//!
//! Invariant checked: whatever is committed for a client was sent by one, and not each of its sends has been refused as not
//! executed, be it before the entry commits or after. A send that had another answer, or none, may be carried out at any
//! time. Deliberately absent: refusals that entries give (a limit, an ended session); `durability` compares those.

use std::collections::BTreeMap;

use lockstep_wire::{LogIndex, Nonce, Retry, SessionId, Status};

use super::once::RequestKey;
use super::{Verdict, violated};

const RULE: &str = "what was said not to be executed is not (contract 6)";

/// Something that a client asks for and an entry does. Contents are hashes of all that is the same in every send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// A session, by its nonce.
    Open {
        /// The nonce.
        nonce: Nonce,
        /// The whole request.
        content: u64,
    },
    /// The end of a session.
    Close(SessionId),
    /// A mutation in a session.
    Mutation {
        /// By its session and id.
        request: RequestKey,
        /// The rest of it.
        content: u64,
    },
}

/// See the module.
#[derive(Debug, Default)]
pub struct Refusals {
    /// How many sends may have been carried out, of all that was ever sent.
    open: BTreeMap<Wish, u64>,
    /// The first entry that did it.
    committed: BTreeMap<Wish, LogIndex>,
}

impl Refusals {
    /// A client sends, perhaps again.
    pub fn on_sent(&mut self, wish: Wish) {
        *self.open.entry(wish).or_default() += 1;
    }

    /// A send was refused.
    ///
    /// # Errors
    /// It was the last that could have been carried out, nobody may do it any more, and it is done.
    pub fn on_refused(&mut self, wish: Wish, status: Status) -> Verdict {
        if !says_not_executed(status) {
            return Ok(());
        }
        let Some(open) = self.open.get_mut(&wish) else { return Ok(()) };
        *open = open.saturating_sub(1);
        match (*open, self.committed.get(&wish)) {
            (0, Some(index)) => violated(
                RULE,
                format!(
                    "{} is the answer to the only send of {wish:?}, or the last that had another one, \
                     and entry {index} does it",
                    status.name()
                ),
            ),
            (_, _) => Ok(()),
        }
    }

    /// An entry does it.
    ///
    /// # Errors
    /// Nobody has sent it, or each send was refused.
    pub fn on_entry(&mut self, index: LogIndex, wish: Wish) -> Verdict {
        self.committed.entry(wish).or_insert(index);
        match self.open.get(&wish) {
            Some(0) => {
                violated(RULE, format!("every send of {wish:?} was refused, and entry {index} does it"))
            }
            Some(_) => Ok(()),
            None => violated(RULE, format!("nobody has sent {wish:?}, and entry {index} does it")),
        }
    }
}

/// Whether a status promises that nothing will ever come of a send. What else was not executed an entry has refused, or
/// might have.
fn says_not_executed(status: Status) -> bool {
    match status.retry() {
        Retry::Anywhere => true,
        Retry::Never => matches!(status, Status::Denied | Status::Unsupported),
        Retry::Done | Retry::SameRequestId => false,
    }
}

#[cfg(test)]
mod tests {
    use lockstep_wire::RequestId;

    use super::*;

    const WISH: Wish = Wish::Mutation { request: (SessionId(1), RequestId(4)), content: 9 };
    const AT: LogIndex = LogIndex(7);

    #[test]
    fn what_every_send_was_refused_of_must_not_be_done_before_or_after() {
        for status in [Status::NotLeader, Status::NoQuorum, Status::Overloaded, Status::Unsupported] {
            let mut refusals = Refusals::default();
            refusals.on_sent(WISH);
            assert!(refusals.on_refused(WISH, status).is_ok());
            assert!(refusals.on_entry(AT, WISH).is_err(), "{status:?}, then the entry");

            let mut refusals = Refusals::default();
            refusals.on_sent(WISH);
            assert!(refusals.on_entry(AT, WISH).is_ok());
            assert!(refusals.on_refused(WISH, status).is_err(), "the entry, then {status:?}");
        }
    }

    #[test]
    fn what_one_send_may_have_done_may_be_done() {
        let mut refusals = Refusals::default();
        refusals.on_sent(WISH);
        refusals.on_sent(WISH);
        assert!(refusals.on_refused(WISH, Status::NotLeader).is_ok());
        assert!(refusals.on_entry(AT, WISH).is_ok());

        let mut refusals = Refusals::default();
        refusals.on_sent(WISH);
        assert!(refusals.on_refused(WISH, Status::OutcomeUnknown).is_ok());
        assert!(refusals.on_refused(WISH, Status::Limit).is_ok());
        assert!(refusals.on_entry(AT, WISH).is_ok());

        let mut refusals = Refusals::default();
        refusals.on_sent(WISH);
        assert!(refusals.on_refused(WISH, Status::NotLeader).is_ok());
        refusals.on_sent(WISH);
        assert!(refusals.on_entry(AT, WISH).is_ok());
    }

    #[test]
    fn what_nobody_sent_must_not_be_done() {
        let mut refusals = Refusals::default();
        refusals.on_sent(WISH);
        let other = Wish::Mutation { request: (SessionId(1), RequestId(4)), content: 8 };
        assert!(refusals.on_entry(AT, other).is_err());
        assert!(refusals.on_entry(AT, Wish::Close(SessionId(1))).is_err());
    }
}
