//! The log's drivers on a real file system.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockstep_ring::storage::{DataDirectory, LogDisk};
use lockstep_ring::{Ring, Token};
use lockstep_wal::disk::{
    Action, DiskError, DiskOp, FileName, Lane, OpId, SegmentSequence, ShardId, Storage, StorageRead,
};
use lockstep_wire::{CellId, LogIndex};

use crate::{directory, run_until, small_ring};

const SHARD: ShardId = ShardId(0);
const STAGING: FileName = FileName::Staging { shard: SHARD };
const SEGMENT: FileName = FileName::Segment { shard: SHARD, sequence: SegmentSequence(1) };

#[test]
fn what_is_written_durably_is_listed_read_moved_and_removed() {
    let directory = directory();
    let mut storage = DataDirectory::open(directory.path()).expect("opens");
    std::fs::write(directory.path().join("foreign"), b"not ours").expect("writes");
    storage.create(STAGING).expect("created");
    assert_eq!(storage.create(STAGING), Err(DiskError::AlreadyExists));
    let bytes: Vec<u8> = (0..600_u32 * 1024).map(|n| u8::try_from(n % 251).expect("a byte")).collect();
    // The length is in whole blocks, the memory starts anywhere.
    storage.write_durable(STAGING, 4096, &bytes[1024 + 3..1024 + 3 + 143 * 4096]).expect("written");
    storage.sync_directory().expect("synced");
    storage.rename(STAGING, SEGMENT).expect("renamed");
    assert_eq!(storage.list(), Ok(vec![(SEGMENT, 144 * 4096)]));

    let mut again = DataDirectory::open(directory.path()).expect("opens");
    let mut read = vec![0; 144 * 4096];
    again.read(SEGMENT, 0, &mut read).expect("read");
    assert!(read[..4096].iter().all(|byte| *byte == 0));
    assert!(read[4096..] == bytes[1024 + 3..1024 + 3 + 143 * 4096]);
    assert_eq!(again.read(SEGMENT, 143 * 4096, &mut read[..8192]), Err(DiskError::EndOfFile));
    assert_eq!(again.read(STAGING, 0, &mut read[..4096]), Err(DiskError::NotFound));
    again.remove(SEGMENT).expect("removed");
    assert_eq!(again.read(SEGMENT, 0, &mut read[..4096]), Err(DiskError::NotFound));
    assert_eq!(again.list(), Ok(vec![]));
    assert!(again.free_bytes().expect("known") > 0);
}

#[test]
fn directory_in_use_is_refused_within_two_seconds_and_free_again_with_its_owner() {
    let directory = directory();
    let mut owner = DataDirectory::open(directory.path()).expect("opens");
    owner.lock().expect("locked");
    owner.lock().expect("held by this handle already");
    let mut second = DataDirectory::open(directory.path()).expect("opens");
    let started = Instant::now();
    assert_eq!(second.lock(), Err(DiskError::Locked));
    assert!(started.elapsed() < Duration::from_secs(2));
    drop(owner);
    second.lock().expect("free again");
}

#[test]
fn lock_is_taken_when_its_owner_goes_a_moment_later() {
    let directory = directory();
    let mut owner = DataDirectory::open(directory.path()).expect("opens");
    owner.lock().expect("locked");
    let mut second = DataDirectory::open(directory.path()).expect("opens");
    let leaving = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        drop(owner);
    });
    second.lock().expect("waited for");
    leaving.join().expect("left");
}

/// Carries out one operation and returns what was read.
fn carry_out(
    ring: &Ring,
    disk: &mut LogDisk,
    lane: Lane,
    action: Action,
    fill: u8,
) -> Result<Vec<u8>, DiskError> {
    let id = OpId(u64::from(fill) + 77);
    disk.start(ring, DiskOp { id, lane, action }, |bytes| bytes.fill(fill));
    assert!(disk.is_busy(lane));
    let result = run_until(ring, |ring, completion| {
        let mut outcome = None;
        disk.on_completion(ring, completion, |done| {
            assert_eq!(done.op, id);
            outcome = Some(done.result.map(<[u8]>::to_vec));
        });
        outcome
    });
    assert!(!disk.is_busy(lane));
    result
}

