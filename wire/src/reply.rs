//! What a cell answers, and what it tells a session unasked (ARCHITECTURE section 3).
//!
//! Invariant: a reply starts with its status; a status that refuses has the one layout of [`Refusal`],
//! whatever was asked. Deliberately absent: which status a situation calls for.

mod codec;

use crate::cursor::{DecodeError, Decoded, Reader, Writer};
use crate::frame::{self, Frame, Head};
use crate::limit::{
    ADDRESS_BYTES_MAX, CLIENT_ID_BYTES_MAX, DATA_BYTES_MAX, MEMBERS_MAX, NAME_BYTES_MAX, ROUTES_MAX,
    SESSIONS_PER_BATCH_MAX, VIEW_ROWS_MAX,
};
use crate::membership::MemberRow;
use crate::request::{Mode, kind};
use crate::rows::{Row, Rows};
use crate::{
    CellId, Correlation, FencingToken, Incarnation, LogIndex, NodeId, Owner, RequestId, Retry, Revision,
    SavedPiece, SessionId, Status, Term,
};

/// The text of a refusal, in bytes; what is longer is cut when it is sent.
pub const DETAIL_BYTES_MAX: usize = 512;

/// Appends words for a person, cut to what the other side reads. They may quote what came from outside,
/// and a reply that its receiver refuses would be worse than one that ends early.
pub(crate) fn put_detail(detail: &str, out: &mut Vec<u8>) {
    let mut end = detail.len().min(DETAIL_BYTES_MAX);
    while !detail.is_char_boundary(end) {
        end -= 1;
    }
    out.put_bytes(&detail.as_bytes()[..end]);
}

/// Why a hold ended (ARCHITECTURE section 2, "Reasons").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EndReason {
    /// Its owner released it.
    Released = 0,
    /// Its acquire was cancelled.
    Cancelled = 1,
    /// Its session expired.
    Expired = 2,
    /// Its session was closed.
    Closed = 3,
    /// Somebody revoked it.
    Revoked = 4,
    /// It had lasted for the longest time that its acquire allowed.
    MaxHold = 5,
    /// The cell was restored.
    CellRestored = 6,
}

impl EndReason {
    /// Reads a reason.
    pub fn read(reader: &mut Reader<'_>) -> Decoded<EndReason> {
        Ok(match reader.u8("reason")? {
            0 => EndReason::Released,
            1 => EndReason::Cancelled,
            2 => EndReason::Expired,
            3 => EndReason::Closed,
            4 => EndReason::Revoked,
            5 => EndReason::MaxHold,
            6 => EndReason::CellRestored,
            _ => return Err(DecodeError::Invalid("reason")),
        })
    }

    /// As documents and tools print it.
    pub fn name(self) -> &'static str {
        match self {
            EndReason::Released => "released",
            EndReason::Cancelled => "cancelled",
            EndReason::Expired => "expired",
            EndReason::Closed => "closed",
            EndReason::Revoked => "revoked",
            EndReason::MaxHold => "max-hold",
            EndReason::CellRestored => "cell restored",
        }
    }
}

/// A request that was not done, or whose outcome is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// Why.
    pub status: Status,
    /// When to try again at the earliest, in ms; with `OVERLOADED` and `NO_SPACE`.
    pub retry_after_ms: u32,
    /// Where to ask instead; 0 when not known.
    pub leader: NodeId,
    /// Where that node serves clients; empty when not known.
    pub leader_address: &'a str,
    /// Which field, limit or cell, for a person.
    pub detail: &'a str,
}

