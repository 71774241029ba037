//! What is kept for snapshots, and how long that lets the log get.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use lockstep_wal::RecordKind;
use lockstep_wal::disk::{FileName, Lane, StorageRead};
use lockstep_wal::layout::{
    LIVE_SEGMENTS_MAX, SEGMENT_BYTES_MIN, SNAPSHOT_FILES_MAX, SNAPSHOT_SEGMENTS, SPARE_SEGMENTS,
    UNCOVERED_ENTRIES_MAX,
};
use lockstep_wal::memory::Random;
use lockstep_wal::{SnapshotDone, SnapshotOutcome};
use lockstep_wire::{CellId, LogIndex};

use crate::rig::{CELL, OTHER, Rig, payload, snapshot_id};
use crate::snapshot::load;

/// Appends entries of a cell until so many more segments have been begun; says the next index.
fn fill_segments(rig: &mut Rig, cell: CellId, from: u64, segments: u64) -> u64 {
    let until = rig.inspect().unwrap().newest.0 + segments;
    let mut index = from;
    while rig.inspect().unwrap().newest.0 < until {
        rig.entries(cell, 1, index..=index, 60_000);
        index += 1;
    }
    index
}

#[test]
fn the_log_reaches_back_to_the_older_of_two_snapshots() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=12, 60_000);
    rig.snapshot(CELL, 1, 12);
    rig.entries(CELL, 1, 13..=20, 60_000);
    rig.snapshot(CELL, 1, 20);
    // A segment is recycled when the next one is begun.
    let next = fill_segments(&mut rig, CELL, 21, 1);
    for _ in 0..2 {
        let older = snapshot_id(1, 12);
        assert_eq!(rig.log.snapshots(CELL).collect::<Vec<_>>(), [snapshot_id(1, 20), older]);
        assert_eq!(load(&mut rig, CELL, older), Ok(payload(1, 12, 100)));
        let (first, last) = rig.log.entries(CELL).unwrap();
        assert!(
            first > LogIndex(1) && first <= LogIndex(13) && last.next() == LogIndex(next),
            "{first} to {last}"
        );
        rig.disk.lose_power(&mut rig.random);
        rig.reopen().unwrap();
    }
}

#[test]
fn nothing_is_released_before_the_mark_is_durable() {
    let mut rig = Rig::new(1);
    let next = fill_segments(&mut rig, CELL, 1, 2 * SNAPSHOT_SEGMENTS + 2);
    rig.snapshot(CELL, 1, next - 1);
    // The commit is under way, the rest goes on.
    while let Some(op) = rig.log.poll_op() {
        rig.disk.submit(&mut rig.log, op);
    }
    assert_eq!(rig.log.entries(CELL), Some((LogIndex(1), LogIndex(next - 1))));
    assert_eq!(rig.log.snapshots(CELL).next(), None);
    rig.settle();
    fill_segments(&mut rig, CELL, next, 1);
    assert!(rig.log.entries(CELL).unwrap().0 > LogIndex(1));
}

#[test]
fn a_truncation_that_is_only_staged_releases_nothing_either() {
    let mut rig = Rig::new(1);
    // What no snapshot covers stands in the first segments.
    rig.entries(CELL, 1, 1..=6, 100);
    let next = fill_segments(&mut rig, OTHER, 1, 1);
    rig.entries(CELL, 1, 7..=9, 100);
    let next = fill_segments(&mut rig, OTHER, next, 2 * SNAPSHOT_SEGMENTS + 1);
    rig.snapshot(OTHER, 1, next - 1);
    rig.snapshot(CELL, 1, 4);
    rig.settle();
    assert_eq!(rig.log.snapshots_due(UNCOVERED_ENTRIES_MAX).next(), Some(CELL));
    // Many batches and some segments stand between what is durable and the truncation.
    for index in next..next + 12 {
        rig.entry(OTHER, 1, index, &[7; 120_000]);
    }
    rig.record(CELL, RecordKind::Truncate, 2, 5, b"");
    let last = rig.entry(CELL, 2, 5, b"in its place");
    let mut crashes = 0;
    while rig.log.durable() < last {
        while let Some(op) = rig.log.poll_op() {
            rig.disk.submit(&mut rig.log, op);
        }
        for seed in 0..4 {
            let mut crashed = Rig { disk: rig.disk.clone(), random: Random::new(seed), ..Rig::new(1) };
            crashed.disk.lose_power(&mut crashed.random);
            let seen = crashed.reopen().unwrap();
            let is_truncated = seen.last().is_some_and(|(lsn, _)| *lsn >= last);
            let found = crashed.log.entries(CELL).unwrap();
            assert!(found.0 <= LogIndex(5), "{found:?}");
            assert_eq!(found.1, LogIndex(if is_truncated { 5 } else { 9 }));
            crashes += 1;
        }
        // What the background lane does is done before the next batch.
        let ops: Vec<_> = rig.disk.pending().collect();
        let (ticket, _) = ops.iter().find(|(_, op)| op.lane != Lane::Commit).or(ops.first()).unwrap();
        let completion = rig.disk.complete(*ticket, &mut rig.random);
        rig.log.on_disk_done(completion.done());
    }
    assert!(crashes > 40, "{crashes} crashes");
}

