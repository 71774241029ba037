//! The shard's log and its disk, shared by the shard's cells.
//!
//! Invariant: each cell hears of its appends in the order in which it made them, once the log says that
//! they are durable (ARCHITECTURE section 6, "by its own FIFO"). Deliberately absent: what the records say.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use lockstep_core::{AppendId, Cell, RecordHead, Time};
use lockstep_ring::storage::LogDisk;
use lockstep_ring::{Completion, Ring, Token};
use lockstep_wal::disk::{DiskOp, Lane};
use lockstep_wal::layout::UNCOVERED_ENTRIES_MAX;
use lockstep_wal::{Log, LoggedRecord, Lsn, ReadDone, ReadId, ReadOutcome, ReadsFull, SnapshotDone};
use lockstep_wire::{CellId, LogIndex, SnapshotId};

use super::recovery::recover;
use super::{DISK, ShardError, ShardPlan};

/// The pause before each piece of background work and of a snapshot, and between those of what is freed, so that none crowds out
/// commits.
const BACKGROUND_PAUSE: Duration = Duration::from_millis(2);

/// How often a disk that was full is tried again.
const SPACE_PAUSE: Duration = Duration::from_secs(1);

/// A read that a cell wants.
#[derive(Clone, Copy, Debug)]
enum Wish {
    Entries { cell: CellId, first: LogIndex, last: LogIndex, bytes_max: usize },
    Piece { cell: CellId, snapshot: SnapshotId, piece: u32 },
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Read {
    /// Entries of the log from `first` on; none when the log has recycled them.
    Entries { cell: CellId, first: LogIndex, entries: Option<Vec<LoggedRecord>> },
    /// A piece of a snapshot, and whether it is the last; none when it is not to be had any more.
    Piece { cell: CellId, snapshot: SnapshotId, piece: u32, found: Option<(Vec<u8>, bool)> },
}

/// A log, the driver of its disk, and who waits for what.
pub(super) struct ShardDisk {
    log: Log,
    driver: LogDisk,
    /// Appends that are not durable yet, in the order of the log.
    appended: VecDeque<(Lsn, CellId, AppendId)>,
    /// Work that waits for its moment.
    deferred: Vec<(Instant, DiskOp)>,
    /// When the next part of what was removed may be freed.
    free_due: Instant,
    /// When to look again whether a disk that was full has room.
    space_due: Option<Instant>,
    /// What the cells were last told of it.
    is_short_of_space: bool,
    /// The reads that the log works on, and those that it had no room for.
    reads: BTreeMap<ReadId, Wish>,
    refused_reads: VecDeque<Wish>,
}

/// Recovers the shard's log and the cells that it holds.
pub(super) fn open(
    ring: &Ring,
    plan: &mut ShardPlan,
    now: Time,
) -> Result<(ShardDisk, BTreeMap<CellId, Cell>), ShardError> {
    let (log, mut restores) = recover(plan)?;
    let cells = plan
        .cells
        .drain(..)
        .map(|config| {
            let restore = restores.remove(&config.cell).unwrap_or_default();
            (config.cell, Cell::new(config, restore, now))
        })
        .collect();
    let driver = LogDisk::new(ring, &plan.data, DISK)
        .map_err(|source| ShardError::Kernel { what: "the data directory could not be opened", source })?;
    let disk = ShardDisk {
        log,
        driver,
        appended: VecDeque::new(),
        deferred: Vec::new(),
        free_due: Instant::now(),
        space_due: None,
        is_short_of_space: false,
        reads: BTreeMap::new(),
        refused_reads: VecDeque::new(),
    };
    Ok((disk, cells))
}

impl ShardDisk {
    /// Whether a completion is the disk's.
    pub(super) fn owns(&self, token: Token) -> bool {
        self.driver.owns(token)
    }

    /// Takes a completion of the disk.
    pub(super) fn on_completion(&mut self, ring: &Ring, completion: Completion<'_>) {
        let log = &mut self.log;
        self.driver.on_completion(ring, completion, |done| log.on_disk_done(done));
    }

    /// Why the log has stopped, if it has.
    pub(super) fn failure(&self) -> Option<String> {
        self.log.failure().map(|failure| {
            format!("the log has stopped: {failure}; nothing more is acknowledged. Mend the disk, then start again")
        })
    }

