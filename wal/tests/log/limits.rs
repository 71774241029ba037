//! What is accepted replays; what cannot replay is not accepted.

use lockstep_wal::disk::Action;
use lockstep_wal::layout::{BATCH_BYTES_MAX, PAYLOAD_BYTES_MAX, SEGMENT_BYTES_MIN, STAGED_BYTES_MAX};
use lockstep_wal::memory::MemoryDisk;
use lockstep_wal::{AppendRefusal, Lsn, RecordKind, Refusal, Superblock, format};
use lockstep_wire::{LogIndex, Term};

use crate::rig::{CELL, OTHER, Rig, Seen, payload, superblock};

#[test]
fn payloads_up_to_the_limit_replay_and_longer_ones_are_refused() {
    let mut rig = Rig::new(1);
    let mut accepted = Vec::new();
    let lengths = [0, 1, PAYLOAD_BYTES_MAX - 1, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX + 1];
    for bytes in lengths.into_iter().chain([BATCH_BYTES_MAX, usize::try_from(SEGMENT_BYTES_MIN).unwrap() + 1])
    {
        let index = accepted.len() as u64 + 1;
        let content = payload(1, index, bytes);
        match rig.log.append(CELL, RecordKind::Entry, Term(1), LogIndex(index), &content) {
            Ok(_) => accepted.push(bytes),
            Err(refusal) => assert_eq!(refusal, AppendRefusal::PayloadTooLong { bytes }),
        }
    }
    assert_eq!(accepted, lengths[..4]);
    rig.settle();
    rig.disk.lose_power(&mut rig.random);
    let seen = rig.reopen().unwrap();
    assert_eq!(seen.iter().map(|(_, record)| record.payload.len()).collect::<Vec<_>>(), accepted);
    for (lsn, record) in seen {
        assert_eq!(record.payload, payload(1, lsn.0, record.payload.len()));
    }
}

#[test]
fn a_refused_record_changes_nothing() {
    let mut rig = Rig::new(1);
    rig.entry(CELL, 1, 1, b"one");
    let too_long = vec![0; PAYLOAD_BYTES_MAX + 1];
    assert!(rig.log.append(CELL, RecordKind::Truncate, Term(1), LogIndex(1), &too_long).is_err());
    assert_eq!(rig.entry(CELL, 1, 2, b"two"), Lsn(2));
    assert_eq!(rig.log.entries(CELL), Some((LogIndex(1), LogIndex(2))));
}

#[test]
fn records_of_any_mix_of_sizes_fill_batches_that_replay() {
    let mut rig = Rig::new(1);
    let mut expected = Vec::new();
    // All staged before the first batch: every batch is cut at the limit.
    for (at, bytes) in [PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX, 1, 4096, 131_000, 0, 77, 126_000, 4_000]
        .into_iter()
        .enumerate()
    {
        let index = at as u64 + 1;
        let lsn = rig.entry(CELL, 1, index, &payload(1, index, bytes));
        let record = Seen {
            cell: CELL,
            kind: RecordKind::Entry,
            term: Term(1),
            index: LogIndex(index),
            payload: payload(1, index, bytes),
        };
        expected.push((lsn, record));
    }
    rig.settle();
    rig.disk.lose_power(&mut rig.random);
    assert_eq!(rig.reopen().unwrap(), expected);
}

#[test]
fn staging_is_bounded_and_recovers_when_the_disk_catches_up() {
    let mut rig = Rig::new(1);
    let content = vec![7; PAYLOAD_BYTES_MAX];
    let mut index = 0;
    let refusal = loop {
        index += 1;
        if let Err(refusal) = rig.log.append(CELL, RecordKind::Entry, Term(1), LogIndex(index), &content) {
            break refusal;
        }
    };
    assert_eq!(refusal, AppendRefusal::StagingFull);
    assert!(rig.log.staged_bytes() <= STAGED_BYTES_MAX);
    rig.settle();
    assert_eq!(rig.log.staged_bytes(), 0);
    rig.entry(CELL, 1, index, &content);
}

#[test]
fn what_arrives_while_a_write_is_in_flight_rides_the_next_one_together() {
    let mut rig = Rig::new(1);
    rig.settle();
    rig.entry(CELL, 1, 1, b"first");
    let op = rig.log.poll_op().unwrap();
    let ticket = rig.disk.submit(&mut rig.log, op);
    for index in 1..=100 {
        rig.entry(OTHER, 1, index, b"rides along");
    }
    assert_eq!(rig.log.poll_op(), None, "one write is in flight at a time");
    assert_eq!(rig.log.durable(), Lsn(0));
    let completion = rig.disk.complete(ticket, &mut rig.random);
    rig.log.on_disk_done(completion.done());
    assert_eq!(rig.log.durable(), Lsn(1));
    let op = rig.log.poll_op().unwrap();
    assert!(matches!(op.action, Action::Write { .. }));
    let ticket = rig.disk.submit(&mut rig.log, op);
    let completion = rig.disk.complete(ticket, &mut rig.random);
    rig.log.on_disk_done(completion.done());
    assert_eq!(rig.log.durable(), Lsn(101), "a hundred records share one write");
}

#[test]
#[should_panic(expected = "does not follow")]
fn an_entry_that_leaves_a_gap_is_a_defect_of_the_caller() {
    let mut rig = Rig::new(1);
    rig.entry(CELL, 1, 1, b"");
    rig.entry(CELL, 1, 3, b"");
}

#[test]
fn a_geometry_in_which_a_batch_might_not_fit_is_not_formatted() {
    for segment_bytes in [0, SEGMENT_BYTES_MIN - 4096, SEGMENT_BYTES_MIN + 1, u64::MAX - 4095] {
        let refused = format(&mut MemoryDisk::new(), &Superblock { segment_bytes, ..superblock() });
        assert!(matches!(refused, Err(Refusal::BadGeometry { .. })), "{segment_bytes}");
    }
    let refused = format(&mut MemoryDisk::new(), &Superblock { shards: 0, ..superblock() });
    assert!(matches!(refused, Err(Refusal::BadGeometry { .. })));
}
