//! Who a data directory belongs to, and the header of a segment.
//!
//! Invariant: a superblock never changes after birth; one good copy of the two is enough, two good ones that
//! differ are a contradiction. Deliberately absent: anything that changes while a node runs.

use lockstep_wire::{ClusterId, Incarnation, NodeId};

use crate::bytes::{array, checksum_around, get_u16, get_u32, get_u64, put};
use crate::disk::{FileName, SegmentSequence, ShardId, StorageRead};
use crate::layout::{
    BLOCK_BYTES, FORMAT_VERSION, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_MAGIC, SUPERBLOCK_COPIES,
    SUPERBLOCK_MAGIC,
};
use crate::refusal::Refusal;

/// Where the checksum stands in both blocks.
const CHECKSUM_AT: usize = 12;

/// The identity of a data directory, fixed when it is formatted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// The node it belongs to.
    pub node: NodeId,
    /// This life of the directory (ARCHITECTURE section 4.1).
    pub incarnation: Incarnation,
    /// How many shards, each with a log of its own; the layout of cells over shards is fixed with it.
    pub shards: u16,
    /// The size of every segment: a multiple of `BLOCK_BYTES` within the limits of `layout`.
    pub segment_bytes: u64,
}

impl Superblock {
    /// Why these values cannot be formatted, if so.
    pub fn objection(&self) -> Option<&'static str> {
        if self.shards == 0 {
            Some("a node needs at least one shard")
        } else if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes) {
            Some("the segment size must lie between 512 KiB and 1 GiB")
        } else if !self.segment_bytes.is_multiple_of(BLOCK_BYTES as u64) {
            Some("the segment size must be a multiple of 4096 bytes")
        } else {
            None
        }
    }

    /// Reads both copies and decides. Writes nothing.
    pub fn load(storage: &mut dyn StorageRead) -> Result<Superblock, Refusal> {
        match Superblock::copies(storage)? {
            [Some(first), Some(second)] if first != second => Err(Refusal::SuperblocksDiffer),
            [Some(found), _] | [None, Some(found)] => Ok(found),
            [None, None] => Err(Refusal::SuperblockDamaged),
        }
    }

    /// Which of the copies is damaged, counted from 0, when the other one is not: nothing is lost yet.
    pub fn damaged_copy(storage: &mut dyn StorageRead) -> Result<Option<usize>, Refusal> {
        Ok(Superblock::copies(storage)?.iter().position(Option::is_none))
    }

    fn copies(storage: &mut dyn StorageRead) -> Result<[Option<Superblock>; SUPERBLOCK_COPIES], Refusal> {
        let files = storage.list().map_err(Refusal::disk(None))?;
        let Some(&(file, len)) = files.iter().find(|(file, _)| *file == FileName::Superblock) else {
            return Err(Refusal::NotFormatted);
        };
        let mut copies: [Option<Superblock>; SUPERBLOCK_COPIES] = [None; SUPERBLOCK_COPIES];
        let mut block = [0; BLOCK_BYTES];
        for (at, copy) in copies.iter_mut().enumerate() {
            let offset = (at * BLOCK_BYTES) as u64;
            if offset + BLOCK_BYTES as u64 > len {
                continue;
            }
            // A copy that the disk cannot read is as good as a damaged one: the other decides.
            if storage.read(file, offset, &mut block).is_ok() {
                *copy = Superblock::decode(&block)?;
            }
        }
        Ok(copies)
    }

    /// Both copies, as they stand in the file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = [0; BLOCK_BYTES];
        put(&mut block, 0, &SUPERBLOCK_MAGIC.to_le_bytes());
        put(&mut block, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut block, 16, &self.cluster.0);
        put(&mut block, 32, &self.incarnation.0);
        put(&mut block, 48, &self.node.0.to_le_bytes());
        put(&mut block, 50, &self.shards.to_le_bytes());
        put(&mut block, 56, &self.segment_bytes.to_le_bytes());
        let checksum = checksum_around(&block, CHECKSUM_AT);
        put(&mut block, CHECKSUM_AT, &checksum.to_le_bytes());
        block.repeat(SUPERBLOCK_COPIES)
    }

    /// `None` for a damaged copy; an intact one of another version, or with impossible values, is refused.
    fn decode(block: &[u8; BLOCK_BYTES]) -> Result<Option<Superblock>, Refusal> {
        let intact = get_u64(block, 0) == SUPERBLOCK_MAGIC
            && get_u32(block, CHECKSUM_AT) == checksum_around(block, CHECKSUM_AT);
        if !intact {
            return Ok(None);
        }
        let version = get_u32(block, 8);
        if version != FORMAT_VERSION {
            return Err(Refusal::OtherVersion { file: FileName::Superblock, version });
        }
        let found = Superblock {
            cluster: ClusterId(array(block, 16)),
            incarnation: Incarnation(array(block, 32)),
            node: NodeId(get_u16(block, 48)),
            shards: get_u16(block, 50),
            segment_bytes: get_u64(block, 56),
        };
        match found.objection() {
            Some(why) => Err(Refusal::BadGeometry { why }),
            None => Ok(Some(found)),
        }
    }
}

