//! Snapshots come whole or not at all, whatever is interrupted: the old one counts until the new one does.

use lockstep_wal::disk::{Action, DiskError, FileName, Lane, StorageRead};
use lockstep_wal::layout::BATCH_BYTES_MAX;
use lockstep_wal::memory::{Fault, Random};
use lockstep_wal::{
    Failure, Lsn, RecordKind, SnapshotDone, SnapshotId, SnapshotOutcome, SnapshotRefusal, load_snapshot,
};
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::{CellId, LogIndex};

use crate::rig::{CELL, OTHER, Rig, Seen, indexes, payload, pieces, snapshot_id};

/// Carries out the oldest operation of those that the log wants done; `false` if there is none.
fn step(rig: &mut Rig) -> bool {
    while let Some(op) = rig.log.poll_op() {
        rig.disk.submit(&mut rig.log, op);
    }
    let Some((ticket, _)) = rig.disk.pending().next() else {
        return false;
    };
    let completion = rig.disk.complete(ticket, &mut rig.random);
    rig.log.on_disk_done(completion.done());
    true
}

fn snapshot_files(rig: &mut Rig) -> Vec<FileName> {
    let files = rig.disk.list().unwrap().into_iter().map(|(file, _)| file);
    files
        .filter(|file| matches!(file, FileName::Snapshot { .. } | FileName::SnapshotStaging { .. }))
        .collect()
}

fn file(cell: CellId, index: u64) -> FileName {
    FileName::Snapshot { cell, index: LogIndex(index) }
}

pub(crate) fn load(rig: &mut Rig, cell: CellId, id: SnapshotId) -> Result<Vec<u8>, SnapshotRefusal> {
    let mut stream = Vec::new();
    load_snapshot(&mut rig.disk, cell, id, &mut |piece| stream.extend_from_slice(piece))?;
    Ok(stream)
}

/// What the old and the new snapshot of the interrupted histories say.
fn stream(id: SnapshotId) -> Vec<u8> {
    payload(id.term.0, id.index.0, 2 * SNAPSHOT_PIECE_BYTES_MAX + 1_000)
}

/// A cell that replaces its snapshot by one that its log matches, or by one from a leader.
struct Replacement {
    rig: Rig,
    old: SnapshotId,
    new: SnapshotId,
    is_installed: bool,
    mark: Option<Lsn>,
}

impl Replacement {
    fn new(seed: u64, is_installed: bool) -> Replacement {
        let mut rig = Rig::new(seed);
        rig.entries(CELL, 1, 1..=9, 500);
        let old = snapshot_id(1, 4);
        rig.write_snapshot(CELL, old, &stream(old));
        rig.record(CELL, RecordKind::SnapshotMark, 1, 4, b"");
        rig.settle();
        let new = if is_installed { snapshot_id(2, 50) } else { snapshot_id(1, 7) };
        rig.log.begin_snapshot(CELL, new);
        rig.log.write_snapshot(CELL, 0, false, pieces(&stream(new))[0]);
        Replacement { rig, old, new, is_installed, mark: None }
    }

    /// Carries out so many operations; `false` once there is nothing more to do.
    fn run(&mut self, operations: usize) -> bool {
        for _ in 0..operations {
            if !step(&mut self.rig) {
                return false;
            }
            let Some(done) = self.rig.log.poll_snapshot() else { continue };
            match done.outcome {
                SnapshotOutcome::Written { piece } => {
                    let stream = stream(self.new);
                    let pieces = pieces(&stream);
                    let next = usize::try_from(piece).unwrap() + 1;
                    self.rig.log.write_snapshot(CELL, piece + 1, next + 1 == pieces.len(), pieces[next]);
                }
                SnapshotOutcome::Complete => {
                    if self.is_installed {
                        self.rig.record(CELL, RecordKind::Truncate, 2, 1, b"");
                    }
                    let SnapshotId { index, term } = self.new;
                    self.mark = Some(self.rig.record(CELL, RecordKind::SnapshotMark, term.0, index.0, b""));
                }
                SnapshotOutcome::NoSpace => panic!("there is room"),
            }
        }
        true
    }

