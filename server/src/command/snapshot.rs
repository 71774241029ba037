//! `lockstep snapshot inspect` and `lockstep snapshot verify`: the snapshots in a node's data directory.
//!
//! Each is read as a start would read it, into a table, one after the other. Invariant: nothing is changed and no lock is
//! taken, so that both work beside a running node; no secret is shown. Deliberately absent: which snapshots count; that
//! is for the marks in the log, see `lockstep wal inspect`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use lockstep_core::table::{Limits, SnapshotError, Table, TableLoader};
use lockstep_ring::storage::ReadOnlyDirectory;
use lockstep_wal::disk::{DiskError, FileName, StorageRead};
use lockstep_wal::layout::SNAPSHOT_STRIDE_BYTES;
use lockstep_wal::{SnapshotInspection, SnapshotRefusal, inspect_snapshot};
use lockstep_wire::{CellId, DecodeError, LogIndex};
use serde_json::{Value, json};

use super::wal::{LOOKS_MAX, Opened, open};
use super::{complain, counted, exit, print};

/// Look into a node's snapshots; changes nothing, and works beside a running node.
#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
enum SnapshotCommand {
    /// Show what each snapshot holds: its cell, index and term, its size, and the state that comes of it.
    Inspect(Selection),
    /// Read every snapshot as a start would; say ok, or what is wrong with one and where.
    Verify(Selection),
}

/// Which snapshots, and how they are shown.
#[derive(Debug, Args)]
struct Selection {
    /// The node's data directory.
    #[arg(value_name = "DIR")]
    data: PathBuf,
    /// Only those of this cell.
    #[arg(long, value_name = "ID")]
    cell: Option<u16>,
    /// Only the one through this index; with --cell.
    #[arg(long, requires = "cell", value_name = "INDEX")]
    index: Option<u64>,
    /// Print JSON; 64-bit numbers as strings.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &SnapshotArgs) -> u8 {
    match &args.command {
        SnapshotCommand::Inspect(selection) => inspected(selection),
        SnapshotCommand::Verify(selection) => verified(selection),
    }
}

/// The name of a snapshot's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    cell: CellId,
    index: LogIndex,
}

impl Place {
    fn file(self) -> FileName {
        FileName::Snapshot { cell: self.cell, index: self.index }
    }
}

/// A snapshot that is whole.
#[derive(Debug)]
struct Survey {
    cell: CellId,
    inspection: SnapshotInspection,
    epoch: u16,
    digest: u64,
    sessions: usize,
    locks: usize,
    holds: usize,
    waits: usize,
}

/// Why a snapshot is not whole.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Its file.
    File(SnapshotRefusal),
    /// The file is intact, and what it says is no table: where the piece begins in which that showed.
    State { file: FileName, offset: u64, error: SnapshotError },
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::File(refusal) => refusal.fmt(f),
            Trouble::State { file, offset, error } => write!(f, "{file}, piece at offset {offset}: {error}"),
        }
    }
}

impl Trouble {
    /// Whether the file is gone: its node has a newer one, and does not need it any more.
    fn is_gone(&self) -> bool {
        matches!(
            self,
            Trouble::File(
                SnapshotRefusal::Missing { .. } | SnapshotRefusal::Disk { error: DiskError::NotFound, .. }
            )
        )
    }

    /// Whether the bytes are wrong, or could not be had or understood.
    fn code(&self) -> u8 {
        match self {
            Trouble::File(
                SnapshotRefusal::Damaged { .. }
                | SnapshotRefusal::CutShort { .. }
                | SnapshotRefusal::Foreign { .. },
            ) => exit::DAMAGED,
            Trouble::File(SnapshotRefusal::Missing { .. } | SnapshotRefusal::Disk { .. }) => exit::FAILED,
            Trouble::State { error, .. } => match error {
                SnapshotError::Layout(DecodeError::UnknownLevel(_)) | SnapshotError::OtherLimits => {
                    exit::FAILED
                }
                SnapshotError::Layout(_)
                | SnapshotError::Contradiction(_)
                | SnapshotError::Trailing
                | SnapshotError::Incomplete
                | SnapshotError::OtherDigest { .. } => exit::DAMAGED,
            },
        }
    }

