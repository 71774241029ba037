//! Damage inside the log is refused by name, never cut; only a torn last write is cut.

use lockstep_wal::disk::{FileName, SegmentSequence, Storage, StorageRead};
use lockstep_wal::layout::{BATCH_BYTES_MAX, BLOCK_BYTES, SEGMENT_BYTES_MIN};
use lockstep_wal::memory::{Fault, FaultRates, Random};
use lockstep_wal::{Failure, Refusal};
use lockstep_wire::LogIndex;

use crate::rig::{CELL, Rig, SHARD, indexes, payload, segment};

const FIRST_BATCH: u64 = BLOCK_BYTES as u64;

/// Three segments and more, the cell's entries 1 to 200 in batches of two blocks each.
fn rotated() -> Rig {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=200, 6_000);
    assert!(rig.inspect().unwrap().newest.0 >= 3);
    rig
}

#[test]
fn a_bit_that_flips_in_a_settled_batch_is_always_refused_by_its_place() {
    let (mut batches, mut headers) = (0, 0);
    for seed in 1..=60 {
        let mut rig = rotated();
        let rot = rig.disk.rot_settled(SHARD, &mut Random::new(seed)).expect("there are settled batches");
        match (rot.extent, rig.reopen()) {
            (Some(offset), Err(Refusal::Rot(damage))) => {
                batches += 1;
                assert_eq!((damage.file, damage.offset), (rot.file, offset), "seed {seed}");
            }
            (None, Err(Refusal::SegmentHeaderless { file })) => assert_eq!(file, rot.file, "seed {seed}"),
            // A spare's header is made again, and one copy of the superblock is enough.
            (None, Ok(_)) => headers += 1,
            (_, outcome) => panic!("seed {seed}: {rot:?}: {outcome:?}"),
        }
    }
    assert!(batches > 30 && headers > 0, "{batches} batches, {headers} headers");
}

/// Every byte of the directory.
fn image(rig: &mut Rig) -> Vec<(FileName, Vec<u8>)> {
    let files = rig.disk.list().unwrap();
    files
        .into_iter()
        .map(|(file, bytes)| {
            let mut content = vec![0; usize::try_from(bytes).unwrap()];
            rig.disk.read(file, 0, &mut content).unwrap();
            (file, content)
        })
        .collect()
}

/// The log is refused, twice the same way, and nothing was changed by trying.
fn assert_refused(rig: &mut Rig) -> Refusal {
    let before = image(rig);
    let refusal = rig.reopen().expect_err("damage is refused");
    assert_eq!(image(rig), before, "a refusal changes nothing");
    assert_eq!(rig.inspect().expect_err("inspection sees it too"), refusal);
    refusal
}

#[test]
fn a_flipped_bit_in_the_first_segment_is_refused_naming_file_offset_cell_and_index() {
    let mut rig = rotated();
    // The third batch: entry 3.
    let offset = FIRST_BATCH + 2 * 8192;
    rig.disk.rot(segment(1), offset + 100, 0x10);
    let refusal = assert_refused(&mut rig);
    let Refusal::Rot(damage) = refusal else { panic!("{refusal:?}") };
    assert_eq!((damage.file, damage.offset), (segment(1), offset));
    assert_eq!(damage.after.map(|place| (place.cell, place.index)), Some((CELL, LogIndex(2))));
    assert_eq!(damage.before.map(|place| (place.cell, place.index)), Some((CELL, LogIndex(4))));
    let words = refusal.to_string();
    for part in ["shard-00000.00000000000000000001.wal", "offset 20480", "cell 3 index 2", "mend the disk"] {
        assert!(words.contains(part), "{words}");
    }
}

#[test]
fn a_flipped_bit_in_the_very_first_batch_names_what_follows() {
    let mut rig = rotated();
    rig.disk.rot(segment(1), FIRST_BATCH, 0x01);
    let Refusal::Rot(damage) = assert_refused(&mut rig) else { panic!() };
    assert_eq!((damage.offset, damage.after), (FIRST_BATCH, None));
    assert_eq!(damage.before.map(|place| place.index), Some(LogIndex(2)));
}

#[test]
fn a_flipped_bit_anywhere_in_a_middle_segment_is_refused() {
    let rig = rotated();
    for block in [0, 1, 2, 5, 40, 121, 122, 123] {
        for within in [0, 9, 13, 25, 60, 73, 90, 2_000, 4_095] {
            let mut rig = Rig { disk: rig.disk.clone(), ..Rig::new(1) };
            let offset = block * BLOCK_BYTES as u64 + within;
            if offset >= rig.log_end(2) {
                continue;
            }
            rig.disk.rot(segment(2), offset, 0x80);
            match assert_refused(&mut rig) {
                Refusal::Rot(damage) => {
                    assert_eq!(damage.file, segment(2));
                    assert!(damage.offset <= offset && offset < damage.offset + 8192);
                }
                Refusal::SegmentHeaderless { file } => assert!(file == segment(2) && block == 0),
                other => panic!("{other:?} at {offset}"),
            }
        }
    }
}