    /// Starts again and says whether the new snapshot counts.
    fn check_recovered(&mut self, durable: Lsn) -> bool {
        let seen = self.rig.reopen().expect("a crash never leads to a refusal");
        let counting: Vec<SnapshotId> = self.rig.log.snapshots(CELL).collect();
        let is_new = counting[0] == self.new;
        assert!(is_new || counting[0] == self.old, "neither the old nor the new: {counting:?}");
        assert!(is_new || self.mark.is_none_or(|mark| mark > durable), "a durable mark was lost");
        for id in &counting {
            assert_eq!(load(&mut self.rig, CELL, *id), Ok(stream(*id)));
        }
        let expected: &[SnapshotId] = match (is_new, self.is_installed) {
            (false, _) => &[self.old],
            (true, false) => &[self.new, self.old],
            (true, true) => &[self.new],
        };
        assert_eq!(counting, expected);
        let mut files: Vec<_> = counting.iter().map(|id| file(CELL, id.index.0)).collect();
        files.sort_unstable();
        assert_eq!(snapshot_files(&mut self.rig), files, "nothing else is left");
        let entries = if is_new && self.is_installed { None } else { Some((LogIndex(1), LogIndex(9))) };
        assert_eq!(self.rig.log.entries(CELL), entries);
        assert_eq!(indexes(&seen, CELL), (1..=9).collect::<Vec<_>>());
        is_new
    }
}

#[test]
fn a_crash_at_any_operation_leaves_the_old_snapshot_or_the_new_one() {
    for is_installed in [false, true] {
        let (mut old, mut new) = (0, 0);
        let mut is_going_on = true;
        let mut operations = 0;
        while is_going_on {
            for seed in 0..12 {
                let mut history = Replacement::new(seed, is_installed);
                is_going_on = history.run(operations);
                // What comes next is under way when it happens.
                while let Some(op) = history.rig.log.poll_op() {
                    history.rig.disk.submit(&mut history.rig.log, op);
                }
                let durable = history.rig.log.durable();
                if seed % 3 == 0 {
                    history.rig.disk.kill(&mut history.rig.random);
                } else {
                    history.rig.disk.lose_power(&mut history.rig.random);
                }
                let is_new = history.check_recovered(durable);
                new += usize::from(is_new);
                old += usize::from(!is_new);
                // The next one is written as if nothing had happened.
                let next = history.rig.log.entries(CELL).map_or(51, |(_, last)| last.0 + 1);
                history.rig.entries(CELL, 3, next..=next, 10);
                history.rig.snapshot(CELL, 3, next);
                history.rig.settle();
                assert_eq!(history.rig.log.snapshots(CELL).next(), Some(snapshot_id(3, next)));
            }
            operations += 1;
        }
        assert!(operations > 8 && old > 0 && new > 0, "{operations} operations, {old} old, {new} new");
    }
}

#[test]
fn recovery_that_is_interrupted_anywhere_takes_nothing_from_the_snapshot_that_counts() {
    for changes in 0..12 {
        for seed in 0..6 {
            let mut history = Replacement::new(seed, false);
            history.run(6);
            history.rig.disk.lose_power(&mut history.rig.random);
            history.rig.disk.stop_after(changes);
            let _ = history.rig.reopen();
            history.rig.disk.lose_power(&mut history.rig.random);
            history.check_recovered(Lsn(0));
        }
    }
}

