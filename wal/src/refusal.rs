//! Why a data directory is refused, in words for the person who must act.
//!
//! Invariant: a refusal has changed nothing that recovery would need. Deliberately absent: repair. The way back
//! from damage is to give the replica up and replace it.

use std::fmt;

use lockstep_wire::{CellId, LogIndex};

use crate::disk::{DiskError, FileName, SegmentSequence, ShardId};
use crate::record::{Lsn, Record};

/// A record by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// Its position in the shard's log.
    pub lsn: Lsn,
    /// Whose it is.
    pub cell: CellId,
    /// The index it carries.
    pub index: LogIndex,
}

impl RecordPlace {
    pub(crate) fn of(lsn: Lsn, record: &Record<'_>) -> RecordPlace {
        RecordPlace { lsn, cell: record.cell, index: record.index }
    }
}

/// Bytes inside the log that are not what was written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: FileName,
    /// Where the damaged batch begins, in bytes.
    pub offset: u64,
    /// The last good record before it.
    pub after: Option<RecordPlace>,
    /// The first good record behind it.
    pub before: Option<RecordPlace>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}", self.file, self.offset)?;
        if let Some(place) = self.after {
            write!(f, ", after cell {} index {} (lsn {})", place.cell, place.index, place.lsn)?;
        }
        if let Some(place) = self.before {
            write!(f, ", before cell {} index {} (lsn {})", place.cell, place.index, place.lsn)?;
        }
        Ok(())
    }
}

/// Why a data directory is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no superblock.
    NotFormatted,
    /// Formatting was asked for, but something of ours is here already.
    AlreadyFormatted {
        /// What was found.
        file: FileName,
    },
    /// Neither copy of the superblock is good.
    SuperblockDamaged,
    /// Both copies are good and say different things.
    SuperblocksDiffer,
    /// Written by another version of the format.
    OtherVersion {
        /// The file.
        file: FileName,
        /// The version it names.
        version: u32,
    },
    /// Sizes that the log cannot work with.
    BadGeometry {
        /// What is wrong with them.
        why: &'static str,
    },
    /// Formatted, but a shard has no segment at all: an unmounted disk looks like this.
    NoSegments {
        /// Which shard.
        shard: ShardId,
    },
    /// A segment that the log needs is not there.
    SegmentMissing {
        /// Its file.
        file: FileName,
    },
    /// A segment that the log needs has no good header.
    SegmentHeaderless {
        /// Its file.
        file: FileName,
    },
    /// A segment that the log needs has another length than it was formatted with.
    SegmentLength {
        /// Its file.
        file: FileName,
        /// Its length in bytes.
        bytes: u64,
    },
    /// Damage with valid batches behind it.
    Rot(Damage),
    /// A batch that verifies alone, in a place where this log did not write it.
    Foreign(Damage),
    /// Records that contradict each other: a gap in a cell's entries, or between them and what its newest mark
    /// covers; or a batch that is not well formed.
    Contradiction(Damage),
    /// The disk failed.
    Disk {
        /// On which file; `None` for the directory.
        file: Option<FileName>,
        /// How.
        error: DiskError,
    },
}

impl Refusal {
    pub(crate) fn disk(file: Option<FileName>) -> impl Fn(DiskError) -> Refusal {
        move |error| Refusal::Disk { file, error }
    }

    pub(crate) fn segment_missing(shard: ShardId, sequence: SegmentSequence) -> Refusal {
        Refusal::SegmentMissing { file: FileName::Segment { shard, sequence } }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const REJOIN: &str = "nothing was changed; mend the disk, or give this replica up";
        match self {
            Refusal::NotFormatted => f.write_str("the data directory is not formatted (no superblock)"),
            Refusal::AlreadyFormatted { file } => {
                write!(f, "the data directory is not empty: it holds {file}; it will not be formatted again")
            }
            Refusal::SuperblockDamaged => write!(f, "both copies of the superblock are damaged; {REJOIN}"),
            Refusal::SuperblocksDiffer => {
                write!(f, "the two copies of the superblock are intact but differ; {REJOIN}")
            }
            Refusal::OtherVersion { file, version } => {
                write!(f, "{file} has format version {version}, which this program does not read")
            }
            Refusal::BadGeometry { why } => f.write_str(why),
            Refusal::NoSegments { shard } => {
                write!(f, "shard {shard} was formatted but has no segment at all; is the right disk mounted?")
            }
            Refusal::SegmentMissing { file } => write!(f, "{file} is missing; {REJOIN}"),
            Refusal::SegmentHeaderless { file } => write!(f, "the header of {file} is damaged; {REJOIN}"),
            Refusal::SegmentLength { file, bytes } => {
                write!(f, "{file} is {bytes} bytes long, not as formatted; {REJOIN}")
            }
            Refusal::Rot(damage) => write!(f, "the log is damaged: {damage}; {REJOIN}"),
            Refusal::Foreign(damage) => {
                write!(f, "the log holds a batch that does not belong there: {damage}; {REJOIN}")
            }
            Refusal::Contradiction(damage) => write!(f, "the log contradicts itself: {damage}; {REJOIN}"),
            // It names no file, because all of them are.
            Refusal::Disk { file: _, error: DiskError::Locked } => DiskError::Locked.fmt(f),
            Refusal::Disk { file: Some(file), error } => write!(f, "{file}: {error}"),
            Refusal::Disk { file: None, error } => write!(f, "data directory: {error}"),
        }
    }
}

impl std::error::Error for Refusal {}