    fn file_and_offset(&self) -> (Option<FileName>, Option<u64>) {
        match *self {
            Trouble::File(SnapshotRefusal::Damaged { file, offset }) => (Some(file), Some(offset)),
            Trouble::File(SnapshotRefusal::CutShort { file, bytes }) => (Some(file), Some(bytes)),
            Trouble::File(SnapshotRefusal::Foreign { file, .. } | SnapshotRefusal::Missing { file }) => {
                (Some(file), None)
            }
            Trouble::File(SnapshotRefusal::Disk { file, .. }) => (file, None),
            Trouble::State { file, offset, .. } => (Some(file), Some(offset)),
        }
    }

    fn json(&self) -> Value {
        let (file, offset) = self.file_and_offset();
        json!({
            "refusal": self.to_string(),
            "file": file.map(|file| file.to_string()),
            "offset": offset.map(|offset| offset.to_string()),
        })
    }
}

impl Selection {
    fn has(&self, place: Place) -> bool {
        self.cell.is_none_or(|cell| cell == place.cell.0)
            && self.index.is_none_or(|index| index == place.index.0)
    }

    /// Reads every snapshot that is asked for. A running node replaces them: what is gone when its turn comes is no
    /// damage, and has a successor, so the directory is looked at again.
    fn survey(
        &self,
        directory: &mut ReadOnlyDirectory,
        on: &mut dyn FnMut(Place, Result<Survey, Trouble>),
    ) -> Result<(), Trouble> {
        let mut seen = BTreeSet::new();
        for _ in 0..LOOKS_MAX {
            let mut is_any_gone = false;
            for place in self.listed(directory)? {
                if seen.contains(&place) {
                    continue;
                }
                match survey(directory, place) {
                    Err(trouble) if trouble.is_gone() => is_any_gone = true,
                    outcome => {
                        seen.insert(place);
                        on(place, outcome);
                    }
                }
            }
            directory.let_go();
            if !is_any_gone {
                break;
            }
        }
        match (self.cell, self.index) {
            (Some(cell), Some(index)) if seen.is_empty() => {
                let file = FileName::Snapshot { cell: CellId(cell), index: LogIndex(index) };
                Err(Trouble::File(SnapshotRefusal::Missing { file }))
            }
            _ => Ok(()),
        }
    }

    fn listed(&self, directory: &mut ReadOnlyDirectory) -> Result<BTreeSet<Place>, Trouble> {
        let files = directory.list();
        let files = files.map_err(|error| Trouble::File(SnapshotRefusal::Disk { file: None, error }))?;
        let places = files.into_iter().filter_map(|(file, _)| match file {
            FileName::Snapshot { cell, index } => Some(Place { cell, index }),
            FileName::Superblock
            | FileName::SuperblockStaging
            | FileName::Lock
            | FileName::FormatMark
            | FileName::Segment { .. }
            | FileName::Staging { .. }
            | FileName::SnapshotStaging { .. } => None,
        });
        Ok(places.filter(|place| self.has(*place)).collect())
    }
}

fn survey(directory: &mut ReadOnlyDirectory, place: Place) -> Result<Survey, Trouble> {
    let Place { cell, index } = place;
    let file = place.file();
    let frozen = directory.freeze_snapshot(cell, index);
    frozen.map_err(|error| Trouble::File(SnapshotRefusal::Disk { file: Some(file), error }))?;
    // Every node has these.
    let mut loader = TableLoader::new(Limits::default());
    let (mut pieces, mut failed) = (0_u64, None);
    let visited = inspect_snapshot(directory, cell, index, &mut |bytes| {
        if let Err(error) = loader.push(bytes) {
            failed.get_or_insert((pieces, error));
        }
        pieces += 1;
    });
    let inspection = visited.map_err(Trouble::File)?;
    let state = |(piece, error)| Trouble::State { file, offset: piece * SNAPSHOT_STRIDE_BYTES as u64, error };
    if let Some(failed) = failed {
        return Err(state(failed));
    }
    let table = loader.finish().map_err(|error| state((pieces - 1, error)))?;
    Ok(Survey::new(cell, inspection, &table))
}

impl Survey {
    fn new(cell: CellId, inspection: SnapshotInspection, table: &Table) -> Survey {
        Survey {
            cell,
            inspection,
            epoch: table.epoch().0,
            digest: table.digest(),
            sessions: table.sessions_len(),
            locks: table.locks_len(),
            holds: table.holds_len(),
            waits: table.waits_len(),
        }
    }

