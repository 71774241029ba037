//! The bytes of a snapshot: canonical, verified piece by piece, refused by name.

use lockstep_wal::disk::{FileName, Storage, StorageRead};
use lockstep_wal::layout::{BLOCK_BYTES, SNAPSHOT_HEADER_BYTES, SNAPSHOT_STRIDE_BYTES};
use lockstep_wal::memory::Fault;
use lockstep_wal::{
    ReadOutcome, RecordKind, SnapshotId, SnapshotInspection, SnapshotRefusal, inspect_snapshot,
};
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::{CellId, LogIndex, Term};

use crate::rig::{CELL, OTHER, Rig, payload, snapshot_id};
use crate::snapshot::load;

const FILE: FileName = FileName::Snapshot { cell: CELL, index: LogIndex(3) };

fn id() -> SnapshotId {
    snapshot_id(1, 3)
}

/// A cell with a snapshot of so many bytes that counts.
fn written(bytes: usize) -> Rig {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=5, 100);
    rig.write_snapshot(CELL, id(), &payload(1, 3, bytes));
    rig.record(CELL, RecordKind::SnapshotMark, 1, 3, b"");
    rig.settle();
    rig
}

fn content(rig: &mut Rig, file: FileName) -> Vec<u8> {
    let (_, bytes) = rig.disk.list().unwrap().into_iter().find(|(found, _)| *found == file).unwrap();
    let mut content = vec![0; usize::try_from(bytes).unwrap()];
    rig.disk.read(file, 0, &mut content).unwrap();
    content
}

/// Puts a file of these bytes in place.
fn place(rig: &mut Rig, file: FileName, content: &[u8]) {
    let _ = rig.disk.remove(file);
    rig.disk.create(file).unwrap();
    rig.disk.write_durable(file, 0, content).unwrap();
}

#[test]
fn the_bytes_of_a_snapshot_are_pinned() {
    let mut rig = written(SNAPSHOT_PIECE_BYTES_MAX + 5);
    let content = content(&mut rig, FILE);
    assert_eq!(content.len(), SNAPSHOT_STRIDE_BYTES + BLOCK_BYTES);
    let stream = payload(1, 3, SNAPSHOT_PIECE_BYTES_MAX + 5);
    let header = |piece: usize| &content[piece * SNAPSHOT_STRIDE_BYTES..][..SNAPSHOT_HEADER_BYTES];
    let expected = |bytes: u32, is_last: u8, piece: u8| {
        let mut header = b"LKSTPSNP----".to_vec();
        header.extend_from_slice(&bytes.to_le_bytes());
        header.extend_from_slice(&[3, 0, is_last, 0, piece, 0, 0, 0]);
        header.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        header.resize(SNAPSHOT_HEADER_BYTES, 0);
        header
    };
    let full = u32::try_from(SNAPSHOT_PIECE_BYTES_MAX).unwrap();
    for (piece, expected) in [(0, expected(full, 0, 0)), (1, expected(5, 1, 1))] {
        assert_eq!((&header(piece)[..8], &header(piece)[12..]), (&expected[..8], &expected[12..]));
    }
    assert!(content[SNAPSHOT_HEADER_BYTES..SNAPSHOT_STRIDE_BYTES] == stream[..SNAPSHOT_PIECE_BYTES_MAX]);
    let last = &content[SNAPSHOT_STRIDE_BYTES + SNAPSHOT_HEADER_BYTES..];
    assert_eq!(last[..5], stream[SNAPSHOT_PIECE_BYTES_MAX..]);
    assert!(last[5..].iter().all(|byte| *byte == 0), "the rest of the block is blank");
}

#[test]
fn the_same_stream_gives_the_same_file_and_comes_back() {
    let full = SNAPSHOT_PIECE_BYTES_MAX;
    for bytes in [0, 1, BLOCK_BYTES - SNAPSHOT_HEADER_BYTES, full - 1, full, full + 1, 2 * full, 300_000] {
        let (mut rig, mut other) = (written(bytes), written(bytes));
        assert_eq!(load(&mut rig, CELL, id()), Ok(payload(1, 3, bytes)), "{bytes} bytes");
        assert!(content(&mut rig, FILE) == content(&mut other, FILE));
        rig.disk.lose_power(&mut rig.random);
        rig.reopen().unwrap();
        assert_eq!(load(&mut rig, CELL, id()), Ok(payload(1, 3, bytes)), "{bytes} bytes");
    }
}