#[test]
fn a_flipped_bit_in_the_newest_segment_before_valid_batches_is_refused() {
    let mut rig = rotated();
    let newest = rig.inspect().unwrap();
    let file = FileName::Segment { shard: SHARD, sequence: newest.newest };
    rig.disk.rot(file, newest.end_offset - 2 * 8192 + 7_000, 0x04);
    let Refusal::Rot(damage) = assert_refused(&mut rig) else { panic!() };
    assert_eq!((damage.file, damage.offset), (file, newest.end_offset - 2 * 8192));
    assert_eq!(damage.before.map(|place| place.index), Some(LogIndex(200)));
}

#[test]
fn the_last_batch_alone_is_taken_for_a_torn_write_and_cut() {
    let mut rig = rotated();
    let found = rig.inspect().unwrap();
    let file = FileName::Segment { shard: SHARD, sequence: found.newest };
    rig.disk.rot(file, found.end_offset - 1_000, 0x04);
    assert!(rig.inspect().unwrap().is_torn);
    let seen = rig.reopen().unwrap();
    assert_eq!(*indexes(&seen, CELL).last().unwrap(), 199);
    let cut = found.end_offset - 8192;
    let mut behind = vec![1; BATCH_BYTES_MAX.min(usize::try_from(SEGMENT_BYTES_MIN - cut).unwrap())];
    rig.disk.read(file, cut, &mut behind).unwrap();
    assert!(behind.iter().all(|byte| *byte == 0), "the largest extent is blanked");
    rig.entries(CELL, 2, 200..=201, 50);
    assert_eq!(*indexes(&rig.reopen().unwrap(), CELL).last().unwrap(), 201);
}

#[test]
fn a_damaged_seal_with_a_written_segment_behind_it_is_rot() {
    let mut rig = rotated();
    let seal = rig.log_end(1) - BLOCK_BYTES as u64;
    rig.disk.rot(segment(1), seal + 64, 0x01);
    let Refusal::Rot(damage) = assert_refused(&mut rig) else { panic!() };
    assert_eq!((damage.file, damage.offset), (segment(1), seal));
}

#[test]
fn a_segment_that_is_sealed_to_but_headerless_is_refused() {
    let mut rig = rotated();
    rig.disk.rot(segment(3), 17, 0x01);
    assert_eq!(assert_refused(&mut rig), Refusal::SegmentHeaderless { file: segment(3) });
}

#[test]
fn a_first_segment_without_a_header_is_refused() {
    let mut rig = rotated();
    rig.disk.rot(segment(1), 17, 0x01);
    assert_eq!(assert_refused(&mut rig), Refusal::SegmentHeaderless { file: segment(1) });
}

#[test]
fn a_missing_segment_is_refused_be_it_the_first_a_middle_or_the_last() {
    let rig = rotated();
    let newest = Rig { disk: rig.disk.clone(), ..Rig::new(1) }.inspect().unwrap().newest;
    for missing in [SegmentSequence(1), SegmentSequence(2), newest] {
        let mut rig = Rig { disk: rig.disk.clone(), ..Rig::new(1) };
        let file = FileName::Segment { shard: SHARD, sequence: missing };
        rig.disk.remove(file).unwrap();
        assert_eq!(assert_refused(&mut rig), Refusal::SegmentMissing { file }, "{missing}");
    }
}

#[test]
fn the_only_segment_with_batches_is_missing_and_not_the_spare_behind_it_damaged() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=3, 100);
    assert!(rig.inspect().unwrap().spares > 0);
    rig.disk.remove(segment(1)).unwrap();
    assert_eq!(assert_refused(&mut rig), Refusal::SegmentMissing { file: segment(1) });
}

#[test]
fn a_cut_off_segment_is_refused() {
    let mut rig = rotated();
    let mut content = vec![0; 200 * 1024];
    rig.disk.read(segment(2), 0, &mut content).unwrap();
    rig.disk.remove(segment(2)).unwrap();
    rig.disk.create(segment(2)).unwrap();
    rig.disk.write_durable(segment(2), 0, &content).unwrap();
    assert_eq!(assert_refused(&mut rig), Refusal::SegmentLength { file: segment(2), bytes: 200 * 1024 });
}

#[test]
fn a_spare_with_a_damaged_header_is_mended_not_refused() {
    let mut rig = rotated();
    let newest = rig.inspect().unwrap().newest;
    let spare = FileName::Segment { shard: SHARD, sequence: newest.next() };
    rig.disk.rot(spare, 17, 0x01);
    let seen = rig.reopen().unwrap();
    assert_eq!(*indexes(&seen, CELL).last().unwrap(), 200);
    rig.entries(CELL, 1, 201..=400, 6_000);
    assert_eq!(indexes(&rig.reopen().unwrap(), CELL), (1..=400).collect::<Vec<_>>());
}

