//! Segments follow each other without a gap that power loss could fall into.

use lockstep_wal::disk::{Action, FileName, Lane};
use lockstep_wal::layout::{RETIRED_SEGMENTS_MAX, SNAPSHOT_SEGMENTS, SPARE_SEGMENTS, UNCOVERED_ENTRIES_MAX};
use lockstep_wal::{Lsn, RecordKind, SegmentInspection, SegmentState, sealed_segments};

use crate::rig::{CELL, OTHER, Rig, SHARD, indexes, payload, segment, snapshot_id};

/// Carries out one operation at a time and shows each to `watch` before.
fn settle_watched(rig: &mut Rig, mut watch: impl FnMut(&Rig, &Action, Lane)) {
    while let Some(op) = rig.log.poll_op() {
        watch(rig, &op.action, op.lane);
        let ticket = rig.disk.submit(&mut rig.log, op);
        let completion = rig.disk.complete(ticket, &mut rig.random);
        rig.log.on_disk_done(completion.done());
    }
}

#[test]
fn an_entry_acked_just_after_rotation_survives_power_loss_that_drops_unsynced_names() {
    for seed in 0..40 {
        let mut rig = Rig::new(seed);
        let mut index = 0;
        let newest = |rig: &mut Rig| rig.inspect().unwrap().newest.0;
        while newest(&mut rig) == 1 {
            index += 1;
            rig.entry(CELL, 1, index, &payload(1, index, 60_000));
            rig.settle();
        }
        rig.disk.lose_power(&mut rig.random);
        let seen = rig.reopen().unwrap();
        assert_eq!(indexes(&seen, CELL), (1..=index).collect::<Vec<_>>());
    }
}

#[test]
fn the_next_header_is_durable_and_its_directory_synced_before_the_seal() {
    let mut rig = Rig::new(1);
    let mut named = Vec::new();
    let mut synced = Vec::new();
    let mut headed = Vec::new();
    for index in 1..=40 {
        rig.entry(CELL, 1, index, &payload(1, index, 60_000));
        settle_watched(&mut rig, |_, action, lane| match *action {
            Action::Rename { to: FileName::Segment { sequence, .. }, .. } => named.push(sequence),
            Action::SyncDirectory => synced.append(&mut named),
            Action::Write { file: FileName::Segment { sequence, .. }, offset: 0, .. } => {
                assert!(synced.contains(&sequence), "a header is written under a durable name");
                headed.push(sequence);
            }
            Action::Write { file: FileName::Segment { sequence, .. }, .. } => {
                assert_eq!(lane, Lane::Commit);
                if sequence.0 > 1 {
                    assert!(headed.contains(&sequence), "batches go only where a header is");
                }
            }
            Action::Rename { .. }
            | Action::Write { .. }
            | Action::Create { .. }
            | Action::WriteZeros { .. }
            | Action::Extend { .. }
            | Action::Sync { .. }
            | Action::Remove { .. }
            | Action::Read { .. } => {}
        });
    }
    assert!(headed.len() > 5, "the log rotated");
}

#[test]
fn the_commit_lane_does_nothing_but_write() {
    let mut rig = Rig::new(1);
    for index in 1..=60 {
        rig.entry(CELL, 1, index, &payload(1, index, 60_000));
        if index % 5 == 0 {
            rig.snapshot(CELL, 1, index);
        }
        settle_watched(&mut rig, |_, action, lane| {
            let is_write = matches!(action, Action::Write { .. });
            assert!(lane != Lane::Commit || is_write, "{action:?}");
        });
    }
}

#[test]
fn released_segments_are_recycled_and_their_old_bytes_never_replay() {
    let mut rig = Rig::new(1);
    let mut creations = 0;
    for index in 1..=300 {
        rig.entry(CELL, 1, index, &payload(1, index, 20_000));
        settle_watched(&mut rig, |_, action, _| {
            creations += usize::from(matches!(action, Action::Create { file: FileName::Staging { .. } }))
        });
        rig.snapshot(CELL, 1, index);
        if index % 10 == 0 {
            rig.disk.lose_power(&mut rig.random);
            let seen = rig.reopen().unwrap();
            let found = indexes(&seen, CELL);
            assert_eq!(*found.last().unwrap(), index);
            assert!(found.windows(2).all(|pair| pair[0] + 1 == pair[1]), "no stale entry among {found:?}");
        }
    }
    let found = rig.inspect().unwrap();
    assert!(found.newest.0 > 8 && found.newest.0 - found.oldest.0 <= 2, "{found:?}");
    assert!(creations <= SPARE_SEGMENTS + 1, "recycling spares zero-filling: {creations} files were made");
}

