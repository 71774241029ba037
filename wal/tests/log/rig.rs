//! A formatted memory disk with one shard's log on it.

use lockstep_wal::disk::{FileName, SegmentSequence, ShardId};
use lockstep_wal::layout::SEGMENT_BYTES_MIN;
use lockstep_wal::memory::{MemoryDisk, Random};
use lockstep_wal::{
    Inspection, Log, Lsn, ReadOutcome, Record, RecordKind, Refusal, SnapshotDone, SnapshotId,
    SnapshotOutcome, Superblock, claim, format, inspect,
};
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::{CellId, ClusterId, Incarnation, LogIndex, NodeId, Term};

pub(crate) const SHARD: ShardId = ShardId(0);
pub(crate) const CELL: CellId = CellId(3);
pub(crate) const OTHER: CellId = CellId(7);

/// A record that owns its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) cell: CellId,
    pub(crate) kind: RecordKind,
    pub(crate) term: Term,
    pub(crate) index: LogIndex,
    pub(crate) payload: Vec<u8>,
}

impl Seen {
    pub(crate) fn of(record: &Record<'_>) -> Seen {
        Seen {
            cell: record.cell,
            kind: record.kind,
            term: record.term,
            index: record.index,
            payload: record.payload.to_vec(),
        }
    }
}

pub(crate) fn superblock() -> Superblock {
    Superblock {
        cluster: ClusterId([1; 16]),
        node: NodeId(2),
        incarnation: Incarnation([3; 16]),
        shards: 1,
        segment_bytes: SEGMENT_BYTES_MIN,
    }
}

pub(crate) fn segment(sequence: u64) -> FileName {
    FileName::Segment { shard: SHARD, sequence: SegmentSequence(sequence) }
}

pub(crate) struct Rig {
    pub(crate) disk: MemoryDisk,
    pub(crate) random: Random,
    pub(crate) log: Log,
    pub(crate) starts: u64,
}

impl Rig {
    pub(crate) fn new(seed: u64) -> Rig {
        let mut disk = MemoryDisk::new();
        format(&mut disk, &superblock()).expect("an empty disk can be formatted");
        let superblock = claim(&mut disk).expect("a formatted disk can be claimed");
        let (log, _) = Log::open(&mut disk, &superblock, SHARD, 1, &mut |_, _| {}).expect("a new log opens");
        Rig { disk, random: Random::new(seed), log, starts: 1 }
    }

    /// Appends one entry and says its lsn; nothing is driven.
    pub(crate) fn entry(&mut self, cell: CellId, term: u64, index: u64, payload: &[u8]) -> Lsn {
        self.record(cell, RecordKind::Entry, term, index, payload)
    }

    pub(crate) fn record(
        &mut self,
        cell: CellId,
        kind: RecordKind,
        term: u64,
        index: u64,
        payload: &[u8],
    ) -> Lsn {
        self.log
            .append(cell, kind, Term(term), LogIndex(index), payload)
            .expect("the record is within limits")
    }

    /// Appends entries one by one, each in a batch of its own, durable.
    pub(crate) fn entries(
        &mut self,
        cell: CellId,
        term: u64,
        indexes: std::ops::RangeInclusive<u64>,
        bytes: usize,
    ) {
        for index in indexes {
            let lsn = self.entry(cell, term, index, &payload(term, index, bytes));
            self.settle();
            assert!(self.log.durable() >= lsn);
        }
    }

    /// Writes a snapshot of one piece and appends its mark; only the file is durable then.
    pub(crate) fn snapshot(&mut self, cell: CellId, term: u64, index: u64) -> Lsn {
        let id = snapshot_id(term, index);
        self.write_snapshot(cell, id, &payload(term, index, 100));
        self.record(cell, RecordKind::SnapshotMark, term, index, b"")
    }

