//! The walk over bytes that no log wrote.

use lockstep_wire::{ClusterId, Incarnation, NodeId};

use super::*;
use crate::batch::BatchHeader;
use crate::bytes::{checksum_around, put};
use crate::disk::Storage;
use crate::layout::{BATCH_HEADER_BYTES, SEGMENT_BYTES_MIN};
use crate::memory::{MemoryDisk, Random};

fn superblock() -> Superblock {
    Superblock {
        cluster: ClusterId([1; 16]),
        node: NodeId(1),
        incarnation: Incarnation([2; 16]),
        shards: 1,
        segment_bytes: SEGMENT_BYTES_MIN,
    }
}

/// Numbers at which arithmetic goes wrong.
fn edge(random: &mut Random) -> u64 {
    match random.below(7) {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => u64::MAX,
        4 => u64::MAX - 1,
        5 => 1 << 48,
        _ => random.next_u64(),
    }
}

/// Batches whose checksums hold but whose fields and records are anything at all: only a defect, or somebody with
/// an editor, writes them. They are accepted or refused, but nothing panics.
#[test]
fn any_fields_under_a_good_checksum_are_accepted_or_refused_without_a_panic() {
    let superblock = superblock();
    let shard = ShardId(0);
    let mut formatted = MemoryDisk::new();
    crate::format(&mut formatted, &superblock).unwrap();
    let mut refused = 0;
    for seed in 0..3_000 {
        let mut random = Random::new(seed);
        let mut disk = formatted.clone();
        let mut extent = vec![0; 2 * BLOCK_BYTES];
        let mut previous_checksum = 0;
        let mut offset = BLOCK_BYTES as u64;
        for sequence in 1..=3 {
            let record_bytes = u32::try_from(random.below(300)).unwrap();
            let record_count = u32::try_from(random.below(4)).unwrap();
            for byte in &mut extent[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + 300] {
                *byte = if random.below(3) == 0 { u8::try_from(random.below(256)).unwrap() } else { 0 };
            }
            let record = Record {
                cell: lockstep_wire::CellId(0),
                kind: crate::RecordKind::Entry,
                term: lockstep_wire::Term(edge(&mut random)),
                index: lockstep_wire::LogIndex(edge(&mut random)),
                payload: b"",
            };
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            let is_whole = random.below(2) == 0;
            if is_whole {
                put(&mut extent, BATCH_HEADER_BYTES, &bytes);
            }
            let header = BatchHeader {
                segment: SegmentSequence(1),
                sequence: if random.below(4) == 0 { edge(&mut random) } else { sequence },
                first_lsn: Lsn(if random.below(4) == 0 { edge(&mut random) } else { sequence }),
                salt: 0,
                previous_checksum,
                record_count: if is_whole { 1 } else { record_count },
                record_bytes: if is_whole { crate::bytes::length_u32(bytes.len()) } else { record_bytes },
                oldest_needed: SegmentSequence(edge(&mut random)),
                seals: (random.below(4) == 0).then(|| SegmentSequence(edge(&mut random))),
            };
            header.encode(&mut extent);
            if random.below(4) == 0 {
                put(&mut extent, 72, &random.next_u64().to_le_bytes()[..4]);
            }
            previous_checksum = checksum_around(&extent, 8);
            put(&mut extent, 8, &previous_checksum.to_le_bytes());
            disk.write_durable(FileName::Segment { shard, sequence: SegmentSequence(1) }, offset, &extent)
                .unwrap();
            offset += extent.len() as u64;
        }
        refused += u32::from(scan(&mut disk, &superblock, shard, &mut |_, _| {}).is_err());
    }
    assert!(refused > 1_000 && refused < 3_000, "both sides are reached: {refused}");
}

#[test]
fn segments_full_of_noise_are_refused_without_a_panic() {
    let superblock = superblock();
    let shard = ShardId(0);
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut disk = MemoryDisk::new();
        crate::format(&mut disk, &superblock).unwrap();
        let noise: Vec<u8> = std::iter::repeat_with(|| random.next_u64().to_le_bytes())
            .flatten()
            .take(64 * BLOCK_BYTES)
            .collect();
        let file = FileName::Segment { shard, sequence: SegmentSequence(1) };
        disk.write_durable(file, 0, &noise).unwrap();
        let refused = scan(&mut disk, &superblock, shard, &mut |_, _| {}).expect_err("noise is no log");
        assert_eq!(refused, Refusal::SegmentHeaderless { file });
    }
}
