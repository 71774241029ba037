//! The bytes of a batch: pinned, verified, and never a panic.

use expect_test::expect;
use lockstep_wire::{CellId, LogIndex, RecordKind, Term};
use proptest::prelude::*;

use super::*;
use crate::layout::PAYLOAD_BYTES_MAX;

fn header(record_count: u32, record_bytes: u32) -> BatchHeader {
    BatchHeader {
        segment: SegmentSequence(5),
        sequence: 6,
        first_lsn: Lsn(7),
        salt: 0x8899,
        previous_checksum: 0xaabb,
        record_count,
        record_bytes,
        oldest_needed: SegmentSequence(4),
        seals: None,
    }
}

/// One batch with these payloads as entries 1, 2, ...
fn batch_of(payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut records = Vec::new();
    for (index, payload) in (1..).zip(payloads) {
        let record = Record {
            cell: CellId(9),
            kind: RecordKind::Entry,
            term: Term(2),
            index: LogIndex(index),
            payload,
        };
        record.encode(&mut records);
    }
    let mut extent = vec![0xee; crate::bytes::blocks_up(BATCH_HEADER_BYTES + records.len())];
    extent[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + records.len()].copy_from_slice(&records);
    header(length_u32(payloads.len()), length_u32(records.len())).encode(&mut extent);
    extent
}

#[test]
fn the_bytes_of_a_batch_are_pinned() {
    let batch = batch_of(&[b"lock".to_vec(), b"".to_vec()]);
    let used = &batch[..BATCH_HEADER_BYTES + 2 * RECORD_HEADER_BYTES + 4];
    let lines: Vec<String> =
        used.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    expect![[r#"
        4c4b5354504241548f36df7a00100000
        05000000000000000600000000000000
        07000000000000009988000000000000
        bbaa0000020000000400000000000000
        00000000000000003400000000000000
        04000000090001000200000000000000
        01000000000000006c6f636b00000000
        09000100020000000000000002000000
        00000000
    "#]]
    .assert_eq(&(lines.join("\n") + "\n"));
    assert!(batch[used.len()..].iter().all(|byte| *byte == 0), "the rest of the block is blank");
}

#[test]
fn any_flipped_bit_of_a_batch_breaks_it() {
    let batch = batch_of(&[vec![0x5a; 3_000], vec![1, 2, 3]]);
    assert!(Batch::verify(&batch, SegmentSequence(5)).is_some_and(|batch| batch.is_well_formed()));
    for at in 0..batch.len() {
        let mut broken = batch.clone();
        broken[at] ^= 1 << (at % 8);
        assert!(Batch::verify(&broken, SegmentSequence(5)).is_none(), "byte {at}");
    }
}

#[test]
fn a_batch_of_another_segment_does_not_verify() {
    let batch = batch_of(&[vec![1]]);
    assert!(Batch::verify(&batch, SegmentSequence(6)).is_none());
}

#[test]
fn a_largest_record_fits_a_batch_and_a_prefix_never_exceeds_one() {
    let mut staged = Vec::new();
    for index in 1..=4 {
        let payload = vec![0; PAYLOAD_BYTES_MAX];
        let record = Record {
            cell: CellId(1),
            kind: RecordKind::Entry,
            term: Term(1),
            index: LogIndex(index),
            payload: &payload,
        };
        record.encode(&mut staged);
    }
    assert_eq!(prefix_that_fits(&staged), (1, RECORD_HEADER_BYTES + PAYLOAD_BYTES_MAX));
    assert_eq!(prefix_that_fits(&[]), (0, 0));
}

#[test]
fn a_truncation_goes_into_the_batch_of_the_record_after_it() {
    let truncation = |cell, staged: &mut Vec<u8>| {
        let (term, index) = (Term(1), LogIndex(1));
        Record { cell: CellId(cell), kind: RecordKind::Truncate, term, index, payload: b"" }.encode(staged);
    };
    let entry = |bytes, staged: &mut Vec<u8>| {
        let payload = &vec![0; bytes][..];
        let (term, index) = (Term(1), LogIndex(1));
        Record { cell: CellId(1), kind: RecordKind::Entry, term, index, payload }.encode(staged);
    };
    let header = RECORD_HEADER_BYTES;
    for left in 0..3 * header + 20 {
        let mut staged = Vec::new();
        let filling = BATCH_BYTES_MAX - BATCH_HEADER_BYTES - left - 2 * header;
        entry(PAYLOAD_BYTES_MAX, &mut staged);
        entry(filling - PAYLOAD_BYTES_MAX, &mut staged);
        let before = staged.len();
        assert_eq!(before, BATCH_BYTES_MAX - BATCH_HEADER_BYTES - left);
        truncation(1, &mut staged);
        truncation(2, &mut staged);
        entry(10, &mut staged);
        let all = before + 3 * header + 10;
        let expected = if left >= 3 * header + 10 { (5, all) } else { (2, before) };
        assert_eq!(prefix_that_fits(&staged), expected, "{left} bytes are left");
        // At the end of what is staged there is nothing to wait for.
        staged.truncate(before + 2 * header);
        let expected = if left >= 2 * header { (4, staged.len()) } else { (2, before) };
        assert_eq!(prefix_that_fits(&staged), expected, "{left} bytes are left");
    }
    let mut staged = Vec::new();
    (0..20_000).for_each(|_| truncation(1, &mut staged));
    let most = (BATCH_BYTES_MAX - BATCH_HEADER_BYTES) / header;
    assert_eq!(prefix_that_fits(&staged), (length_u32(most), most * header));
}

proptest! {
    #[test]
    fn what_was_encoded_is_decoded(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2_000), 0..40)) {
        let bytes = batch_of(&payloads);
        let batch = Batch::verify(&bytes, SegmentSequence(5)).expect("what was encoded verifies");
        prop_assert!(batch.is_well_formed());
        prop_assert_eq!(batch.header.record_count as usize, payloads.len());
        let decoded: Vec<_> = batch.records().map(|(lsn, record)| (lsn.0, record.payload.to_vec())).collect();
        let expected: Vec<_> = (7..).zip(payloads).collect();
        prop_assert_eq!(decoded, expected);
    }

    #[test]
    fn verifying_and_decoding_any_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..9_000)) {
        let _ = Record::decode(&bytes);
        let _ = Batch::verify(&bytes, SegmentSequence(5));
    }
}
