//! Random histories with crashes never lose, invent or reorder a record.

use std::collections::BTreeMap;

use lockstep_wal::disk::{FileName, Lane, StorageRead};
use lockstep_wal::memory::Random;
use lockstep_wal::{
    Lsn, ReadOutcome, RecordKind, Refusal, SnapshotDone, SnapshotId, SnapshotOutcome, load_snapshot,
};
use lockstep_wire::{CellId, LogIndex, Term};

use crate::model::{Model, fold};
use crate::rig::{CELL, OTHER, Rig, Seen, payload, pieces};

const SEEDS: u64 = 60;
const STEPS: u64 = 2_600;
const CELLS: [CellId; 3] = [CELL, OTHER, CellId(11)];

struct History {
    rig: Rig,
    model: Model,
    dice: Random,
    /// Per cell the next index; independent of the log's own bookkeeping.
    next: BTreeMap<CellId, u64>,
    terms: u64,
    /// Snapshots that are being written, and what of.
    written: BTreeMap<CellId, (SnapshotId, Vec<u8>)>,
    marks: Marks,
}

/// Proof that the histories reached the rare branches.
#[derive(Debug, Default)]
struct Marks {
    crashes: u64,
    rotations: u64,
    recycled: u64,
    torn: u64,
    lost_tails: u64,
    kept_unacknowledged: u64,
    carried_again: u64,
    interrupted_recoveries: u64,
    loaded: u64,
}

impl Marks {
    fn add(&mut self, other: &Marks) {
        self.crashes += other.crashes;
        self.rotations += other.rotations;
        self.recycled += other.recycled;
        self.torn += other.torn;
        self.lost_tails += other.lost_tails;
        self.kept_unacknowledged += other.kept_unacknowledged;
        self.carried_again += other.carried_again;
        self.interrupted_recoveries += other.interrupted_recoveries;
        self.loaded += other.loaded;
    }
}

impl History {
    fn append(&mut self, cell: CellId, kind: RecordKind, term: u64, index: u64, bytes: usize) {
        let payload = payload(term, self.dice.next_u64(), bytes);
        let lsn = self.rig.record(cell, kind, term, index, &payload);
        let seen = Seen { cell, kind, term: Term(term), index: LogIndex(index), payload };
        self.model.records.insert(lsn, seen);
    }

    fn append_something(&mut self) {
        // The last one is idle for long.
        let at = if self.dice.below(40) == 0 { 2 } else { self.dice.below(2) };
        let cell = CELLS[usize::try_from(at).unwrap()];
        let next = self.next.get(&cell).copied().unwrap_or(1);
        self.terms += 1;
        match self.dice.below(12) {
            0 => self.append(cell, RecordKind::HardState, self.terms, 0, 24),
            1 => self.begin_snapshot(cell),
            2 => {
                // Only what no snapshot covers can be truncated.
                let covered = self.covered(cell);
                let index = covered + 1 + self.dice.below((next - covered).min(20));
                self.append(cell, RecordKind::Truncate, self.terms, index, 0);
                self.next.insert(cell, index.min(next));
            }
            3 if self.dice.below(10) == 0 => self.append(cell, RecordKind::Manifest, 0, 0, 300),
            _ => {
                let bytes = match self.dice.below(6) {
                    0 => 0,
                    1..=4 => self.dice.below(120_000),
                    _ => self.dice.below(3_000),
                };
                self.append(cell, RecordKind::Entry, self.terms, next, usize::try_from(bytes).unwrap());
                self.next.insert(cell, next + 1);
            }
        }
    }

    /// The last entry that a snapshot covers, one that is being written included.
    fn covered(&self, cell: CellId) -> u64 {
        let written = self.written.get(&cell).map_or(0, |(id, _)| id.index.0);
        self.model.marked(cell).map_or(0, |id| id.index.0).max(written)
    }

    /// A cell takes snapshots of what is committed: durable, and never truncated later.
    fn begin_snapshot(&mut self, cell: CellId) {
        let durable = self.rig.log.durable();
        let cells = fold(self.model.records.range(..=durable).map(|(_, record)| record));
        let staged = self.model.records.range(Lsn(durable.0 + 1)..).map(|(_, record)| record);
        let cut = staged.filter(|record| record.cell == cell && record.kind == RecordKind::Truncate);
        let cut = cut.map(|record| record.index.0).min().unwrap_or(u64::MAX);
        let Some(entries) = cells.get(&cell).map(|state| &state.entries) else { return };
        let covered = self.covered(cell);
        let last = entries.values().rev().find(|entry| entry.index.0 < cut && entry.index.0 > covered);
        let Some(entry) = last else { return };
        let id = SnapshotId { index: entry.index, term: entry.term };
        let bytes = usize::try_from(self.dice.below(300_000)).unwrap();
        self.rig.log.begin_snapshot(cell, id);
        self.written.insert(cell, (id, payload(id.term.0, id.index.0, bytes)));
        self.send_piece(cell, 0);
    }