impl<'a> Refusal<'a> {
    /// A refusal that says no more than its status and a word for people.
    pub fn new(status: Status, detail: &'a str) -> Refusal<'a> {
        Refusal { status, retry_after_ms: 0, leader: NodeId(0), leader_address: "", detail }
    }

    /// Whether a status has the layout of a refusal: exactly those that leave something to retry or that
    /// say that retrying is of no use.
    fn is_possible(status: Status) -> bool {
        status.retry() != Retry::Done
    }

    fn put(&self, out: &mut Vec<u8>) {
        assert!(Refusal::is_possible(self.status), "{} is not a refusal", self.status.name());
        out.put_u32(self.retry_after_ms);
        out.put_u16(self.leader.0);
        out.put_bytes(self.leader_address.as_bytes());
        put_detail(self.detail, out);
    }

    fn read(status: Status, reader: &mut Reader<'a>) -> Decoded<Refusal<'a>> {
        Ok(Refusal {
            status,
            retry_after_ms: reader.u32("retry_after_ms")?,
            leader: NodeId(reader.u16("leader")?),
            leader_address: reader.text(ADDRESS_BYTES_MAX, "leader_address")?,
            detail: reader.text(DETAIL_BYTES_MAX, "detail")?,
        })
    }
}

/// A lock that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token: grows with every grant of the name, for ever.
    pub token: FencingToken,
    /// What to present to a resource (ARCHITECTURE section 2, "Fence").
    pub fence: FencingToken,
    /// Which permit of a counted lock; 0 otherwise.
    pub slot: u16,
    /// What is left of a max-hold, in ms; 0 when there is none.
    pub hold_left_ms: u32,
    /// How many hold the lock now, this one included.
    pub holders: u32,
}

/// One session's answer to an attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The session.
    pub session: SessionId,
    /// `OK`; `DENIED` for a wrong nonce; `SESSION_EXPIRED`; `SESSION_UNKNOWN`; `OUTCOME_UNKNOWN` for one
    /// whose end is on its way.
    pub status: Status,
    /// What it believes from the send of the attach on, in ms; with `OK`.
    pub ttl_ms: u32,
    /// The lowest request id it has not used; with `OK`.
    pub next_request_id: RequestId,
}

impl Attached {
    /// A session that was not attached.
    pub fn refused(session: SessionId, status: Status) -> Attached {
        Attached { session, status, ttl_ms: 0, next_request_id: RequestId(0) }
    }
}

/// One session's answer to a keep-alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptAlive {
    /// The session.
    pub session: SessionId,
    /// `OK`, `SESSION_EXPIRED`, `SESSION_UNKNOWN` or `NOT_ATTACHED`.
    pub status: Status,
    /// What it believes from the send of the keep-alive on, in ms; with `OK`.
    pub ttl_ms: u32,
}

/// Who holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderView<'a> {
    /// The session.
    pub session: SessionId,
    /// Who, within the session.
    pub owner: Owner,
    /// The request id of the acquire that made the hold.
    pub acquire_id: RequestId,
    /// Its token.
    pub token: FencingToken,
    /// Its fence.
    pub fence: FencingToken,
    /// What people see of the client.
    pub client_id: &'a str,
    /// What the owner shows.
    pub data: &'a [u8],
}

/// Who waits for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterView<'a> {
    /// The session.
    pub session: SessionId,
    /// Who, within the session.
    pub owner: Owner,
    /// The request id of its acquire.
    pub acquire_id: RequestId,
    /// How it wishes to hold.
    pub mode: Mode,
    /// Its place in the line, from 1.
    pub position: u32,
    /// What people see of the client.
    pub client_id: &'a str,
}

/// A lock as it is at one revision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LockView<'a> {
    /// At which revision.
    pub revision: Revision,
    /// Whether the lock has a record: a holder, a waiter or a delay.
    pub exists: bool,
    /// How it is held; meaningless without a holder.
    pub mode: Mode,
    /// What every token granted so far is at most, and every later one is above; for an absent record.
    pub fence_floor: FencingToken,
    /// The cell was restored, and grants nothing yet.
    pub is_quiet: bool,
    /// How many hold it; the list may be shorter.
    pub holders_total: u32,
    /// How many wait; the list may be shorter.
    pub waiters_total: u32,
    /// Who holds it, in the order of the grants.
    pub holders: Rows<'a, HolderView<'a>>,
    /// Who waits, in line.
    pub waiters: Rows<'a, WaiterView<'a>>,
}

