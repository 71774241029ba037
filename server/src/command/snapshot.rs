//! `lockstep snapshot inspect` and `lockstep snapshot verify`: the snapshots in a node's data directory, or a backup; and
//! `lockstep snapshot save`, which makes one.
//!
//! Each is read as a start would read it, into a table, one after the other. Invariant: who looks changes nothing and takes
//! no lock, also beside a running node; no secret is shown. Deliberately absent: which snapshots count; that
//! is for the marks in the log, see `lockstep wal inspect`.

mod loading;
mod save;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use lockstep_core::table::Table;
use lockstep_ring::storage::ReadOnlyDirectory;
use lockstep_server::backup::BackupFile;
use lockstep_wal::disk::{FileName, StorageRead};
use lockstep_wal::{SnapshotInspection, SnapshotRefusal};
use lockstep_wire::{CellId, LogIndex};
use serde_json::{Value, json};

use self::loading::Trouble;
pub(super) use self::loading::{backup, load};
use super::wal::{LOOKS_MAX, Opened, no_such_cell, open};
use super::{complain, counted, exit, print};

/// Save a cell's state, or look into snapshots.
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
    Save(save::SaveArgs),
}

/// Which snapshots, and how they are shown.
#[derive(Debug, Args)]
struct Selection {
    /// A node's data directory, which may be in use and is not changed; or a backup.
    #[arg(value_name = "DIR|FILE")]
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
        SnapshotCommand::Save(args) => save::run(args),
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

impl Selection {
    fn has(&self, place: Place) -> bool {
        self.cell.is_none_or(|cell| cell == place.cell.0)
            && self.index.is_none_or(|index| index == place.index.0)
    }

    fn say(&self, trouble: &Trouble, is_backup: bool) -> String {
        match is_backup {
            true => trouble.of_backup(&self.data),
            false => format!("{}: {trouble}", self.data.display()),
        }
    }

    fn trouble_json(&self, trouble: &Trouble, is_backup: bool) -> Value {
        match is_backup {
            true => trouble.json_of_backup(&self.data),
            false => trouble.json(),
        }
    }

    /// Reads every snapshot that is asked for.
    fn survey(
        &self,
        source: &mut Source,
        on: &mut dyn FnMut(Place, Result<Survey, Trouble>),
    ) -> Result<(), Trouble> {
        let is_any_there = match source {
            Source::Directory(opened) => self.survey_directory(&mut opened.directory, on)?,
            Source::Backup(file) => {
                let place = Place { cell: file.cell, index: file.id.index };
                let is_wanted = self.has(place);
                if is_wanted {
                    on(place, survey(file, place));
                }
                is_wanted
            }
        };
        match (self.cell, self.index) {
            (Some(cell), Some(index)) if !is_any_there => {
                let file = FileName::Snapshot { cell: CellId(cell), index: LogIndex(index) };
                Err(Trouble::File(SnapshotRefusal::Missing { file }))
            }
            _ => Ok(()),
        }
    }