#[test]
fn an_idle_cell_gives_up_its_older_snapshot_rather_than_pin_a_segment() {
    let mut rig = Rig::new(1);
    rig.entries(OTHER, 1, 1..=9, 100);
    rig.snapshot(OTHER, 1, 4);
    rig.snapshot(OTHER, 1, 8);
    rig.settle();
    assert_eq!(rig.log.snapshots(OTHER).count(), 2);
    let mut next = 1;
    while rig.inspect().unwrap().newest.0 <= 2 * SNAPSHOT_SEGMENTS + 3 {
        next = fill_segments(&mut rig, CELL, next, 1);
        rig.snapshot(CELL, 1, next - 1);
        rig.settle();
        if rig.log.snapshots_due(UNCOVERED_ENTRIES_MAX).next() == Some(OTHER) {
            rig.snapshot(OTHER, 1, 9);
            rig.settle();
        }
    }
    assert_eq!(rig.log.snapshots_due(UNCOVERED_ENTRIES_MAX).next(), None);
    assert_eq!(rig.log.entries(OTHER), None);
    for _ in 0..2 {
        assert_eq!(rig.log.snapshots(OTHER).collect::<Vec<_>>(), [snapshot_id(1, 9)]);
        let files = rig.disk.list().unwrap().into_iter().map(|(file, _)| file);
        let left: Vec<_> =
            files.filter(|file| matches!(file, FileName::Snapshot { cell: OTHER, .. })).collect();
        assert_eq!(left, [FileName::Snapshot { cell: OTHER, index: LogIndex(9) }]);
        rig.disk.lose_power(&mut rig.random);
        rig.reopen().unwrap();
    }
    rig.entries(OTHER, 2, 10..=12, 100);
    rig.disk.lose_power(&mut rig.random);
    rig.reopen().unwrap();
    assert_eq!(rig.log.entries(OTHER), Some((LogIndex(10), LogIndex(12))));
}

#[test]
fn a_cell_is_due_when_its_uncovered_entry_lies_far_enough_behind_and_no_longer_once_it_writes() {
    let mut rig = Rig::new(1);
    rig.entries(OTHER, 1, 1..=1, 100);
    let next = fill_segments(&mut rig, CELL, 1, SNAPSHOT_SEGMENTS - 1);
    assert_eq!(rig.log.snapshots_due(UNCOVERED_ENTRIES_MAX).next(), None);
    fill_segments(&mut rig, CELL, next, 1);
    assert_eq!(
        rig.log.snapshots_due(UNCOVERED_ENTRIES_MAX).next(),
        Some(OTHER),
        "its entry stands before the other's"
    );
    rig.log.begin_snapshot(OTHER, snapshot_id(1, 1));
    rig.log.begin_snapshot(CELL, snapshot_id(1, next - 1));
    assert_eq!(rig.log.snapshots_due(UNCOVERED_ENTRIES_MAX).next(), None);
    rig.log.abandon_snapshot(OTHER);
    assert_eq!(rig.log.snapshots_due(UNCOVERED_ENTRIES_MAX).next(), Some(OTHER));
}