#[test]
fn a_write_that_the_disk_lost_is_found_at_the_next_start_once_anything_follows_it() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=5, 100);
    rig.disk.schedule(Fault::LostWrite);
    rig.entries(CELL, 1, 6..=8, 100);
    let Refusal::Rot(damage) = assert_refused(&mut rig) else { panic!() };
    assert_eq!(damage.after.map(|place| place.index), Some(LogIndex(5)));
    assert_eq!(damage.before.map(|place| place.index), Some(LogIndex(7)));
}

#[test]
fn a_misdirected_write_is_refused_be_it_forward_or_onto_older_batches() {
    for blocks in [-3, -1, 1, 9] {
        let mut rig = Rig::new(1);
        rig.entries(CELL, 1, 1..=5, 100);
        rig.disk.schedule(Fault::MisdirectedWrite { blocks });
        rig.entries(CELL, 1, 6..=8, 100);
        let refusal = assert_refused(&mut rig);
        assert!(matches!(refusal, Refusal::Rot(_) | Refusal::Foreign(_)), "{refusal:?}");
    }
}

#[test]
fn a_disk_that_loses_and_misplaces_writes_never_makes_the_log_invent_or_reorder_an_entry() {
    let mut refused = 0;
    for seed in 0..150 {
        let mut rig = Rig::new(seed);
        rig.settle();
        rig.disk.set_rates(FaultRates {
            lost_write_ppm: 10_000,
            misdirected_write_ppm: 10_000,
            ..FaultRates::default()
        });
        for index in 1..=60 {
            rig.entry(CELL, 1, index, &payload(1, index, 6_000));
            if rig.random.below(3) > 0 {
                rig.settle();
            }
        }
        rig.disk.lose_power(&mut rig.random);
        match rig.reopen() {
            Ok(seen) => {
                let found = indexes(&seen, CELL);
                assert_eq!(found, (1..=found.len() as u64).collect::<Vec<_>>());
                assert!(seen.iter().all(|(lsn, record)| record.payload == payload(1, lsn.0, 6_000)));
            }
            Err(refusal) => {
                assert!(!matches!(refusal, Refusal::Disk { .. } | Refusal::Contradiction(_)), "{refusal}");
                refused += 1;
            }
        }
    }
    assert!((10..140).contains(&refused), "both outcomes are reached: {refused}");
}

#[test]
fn a_stale_batch_copied_behind_the_tail_is_refused_as_foreign() {
    let mut rig = Rig::new(1);
    rig.entries(CELL, 1, 1..=5, 100);
    let end = rig.inspect().unwrap().end_offset;
    let mut batch = vec![0; BLOCK_BYTES];
    rig.disk.read(segment(1), FIRST_BATCH, &mut batch).unwrap();
    rig.disk.write_durable(segment(1), end, &batch).unwrap();
    let Refusal::Foreign(damage) = assert_refused(&mut rig) else { panic!() };
    assert_eq!(damage.offset, end);
}

#[test]
fn rot_under_a_read_stops_the_log() {
    let mut rig = rotated();
    rig.disk.rot(segment(1), FIRST_BATCH + 8192 + 200, 0x02);
    rig.log.read(CELL, LogIndex(2), LogIndex(9), 10_000).unwrap();
    rig.disk.settle(&mut rig.log, &mut rig.random);
    assert!(matches!(rig.log.failure(), Some(Failure::Damaged(damage)) if damage.file == segment(1)));
    assert_eq!(rig.log.poll_read(), None);
}

#[test]
fn rot_anywhere_never_loses_or_changes_an_entry_without_a_word() {
    let rig = rotated();
    for seed in 0..150 {
        let mut rig = Rig { disk: rig.disk.clone(), ..Rig::new(seed) };
        rig.disk.rot_anywhere(&mut rig.random).unwrap();
        // Flips in a spare or behind the tail harm nothing; one in the last batch looks like a torn write.
        if let Ok(seen) = rig.reopen() {
            let found = indexes(&seen, CELL);
            assert!(found.len() >= 199 && found == (1..=found.len() as u64).collect::<Vec<_>>());
            assert!(seen.iter().all(|(lsn, record)| record.payload == payload(1, lsn.0, 6_000)));
        }
    }
}

impl Rig {
    /// Where the batches of a sealed segment end.
    fn log_end(&mut self, sequence: u64) -> u64 {
        let mut content = vec![0; usize::try_from(SEGMENT_BYTES_MIN).unwrap()];
        self.disk.read(segment(sequence), 0, &mut content).unwrap();
        let last =
            content.rchunks(BLOCK_BYTES).position(|block| block.iter().any(|byte| *byte != 0)).unwrap();
        SEGMENT_BYTES_MIN - (last * BLOCK_BYTES) as u64
    }
}