/// What a session holds or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimView<'a> {
    /// The request id of the acquire.
    pub acquire_id: RequestId,
    /// Who, within the session.
    pub owner: Owner,
    /// How.
    pub mode: Mode,
    /// The token of the hold; 0 while it waits.
    pub token: FencingToken,
    /// The fence of the hold; 0 while it waits.
    pub fence: FencingToken,
    /// The lock.
    pub name: &'a str,
}

/// A session as it is at one revision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionView<'a> {
    /// At which revision.
    pub revision: Revision,
    /// Its TTL, in ms.
    pub ttl_ms: u32,
    /// What people see of the client.
    pub client_id: &'a str,
    /// How many holds and waits it has; the list may be shorter.
    pub claims_total: u32,
    /// What it holds and waits for, by request id.
    pub claims: Rows<'a, ClaimView<'a>>,
}

/// A member of a cell as the node that was asked knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberView<'a> {
    /// The node.
    pub node: NodeId,
    /// Whether it is the node that was asked or linked with it and, if that one leads, was heard in its term and within an
    /// election timeout.
    pub is_heard: bool,
    /// How far its log is known to match; only a leader knows.
    pub matched: LogIndex,
    /// Where it serves clients.
    pub address: &'a str,
}

/// A cell as the node that was asked knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StatusView<'a> {
    /// The node that answers.
    pub node: NodeId,
    /// What it is: `leader`, `follower`, `learner`, `pre-candidate`, `candidate`, `unborn`, `joining` or `removed`.
    pub role: &'a str,
    /// Its term.
    pub term: Term,
    /// The leader it knows; 0 for none.
    pub leader: NodeId,
    /// Where that leader serves clients; empty when not known.
    pub leader_address: &'a str,
    /// How far it knows the log to be committed.
    pub committed: LogIndex,
    /// How far it has applied the log.
    pub applied: LogIndex,
    /// How far its own disk has the log.
    pub durable: LogIndex,
    /// Sessions that have not ended.
    pub sessions: u64,
    /// Locks that have a record.
    pub locks: u64,
    /// The digest of its replicated state at `applied`.
    pub digest: u64,
    /// Its disk has no room for the next segment of its log.
    pub is_short_of_space: bool,
    /// The cell was restored, and grants nothing yet.
    pub is_quiet: bool,
    /// For how long that stays so, in ms; 0 unless the leader was asked.
    pub quiet_left_ms: u32,
    /// The cell's members.
    pub members: Rows<'a, MemberView<'a>>,
}

/// A member of a cell, and how it gets on, as the node that was asked knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberProgress<'a> {
    /// The member as the log says, with the addresses that the node that was asked would use.
    pub member: MemberRow<'a>,
    /// Whether it is the node that was asked or linked with it and, if that one leads, was heard in its term and within an
    /// election timeout.
    pub is_heard: bool,
    /// How far its log is known to match; 0 unless the leader was asked.
    pub matched: LogIndex,
}

/// Who the members of a cell are, as the node that was asked knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MembersView<'a> {
    /// The node that answers.
    pub node: NodeId,
    /// The life of its data directory: what it is to be added under.
    pub incarnation: Incarnation,
    /// Where it serves members, as its own configuration says.
    pub peer_address: &'a str,
    /// Where it serves clients, likewise.
    pub client_address: &'a str,
    /// How many cells the cluster has, from 0 on.
    pub cells: u16,
    /// How many shards the node that answers was formatted with.
    pub shards: u16,
    /// The leader it knows; 0 for none.
    pub leader: NodeId,
    /// Where that leader serves clients; empty when not known.
    pub leader_address: &'a str,
    /// The last entry of its log.
    pub last: LogIndex,
    /// The last change of the members is not known to be committed.
    pub is_changing: bool,
    /// The highest id that any member ever had.
    pub node_max: NodeId,
    /// The members, by id; none when the node is not one yet.
    pub members: Rows<'a, MemberProgress<'a>>,
}

