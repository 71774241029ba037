//! Reading entries back for followers that lag.
//!
//! Invariant: what is returned are the cell's current entries, contiguous from the index asked for, parsed from
//! bytes that verified; entries that a truncation covers never appear, even if it is appended while the read runs.
//! Only what is durable is returned. Pieces of snapshots take their turns among the other reads; see
//! `snapshot_reading`. Deliberately absent: caching; the owner keeps recent entries in memory.

use std::collections::VecDeque;

use lockstep_wire::{CellId, LogIndex, RecordKind};

use crate::batch::Batch;
use crate::catalog::Position;
use crate::disk::{Action, DiskDone, DiskOp, FileName, Lane, OpId, SegmentSequence};
use crate::layout::{BLOCK_BYTES, READ_BYTES_MAX, READS_MAX};
use crate::log::{Failure, Log};
use crate::piece::{PiecePlace, SnapshotRefusal};
use crate::record::LoggedRecord;
use crate::refusal::Damage;
use crate::snapshot_reading::PieceReading;

/// Names one read of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// `READS_MAX` reads wait already; ask again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadsFull;

/// What a read brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// Entries from the first one asked for, contiguous; fewer than asked for where the byte bound or the durable
    /// end was reached, none if the first one is not durable yet or was truncated meanwhile.
    Entries(Vec<LoggedRecord>),
    /// The first entry asked for is no longer in the log: a snapshot is needed.
    NotInLog,
    /// The piece of a snapshot, as it was written.
    Piece {
        /// Its bytes.
        payload: Vec<u8>,
        /// Whether it is the snapshot's last one.
        is_last: bool,
    },
    /// The snapshot does not count, or no longer: another one is needed.
    NotThere,
    /// The piece cannot be read as it was written. The log goes on.
    BadPiece(SnapshotRefusal),
}

impl ReadOutcome {
    /// The entries, unless the log has recycled them.
    pub fn into_entries(self) -> Option<Vec<LoggedRecord>> {
        match self {
            ReadOutcome::Entries(entries) => Some(entries),
            ReadOutcome::NotInLog
            | ReadOutcome::Piece { .. }
            | ReadOutcome::NotThere
            | ReadOutcome::BadPiece(_) => None,
        }
    }

    /// The piece and whether it is the last, if it is as it was written.
    pub fn into_piece(self) -> Option<(Vec<u8>, bool)> {
        match self {
            ReadOutcome::Piece { payload, is_last } => Some((payload, is_last)),
            ReadOutcome::Entries(_)
            | ReadOutcome::NotInLog
            | ReadOutcome::NotThere
            | ReadOutcome::BadPiece(_) => None,
        }
    }
}

/// A finished read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadDone {
    /// Which read.
    pub id: ReadId,
    /// Whose entries, or whose snapshot.
    pub cell: CellId,
    /// What it brought.
    pub outcome: ReadOutcome,
}

/// What waits for its turn.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    Entries(Request),
    Piece { id: ReadId, place: PiecePlace },
}

#[derive(Clone, Copy, Debug)]
struct Request {
    id: ReadId,
    cell: CellId,
    from: LogIndex,
    to: LogIndex,
    bytes_max: usize,
}

#[derive(Debug)]
struct Reading {
    request: Request,
    position: Position,
    entries: Vec<LoggedRecord>,
    bytes: usize,
    in_flight: Option<OpId>,
}

impl Reading {
    fn expected(&self) -> LogIndex {
        LogIndex(self.request.from.0 + self.entries.len() as u64)
    }

    fn is_satisfied(&self) -> bool {
        self.expected() > self.request.to
            || (!self.entries.is_empty() && self.bytes >= self.request.bytes_max)
    }
}

/// The reads of a log: one runs, the others wait.
#[derive(Debug, Default)]
pub(crate) struct CatchUp {
    ids: u64,
    waiting: VecDeque<Waiting>,
    reading: Option<Reading>,
    pub(crate) piece: Option<PieceReading>,
    pub(crate) finished: VecDeque<ReadDone>,
}

impl CatchUp {
    /// The segment that the running read is in; it must stay.
    pub(crate) fn reading_segment(&self) -> Option<SegmentSequence> {
        self.reading.as_ref().map(|reading| reading.position.segment)
    }

    /// The snapshot of which a piece is being read; it must stay.
    pub(crate) fn snapshot_being_read(&self) -> Option<FileName> {
        self.piece.as_ref().map(|reading| reading.place.file())
    }

    fn admit(&mut self, waiting: impl FnOnce(ReadId) -> Waiting) -> Result<ReadId, ReadsFull> {
        if self.waiting.len() + self.finished.len() >= READS_MAX {
            return Err(ReadsFull);
        }
        self.ids += 1;
        let id = ReadId(self.ids);
        self.waiting.push_back(waiting(id));
        Ok(id)
    }

    /// Takes a piece of a snapshot in among the reads.
    pub(crate) fn admit_piece(&mut self, place: PiecePlace) -> Result<ReadId, ReadsFull> {
        self.admit(|id| Waiting::Piece { id, place })
    }
}

