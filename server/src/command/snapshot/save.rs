//! `lockstep snapshot save`: a backup of a cell, from its leader or from the data directory of a node that does not run.
//!
//! Invariant: what is saved was loaded into a table, so that a file with the name that was asked for is whole and holds a
//! state. A data directory is not changed. Deliberately absent: when backups are made, and where they are kept.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use lockstep_client::{Error, SnapshotSave};
use lockstep_core::hello::shard_of;
use lockstep_core::table::{Limits, SnapshotError, Table, TableLoader};
use lockstep_core::{RecordHead, Restore};
use lockstep_server::backup::BackupWriter;
use lockstep_wal::disk::{DiskError, ShardId};
use lockstep_wal::layout::SNAPSHOT_STRIDE_BYTES;
use lockstep_wal::{SnapshotInspection, inspect, load_snapshot};
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::{CellId, SnapshotId, Term};

use super::super::wal::{code_of, open};
use super::super::{Cluster, code_of as code_of_error, complain, exit, on_this_thread, print, status};
use super::Survey;

/// How often a save begins again because the snapshot went away, or another member leads.
const BEGINNINGS_MAX: usize = 5;

/// Between two looks whether another member leads.
const LOOK: Duration = Duration::from_secs(2);

/// Save a cell's state to a file: as its leader has it, with all that is committed; or, with --data, as a stopped node's
/// log ends.
///
/// The nonces of sessions, which are secrets, are in the file: keep it like the data directories.
#[derive(Args, Debug)]
pub(super) struct SaveArgs {
    /// The file to write.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The cell.
    #[arg(long, value_name = "ID", default_value_t = 0)]
    cell: u16,
    /// From this data directory of a node that does not run, instead of a cluster: the state after the last entry of its log,
    /// committed or not. For forced recovery.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Replace the file if it is there.
    #[arg(long)]
    force: bool,
    /// Print JSON; 64-bit numbers as strings.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: Cluster,
}

/// Why nothing was saved: in words, and with which code to end.
struct Failed(String, u8);

impl Failed {
    fn writing(file: &Path) -> impl Fn(std::io::Error) -> Failed {
        move |error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                let file = file.display();
                Failed(format!("{file} is there already; choose another name, or say --force"), exit::FAILED)
            }
            std::io::ErrorKind::NotFound => {
                let file = file.display();
                Failed(format!("{file}: there is no such directory; nothing was saved"), exit::FAILED)
            }
            _ => Failed(format!("{}: {error}; nothing was saved", file.display()), exit::FAILED),
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed(error.to_string(), code_of_error(&error))
    }
}

pub(super) fn run(args: &SaveArgs) -> u8 {
    let saved = match &args.data {
        Some(data) => from_directory(args, data),
        None => {
            let mut saved = None;
            let code = on_this_thread(async {
                saved = Some(from_cluster(args).await);
                Ok(0)
            });
            match saved {
                Some(saved) => saved,
                None => return code,
            }
        }
    };
    match saved {
        Ok(survey) if args.json => {
            let mut json = survey.json();
            json["file"] = args.file.display().to_string().into();
            print(&json.to_string());
            0
        }
        Ok(survey) => {
            print(&format!("saved {}\n{}", args.file.display(), survey.describe()));
            0
        }
        Err(Failed(why, code)) => {
            complain(&why);
            code
        }
    }
}

async fn from_cluster(args: &SaveArgs) -> Result<Survey, Failed> {
    let cell = CellId(args.cell);
    let mut file = BackupWriter::create(&args.file, cell, args.force).map_err(Failed::writing(&args.file))?;
    let mut known = args.cluster.clone();
    for _ in 0..BEGINNINGS_MAX {
        let (address, leading) = status::wait_for_leader(&known, cell).await?;
        let addresses = leading.members.into_iter().map(|member| member.address);
        known.endpoints.extend(addresses.filter(|address| !address.is_empty()));
        known.endpoints.sort_unstable();
        known.endpoints.dedup();
        let others = known.endpoints.iter().filter(|other| **other != address).cloned();
        let endpoints = std::iter::once(address.clone()).chain(others).collect();
        let save = SnapshotSave::connect(endpoints, cell)?;
        let saved = tokio::select! {
            biased;
            saved = save_once(args, &save, &mut file) => saved?,
            () = another_leads(&known, cell, leading.term) => None,
        };
        if let Some(survey) = saved {
            file.finish().map_err(Failed::writing(&args.file))?;
            return Ok(survey);
        }
        file.restart().map_err(Failed::writing(&args.file))?;
    }
    let why = format!(
        "cell {cell}: its snapshot went away, or its leader changed, {BEGINNINGS_MAX} times while it was saved; nothing was saved, try again"
    );
    Err(Failed(why, exit::FAILED))
}

/// Waits until somebody leads in a later term: whoever led before may stand still, and gives no answer.
async fn another_leads(cluster: &Cluster, cell: CellId, term: Term) {
    loop {
        tokio::time::sleep(LOOK).await;
        if let Ok((_, leading)) = status::find_leader(cluster, cell).await
            && leading.term > term
        {
            return;
        }
    }
}

