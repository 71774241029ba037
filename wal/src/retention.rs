//! Which snapshots count, and which entries are kept for them.
//!
//! Invariant: a snapshot counts by a durable mark and by nothing else, and nothing that an older state needs is given up
//! before. Two snapshots are kept, the newest and the one before, with the entries behind the older one, so that there is
//! something to fall back to and a follower that was away briefly needs no snapshot; before the first two the log's
//! birth stands for what is missing. Only far behind the tail do entries go that the newest one alone covers: an idle
//! cell must never pin old segments. How long a log gets by that is in `layout`. Deliberately absent: files.

use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::{CellId, LogIndex, SnapshotId, Term};

use crate::bytes::get_u64;
use crate::catalog::Position;
use crate::layout::SNAPSHOT_SEGMENTS;
use crate::log::Log;
use crate::record::Record;

/// Bytes of a mark's payload.
pub(crate) const MARK_BYTES: usize = 16;

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) id: SnapshotId,
    /// The mark before it: a log whose first segments are gone still knows both.
    pub(crate) previous: Option<SnapshotId>,
}

impl Mark {
    /// The mark for `id` that follows `newest`.
    pub(crate) fn after(newest: Option<Mark>, id: SnapshotId) -> Mark {
        let previous = match newest {
            Some(newest) if newest.id == id => newest.previous,
            Some(newest) => Some(newest.id),
            None => None,
        };
        Mark { id, previous }
    }

    pub(crate) fn payload(&self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        if let Some(previous) = self.previous {
            bytes[..8].copy_from_slice(&previous.index.0.to_le_bytes());
            bytes[8..].copy_from_slice(&previous.term.0.to_le_bytes());
        }
        bytes
    }

    /// What a record of that kind says, if it is well formed.
    pub(crate) fn of(record: &Record<'_>) -> Option<Mark> {
        let id = SnapshotId { index: record.index, term: record.term };
        if record.payload.len() != MARK_BYTES {
            return None;
        }
        let previous = SnapshotId {
            index: LogIndex(get_u64(record.payload, 0)),
            term: Term(get_u64(record.payload, 8)),
        };
        let previous = (previous != SnapshotId { index: LogIndex(0), term: Term(0) }).then_some(previous);
        previous.is_none_or(|previous| previous.index < id.index).then_some(Mark { id, previous })
    }
}

/// The snapshots of a cell that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) newest: Option<SnapshotId>,
    /// Only as long as the log reaches from it to the newest.
    pub(crate) previous: Option<SnapshotId>,
}

impl Kept {
    pub(crate) fn newest_first(self) -> impl Iterator<Item = SnapshotId> {
        self.newest.into_iter().chain(self.previous)
    }

    pub(crate) fn is_kept(&self, index: LogIndex) -> bool {
        [self.newest, self.previous].into_iter().flatten().any(|id| id.index == index)
    }

    /// Entries through this one are not needed in a segment that lies so many behind the tail.
    pub(crate) fn released(&self, segments_behind: u64) -> LogIndex {
        if mutant::is(Mutant::RecycleUncoveredEntries) && self.newest.is_some() {
            return LogIndex(u64::MAX);
        }
        let id = if segments_behind > 2 * SNAPSHOT_SEGMENTS { self.newest } else { self.previous };
        id.map_or(LogIndex(0), |id| id.index)
    }

    /// Gives the older snapshot up if the entries behind it are not all there; says whether it did.
    pub(crate) fn forget_unreachable(&mut self, entries: Option<(LogIndex, LogIndex)>) -> bool {
        let is_reached = self.previous.zip(self.newest).is_some_and(|(previous, newest)| {
            entries.is_some_and(|(first, last)| first <= previous.index.next() && newest.index <= last)
        });
        !is_reached && self.previous.take().is_some()
    }
}

impl Log {
    /// The snapshots of a cell that count, the newest first; at most two, and the second only if the log has all
    /// entries behind it. Whether their files are good is for [`load_snapshot`](crate::load_snapshot) to say.
    pub fn snapshots(&self, cell: CellId) -> impl Iterator<Item = SnapshotId> + use<> {
        self.catalog.kept(cell).newest_first()
    }