    /// Writes a snapshot from beginning to end, without a mark.
    pub(crate) fn write_snapshot(&mut self, cell: CellId, id: SnapshotId, stream: &[u8]) {
        self.log.begin_snapshot(cell, id);
        let pieces: Vec<&[u8]> = pieces(stream);
        for (piece, bytes) in (0..).zip(&pieces) {
            let is_last = piece + 1 == pieces.len();
            let number = u32::try_from(piece).unwrap();
            self.log.write_snapshot(cell, number, is_last, bytes);
            self.settle();
            let outcome =
                if is_last { SnapshotOutcome::Complete } else { SnapshotOutcome::Written { piece: number } };
            assert_eq!(self.log.poll_snapshot(), Some(SnapshotDone { cell, id, outcome }));
        }
    }

    /// A snapshot that the log does not match, as from a leader: it replaces all entries.
    pub(crate) fn install(&mut self, cell: CellId, term: u64, index: u64) {
        self.write_snapshot(cell, snapshot_id(term, index), &payload(term, index, 100));
        self.record(cell, RecordKind::Truncate, term, 1, b"");
        self.record(cell, RecordKind::SnapshotMark, term, index, b"");
    }

    /// Has the cell's entries through `index` released: they are covered by the older of two snapshots.
    pub(crate) fn release(&mut self, cell: CellId, term: u64, index: u64) {
        self.snapshot(cell, term, index);
        self.snapshot(cell, term, index + 1);
        self.settle();
    }

    pub(crate) fn settle(&mut self) {
        self.disk.settle(&mut self.log, &mut self.random);
        assert_eq!(self.log.failure(), None);
    }

    /// Opens the log again, from what the disk holds.
    pub(crate) fn reopen(&mut self) -> Result<Vec<(Lsn, Seen)>, Refusal> {
        let mut seen = Vec::new();
        self.starts += 1;
        let superblock = claim(&mut self.disk)?;
        let (log, inspection) =
            Log::open(&mut self.disk, &superblock, SHARD, self.starts, &mut |lsn, record| {
                seen.push((lsn, Seen::of(&record)));
            })?;
        assert_eq!(inspection.last_lsn, seen.last().map_or(inspection.last_lsn, |(lsn, _)| *lsn));
        assert_eq!(log.durable(), inspection.last_lsn);
        self.log = log;
        Ok(seen)
    }

    pub(crate) fn inspect(&mut self) -> Result<Inspection, Refusal> {
        inspect(&mut self.disk, &superblock(), SHARD, &mut |_, _| {})
    }

    /// Reads entries back, to the end.
    pub(crate) fn read(
        &mut self,
        cell: CellId,
        from: u64,
        to: u64,
        bytes_max: usize,
    ) -> Option<Vec<(u64, u64)>> {
        let id = self.log.read(cell, LogIndex(from), LogIndex(to), bytes_max).expect("no other read waits");
        self.settle();
        let done = self.log.poll_read().expect("a read finishes when everything is settled");
        assert_eq!((done.id, done.cell), (id, cell));
        match done.outcome {
            ReadOutcome::Entries(entries) => {
                Some(entries.into_iter().map(|entry| (entry.term.0, entry.index.0)).collect())
            }
            ReadOutcome::NotInLog => None,
            ReadOutcome::Piece { .. } | ReadOutcome::NotThere | ReadOutcome::BadPiece(_) => {
                panic!("entries were asked for")
            }
        }
    }
}

pub(crate) fn snapshot_id(term: u64, index: u64) -> SnapshotId {
    SnapshotId { index: LogIndex(index), term: Term(term) }
}

/// A stream in the pieces in which it is written.
pub(crate) fn pieces(stream: &[u8]) -> Vec<&[u8]> {
    let pieces: Vec<&[u8]> = stream.chunks(SNAPSHOT_PIECE_BYTES_MAX).collect();
    if pieces.is_empty() { vec![&[]] } else { pieces }
}

/// Bytes that depend on the entry, so that one is never taken for another.
pub(crate) fn payload(term: u64, index: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(term.wrapping_mul(1_000_003) ^ index);
    std::iter::repeat_with(|| random.next_u64().to_le_bytes()).flatten().take(bytes).collect()
}

/// The indexes of a cell's entries, in order of appearance.
pub(crate) fn indexes(seen: &[(Lsn, Seen)], cell: CellId) -> Vec<u64> {
    let entries = seen.iter().filter(|(_, record)| record.cell == cell && record.kind == RecordKind::Entry);
    entries.map(|(_, record)| record.index.0).collect()
}