    fn begin_some_snapshot(&mut self) {
        let cell = CELLS[usize::try_from(self.dice.below(3)).unwrap()];
        if !self.written.contains_key(&cell) {
            self.begin_snapshot(cell);
        }
    }

    fn send_piece(&mut self, cell: CellId, piece: u32) {
        let pieces = pieces(&self.written[&cell].1);
        let at = usize::try_from(piece).unwrap();
        self.rig.log.write_snapshot(cell, piece, at + 1 == pieces.len(), pieces[at]);
    }

    /// Sends the next pieces, and appends the marks of what is complete.
    fn go_on_with_snapshots(&mut self) {
        while let Some(SnapshotDone { cell, id, outcome }) = self.rig.log.poll_snapshot() {
            match outcome {
                SnapshotOutcome::Written { piece } => self.send_piece(cell, piece + 1),
                SnapshotOutcome::Complete => {
                    self.written.remove(&cell);
                    self.mark(cell, id);
                }
                SnapshotOutcome::NoSpace => unreachable!("the disk has room"),
            }
        }
    }

    fn mark(&mut self, cell: CellId, id: SnapshotId) {
        let lsn = self.rig.record(cell, RecordKind::SnapshotMark, id.term.0, id.index.0, b"");
        let previous = self.model.marked(cell).unwrap_or(SnapshotId { index: LogIndex(0), term: Term(0) });
        let payload = [previous.index.0.to_le_bytes(), previous.term.0.to_le_bytes()].concat();
        let seen = Seen { cell, kind: RecordKind::SnapshotMark, term: id.term, index: id.index, payload };
        self.model.records.insert(lsn, seen);
    }

    fn drive(&mut self) {
        while let Some(op) = self.rig.log.poll_op() {
            self.rig.disk.submit(&mut self.rig.log, op);
        }
        let pending: Vec<_> = self.rig.disk.pending().map(|(ticket, _)| ticket).collect();
        if !pending.is_empty() {
            let at = usize::try_from(self.dice.below(pending.len() as u64)).unwrap();
            let completion = self.rig.disk.complete(pending[at], &mut self.rig.random);
            self.rig.log.on_disk_done(completion.done());
        }
    }

    fn crash(&mut self) {
        // Most crashes come in the middle of a write.
        if self.dice.below(4) > 0 {
            self.append_something();
            while let Some(op) = self.rig.log.poll_op() {
                self.rig.disk.submit(&mut self.rig.log, op);
            }
        }
        if self.dice.below(2) > 0 {
            self.finish_background();
        }
        let (durable, appended) = (self.rig.log.durable(), self.rig.log.appended());
        self.lose_something();
        self.marks.torn += u64::from(self.rig.inspect().unwrap().is_torn);
        // Recovery is interrupted a few times, too.
        for _ in 0..self.dice.below(3) {
            self.rig.disk.stop_after(self.dice.below(8));
            match self.rig.reopen() {
                Ok(_) => {}
                Err(Refusal::Disk { .. }) => self.marks.interrupted_recoveries += 1,
                Err(refusal) => panic!("a crash never leads to a refusal: {refusal}"),
            }
            self.lose_something();
        }
        let seen =
            self.rig.reopen().unwrap_or_else(|refusal| panic!("a crash never leads to a refusal: {refusal}"));
        let last = self.rig.log.durable();
        let known = self.model.records.len();
        self.model.check_recovered(&seen, last, durable);
        self.marks.carried_again += u64::from(self.model.records.len() > known);
        self.written.clear();
        self.next.clear();
        for (cell, state) in self.model.cells() {
            let covered = self.model.marked(cell).map_or(0, |id| id.index.0);
            let last = state.entries.keys().next_back().map_or(covered, |index| index.0);
            self.next.insert(cell, last + 1);
        }
        self.check_snapshots();
        let found = self.rig.inspect().unwrap();
        self.marks.crashes += 1;
        self.marks.rotations = found.newest.0 - 1;
        self.marks.recycled = found.oldest.0 - 1;
        self.marks.lost_tails += u64::from(last < appended);
        self.marks.kept_unacknowledged += u64::from(last > durable);
    }

    /// Whatever counts can be loaded, and nothing else is left.
    fn check_snapshots(&mut self) {
        let mut kept = Vec::new();
        for cell in CELLS {
            let marked = self.model.marked(cell);
            assert_eq!(self.rig.log.snapshots(cell).next(), marked, "cell {cell}: the newest mark counts");
            for id in self.rig.log.snapshots(cell).collect::<Vec<_>>() {
                load_snapshot(&mut self.rig.disk, cell, id, &mut |_| {}).unwrap();
                kept.push(FileName::Snapshot { cell, index: id.index });
                self.marks.loaded += 1;
            }
        }
        let files = self.rig.disk.list().unwrap().into_iter().map(|(file, _)| file);
        let snapshots = files.filter(|file| {
            let is_known = |cell| self.model.records.values().any(|record| record.cell == cell);
            match *file {
                FileName::Snapshot { cell, .. } | FileName::SnapshotStaging { cell } => is_known(cell),
                _ => false,
            }
        });
        kept.sort_unstable();
        assert_eq!(snapshots.collect::<Vec<_>>(), kept);
    }