    /// Appends a record of a cell.
    pub(super) fn append(
        &mut self,
        cell: CellId,
        append: AppendId,
        head: RecordHead,
        payload: &[u8],
    ) -> Result<(), ShardError> {
        match self.log.append(cell, head.kind, head.term, head.index, payload) {
            Ok(lsn) => self.appended.push_back((lsn, cell, append)),
            Err(refusal) => return Err(ShardError::Halted(format!("the log refused a record: {refusal}"))),
        }
        Ok(())
    }

    /// The next cell whose appends have become durable, and the last of them: it speaks for those before it.
    pub(super) fn poll_durable(&mut self) -> Option<(CellId, AppendId)> {
        let durable = self.log.durable();
        let mut done: Option<(CellId, AppendId)> = None;
        while let Some((lsn, cell, append)) = self.appended.front().copied() {
            if lsn > durable || done.is_some_and(|(owner, _)| owner != cell) {
                break;
            }
            self.appended.pop_front();
            done = Some((cell, append));
        }
        done
    }

    /// Whether the disk has no room for the next segment, if that is news.
    pub(super) fn poll_space(&mut self) -> Option<bool> {
        let is_short = self.log.is_short_of_space();
        (std::mem::replace(&mut self.is_short_of_space, is_short) != is_short).then_some(is_short)
    }

    /// Asks for entries of a cell.
    pub(super) fn read(&mut self, cell: CellId, first: LogIndex, last: LogIndex, bytes_max: usize) {
        self.ask(Wish::Entries { cell, first, last, bytes_max });
    }

    /// Asks for a piece of a snapshot.
    pub(super) fn read_snapshot(&mut self, cell: CellId, snapshot: SnapshotId, piece: u32) {
        self.ask(Wish::Piece { cell, snapshot, piece });
    }

    fn ask(&mut self, wish: Wish) {
        let asked = match wish {
            Wish::Entries { cell, first, last, bytes_max } => self.log.read(cell, first, last, bytes_max),
            Wish::Piece { cell, snapshot, piece } => self.log.read_snapshot(cell, snapshot, piece),
        };
        match asked {
            Ok(id) => {
                self.reads.insert(id, wish);
            }
            Err(ReadsFull) => self.refused_reads.push_back(wish),
        }
    }

    /// The next read that has come back.
    pub(super) fn poll_read(&mut self) -> Option<Read> {
        let ReadDone { id, outcome, .. } = self.log.poll_read()?;
        let wish = self.reads.remove(&id).expect("every read was asked for");
        if let Some(wish) = self.refused_reads.pop_front() {
            self.ask(wish);
        }
        Some(match wish {
            Wish::Entries { cell, first, .. } => {
                Read::Entries { cell, first, entries: outcome.into_entries() }
            }
            Wish::Piece { cell, snapshot, piece } => {
                if let ReadOutcome::BadPiece(refusal) = &outcome {
                    tracing::warn!(%cell, %snapshot, "{refusal}; another snapshot will be taken");
                }
                Read::Piece { cell, snapshot, piece, found: outcome.into_piece() }
            }
        })
    }

    /// Takes the next piece of a snapshot; the first one begins anew.
    pub(super) fn stage(
        &mut self,
        cell: CellId,
        snapshot: SnapshotId,
        piece: u32,
        is_last: bool,
        bytes: &[u8],
    ) {
        if piece == 0 {
            self.log.begin_snapshot(cell, snapshot);
        }
        self.log.write_snapshot(cell, piece, is_last, bytes);
    }

    /// Forgets the snapshot of a cell that is being written.
    pub(super) fn drop_snapshot(&mut self, cell: CellId) {
        self.log.abandon_snapshot(cell);
    }

    /// What became of pieces that were staged, in order.
    pub(super) fn poll_snapshot(&mut self) -> Option<SnapshotDone> {
        self.log.poll_snapshot()
    }

    /// The cells that a snapshot is due of.
    pub(super) fn snapshots_due(&self) -> BTreeSet<CellId> {
        self.log.snapshots_due(UNCOVERED_ENTRIES_MAX).collect()
    }

    /// The cells whose snapshots are being written, each with how much of the log's room for it is used.
    pub(super) fn snapshots_written(&self) -> Vec<(CellId, u64)> {
        self.log.snapshots_written(UNCOVERED_ENTRIES_MAX).collect()
    }