#[test]
fn an_older_snapshot_is_removed_only_when_the_mark_of_the_newest_is_durable() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=9, 500);
    rig.snapshot(CELL, 1, 2);
    rig.snapshot(CELL, 1, 4);
    rig.settle();
    let newest = rig.snapshot(CELL, 1, 6);
    let mut removed = 0;
    while let Some(op) = rig.log.poll_op() {
        if let Action::Remove { file: gone } = op.action {
            assert!(rig.log.durable() >= newest);
            assert_eq!((gone, op.lane), (file(CELL, 2), Lane::Snapshot));
            removed += 1;
        }
        let ticket = rig.disk.submit(&mut rig.log, op);
        let completion = rig.disk.complete(ticket, &mut rig.random);
        rig.log.on_disk_done(completion.done());
    }
    assert_eq!(removed, 1);
    assert_eq!(snapshot_files(&mut rig), [file(CELL, 4), file(CELL, 6)]);
}

#[test]
fn a_truncation_and_the_mark_after_it_share_a_batch_at_every_boundary() {
    let mut is_split = [0, 0];
    // What remains of the batch goes from less than the truncation to more than both.
    for left in (0..=120).step_by(4) {
        let mut rig = Rig::new(left);
        rig.entries(CELL, 1, 1..=3, 100);
        rig.snapshot(CELL, 1, 2);
        rig.write_snapshot(CELL, snapshot_id(2, 50), b"");
        rig.settle();
        let batches = BATCH_BYTES_MAX - 80 - usize::try_from(left).unwrap();
        rig.entry(OTHER, 1, 1, &vec![7; 128 * 1024]);
        rig.entry(OTHER, 1, 2, &vec![7; batches - 128 * 1024 - 2 * 24]);
        let truncation = rig.record(CELL, RecordKind::Truncate, 2, 1, b"");
        let mark = rig.record(CELL, RecordKind::SnapshotMark, 2, 50, b"");
        while rig.log.durable() < mark {
            assert!(step(&mut rig));
            assert_ne!(rig.log.durable(), truncation, "{left} bytes were left");
            is_split[usize::from(rig.log.durable() >= mark)] += 1;
            let mut later = Rig { disk: rig.disk.clone(), ..Rig::new(1) };
            later.disk.lose_power(&mut Random::new(left));
            later.reopen().unwrap();
            let counts = later.log.snapshots(CELL).next();
            assert_eq!(counts.unwrap().index.0 == 50, later.log.entries(CELL).is_none());
        }
    }
    assert!(is_split.iter().all(|times| *times > 5), "the batch ends on either side: {is_split:?}");
}

#[test]
fn a_full_disk_ends_a_snapshot_and_not_the_log() {
    for room in [0, 128 * 1024, 200 * 1024] {
        let mut rig = Rig::new(1);
        rig.entries(CELL, 1, 1..=3, 100);
        let used = rig.disk.used_bytes();
        rig.disk.set_capacity(used + room);
        if room == 0 {
            rig.disk.schedule(Fault::NoSpace);
        }
        let id = snapshot_id(1, 3);
        let stream = stream(id);
        let pieces = pieces(&stream);
        rig.log.begin_snapshot(CELL, id);
        let mut outcomes = Vec::new();
        for (piece, bytes) in (0..).zip(&pieces) {
            rig.log.write_snapshot(CELL, piece, piece == 2, bytes);
            rig.settle();
            outcomes.extend(rig.log.poll_snapshot().map(|done| done.outcome));
        }
        assert_eq!(outcomes.last(), Some(&SnapshotOutcome::NoSpace));
        assert_eq!(outcomes.len() as u64, 1 + room / (128 * 1024), "{outcomes:?}");
        assert_eq!((snapshot_files(&mut rig), rig.disk.used_bytes()), (vec![], used));
        rig.entries(CELL, 1, 4..=4, 100);
        rig.disk.set_capacity(u64::MAX);
        rig.write_snapshot(CELL, id, &stream);
        assert_eq!(snapshot_files(&mut rig), [file(CELL, 3)]);
    }
}