/// Saves all pieces of one snapshot; none if it went away meanwhile.
async fn save_once(
    args: &SaveArgs,
    save: &SnapshotSave,
    file: &mut BackupWriter,
) -> Result<Option<Survey>, Failed> {
    let cell = CellId(args.cell);
    let mut loader = TableLoader::new(Limits::default());
    let Some(mut piece) = save.begin().await? else { return Ok(None) };
    let (id, mut pieces) = (piece.snapshot, 1);
    let damaged = |error: SnapshotError| {
        Failed(format!("cell {cell}: its leader sent no state: {error}; nothing was saved"), exit::DAMAGED)
    };
    loop {
        loader.push(&piece.bytes).map_err(damaged)?;
        file.write(id, piece.is_last, &piece.bytes).map_err(Failed::writing(&args.file))?;
        if piece.is_last {
            break;
        }
        match save.next(id, pieces).await? {
            Some(next) if next.snapshot == id => piece = next,
            Some(_) | None => return Ok(None),
        }
        pieces += 1;
    }
    let table = loader.finish().map_err(damaged)?;
    if table.applied() != id.index {
        return Err(damaged(SnapshotError::Contradiction("applied")));
    }
    Ok(Some(survey_of(cell, id, pieces, piece.bytes.len(), &table)))
}

fn survey_of(cell: CellId, id: SnapshotId, pieces: u32, last_bytes: usize, table: &Table) -> Survey {
    let mut last = Vec::new();
    lockstep_wal::encode_snapshot_piece(cell, id, pieces - 1, true, &vec![0; last_bytes], &mut last);
    let bytes = u64::from(pieces - 1) * SNAPSHOT_STRIDE_BYTES as u64 + last.len() as u64;
    Survey::new(cell, SnapshotInspection { id, bytes, pieces }, table)
}

fn from_directory(args: &SaveArgs, data: &Path) -> Result<Survey, Failed> {
    let (cell, place) = (CellId(args.cell), data.display());
    let is_inside = args.file.parent().map(|parent| match parent.as_os_str().is_empty() {
        true => Path::new(".").canonicalize(),
        false => parent.canonicalize(),
    });
    if let (Some(Ok(parent)), Ok(data)) = (is_inside, data.canonicalize())
        && parent.starts_with(data)
    {
        let why =
            format!("{place}: nothing is written into a data directory; choose another place for the file");
        return Err(Failed(why, exit::FAILED));
    }
    let mut opened = open(data).map_err(|(why, code)| Failed(why, code))?;
    let superblock = opened.superblock;
    let directory = &mut opened.directory;
    let disk = |error: DiskError| Failed(format!("{place}: {error}"), exit::FAILED);
    directory.lock().map_err(disk)?;
    let shard = ShardId(shard_of(cell, superblock.shards));
    directory.freeze(shard).map_err(disk)?;
    let (mut restore, mut is_any_there) = (Restore::new(), false);
    let inspected = inspect(directory, &superblock, shard, &mut |_, record| {
        if record.cell == cell {
            is_any_there = true;
            let head = RecordHead { kind: record.kind, term: record.term, index: record.index };
            restore.on_record(head, record.payload);
        }
    });
    let inspection = inspected.map_err(|refusal| Failed(format!("{place}: {refusal}"), code_of(&refusal)))?;
    if !is_any_there {
        return Err(Failed(format!("{place}: there is nothing of cell {cell}"), exit::FAILED));
    }
    let counting = inspection.snapshots.get(&cell).cloned().unwrap_or_default();
    let complaints = restore.load(Limits::default(), counting, |id, visit| {
        load_snapshot(directory, cell, id, visit).map_err(|refusal| refusal.to_string())
    });
    for complaint in complaints {
        complain(&format!("{place}: {complaint}; an older one is looked for"));
    }
    let (id, mut table) = restore
        .into_last_state(Limits::default())
        .map_err(|why| Failed(format!("{place}: cell {cell}: {why}; nothing was saved"), exit::DAMAGED))?;
    if inspection.is_torn {
        complain(&format!(
            "{place}: the last batch of the log is not whole; it was never confirmed, and is left out"
        ));
    }
    let writing = Failed::writing(&args.file);
    let mut file = BackupWriter::create(&args.file, cell, args.force).map_err(&writing)?;
    table.begin_snapshot();
    let (mut bytes, mut pieces) = (Vec::new(), 0);
    loop {
        bytes.clear();
        let is_last = table.write_snapshot(&mut bytes, SNAPSHOT_PIECE_BYTES_MAX);
        file.write(id, is_last, &bytes).map_err(&writing)?;
        pieces += 1;
        if is_last {
            break;
        }
    }
    file.finish().map_err(&writing)?;
    Ok(survey_of(cell, id, pieces, bytes.len(), &table))
}