#[test]
fn segment_is_prepared_written_read_and_removed_through_the_ring() {
    let ring = small_ring();
    let directory = directory();
    let mut disk = LogDisk::new(&ring, directory.path(), Token(500)).expect("a driver");
    let nothing = Ok(Vec::new());
    let piece = 256 * 1024;
    let background = [
        Action::Create { file: STAGING },
        Action::WriteZeros { file: STAGING, offset: 0, len: piece },
        Action::WriteZeros { file: STAGING, offset: piece as u64, len: piece },
        Action::Sync { file: STAGING },
        Action::Rename { from: STAGING, to: SEGMENT },
        Action::SyncDirectory,
        Action::Write { file: SEGMENT, offset: 0, len: 4096 },
    ];
    for action in background {
        assert_eq!(carry_out(&ring, &mut disk, Lane::Background, action, 1), nothing, "{action:?}");
    }
    assert_eq!(
        std::fs::metadata(directory.path().join(SEGMENT.to_string())).expect("exists").len(),
        2 * piece as u64
    );
    let batch = Action::Write { file: SEGMENT, offset: 4096, len: 12_288 };
    assert_eq!(carry_out(&ring, &mut disk, Lane::Commit, batch, 9), nothing);
    let read = Action::Read { file: SEGMENT, offset: 0, len: 20_480 };
    let bytes = carry_out(&ring, &mut disk, Lane::Read, read, 0).expect("read");
    assert!(bytes[..4096].iter().all(|byte| *byte == 1));
    assert!(bytes[4096..16_384].iter().all(|byte| *byte == 9));
    assert!(bytes[16_384..].iter().all(|byte| *byte == 0));
    let past_end = Action::Read { file: SEGMENT, offset: 2 * piece as u64 - 4096, len: 8192 };
    assert_eq!(carry_out(&ring, &mut disk, Lane::Read, past_end, 0), Err(DiskError::EndOfFile));
    let remove = Action::Remove { file: SEGMENT };
    assert_eq!(carry_out(&ring, &mut disk, Lane::Background, remove, 1), nothing);
    let absent = Action::Write { file: SEGMENT, offset: 0, len: 4096 };
    assert_eq!(carry_out(&ring, &mut disk, Lane::Commit, absent, 9), Err(DiskError::NotFound));
    // A driver that comes later opens what it finds.
    std::fs::write(directory.path().join(SEGMENT.to_string()), vec![5; 8192]).expect("writes");
    let mut later = LogDisk::new(&ring, directory.path(), Token(600)).expect("a driver");
    let read = Action::Read { file: SEGMENT, offset: 4096, len: 4096 };
    assert_eq!(carry_out(&ring, &mut later, Lane::Read, read, 0), Ok(vec![5; 4096]));
}

#[test]
fn snapshot_is_extended_piece_by_piece_and_replaces_one_of_its_name() {
    let ring = small_ring();
    let directory = directory();
    let mut disk = LogDisk::new(&ring, directory.path(), Token(500)).expect("a driver");
    let staging = FileName::SnapshotStaging { cell: CellId(3) };
    let snapshot = FileName::Snapshot { cell: CellId(3), index: LogIndex(9) };
    let stride = 128 * 1024;
    for fill in [1, 2] {
        let actions = [
            Action::Create { file: staging },
            Action::Extend { file: staging, offset: 0, len: stride },
            Action::Extend { file: staging, offset: stride as u64, len: 4096 },
            Action::Sync { file: staging },
            Action::Rename { from: staging, to: snapshot },
            Action::SyncDirectory,
        ];
        for action in actions {
            let done = carry_out(&ring, &mut disk, Lane::Snapshot, action, fill);
            assert_eq!(done, Ok(Vec::new()), "{action:?}");
        }
        let read = Action::Read { file: snapshot, offset: 0, len: stride + 4096 };
        let bytes = carry_out(&ring, &mut disk, Lane::Read, read, 0).expect("read");
        assert!(bytes.iter().all(|byte| *byte == fill));
    }
    let mut storage = DataDirectory::open(directory.path()).expect("opens");
    assert_eq!(storage.list(), Ok(vec![(snapshot, stride as u64 + 4096)]));
}

#[test]
fn files_that_another_shard_renames_and_removes_meanwhile_do_not_spoil_a_listing() {
    let directory = directory();
    let mut storage = DataDirectory::open(directory.path()).expect("opens");
    storage.create(SEGMENT).expect("created");
    let path = directory.path().to_owned();
    let is_over = Arc::new(AtomicBool::new(false));
    let other = std::thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            let shard = ShardId(1);
            let mut storage = DataDirectory::open(&path).expect("opens");
            let (staging, segment) =
                (FileName::Staging { shard }, FileName::Segment { shard, sequence: SegmentSequence(1) });
            while !is_over.load(Ordering::Relaxed) {
                storage.create(staging).expect("created");
                storage.rename(staging, segment).expect("renamed");
                storage.remove(segment).expect("removed");
            }
        }
    });
    let lists: Vec<_> = (0..20_000).map(|_| storage.list()).collect();
    is_over.store(true, Ordering::Relaxed);
    other.join().expect("the other shard goes on");
    for list in lists {
        assert!(list.expect("a listing").contains(&(SEGMENT, 0)), "its own files are always there");
    }
}