    /// Says whether there was any. A running node replaces them: what is gone when its turn comes is no
    /// damage, and has a successor, so the directory is looked at again.
    fn survey_directory(
        &self,
        directory: &mut ReadOnlyDirectory,
        on: &mut dyn FnMut(Place, Result<Survey, Trouble>),
    ) -> Result<bool, Trouble> {
        let mut seen = BTreeSet::new();
        for _ in 0..LOOKS_MAX {
            let mut is_any_gone = false;
            for place in self.listed(directory)? {
                if seen.contains(&place) {
                    continue;
                }
                match survey_frozen(directory, place) {
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
        Ok(!seen.is_empty())
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

fn survey_frozen(directory: &mut ReadOnlyDirectory, place: Place) -> Result<Survey, Trouble> {
    let frozen = directory.freeze_snapshot(place.cell, place.index);
    frozen.map_err(|error| Trouble::File(SnapshotRefusal::Disk { file: Some(place.file()), error }))?;
    survey(directory, place)
}

fn survey(storage: &mut dyn StorageRead, place: Place) -> Result<Survey, Trouble> {
    let (inspection, table) = load(storage, place.cell, place.index)?;
    Ok(Survey::new(place.cell, inspection, &table))
}

/// Where snapshots are looked for.
enum Source {
    Directory(Opened),
    Backup(BackupFile),
}

impl Source {
    fn open(path: &Path) -> Result<Source, (String, u8)> {
        match path.is_file() {
            true => Ok(Source::Backup(backup(path)?)),
            false => Ok(Source::Directory(open(path)?)),
        }
    }

    fn is_backup(&self) -> bool {
        matches!(self, Source::Backup(_))
    }
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
fn refuse_unknown_cell(selection: &Selection, source: &mut Source) -> Result<(), String> {
    let Some(cell) = selection.cell.map(CellId) else { return Ok(()) };
    let data = selection.data.display();
    let opened = match source {
        Source::Directory(opened) => opened,
        Source::Backup(file) => return Err(format!("{data} is a backup of cell {}", file.cell)),
    };
    let cells = opened
        .cells()
        .map_err(|refusal| format!("{data}: whether there is a cell {cell} cannot be told: {refusal}"))?;
    if cells.contains(&cell) {
        return Ok(());
    }
    Err(no_such_cell(&selection.data, cell, &cells))
}

fn inspected(selection: &Selection) -> u8 {
    let mut source = match Source::open(&selection.data) {
        Ok(source) => source,
        Err((why, code)) => {
            complain(&why);
            return code;
        }
    };
    let is_backup = source.is_backup();
    let refused = |trouble: &Trouble| {
        complain(&selection.say(trouble, is_backup));
        trouble.code()
    };
    let (mut code, mut shown) = (0, Vec::new());
    let outcome = selection.survey(&mut source, &mut |place, outcome| match outcome {
        Ok(survey) => {
            if !selection.json {
                print(&survey.describe());
            }
            shown.push(survey.json());
        }
        Err(trouble) => {
            code = refused(&trouble);
            let mut json = selection.trouble_json(&trouble, is_backup);
            (json["cell"], json["index"]) = (json!(place.cell.0), json!(place.index.to_string()));
            shown.push(json);
        }
    });
    if let Err(trouble) = outcome {
        return refused(&trouble);
    }
    if shown.is_empty()
        && let Err(why) = refuse_unknown_cell(selection, &mut source)
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

/// All that is wrong is said; what comes first is the code, and what JSON has.
fn verified(selection: &Selection) -> u8 {
    let failed = |mut json: Value, code| {
        if selection.json {
            json["ok"] = json!(false);
            print(&json.to_string());
        }
        code
    };
    let refused = |why: String, code| {
        complain(&why);
        failed(json!({ "refusal": why }), code)
    };
    let mut source = match Source::open(&selection.data) {
        Ok(source) => source,
        Err((why, code)) => return refused(why, code),
    };
    let is_backup = source.is_backup();
    let (mut snapshots, mut bytes, mut trouble) = (0_u64, 0, None);
    let mut note = |found: Trouble| {
        complain(&selection.say(&found, is_backup));
        trouble.get_or_insert(found);
    };
    let outcome = selection.survey(&mut source, &mut |_, outcome| match outcome {
        Ok(survey) => {
            snapshots += 1;
            bytes += survey.inspection.bytes;
        }
        Err(found) => note(found),
    });
    if let Err(found) = outcome {
        note(found);
    }
    if let Some(trouble) = trouble {
        return failed(selection.trouble_json(&trouble, is_backup), trouble.code());
    }
    if snapshots == 0
        && let Err(why) = refuse_unknown_cell(selection, &mut source)
    {
        return refused(why, exit::FAILED);
    }
    if selection.json {
        print(&json!({ "ok": true, "snapshots": snapshots, "bytes": bytes.to_string() }).to_string());
    } else {
        print(&format!("ok: {}, {bytes} bytes", counted(snapshots, "snapshot")));
    }
    0
}
