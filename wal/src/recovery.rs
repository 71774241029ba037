//! Taking a data directory into use: claim, inspect, open.
//!
//! Invariant: nothing is changed before the whole log has been read and found good, and what is written then
//! (blanking behind the tail, headers of spares, removal of leftovers and of snapshots that do not count) can be
//! interrupted anywhere and done again. Needs no free space. Deliberately absent: judgement, which is in `decision`.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_wire::{CellId, SnapshotId};

use crate::batch::claimed_extent_bytes;
use crate::catalog::Catalog;
use crate::disk::{DiskError, FileName, SegmentSequence, ShardId, Storage, StorageRead};
use crate::layout::{BATCH_BYTES_MAX, BLOCK_BYTES};
use crate::log::{Log, Recovered};
use crate::record::Lsn;
use crate::refusal::Refusal;
use crate::scan::{Scan, Visitor, scan};
use crate::snapshot::{Snapshots, Stored};
use crate::superblock::{SegmentHeader, Superblock};

/// A shard's log as it lies on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The oldest segment.
    pub oldest: SegmentSequence,
    /// The segment that is written to.
    pub newest: SegmentSequence,
    /// Where its valid batches end, in bytes.
    pub end_offset: u64,
    /// The last record; 0 if there is none.
    pub last_lsn: Lsn,
    /// Segments ready or half ready behind the newest.
    pub spares: usize,
    /// The last write was torn; opening cuts it. (A torn write may also leave no sign.)
    pub is_torn: bool,
    /// Every segment that is there, the oldest first.
    pub segments: Vec<SegmentInspection>,
    /// Which snapshots of which cell count, the newest first. Whether their files are there was not looked at.
    pub snapshots: BTreeMap<CellId, Vec<SnapshotId>>,
}

/// A segment as it lies on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInspection {
    /// Which.
    pub sequence: SegmentSequence,
    /// What it is for.
    pub state: SegmentState,
    /// Where its batches end, in bytes.
    pub end_offset: u64,
    /// How many batches it holds, its seal included.
    pub batches: u64,
    /// How many records they hold.
    pub records: u64,
}

/// What a segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Sealed, and the log has said that it may be gone.
    Retired,
    /// Nothing is written into it any more.
    Sealed,
    /// The one that is written to.
    Tail,
    /// Ready, or half ready, to be written to.
    Spare,
}

impl Inspection {
    fn of(scan: &Scan) -> Inspection {
        let counting = |cell: CellId| scan.catalog.kept(cell).newest_first().collect();
        Inspection {
            oldest: scan.catalog.oldest(),
            newest: scan.tail.position.segment,
            end_offset: scan.tail.position.offset,
            last_lsn: scan.last_lsn,
            spares: scan.spares.len(),
            is_torn: scan.is_torn,
            segments: scan.segments.clone(),
            snapshots: scan.catalog.cells().map(|cell| (cell, counting(cell))).collect(),
        }
    }
}

/// Locks a formatted directory for this process and says whose it is. Comes before [`Log::open`].
pub fn claim(storage: &mut dyn Storage) -> Result<Superblock, Refusal> {
    storage.lock().map_err(Refusal::disk(Some(FileName::Lock)))?;
    let superblock = Superblock::load(storage)?;
    // Formatting was interrupted after its last step but one. The mark would let it begin again.
    let files = storage.list().map_err(Refusal::disk(None))?;
    if files.iter().any(|(file, _)| *file == FileName::FormatMark) {
        storage.remove(FileName::FormatMark).map_err(Refusal::disk(Some(FileName::FormatMark)))?;
        storage.sync_directory().map_err(Refusal::disk(None))?;
    }
    Ok(superblock)
}

/// Reads a shard's whole log, verifies it and shows every record to the visitor. Writes nothing.
pub fn inspect(
    storage: &mut dyn StorageRead,
    superblock: &Superblock,
    shard: ShardId,
    visitor: &mut Visitor<'_>,
) -> Result<Inspection, Refusal> {
    Ok(Inspection::of(&scan(storage, superblock, shard, visitor)?))
}

/// The files of the shard's segments into which nothing is written any more: a later one has been begun, and that
/// happens only once the seal before it is durable. Errs on the safe side where bytes are damaged.
pub fn sealed_segments(storage: &mut dyn StorageRead, shard: ShardId) -> Result<Vec<FileName>, DiskError> {
    let is_of_shard = |file: &FileName| matches!(file, FileName::Segment { shard: of, .. } if *of == shard);
    let mut segments: Vec<_> = storage.list()?.into_iter().filter(|(file, _)| is_of_shard(file)).collect();
    segments.sort_unstable();
    let mut block = [0; BLOCK_BYTES];
    while let Some((file, bytes)) = segments.pop() {
        let FileName::Segment { sequence, .. } = file else { continue };
        if bytes < 2 * BLOCK_BYTES as u64 {
            continue;
        }
        storage.read(file, BLOCK_BYTES as u64, &mut block)?;
        if claimed_extent_bytes(&block, sequence).is_some() {
            break;
        }
    }
    Ok(segments.into_iter().map(|(file, _)| file).collect())
}