    /// The cells whose owner should take a snapshot now, some more than once: they have entries that no snapshot covers,
    /// one that is being written included, in a segment at least `SNAPSHOT_SEGMENTS` behind the one that is written to.
    /// As long as the owner answers, by a durable mark, before as many segments have been filled again, the log stays
    /// within `LIVE_SEGMENTS_MAX`. If the cells together have more than `uncovered_max` such entries, those with most of them
    /// are due as well.
    pub fn snapshots_due(&self, uncovered_max: u64) -> impl Iterator<Item = CellId> + '_ {
        let behind = self.catalog.lasts_behind(SNAPSHOT_SEGMENTS);
        let behind = behind.filter_map(|last| (last.index > self.written(last.cell)).then_some(last.cell));
        behind.chain(self.longest(uncovered_max))
    }

    /// As many of the cells with the most entries as have to be covered, so that there are not too many any more.
    fn longest(&self, uncovered_max: u64) -> impl Iterator<Item = CellId> + use<> {
        let uncovered =
            || self.catalog.cells().map(|cell| (self.entries_behind(cell, self.written(cell)), cell));
        let mut left: u64 = uncovered().map(|(entries, _)| entries).sum();
        // This is asked in every turn, and nearly always there are few enough.
        let mut longest: Vec<(u64, CellId)> = Vec::new();
        if left > uncovered_max {
            longest.extend(uncovered());
            longest.sort_unstable();
        }
        std::iter::from_fn(move || {
            let (entries, cell) = longest.pop().filter(|_| left > uncovered_max)?;
            left -= entries;
            Some(cell)
        })
    }

    /// The cells whose snapshots are being written, each with how much is used of the room in which it has to come to
    /// count, in millionths: the `SNAPSHOT_SEGMENTS` segments from where it was due on, or `uncovered_max` entries beyond as
    /// many as made one due. It is more than a million if it is late.
    pub fn snapshots_written(&self, uncovered_max: u64) -> impl Iterator<Item = (CellId, u64)> + '_ {
        let mut written = self.snapshots.being_written().peekable();
        let entries_used = if written.peek().is_some() { self.entries_used(uncovered_max) } else { 0 };
        written.map(move |cell| (cell, self.segments_used(cell).max(entries_used)))
    }

    fn segments_used(&self, cell: CellId) -> u64 {
        let mut behind = self.catalog.lasts_behind(SNAPSHOT_SEGMENTS);
        // They come in the order of their segments.
        let pinned = behind.find(|last| last.cell == cell && last.index > self.marked(cell));
        let Some(pinned) = pinned else { return 0 };
        let segment_bytes = self.superblock.segment_bytes;
        let Position { segment, offset } = self.tail.position;
        let segments = segment.0 - pinned.segment.0 - SNAPSHOT_SEGMENTS;
        (segments * segment_bytes + offset) * 1_000_000 / (SNAPSHOT_SEGMENTS * segment_bytes)
    }

    fn entries_used(&self, uncovered_max: u64) -> u64 {
        let uncovered = self.catalog.cells().map(|cell| self.entries_behind(cell, self.marked(cell)));
        let beyond = uncovered.sum::<u64>().saturating_sub(uncovered_max);
        beyond * 1_000_000 / uncovered_max
    }

    /// Through which entry a marked snapshot covers the cell.
    fn marked(&self, cell: CellId) -> LogIndex {
        self.catalog.newest_mark(cell).map_or(LogIndex(0), |mark| mark.id.index)
    }

    /// The same, with one that is being written or waits for its mark.
    fn written(&self, cell: CellId) -> LogIndex {
        self.snapshots.newest_written(cell).unwrap_or(LogIndex(0)).max(self.marked(cell))
    }

    /// Those that have a place on the disk: what has none cannot be applied, nor covered.
    fn entries_behind(&self, cell: CellId, index: LogIndex) -> u64 {
        self.catalog.last_placed(cell).map_or(0, |last| last.0.saturating_sub(index.0))
    }
}
