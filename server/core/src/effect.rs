//! What a cell wants done, gathered in a buffer that its driver owns and reuses.
//!
//! Invariant: every effect here is safe to carry out at once; whatever had to wait for the disk has
//! waited inside the core. Frames and records are encoded here already, so a driver copies bytes and
//! understands none of them. Deliberately absent: sockets, files, and any answer to an effect.

use std::ops::Range;

use lockstep_wire::peer::{Beat, PeerMessage};
use lockstep_wire::reply::{Event, Reply};
use lockstep_wire::{CellId, Correlation, LogIndex, NodeId, RecordKind, SnapshotId, Term};

use crate::time::Span;

/// A client's connection, as its driver numbers them; never reused within a life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// One append of this cell to its shard's log, counted from 1 in each life of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppendId(pub u64);

/// One wish to have the sockets drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DrainId(pub u64);

/// Which of the two links to a member a frame takes, so that votes never queue behind entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Small frames that must not wait.
    Control,
    /// Entries.
    Bulk,
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// What it is.
    pub kind: RecordKind,
    /// The term it was made in, or that it sets.
    pub term: Term,
    /// The entry it is about; 0 when it is about none.
    pub index: LogIndex,
}

/// Why a replica must not go on (ARCHITECTURE section 1, point 8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halt {
    /// What happened, to what, and what to do next.
    pub reason: String,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Append a record to the shard's log, and say [`crate::Input::Durable`] once the disk has it.
    Append {
        /// Its number.
        append: AppendId,
        /// Its head.
        head: RecordHead,
        /// Its payload, in [`Effects::bytes`].
        payload: Range<usize>,
    },
    /// Send a frame to a member.
    Send {
        /// Whom.
        to: NodeId,
        /// By which link.
        lane: Lane,
        /// The frame, in [`Effects::bytes`].
        frame: Range<usize>,
    },
    /// Send a beat to a member, in one frame with those of the other cells.
    Beat {
        /// Whom.
        to: NodeId,
        /// The beat.
        beat: Beat,
    },
    /// Send a frame to a client.
    Reply {
        /// On which connection.
        connection: ConnectionId,
        /// The frame, in [`Effects::bytes`].
        frame: Range<usize>,
    },
    /// Read entries from the log for a follower that is behind what is kept in memory, and answer with
    /// [`crate::Input::LogRead`]; at most one such read of a cell is under way.
    ReadLog {
        /// The first.
        first: LogIndex,
        /// The last.
        last: LogIndex,
        /// Payload bytes to stop at, after at least one entry.
        bytes_max: usize,
    },
    /// Write the next piece of a snapshot beside what counts, and say [`crate::Input::SnapshotStaged`]; make it durable
    /// under its name after the last one, and say [`crate::Input::SnapshotStored`]; or say
    /// [`crate::Input::SnapshotDropped`]. Piece 0 begins anew, whatever was written before. One piece of a cell is under
    /// way at a time.
    StageSnapshot {
        /// Of which snapshot.
        snapshot: SnapshotId,
        /// Which piece.
        piece: u32,
        /// Whether the snapshot ends with it.
        is_last: bool,
        /// Its bytes, in [`Effects::bytes`].
        bytes: Range<usize>,
    },
    /// Forget the pieces that were written, and answer nothing more about them.
    DropSnapshot,
    /// Read a piece of a snapshot that has its mark, and answer with [`crate::Input::SnapshotRead`]. An answer that
    /// nobody waits for any more is ignored.
    ReadSnapshot {
        /// Of which snapshot.
        snapshot: SnapshotId,
        /// Which piece.
        piece: u32,
    },
    /// Hand out all that has reached a socket by now, then say [`crate::Input::Drained`].
    Drain(DrainId),
    /// There are other nodes to talk to, or they are elsewhere: see [`crate::Cell::peers`].
    PeersChanged,
    /// This node was removed from the cell, for ever: there is nothing left for this replica to do.
    Removed,
    /// Say this to whoever operates the node; rate-limited by the driver.
    Report(Report),
    /// The orderly stop is done: the cell leads no more and owes nothing.
    Stopped,
    /// Stop the process, non-zero; acknowledge nothing more.
    Halt(Halt),
}