#[test]
fn the_cell_with_most_uncovered_entries_is_due_when_all_have_too_many_together() {
    let mut rig = Rig::new(1);
    let half = 1_000;
    let entries_max = 2 * half;
    let append = |rig: &mut Rig, cell, indexes: RangeInclusive<u64>| {
        for index in indexes {
            rig.entry(cell, 1, index, b"small");
        }
        rig.settle();
    };
    append(&mut rig, CELL, 1..=half + 1);
    append(&mut rig, OTHER, 1..=half - 1);
    assert_eq!(rig.log.snapshots_due(entries_max).next(), None);
    append(&mut rig, OTHER, half..=half);
    assert_eq!(rig.log.snapshots_due(entries_max).collect::<Vec<_>>(), [CELL], "only what has most");
    rig.log.begin_snapshot(CELL, snapshot_id(1, half + 1));
    assert_eq!(rig.log.snapshots_due(entries_max).next(), None);
    append(&mut rig, OTHER, half + 1..=2 * half);
    append(&mut rig, CELL, half + 2..=half + 2);
    assert_eq!(
        rig.log.snapshots_due(entries_max).collect::<Vec<_>>(),
        [OTHER],
        "what is being written covers the rest"
    );
    let used = |rig: &Rig| rig.log.snapshots_written(entries_max).collect::<Vec<_>>();
    let beyond = 3 * half + 2 - entries_max;
    assert_eq!(
        used(&rig),
        [(CELL, 1_000_000 * beyond / entries_max)],
        "it must count before as many have come again"
    );
    rig.disk.lose_power(&mut rig.random);
    rig.reopen().unwrap();
    assert_eq!(rig.log.snapshots_due(entries_max).next(), Some(OTHER), "a start counts what it found");
    append(&mut rig, CELL, half + 3..=entries_max + 2);
    append(&mut rig, OTHER, entries_max + 1..=entries_max + 1);
    assert_eq!(rig.log.snapshots_due(entries_max).collect::<Vec<_>>(), [CELL, OTHER], "one is not enough");
    rig.entry(OTHER, 1, entries_max + 2, b"only staged");
    assert_eq!(
        rig.log.snapshots_due(entries_max).collect::<Vec<_>>(),
        [CELL, OTHER],
        "what has no place on the disk does not count"
    );
}

#[test]
fn the_room_for_a_snapshot_is_used_from_where_it_was_due_to_where_the_log_would_get_too_long() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=1, 100);
    let next = fill_segments(&mut rig, OTHER, 1, SNAPSHOT_SEGMENTS - 1);
    rig.log.begin_snapshot(CELL, snapshot_id(1, 1));
    let used = |rig: &Rig| rig.log.snapshots_written(UNCOVERED_ENTRIES_MAX).collect::<Vec<_>>();
    assert_eq!(used(&rig), [(CELL, 0)], "none is due");
    let mut next = fill_segments(&mut rig, OTHER, next, 1);
    let mut before = 0;
    for segments in 1..=SNAPSHOT_SEGMENTS {
        let until = segments * 1_000_000 / SNAPSHOT_SEGMENTS;
        let [(CELL, after)] = used(&rig)[..] else { panic!("{:?}", used(&rig)) };
        assert!(after > before && after < until, "{before}, {after}, {until}");
        rig.entries(OTHER, 1, next..=next, 60_000);
        let [(CELL, more)] = used(&rig)[..] else { panic!("{:?}", used(&rig)) };
        assert!(more > after, "every entry uses some of it, whosever it is");
        next = fill_segments(&mut rig, OTHER, next + 1, 1);
        let [(CELL, then)] = used(&rig)[..] else { panic!("{:?}", used(&rig)) };
        assert!(then >= until, "{then} of {until}");
        before = more;
    }
    // It was taken in time for the next one: what its mark covers pins nothing.
    rig.log.write_snapshot(CELL, 0, true, b"state");
    rig.settle();
    rig.record(CELL, RecordKind::SnapshotMark, 1, 1, b"");
    rig.settle();
    assert_eq!(used(&rig), []);
    rig.entries(CELL, 1, 2..=2, 100);
    rig.log.begin_snapshot(CELL, snapshot_id(1, 2));
    assert_eq!(used(&rig), [(CELL, 0)]);
}

/// Busy and idle cells on one log, and an owner who answers within a segment's worth of appends.
struct Fleet {
    rig: Rig,
    dice: Random,
    next: BTreeMap<CellId, u64>,
    /// What is appended, in bytes, and when each cell that is due is answered at the latest.
    appended: u64,
    due: BTreeMap<CellId, u64>,
    writing: BTreeMap<CellId, u64>,
    live_max: u64,
}

impl Fleet {
    fn append(&mut self, cell: CellId) {
        let index = self.next[&cell];
        let bytes = usize::try_from(self.dice.below(50_000)).unwrap();
        self.rig.entry(cell, 1, index, &payload(1, index, bytes));
        self.next.insert(cell, index + 1);
        self.appended += bytes as u64;
    }

