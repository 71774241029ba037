//! Restoring a cell: a freshly formatted data directory is given the state that its replica begins with.
//!
//! Invariant: a directory that has anything else of the cell is left as it is. What was interrupted can be done again.
//! Deliberately absent: what becomes of the state of a backup (the table's), and how it is written (the log's).

use std::path::Path;

use lockstep_core::hello::shard_of;
use lockstep_core::table::{Limits, Table, TableLoader};
use lockstep_ring::storage::DataDirectory;
use lockstep_wal::disk::ShardId;
use lockstep_wal::{Log, RecordKind, Superblock, claim, inspect, load_snapshot};
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::{CellId, NodeId, SnapshotId};

use crate::node::{NodeError, random};

/// What became of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restoration {
    /// Whose directory it is.
    pub node: NodeId,
    /// The cell began with this very state already: nothing was changed.
    pub was_done_before: bool,
}

/// Has a cell begin with `table`, whose last entry is `id`, in a directory in which there is nothing of the cell.
///
/// # Errors
/// When the directory is not formatted, in use, or has records of the cell that did not come of the same restore, or its
/// disk fails.
pub fn restore(
    data: &Path,
    cell: CellId,
    id: SnapshotId,
    table: &mut Table,
) -> Result<Restoration, NodeError> {
    let refuse = |reason: String| NodeError::Data { path: data.to_owned(), reason };
    let mut directory = DataDirectory::open(data).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => refuse("there is no such directory; format it first".to_owned()),
        _ => refuse(error.to_string()),
    })?;
    let superblock = claim(&mut directory).map_err(|refusal| refuse(refusal.to_string()))?;
    let shard = ShardId(shard_of(cell, superblock.shards));
    let node = superblock.node;
    match found(&mut directory, &superblock, shard, cell).map_err(refuse)? {
        Found::Nothing => {}
        Found::Restored(was) if was == id && holds(&mut directory, cell, id, table) => {
            return Ok(Restoration { node, was_done_before: true });
        }
        Found::Restored(was) => {
            return Err(refuse(format!(
                "cell {cell} was restored here already, from another state or with another epoch (through entry {was}); format a \
                 new directory for it"
            )));
        }
        Found::Records => {
            return Err(refuse(format!(
                "cell {cell} has records here already; a cell is restored into a freshly formatted directory only"
            )));
        }
    }
    let salt = random()?;
    let opened = Log::open(&mut directory, &superblock, shard, salt, &mut |_, _| {});
    let (mut log, _) = opened.map_err(|refusal| refuse(refusal.to_string()))?;
    table.begin_snapshot();
    let written =
        log.restore(&mut directory, cell, id, &mut |out| table.write_snapshot(out, SNAPSHOT_PIECE_BYTES_MAX));
    written.map_err(|failure| refuse(failure.to_string()))?;
    Ok(Restoration { node, was_done_before: false })
}

/// What a directory has of a cell.
enum Found {
    Nothing,
    /// What a restore writes, and nothing more.
    Restored(SnapshotId),
    Records,
}

/// Looks without changing anything.
fn found(
    directory: &mut DataDirectory,
    superblock: &Superblock,
    shard: ShardId,
    cell: CellId,
) -> Result<Found, String> {
    let (mut mark, mut has_more) = (None, false);
    let looked = inspect(directory, superblock, shard, &mut |_, record| {
        if record.cell != cell {
            return;
        }
        match record.kind {
            RecordKind::Truncate => {}
            RecordKind::SnapshotMark if mark.is_none() => {
                mark = Some(SnapshotId { index: record.index, term: record.term });
            }
            RecordKind::SnapshotMark
            | RecordKind::Entry
            | RecordKind::HardState
            | RecordKind::Manifest
            | RecordKind::Born => has_more = true,
        }
    });
    looked.map_err(|refusal| refusal.to_string())?;
    Ok(match mark {
        _ if has_more => Found::Records,
        Some(mark) => Found::Restored(mark),
        None => Found::Nothing,
    })
}

/// Whether the snapshot in the directory is of this very state.
fn holds(directory: &mut DataDirectory, cell: CellId, id: SnapshotId, table: &Table) -> bool {
    let mut loader = TableLoader::new(Limits::default());
    let read = load_snapshot(directory, cell, id, &mut |bytes| {
        // What is wrong is said at the end once more.
        let _ = loader.push(bytes);
    });
    let loaded = read.ok().and_then(|()| loader.finish().ok());
    loaded.is_some_and(|loaded| (loaded.epoch(), loaded.digest()) == (table.epoch(), table.digest()))
}