#[test]
fn any_other_error_of_a_snapshot_is_final() {
    for fault in [Fault::WriteError, Fault::SyncError] {
        let mut rig = Rig::new(1);
        rig.entries(CELL, 1, 1..=3, 100);
        rig.log.begin_snapshot(CELL, snapshot_id(1, 3));
        rig.log.write_snapshot(CELL, 0, true, b"all of it");
        rig.disk.schedule(fault);
        rig.disk.settle(&mut rig.log, &mut rig.random);
        let staging = FileName::SnapshotStaging { cell: CELL };
        let failure = Failure::Disk { file: Some(staging), error: DiskError::Io(5) };
        assert_eq!(rig.log.failure(), Some(failure), "{fault:?}");
        assert_eq!(rig.log.poll_snapshot(), None);
    }
}

#[test]
fn what_was_begun_is_removed_before_another_is_begun_and_never_cut_short() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=9, 100);
    rig.log.begin_snapshot(CELL, snapshot_id(1, 6));
    rig.log.write_snapshot(CELL, 0, false, &[7; SNAPSHOT_PIECE_BYTES_MAX]);
    rig.settle();
    let file = FileName::SnapshotStaging { cell: CELL };
    assert_eq!(snapshot_files(&mut rig), [file]);
    rig.log.abandon_snapshot(CELL);
    rig.log.begin_snapshot(CELL, snapshot_id(1, 9));
    let mut actions = Vec::new();
    while actions.len() < 2 {
        while let Some(op) = rig.log.poll_op() {
            let is_synced = op.action == Action::SyncDirectory;
            actions.extend((op.lane == Lane::Snapshot && !is_synced).then_some(op.action));
            rig.disk.submit(&mut rig.log, op);
        }
        assert!(step(&mut rig), "{actions:?}");
    }
    assert_eq!(actions, [Action::Remove { file }, Action::Create { file }]);
}

#[test]
fn a_snapshot_abandoned_at_any_operation_leaves_nothing_and_is_not_told_of() {
    for begins_again in [false, true] {
        for operations in 0..8 {
            let mut rig = Rig::new(1);
            rig.entries(CELL, 1, 1..=9, 100);
            rig.snapshot(CELL, 1, 2);
            rig.settle();
            rig.log.begin_snapshot(CELL, snapshot_id(1, 6));
            rig.log.write_snapshot(CELL, 0, true, b"abandoned");
            for _ in 0..operations {
                step(&mut rig);
            }
            // The next operation is under way.
            while let Some(op) = rig.log.poll_op() {
                rig.disk.submit(&mut rig.log, op);
            }
            if begins_again {
                // With the same name or another.
                rig.write_snapshot(CELL, snapshot_id(1, 6 + operations % 2), b"written");
                assert_eq!(load(&mut rig, CELL, snapshot_id(1, 6 + operations % 2)), Ok(b"written".to_vec()));
                assert_eq!(snapshot_files(&mut rig), [file(CELL, 2), file(CELL, 6 + operations % 2)]);
            } else {
                rig.log.abandon_snapshot(CELL);
                rig.settle();
                assert_eq!(rig.log.poll_snapshot(), None);
                assert_eq!(snapshot_files(&mut rig), [file(CELL, 2)], "after {operations} operations");
            }
        }
    }
}

#[test]
fn cells_take_turns() {
    let mut rig = Rig::new(1);
    let cells = [CELL, OTHER, CellId(11)];
    let full = vec![5; SNAPSHOT_PIECE_BYTES_MAX];
    for cell in cells {
        rig.entries(cell, 1, 1..=1, 100);
    }
    for cell in cells {
        rig.log.begin_snapshot(cell, snapshot_id(1, 1));
        rig.log.write_snapshot(cell, 0, false, &full);
    }
    let mut written = Vec::new();
    while written.len() < 12 && step(&mut rig) {
        while let Some(SnapshotDone { cell, outcome, .. }) = rig.log.poll_snapshot() {
            let SnapshotOutcome::Written { piece } = outcome else { panic!("{outcome:?}") };
            written.push((cell, piece));
            rig.log.write_snapshot(cell, piece + 1, false, &full);
        }
    }
    let expected: Vec<_> = (0..4).flat_map(|piece| cells.map(|cell| (cell, piece))).collect();
    assert_eq!(written, expected);
}

