//! What happens to a cell, as one closed enum (ARCHITECTURE section 6, "Data flows one way").
//!
//! Invariant: everything a cell ever learns comes in through here, in the order in which it happened, and with a time
//! that is not before it happened: a lease counts from the arrival of a beat, so a driver whose clock is older than what
//! it hands in would end sessions early. A driver reads its clock, then hands in only what had arrived by then.

use lockstep_wire::frame::Head;
use lockstep_wire::peer::{Beat, PeerMessage};
use lockstep_wire::request::Request;
use lockstep_wire::{Correlation, DecodeError, LogIndex, NodeId, SnapshotId, Term};

use crate::effect::{AppendId, ConnectionId, DrainId};

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Time has passed: deadlines are looked at. Comes at the latest when `Cell::deadline` is reached.
    Tick,
    /// Every input that was at hand in this turn of the loop has been given: what was gathered for the
    /// peers goes out.
    EndOfTurn,
    /// The answer to [`crate::Effect::Drain`]: whatever had reached a socket before that effect came out
    /// has been given.
    Drained(DrainId),
    /// The disk has every append of this cell through this one.
    Durable(AppendId),
    /// Entries of the log that the cell asked for with [`crate::Effect::ReadLog`].
    LogRead(LogRead<'a>),
    /// The log wishes to let go of old segments: a snapshot of this cell is due. May be said again while it is.
    SnapshotDue,
    /// So much is used of the room that the log has until the snapshot that is being written must count. Comes in every turn
    /// from when its first piece was staged until it is stored or dropped.
    RoomUsed {
        /// More than a million when it is late.
        millionths: u64,
    },
    /// The answer to [`crate::Effect::StageSnapshot`], the last piece's aside: the disk has taken the piece.
    SnapshotStaged {
        /// Of which snapshot.
        snapshot: SnapshotId,
        /// Which piece.
        piece: u32,
    },
    /// The answer to the last piece: all of the snapshot is durable under its name.
    SnapshotStored {
        /// Which.
        snapshot: SnapshotId,
    },
    /// The answer to any piece: the disk had no room, and what it had of the snapshot is gone.
    SnapshotDropped {
        /// Which.
        snapshot: SnapshotId,
    },
    /// The answer to [`crate::Effect::ReadSnapshot`].
    SnapshotRead(SnapshotRead<'a>),
    /// A link to a member came up in both directions.
    LinkUp {
        /// The member.
        peer: NodeId,
    },
    /// A link to a member broke.
    LinkDown {
        /// The member.
        peer: NodeId,
        /// Whether an attempt to connect again was refused: its process is gone, not only a packet.
        is_refused: bool,
    },
    /// A member said something.
    Peer {
        /// Who.
        from: NodeId,
        /// What.
        message: PeerMessage<'a>,
    },
    /// A member's beat.
    Beat {
        /// Who.
        from: NodeId,
        /// What.
        beat: Beat,
    },
    /// A client asked for something.
    Request {
        /// On which connection.
        connection: ConnectionId,
        /// Under which number.
        correlation: Correlation,
        /// What.
        request: Request<'a>,
    },
    /// A client sent a whole frame that is no request of this cell.
    Malformed {
        /// On which connection.
        connection: ConnectionId,
        /// The head of the frame.
        head: Head,
        /// Why it is none; nothing when it was meant for another cell.
        error: Option<DecodeError>,
    },
    /// A client's connection is gone.
    Disconnected {
        /// Which.
        connection: ConnectionId,
    },
    /// The disk has no room for the next segment of the log, or has room again. What was appended is not concerned.
    Space {
        /// Whether it has none.
        is_short: bool,
    },
    /// The node is about to stop: leadership is handed over, new work is refused.
    Stop,
}

/// A piece of the log as it came back from the disk.
#[derive(Clone, Copy, Debug)]
pub struct LogRead<'a> {
    /// The index of the first entry.
    pub first: LogIndex,
    /// The entries from there on, by term and payload, as far as they are durable; none when the log has recycled the
    /// first.
    pub entries: Option<&'a [(Term, &'a [u8])]>,
}

/// A piece of a snapshot as it came back from the disk.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotRead<'a> {
    /// Of which snapshot.
    pub snapshot: SnapshotId,
    /// Which piece.
    pub piece: u32,
    /// Its bytes, and whether the snapshot ends with them; none when the disk does not have it whole any more.
    pub found: Option<(&'a [u8], bool)>,
}
