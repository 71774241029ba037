//! Why something could not be done.
//!
//! Invariant: each text says what happened, to what, and what to do next, and whether it may have been executed.

use std::time::Duration;

use lockstep_wire::reply::EndReason;
use lockstep_wire::{FencingToken, RequestId, Status};

use crate::core::{Failure, Loss};

/// Why something could not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It cannot be asked for like this.
    #[error("{what}: {detail}; nothing was sent")]
    Invalid {
        /// What was asked for.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// It was tried once, and somebody else has the lock.
    #[error("{name} is held or waited for by somebody else; it was tried once, nothing was acquired")]
    Held {
        /// The lock.
        name: String,
    },
    /// It was waited for, in vain.
    #[error(
        "{name} was not granted within {waited:?}; nothing is held or waited for any more, try again or wait longer"
    )]
    TimedOut {
        /// The lock.
        name: String,
        /// For how long.
        waited: Duration,
    },
    /// The owner has the lock already.
    #[error(
        "{name} is held or waited for by the same owner already, under acquire {acquire_id} and token {token}; ask for a reentrant \
         acquire or use another owner"
    )]
    AlreadyHeld {
        /// The lock.
        name: String,
        /// The acquire that holds or waits.
        acquire_id: RequestId,
        /// Its token; 0 while it waits.
        token: FencingToken,
    },
    /// The lock was granted, and lost before the client heard of it.
    #[error(
        "{name} had been granted under token {token}, but that hold has ended ({}) before this client heard of it; acquire it again",
        reason.name()
    )]
    Lost {
        /// The lock.
        name: String,
        /// The token that it had.
        token: FencingToken,
        /// Why it ended.
        reason: EndReason,
    },
    /// There was nothing to release.
    #[error(
        "{name} was not held under token {token} any more when it was to be released; nothing changed, but somebody else may have held \
         it in the meantime"
    )]
    Stale {
        /// The lock.
        name: String,
        /// The token that it had.
        token: FencingToken,
    },
    /// The cell refused it for good.
    #[error("{what} was refused{} ({}); not executed", after_colon(detail), status.name())]
    Refused {
        /// What was asked for.
        what: String,
        /// The cell's word.
        status: Status,
        /// The cell's explanation.
        detail: String,
    },
    /// The session is over.
    #[error("{what}: the session is over ({reason}), and holds nothing any more; open another one")]
    SessionEnded {
        /// What was asked for.
        what: String,
        /// Why the session is over.
        reason: Loss,
    },
    /// No member carried it out in time.
    #[error(
        "{what}: no member of the cell could do it in time (last: {trouble}); not executed, it is safe to try again"
    )]
    NoCluster {
        /// What was asked for.
        what: String,
        /// The last thing that went wrong.
        trouble: String,
    },
    /// No member confirmed it in time, and it may have been executed.
    #[error(
        "{what}: no member of the cell confirmed it in time (last: {trouble}); whether it was executed is not known, {next}"
    )]
    OutcomeUnknown {
        /// What was asked for.
        what: String,
        /// The last thing that went wrong.
        trouble: String,
        /// What becomes of it, or what to do.
        next: &'static str,
    },
    /// The cell's disks are full.
    #[error(
        "{what}: the disks of this cell are full, so that it takes nothing new; not executed. What is held stays held and can be given \
         back; try again when its operator has made room (`lockstep status` shows where)"
    )]
    NoSpace {
        /// What was asked for.
        what: String,
    },
    /// Too many calls wait in this client.
    #[error("{what}: too many calls wait in this client already; not executed, wait for some of them first")]
    Backlog {
        /// What was asked for.
        what: String,
    },
    /// The name belongs to another cell than the session.
    #[error("{name} is served by another cell than this session; open a session for that name")]
    OtherCell {
        /// The lock.
        name: String,
    },
    /// The process is a fork of the one that has the session.
    #[error(
        "{what}: this process was forked from the one that connected, and has no session; connect anew in the child"
    )]
    Forked {
        /// What was asked for.
        what: String,
    },
    /// The client's own thread is gone, or could not be started.
    #[error("{what}: the client's thread is not running; not executed")]
    Stopped {
        /// What was asked for.
        what: String,
    },
}

fn after_colon(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(": {detail}") }
}

/// For whatever has no other way on.
const LOOK: &str = "look how things are before you ask again";

impl Error {
    pub(crate) fn from_failure(what: &str, failure: Failure) -> Error {
        let what = what.to_owned();
        match failure {
            Failure::Invalid { detail } => Error::Invalid { what, detail },
            Failure::Refused { status, detail } => Error::Refused { what, status, detail },
            Failure::SessionEnded(reason) => Error::SessionEnded { what, reason },
            Failure::NotExecuted { trouble } => Error::NoCluster { what, trouble },
            Failure::OutcomeUnknown { trouble } => Error::OutcomeUnknown { what, trouble, next: LOOK },
            Failure::NoSpace => Error::NoSpace { what },
            Failure::Backlog => Error::Backlog { what },
        }
    }

    /// Of an acquire.
    pub(crate) fn from_acquire(name: &str, failure: Failure) -> Error {
        Error::from_failure(&format!("acquiring {name}"), failure).with_next("the acquire is being withdrawn")
    }

    /// If the outcome is not known, says what becomes of it.
    pub(crate) fn with_next(mut self, said: &'static str) -> Error {
        if let Error::OutcomeUnknown { next, .. } = &mut self {
            *next = said;
        }
        self
    }

    /// Whether what was asked for may have been executed all the same.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Error::OutcomeUnknown { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown() -> Failure {
        Failure::OutcomeUnknown { trouble: "the connection broke".to_owned() }
    }

    #[test]
    fn what_becomes_of_something_unknown_depends_on_what_it_was() {
        let acquire = Error::from_acquire("/ls/a/b", unknown()).to_string();
        assert!(acquire.ends_with("is not known, the acquire is being withdrawn"), "{acquire}");
        let change = Error::from_failure("changing the members of cell 0", unknown());
        let text = "changing the members of cell 0: no member of the cell confirmed it in time (last: the connection \
                    broke); whether it was executed is not known, look how things are before you ask again";
        assert_eq!(change.to_string(), text);
    }

    #[test]
    fn a_refusal_says_why_before_it_says_by_which_name() {
        let refused = |detail: &str| {
            let failure = Failure::Refused { status: Status::Conflict, detail: detail.to_owned() };
            Error::from_failure("changing the members of cell 0", failure).to_string()
        };
        assert_eq!(
            refused("node 3 is not heard"),
            "changing the members of cell 0 was refused: node 3 is not heard (CONFLICT); not executed"
        );
        assert_eq!(refused(""), "changing the members of cell 0 was refused (CONFLICT); not executed");
    }
}
