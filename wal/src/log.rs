//! The running log of one shard: append, group commit, rotation.
//!
//! Invariant: records become durable in the order in which they were appended, and `durable` only moves when the
//! disk has confirmed everything up to it. One batch write is in flight at a time; what is appended meanwhile
//! rides the next. Any error of the disk is final. Deliberately absent: when space is tight, any say in which
//! requests go on; the owner decides by [`Log::is_short_of_space`].
//!
//! Reading back is in `catch_up` and `snapshot_reading`, making and recycling segments in `preparation`, writing
//! snapshots in `snapshot`, and what is kept for them in `retention`.

use std::fmt;

use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::{CellId, LogIndex, RecordKind, SnapshotId, Term};

use crate::batch::{BatchHeader, prefix_that_fits};
use crate::bytes::{blocks_up, length_u32};
use crate::catalog::{Catalog, Position};
use crate::catch_up::CatchUp;
use crate::disk::{Action, DiskDone, DiskError, DiskOp, FileName, Lane, OpId, SegmentSequence, ShardId};
use crate::layout::{BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BLOCK_BYTES, PAYLOAD_BYTES_MAX, STAGED_BYTES_MAX};
use crate::preparation::Preparation;
use crate::record::{Lsn, Record};
use crate::refusal::Damage;
use crate::retention::{MARK_BYTES, Mark};
use crate::snapshot::Snapshots;
use crate::superblock::Superblock;

/// Why a record was not taken. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendRefusal {
    /// The payload is longer than `PAYLOAD_BYTES_MAX`.
    PayloadTooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// `STAGED_BYTES_MAX` wait for the disk already.
    StagingFull,
    /// The log has failed.
    Failed,
}

impl fmt::Display for AppendRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AppendRefusal::PayloadTooLong { bytes } => {
                write!(f, "a record of {bytes} bytes is longer than the permitted {PAYLOAD_BYTES_MAX}")
            }
            AppendRefusal::StagingFull => f.write_str("too much waits for the disk already"),
            AppendRefusal::Failed => f.write_str("the log has failed"),
        }
    }
}

impl std::error::Error for AppendRefusal {}

/// Why the log stopped, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The disk reported an error.
    Disk {
        /// On which file; `None` for the directory.
        file: Option<FileName>,
        /// Which.
        error: DiskError,
    },
    /// Bytes read back are not what was written.
    Damaged(Damage),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Disk { file: Some(file), error } => write!(f, "{file}: {error}; the log has stopped"),
            Failure::Disk { file: None, error } => write!(f, "data directory: {error}; the log has stopped"),
            Failure::Damaged(damage) => write!(f, "the log is damaged: {damage}; the log has stopped"),
        }
    }
}

/// Where the next batch goes, and what it continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) position: Position,
    pub(crate) batch_sequence: u64,
    pub(crate) previous_checksum: u32,
}

/// The one write in flight on the commit lane.
#[derive(Clone, Copy, Debug)]
struct Commit {
    op: OpId,
    extent_bytes: usize,
    records: u32,
    record_bytes: usize,
    seals: Option<SegmentSequence>,
    /// Set by `fill`: the checksum, and the oldest needed segment that it announced.
    filled: Option<(u32, SegmentSequence)>,
}

/// The log of one shard. See the module; [`Log::open`] makes one.
#[derive(Debug)]
pub struct Log {
    pub(crate) superblock: Superblock,
    pub(crate) shard: ShardId,
    salt: u64,
    pub(crate) catalog: Catalog,
    /// Encoded records; those before `taken` are in a batch already.
    staged: Vec<u8>,
    taken: usize,
    appended: Lsn,
    pub(crate) durable: Lsn,
    pub(crate) tail: Tail,
    commit: Option<Commit>,
    /// The newest durable batch says that segments before this one may be gone.
    pub(crate) announced_oldest: SegmentSequence,
    pub(crate) preparation: Preparation,
    pub(crate) catch_up: CatchUp,
    pub(crate) snapshots: Snapshots,
    ops: u64,
    failure: Option<Failure>,
}

/// What recovery found, from which a log goes on.
pub(crate) struct Recovered {
    pub(crate) catalog: Catalog,
    pub(crate) tail: Tail,
    pub(crate) last_lsn: Lsn,
    pub(crate) announced_oldest: SegmentSequence,
    pub(crate) spares: usize,
    pub(crate) snapshots: Snapshots,
}

impl Log {
    pub(crate) fn from_recovered(superblock: Superblock, shard: ShardId, salt: u64, found: Recovered) -> Log {
        Log {
            superblock,
            shard,
            salt,
            catalog: found.catalog,
            staged: Vec::with_capacity(2 * BATCH_BYTES_MAX),
            taken: 0,
            appended: found.last_lsn,
            durable: found.last_lsn,
            tail: found.tail,
            commit: None,
            announced_oldest: found.announced_oldest,
            preparation: Preparation::with_spares(found.spares),
            catch_up: CatchUp::default(),
            snapshots: found.snapshots,
            ops: 0,
            failure: None,
        }
    }

