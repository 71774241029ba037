//! What comes out of the session core: actions for its driver, events for its user.
//!
//! Invariant: a failure says whether the request may have been executed; nobody has to guess.

use std::fmt;

use lockstep_wire::reply::{EndReason, Grant};
use lockstep_wire::{FencingToken, NodeId, RequestId, Status, Term};

use super::view::{LockInfo, MembersInfo, PieceInfo, RouteInfo, SessionInfo, StatusInfo};

/// A connection, as the core numbers them; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A session within one core, known before its cell has named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub u64);

/// Something that was asked for; an acquire's call also names the hold that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// What the driver is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect, and say `on_connected` or `on_connect_failed`.
    Connect {
        /// Under this number.
        connection: ConnectionId,
        /// To this `host:port`.
        endpoint: String,
    },
    /// Send these bytes.
    Send {
        /// On this connection.
        connection: ConnectionId,
        /// Whole frames.
        bytes: Vec<u8>,
    },
    /// Close the connection, or stop connecting. Nothing about it needs to be said afterwards.
    Disconnect {
        /// Which.
        connection: ConnectionId,
    },
}

/// What the user is to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The acquire stands in line; its outcome follows.
    Queued {
        /// Which.
        call: CallId,
        /// Its place, from 1.
        position: u32,
    },
    /// What was asked for has its outcome; comes once for each call that was not cancelled.
    Finished {
        /// Which.
        call: CallId,
        /// What became of it.
        outcome: Outcome,
    },
    /// The session's condition is another one now. `Ended` comes once and is the last.
    SessionChanged {
        /// Which.
        session: SessionKey,
        /// What it is now.
        condition: Condition,
    },
    /// A hold that was granted is gone, otherwise than by the user's own release or cancel; comes once.
    HoldLost {
        /// Whose.
        session: SessionKey,
        /// The acquire that made the hold.
        acquire: CallId,
        /// Why.
        reason: Loss,
    },
}

/// What a client may believe of its session (ARCHITECTURE section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It has been asked for and is not open yet.
    Opening,
    /// The cell has promised to keep it at least until the deadline.
    Safe,
    /// The deadline has passed and nothing is known: tokens are withheld.
    Jeopardy,
    /// It is over, and nothing of it is valid any more.
    Ended(Loss),
}

/// Why a hold or a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The cell has said so, and why.
    Ended(EndReason),
    /// The cell could not be asked from the deadline on until the grace period was over.
    Unconfirmed,
    /// The cell does not know it (any more).
    Unknown,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Ended(reason) => f.write_str(reason.name()),
            Loss::Unconfirmed => f.write_str("not confirmed by its cell for too long"),
            Loss::Unknown => f.write_str("not known to its cell any more"),
        }
    }
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The session is open.
    Opened {
        /// The TTL that the cell gave it, in ms.
        ttl_ms: u32,
    },
    /// The lock is held.
    Granted(Grant),
    /// The acquire waited as long as it asked to (at once, for a try) and holds nothing.
    TimedOut,
    /// The owner holds or waits for this name under another acquire.
    AlreadyHeld {
        /// The request id of that one.
        acquire_id: RequestId,
        /// Its token; 0 while it waits.
        token: FencingToken,
    },
    /// The acquire had been granted, and that hold ended before its client heard of it.
    Lost {
        /// The token that it had.
        token: FencingToken,
        /// Why it ended.
        reason: EndReason,
    },
    /// The hold has been released.
    Released,
    /// The hold was gone already; nothing changed.
    StaleToken,
    /// The session has ended and holds nothing.
    Closed {
        /// How many holds it had.
        released_total: u32,
        /// The names of some of them.
        released: Vec<String>,
    },
    /// What is known of a token.
    Checked {
        /// Whether it names a live hold.
        is_current: bool,
        /// The newest token of the name; 0 when nobody holds it.
        latest_token: FencingToken,
        /// What every token granted so far is at most, and every later one is above; 0 while somebody holds it.
        fence_floor: FencingToken,
    },
    /// A lock.
    Lock(LockInfo),
    /// A session.
    Session(SessionInfo),
    /// The cell.
    Status(StatusInfo),
    /// The members.
    Members(MembersInfo),
    /// The members are as they were to be.
    MembersChanged,
    /// Leadership has moved.
    Transferred {
        /// Who leads now.
        leader: NodeId,
        /// In which term.
        term: Term,
    },
    /// The routing table.
    Routes(Vec<RouteInfo>),
    /// A piece of a snapshot.
    Piece(PieceInfo),
    /// The snapshot is not kept any more, or the member knows nothing of this save: it must begin again.
    SnapshotGone,
    /// None of these.
    Failed(Failure),
}

/// Why a call has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It cannot be asked for like this; nothing was sent.
    Invalid {
        /// What is wrong with it.
        detail: String,
    },
    /// The cell refused it for good; not executed.
    Refused {
        /// The cell's word.
        status: Status,
        /// The cell's explanation.
        detail: String,
    },
    /// Its session is over. An acquire of it holds nothing.
    SessionEnded(Loss),
    /// No member could carry it out in time; not executed.
    NotExecuted {
        /// The last thing that went wrong.
        trouble: String,
    },
    /// No member confirmed it in time, and it may have been executed. An acquire has been withdrawn.
    OutcomeUnknown {
        /// The last thing that went wrong.
        trouble: String,
    },
    /// The cell's disks were full for longer than this client waits for that to pass; not executed.
    NoSpace,
    /// Too many calls wait in this client; not executed.
    Backlog,
}