impl Log {
    /// Asks for the cell's entries `from..=to`, at least one and then until `bytes_max` of payload is reached.
    /// The answer comes from [`Log::poll_read`].
    pub fn read(
        &mut self,
        cell: CellId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<ReadId, ReadsFull> {
        self.catch_up.admit(|id| Waiting::Entries(Request { id, cell, from, to, bytes_max }))
    }

    /// A finished read, if there is one. Reads that need no disk finish at the next [`Log::poll_op`].
    pub fn poll_read(&mut self) -> Option<ReadDone> {
        self.catch_up.finished.pop_front()
    }

    pub(crate) fn poll_catch_up(&mut self) -> Option<DiskOp> {
        loop {
            if self.catch_up.piece.is_some() {
                return None;
            }
            if self.catch_up.reading.is_none() {
                match self.catch_up.waiting.pop_front()? {
                    Waiting::Entries(request) => self.begin_reading(request),
                    Waiting::Piece { id, place } => {
                        if let Some(op) = self.begin_piece(id, place) {
                            return Some(op);
                        }
                    }
                }
                continue;
            }
            let reading = self.catch_up.reading.as_mut()?;
            if reading.in_flight.is_some() {
                return None;
            }
            let Position { segment, offset } = reading.position;
            let end = self.catalog.end_of(segment).expect("a segment that is read stays live");
            if reading.is_satisfied() || (offset >= end && self.catalog.end_of(segment.next()).is_none()) {
                self.finish_reading();
                continue;
            }
            if offset >= end {
                reading.position = Position { segment: segment.next(), offset: BLOCK_BYTES as u64 };
                continue;
            }
            let len = usize::try_from(end - offset).map_or(READ_BYTES_MAX, |left| left.min(READ_BYTES_MAX));
            let op = self.next_op(Lane::Read, Action::Read { file: self.segment_file(segment), offset, len });
            self.catch_up.reading.as_mut()?.in_flight = Some(op.id);
            return Some(op);
        }
    }

    fn begin_reading(&mut self, request: Request) {
        let position = self.catalog.locate(request.cell, request.from);
        let outcome = match (self.catalog.entries(request.cell), position) {
            (Some((first, last)), _) if request.from < first || request.from > last => {
                if request.from < first { ReadOutcome::NotInLog } else { ReadOutcome::Entries(Vec::new()) }
            }
            (Some(_), Some(position)) => {
                let entries = Vec::new();
                self.catch_up.reading =
                    Some(Reading { request, position, entries, bytes: 0, in_flight: None });
                return;
            }
            // Only staged so far.
            (Some(_), None) => ReadOutcome::Entries(Vec::new()),
            (None, _) => ReadOutcome::NotInLog,
        };
        self.catch_up.finished.push_back(ReadDone { id: request.id, cell: request.cell, outcome });
    }

    fn finish_reading(&mut self) {
        let Some(Reading { request: Request { id, cell, .. }, mut entries, .. }) =
            self.catch_up.reading.take()
        else {
            return;
        };
        // A truncation may have been appended while the read ran, and entries after it been read since.
        let stale = entries.iter().position(|entry| !self.catalog.is_current(cell, entry.index, entry.lsn));
        entries.truncate(stale.unwrap_or(entries.len()));
        self.catch_up.finished.push_back(ReadDone { id, cell, outcome: ReadOutcome::Entries(entries) });
    }

    pub(crate) fn on_catch_up_done(&mut self, done: DiskDone<'_>) {
        if let Some(piece) = self.catch_up.piece.take_if(|piece| piece.op == done.op) {
            self.on_piece_read(piece, done.result);
            return;
        }
        let reading = self.catch_up.reading.as_mut().filter(|reading| reading.in_flight == Some(done.op));
        let reading = reading.expect("only operations in flight are answered");
        reading.in_flight = None;
        let Position { segment, offset } = reading.position;
        let bytes = match done.result {
            Ok(bytes) => bytes,
            Err(error) => {
                self.fail(Failure::Disk { file: Some(self.segment_file(segment)), error });
                return;
            }
        };
        let mut used = 0;
        while !reading.is_satisfied() {
            let Some(batch) = Batch::verify(&bytes[used..], segment).filter(Batch::is_well_formed) else {
                break;
            };
            used += batch.extent_bytes;
            for (lsn, record) in batch.records() {
                let is_next = record.cell == reading.request.cell
                    && record.kind == RecordKind::Entry
                    && record.index == reading.expected()
                    && self.catalog.is_current(record.cell, record.index, lsn);
                if is_next && !reading.is_satisfied() {
                    reading.bytes += record.payload.len();
                    reading.entries.push(LoggedRecord::of(lsn, &record));
                }
            }
        }
        reading.position.offset += used as u64;
        // A read holds at least one whole batch; the chunk's last one may be cut off, its first one may not.
        if used == 0 {
            let file = self.segment_file(segment);
            self.fail(Failure::Damaged(Damage { file, offset, after: None, before: None }));
        }
    }
}
