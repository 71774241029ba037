//! The log's drivers on a real file system.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockstep_ring::storage::{DataDirectory, LogDisk, ReadOnlyDirectory};
use lockstep_ring::{Ring, Token};
use lockstep_wal::disk::{
    Action, DiskError, DiskOp, FileName, Lane, OpId, SegmentSequence, ShardId, Storage, StorageRead,
};
use lockstep_wal::layout::{BATCH_MAGIC, BLOCK_BYTES};
use lockstep_wal::{Refusal, Superblock};
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
fn whoever_looks_may_keep_nodes_away_and_makes_no_lock_file_for_it() {
    let directory = directory();
    let mut view = ReadOnlyDirectory::open(directory.path()).expect("opens");
    view.lock().expect("nobody has ever used it");
    assert_eq!(view.list(), Ok(vec![]));

    let mut node = DataDirectory::open(directory.path()).expect("opens");
    node.lock().expect("locked");
    assert_eq!(view.lock(), Err(DiskError::Locked));
    drop(node);
    view.lock().expect("free again");
    let mut next = DataDirectory::open(directory.path()).expect("opens");
    assert_eq!(next.lock(), Err(DiskError::Locked));
    drop(view);
    next.lock().expect("free again");
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

/// A shard of three segments, of which the second has been begun; blocks are filled with what tells them apart.
fn begun_segments(path: &std::path::Path) -> [FileName; 3] {
    let files = [1, 2, 3].map(|n| FileName::Segment { shard: SHARD, sequence: SegmentSequence(n) });
    let mut storage = DataDirectory::open(path).expect("opens");
    for (n, file) in (1_u8..).zip(files) {
        storage.create(file).expect("created");
        let mut bytes = vec![n; 4 * BLOCK_BYTES];
        if n < 3 {
            let head = &mut bytes[BLOCK_BYTES..];
            head[..8].copy_from_slice(&BATCH_MAGIC.to_le_bytes());
            head[12..16].copy_from_slice(&4096_u32.to_le_bytes());
            head[16..24].copy_from_slice(&u64::from(n).to_le_bytes());
        }
        storage.write_durable(file, 0, &bytes).expect("written");
    }
    files
}

#[test]
fn a_frozen_shard_is_read_as_it_was_beside_whoever_writes_it() {
    let directory = directory();
    let [sealed, tail, spare] = begun_segments(directory.path());
    let mut writer = DataDirectory::open(directory.path()).expect("opens");
    writer.lock().expect("locked");
    let mut view = ReadOnlyDirectory::open(directory.path()).expect("opens in spite of the lock");
    view.freeze(SHARD).expect("frozen");
    // The writer goes on: in the tail and the spare one, and the sealed one loses its name.
    writer.write_durable(tail, 3 * BLOCK_BYTES as u64, &[9; BLOCK_BYTES]).expect("written");
    writer.write_durable(spare, 0, &[9; BLOCK_BYTES]).expect("written");
    writer.remove(sealed).expect("removed");
    let mut read = vec![0; 2 * BLOCK_BYTES];
    for (file, n) in [(sealed, 1), (tail, 2), (spare, 3)] {
        view.read(file, 2 * BLOCK_BYTES as u64, &mut read).expect("read");
        assert!(read.iter().all(|byte| *byte == n), "{file} is not as it was");
        assert_eq!(
            view.read(file, 3 * BLOCK_BYTES as u64, &mut read),
            Err(match file {
                // Not in the map, and there is no such file any more.
                file if file == sealed => DiskError::NotFound,
                _ => DiskError::EndOfFile,
            })
        );
    }
    assert_eq!(view.list().expect("a listing").len(), 4, "three segments and the lock");
    view.freeze(SHARD).expect("frozen again");
    view.read(tail, 2 * BLOCK_BYTES as u64, &mut read).expect("read");
    assert!(
        read[..BLOCK_BYTES].iter().all(|byte| *byte == 2)
            && read[BLOCK_BYTES..].iter().all(|byte| *byte == 9)
    );
}

#[test]
fn a_frozen_snapshot_is_read_also_when_its_node_has_removed_it() {
    let directory = directory();
    let (cell, index) = (CellId(2), LogIndex(9));
    let file = FileName::Snapshot { cell, index };
    let mut writer = DataDirectory::open(directory.path()).expect("opens");
    let mut view = ReadOnlyDirectory::open(directory.path()).expect("opens");
    assert_eq!(view.freeze_snapshot(cell, index), Err(DiskError::NotFound));
    writer.create(file).expect("created");
    writer.write_durable(file, 0, &[7; 2 * BLOCK_BYTES]).expect("written");
    view.freeze_snapshot(cell, index).expect("frozen");
    writer.remove(file).expect("removed");
    let mut read = vec![0; BLOCK_BYTES];
    view.read(file, BLOCK_BYTES as u64, &mut read).expect("read");
    assert_eq!(read, [7; BLOCK_BYTES]);
    assert_eq!(view.list(), Ok(vec![(file, 2 * BLOCK_BYTES as u64)]));
    view.let_go();
    assert_eq!(view.list(), Ok(vec![]));
    assert_eq!(view.read(file, 0, &mut read), Err(DiskError::NotFound));
}

#[test]
fn a_mapped_file_that_is_cut_is_an_error_and_not_a_signal() {
    let directory = directory();
    let [sealed, ..] = begun_segments(directory.path());
    let mut view = ReadOnlyDirectory::open(directory.path()).expect("opens");
    view.freeze(SHARD).expect("frozen");
    let file = std::fs::OpenOptions::new().write(true).open(directory.path().join(sealed.to_string()));
    file.expect("opens").set_len(2 * BLOCK_BYTES as u64).expect("cut");
    let mut read = vec![0; BLOCK_BYTES];
    view.read(sealed, BLOCK_BYTES as u64, &mut read).expect("what is left can be read");
    assert_eq!(view.read(sealed, 2 * BLOCK_BYTES as u64, &mut read), Err(DiskError::EndOfFile));
}

#[test]
fn looking_at_a_directory_changes_nothing_in_it() {
    let directory = directory();
    begun_segments(directory.path());
    let shown = |path| {
        let mut files: Vec<_> = std::fs::read_dir(path)
            .expect("a directory")
            .map(|entry| entry.expect("an entry"))
            .map(|entry| (entry.file_name(), std::fs::read(entry.path()).expect("a file")))
            .collect();
        files.sort();
        files
    };
    let before = shown(directory.path());
    let mut view = ReadOnlyDirectory::open(directory.path()).expect("opens");
    view.freeze(SHARD).expect("frozen");
    assert_eq!(Superblock::load(&mut view), Err(Refusal::NotFormatted));
    assert!(shown(directory.path()) == before);
}