    fn answer(&mut self) {
        let due = self.rig.log.snapshots_due(UNCOVERED_ENTRIES_MAX).next();
        if let Some(cell) = due {
            let within = self.dice.below(SEGMENT_BYTES_MIN);
            let due = *self.due.entry(cell).or_insert(self.appended + within);
            if due <= self.appended {
                self.due.remove(&cell);
                let durable = self.rig.log.entries(cell).unwrap().1.0;
                self.rig.log.begin_snapshot(cell, snapshot_id(1, durable));
                self.rig.log.write_snapshot(cell, 0, true, b"state");
                self.writing.insert(cell, durable);
                // No other cell's answer may be late for this one.
                self.answer();
            }
        }
        while let Some(SnapshotDone { cell, outcome, .. }) = self.rig.log.poll_snapshot() {
            assert_eq!(outcome, SnapshotOutcome::Complete);
            let index = self.writing.remove(&cell).unwrap();
            self.rig.record(cell, RecordKind::SnapshotMark, 1, index, b"");
        }
    }

    /// Some operations are carried out, in any order, until what was appended is durable.
    fn drive(&mut self) {
        while self.rig.log.durable() < self.rig.log.appended() {
            while let Some(op) = self.rig.log.poll_op() {
                self.rig.disk.submit(&mut self.rig.log, op);
            }
            let pending: Vec<_> = self.rig.disk.pending().map(|(ticket, _)| ticket).collect();
            let at = usize::try_from(self.dice.below(pending.len() as u64)).unwrap();
            let completion = self.rig.disk.complete(pending[at], &mut self.rig.random);
            self.rig.log.on_disk_done(completion.done());
        }
        assert_eq!(self.rig.log.failure(), None);
    }

    fn check(&mut self) {
        let files: Vec<_> = self.rig.disk.list().unwrap().into_iter().map(|(file, _)| file).collect();
        let segments = files.iter().filter(|file| matches!(file, FileName::Segment { .. })).count() as u64;
        assert!(segments <= LIVE_SEGMENTS_MAX + 1, "{segments} segments");
        for of in self.next.keys() {
            let snapshots = files.iter().filter(|file| match file {
                FileName::Snapshot { cell, .. } | FileName::SnapshotStaging { cell } => cell == of,
                _ => false,
            });
            assert!(snapshots.count() <= SNAPSHOT_FILES_MAX);
        }
        let live = segments.saturating_sub(self.rig.log.spare_segments() as u64);
        self.live_max = self.live_max.max(live);
        assert!(live <= LIVE_SEGMENTS_MAX, "{live} live segments");
    }
}

fn run_fleet(seed: u64) -> u64 {
    let mut dice = Random::new(seed ^ 0xf1ee7);
    let cells: Vec<CellId> =
        (0..2 + dice.below(6)).map(|cell| CellId(u16::try_from(cell).unwrap())).collect();
    let mut fleet = Fleet {
        rig: Rig::new(seed),
        next: cells.iter().map(|cell| (*cell, 1)).collect(),
        dice,
        appended: 0,
        due: BTreeMap::new(),
        writing: BTreeMap::new(),
        live_max: 0,
    };
    while fleet.appended < 30 * SEGMENT_BYTES_MIN {
        // The first cell is busy; the others say something now and then, or only at the beginning.
        let at = usize::try_from(fleet.dice.below(cells.len() as u64)).unwrap();
        let is_idle = at % 2 == 1 && fleet.appended > SEGMENT_BYTES_MIN;
        let cell = if is_idle || fleet.dice.below(4) > 0 { cells[0] } else { cells[at] };
        fleet.append(cell);
        fleet.answer();
        fleet.drive();
        fleet.check();
        if fleet.dice.below(60) == 0 {
            fleet.rig.disk.lose_power(&mut fleet.rig.random);
            fleet.rig.reopen().unwrap();
            fleet.writing.clear();
        }
    }
    fleet.rig.settle();
    let found = fleet.rig.inspect().unwrap();
    let live = found.newest.0 - found.oldest.0 + 1;
    assert!(live + SPARE_SEGMENTS as u64 <= LIVE_SEGMENTS_MAX, "what is idle leaves nothing behind: {live}");
    fleet.live_max
}

#[test]
fn the_log_stays_within_its_ceiling_whatever_the_cells_do() {
    let mut live_max = 0;
    for seed in 0..40 {
        let outcome = std::panic::catch_unwind(|| run_fleet(seed));
        live_max = live_max.max(outcome.unwrap_or_else(|_| panic!("seed {seed} fails")));
    }
    assert!(live_max > 2 * SNAPSHOT_SEGMENTS + 1, "the ceiling is not touched from below: {live_max}");
}
