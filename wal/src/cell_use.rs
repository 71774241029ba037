//! What one cell has in the log: its entries, truncations and marks, and where to find them.
//!
//! Invariant: a record is admitted only if it can follow those before it: entries without a gap and behind what the
//! newest mark covers, marks forward and within the entries unless a truncation has made room, truncations not into
//! what is covered. Recovery may begin in the middle of a log, and judges the beginning when it has seen the end.
//! Deliberately absent: segments; the catalog has them.

use std::collections::VecDeque;

use lockstep_wire::{LogIndex, Term};

use crate::catalog::Position;
use crate::disk::SegmentSequence;
use crate::record::{CARRIED_KINDS, Lsn};
use crate::retention::{Kept, Mark};

/// The indexes that an entry can have: tokens carry them in 48 bits.
const ENTRY_INDEXES: std::ops::Range<u64> = 1..1 << 48;

/// A record that cannot follow those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfOrder;

/// The batch at `position` holds the cell's current entry `index`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) index: LogIndex,
    pub(crate) lsn: Lsn,
    pub(crate) position: Position,
}

/// A truncation: entries of the cell from `from` on that come before `lsn` are gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) from: LogIndex,
    pub(crate) lsn: Lsn,
}

/// The newest record of one carried kind, kept whole so that it can be written again.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    pub(crate) is_present: bool,
    pub(crate) term: Term,
    pub(crate) index: LogIndex,
    pub(crate) payload: Vec<u8>,
    /// Where it stands; `None` while it is only staged.
    pub(crate) placed: Option<(SegmentSequence, Lsn)>,
}

#[derive(Debug, Default)]
pub(crate) struct CellUse {
    /// First and last index of the current entries.
    pub(crate) entries: Option<(LogIndex, LogIndex)>,
    /// What the next entry's index must be; `None` while entries before those that were seen may be gone.
    pub(crate) next: Option<LogIndex>,
    /// A truncation took all entries: a mark may follow that they did not reach.
    is_emptied: bool,
    pub(crate) cuts: Vec<Cut>,
    pub(crate) points: VecDeque<Point>,
    pub(crate) kept: Kept,
    /// The newest mark, durable or not.
    pub(crate) mark: Option<Mark>,
    pub(crate) carried: [Carried; CARRIED_KINDS.len()],
}

impl CellUse {
    /// Of a cell whose first entry has the index `next`, or any if it is not known what came before.
    pub(crate) fn beginning(next: Option<LogIndex>) -> CellUse {
        CellUse { next, ..CellUse::default() }
    }

    pub(crate) fn admit_entry(&mut self, index: LogIndex) -> Result<(), OutOfOrder> {
        let is_next = self.next.is_none_or(|next| next == index);
        if !ENTRY_INDEXES.contains(&index.0) || !is_next || index <= self.marked() {
            return Err(OutOfOrder);
        }
        self.entries = Some((self.entries.map_or(index, |(first, _)| first), index));
        self.next = Some(index.next());
        self.is_emptied = false;
        Ok(())
    }

    pub(crate) fn admit_truncation(&mut self, lsn: Lsn, from: LogIndex) -> Result<(), OutOfOrder> {
        let entries = self.entries.filter(|(first, _)| *first < from);
        self.entries = entries.map(|(first, last)| (first, last.min(from.prev())));
        // What a snapshot covers is never truncated, unless a newer one replaces it with all entries.
        if self.entries.is_some_and(|(_, last)| last < self.marked()) {
            return Err(OutOfOrder);
        }
        self.next = self.next.map(|next| next.min(from.max(LogIndex(1))));
        self.is_emptied = self.entries.is_none();
        while self.points.back().is_some_and(|point| point.index >= from) {
            self.points.pop_back();
        }
        while self.cuts.last().is_some_and(|cut| cut.from >= from) {
            self.cuts.pop();
        }
        self.cuts.push(Cut { from, lsn });
        Ok(())
    }

    pub(crate) fn admit_mark(&mut self, mark: Mark) -> Result<(), OutOfOrder> {
        let follows = self.mark.is_none_or(|newest| newest.id == mark.id || newest.id.index < mark.id.index);
        let is_reached = match (self.entries, self.next) {
            (Some((_, last)), _) => mark.id.index <= last,
            (None, Some(next)) => self.is_emptied || mark.id.index < next,
            (None, None) => true,
        };
        if !follows || !is_reached || !ENTRY_INDEXES.contains(&mark.id.index.0) {
            return Err(OutOfOrder);
        }
        if self.entries.is_none() {
            self.next = self.next.map(|next| next.max(mark.id.index.next()));
        }
        self.mark = Some(mark);
        Ok(())
    }

    /// The last entry that the newest mark covers, 0 without one.
    pub(crate) fn marked(&self) -> LogIndex {
        self.mark.map_or(LogIndex(0), |mark| mark.id.index)
    }

    pub(crate) fn is_current(&self, index: LogIndex, lsn: Lsn) -> bool {
        let covering = self.cuts.partition_point(|cut| cut.from <= index);
        covering == 0 || self.cuts[covering - 1].lsn < lsn
    }
}
