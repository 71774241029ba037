//! What applying an entry tells: answers to requests, and what the leader's memory must follow.
//!
//! Invariant: outcomes are the same on every replica and in the order of docs/SEMANTICS.md, section 7.
//! Deliberately absent: connections and correlation ids; whoever holds those finds them by session and
//! request id, or by the index of the entry.

use std::sync::Arc;

use lockstep_wire::reply::{EndReason, Grant};
use lockstep_wire::{FencingToken, RequestId, SessionId, Status};

use super::limits::LimitKind;

/// The caller's buffer of outcomes.
pub type Outcomes = Vec<Outcome>;

/// The answer to a request of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The acquire holds the lock. `hold_left_ms` is the leader's to fill in.
    Granted(Grant),
    /// The acquire waits; another answer to the same request follows.
    Queued {
        /// Its place in line when it lined up, from 1.
        position: u32,
    },
    /// The acquire waited as long as it asked to.
    TimedOut,
    /// The acquire was cancelled while it waited.
    Cancelled,
    /// The same owner holds or waits for the name already.
    AlreadyHeld {
        /// The request id of that acquire.
        acquire_id: RequestId,
        /// Its token; 0 while it waits.
        token: FencingToken,
    },
    /// The acquire had been granted, and has lost its hold since.
    Lost {
        /// The token that it had.
        token: FencingToken,
        /// How it lost it.
        reason: EndReason,
    },
    /// The release or cancel was done.
    Done,
    /// The release names no live hold.
    StaleToken,
    /// The request id's outcome is not known any more, or never was to be.
    StaleRequest,
    /// Over a limit; nothing changed.
    Limit(LimitKind),
    /// This field contradicts what is known; nothing changed.
    Invalid(&'static str),
    /// This field asks for what is not built; nothing changed.
    Unsupported(&'static str),
    /// The session has ended.
    SessionExpired,
    /// There never was such a session.
    SessionUnknown,
}

impl Answer {
    /// The answer in one word.
    pub fn status(&self) -> Status {
        match self {
            Answer::Granted(_) | Answer::Done => Status::Ok,
            Answer::Queued { .. } => Status::Queued,
            Answer::TimedOut => Status::TimedOut,
            Answer::Cancelled => Status::Cancelled,
            Answer::AlreadyHeld { .. } => Status::AlreadyHeld,
            Answer::Lost { .. } => Status::Lost,
            Answer::StaleToken => Status::StaleToken,
            Answer::StaleRequest => Status::StaleRequest,
            Answer::Limit(_) => Status::Limit,
            Answer::Invalid(_) => Status::Invalid,
            Answer::Unsupported(_) => Status::Unsupported,
            Answer::SessionExpired => Status::SessionExpired,
            Answer::SessionUnknown => Status::SessionUnknown,
        }
    }
}

/// One thing that an entry did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A request is answered: the entry's own, or an acquire that waited.
    Reply {
        /// The session that asked.
        session: SessionId,
        /// Which of its requests.
        request_id: RequestId,
        /// The answer.
        answer: Answer,
    },
    /// The entry's `OpenSession` has a session.
    Opened {
        /// The session.
        session: SessionId,
        /// Its TTL, in ms.
        ttl_ms: u32,
        /// Whether this entry made it; otherwise the nonce found it.
        is_new: bool,
    },
    /// The entry's `OpenSession` was refused; nothing changed.
    OpenRefused {
        /// Why: a limit or an invalid field.
        answer: Answer,
    },
    /// An acquire waits, or its wait was sent again: its timer runs for this long from now, or ends earlier.
    WaitStarted {
        /// The session.
        session: SessionId,
        /// The request id of the acquire.
        acquire_id: RequestId,
        /// How long, in ms.
        wait_ms: u32,
    },
    /// An acquire waits no more; its timer is not needed.
    WaitEnded {
        /// The session.
        session: SessionId,
        /// The request id of the acquire.
        acquire_id: RequestId,
    },
    /// A hold has ended.
    HoldEnded {
        /// The session.
        session: SessionId,
        /// The acquire that left last, or the lowest when all left at once.
        acquire_id: RequestId,
        /// The lock.
        name: Arc<str>,
        /// The token that it had.
        token: FencingToken,
        /// Why.
        reason: EndReason,
    },
    /// A session has ended; whatever it still has outstanding is `SESSION_EXPIRED`.
    SessionEnded {
        /// The session.
        session: SessionId,
        /// Why.
        reason: EndReason,
        /// How many holds it had; counted for a closed session only.
        released_total: u32,
        /// The names of the first of them (at most `VIEW_ROWS_MAX`); for a closed session only.
        released: Vec<Arc<str>>,
    },
    /// Something is left for a `Reap` entry.
    ReapNeeded,
}

/// A final answer that is kept until its client has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    TimedOut,
    Cancelled,
    AlreadyHeld { acquire_id: RequestId, token: FencingToken },
    Lost { token: FencingToken, reason: EndReason },
    Done,
    StaleToken,
}

impl Settled {
    pub(crate) fn answer(self) -> Answer {
        match self {
            Settled::TimedOut => Answer::TimedOut,
            Settled::Cancelled => Answer::Cancelled,
            Settled::AlreadyHeld { acquire_id, token } => Answer::AlreadyHeld { acquire_id, token },
            Settled::Lost { token, reason } => Answer::Lost { token, reason },
            Settled::Done => Answer::Done,
            Settled::StaleToken => Answer::StaleToken,
        }
    }

    pub(crate) fn words(self) -> [u64; 3] {
        match self {
            Settled::TimedOut => [1, 0, 0],
            Settled::Cancelled => [2, 0, 0],
            Settled::AlreadyHeld { acquire_id, token } => [3, acquire_id.0, token.0],
            Settled::Lost { token, reason } => [4, token.0, reason as u64],
            Settled::Done => [5, 0, 0],
            Settled::StaleToken => [6, 0, 0],
        }
    }
}
