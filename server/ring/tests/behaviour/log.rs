//! A real log on real files through the ring: what it calls durable is there afterwards.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use lockstep_ring::storage::{DataDirectory, LogDisk};
use lockstep_ring::{Ring, Token};
use lockstep_wal::disk::{Action, DiskOp, FileName, Lane, OpId, ShardId};
use lockstep_wal::layout::{LIVE_SEGMENTS_MAX, SEGMENT_BYTES_MIN, SNAPSHOT_FILES_MAX, UNCOVERED_ENTRIES_MAX};
use lockstep_wal::{
    Log, Lsn, ReadOutcome, RecordKind, SnapshotDone, SnapshotId, SnapshotOutcome, Superblock, claim, format,
    load_snapshot,
};
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::{CellId, ClusterId, Incarnation, LogIndex, NodeId, Term};

use crate::{PATIENCE, directory, small_ring};

const CELL: CellId = CellId(3);
const SHARD: ShardId = ShardId(0);

fn formatted(path: &Path) {
    let superblock = Superblock {
        cluster: ClusterId([1; 16]),
        node: NodeId(1),
        incarnation: Incarnation([2; 16]),
        shards: 1,
        segment_bytes: SEGMENT_BYTES_MIN,
    };
    format(&mut DataDirectory::create(path).expect("a directory"), &superblock).expect("formatted");
}

/// Opens the log and returns the indexes and payloads that it still has.
fn recovered(path: &Path, salt: u64) -> (DataDirectory, Log, Vec<(LogIndex, Vec<u8>)>) {
    let mut storage = DataDirectory::open(path).expect("opens");
    let superblock = claim(&mut storage).expect("ours");
    let mut entries = Vec::new();
    let (log, _) = Log::open(&mut storage, &superblock, SHARD, salt, &mut |_, record| {
        if record.kind == RecordKind::Entry {
            entries.push((record.index, record.payload.to_vec()));
        }
    })
    .expect("recovers");
    (storage, log, entries)
}

fn payload(index: u64) -> Vec<u8> {
    let len = usize::try_from(index * 37 % 3000).expect("small");
    let byte = u8::try_from(index % 251).expect("a byte");
    vec![byte; len]
}

fn append(log: &mut Log, index: u64) -> Lsn {
    log.append(CELL, RecordKind::Entry, Term(1), LogIndex(index), &payload(index)).expect("appended")
}

/// One turn: starts what the log wants, waits, and answers it.
fn turn(ring: &Ring, disk: &mut LogDisk, log: &mut Log) {
    disk.start_all(ring, log);
    ring.submit_and_wait(Some(Duration::from_millis(50))).expect("a turn");
    for completion in ring.completions() {
        disk.on_completion(ring, completion, |done| log.on_disk_done(done));
    }
    assert_eq!(log.failure(), None);
}

fn run_until_log(ring: &Ring, disk: &mut LogDisk, log: &mut Log, mut is_done: impl FnMut(&mut Log) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_done(log) {
        assert!(Instant::now() < deadline, "what the test waits for has not happened");
        turn(ring, disk, log);
    }
}

/// What a snapshot through this entry says: a piece and a half.
fn snapshot(index: LogIndex) -> Vec<u8> {
    payload(index.0 | 1).into_iter().cycle().take(SNAPSHOT_PIECE_BYTES_MAX * 3 / 2).collect()
}

/// Writes a snapshot of two pieces; its mark is durable then.
fn take_snapshot(ring: &Ring, disk: &mut LogDisk, log: &mut Log, index: LogIndex) {
    let id = SnapshotId { index, term: Term(1) };
    let stream = snapshot(index);
    let (first, last) = stream.split_at(SNAPSHOT_PIECE_BYTES_MAX);
    let mut told = |log: &mut Log, outcome| {
        run_until_log(ring, disk, log, |log| {
            let done = log.poll_snapshot();
            assert!(done.is_none_or(|done| done == SnapshotDone { cell: CELL, id, outcome }), "{done:?}");
            done.is_some()
        });
    };
    log.begin_snapshot(CELL, id);
    log.write_snapshot(CELL, 0, false, first);
    told(log, SnapshotOutcome::Written { piece: 0 });
    log.write_snapshot(CELL, 1, true, last);
    told(log, SnapshotOutcome::Complete);
    let mark = log.append(CELL, RecordKind::SnapshotMark, id.term, id.index, &[]).expect("appended");
    run_until_log(ring, disk, log, |log| log.durable() >= mark);
}

#[test]
fn everything_durable_is_recovered_over_many_segments_and_starts() {
    let directory = directory();
    formatted(directory.path());
    let (mut next, mut snapshots) = (1, 0);
    for start in 0..4_u64 {
        let (mut storage, mut log, entries) = recovered(directory.path(), start);
        let first = entries.first().map_or(next, |(index, _)| index.0);
        for (entry, index) in entries.iter().zip(first..) {
            assert_eq!(*entry, (LogIndex(index), payload(index)));
        }
        assert_eq!(first + entries.len() as u64, next, "nothing durable is missing, nothing else is there");
        assert!(
            first <= log.snapshots(CELL).next().map_or(1, |id| id.index.0 + 1),
            "a snapshot covers the rest"
        );
        let ring = small_ring();
        let mut disk = LogDisk::new(&ring, directory.path(), Token(40)).expect("a driver");
        for round in 0..300 {
            let mut last = Lsn(0);
            for _ in 0..=round % 9 {
                last = append(&mut log, next);
                next += 1;
            }
            run_until_log(&ring, &mut disk, &mut log, |log| log.durable() >= last);
            // Old segments become free and are used again.
            let due = log.snapshots_due(UNCOVERED_ENTRIES_MAX).next();
            if let Some(due) = due {
                assert_eq!(due, CELL);
                take_snapshot(&ring, &mut disk, &mut log, LogIndex(next - 1));
            }
        }
        for id in log.snapshots(CELL).collect::<Vec<_>>() {
            let mut stream = Vec::new();
            load_snapshot(&mut storage, CELL, id, &mut |piece| stream.extend_from_slice(piece))
                .expect("whole");
            assert_eq!(stream, snapshot(id.index));
            snapshots += 1;
        }
        // Whatever the background lane is doing is cut off here.
    }
    assert!(next > 4500 && snapshots > 2, "{next} entries, {snapshots} snapshots");
    let segments = std::fs::read_dir(directory.path()).expect("lists").count();
    let files_max = usize::try_from(LIVE_SEGMENTS_MAX).expect("few") + 1 + SNAPSHOT_FILES_MAX + 3;
    assert!(segments <= files_max, "segments are recycled: {segments} files");
}