impl Log {
    /// Recovers a shard's log and opens it for appending. Every surviving record goes to the visitor in order;
    /// truncations are among them and are the visitor's to carry out on what it has kept. When this fails, what
    /// the visitor saw does not count. `salt` is drawn at random for this start.
    pub fn open(
        storage: &mut dyn Storage,
        superblock: &Superblock,
        shard: ShardId,
        salt: u64,
        visitor: &mut Visitor<'_>,
    ) -> Result<(Log, Inspection), Refusal> {
        sync_before_reading(storage, shard)?;
        let mut scan = scan(storage, superblock, shard, visitor)?;
        let inspection = Inspection::of(&scan);
        blank_behind_tail(storage, superblock, shard, &scan)?;
        let spares = mend_spares(storage, superblock, shard, &scan)?;
        let stored = keep_snapshots(storage, &mut scan.catalog)?;
        let recovered = Recovered {
            catalog: scan.catalog,
            tail: scan.tail,
            last_lsn: scan.last_lsn,
            announced_oldest: scan.announced_oldest,
            spares,
            snapshots: Snapshots::with_stored(stored),
        };
        Ok((Log::from_recovered(*superblock, shard, salt, recovered), inspection))
    }
}

/// After a kill the kernel may show a batch, or a name, that a loss of power would take back. What recovery reads
/// it promises, so it has to be durable first.
fn sync_before_reading(storage: &mut dyn Storage, shard: ShardId) -> Result<(), Refusal> {
    for (file, _) in storage.list().map_err(Refusal::disk(None))? {
        match file {
            FileName::Segment { shard: of, .. } if of == shard => {
                storage.sync(file).map_err(Refusal::disk(Some(file)))?;
            }
            FileName::Segment { .. }
            | FileName::Staging { .. }
            | FileName::Snapshot { .. }
            | FileName::SnapshotStaging { .. }
            | FileName::Superblock
            | FileName::SuperblockStaging
            | FileName::Lock
            | FileName::FormatMark => {}
        }
    }
    storage.sync_directory().map_err(Refusal::disk(None))
}

/// Blanks the largest extent that a torn batch can have, so that no part of it is ever taken for a later batch.
fn blank_behind_tail(
    storage: &mut dyn Storage,
    superblock: &Superblock,
    shard: ShardId,
    scan: &Scan,
) -> Result<(), Refusal> {
    let file = FileName::Segment { shard, sequence: scan.tail.position.segment };
    let offset = scan.tail.position.offset;
    let left = superblock.segment_bytes - offset;
    let mut extent = vec![0; usize::try_from(left).map_or(BATCH_BYTES_MAX, |left| left.min(BATCH_BYTES_MAX))];
    storage.read(file, offset, &mut extent).map_err(Refusal::disk(Some(file)))?;
    if extent.iter().any(|byte| *byte != 0) {
        extent.fill(0);
        storage.write_durable(file, offset, &extent).map_err(Refusal::disk(Some(file)))?;
    }
    Ok(())
}

/// Makes spares of what stands behind the tail, removes what cannot be one; says how many there are.
fn mend_spares(
    storage: &mut dyn Storage,
    superblock: &Superblock,
    shard: ShardId,
    scan: &Scan,
) -> Result<usize, Refusal> {
    let mut ready = 0;
    let mut expected = scan.tail.position.segment.next();
    let mut removes = scan.has_staging;
    for spare in &scan.spares {
        let file = FileName::Segment { shard, sequence: spare.sequence };
        if spare.sequence != expected || spare.bytes != superblock.segment_bytes {
            storage.remove(file).map_err(Refusal::disk(Some(file)))?;
            removes = true;
            continue;
        }
        if !spare.has_header {
            let mut block = [0; BLOCK_BYTES];
            SegmentHeader::of(superblock, shard, spare.sequence).encode(&mut block);
            storage.write_durable(file, 0, &block).map_err(Refusal::disk(Some(file)))?;
        }
        ready += 1;
        expected = expected.next();
    }
    if scan.has_staging {
        let file = FileName::Staging { shard };
        storage.remove(file).map_err(Refusal::disk(Some(file)))?;
    }
    if removes {
        storage.sync_directory().map_err(Refusal::disk(None))?;
    }
    Ok(ready)
}

/// Removes snapshots that do not count and what was left half-written, of the cells that have records in this log; says
/// which are there. A newest one that is missing is for its owner to find; an older one has been given up.
fn keep_snapshots(
    storage: &mut dyn Storage,
    catalog: &mut Catalog,
) -> Result<BTreeMap<CellId, Vec<Stored>>, Refusal> {
    let cells: BTreeSet<CellId> = catalog.cells().collect();
    let mut stored = BTreeMap::<CellId, Vec<Stored>>::new();
    let mut removes = false;
    for (file, bytes) in storage.list().map_err(Refusal::disk(None))? {
        match file {
            FileName::Snapshot { cell, index } if catalog.kept(cell).is_kept(index) => {
                stored.entry(cell).or_default().push(Stored { index, bytes });
            }
            FileName::Snapshot { cell, .. } | FileName::SnapshotStaging { cell } if cells.contains(&cell) => {
                storage.remove(file).map_err(Refusal::disk(Some(file)))?;
                removes = true;
            }
            // Another shard's log has the cell's records, or none has.
            FileName::Snapshot { .. } | FileName::SnapshotStaging { .. } => {}
            FileName::Segment { .. }
            | FileName::Staging { .. }
            | FileName::Superblock
            | FileName::SuperblockStaging
            | FileName::Lock
            | FileName::FormatMark => {}
        }
    }
    if removes {
        storage.sync_directory().map_err(Refusal::disk(None))?;
    }
    for cell in cells {
        let of_cell = stored.get(&cell);
        catalog.forget_older_unless(cell, |index| {
            of_cell.is_some_and(|stored| stored.iter().any(|stored| stored.index == index))
        });
    }
    Ok(stored)
}
