//! A shard's log and what its cells go on from, recovered at a start.
//!
//! The log and the snapshots are two halves of the work, and the second need not wait for the first: the newest snapshot
//! of a cell is most likely the one with the newest file. While the log is read, a thread of its own loads that, and one more
//! reads ahead for it.
//!
//! Invariant: the marks in the log decide. Where they name another snapshot, or the file is not whole, the log is read
//! again, and all goes on as if there had been no guess. Deliberately absent: what records and snapshots say.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::{channel, sync_channel};
use std::thread::{Builder, scope};

use lockstep_core::table::Limits;
use lockstep_core::{LoadedSnapshot, RecordHead, Restore};
use lockstep_ring::storage::DataDirectory;
use lockstep_wal::disk::{DiskError, FileName, ShardId, StorageRead};
use lockstep_wal::{Log, Record, inspect, inspect_snapshot, load_snapshot};
use lockstep_wire::{CellId, LogIndex};

use super::{ShardError, ShardPlan};

type Restores = BTreeMap<CellId, Restore>;

/// A snapshot that most likely is the newest of its cell.
#[derive(Clone, Copy, Debug)]
struct Guess {
    cell: CellId,
    through: LogIndex,
    limits: Limits,
}

/// Pieces of a snapshot that are read before they are loaded.
const PIECES_AHEAD: usize = 16;

/// Reads the shard's log and the snapshots of its cells.
pub(super) fn recover(plan: &ShardPlan) -> Result<(Log, Restores), ShardError> {
    let mut directory = open(&plan.data)?;
    let guesses = guess(plan, &mut directory).map_err(|error| unusable(&plan.data, &error))?;
    let mut restores: Restores = plan.cells.iter().map(|config| (config.cell, Restore::new())).collect();
    restores.extend(guesses.iter().map(|guess| (guess.cell, Restore::behind(guess.through))));
    let mut beside = open(&plan.data)?;
    let (log, mut loaded) = scope(|scope| {
        let name = format!("shard-{}-load", plan.shard);
        let loading = Builder::new()
            .name(name)
            .spawn_scoped(scope, || guesses.iter().filter_map(|guess| load(&mut beside, guess)).collect())
            .map_err(|source| ShardError::Kernel { what: "a thread could not be started", source })?;
        let log = read_log(plan, &mut directory, &mut restores)?;
        let loaded: BTreeMap<_, _> = loading.join().unwrap_or_else(|panic| resume_unwind(panic));
        Ok((log, loaded))
    })?;
    let is_wrong = |guess: &&Guess| {
        let restore = restores.get_mut(&guess.cell).expect("every guess is about a cell of the shard");
        let newest = log.snapshots(guess.cell).next();
        !loaded.remove(&guess.cell).is_some_and(|loaded| restore.go_on_from(loaded, newest))
    };
    let mut again: Restores =
        guesses.iter().filter(is_wrong).map(|guess| (guess.cell, Restore::new())).collect();
    if !again.is_empty() {
        let shard = ShardId(plan.shard);
        inspect(&mut directory, &plan.superblock, shard, &mut |_, record| take(&mut again, &record))
            .map_err(|refusal| unusable(&plan.data, &refusal))?;
    }
    restores.extend(again);
    for config in &plan.cells {
        let cell = config.cell;
        let restore = restores.get_mut(&cell).expect("every cell has its own");
        if restore.is_loaded() {
            continue;
        }
        let complaints = restore.load(config.limits, log.snapshots(cell), |snapshot, visit| {
            load_snapshot(&mut directory, cell, snapshot, visit).map_err(|refusal| refusal.to_string())
        });
        for complaint in complaints {
            tracing::warn!(%cell, "{complaint}; trying an older snapshot, or the leader's");
        }
    }
    Ok((log, restores))
}

fn open(data: &Path) -> Result<DataDirectory, ShardError> {
    DataDirectory::open(data).map_err(|error| ShardError::Log(error.to_string()))
}

fn unusable(data: &Path, why: &dyn Display) -> ShardError {
    ShardError::Log(format!("{}: {why}", data.display()))
}

/// The newest file of each cell's snapshots, by its name.
fn guess(plan: &ShardPlan, directory: &mut DataDirectory) -> Result<Vec<Guess>, DiskError> {
    let files = directory.list()?;
    let newest = |cell: CellId| {
        let of_cell = files.iter().filter_map(|(file, _)| match *file {
            FileName::Snapshot { cell: of, index } if of == cell => Some(index),
            FileName::Snapshot { .. }
            | FileName::SnapshotStaging { .. }
            | FileName::Segment { .. }
            | FileName::Staging { .. }
            | FileName::Superblock
            | FileName::SuperblockStaging
            | FileName::Lock
            | FileName::FormatMark => None,
        });
        of_cell.max()
    };
    let guess = |config: &lockstep_core::CellConfig| {
        Some(Guess { cell: config.cell, through: newest(config.cell)?, limits: config.limits })
    };
    Ok(plan.cells.iter().filter_map(guess).collect())
}

/// Loads what was guessed, if it is whole: reads it on one more thread, a few pieces ahead. If that fails and it counts, the
/// second try, without a thread, says what is wrong.
fn load(directory: &mut DataDirectory, guess: &Guess) -> Option<(CellId, LoadedSnapshot)> {
    let Guess { cell, through, limits } = *guess;
    scope(|threads| {
        let (pieces, read) = sync_channel(PIECES_AHEAD);
        let (spent, reusable) = channel::<Vec<u8>>();
        let reading = Builder::new().name(format!("cell-{cell}-read")).spawn_scoped(threads, move || {
            inspect_snapshot(directory, cell, through, &mut |bytes| {
                let mut piece = reusable.try_recv().unwrap_or_default();
                piece.clear();
                piece.extend_from_slice(bytes);
                // Whoever takes them takes all.
                let _ = pieces.send(piece);
            })
        });
        let loaded = LoadedSnapshot::load(limits, |visit| {
            let reading = reading.map_err(|error| error.to_string())?;
            for piece in read {
                visit(&piece);
                // The last ones come back to nobody.
                let _ = spent.send(piece);
            }
            let inspected = reading.join().unwrap_or_else(|panic| resume_unwind(panic));
            inspected.map(|found| found.id).map_err(|refusal| refusal.to_string())
        });
        loaded.ok().map(|loaded| (cell, loaded))
    })
}

fn read_log(
    plan: &ShardPlan,
    directory: &mut DataDirectory,
    restores: &mut Restores,
) -> Result<Log, ShardError> {
    let mut stranger = None;
    let shard = ShardId(plan.shard);
    let (log, inspection) = Log::open(directory, &plan.superblock, shard, plan.salt, &mut |_, record| {
        if !restores.contains_key(&record.cell) {
            stranger.get_or_insert(record.cell);
        }
        take(restores, &record);
    })
    .map_err(|refusal| unusable(&plan.data, &refusal))?;
    if let Some(cell) = stranger {
        let why = format!("the log holds records of cell {cell}, which is not configured");
        return Err(unusable(&plan.data, &why));
    }
    tracing::debug!(shard = plan.shard, records = %inspection.last_lsn, torn = inspection.is_torn, "log recovered");
    Ok(log)
}

/// Hands a record to its cell, if that is among these.
fn take(restores: &mut Restores, record: &Record<'_>) {
    if let Some(restore) = restores.get_mut(&record.cell) {
        let head = RecordHead { kind: record.kind, term: record.term, index: record.index };
        restore.on_record(head, record.payload);
    }
}
