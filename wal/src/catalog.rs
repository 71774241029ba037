//! What the log holds and where: per cell the range of entries, truncations, newest carried records and a sparse
//! index; per segment which cells still need it.
//!
//! Invariant: recovery and the running log build the same catalog from the same records, because both go
//! through [`Catalog::admit`] (the record's meaning, when it joins the order) and [`Catalog::place`] (its
//! position, when that is known). Deliberately absent: bytes of entries, and any I/O.
//!
//! An entry's record is *current* if no truncation after it covers its index. A cell's cuts are kept as a stack
//! in which both index and lsn grow: a newer cut at or below an older one's index makes the older one redundant.

use std::collections::{BTreeMap, VecDeque};

use lockstep_wire::{CellId, LogIndex, RecordKind, Term};

use crate::disk::SegmentSequence;
use crate::layout::INDEX_POINT_BYTES;
use crate::record::{CARRIED_KINDS, Lsn, Record, carried_slot};

/// The indexes that an entry can have: tokens carry them in 48 bits.
const ENTRY_INDEXES: std::ops::Range<u64> = 1..1 << 48;

/// A batch's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) segment: SegmentSequence,
    pub(crate) offset: u64,
}

/// The batch at `position` holds the cell's current entry `index`.
#[derive(Clone, Copy, Debug)]
struct Point {
    index: LogIndex,
    position: Position,
}

/// A truncation: entries of the cell from `from` on that come before `lsn` are gone.
#[derive(Clone, Copy, Debug)]
struct Cut {
    from: LogIndex,
    lsn: Lsn,
}

/// The newest record of one carried kind, kept whole so that it can be written again.
#[derive(Debug, Default)]
struct Carried {
    is_present: bool,
    term: Term,
    index: LogIndex,
    payload: Vec<u8>,
    /// Where it stands; `None` while it is only staged.
    placed: Option<(SegmentSequence, Lsn)>,
}

#[derive(Debug, Default)]
struct CellUse {
    /// First and last index of the current entries.
    entries: Option<(LogIndex, LogIndex)>,
    cuts: Vec<Cut>,
    points: VecDeque<Point>,
    released: LogIndex,
    carried: [Carried; CARRIED_KINDS.len()],
}

impl CellUse {
    fn is_current(&self, index: LogIndex, lsn: Lsn) -> bool {
        let covering = self.cuts.partition_point(|cut| cut.from <= index);
        covering == 0 || self.cuts[covering - 1].lsn < lsn
    }
}

#[derive(Debug)]
struct SegmentUse {
    sequence: SegmentSequence,
    /// Where its batches end, durably.
    end: u64,
    /// The lsn that its first record has or will have.
    first_lsn: Lsn,
    /// Per cell the last current entry in it.
    lasts: Vec<(CellId, LogIndex)>,
}

/// A record that cannot follow those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfOrder;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    cells: BTreeMap<CellId, CellUse>,
    /// The live segments, contiguous; the last one is written to.
    segments: VecDeque<SegmentUse>,
}

impl Catalog {
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
        let cell = self.cells.entry(record.cell).or_default();
        match record.kind {
            RecordKind::Entry => {
                cell.entries = match cell.entries {
                    _ if !ENTRY_INDEXES.contains(&record.index.0) => return Err(OutOfOrder),
                    None => Some((record.index, record.index)),
                    Some((first, last)) if record.index == last.next() => Some((first, record.index)),
                    Some(_) => return Err(OutOfOrder),
                };
            }
            RecordKind::Truncate => {
                let from = record.index;
                cell.entries = cell.entries.filter(|(first, _)| *first < from);
                if let Some((_, last)) = &mut cell.entries {
                    *last = (*last).min(from.prev());
                }
                while cell.points.back().is_some_and(|point| point.index >= from) {
                    cell.points.pop_back();
                }
                while cell.cuts.last().is_some_and(|cut| cut.from >= from) {
                    cell.cuts.pop();
                }
                cell.cuts.push(Cut { from, lsn });
                for segment in &mut self.segments {
                    segment.lasts.retain_mut(|(owner, last)| {
                        if *owner == record.cell {
                            *last = (*last).min(from.prev());
                        }
                        *owner != record.cell || last.0 > 0
                    });
                }
            }
            RecordKind::HardState | RecordKind::SnapshotMark | RecordKind::Manifest | RecordKind::Born => {
                let slot = carried_slot(record.kind).expect("these kinds are carried");
                let carried = &mut cell.carried[slot];
                carried.is_present = true;
                carried.term = record.term;
                carried.index = record.index;
                carried.payload.clear();
                carried.payload.extend_from_slice(record.payload);
                carried.placed = None;
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
                    cell.points.push_back(Point { index: record.index, position });
                }
                let segment = self.segments.back_mut().expect("a log has a segment");
                assert_eq!(segment.sequence, position.segment, "records are placed in the last segment");
                match segment.lasts.iter_mut().find(|(owner, _)| *owner == record.cell) {
                    Some((_, last)) => *last = record.index,
                    None => segment.lasts.push((record.cell, record.index)),
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

    /// Entries of the cell through `index` are no longer needed. Never moves back.
    pub(crate) fn release(&mut self, cell: CellId, index: LogIndex) {
        let cell = self.cells.entry(cell).or_default();
        cell.released = cell.released.max(index);
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

    /// Forgets the oldest segment and what pointed into it.
    pub(crate) fn drop_oldest(&mut self) -> SegmentSequence {
        assert!(self.retired_count() > 0, "only a segment that nobody needs is dropped");
        let dropped = self.segments.pop_front().expect("a retired segment is live");
        let first_lsn = self.segments.front().expect("a log keeps the segment it writes to").first_lsn;
        for (owner, cell) in &mut self.cells {
            while cell.points.front().is_some_and(|point| point.position.segment == dropped.sequence) {
                cell.points.pop_front();
            }
            cell.cuts.retain(|cut| cut.lsn >= first_lsn);
            let gone =
                dropped.lasts.iter().find(|(of, _)| of == owner).map_or(LogIndex(0), |(_, last)| *last);
            cell.entries = cell.entries.and_then(|(first, last)| {
                let first = first.max(gone.next());
                (first <= last).then_some((first, last))
            });
        }
        dropped.sequence
    }

    fn carried_records(&self) -> impl Iterator<Item = &Carried> {
        self.cells.values().flat_map(|cell| &cell.carried).filter(|carried| carried.is_present)
    }

    fn holds_needed_entries(&self, segment: &SegmentUse) -> bool {
        segment.lasts.iter().any(|(cell, last)| self.cells.get(cell).is_none_or(|cell| *last > cell.released))
    }
}
