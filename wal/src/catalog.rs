//! What the log holds and where: per cell the range of entries, truncations, newest carried records and a sparse
//! index; per segment which cells still need it; and which snapshots count.
//!
//! Invariant: recovery and the running log build the same catalog from the same records, because both go
//! through [`Catalog::admit`] (the record's meaning, when it joins the order) and [`Catalog::place`] (its
//! position, when that is known). Deliberately absent: bytes of entries, and any I/O.
//!
//! An entry's record is *current* if no truncation after it covers its index. A cell's cuts are kept as a stack
//! in which both index and lsn grow: a newer cut at or below an older one's index makes the older one redundant.
//! What a record gives up, a truncation or a mark, it gives up once it is durable: [`Catalog::settle`].

use std::collections::{BTreeMap, VecDeque};

use lockstep_wire::{CellId, LogIndex, RecordKind};

use crate::cell_use::{Carried, CellUse, OutOfOrder, Point};
use crate::disk::SegmentSequence;
use crate::layout::INDEX_POINT_BYTES;
use crate::record::{CARRIED_KINDS, Lsn, Record, carried_slot};
use crate::retention::{Kept, Mark};

/// A batch's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) segment: SegmentSequence,
    pub(crate) offset: u64,
}

#[derive(Debug)]
struct SegmentUse {
    sequence: SegmentSequence,
    /// Where its batches end, durably.
    end: u64,
    /// The lsn that its first record has or will have.
    first_lsn: Lsn,
    /// Per cell the last current entry in it.
    lasts: Vec<Last>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    cell: CellId,
    index: LogIndex,
    lsn: Lsn,
}

/// The last current entry of a cell in a segment that is written no more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastBehind {
    pub(crate) segment: SegmentSequence,
    pub(crate) cell: CellId,
    pub(crate) index: LogIndex,
}

/// What a record changes once it is durable.
#[derive(Clone, Copy, Debug)]
enum Pending {
    Cut { from: LogIndex },
    Mark(Mark),
}

/// Entries that begin behind what the cell's newest mark covers, or end before it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stray {
    pub(crate) cell: CellId,
    pub(crate) index: LogIndex,
    pub(crate) lsn: Lsn,
    pub(crate) position: Position,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Catalog {
    cells: BTreeMap<CellId, CellUse>,
    /// The live segments, contiguous; the last one is written to.
    segments: VecDeque<SegmentUse>,
    /// In the order of the log.
    pending: VecDeque<(Lsn, CellId, Pending)>,
    /// A cell that was not seen yet has no records before.
    is_whole: bool,
}

impl Catalog {
    /// Of a log that is read from its beginning, or from a later segment.
    pub(crate) fn new(is_whole: bool) -> Catalog {
        Catalog { cells: BTreeMap::new(), segments: VecDeque::new(), pending: VecDeque::new(), is_whole }
    }

    /// Opens the next segment for writing.
    pub(crate) fn open_segment(&mut self, sequence: SegmentSequence, end: u64, first_lsn: Lsn) {
        if let Some(last) = self.segments.back() {
            assert_eq!(sequence, last.sequence.next(), "segments follow each other without a gap");
        }
        self.segments.push_back(SegmentUse { sequence, end, first_lsn, lasts: Vec::new() });
    }

    /// The written segment's batches now end, durably, at `end`.
    pub(crate) fn advance(&mut self, end: u64) {
        self.segments.back_mut().expect("a log has a segment").end = end;
    }

    /// Takes the meaning of a record that joins the order at `lsn`.
    pub(crate) fn admit(&mut self, lsn: Lsn, record: &Record<'_>) -> Result<(), OutOfOrder> {
        let next = self.is_whole.then_some(LogIndex(1));
        let cell = self.cells.entry(record.cell).or_insert_with(|| CellUse::beginning(next));
        match record.kind {
            RecordKind::Entry => cell.admit_entry(record.index)?,
            RecordKind::Truncate => {
                cell.admit_truncation(lsn, record.index)?;
                self.pending.push_back((lsn, record.cell, Pending::Cut { from: record.index }));
            }
            RecordKind::SnapshotMark => {
                let mark = Mark::of(record).ok_or(OutOfOrder)?;
                cell.admit_mark(mark)?;
                self.pending.push_back((lsn, record.cell, Pending::Mark(mark)));
            }
            RecordKind::HardState | RecordKind::Manifest | RecordKind::Born => {}
        }
        if let Some(slot) = carried_slot(record.kind) {
            let carried = &mut cell.carried[slot];
            carried.is_present = true;
            carried.term = record.term;
            carried.index = record.index;
            carried.payload.clear();
            carried.payload.extend_from_slice(record.payload);
            carried.placed = None;
        }
        Ok(())
    }

