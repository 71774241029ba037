//! Random histories with crashes never lose, invent or reorder a record.

use std::collections::BTreeMap;

use lockstep_wal::disk::Lane;
use lockstep_wal::memory::Random;
use lockstep_wal::{Lsn, ReadOutcome, RecordKind, Refusal};
use lockstep_wire::{CellId, LogIndex};

use crate::model::{Model, fold};
use crate::rig::{CELL, OTHER, Rig, Seen, payload};

const SEEDS: u64 = 60;
const STEPS: u64 = 1_500;
const CELLS: [CellId; 3] = [CELL, OTHER, CellId(11)];

struct History {
    rig: Rig,
    model: Model,
    dice: Random,
    /// Per cell the next index; independent of the log's own bookkeeping.
    next: BTreeMap<CellId, u64>,
    terms: u64,
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
    }
}

impl History {
    fn append(&mut self, cell: CellId, kind: RecordKind, term: u64, index: u64, bytes: usize) {
        let payload = payload(term, self.dice.next_u64(), bytes);
        let lsn = self.rig.record(cell, kind, term, index, &payload);
        let seen = Seen { cell, kind, term: lockstep_wire::Term(term), index: LogIndex(index), payload };
        self.model.records.insert(lsn, seen);
    }

    fn append_something(&mut self) {
        let cell = CELLS[usize::try_from(self.dice.below(3)).unwrap()];
        let next = self.next.get(&cell).copied().unwrap_or(1);
        let released = self.model.released.get(&cell).map_or(0, |index| index.0);
        self.terms += 1;
        match self.dice.below(12) {
            0 => self.append(cell, RecordKind::HardState, self.terms, 0, 24),
            1 => self.append(cell, RecordKind::SnapshotMark, self.terms, released, 40),
            2 => {
                // Only what was not released can be truncated.
                let index = released + 1 + self.dice.below((next - released).min(20));
                self.append(cell, RecordKind::Truncate, self.terms, index, 0);
                self.next.insert(cell, index.min(next));
            }
            3 if self.dice.below(10) == 0 => self.append(cell, RecordKind::Manifest, 0, 0, 300),
            _ => {
                let bytes = match self.dice.below(6) {
                    0 => 0,
                    1 => self.dice.below(100_000),
                    _ => self.dice.below(3_000),
                };
                self.append(cell, RecordKind::Entry, self.terms, next, usize::try_from(bytes).unwrap());
                self.next.insert(cell, next + 1);
            }
        }
    }

    fn release_something(&mut self) {
        let cell = CELLS[usize::try_from(self.dice.below(3)).unwrap()];
        // A cell releases only what is committed: durable, and never truncated later.
        let durable = self.rig.log.durable();
        let cells = fold(self.model.records.range(..=durable).map(|(_, record)| record));
        let last =
            cells.get(&cell).and_then(|state| state.entries.keys().next_back()).map_or(0, |index| index.0);
        let staged = self.model.records.range(Lsn(durable.0 + 1)..).map(|(_, record)| record);
        let cut = staged.filter(|record| record.cell == cell && record.kind == RecordKind::Truncate);
        let last = cut.map(|record| record.index.0 - 1).min().unwrap_or(last).min(last);
        let through = LogIndex(last.saturating_sub(self.dice.below(8)));
        self.rig.log.release(cell, through);
        let released = self.model.released.entry(cell).or_default();
        *released = (*released).max(through);
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
        for (&cell, &through) in &self.model.released {
            self.rig.log.release(cell, through);
        }
        for (cell, state) in self.model.cells() {
            let released = self.model.released.get(&cell).map_or(0, |index| index.0);
            let last = state.entries.keys().next_back().map_or(released, |index| index.0);
            self.next.insert(cell, last + 1);
        }
        let found = self.rig.inspect().unwrap();
        self.marks.crashes += 1;
        self.marks.rotations = found.newest.0 - 1;
        self.marks.recycled = found.oldest.0 - 1;
        self.marks.lost_tails += u64::from(last < appended);
        self.marks.kept_unacknowledged += u64::from(last > durable);
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
        marks: Marks::default(),
    };
    let crash_every = 20 + history.dice.below(150);
    for _ in 0..STEPS {
        match history.dice.below(crash_every) {
            0 => history.crash(),
            1 => history.check_read(),
            step if step % 7 == 2 => history.release_something(),
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