    /// Starts whatever the log wants done now.
    pub(super) fn submit(&mut self, ring: &Ring, now: Instant) -> Result<(), ShardError> {
        for (_, op) in self.deferred.extract_if(.., |(due, _)| *due <= now).collect::<Vec<_>>() {
            self.start(ring, op);
        }
        if self.driver.has_to_free() && self.free_due <= now {
            self.driver.free_part(ring);
            // Where there is no room it is wanted at once.
            self.free_due = if self.is_short_of_space { now } else { now + BACKGROUND_PAUSE };
        }
        self.look_for_space(now);
        while let Some(op) = self.log.poll_op() {
            let may_wait = match op.lane {
                // With no spare segment ready the next rotation would have to wait for this very work.
                Lane::Background => self.log.spare_segments() > 0,
                Lane::Snapshot => true,
                Lane::Commit | Lane::Read => false,
            };
            if may_wait {
                self.deferred.push((now + BACKGROUND_PAUSE, op));
            } else {
                self.start(ring, op);
            }
        }
        match self.failure() {
            Some(failure) => Err(ShardError::Halted(failure)),
            None => Ok(()),
        }
    }

    /// Lets the log, which has no clock, try a disk that was full once more every now and then.
    fn look_for_space(&mut self, now: Instant) {
        if !self.log.is_short_of_space() {
            if self.space_due.take().is_some() {
                tracing::info!("the disk has room for the log again");
            }
            return;
        }
        if self.space_due.is_none() {
            tracing::warn!(
                "the disk has no room for the next segment of the log; make room. Until then new sessions and acquires are \
                 refused (NO_SPACE), unless a majority of the members has space"
            );
        }
        if *self.space_due.get_or_insert(now + SPACE_PAUSE) <= now {
            self.log.retry_space();
            self.space_due = Some(now + SPACE_PAUSE);
        }
    }

    fn start(&mut self, ring: &Ring, op: DiskOp) {
        let log = &mut self.log;
        self.driver.start(ring, op, |bytes| log.fill(op.id, bytes));
    }

    /// When work that waits is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let freeing = self.driver.has_to_free().then_some(self.free_due);
        self.deferred.iter().map(|(due, _)| *due).chain(freeing).min()
    }
}

#[cfg(test)]
mod tests {
    use lockstep_ring::RingConfig;
    use lockstep_wal::disk::{Action, DiskDone, DiskError, ShardId};
    use lockstep_wal::layout::SEGMENT_BYTES_MIN;
    use lockstep_wal::memory::MemoryDisk;
    use lockstep_wal::{Superblock, format};
    use lockstep_wire::{ClusterId, Incarnation, NodeId};

    use super::*;

    /// A log, just formatted, whose disk had no room for its next segment.
    fn full(ring: &Ring) -> ShardDisk {
        let superblock = Superblock {
            cluster: ClusterId([1; 16]),
            node: NodeId(1),
            incarnation: Incarnation([2; 16]),
            shards: 1,
            segment_bytes: SEGMENT_BYTES_MIN,
        };
        let mut storage = MemoryDisk::new();
        format(&mut storage, &superblock).unwrap();
        let (mut log, _) = Log::open(&mut storage, &superblock, ShardId(0), 7, &mut |_, _| {}).unwrap();
        for (action, result) in [("Create", Err(DiskError::NoSpace)), ("Remove", Ok([].as_slice()))] {
            let op = log.poll_op().unwrap();
            assert!(format!("{:?}", op.action).starts_with(action), "{op:?}");
            log.on_disk_done(DiskDone { op: op.id, result });
        }
        assert!(log.is_short_of_space());
        ShardDisk {
            log,
            driver: LogDisk::new(ring, &std::env::temp_dir(), DISK).unwrap(),
            appended: VecDeque::new(),
            deferred: Vec::new(),
            free_due: Instant::now(),
            space_due: None,
            is_short_of_space: false,
            reads: BTreeMap::new(),
            refused_reads: VecDeque::new(),
        }
    }

    #[test]
    fn a_disk_that_was_full_is_tried_again_once_a_second() {
        let ring = Ring::new(RingConfig::default()).unwrap();
        let mut disk = full(&ring);
        let now = Instant::now();
        disk.look_for_space(now);
        assert_eq!(disk.log.poll_op(), None);
        disk.look_for_space(now + SPACE_PAUSE);
        let op = disk.log.poll_op().unwrap();
        assert!(matches!(op.action, Action::Create { .. }), "{op:?}");
    }

    #[test]
    fn a_full_disk_is_told_once() {
        let ring = Ring::new(RingConfig::default()).unwrap();
        let mut disk = full(&ring);
        assert_eq!([disk.poll_space(), disk.poll_space()], [Some(true), None]);
    }
}
