//! The interface between the log and a disk: what a driver must do, and how it answers.
//!
//! Two faces. The running log asks for work with [`DiskOp`] and is told by [`DiskDone`]; the driver owns
//! files and aligned buffers and never blocks the log. Start-up (format, recovery, the superblock) is
//! allowed to block and uses [`StorageRead`] and [`Storage`].
//!
//! Invariant: every offset and length is a multiple of [`BLOCK_BYTES`](crate::layout::BLOCK_BYTES), so that
//! all of it can be done with O_DIRECT. Deliberately absent: paths, descriptors, buffers, retries. A driver
//! resumes a short transfer and an interrupted call itself; whatever it reports as an error is final.
//!
//! # What a driver of the running log does
//!
//! ```text
//! while let Some(op) = log.poll_op() {
//!     // Action::Write, Action::Extend: lend a buffer of `len` bytes, block-aligned: log.fill(op.id, &mut buffer[..len])
//!     // submit; ops of one log may complete in any order
//! }
//! on completion: log.on_disk_done(DiskDone { op: op.id, result })
//! ```
//!
//! At most one op of each [`Lane`] is in flight at a time, so four buffers per log suffice: a commit buffer of
//! `BATCH_BYTES_MAX`, a preparation buffer of one block, a read buffer of `READ_BYTES_MAX`, and one of
//! `SNAPSHOT_STRIDE_BYTES` for snapshots. The background and the snapshot lane may be delayed at will (that is how
//! they are throttled), the commit lane never should be.

use std::fmt;

use lockstep_wire::{CellId, LogIndex};

/// One core's share of a node: it has its own log. Numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a segment within its shard; the first is 1 and no number is ever used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentSequence(pub u64);

impl SegmentSequence {
    /// The segment after this one.
    pub fn next(self) -> SegmentSequence {
        SegmentSequence(self.0 + 1)
    }
}

impl fmt::Display for SegmentSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A file of a data directory. All of them live flat in the one directory that the driver was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileName {
    /// Who this directory belongs to, in two copies.
    Superblock,
    /// The superblock while it is being written.
    SuperblockStaging,
    /// Empty; held locked (flock) by the process that uses the directory.
    Lock,
    /// Empty; present from the beginning of formatting until its end.
    FormatMark,
    /// A segment of a shard's log.
    Segment {
        /// Whose log.
        shard: ShardId,
        /// Which segment of it.
        sequence: SegmentSequence,
    },
    /// A future segment while it is being zero-filled; there is one at a time.
    Staging {
        /// Whose log.
        shard: ShardId,
    },
    /// A whole snapshot of a cell. The log that has the cell's records owns it; it counts by a mark in there.
    Snapshot {
        /// Of which cell.
        cell: CellId,
        /// The last entry that it covers.
        index: LogIndex,
    },
    /// A snapshot while it is being written; there is one at a time for a cell.
    SnapshotStaging {
        /// Of which cell.
        cell: CellId,
    },
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileName::Superblock => f.write_str("superblock"),
            FileName::SuperblockStaging => f.write_str("superblock.staging"),
            FileName::Lock => f.write_str("lock"),
            FileName::FormatMark => f.write_str("formatting"),
            FileName::Segment { shard, sequence } => {
                write!(f, "shard-{:05}.{:020}.wal", shard.0, sequence.0)
            }
            FileName::Staging { shard } => write!(f, "shard-{:05}.staging", shard.0),
            FileName::Snapshot { cell, index } => write!(f, "cell-{:05}.{:020}.snapshot", cell.0, index.0),
            FileName::SnapshotStaging { cell } => write!(f, "cell-{:05}.staging", cell.0),
        }
    }
}

impl FileName {
    /// Reads a name back from a directory listing; `None` for files that are not ours.
    pub fn parse(name: &str) -> Option<FileName> {
        let parsed = match name {
            "superblock" => FileName::Superblock,
            "superblock.staging" => FileName::SuperblockStaging,
            "lock" => FileName::Lock,
            "formatting" => FileName::FormatMark,
            other => match other.strip_prefix("cell-") {
                Some(of_cell) => FileName::parse_of_cell(of_cell)?,
                None => FileName::parse_of_shard(other.strip_prefix("shard-")?)?,
            },
        };
        // Only the canonical spelling is ours: `shard-0.1.wal` must not shadow the real segment 1.
        (parsed.to_string() == name).then_some(parsed)
    }

    fn parse_of_shard(name: &str) -> Option<FileName> {
        let (shard, rest) = name.split_once('.')?;
        let shard = ShardId(shard.parse().ok()?);
        if rest == "staging" {
            return Some(FileName::Staging { shard });
        }
        let sequence = SegmentSequence(rest.strip_suffix(".wal")?.parse().ok()?);
        Some(FileName::Segment { shard, sequence })
    }

    fn parse_of_cell(name: &str) -> Option<FileName> {
        let (cell, rest) = name.split_once('.')?;
        let cell = CellId(cell.parse().ok()?);
        if rest == "staging" {
            return Some(FileName::SnapshotStaging { cell });
        }
        let index = LogIndex(rest.strip_suffix(".snapshot")?.parse().ok()?);
        Some(FileName::Snapshot { cell, index })
    }
}

/// Names one asked-for operation of one log; never reused within a run of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// At most one operation of each lane is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Batches and seals: clients wait for it.
    Commit,
    /// Preparing and recycling segments: nobody waits, may be delayed.
    Background,
    /// Reads for followers that lag.
    Read,
    /// Writing snapshots and removing old ones: nobody waits, may be delayed.
    Snapshot,
}