/// What operators want to know when it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The cell was born.
    Born,
    /// This node knows the cell that it is to join, and has to be added to it.
    WaitsToBeAdded {
        /// Where it serves clients.
        client_address: String,
        /// Where it serves members.
        peer_address: String,
    },
    /// This node leads from now on.
    Leading {
        /// In this term.
        term: Term,
    },
    /// The cell that this node leads was restored, and grants nothing yet.
    Quiet {
        /// For how long, if this leader stays.
        left: Span,
    },
    /// The cell that this node leads was restored, and grants from now on.
    QuietEnded,
    /// This node has stopped leading.
    Deposed {
        /// In this term.
        term: Term,
        /// Why.
        reason: &'static str,
        /// It had told another member to take over, or stops.
        is_planned: bool,
    },
    /// This leader hands over to the member that should lead the cell when all are well.
    GivingWay {
        /// That member.
        to: NodeId,
    },
    /// This node follows another leader than before.
    Following {
        /// In this term.
        term: Term,
        /// Whom.
        leader: NodeId,
    },
    /// A snapshot counts from now on.
    SnapshotTaken {
        /// Which.
        snapshot: SnapshotId,
    },
    /// A snapshot of the leader has replaced what this node had.
    SnapshotInstalled {
        /// Which.
        snapshot: SnapshotId,
    },
    /// A member cannot take part, or this node cannot; for a person.
    Refused {
        /// The other member.
        peer: NodeId,
        /// What happened, to what, and what to do next.
        reason: String,
    },
}

/// Effects in the order in which they were wished for, and the bytes they speak of.
#[derive(Debug, Default)]
pub struct Effects {
    list: Vec<Effect>,
    bytes: Vec<u8>,
}

impl Effects {
    /// None yet.
    pub fn new() -> Effects {
        Effects::default()
    }

    /// Forgets everything and keeps the room.
    pub fn clear(&mut self) {
        self.list.clear();
        self.bytes.clear();
    }

    /// The effects in their order.
    pub fn list(&self) -> &[Effect] {
        &self.list
    }

    /// What the ranges of the effects are ranges of.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Wishes for anything that carries no bytes.
    pub fn push(&mut self, effect: Effect) {
        self.list.push(effect);
    }

    /// Writes a piece of a snapshot.
    pub fn stage(&mut self, snapshot: SnapshotId, piece: u32, is_last: bool, bytes: &[u8]) {
        let bytes = self.encode(|out| out.extend_from_slice(bytes));
        self.list.push(Effect::StageSnapshot { snapshot, piece, is_last, bytes });
    }

    /// Appends a record whose payload `payload` appends.
    pub fn append(&mut self, append: AppendId, head: RecordHead, payload: impl FnOnce(&mut Vec<u8>)) {
        let range = self.encode(payload);
        self.list.push(Effect::Append { append, head, payload: range });
    }

    /// Sends a message to a member.
    pub fn send(&mut self, to: NodeId, lane: Lane, cell: CellId, message: &PeerMessage<'_>) {
        let frame = self.encode(|out| message.encode(cell, out));
        self.list.push(Effect::Send { to, lane, frame });
    }

    /// Answers a client's request of kind `asked`.
    pub fn reply(
        &mut self,
        connection: ConnectionId,
        cell: CellId,
        asked: u16,
        correlation: Correlation,
        reply: &Reply<'_>,
    ) {
        let frame = self.encode(|out| reply.encode(asked, cell, correlation, out));
        self.list.push(Effect::Reply { connection, frame });
    }

    /// Tells a client something that it did not ask for.
    pub fn tell(&mut self, connection: ConnectionId, cell: CellId, event: &Event<'_>) {
        let frame = self.encode(|out| event.encode(cell, out));
        self.list.push(Effect::Reply { connection, frame });
    }

    pub(crate) fn encode(&mut self, body: impl FnOnce(&mut Vec<u8>)) -> Range<usize> {
        let start = self.bytes.len();
        body(&mut self.bytes);
        start..self.bytes.len()
    }
}