    /// Segments are prepared and recycled to the end while commits hang.
    fn finish_background(&mut self) {
        loop {
            while let Some(op) = self.rig.log.poll_op() {
                self.rig.disk.submit(&mut self.rig.log, op);
            }
            let Some((ticket, _)) = self.rig.disk.pending().find(|(_, op)| op.lane == Lane::Background)
            else {
                return;
            };
            let completion = self.rig.disk.complete(ticket, &mut self.rig.random);
            self.rig.log.on_disk_done(completion.done());
        }
    }

    fn lose_something(&mut self) {
        if self.dice.below(2) == 0 {
            self.rig.disk.kill(&mut self.rig.random);
        } else {
            self.rig.disk.lose_power(&mut self.rig.random);
        }
    }

    fn check_read(&mut self) {
        self.rig.settle();
        while self.rig.log.poll_read().is_some() {}
        let cells = self.model.cells();
        for (cell, state) in cells {
            let Some((first, last)) = self.rig.log.entries(cell) else {
                continue;
            };
            let from = first.0 + self.dice.below(last.0 - first.0 + 1);
            self.rig.log.read(cell, LogIndex(from), last, usize::MAX).unwrap();
            self.rig.settle();
            let done = self.rig.log.poll_read().unwrap();
            let ReadOutcome::Entries(entries) = done.outcome else {
                panic!("entries that are in the log can be read");
            };
            assert_eq!(entries.len() as u64, last.0 - from + 1, "every entry asked for is read");
            for entry in entries {
                let expected = &state.entries[&entry.index];
                assert_eq!((entry.term, &entry.payload), (expected.term, &expected.payload));
            }
        }
    }
}

fn run(seed: u64) -> Marks {
    let rig = Rig::new(seed);
    let mut history = History {
        rig,
        model: Model::default(),
        dice: Random::new(seed ^ 0x5eed),
        next: BTreeMap::new(),
        terms: 0,
        written: BTreeMap::new(),
        marks: Marks::default(),
    };
    let crash_every = 20 + history.dice.below(150);
    for _ in 0..STEPS {
        match history.dice.below(crash_every) {
            0 => history.crash(),
            1 => history.check_read(),
            step if step % 7 == 2 => history.go_on_with_snapshots(),
            step if step % 7 == 4 => history.begin_some_snapshot(),
            step if step % 2 == 0 => history.append_something(),
            _ => history.drive(),
        }
        assert_eq!(history.rig.log.failure(), None);
        assert!(history.rig.log.durable() <= history.rig.log.appended());
    }
    history.rig.settle();
    assert_eq!(history.rig.log.durable(), history.rig.log.appended());
    history.crash();
    history.marks
}

#[test]
fn random_histories_with_crashes_never_lose_invent_or_reorder_a_record() {
    let mut marks = Marks::default();
    for seed in 0..SEEDS {
        let outcome = std::panic::catch_unwind(|| run(seed));
        marks.add(&outcome.unwrap_or_else(|_| panic!("seed {seed} fails")));
    }
    let Marks { crashes, rotations, recycled, torn, lost_tails, kept_unacknowledged, carried_again, .. } =
        marks;
    for mark in [crashes, rotations, recycled, torn, lost_tails, kept_unacknowledged, carried_again] {
        assert!(mark > SEEDS, "the histories miss a rare branch: {marks:?}");
    }
    assert!(marks.loaded > SEEDS, "the histories miss a rare branch: {marks:?}");
    assert!(marks.interrupted_recoveries > SEEDS, "the histories miss a rare branch: {marks:?}");
}

#[test]
fn the_same_seed_leaves_the_same_disk() {
    let records = |seed| {
        let mut rig = Rig::new(seed);
        for index in 1..200 {
            rig.entry(CELL, 1, index, &payload(1, index, 3_000));
            if index % 7 == 0 {
                while let Some(op) = rig.log.poll_op() {
                    rig.disk.submit(&mut rig.log, op);
                }
                let ticket = rig.disk.pending().next().map(|(ticket, _)| ticket);
                if let Some(ticket) = ticket {
                    let completion = rig.disk.complete(ticket, &mut rig.random);
                    rig.log.on_disk_done(completion.done());
                }
            }
        }
        rig.disk.lose_power(&mut rig.random);
        let seen = rig.reopen().unwrap();
        (seen.last().map_or(Lsn(0), |(lsn, _)| *lsn), rig.inspect().unwrap())
    };
    assert_eq!(records(5), records(5));
}