/// One operation that the running log wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOp {
    /// What [`DiskDone::op`] must say.
    pub id: OpId,
    /// Which lane it occupies until it is done.
    pub lane: Lane,
    /// What to do.
    pub action: Action,
}

/// What a [`DiskOp`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes `len` bytes at `offset`, as [`Log::fill`](crate::Log::fill) puts them into the driver's buffer, and
    /// makes them durable with the same call (RWF_DSYNC). The file exists and is zero-filled there.
    Write {
        /// The file to write.
        file: FileName,
        /// Where, in bytes.
        offset: u64,
        /// How many bytes.
        len: usize,
    },
    /// Creates the file, empty; one that exists is cut to nothing.
    Create {
        /// The file to create.
        file: FileName,
    },
    /// Writes `len` zero bytes (real ones, O_DIRECT; neither a hole nor fallocate), extending the file. Need not be durable.
    WriteZeros {
        /// The file to write.
        file: FileName,
        /// Where, in bytes.
        offset: u64,
        /// How many bytes; at most `ZERO_PIECE_BYTES`.
        len: usize,
    },
    /// Writes `len` bytes at the file's end, as [`Log::fill`](crate::Log::fill) puts them into the driver's buffer. Need
    /// not be durable: a [`Action::Sync`] follows.
    Extend {
        /// The file to write.
        file: FileName,
        /// Where, in bytes.
        offset: u64,
        /// How many bytes; at most `SNAPSHOT_STRIDE_BYTES`.
        len: usize,
    },
    /// Makes the file's data and size durable (fsync).
    Sync {
        /// The file to sync.
        file: FileName,
    },
    /// Renames. Open handles stay valid and now go by the new name. `to` does not exist, unless it is a snapshot that
    /// is written once more: that one is replaced.
    Rename {
        /// The present name.
        from: FileName,
        /// The new name.
        to: FileName,
    },
    /// Removes the file.
    Remove {
        /// The file to remove.
        file: FileName,
    },
    /// Makes creations, renames and removals durable (fsync of the directory).
    SyncDirectory,
    /// Reads `len` bytes; they go into [`DiskDone::result`].
    Read {
        /// The file to read.
        file: FileName,
        /// Where, in bytes.
        offset: u64,
        /// How many bytes; at most `READ_BYTES_MAX`.
        len: usize,
    },
}

/// The answer to a [`DiskOp`].
#[derive(Clone, Copy, Debug)]
pub struct DiskDone<'a> {
    /// Which operation.
    pub op: OpId,
    /// The bytes read by [`Action::Read`], empty for every other action; or what went wrong.
    pub result: Result<&'a [u8], DiskError>,
}

/// What a disk can say besides "done".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// The file system is full (ENOSPC, EDQUOT).
    NoSpace,
    /// There is no such file.
    NotFound,
    /// There is such a file already.
    AlreadyExists,
    /// The directory is in use by another process.
    Locked,
    /// The file ends before the bytes asked for.
    EndOfFile,
    /// Anything else, by its errno.
    Io(i32),
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskError::NoSpace => f.write_str("no space left on the device"),
            DiskError::NotFound => f.write_str("no such file"),
            DiskError::AlreadyExists => f.write_str("the file exists already"),
            DiskError::Locked => f.write_str("the data directory is in use by another process"),
            DiskError::EndOfFile => f.write_str("the file is shorter than it should be"),
            DiskError::Io(errno) => write!(f, "input/output error (errno {errno})"),
        }
    }
}

impl std::error::Error for DiskError {}

/// What may be done to a data directory without changing it.
pub trait StorageRead {
    /// Every file of ours with its length in bytes, in any order. Foreign files are left out.
    fn list(&mut self) -> Result<Vec<(FileName, u64)>, DiskError>;

    /// Fills `bytes` from `offset`. Offset and length are block-aligned; the buffer's address need not be.
    fn read(&mut self, file: FileName, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError>;
}

/// A data directory at start-up. Blocking; used before the shard loop runs.
pub trait Storage: StorageRead {
    /// Takes the directory for this process (an exclusive, non-blocking flock on [`FileName::Lock`], created if
    /// need be), retrying for a moment because a killed ring can hold files a little longer. Fine if held by
    /// this very handle already; [`DiskError::Locked`] if by anybody else. Held until the handle is dropped.
    fn lock(&mut self) -> Result<(), DiskError>;

    /// Creates an empty file; [`DiskError::AlreadyExists`] if there is one.
    fn create(&mut self, file: FileName) -> Result<(), DiskError>;

    /// Writes and makes durable, extending the file if need be. Offset and length are block-aligned; the
    /// buffer's address need not be.
    fn write_durable(&mut self, file: FileName, offset: u64, bytes: &[u8]) -> Result<(), DiskError>;

    /// Makes everything that the file shows durable (fsync). Recovery begins with it: after a kill, what is read
    /// may not have reached the disk, and what is recovered is promised.
    fn sync(&mut self, file: FileName) -> Result<(), DiskError>;

    /// Renames; replaces `to` if it exists.
    fn rename(&mut self, from: FileName, to: FileName) -> Result<(), DiskError>;

    /// Removes the file.
    fn remove(&mut self, file: FileName) -> Result<(), DiskError>;

    /// Makes creations, renames and removals durable.
    fn sync_directory(&mut self) -> Result<(), DiskError>;

    /// How many bytes may still be allocated.
    fn free_bytes(&mut self) -> Result<u64, DiskError>;
}