/// Which cell serves a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route<'a> {
    /// The namespace; empty for every one that has no row of its own.
    pub namespace: &'a str,
    /// The cell.
    pub cell: CellId,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reply<'a> {
    /// Not done, or not known to be done.
    Refused(Refusal<'a>),
    /// The session that is open now.
    Opened {
        /// Its id.
        session: SessionId,
        /// What it believes from the send of the request on, in ms.
        ttl_ms: u32,
        /// The lowest request id it has not used.
        next_request_id: RequestId,
    },
    /// What became of each attach.
    Attached(Rows<'a, Attached>),
    /// What became of each keep-alive; a session whose end is on its way has no row.
    KeptAlive(Rows<'a, KeptAlive>),
    /// The session has ended.
    Closed {
        /// How many holds it had; all of them are free.
        released_total: u32,
        /// The names of some of them.
        released: Rows<'a, &'a str>,
    },
    /// The acquire holds the lock.
    Granted(Grant),
    /// The acquire waits in line; its final reply follows under the same correlation id.
    Queued {
        /// Its place in the line, from 1.
        position: u32,
    },
    /// The acquire waited as long as it asked to, and holds nothing.
    TimedOut,
    /// The acquire was cancelled, and holds nothing.
    Cancelled,
    /// The owner holds or waits for this name under another acquire.
    AlreadyHeld {
        /// The request id of that one.
        acquire_id: RequestId,
        /// Its token; 0 while it waits.
        token: FencingToken,
    },
    /// The acquire had been granted, and that hold has ended since.
    Lost {
        /// The token that it had.
        token: FencingToken,
        /// Why it ended.
        reason: EndReason,
    },
    /// The cancel, the release, the change of the members or the like was done.
    Done,
    /// The token or the acquire id does not name a live hold; nothing changed.
    StaleToken,
    /// What is known of a token.
    Checked {
        /// Whether it names a live hold.
        is_current: bool,
        /// The newest token of the name; 0 for an absent record.
        latest_token: FencingToken,
        /// What every token granted so far is at most, and every later one is above.
        fence_floor: FencingToken,
    },
    /// A lock.
    Lock(LockView<'a>),
    /// A session.
    Session(SessionView<'a>),
    /// The cell.
    Status(StatusView<'a>),
    /// The members.
    Members(MembersView<'a>),
    /// Leadership has moved.
    Transferred {
        /// Who leads now: the member that was asked for, unless another one was quicker.
        leader: NodeId,
        /// In which term.
        term: Term,
    },
    /// The routing table.
    Routes(Rows<'a, Route<'a>>),
    /// A piece of a snapshot.
    SavedPiece(SavedPiece<'a>),
    /// The snapshot is not kept any more: another one must be begun with.
    SnapshotGone,
}

/// What a cell tells a session unasked, on the connection it is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A hold has ended otherwise than by its owner's own request.
    HoldEnded {
        /// The session.
        session: SessionId,
        /// The request id of the acquire.
        acquire_id: RequestId,
        /// The token that it had.
        token: FencingToken,
        /// Why it ended.
        reason: EndReason,
        /// The lock.
        name: &'a str,
    },
    /// The session has ended.
    SessionEnded {
        /// The session.
        session: SessionId,
        /// Why: expired, closed or cell restored.
        reason: EndReason,
    },
    /// The node is stopping; go to the leader named here, or to any other member.
    ShuttingDown {
        /// The leader to go to; 0 for none.
        leader: NodeId,
        /// Where it serves clients; empty when not known.
        leader_address: &'a str,
    },
}