    /// What was admitted through `durable` takes effect; says whether a mark was among it.
    pub(crate) fn settle(&mut self, durable: Lsn) -> bool {
        let mut has_mark = false;
        while let Some(&(lsn, of, pending)) = self.pending.front().filter(|(lsn, ..)| *lsn <= durable) {
            self.pending.pop_front();
            match pending {
                Pending::Cut { from } => {
                    for segment in &mut self.segments {
                        segment.lasts.retain_mut(|last| {
                            if last.cell == of && last.lsn < lsn {
                                last.index = last.index.min(from.prev());
                            }
                            last.index.0 > 0
                        });
                    }
                }
                Pending::Mark(mark) => {
                    let cell = self.cells.get_mut(&of).expect("a mark is admitted before it is durable");
                    cell.kept = Kept { newest: Some(mark.id), previous: mark.previous };
                    cell.kept.forget_unreachable(cell.entries);
                    has_mark = true;
                }
            }
        }
        has_mark
    }

    /// The whole log has been read, all of it durable. The entries of a cell may begin anywhere by then, but not behind
    /// what its newest mark covers, nor may they end before it does.
    pub(crate) fn finish_recovery(&mut self, last: Lsn) -> Result<(), Stray> {
        self.settle(last);
        self.is_whole = true;
        for (&of, cell) in &mut self.cells {
            let marked = cell.marked();
            let Some((first, last)) = cell.entries else {
                cell.next = Some(marked.next());
                continue;
            };
            if first > marked.next() || last < marked {
                let point = cell.points.front().expect("entries that are there have their points");
                return Err(Stray { cell: of, index: first, lsn: point.lsn, position: point.position });
            }
        }
        Ok(())
    }

    /// Takes the position of an admitted record, now that its batch has one.
    pub(crate) fn place(&mut self, position: Position, lsn: Lsn, record: &Record<'_>) {
        let cell = self.cells.get_mut(&record.cell).expect("a record is admitted before it is placed");
        match record.kind {
            RecordKind::Truncate => {}
            RecordKind::Entry => {
                if !cell.is_current(record.index, lsn) {
                    return;
                }
                let is_due = cell.points.back().is_none_or(|point| {
                    point.position.segment != position.segment
                        || point.position.offset + INDEX_POINT_BYTES <= position.offset
                });
                if is_due {
                    cell.points.push_back(Point { index: record.index, lsn, position });
                }
                let segment = self.segments.back_mut().expect("a log has a segment");
                assert_eq!(segment.sequence, position.segment, "records are placed in the last segment");
                let last = Last { cell: record.cell, index: record.index, lsn };
                match segment.lasts.iter_mut().find(|last| last.cell == record.cell) {
                    Some(before) => *before = last,
                    None => segment.lasts.push(last),
                }
            }
            RecordKind::HardState | RecordKind::SnapshotMark | RecordKind::Manifest | RecordKind::Born => {
                // An older record of the kind may be placed after a newer one was admitted; then the place is
                // corrected when the newer one gets its own, which comes later in the same order.
                let slot = carried_slot(record.kind).expect("these kinds are carried");
                cell.carried[slot].placed = Some((position.segment, lsn));
            }
        }
    }