    /// Appends a record and says which lsn it has; it is durable once [`Log::durable`] has reached that.
    ///
    /// A snapshot's mark comes without a payload, once the owner was told
    /// [`Complete`](crate::SnapshotOutcome::Complete); the log puts into it what it needs. One that the cell's entries do
    /// not match, as that of an installed snapshot, follows a truncation of them all. A truncation and the record after
    /// it become durable together if both are appended before the next [`Log::poll_op`].
    ///
    /// # Panics
    /// When an entry's index does not follow the cell's last entry or its newest mark, a truncation cuts into what that
    /// mark covers, or a mark goes back or names no complete snapshot: a defect of the caller.
    pub fn append(
        &mut self,
        cell: CellId,
        kind: RecordKind,
        term: Term,
        index: LogIndex,
        payload: &[u8],
    ) -> Result<Lsn, AppendRefusal> {
        let mark;
        let payload = if kind == RecordKind::SnapshotMark {
            mark = self.mark_payload(cell, SnapshotId { index, term }, payload);
            &mark
        } else {
            payload
        };
        let record = Record { cell, kind, term, index, payload };
        if self.failure.is_some() {
            return Err(AppendRefusal::Failed);
        }
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(AppendRefusal::PayloadTooLong { bytes: payload.len() });
        }
        if self.staged_bytes() + record.encoded_bytes() > STAGED_BYTES_MAX {
            return Err(AppendRefusal::StagingFull);
        }
        let lsn = Lsn(self.appended.0 + 1);
        assert!(
            self.catalog.admit(lsn, &record).is_ok(),
            "{kind:?} {index} of cell {cell} does not follow {:?} and {:?}",
            self.catalog.entries(cell),
            self.catalog.newest_mark(cell)
        );
        record.encode(&mut self.staged);
        self.appended = lsn;
        Ok(lsn)
    }

    /// Everything through this lsn survives a loss of power.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// The newest lsn handed out.
    pub fn appended(&self) -> Lsn {
        self.appended
    }

    /// Bytes that wait for a batch. Bounded by `STAGED_BYTES_MAX`; the owner's admission should keep well below.
    pub fn staged_bytes(&self) -> usize {
        self.staged.len() - self.taken
    }

    /// First and last index of a cell's entries, appended ones included; `None` if it has none.
    pub fn entries(&self, cell: CellId) -> Option<(LogIndex, LogIndex)> {
        self.catalog.entries(cell)
    }

    /// Why the log stopped, if it has. A failed log takes nothing, asks for nothing and makes nothing durable.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// The next operation for the driver, if there is one now.
    pub fn poll_op(&mut self) -> Option<DiskOp> {
        if self.failure.is_some() {
            return None;
        }
        self.stage_carried();
        self.poll_commit()
            .or_else(|| self.poll_preparation())
            .or_else(|| self.poll_catch_up())
            .or_else(|| self.poll_snapshot_op())
    }

    /// Puts the bytes of an [`Action::Write`] or [`Action::Extend`] into `bytes`, which is exactly as long as the
    /// operation says.
    ///
    /// # Panics
    /// When the operation is no write in flight, or was filled already.
    pub fn fill(&mut self, op: OpId, bytes: &mut [u8]) {
        match self.commit {
            Some(commit) if commit.op == op => self.fill_commit(commit, bytes),
            _ if self.snapshots.awaits(op) => self.fill_snapshot(bytes),
            _ => self.fill_preparation(op, bytes),
        }
    }

    /// Takes the answer to an operation.
    ///
    /// # Panics
    /// When the operation is not in flight.
    pub fn on_disk_done(&mut self, done: DiskDone<'_>) {
        if self.failure.is_some() {
            return;
        }
        match self.commit {
            Some(commit) if commit.op == done.op => match done.result {
                Ok(_) => self.on_committed(commit),
                Err(_) if mutant::is(Mutant::GoOnAfterFailedSync) => self.on_committed(commit),
                Err(error) => self
                    .fail(Failure::Disk { file: Some(self.segment_file(self.tail.position.segment)), error }),
            },
            _ if self.preparation.awaits(done.op) => self.on_preparation_done(done.result.map(|_| ())),
            _ if self.snapshots.awaits(done.op) => self.on_snapshot_done(done.result.map(|_| ())),
            _ => self.on_catch_up_done(done),
        }
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    pub(crate) fn segment_file(&self, sequence: SegmentSequence) -> FileName {
        FileName::Segment { shard: self.shard, sequence }
    }

    fn mark_payload(&self, cell: CellId, id: SnapshotId, payload: &[u8]) -> [u8; MARK_BYTES] {
        assert!(payload.is_empty(), "the log itself says what stands in a mark");
        let is_complete = self.snapshots.bytes_of(cell, id.index).is_some();
        assert!(is_complete, "the mark {} of cell {cell} names no complete snapshot", id.index);
        Mark::after(self.catalog.newest_mark(cell), id).payload()
    }

    pub(crate) fn next_op(&mut self, lane: Lane, action: Action) -> DiskOp {
        self.ops += 1;
        DiskOp { id: OpId(self.ops), lane, action }
    }

    /// Stages carried records again if they keep the oldest segment from being recycled.
    fn stage_carried(&mut self) {
        if let Some(segment) = self.segment_to_vacate() {
            let before = self.staged.len();
            let count = self.catalog.encode_carried(segment, &mut self.staged);
            if self.staged.len() > before {
                self.catalog.unplace_carried(segment);
                self.appended = Lsn(self.appended.0 + u64::from(count));
            }
        }
    }

    fn poll_commit(&mut self) -> Option<DiskOp> {
        if self.commit.is_some() {
            return None;
        }
        let (records, record_bytes) = prefix_that_fits(&self.staged[self.taken..]);
        if records == 0 && !self.wants_announcement() {
            return None;
        }
        let batch_bytes = blocks_up(BATCH_HEADER_BYTES + record_bytes);
        let Position { segment, offset } = self.tail.position;
        // A block stays free for the seal.
        let fits = offset + (batch_bytes + BLOCK_BYTES) as u64 <= self.superblock.segment_bytes;
        if !fits && self.preparation.spares() == 0 {
            return None;
        }
        let extent_bytes = if fits { batch_bytes } else { BLOCK_BYTES };
        let op = self.next_op(
            Lane::Commit,
            Action::Write { file: self.segment_file(segment), offset, len: extent_bytes },
        );
        self.commit = Some(Commit {
            op: op.id,
            extent_bytes,
            records: if fits { records } else { 0 },
            record_bytes: if fits { record_bytes } else { 0 },
            seals: (!fits).then_some(segment.next()),
            filled: None,
        });
        Some(op)
    }

    fn fill_commit(&mut self, commit: Commit, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), commit.extent_bytes, "the driver lends as much as the operation says");
        assert!(commit.filled.is_none(), "a write is filled once");
        let records = &self.staged[self.taken..self.taken + commit.record_bytes];
        bytes[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + records.len()].copy_from_slice(records);
        let first_lsn = Lsn(self.durable.0 + 1);
        let mut lsn = first_lsn;
        let mut rest = records;
        while let Some((record, behind)) = Record::decode(rest) {
            self.catalog.place(self.tail.position, lsn, &record);
            lsn = Lsn(lsn.0 + 1);
            rest = behind;
        }
        let oldest_needed = self.catalog.oldest_needed();
        let header = BatchHeader {
            segment: self.tail.position.segment,
            sequence: self.tail.batch_sequence,
            first_lsn,
            salt: self.salt,
            previous_checksum: self.tail.previous_checksum,
            record_count: commit.records,
            record_bytes: length_u32(commit.record_bytes),
            oldest_needed,
            seals: commit.seals,
        };
        let checksum = header.encode(bytes);
        self.commit = Some(Commit { filled: Some((checksum, oldest_needed)), ..commit });
        self.drop_taken(commit.record_bytes);
    }

    /// Forgets staged bytes that are in a batch now; the buffer keeps its capacity.
    fn drop_taken(&mut self, record_bytes: usize) {
        self.taken += record_bytes;
        if self.taken == self.staged.len() {
            self.staged.clear();
            self.taken = 0;
        } else if self.taken > self.staged.len() / 2 {
            self.staged.drain(..self.taken);
            self.taken = 0;
        }
    }

    fn on_committed(&mut self, commit: Commit) {
        let (checksum, oldest_needed) = commit.filled.expect("a write is filled before it is done");
        self.commit = None;
        self.durable = Lsn(self.durable.0 + u64::from(commit.records));
        if self.catalog.settle(self.durable) {
            self.snapshots.sweep_later();
        }
        self.announced_oldest = oldest_needed;
        self.tail.position.offset += commit.extent_bytes as u64;
        self.tail.batch_sequence += 1;
        self.tail.previous_checksum = checksum;
        self.catalog.advance(self.tail.position.offset);
        if let Some(next) = commit.seals {
            // The header of the spare became durable, its directory synced, before it counted as a spare.
            self.preparation.take_spare();
            self.tail.position = Position { segment: next, offset: BLOCK_BYTES as u64 };
            self.catalog.open_segment(next, BLOCK_BYTES as u64, Lsn(self.durable.0 + 1));
        }
    }
}
