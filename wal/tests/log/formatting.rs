//! A directory is formatted once, belongs to one node, and says so.

use lockstep_wal::disk::{DiskError, FileName, SegmentSequence, ShardId, Storage, StorageRead};
use lockstep_wal::layout::BLOCK_BYTES;
use lockstep_wal::memory::{MemoryDisk, Random};
use lockstep_wal::{Log, Refusal, Superblock, claim, format};
use lockstep_wire::{CellId, Incarnation, LogIndex, NodeId};

use crate::rig::{CELL, Rig, SHARD, segment, superblock};

fn formatted() -> MemoryDisk {
    let mut disk = MemoryDisk::new();
    format(&mut disk, &superblock()).unwrap();
    disk
}

#[test]
fn a_formatted_directory_says_whose_it_is() {
    assert_eq!(claim(&mut formatted()), Ok(superblock()));
    assert_eq!(claim(&mut MemoryDisk::new()), Err(Refusal::NotFormatted));
}

#[test]
fn a_formatted_directory_is_never_formatted_again() {
    let mut disk = formatted();
    let other = Superblock { incarnation: Incarnation([9; 16]), ..superblock() };
    assert_eq!(format(&mut disk, &other), Err(Refusal::AlreadyFormatted { file: FileName::Superblock }));
    assert_eq!(claim(&mut disk), Ok(superblock()));
    // Nor is one that lost its superblock but holds a log.
    disk.remove(FileName::Superblock).unwrap();
    assert_eq!(format(&mut disk, &other), Err(Refusal::AlreadyFormatted { file: segment(1) }));
}

#[test]
fn formatting_interrupted_anywhere_is_either_done_or_can_be_done_again() {
    let two_shards = Superblock { shards: 2, ..superblock() };
    let mut finished = 0;
    for changes in 0..40 {
        for seed in 0..8 {
            let mut random = Random::new(seed);
            let mut disk = MemoryDisk::new();
            disk.stop_after(changes);
            let whole = format(&mut disk, &two_shards).is_ok();
            disk.lose_power(&mut random);
            match claim(&mut disk) {
                Ok(found) => assert_eq!(found, two_shards),
                Err(refusal) => {
                    assert!(!whole, "finished formatting is durable");
                    assert_eq!(refusal, Refusal::NotFormatted);
                    format(&mut disk, &two_shards).unwrap();
                }
            }
            for shard in [ShardId(0), ShardId(1)] {
                Log::open(&mut disk, &two_shards, shard, 1, &mut |_, _| {}).unwrap();
            }
            let refused = format(&mut disk, &two_shards);
            assert!(matches!(refused, Err(Refusal::AlreadyFormatted { .. })));
            finished += u32::from(whole);
        }
    }
    assert!(finished > 0, "forty changes are enough to finish");
}

#[test]
fn a_directory_in_use_is_neither_claimed_nor_formatted() {
    let mut disk = formatted();
    disk.set_locked_elsewhere(true);
    let refused = Refusal::Disk { file: Some(FileName::Lock), error: DiskError::Locked };
    assert_eq!(claim(&mut disk), Err(refused));
    assert_eq!(format(&mut disk, &superblock()), Err(refused));
    assert!(refused.to_string().contains("in use by another process"));
}

#[test]
fn no_segment_at_all_after_formatting_is_refused() {
    let mut disk = formatted();
    disk.remove(segment(1)).unwrap();
    let refused =
        Log::open(&mut disk, &superblock(), SHARD, 1, &mut |_, _| {}).expect_err("nothing is there");
    assert_eq!(refused, Refusal::NoSegments { shard: SHARD });
}

#[test]
fn a_foreign_segment_is_refused() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=1, 100);
    let elsewhere = Superblock { incarnation: Incarnation([8; 16]), ..superblock() };
    let refused =
        Log::open(&mut rig.disk, &elsewhere, SHARD, 1, &mut |_, _| {}).expect_err("another life's log");
    assert_eq!(refused, Refusal::SegmentHeaderless { file: segment(1) });
}

#[test]
fn one_good_copy_of_the_superblock_is_enough() {
    for copy in [0, 1] {
        for byte in [0, 9, 13, 20, 40, 48, 50, 57, 3_000] {
            let mut disk = formatted();
            disk.rot(FileName::Superblock, copy * BLOCK_BYTES as u64 + byte, 0x20);
            assert_eq!(claim(&mut disk), Ok(superblock()));
            let damaged = usize::try_from(copy).expect("there are two copies");
            assert_eq!(Superblock::damaged_copy(&mut disk), Ok(Some(damaged)), "it is told which is not");
        }
    }
    assert_eq!(Superblock::damaged_copy(&mut formatted()), Ok(None));
}

#[test]
fn two_damaged_copies_are_refused() {
    let mut disk = formatted();
    disk.rot(FileName::Superblock, 20, 0x01);
    disk.rot(FileName::Superblock, BLOCK_BYTES as u64 + 20, 0x01);
    assert_eq!(claim(&mut disk), Err(Refusal::SuperblockDamaged));
}

#[test]
fn two_good_copies_that_differ_are_refused() {
    let mut disk = formatted();
    let mut other = MemoryDisk::new();
    format(&mut other, &Superblock { node: NodeId(77), ..superblock() }).unwrap();
    let mut copy = vec![0; BLOCK_BYTES];
    other.read(FileName::Superblock, 0, &mut copy).unwrap();
    disk.write_durable(FileName::Superblock, BLOCK_BYTES as u64, &copy).unwrap();
    assert_eq!(claim(&mut disk), Err(Refusal::SuperblocksDiffer));
}

#[test]
fn file_names_read_back_as_written_and_only_so() {
    let names = [
        FileName::Superblock,
        FileName::SuperblockStaging,
        FileName::Lock,
        FileName::FormatMark,
        FileName::Staging { shard: ShardId(11) },
        FileName::Segment { shard: ShardId(11), sequence: SegmentSequence(u64::MAX) },
        FileName::SnapshotStaging { cell: CellId(11) },
        FileName::Snapshot { cell: CellId(u16::MAX), index: LogIndex(u64::MAX) },
    ];
    for name in names {
        assert_eq!(FileName::parse(&name.to_string()), Some(name));
    }
    for foreign in [
        "",
        "lost+found",
        "shard-0.1.wal",
        "shard-00000.00000000000000000001.wal.bak",
        "shard-00000.",
        "cell-3.staging",
        "cell-00003.7.snapshot",
        "cell-00003.00000000000000000007.wal",
        "cell-00003",
    ] {
        assert_eq!(FileName::parse(foreign), None, "{foreign}");
    }
}
