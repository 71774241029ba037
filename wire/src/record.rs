//! What a record of a replica's log is about: the one word that whoever writes the records (the core), whoever keeps
//! them (the log) and whoever drives the two have in common.
//!
//! Invariant: the numbers are part of the log's format. Deliberately absent: the record itself; see `lockstep-wal`.

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordKind {
    /// A Raft entry at (term, index): the command. Indexes of a cell are contiguous.
    Entry,
    /// The cell's term and the vote in it: `term`, and the node in two bytes, 0 for none. The newest counts.
    HardState,
    /// The cell's entries from `index` on are gone. Nothing else truncates. At or below the first
    /// entry it empties the cell's log; the mark of an installed snapshot may follow.
    Truncate,
    /// A durable snapshot covers the cell through (term, index); the newest counts, and the one before is kept.
    SnapshotMark,
    /// Who the members were at the cell's birth, once ever: [`crate::peer::Manifest`].
    Manifest,
    /// Every member has confirmed the manifest.
    Born,
}

impl RecordKind {
    /// Its number on disk.
    pub fn code(self) -> u8 {
        match self {
            RecordKind::Entry => 1,
            RecordKind::HardState => 2,
            RecordKind::Truncate => 3,
            RecordKind::SnapshotMark => 4,
            RecordKind::Manifest => 5,
            RecordKind::Born => 6,
        }
    }

    /// The kind that has this number, if there is one.
    pub fn from_code(code: u8) -> Option<RecordKind> {
        match code {
            1 => Some(RecordKind::Entry),
            2 => Some(RecordKind::HardState),
            3 => Some(RecordKind::Truncate),
            4 => Some(RecordKind::SnapshotMark),
            5 => Some(RecordKind::Manifest),
            6 => Some(RecordKind::Born),
            _ => None,
        }
    }
}