/// The first block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) sequence: SegmentSequence,
    pub(crate) shard: ShardId,
    pub(crate) incarnation: Incarnation,
    pub(crate) segment_bytes: u64,
}

impl SegmentHeader {
    pub(crate) fn of(superblock: &Superblock, shard: ShardId, sequence: SegmentSequence) -> SegmentHeader {
        SegmentHeader {
            sequence,
            shard,
            incarnation: superblock.incarnation,
            segment_bytes: superblock.segment_bytes,
        }
    }

    pub(crate) fn encode(&self, block: &mut [u8]) {
        assert_eq!(block.len(), BLOCK_BYTES);
        block.fill(0);
        put(block, 0, &SEGMENT_MAGIC.to_le_bytes());
        put(block, 8, &FORMAT_VERSION.to_le_bytes());
        put(block, 16, &self.sequence.0.to_le_bytes());
        put(block, 24, &(self.sequence.0 - 1).to_le_bytes());
        put(block, 32, &self.incarnation.0);
        put(block, 48, &self.shard.0.to_le_bytes());
        put(block, 56, &self.segment_bytes.to_le_bytes());
        let checksum = checksum_around(block, CHECKSUM_AT);
        put(block, CHECKSUM_AT, &checksum.to_le_bytes());
    }

    /// Whether `block` is exactly this header. A recycled segment that still shows its former header is not.
    pub(crate) fn matches(&self, block: &[u8]) -> bool {
        let mut expected = [0; BLOCK_BYTES];
        self.encode(&mut expected);
        block == expected
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            cluster: ClusterId([0x11; 16]),
            node: NodeId(0x2233),
            incarnation: Incarnation([0x44; 16]),
            shards: 0x55,
            segment_bytes: SEGMENT_BYTES_MIN,
        }
    }

    fn lines(bytes: &[u8]) -> String {
        bytes
            .chunks(16)
            .map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n")
            .collect()
    }

    #[test]
    fn the_bytes_of_a_superblock_are_pinned() {
        let bytes = superblock().encode();
        expect![[r#"
            4c4b535450535550010000005fdf028b
            11111111111111111111111111111111
            44444444444444444444444444444444
            33225500000000000000080000000000
        "#]]
        .assert_eq(&lines(&bytes[..64]));
        assert!(bytes[64..BLOCK_BYTES].iter().all(|byte| *byte == 0), "the rest of the block is blank");
        assert_eq!(bytes[..BLOCK_BYTES], bytes[BLOCK_BYTES..], "there are two equal copies");
    }

    #[test]
    fn the_bytes_of_a_segment_header_are_pinned() {
        let header = SegmentHeader::of(&superblock(), ShardId(6), SegmentSequence(7));
        let mut block = [0xee; BLOCK_BYTES];
        header.encode(&mut block);
        expect![[r#"
            4c4b53545053454701000000a56a1b38
            07000000000000000600000000000000
            44444444444444444444444444444444
            06000000000000000000080000000000
        "#]]
        .assert_eq(&lines(&block[..64]));
        assert!(block[64..].iter().all(|byte| *byte == 0), "the rest of the block is blank");
        assert!(header.matches(&block));
    }

    #[test]
    fn a_header_of_another_number_shard_or_life_does_not_match() {
        let header = SegmentHeader::of(&superblock(), ShardId(6), SegmentSequence(7));
        let mut block = [0; BLOCK_BYTES];
        header.encode(&mut block);
        let others = [
            SegmentHeader { sequence: SegmentSequence(8), ..header },
            SegmentHeader { shard: ShardId(7), ..header },
            SegmentHeader { incarnation: Incarnation([0x45; 16]), ..header },
        ];
        assert!(others.iter().all(|other| !other.matches(&block)));
    }
}