#[test]
fn log_dropped_in_the_middle_of_a_write_keeps_what_was_durable() {
    let directory = directory();
    formatted(directory.path());
    let (mut next, mut durable) = (1, 0);
    for start in 0..15_u64 {
        let (_storage, mut log, entries) = recovered(directory.path(), start);
        let last = entries.last().map_or(0, |(index, _)| index.0);
        assert!(last >= durable, "entry {durable} was durable, and the log ends at {last}");
        assert!(last < next, "the log holds only what was appended");
        for (index, (found, bytes)) in (1..).zip(&entries) {
            assert_eq!((found.0, bytes), (index, &payload(index)));
        }
        next = last + 1;
        let ring = small_ring();
        let mut disk = LogDisk::new(&ring, directory.path(), Token(40)).expect("a driver");
        for _ in 0..start + 3 {
            let lsn = append(&mut log, next);
            next += 1;
            run_until_log(&ring, &mut disk, &mut log, |log| log.durable() >= lsn);
        }
        durable = next - 1;
        for _ in 0..5 {
            append(&mut log, next);
            next += 1;
        }
        disk.start_all(&ring, &mut log);
        // The ring goes with the write queued; it may have happened or not.
        drop((ring, disk, log));
    }
}

#[test]
fn lagging_follower_is_read_for_from_older_segments_while_the_log_goes_on() {
    let directory = directory();
    formatted(directory.path());
    let (_storage, mut log, _) = recovered(directory.path(), 7);
    let ring = small_ring();
    let mut disk = LogDisk::new(&ring, directory.path(), Token(40)).expect("a driver");
    let mut last = Lsn(0);
    for index in 1..=1000 {
        last = append(&mut log, index);
    }
    run_until_log(&ring, &mut disk, &mut log, |log| log.durable() >= last);
    let mut from = 1;
    while from <= 1000 {
        let read = log.read(CELL, LogIndex(from), LogIndex(1000), 100_000).expect("room for a read");
        let (_, newest) = log.entries(CELL).expect("entries");
        let more = append(&mut log, newest.0 + 1);
        let mut done = None;
        run_until_log(&ring, &mut disk, &mut log, |log| {
            done = done.take().or_else(|| log.poll_read());
            done.is_some() && log.durable() >= more
        });
        let done = done.expect("read");
        assert_eq!(done.id, read);
        let ReadOutcome::Entries(entries) = done.outcome else { panic!("entry {from} is in the log") };
        assert!(!entries.is_empty());
        for entry in entries {
            assert_eq!((entry.index, entry.payload), (LogIndex(from), payload(from)));
            from += 1;
        }
    }
}

#[test]
fn what_a_removed_file_takes_is_freed_a_mib_at_a_time_and_its_name_is_gone_at_once() {
    let directory = directory();
    let ring = small_ring();
    let mut disk = LogDisk::new(&ring, directory.path(), Token(40)).expect("a driver");
    let file = FileName::Snapshot { cell: CELL, index: LogIndex(7) };
    let path = directory.path().join(file.to_string());
    std::fs::write(&path, vec![7; 3 * 1024 * 1024 + 4096]).expect("written");
    let watched = std::fs::File::open(&path).expect("opens");
    watched.sync_all().expect("synced");
    let taken = || watched.metadata().expect("it is open").blocks() * 512;
    let before = taken();
    disk.start(&ring, DiskOp { id: OpId(1), lane: Lane::Snapshot, action: Action::Remove { file } }, |_| {});
    let mut is_removed = false;
    let deadline = Instant::now() + PATIENCE;
    let mut turn = |disk: &mut LogDisk, is_over: &dyn Fn(&LogDisk, bool) -> bool| {
        while !is_over(disk, is_removed) {
            assert!(Instant::now() < deadline, "what the test waits for has not happened");
            ring.submit_and_wait(Some(Duration::from_millis(50))).expect("a turn");
            for completion in ring.completions() {
                disk.on_completion(&ring, completion, |done| is_removed = done.result == Ok(&[][..]));
            }
        }
    };
    turn(&mut disk, &|_, is_removed| is_removed);
    assert!(!path.exists());
    assert!(taken() >= before, "nothing is freed before somebody says so");
    for left in [2 * 1024 * 1024 + 4096, 1024 * 1024 + 4096, 4096] {
        disk.free_part(&ring);
        turn(&mut disk, &|disk, _| disk.has_to_free());
        // A file system may keep a few blocks for itself.
        assert!((left..left + 64 * 1024).contains(&taken()), "{} of {left}", taken());
    }
    disk.free_part(&ring);
    assert!(!disk.has_to_free(), "it is under way");
    turn(&mut disk, &|_, _| taken() == 0);
    assert!(!disk.has_to_free(), "nothing is left");
}
