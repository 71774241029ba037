//! Reading entries back: current ones only, from verified bytes, as far as they are durable.

use lockstep_wal::disk::Lane;
use lockstep_wal::{ReadOutcome, ReadsFull, RecordKind};
use lockstep_wire::LogIndex;

use crate::rig::{CELL, OTHER, Rig, payload, snapshot_id};

fn range(term: u64, indexes: std::ops::RangeInclusive<u64>) -> Vec<(u64, u64)> {
    indexes.map(|index| (term, index)).collect()
}

#[test]
fn a_range_is_read_back_across_segments_and_restarts() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=150, 9_000);
    assert_eq!(rig.read(CELL, 3, 140, usize::MAX), Some(range(1, 3..=140)));
    rig.disk.lose_power(&mut rig.random);
    rig.reopen().unwrap();
    assert_eq!(rig.read(CELL, 149, 150, usize::MAX), Some(range(1, 149..=150)));
    assert_eq!(rig.read(CELL, 1, 150, usize::MAX), Some(range(1, 1..=150)));
}

#[test]
fn a_read_stops_at_its_byte_bound_but_brings_at_least_one_entry() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=20, 9_000);
    assert_eq!(rig.read(CELL, 4, 20, 1), Some(range(1, 4..=4)));
    assert_eq!(rig.read(CELL, 4, 20, 18_001), Some(range(1, 4..=6)));
    assert_eq!(rig.read(CELL, 4, 5, usize::MAX), Some(range(1, 4..=5)));
}

#[test]
fn other_cells_in_the_same_batches_are_left_out() {
    let mut rig = Rig::new(1);
    for index in 1..=50 {
        rig.entry(CELL, 1, index, &payload(1, index, 2_000));
        rig.entry(OTHER, 9, index, &payload(9, index, 3_000));
        rig.record(OTHER, RecordKind::HardState, 9, index, b"vote");
    }
    rig.settle();
    assert_eq!(rig.read(CELL, 10, 40, usize::MAX), Some(range(1, 10..=40)));
    assert_eq!(rig.read(OTHER, 1, 50, usize::MAX), Some(range(9, 1..=50)));
}

#[test]
fn truncated_entries_are_never_read_even_where_the_byte_bound_falls_before_the_truncation() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=30, 5_000);
    rig.record(CELL, RecordKind::Truncate, 2, 11, b"");
    rig.settle();
    assert_eq!(rig.read(CELL, 9, 30, 15_000), Some(range(1, 9..=10)));
    rig.entries(CELL, 2, 11..=20, 5_000);
    let expected: Vec<_> = range(1, 9..=10).into_iter().chain(range(2, 11..=20)).collect();
    assert_eq!(rig.read(CELL, 9, 30, usize::MAX), Some(expected.clone()));
    assert_eq!(rig.read(CELL, 12, 14, usize::MAX), Some(range(2, 12..=14)));
    // A second, higher truncation leaves the first in force.
    rig.record(CELL, RecordKind::Truncate, 3, 15, b"");
    rig.entries(CELL, 3, 15..=25, 5_000);
    rig.disk.lose_power(&mut rig.random);
    rig.reopen().unwrap();
    let expected: Vec<_> =
        range(1, 1..=10).into_iter().chain(range(2, 11..=14)).chain(range(3, 15..=25)).collect();
    assert_eq!(rig.read(CELL, 1, 25, usize::MAX), Some(expected));
}

#[test]
fn a_truncation_that_comes_while_a_read_runs_takes_its_entries_out_of_the_answer() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=120, 6_000);
    rig.log.read(CELL, LogIndex(1), LogIndex(200), usize::MAX).unwrap();
    let op = rig.log.poll_op().unwrap();
    assert_eq!(op.lane, Lane::Read);
    let ticket = rig.disk.submit(&mut rig.log, op);
    let completion = rig.disk.complete(ticket, &mut rig.random);
    rig.log.on_disk_done(completion.done());
    rig.record(CELL, RecordKind::Truncate, 2, 6, b"");
    for index in 6..=150 {
        rig.entry(CELL, 2, index, &payload(2, index, 1_000));
    }
    rig.settle();
    let ReadOutcome::Entries(entries) = rig.log.poll_read().unwrap().outcome else { panic!() };
    assert_eq!(
        entries.iter().map(|entry| (entry.term.0, entry.index.0)).collect::<Vec<_>>(),
        range(1, 1..=5)
    );
}

