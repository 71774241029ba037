//! A full disk is a state, not an accident.

use lockstep_wal::Refusal;
use lockstep_wal::disk::DiskError;
use lockstep_wal::layout::{SEGMENT_BYTES_MIN, SPARE_SEGMENTS};
use lockstep_wal::memory::{Fault, MemoryDisk};
use lockstep_wal::{AppendRefusal, Failure, Lsn, RecordKind, format};
use lockstep_wire::{LogIndex, Term};

use crate::rig::{CELL, Rig, indexes, payload, superblock};

/// Room for `segments` segments and the small files.
fn room_for(segments: u64) -> u64 {
    segments * SEGMENT_BYTES_MIN + 64 * 1024
}

fn fill(rig: &mut Rig, from: u64, enough: impl Fn(&Rig) -> bool) -> u64 {
    let mut index = from;
    while !enough(rig) {
        rig.entry(CELL, 1, index, &payload(1, index, 30_000));
        rig.settle();
        index += 1;
    }
    index
}

#[test]
fn a_full_disk_is_told_while_a_whole_segment_is_still_in_reserve() {
    let mut rig = Rig::new(1);
    rig.disk.set_capacity(room_for(5));
    let next = fill(&mut rig, 1, |rig| rig.log.is_short_of_space());
    assert!(rig.log.spare_segments() >= 1);
    // What frees space goes on: a whole segment's worth of it.
    for index in next..next + 10 {
        let lsn = rig.entry(CELL, 1, index, &payload(1, index, 30_000));
        rig.settle();
        assert_eq!(rig.log.durable(), lsn);
    }
}

#[test]
fn without_any_room_records_wait_and_become_durable_when_space_returns() {
    let mut rig = Rig::new(1);
    rig.disk.set_capacity(room_for(4));
    let next = fill(&mut rig, 1, |rig| rig.log.staged_bytes() > 0);
    assert!(rig.log.durable() < rig.log.appended());
    rig.log.retry_space();
    rig.settle();
    assert!(rig.log.is_short_of_space(), "trying again does no harm while there is no space");
    rig.disk.set_capacity(u64::MAX);
    rig.log.retry_space();
    rig.settle();
    assert_eq!(rig.log.durable(), rig.log.appended());
    assert!(!rig.log.is_short_of_space());
    assert_eq!(rig.log.spare_segments(), SPARE_SEGMENTS);
    assert_eq!(rig.log.entries(CELL), Some((LogIndex(1), LogIndex(next - 1))));
}

#[test]
fn releasing_entries_ends_a_shortage_without_new_space() {
    let mut rig = Rig::new(1);
    rig.disk.set_capacity(room_for(5));
    let next = fill(&mut rig, 1, |rig| rig.log.is_short_of_space());
    rig.release(CELL, 1, next - 2);
    assert!(!rig.log.is_short_of_space());
    let further = fill(&mut rig, next, |rig| rig.log.durable() >= Lsn(next + 30));
    assert_eq!(rig.log.entries(CELL).unwrap().1, LogIndex(further - 1));
}

#[test]
fn a_shortage_gives_back_what_the_half_made_segment_took() {
    let mut rig = Rig::new(1);
    rig.disk.set_capacity(room_for(4) + SEGMENT_BYTES_MIN / 2);
    fill(&mut rig, 1, |rig| rig.log.is_short_of_space());
    use lockstep_wal::disk::Storage;
    assert!(rig.disk.free_bytes().unwrap() >= SEGMENT_BYTES_MIN / 2);
}

#[test]
fn starting_while_full_works_and_nothing_needs_repair() {
    for seed in 0..20 {
        let mut rig = Rig::new(seed);
        rig.disk.set_capacity(room_for(4));
        fill(&mut rig, 1, |rig| rig.log.staged_bytes() > 0);
        let durable = rig.log.durable();
        rig.disk.lose_power(&mut rig.random);
        let seen = rig.reopen().unwrap();
        assert_eq!(indexes(&seen, CELL), (1..=durable.0).collect::<Vec<_>>());
        rig.entry(CELL, 2, durable.0 + 1, &payload(2, 1, 120_000));
        rig.settle();
        assert!(rig.log.is_short_of_space());
        rig.disk.set_capacity(u64::MAX);
        rig.log.retry_space();
        rig.settle();
        assert_eq!(rig.log.durable(), rig.log.appended());
    }
}

#[test]
fn formatting_without_room_for_the_spare_segments_is_refused_before_anything_is_allocated() {
    let mut disk = MemoryDisk::new();
    disk.set_capacity(room_for(2));
    let refused = format(&mut disk, &superblock());
    assert_eq!(refused, Err(Refusal::Disk { file: None, error: DiskError::NoSpace }));
    disk.set_capacity(room_for(3));
    format(&mut disk, &superblock()).unwrap();
}

#[test]
fn any_write_or_sync_error_is_final() {
    for fault in [Fault::WriteError, Fault::SyncError] {
        let mut rig = Rig::new(1);
        rig.disk.schedule(fault);
        rig.entry(CELL, 1, 1, b"entry");
        rig.disk.settle(&mut rig.log, &mut rig.random);
        assert!(matches!(rig.log.failure(), Some(Failure::Disk { error: DiskError::Io(_), .. })));
        let durable = rig.log.durable();
        let refused = rig.log.append(CELL, RecordKind::Entry, Term(1), LogIndex(2), b"");
        assert_eq!(refused, Err(AppendRefusal::Failed));
        rig.disk.settle(&mut rig.log, &mut rig.random);
        assert_eq!(rig.log.poll_op(), None);
        assert_eq!(rig.log.durable(), durable);
    }
}

#[test]
fn a_failed_commit_is_not_reported_durable() {
    let mut rig = Rig::new(1);
    rig.settle();
    rig.disk.schedule(Fault::WriteError);
    rig.entry(CELL, 1, 1, b"entry");
    rig.disk.settle(&mut rig.log, &mut rig.random);
    assert_eq!(rig.log.durable(), Lsn(0));
    assert!(rig.log.failure().unwrap().to_string().contains("shard-00000.00000000000000000001.wal"));
}