#[test]
fn carried_records_outlive_the_segment_that_held_them() {
    let mut rig = Rig::new(1);
    rig.record(OTHER, RecordKind::Manifest, 0, 0, b"the only manifest");
    rig.record(OTHER, RecordKind::Born, 0, 0, b"");
    rig.record(OTHER, RecordKind::HardState, 4, 0, b"old vote");
    rig.record(OTHER, RecordKind::HardState, 5, 0, b"vote");
    rig.install(OTHER, 5, 17);
    for index in 1..=100 {
        rig.entry(CELL, 1, index, &payload(1, index, 60_000));
        rig.snapshot(CELL, 1, index);
        rig.settle();
    }
    assert!(rig.inspect().unwrap().oldest.0 > 3);
    rig.disk.lose_power(&mut rig.random);
    let seen = rig.reopen().unwrap();
    let newest = |kind| {
        let record = seen.iter().rev().find(|(_, record)| record.cell == OTHER && record.kind == kind);
        record.map(|(_, record)| (record.term.0, record.index.0, record.payload.as_slice()))
    };
    assert_eq!(newest(RecordKind::Manifest), Some((0, 0, b"the only manifest".as_slice())));
    assert_eq!(newest(RecordKind::Born), Some((0, 0, b"".as_slice())));
    assert_eq!(newest(RecordKind::HardState), Some((5, 0, b"vote".as_slice())));
    assert_eq!(newest(RecordKind::SnapshotMark), Some((5, 17, [0; 16].as_slice())));
    assert_eq!(rig.log.snapshots(OTHER).collect::<Vec<_>>(), [snapshot_id(5, 17)]);
}

#[test]
fn a_cell_without_a_snapshot_keeps_every_segment() {
    let mut rig = Rig::new(1);
    rig.entries(OTHER, 1, 1..=1, 100);
    let mut index = 1;
    while rig.inspect().unwrap().newest.0 <= 2 * SNAPSHOT_SEGMENTS + 2 {
        rig.entry(CELL, 1, index, &payload(1, index, 60_000));
        rig.snapshot(CELL, 1, index);
        rig.settle();
        index += 1;
    }
    assert_eq!(rig.inspect().unwrap().oldest.0, 1);
    assert_eq!(rig.log.snapshots_due(UNCOVERED_ENTRIES_MAX).next(), Some(OTHER));
    rig.snapshot(OTHER, 1, 1);
    rig.settle();
    let found = rig.inspect().unwrap();
    assert!(found.oldest.0 > 1);
    assert!(found.newest.0 - found.oldest.0 <= RETIRED_SEGMENTS_MAX as u64, "what nobody needs is bounded");
}

#[test]
fn inspection_says_what_each_segment_is_for_and_how_much_it_holds() {
    let mut rig = Rig::new(1);
    let fresh = rig.inspect().unwrap();
    assert_eq!(sealed_segments(&mut rig.disk, SHARD), Ok(vec![]), "the tail is never among the sealed");
    assert_eq!(fresh.segments[0].state, SegmentState::Tail);
    for index in 1..=20 {
        rig.entry(CELL, 1, index, &payload(1, index, 60_000));
        rig.settle();
    }
    let found = rig.inspect().unwrap();
    let (spares, written): (Vec<SegmentInspection>, Vec<_>) =
        found.segments.iter().copied().partition(|segment| segment.state == SegmentState::Spare);
    assert_eq!(spares.len(), found.spares);
    assert_eq!(written.iter().map(|segment| segment.records).sum::<u64>(), found.last_lsn.0);
    let (tail, sealed) = written.split_last().expect("a log has a segment");
    assert_eq!((tail.sequence, tail.state), (found.newest, SegmentState::Tail));
    assert_eq!(tail.end_offset, found.end_offset);
    assert!(sealed.iter().all(|segment| segment.state == SegmentState::Sealed), "{sealed:?}");
    assert!(sealed.iter().all(|segment| segment.batches == segment.records + 1), "each ends with a seal");
    let files = sealed_segments(&mut rig.disk, SHARD).expect("a sound disk");
    assert_eq!(files, sealed.iter().map(|walked| segment(walked.sequence.0)).collect::<Vec<_>>());
    // What nobody needs any more is retired from the batch that says so until it is renamed.
    rig.snapshot(CELL, 1, 20);
    let mut given_up = Vec::new();
    for index in 21..=60 {
        rig.entry(CELL, 1, index, &payload(1, index, 60_000));
        if index % 8 == 0 {
            rig.snapshot(CELL, 1, index);
        }
        settle_watched(&mut rig, |rig, action, _| {
            if let Action::Rename { from: from @ FileName::Segment { .. }, .. } = action {
                let found = Rig { disk: rig.disk.clone(), ..Rig::new(1) }.inspect().unwrap();
                let oldest = found.segments[0];
                given_up.push((*from == segment(oldest.sequence.0), oldest.state));
            }
        });
    }
    assert!(!given_up.is_empty(), "nothing was ever given up");
    assert!(given_up.iter().all(|seen| *seen == (true, SegmentState::Retired)), "{given_up:?}");
}

#[test]
fn lsns_go_on_after_a_restart() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=3, 10);
    rig.disk.kill(&mut rig.random);
    rig.reopen().unwrap();
    assert_eq!(rig.entry(CELL, 1, 4, b""), Lsn(4));
}