#[test]
fn what_is_not_durable_yet_is_not_read() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=3, 100);
    rig.entry(CELL, 1, 4, b"staged");
    let write = rig.log.poll_op().unwrap();
    rig.disk.submit(&mut rig.log, write);
    rig.log.read(CELL, LogIndex(2), LogIndex(4), usize::MAX).unwrap();
    rig.log.read(CELL, LogIndex(4), LogIndex(4), usize::MAX).unwrap();
    while let Some(op) = rig.log.poll_op() {
        let ticket = rig.disk.submit(&mut rig.log, op);
        let completion = rig.disk.complete(ticket, &mut rig.random);
        rig.log.on_disk_done(completion.done());
    }
    let ReadOutcome::Entries(entries) = rig.log.poll_read().unwrap().outcome else { panic!() };
    assert_eq!(entries.last().unwrap().index, LogIndex(3));
    assert_eq!(rig.log.poll_read().unwrap().outcome, ReadOutcome::Entries(Vec::new()));
}

#[test]
fn entries_of_recycled_segments_are_said_to_be_gone() {
    let mut rig = Rig::new(1);
    for index in 1..=200 {
        rig.entry(CELL, 1, index, &payload(1, index, 20_000));
        rig.snapshot(CELL, 1, index);
        rig.settle();
    }
    assert_eq!(rig.read(CELL, 1, 200, usize::MAX), None);
    let (first, last) = rig.log.entries(CELL).unwrap();
    assert!(first > LogIndex(1));
    assert_eq!(rig.read(CELL, first.0, last.0, usize::MAX), Some(range(1, first.0..=last.0)));
}

#[test]
fn a_segment_stays_while_a_read_is_in_it() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=150, 9_000);
    rig.snapshot(CELL, 1, 149);
    rig.write_snapshot(CELL, snapshot_id(1, 150), b"");
    rig.log.read(CELL, LogIndex(1), LogIndex(150), usize::MAX).unwrap();
    let op = rig.log.poll_op().unwrap();
    assert_eq!(op.lane, Lane::Read);
    let ticket = rig.disk.submit(&mut rig.log, op);
    rig.record(CELL, RecordKind::SnapshotMark, 1, 150, b"");
    for index in 151..=300 {
        rig.entry(CELL, 1, index, &payload(1, index, 9_000));
        while let Some(op) = rig.log.poll_op() {
            let ticket = rig.disk.submit(&mut rig.log, op);
            let completion = rig.disk.complete(ticket, &mut rig.random);
            rig.log.on_disk_done(completion.done());
        }
    }
    let completion = rig.disk.complete(ticket, &mut rig.random);
    rig.log.on_disk_done(completion.done());
    rig.settle();
    let ReadOutcome::Entries(entries) = rig.log.poll_read().unwrap().outcome else { panic!() };
    assert_eq!(entries.len(), 150);
}

#[test]
fn an_emptied_cell_goes_on_behind_the_snapshot_that_was_installed() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=5, 100);
    rig.install(CELL, 4, 900);
    assert_eq!(rig.log.entries(CELL), None);
    rig.entries(CELL, 4, 901..=905, 100);
    rig.disk.lose_power(&mut rig.random);
    rig.reopen().unwrap();
    assert_eq!(rig.log.entries(CELL), Some((LogIndex(901), LogIndex(905))));
    assert_eq!(rig.read(CELL, 901, 910, usize::MAX), Some(range(4, 901..=905)));
    assert_eq!(rig.read(CELL, 2, 3, usize::MAX), None);
}

#[test]
fn waiting_reads_are_bounded() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=1, 100);
    let refused = (0..1_000).find_map(|_| rig.log.read(CELL, LogIndex(1), LogIndex(1), 1).err());
    assert_eq!(refused, Some(ReadsFull));
}
