//! Bits that flip where the disk lies still.
//!
//! Invariant: [`MemoryDisk::rot_settled`] never touches what a log cannot tell from a write that a crash interrupted:
//! its last batch, and the one before, which is the last one once a loss of power has taken its successor back.
//! Snapshots are no part of the log; [`MemoryDisk::rot_snapshot`] is for them. Deliberately absent: whether anybody notices; that is for whoever reads.

use super::{MemoryDisk, Random};
use crate::batch::Batch;
use crate::disk::{FileName, SegmentSequence, ShardId};
use crate::layout::{BATCH_BYTES_MAX, BLOCK_BYTES, SNAPSHOT_STRIDE_BYTES, SUPERBLOCK_COPIES};

/// The newest batches of a log, which do not rot.
const UNSETTLED_BATCHES: usize = 2;

/// The newest of the others, which are those that a follower is likely to need.
const RECENT_BATCHES: usize = 16;

/// A bit that has flipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rot {
    /// In which file.
    pub file: FileName,
    /// Where, in bytes.
    pub offset: u64,
    /// Where the batch, or the piece of a snapshot, begins that is no longer whole; `None` if it was in a segment's header
    /// or in one copy of the superblock.
    pub extent: Option<u64>,
}

/// A stretch of a file that something was written to.
#[derive(Clone, Copy, Debug)]
struct Extent {
    file: FileName,
    offset: u64,
    bytes: u64,
}

impl MemoryDisk {
    /// Flips one bit in a batch of a shard's log that others follow (every other time in one of the newest of those) or,
    /// one time in five, in a header or a copy of the superblock; says which, if there is anything of the kind.
    pub fn rot_settled(&mut self, shard: ShardId, random: &mut Random) -> Option<Rot> {
        let batches = self.batches(shard);
        let settled = &batches[..batches.len().saturating_sub(UNSETTLED_BATCHES)];
        let oldest = if random.below(2) == 0 { settled.len().saturating_sub(RECENT_BATCHES) } else { 0 };
        let is_batch = random.below(5) > 0;
        let blocks;
        let extents = if is_batch {
            &settled[oldest..]
        } else {
            blocks = self.header_blocks(shard);
            blocks.as_slice()
        };
        let at = usize::try_from(random.below((extents.len() as u64).max(1))).ok()?;
        let extent = extents.get(at)?;
        let offset = extent.offset + random.below(extent.bytes);
        self.rot(extent.file, offset, 1 << random.below(8));
        Some(Rot { file: extent.file, offset, extent: is_batch.then_some(extent.offset) })
    }

    /// Flips one bit in a piece of a snapshot that has its name: one that counts, or is about to, or has just ceased to.
    /// Says which, if there is any.
    pub fn rot_snapshot(&mut self, random: &mut Random) -> Option<Rot> {
        let pieces = self.pieces();
        let at = usize::try_from(random.below((pieces.len() as u64).max(1))).ok()?;
        let piece = pieces.get(at)?;
        let offset = piece.offset + random.below(piece.bytes);
        self.rot(piece.file, offset, 1 << random.below(8));
        Some(Rot { file: piece.file, offset, extent: Some(piece.offset) })
    }

    /// The pieces of all snapshots that have their names.
    fn pieces(&mut self) -> Vec<Extent> {
        let is_snapshot = |file: &FileName| matches!(file, FileName::Snapshot { .. });
        let files: Vec<FileName> = self.names.keys().copied().filter(is_snapshot).collect();
        let mut found = Vec::new();
        for file in files {
            let Ok(inode) = self.inode(file) else { continue };
            let pieces = (0..inode.bytes).step_by(SNAPSHOT_STRIDE_BYTES);
            found.extend(pieces.map(|offset| {
                let bytes = (inode.bytes - offset).min(SNAPSHOT_STRIDE_BYTES as u64);
                Extent { file, offset, bytes }
            }));
        }
        found
    }

    fn segments(&self, shard: ShardId) -> Vec<SegmentSequence> {
        let mut sequences: Vec<SegmentSequence> = self
            .names
            .keys()
            .filter_map(|file| match file {
                FileName::Segment { shard: of, sequence } if *of == shard => Some(*sequence),
                FileName::Segment { .. }
                | FileName::Staging { .. }
                | FileName::Snapshot { .. }
                | FileName::SnapshotStaging { .. }
                | FileName::Superblock
                | FileName::SuperblockStaging
                | FileName::Lock
                | FileName::FormatMark => None,
            })
            .collect();
        sequences.sort_unstable();
        sequences
    }

    /// The batches of a log, oldest first, as far as they are whole.
    fn batches(&mut self, shard: ShardId) -> Vec<Extent> {
        let mut found = Vec::new();
        let mut window = vec![0; BATCH_BYTES_MAX];
        for sequence in self.segments(shard) {
            let file = FileName::Segment { shard, sequence };
            let Ok(inode) = self.inode(file) else { continue };
            let mut offset = BLOCK_BYTES as u64;
            while offset < inode.bytes {
                let left = usize::try_from(inode.bytes - offset).unwrap_or(usize::MAX).min(BATCH_BYTES_MAX);
                inode.read(offset, &mut window[..left]);
                let Some(batch) = Batch::verify(&window[..left], sequence) else { break };
                let bytes = batch.extent_bytes as u64;
                found.push(Extent { file, offset, bytes });
                offset += bytes;
            }
        }
        found
    }

    fn header_blocks(&self, shard: ShardId) -> Vec<Extent> {
        let bytes = BLOCK_BYTES as u64;
        let headers = self.segments(shard).into_iter().map(|sequence| Extent {
            file: FileName::Segment { shard, sequence },
            offset: 0,
            bytes,
        });
        let copies = (0..SUPERBLOCK_COPIES as u64).map(|copy| Extent {
            file: FileName::Superblock,
            offset: copy * bytes,
            bytes,
        });
        headers.chain(copies).collect()
    }
}