    /// The cells that have records here.
    pub(crate) fn cells(&self) -> impl Iterator<Item = CellId> + '_ {
        self.cells.keys().copied()
    }

    /// The snapshots of the cell that count.
    pub(crate) fn kept(&self, cell: CellId) -> Kept {
        self.cells.get(&cell).map(|cell| cell.kept).unwrap_or_default()
    }

    /// An older snapshot whose file is gone no longer counts.
    pub(crate) fn forget_older_unless(&mut self, cell: CellId, is_there: impl Fn(LogIndex) -> bool) {
        if let Some(cell) = self.cells.get_mut(&cell) {
            cell.kept.previous = cell.kept.previous.filter(|id| is_there(id.index));
        }
    }

    /// The cell's newest mark, durable or not.
    pub(crate) fn newest_mark(&self, cell: CellId) -> Option<Mark> {
        self.cells.get(&cell)?.mark
    }

    /// Every cell with the last of its entries in each segment that lies at least so many behind the tail, the oldest first.
    pub(crate) fn lasts_behind(&self, segments: u64) -> impl Iterator<Item = LastBehind> + '_ {
        let newest = self.newest();
        let behind =
            self.segments.iter().take_while(move |segment| segment.sequence.0 + segments <= newest.0);
        behind.flat_map(|segment| {
            let of =
                |last: &Last| LastBehind { segment: segment.sequence, cell: last.cell, index: last.index };
            segment.lasts.iter().map(of)
        })
    }

    /// The last current entry of the cell that has a place on the disk.
    pub(crate) fn last_placed(&self, cell: CellId) -> Option<LogIndex> {
        let lasts = self.segments.iter().rev().flat_map(|segment| &segment.lasts);
        lasts.filter(|last| last.cell == cell).map(|last| last.index).next()
    }

    /// First and last index of the cell's current entries.
    pub(crate) fn entries(&self, cell: CellId) -> Option<(LogIndex, LogIndex)> {
        self.cells.get(&cell)?.entries
    }

    /// Whether the record at `lsn` still is the cell's entry `index`.
    pub(crate) fn is_current(&self, cell: CellId, index: LogIndex, lsn: Lsn) -> bool {
        self.cells.get(&cell).is_some_and(|cell| cell.is_current(index, lsn))
    }

    /// Where to begin reading for the cell's entry `index`: at it or before it.
    pub(crate) fn locate(&self, cell: CellId, index: LogIndex) -> Option<Position> {
        let points = &self.cells.get(&cell)?.points;
        let behind = points.partition_point(|point| point.index <= index);
        behind.checked_sub(1).map(|at| points[at].position)
    }

    /// Where the segment's batches end, durably; `None` if it is not live.
    pub(crate) fn end_of(&self, sequence: SegmentSequence) -> Option<u64> {
        let first = self.segments.front()?.sequence;
        let at = usize::try_from(sequence.0.checked_sub(first.0)?).ok()?;
        Some(self.segments.get(at)?.end)
    }

    /// The oldest live segment.
    pub(crate) fn oldest(&self) -> SegmentSequence {
        self.segments.front().expect("a log has a segment").sequence
    }

    /// The live segment that is written to.
    fn newest(&self) -> SegmentSequence {
        self.segments.back().expect("a log has a segment").sequence
    }

    /// How many of the oldest segments hold no entry that is needed. Never the one that is written to.
    pub(crate) fn retired_count(&self) -> usize {
        let written = self.segments.len() - 1;
        self.segments.iter().take(written).take_while(|segment| !self.holds_needed_entries(segment)).count()
    }

    /// The oldest segment that holds a needed entry or the newest record of a carried kind.
    pub(crate) fn oldest_needed(&self) -> SegmentSequence {
        let carried =
            self.carried_records().filter_map(|carried| carried.placed).map(|(segment, _)| segment).min();
        let entries = self.segments[self.retired_count()].sequence;
        carried.map_or(entries, |segment| segment.min(entries))
    }

    /// Puts into `out` every carried record whose newest version stands in `segment` or before.
    pub(crate) fn encode_carried(&self, segment: SegmentSequence, out: &mut Vec<u8>) -> u32 {
        let mut count = 0;
        for (&cell, cell_use) in &self.cells {
            for (kind, carried) in CARRIED_KINDS.into_iter().zip(&cell_use.carried) {
                if carried.is_present && carried.placed.is_some_and(|(placed, _)| placed <= segment) {
                    let record = Record {
                        cell,
                        kind,
                        term: carried.term,
                        index: carried.index,
                        payload: &carried.payload,
                    };
                    record.encode(out);
                    count += 1;
                }
            }
        }
        count
    }

    /// The carried records of [`Catalog::encode_carried`] are staged again: their old places no longer count.
    pub(crate) fn unplace_carried(&mut self, segment: SegmentSequence) {
        for carried in self.cells.values_mut().flat_map(|cell| &mut cell.carried) {
            if carried.placed.is_some_and(|(placed, _)| placed <= segment) {
                carried.placed = None;
            }
        }
    }

    /// Whether every carried record's newest version stands behind `segment`, durably.
    pub(crate) fn carried_is_behind(&self, segment: SegmentSequence, durable: Lsn) -> bool {
        self.carried_records()
            .all(|carried| carried.placed.is_some_and(|(placed, lsn)| placed > segment && lsn <= durable))
    }

    /// Forgets the oldest segment and what pointed into it; says whether a snapshot stopped counting by that.
    pub(crate) fn drop_oldest(&mut self) -> bool {
        assert!(self.retired_count() > 0, "only a segment that nobody needs is dropped");
        let dropped = self.segments.pop_front().expect("a retired segment is live");
        let first_lsn = self.segments.front().expect("a log keeps the segment it writes to").first_lsn;
        let mut has_forgotten = false;
        for (owner, cell) in &mut self.cells {
            while cell.points.front().is_some_and(|point| point.position.segment == dropped.sequence) {
                cell.points.pop_front();
            }
            cell.cuts.retain(|cut| cut.lsn >= first_lsn);
            let gone = dropped.lasts.iter().find(|last| last.cell == *owner);
            let Some(gone) = gone.map(|last| last.index) else {
                continue;
            };
            cell.entries = cell.entries.and_then(|(first, last)| {
                let first = first.max(gone.next());
                (first <= last).then_some((first, last))
            });
            has_forgotten |= cell.kept.forget_unreachable(cell.entries);
        }
        has_forgotten
    }

    fn carried_records(&self) -> impl Iterator<Item = &Carried> {
        self.cells.values().flat_map(|cell| &cell.carried).filter(|carried| carried.is_present)
    }

    fn holds_needed_entries(&self, segment: &SegmentUse) -> bool {
        let behind = self.newest().0 - segment.sequence.0;
        segment.lasts.iter().any(|last| last.index > self.kept(last.cell).released(behind))
    }
}

#[cfg(test)]
mod tests;