    fn describe(&self) -> String {
        let SnapshotInspection { id, bytes, pieces } = self.inspection;
        format!(
            "cell {}: snapshot through entry {} (term {})  {bytes} bytes, {}\n  \
             epoch {}  digest {:016x}  sessions {}, locks {}, holds {}, waits {}",
            self.cell,
            id.index,
            id.term,
            counted(pieces, "piece"),
            self.epoch,
            self.digest,
            self.sessions,
            self.locks,
            self.holds,
            self.waits
        )
    }

    fn json(&self) -> Value {
        let SnapshotInspection { id, bytes, pieces } = self.inspection;
        json!({
            "cell": self.cell.0,
            "index": id.index.to_string(),
            "term": id.term.to_string(),
            "bytes": bytes.to_string(),
            "pieces": pieces,
            "epoch": self.epoch,
            "digest": format!("{:016x}", self.digest),
            "sessions": self.sessions,
            "locks": self.locks,
            "holds": self.holds,
            "waits": self.waits,
        })
    }
}

/// What is wrong with asking for the snapshots of a cell of which there is none, if this node does not have that cell.
fn refuse_unknown_cell(selection: &Selection, opened: &mut Opened) -> Result<(), String> {
    let Some(cell) = selection.cell.map(CellId) else { return Ok(()) };
    let data = selection.data.display();
    let cells = opened
        .cells()
        .map_err(|refusal| format!("{data}: whether there is a cell {cell} cannot be told: {refusal}"))?;
    if cells.contains(&cell) {
        return Ok(());
    }
    let known: Vec<String> = cells.iter().map(CellId::to_string).collect();
    Err(format!("{data}: there is no cell {cell}; the log has records of these: {}", known.join(", ")))
}

fn inspected(selection: &Selection) -> u8 {
    let mut opened = match open(&selection.data) {
        Ok(opened) => opened,
        Err((why, code)) => {
            complain(&why);
            return code;
        }
    };
    let refused = |trouble: &Trouble| {
        complain(&format!("{}: {trouble}", selection.data.display()));
        trouble.code()
    };
    let (mut code, mut shown) = (0, Vec::new());
    let outcome = selection.survey(&mut opened.directory, &mut |place, outcome| match outcome {
        Ok(survey) => {
            if !selection.json {
                print(&survey.describe());
            }
            shown.push(survey.json());
        }
        Err(trouble) => {
            code = refused(&trouble);
            let mut json = trouble.json();
            (json["cell"], json["index"]) = (json!(place.cell.0), json!(place.index.to_string()));
            shown.push(json);
        }
    });
    if let Err(trouble) = outcome {
        return refused(&trouble);
    }
    if shown.is_empty()
        && let Err(why) = refuse_unknown_cell(selection, &mut opened)
    {
        complain(&why);
        return exit::FAILED;
    }
    if selection.json {
        print(&json!({ "snapshots": shown }).to_string());
    } else if shown.is_empty() {
        print("no snapshots");
    }
    code
}

fn verified(selection: &Selection) -> u8 {
    let refused = |why: &str, mut json: Value, code| {
        complain(why);
        if selection.json {
            json["ok"] = json!(false);
            print(&json.to_string());
        }
        code
    };
    let mut opened = match open(&selection.data) {
        Ok(opened) => opened,
        Err((why, code)) => return refused(&why, json!({ "refusal": why }), code),
    };
    let (mut snapshots, mut bytes, mut trouble) = (0_u64, 0, None);
    let outcome = selection.survey(&mut opened.directory, &mut |_, outcome| match outcome {
        Ok(survey) => {
            snapshots += 1;
            bytes += survey.inspection.bytes;
        }
        Err(found) => {
            trouble.get_or_insert(found);
        }
    });
    if let Some(trouble) = trouble.or(outcome.err()) {
        let why = format!("{}: {trouble}", selection.data.display());
        return refused(&why, trouble.json(), trouble.code());
    }
    if snapshots == 0
        && let Err(why) = refuse_unknown_cell(selection, &mut opened)
    {
        return refused(&why, json!({ "refusal": why }), exit::FAILED);
    }
    if selection.json {
        print(&json!({ "ok": true, "snapshots": snapshots, "bytes": bytes.to_string() }).to_string());
    } else {
        print(&format!("ok: {}, {bytes} bytes", counted(snapshots, "snapshot")));
    }
    0
}
