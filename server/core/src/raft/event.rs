//! What a Raft node tells the cell around it.
//!
//! Invariant: entries are handed out in the order of the log, each once in a life of the process; events
//! come in the order in which they happened. Deliberately absent: what the cell makes of either.

use lockstep_wire::{LogIndex, NodeId, RoundId, SnapshotId, Term};

/// A committed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed<'a> {
    /// Its index.
    pub index: LogIndex,
    /// The term of the leader that made it.
    pub term: Term,
    /// The command.
    pub payload: &'a [u8],
}

/// Something that a cell has to know of its Raft node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaftEvent {
    /// This node was elected; it does not serve yet.
    Elected {
        /// In this term.
        term: Term,
    },
    /// The blank entry of this leader's term was handed out: all that was ever committed has been, too.
    Serving {
        /// In this term.
        term: Term,
    },
    /// This node leads no more; rounds that were asked for will not be confirmed.
    Deposed {
        /// It led in this term.
        term: Term,
        /// Why.
        reason: &'static str,
        /// It had told another member to take over, or stops.
        is_planned: bool,
    },
    /// This node follows another leader than before.
    LeaderChanged {
        /// Whom.
        leader: NodeId,
    },
    /// Every round of this term through this one is confirmed. Never said before `Serving`.
    RoundConfirmed(RoundId),
    /// A follower needs a snapshot, and there is none that would do.
    SnapshotWanted,
    /// A snapshot of this node's state counts: its mark is durable.
    SnapshotTaken(SnapshotId),
    /// A snapshot of the leader counts: its mark is durable, and whatever it replaced is gone.
    SnapshotInstalled(SnapshotId),
    /// Every member has confirmed who the members are; voting may begin.
    Born,
    /// This node knows the cell that it is to join, and is in none of its lists of members; said once.
    WaitsToBeAdded,
    /// There are other members than before, or other nodes to talk to.
    MembersChanged,
    /// This node was removed from the cell, for ever.
    Removed,
}
