//! Formatting a data directory: the first segment of every shard, then the superblock.
//!
//! Invariant: the directory counts as formatted only by its superblock, which comes last, so a formatted directory
//! always has its segments; formatting that was interrupted can be done again, and nothing that holds a log is ever
//! formatted. Deliberately absent: drawing the identity; the caller brings it.

use crate::disk::{DiskError, FileName, SegmentSequence, ShardId, Storage};
use crate::layout::{BLOCK_BYTES, SPARE_SEGMENTS, ZERO_PIECE_BYTES};
use crate::refusal::Refusal;
use crate::superblock::{SegmentHeader, Superblock};

/// Formats an empty directory. Refuses if anything of ours is in it, except what an interrupted formatting left.
pub fn format(storage: &mut dyn Storage, superblock: &Superblock) -> Result<(), Refusal> {
    if let Some(why) = superblock.objection() {
        return Err(Refusal::BadGeometry { why });
    }
    storage.lock().map_err(Refusal::disk(Some(FileName::Lock)))?;
    clear(storage)?;
    // Room for the spare segments too: a node that cannot even make these would be short of space from birth.
    let needed = u64::from(superblock.shards) * superblock.segment_bytes * (1 + SPARE_SEGMENTS as u64);
    if storage.free_bytes().map_err(Refusal::disk(None))? < needed {
        return Err(Refusal::Disk { file: None, error: DiskError::NoSpace });
    }
    for shard in 0..superblock.shards {
        first_segment(storage, superblock, ShardId(shard))?;
    }
    storage.sync_directory().map_err(Refusal::disk(None))?;
    let staging = FileName::SuperblockStaging;
    storage.create(staging).map_err(Refusal::disk(Some(staging)))?;
    storage.write_durable(staging, 0, &superblock.encode()).map_err(Refusal::disk(Some(staging)))?;
    storage.rename(staging, FileName::Superblock).map_err(Refusal::disk(Some(FileName::Superblock)))?;
    storage.sync_directory().map_err(Refusal::disk(None))?;
    storage.remove(FileName::FormatMark).map_err(Refusal::disk(Some(FileName::FormatMark)))?;
    storage.sync_directory().map_err(Refusal::disk(None))
}

/// Leaves nothing of ours but the lock and the mark that formatting has begun.
fn clear(storage: &mut dyn Storage) -> Result<(), Refusal> {
    let files = storage.list().map_err(Refusal::disk(None))?;
    let is_interrupted = files.iter().any(|(file, _)| *file == FileName::FormatMark);
    for &(file, _) in &files {
        match file {
            FileName::Lock | FileName::FormatMark => {}
            FileName::Superblock => return Err(Refusal::AlreadyFormatted { file }),
            FileName::Segment { .. }
            | FileName::Staging { .. }
            | FileName::Snapshot { .. }
            | FileName::SnapshotStaging { .. }
            | FileName::SuperblockStaging
                if !is_interrupted =>
            {
                return Err(Refusal::AlreadyFormatted { file });
            }
            FileName::Segment { .. }
            | FileName::Staging { .. }
            | FileName::Snapshot { .. }
            | FileName::SnapshotStaging { .. }
            | FileName::SuperblockStaging => {}
        }
    }
    if !is_interrupted {
        storage.create(FileName::FormatMark).map_err(Refusal::disk(Some(FileName::FormatMark)))?;
    }
    for (file, _) in files {
        if !matches!(file, FileName::Lock | FileName::FormatMark) {
            storage.remove(file).map_err(Refusal::disk(Some(file)))?;
        }
    }
    storage.sync_directory().map_err(Refusal::disk(None))
}

fn first_segment(storage: &mut dyn Storage, superblock: &Superblock, shard: ShardId) -> Result<(), Refusal> {
    let sequence = SegmentSequence(1);
    let file = FileName::Segment { shard, sequence };
    storage.create(file).map_err(Refusal::disk(Some(file)))?;
    let zeros = vec![0; ZERO_PIECE_BYTES];
    let mut offset = 0;
    while offset < superblock.segment_bytes {
        let left = superblock.segment_bytes - offset;
        let len = usize::try_from(left).map_or(zeros.len(), |left| left.min(zeros.len()));
        storage.write_durable(file, offset, &zeros[..len]).map_err(Refusal::disk(Some(file)))?;
        offset += len as u64;
    }
    let mut block = [0; BLOCK_BYTES];
    SegmentHeader::of(superblock, shard, sequence).encode(&mut block);
    storage.write_durable(file, 0, &block).map_err(Refusal::disk(Some(file)))
}