#[test]
fn snapshots_wait_for_no_commit_and_commits_for_no_snapshot() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=3, 100);
    rig.log.begin_snapshot(CELL, snapshot_id(1, 3));
    rig.entry(CELL, 1, 4, b"entry");
    let lanes: Vec<Lane> = std::iter::from_fn(|| rig.log.poll_op()).map(|op| op.lane).collect();
    assert!(lanes.contains(&Lane::Commit) && lanes.contains(&Lane::Snapshot), "{lanes:?}");
}

#[test]
fn what_no_mark_names_is_gone_after_a_start_and_other_shards_files_stay() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=9, 100);
    for index in [2, 4] {
        rig.snapshot(CELL, 1, index);
    }
    rig.settle();
    rig.write_snapshot(CELL, snapshot_id(1, 8), b"complete, and never marked");
    rig.log.begin_snapshot(OTHER, snapshot_id(1, 1));
    rig.settle();
    let staging = FileName::SnapshotStaging { cell: OTHER };
    rig.disk.kill(&mut rig.random);
    rig.reopen().unwrap();
    // The log has no record of the other cell, so it is another log's.
    assert_eq!(snapshot_files(&mut rig), [file(CELL, 2), file(CELL, 4), staging]);
    rig.entries(OTHER, 1, 1..=1, 100);
    rig.disk.kill(&mut rig.random);
    rig.reopen().unwrap();
    assert_eq!(snapshot_files(&mut rig), [file(CELL, 2), file(CELL, 4)]);
}

#[test]
fn a_snapshot_is_written_once_more_over_a_damaged_one() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=3, 100);
    rig.snapshot(CELL, 1, 3);
    rig.settle();
    rig.disk.rot(file(CELL, 3), 77, 1);
    let id = snapshot_id(1, 3);
    assert!(load(&mut rig, CELL, id).is_err());
    rig.write_snapshot(CELL, id, &stream(id));
    assert_eq!(load(&mut rig, CELL, id), Ok(stream(id)));
    rig.record(CELL, RecordKind::SnapshotMark, 1, 3, b"");
    rig.settle();
    assert_eq!(rig.log.snapshots(CELL).collect::<Vec<_>>(), [id]);
}

#[test]
fn the_log_says_in_a_mark_which_one_came_before() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 7, 1..=9, 100);
    for index in [2, 4, 6] {
        rig.snapshot(CELL, 7, index);
    }
    rig.settle();
    rig.disk.lose_power(&mut rig.random);
    let seen = rig.reopen().unwrap();
    let marks = seen.iter().filter(|(_, record)| record.kind == RecordKind::SnapshotMark);
    let payloads: Vec<_> = marks.map(|(_, Seen { payload, .. })| (payload[0], payload[8])).collect();
    assert_eq!(payloads, [(0, 0), (2, 7), (4, 7)]);
    assert_eq!(rig.log.snapshots(CELL).collect::<Vec<_>>(), [snapshot_id(7, 6), snapshot_id(7, 4)]);
}

#[test]
#[should_panic(expected = "names no complete snapshot")]
fn a_mark_without_its_file_is_a_defect_of_the_caller() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=3, 100);
    rig.record(CELL, RecordKind::SnapshotMark, 1, 3, b"");
}

#[test]
#[should_panic(expected = "does not follow")]
fn a_mark_that_the_log_does_not_reach_needs_a_truncation_before() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=3, 100);
    rig.snapshot(CELL, 1, 4);
}

#[test]
#[should_panic(expected = "does not follow")]
fn a_truncation_never_cuts_into_what_a_snapshot_covers() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=9, 100);
    rig.snapshot(CELL, 1, 6);
    rig.record(CELL, RecordKind::Truncate, 1, 5, b"");
}