#[test]
fn any_flipped_bit_is_refused_by_its_place() {
    let rig = written(SNAPSHOT_PIECE_BYTES_MAX + 3_000);
    let headers = (0..SNAPSHOT_HEADER_BYTES).chain(SNAPSHOT_STRIDE_BYTES..SNAPSHOT_STRIDE_BYTES + 64);
    let rest = (0..SNAPSHOT_STRIDE_BYTES + BLOCK_BYTES).step_by(1_237);
    for at in headers.chain(rest) {
        let mut rig = Rig { disk: rig.disk.clone(), ..Rig::new(1) };
        rig.disk.rot(FILE, at as u64, 1 << (at % 8));
        let offset = (at - at % SNAPSHOT_STRIDE_BYTES) as u64;
        let bytes = (SNAPSHOT_STRIDE_BYTES + BLOCK_BYTES) as u64;
        match load(&mut rig, CELL, id()) {
            Err(SnapshotRefusal::Damaged { file: FILE, offset: there }) => assert_eq!(there, offset, "{at}"),
            // The length that the header claims of its last piece is not there.
            Err(SnapshotRefusal::CutShort { file: FILE, bytes: end }) => {
                assert!(offset > 0 && at % SNAPSHOT_STRIDE_BYTES / 4 == 3 && end == bytes, "byte {at}");
            }
            outcome => panic!("byte {at}: {outcome:?}"),
        }
    }
}

#[test]
fn a_missing_file_a_missing_tail_and_another_snapshot_are_told_apart() {
    let mut rig = written(300_000);
    let whole = content(&mut rig, FILE);
    for blocks in 0..whole.len() / BLOCK_BYTES {
        let bytes = blocks * BLOCK_BYTES;
        place(&mut rig, FILE, &whole[..bytes]);
        let refused = SnapshotRefusal::CutShort { file: FILE, bytes: bytes as u64 };
        assert_eq!(load(&mut rig, CELL, id()), Err(refused));
        assert!(refused.to_string().contains("cell-00003.00000000000000000003.snapshot"));
    }
    let mut longer = whole.clone();
    longer.resize(whole.len() + BLOCK_BYTES, 0);
    place(&mut rig, FILE, &longer);
    let offset = 2 * SNAPSHOT_STRIDE_BYTES as u64;
    assert_eq!(load(&mut rig, CELL, id()), Err(SnapshotRefusal::Damaged { file: FILE, offset }));
    // A piece of the right snapshot in another's place.
    let mut swapped = whole.clone();
    swapped.copy_within(0..SNAPSHOT_STRIDE_BYTES, SNAPSHOT_STRIDE_BYTES);
    place(&mut rig, FILE, &swapped);
    let offset = SNAPSHOT_STRIDE_BYTES as u64;
    assert_eq!(load(&mut rig, CELL, id()), Err(SnapshotRefusal::Damaged { file: FILE, offset }));
    place(&mut rig, FILE, &whole);
    let others = [(OTHER, id()), (CELL, snapshot_id(1, 4)), (CELL, snapshot_id(2, 3))];
    for (cell, other) in others {
        let file = FileName::Snapshot { cell, index: other.index };
        place(&mut rig, file, &whole);
        let refused = SnapshotRefusal::Foreign { file, cell: CELL, id: id() };
        assert_eq!(load(&mut rig, cell, other), Err(refused));
    }
    rig.disk.remove(FILE).unwrap();
    assert_eq!(load(&mut rig, CELL, id()), Err(SnapshotRefusal::Missing { file: FILE }));
}

fn inspect(rig: &mut Rig, index: u64) -> (Result<SnapshotInspection, SnapshotRefusal>, Vec<u8>) {
    let mut stream = Vec::new();
    let visit = &mut |piece: &[u8]| stream.extend_from_slice(piece);
    (inspect_snapshot(&mut rig.disk, CELL, LogIndex(index), visit), stream)
}

#[test]
fn a_snapshot_says_its_term_to_whoever_knows_its_file_alone() {
    for term in [1, 9] {
        let mut rig = Rig::new(1);
        let id = snapshot_id(term, 3);
        rig.entries(CELL, term, 1..=5, 100);
        rig.write_snapshot(CELL, id, &payload(term, 3, 300_000));
        let bytes = content(&mut rig, FILE).len() as u64;
        let found = SnapshotInspection { id, bytes, pieces: 3 };
        assert_eq!(inspect(&mut rig, 3), (Ok(found), payload(term, 3, 300_000)));
    }
    // A second piece of another term, and a file under another one's name.
    let (mut rig, mut other) = (written(300_000), Rig::new(1));
    other.entries(CELL, 2, 1..=5, 100);
    other.write_snapshot(CELL, snapshot_id(2, 3), &payload(1, 3, 300_000));
    let (whole, foreign) = (content(&mut rig, FILE), content(&mut other, FILE));
    let mixed = [&whole[..SNAPSHOT_STRIDE_BYTES], &foreign[SNAPSHOT_STRIDE_BYTES..]].concat();
    place(&mut rig, FILE, &mixed);
    let refused = SnapshotRefusal::Foreign { file: FILE, cell: CELL, id: snapshot_id(2, 3) };
    assert_eq!(inspect(&mut rig, 3).0, Err(refused));
    let file = FileName::Snapshot { cell: CELL, index: LogIndex(4) };
    place(&mut rig, file, &whole);
    assert_eq!(inspect(&mut rig, 4).0, Err(SnapshotRefusal::Foreign { file, cell: CELL, id: id() }));
    assert_eq!(
        inspect(&mut rig, 5).0,
        Err(SnapshotRefusal::Missing { file: FileName::Snapshot { cell: CELL, index: LogIndex(5) } })
    );
}