#[test]
fn a_kill_followed_by_power_loss_takes_back_nothing_that_recovery_showed() {
    for seed in 0..60 {
        let mut rig = Rig::new(seed);
        rig.settle();
        rig.entry(CELL, 1, 1, &payload(1, 1, 30_000));
        let op = rig.log.poll_op().unwrap();
        rig.disk.submit(&mut rig.log, op);
        rig.disk.kill(&mut rig.random);
        let shown = rig.reopen().unwrap();
        rig.disk.lose_power(&mut rig.random);
        assert_eq!(rig.reopen().unwrap(), shown);
    }
}

#[test]
fn a_torn_batch_is_blanked_so_that_a_shorter_one_in_its_place_is_not_followed_by_its_rest() {
    for seed in 0..60 {
        let mut rig = Rig::new(seed);
        rig.entries(CELL, 1, 1..=2, 5_000);
        for index in 3..=10 {
            rig.entry(CELL, 1, index, &payload(1, index, 20_000));
        }
        let op = rig.log.poll_op().unwrap();
        rig.disk.submit(&mut rig.log, op);
        rig.disk.lose_power(&mut rig.random);
        let seen = rig.reopen().unwrap();
        let last = *indexes(&seen, CELL).last().unwrap();
        assert!(last == 2 || last == 10, "a batch is there whole or not at all");
        rig.entries(CELL, 2, last + 1..=last + 1, 10);
        rig.disk.lose_power(&mut rig.random);
        assert_eq!(*indexes(&rig.reopen().unwrap(), CELL).last().unwrap(), last + 1);
    }
}

/// Carries out what the lane asks for until it asks for nothing more; the others hang.
fn settle_lane(rig: &mut Rig, lane: Lane) {
    loop {
        while let Some(op) = rig.log.poll_op() {
            rig.disk.submit(&mut rig.log, op);
        }
        let Some((ticket, _)) = rig.disk.pending().find(|(_, op)| op.lane == lane) else {
            return;
        };
        let completion = rig.disk.complete(ticket, &mut rig.random);
        rig.log.on_disk_done(completion.done());
    }
}

/// Carries out the commit in flight, if there is one.
fn finish_commit(rig: &mut Rig) {
    while let Some(op) = rig.log.poll_op() {
        rig.disk.submit(&mut rig.log, op);
    }
    let (ticket, _) =
        rig.disk.pending().find(|(_, op)| op.lane == Lane::Commit).expect("a commit is in flight");
    let completion = rig.disk.complete(ticket, &mut rig.random);
    rig.log.on_disk_done(completion.done());
}

/// The first segment almost full and all its entries released; the next batch, which is longer than its rest, is
/// staged with more behind it, so that the segment can go as soon as that batch is written.
fn about_to_leave_the_first_segment(seed: u64, vote: Option<&[u8]>) -> Rig {
    let mut rig = Rig::new(seed);
    if let Some(vote) = vote {
        rig.record(OTHER, RecordKind::HardState, 4, 0, vote);
    }
    rig.entries(CELL, 1, 1..=5, 60_000);
    assert_eq!((rig.log.spare_segments(), rig.inspect().unwrap().newest.0), (SPARE_SEGMENTS, 1));
    rig.snapshot(CELL, 1, 5);
    rig.entries(CELL, 1, 6..=6, 100);
    rig.snapshot(CELL, 1, 6);
    rig.settle();
    for index in 7..=11 {
        rig.entry(CELL, 1, index, &payload(1, index, 60_000));
    }
    rig
}

#[test]
fn a_segment_is_given_up_only_after_a_durable_batch_said_so() {
    for seed in 0..60 {
        let mut rig = about_to_leave_the_first_segment(seed, None);
        finish_commit(&mut rig);
        assert_eq!(rig.inspect().unwrap().newest.0, 2, "that was the seal");
        settle_lane(&mut rig, Lane::Background);
        rig.disk.lose_power(&mut rig.random);
        let seen = rig.reopen().unwrap_or_else(|refusal| panic!("seed {seed}: {refusal}"));
        assert_eq!(indexes(&seen, CELL)[..5], [1, 2, 3, 4, 5]);
    }
}

#[test]
fn an_older_vote_is_kept_until_the_newer_one_is_durable() {
    for seed in 0..60 {
        let mut rig = about_to_leave_the_first_segment(seed, Some(b"first vote"));
        rig.record(OTHER, RecordKind::HardState, 5, 0, b"second vote");
        finish_commit(&mut rig);
        assert_eq!(rig.inspect().unwrap().newest.0, 2, "that was the seal");
        finish_commit(&mut rig);
        assert!(rig.log.durable() < rig.log.appended(), "the second vote is not in the batch just written");
        settle_lane(&mut rig, Lane::Background);
        rig.disk.lose_power(&mut rig.random);
        let seen = rig.reopen().unwrap_or_else(|refusal| panic!("seed {seed}: {refusal}"));
        assert!(seen.iter().any(|(_, record)| record.kind == RecordKind::HardState), "seed {seed}");
    }
}
