//! A cell that is restored begins with its snapshot or not at all, wherever it is interrupted.

use lockstep_wal::disk::{DiskError, FileName, StorageRead};
use lockstep_wal::memory::{MemoryDisk, Random};
use lockstep_wal::{Failure, Log, RecordKind, SnapshotId, claim, encode_snapshot_piece, format};
use lockstep_wire::CellId;
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;

use crate::rig::{CELL, OTHER, Rig, SHARD, Seen, payload, pieces, snapshot_id, superblock};
use crate::snapshot::load;

fn stream(id: SnapshotId) -> Vec<u8> {
    payload(id.term.0, id.index.0, SNAPSHOT_PIECE_BYTES_MAX + 77)
}

/// What comes of a restore: why the disk stopped it, if it did.
fn restore(disk: &mut MemoryDisk, cell: CellId, id: SnapshotId) -> Result<(), String> {
    let superblock = claim(disk).map_err(|refusal| refusal.to_string())?;
    let opened = Log::open(disk, &superblock, SHARD, 5, &mut |_, _| {});
    let (mut log, _) = opened.map_err(|refusal| refusal.to_string())?;
    let stream = stream(id);
    let mut left = pieces(&stream).into_iter();
    let outcome = log.restore(disk, cell, id, &mut |out| {
        out.extend_from_slice(left.next().expect("no more is asked for"));
        left.len() == 0
    });
    outcome.map_err(|failure| failure.to_string())
}

fn formatted() -> MemoryDisk {
    let mut disk = MemoryDisk::new();
    format(&mut disk, &superblock()).unwrap();
    disk
}

/// A log on this disk.
fn rig(disk: MemoryDisk) -> (Rig, Vec<Seen>) {
    let mut rig = Rig { disk, ..Rig::new(1) };
    let seen = rig.reopen().expect("the log is whole");
    (rig, seen.into_iter().map(|(_, seen)| seen).collect())
}

fn snapshot_files(rig: &mut Rig) -> Vec<FileName> {
    let files = rig.disk.list().unwrap().into_iter().map(|(file, _)| file);
    files.filter(|file| matches!(file, FileName::Snapshot { .. })).collect()
}

#[test]
fn a_restored_cell_begins_with_its_snapshot_and_goes_on_behind_it() {
    let mut disk = formatted();
    let (id, other) = (snapshot_id(7, 4_000), snapshot_id(2, 30));
    restore(&mut disk, CELL, id).unwrap();
    restore(&mut disk, OTHER, other).unwrap();
    let (mut rig, seen) = rig(disk);
    let kinds: Vec<_> = seen.iter().map(|seen| (seen.cell, seen.kind, seen.term.0, seen.index.0)).collect();
    let (truncate, mark) = (RecordKind::Truncate, RecordKind::SnapshotMark);
    let wanted =
        [(CELL, truncate, 7, 1), (CELL, mark, 7, 4_000), (OTHER, truncate, 2, 1), (OTHER, mark, 2, 30)];
    assert_eq!(kinds, wanted);
    assert_eq!(rig.log.snapshots(CELL).collect::<Vec<_>>(), [id]);
    assert_eq!(load(&mut rig, CELL, id), Ok(stream(id)));
    rig.entries(CELL, 7, 4_001..=4_003, 100);
    rig.reopen().unwrap();
    assert_eq!(rig.read(CELL, 4_001, 4_003, 10_000), Some(vec![(7, 4_001), (7, 4_002), (7, 4_003)]));
}

#[test]
fn what_was_interrupted_anywhere_is_done_again_from_its_beginning() {
    let (first, second) = (snapshot_id(7, 4_000), snapshot_id(7, 4_100));
    let (mut changes, mut begun, mut not_begun) = (0, 0, 0);
    loop {
        let mut disk = formatted();
        disk.stop_after(changes);
        let outcome = restore(&mut disk, CELL, first);
        disk.lose_power(&mut Random::new(changes));
        let (mut interrupted, seen) = rig(disk);
        match seen[..] {
            // Also when it was not told so: the last write was done, and then nothing more.
            [_, _] => {
                begun += 1;
                assert_eq!(load(&mut interrupted, CELL, first), Ok(stream(first)), "after {changes} changes");
            }
            [] => {
                assert!(outcome.is_err(), "after {changes} changes it was said to be done");
                not_begun += 1;
                let mut disk = interrupted.disk;
                restore(&mut disk, CELL, second).unwrap();
                let (mut again, _) = rig(disk);
                assert_eq!(load(&mut again, CELL, second), Ok(stream(second)));
                // What the first one left goes with the next start.
                let file = FileName::Snapshot { cell: CELL, index: second.index };
                assert_eq!(snapshot_files(&mut again), [file], "after {changes} changes");
            }
            _ => panic!("half of it counts after {changes} changes: {seen:?}"),
        }
        if outcome.is_ok() {
            break;
        }
        changes += 1;
    }
    assert!(begun >= 1 && not_begun > 8, "{begun} begun, {not_begun} not");
}

#[test]
fn a_full_disk_is_told_and_leaves_no_record() {
    let mut disk = formatted();
    disk.set_capacity(disk.used_bytes() + 4_096);
    let full =
        Failure::Disk { file: Some(FileName::SnapshotStaging { cell: CELL }), error: DiskError::NoSpace };
    assert_eq!(restore(&mut disk, CELL, snapshot_id(7, 4_000)), Err(full.to_string()));
    let (mut rig, seen) = rig(disk);
    assert_eq!((seen, snapshot_files(&mut rig)), (vec![], vec![]));
}

/// A backup is such a file, wherever it lies.
#[test]
fn pieces_that_are_encoded_one_by_one_are_those_of_a_snapshots_file() {
    let id = snapshot_id(7, 4_000);
    let mut disk = formatted();
    restore(&mut disk, CELL, id).unwrap();
    let (file, bytes) = *disk
        .list()
        .unwrap()
        .iter()
        .find(|(file, _)| matches!(file, FileName::Snapshot { .. }))
        .expect("a snapshot was written");
    let mut written = vec![0; usize::try_from(bytes).unwrap()];
    disk.read(file, 0, &mut written).unwrap();
    let stream = stream(id);
    let (pieces, mut encoded) = (pieces(&stream), Vec::new());
    for (piece, bytes) in (0..).zip(&pieces) {
        let is_last = piece as usize + 1 == pieces.len();
        encode_snapshot_piece(CELL, id, piece, is_last, bytes, &mut encoded);
    }
    assert!(encoded == written);
    assert_eq!(lockstep_wal::claimed_snapshot(&encoded), Some((CELL, id)));
    assert_eq!(lockstep_wal::claimed_snapshot(&encoded[1..]), None);
    assert_eq!(lockstep_wal::claimed_snapshot(b"LKSTPSNP"), None);
}