#[test]
fn a_mark_whose_file_is_missing_still_counts() {
    let mut rig = written(10);
    rig.disk.remove(FILE).unwrap();
    rig.reopen().unwrap();
    assert_eq!(rig.log.snapshots(CELL).collect::<Vec<_>>(), [id()]);
    assert_eq!(load(&mut rig, CELL, id()), Err(SnapshotRefusal::Missing { file: FILE }));
    assert_eq!(read(&mut rig, CELL, id(), 0), ReadOutcome::NotThere);
}

/// Reads a piece, to the end.
fn read(rig: &mut Rig, cell: CellId, id: SnapshotId, piece: u32) -> ReadOutcome {
    let read = rig.log.read_snapshot(cell, id, piece).unwrap();
    rig.settle();
    let done = rig.log.poll_read().expect("a read finishes when everything is settled");
    assert_eq!((done.id, done.cell), (read, cell));
    done.outcome
}

#[test]
fn a_follower_is_read_the_snapshot_that_counts_piece_by_piece() {
    let mut rig = written(300_000);
    for _ in 0..2 {
        let mut stream = Vec::new();
        for piece in 0.. {
            let ReadOutcome::Piece { payload, is_last } = read(&mut rig, CELL, id(), piece) else {
                panic!("piece {piece}")
            };
            stream.extend_from_slice(&payload);
            if is_last {
                assert_eq!(piece, 2);
                break;
            }
        }
        assert!(stream == payload(1, 3, 300_000));
        let bytes = (2 * SNAPSHOT_STRIDE_BYTES + 40_960) as u64;
        let behind = SnapshotRefusal::CutShort { file: FILE, bytes };
        assert_eq!(read(&mut rig, CELL, id(), 3), ReadOutcome::BadPiece(behind));
        let other = SnapshotId { term: Term(9), ..id() };
        assert_eq!(read(&mut rig, CELL, other, 0), ReadOutcome::NotThere);
        assert_eq!(read(&mut rig, OTHER, id(), 0), ReadOutcome::NotThere);
        rig.disk.lose_power(&mut rig.random);
        rig.reopen().unwrap();
    }
    rig.write_snapshot(CELL, snapshot_id(1, 5), b"complete, without a mark");
    assert_eq!(read(&mut rig, CELL, snapshot_id(1, 5), 0), ReadOutcome::NotThere);
}

#[test]
fn a_piece_that_is_not_good_any_more_does_not_stop_the_log() {
    let mut rig = written(300_000);
    rig.disk.rot(FILE, SNAPSHOT_STRIDE_BYTES as u64 + 500, 4);
    let damaged = SnapshotRefusal::Damaged { file: FILE, offset: SNAPSHOT_STRIDE_BYTES as u64 };
    assert_eq!(read(&mut rig, CELL, id(), 1), ReadOutcome::BadPiece(damaged));
    assert!(matches!(read(&mut rig, CELL, id(), 0), ReadOutcome::Piece { .. }));
    rig.disk.schedule(Fault::ReadError);
    let outcome = read(&mut rig, CELL, id(), 0);
    assert!(matches!(outcome, ReadOutcome::BadPiece(SnapshotRefusal::Disk { .. })), "{outcome:?}");
    rig.entries(CELL, 1, 6..=6, 10);
}

#[test]
fn a_snapshot_stays_while_a_piece_of_it_is_read() {
    let mut rig = written(10);
    rig.snapshot(CELL, 1, 4);
    rig.write_snapshot(CELL, snapshot_id(1, 5), b"the third");
    let asked = rig.log.read_snapshot(CELL, id(), 0).unwrap();
    let op = rig.log.poll_op().unwrap();
    let reading = rig.disk.submit(&mut rig.log, op);
    let mark = rig.record(CELL, RecordKind::SnapshotMark, 1, 5, b"");
    while let Some(op) = rig.log.poll_op() {
        let ticket = rig.disk.submit(&mut rig.log, op);
        let completion = rig.disk.complete(ticket, &mut rig.random);
        rig.log.on_disk_done(completion.done());
    }
    assert!(rig.log.durable() >= mark);
    let is_there = |rig: &mut Rig| rig.disk.list().unwrap().iter().any(|(file, _)| *file == FILE);
    assert!(is_there(&mut rig));
    // It no longer counts for anybody who asks now.
    rig.log.read_snapshot(CELL, id(), 0).unwrap();
    let completion = rig.disk.complete(reading, &mut rig.random);
    rig.log.on_disk_done(completion.done());
    let done = rig.log.poll_read().unwrap();
    assert_eq!(done.id, asked);
    assert_eq!(done.outcome, ReadOutcome::Piece { payload: payload(1, 3, 10), is_last: true });
    rig.settle();
    assert_eq!(rig.log.poll_read().unwrap().outcome, ReadOutcome::NotThere);
    assert!(!is_there(&mut rig));
}
