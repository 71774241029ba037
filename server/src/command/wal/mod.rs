//! `lockstep wal inspect` and `lockstep wal verify`: what is in a node's log.
//!
//! Invariant: nothing is changed and no lock is taken, so that both work beside a running node. What they say of its
//! tail is a moment's view, and may not be durable yet. Deliberately absent: repair.

mod entry;
mod show;
mod survey;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use lockstep_ring::storage::ReadOnlyDirectory;
use lockstep_wal::disk::{DiskError, FileName, ShardId};
use lockstep_wal::layout::BLOCK_BYTES;
use lockstep_wal::{Inspection, Refusal, SnapshotId, SnapshotRefusal, Superblock, inspect, load_snapshot};
use lockstep_wire::{CellId, LogIndex};
use serde_json::{Value, json};

use self::survey::{CellSurvey, Selection, ShardSurvey};
use super::{complain, counted, exit, print};

/// A running node may rotate its log while it is looked at, and what was seen then does not fit together. A refusal
/// counts when it is met twice.
pub(super) const LOOKS_MAX: usize = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Look into a node's log; changes nothing, and works beside a running node.
#[derive(Debug, Args)]
pub(crate) struct WalArgs {
    #[command(subcommand)]
    command: WalCommand,
}

#[derive(Debug, Subcommand)]
enum WalCommand {
    Inspect(InspectArgs),
    Verify(VerifyArgs),
}

/// Show what the log holds: segments, and of each cell its term, entries and records.
///
/// Beside a running node, what it says of the newest segment is a moment's view.
#[derive(Debug, Args)]
struct InspectArgs {
    /// The node's data directory.
    #[arg(value_name = "DIR")]
    data: PathBuf,
    /// Print JSON; 64-bit numbers as strings. With --entries, one object a line.
    #[arg(long)]
    json: bool,
    /// List the entries instead, one a line.
    #[arg(long)]
    entries: bool,
    /// Only those of this cell; with --entries.
    #[arg(long, requires = "entries", value_name = "ID")]
    cell: Option<u16>,
    /// Only those from this index on; with --entries.
    #[arg(long, requires = "entries", value_name = "INDEX", default_value_t = 0)]
    from: u64,
}

/// Read and verify the whole log as a start would, and the newest snapshot of each cell, which its mark in the log names; say ok,
/// or what is wrong.
///
/// Beside a running node, what it says of the newest segment is a moment's view.
#[derive(Debug, Args)]
struct VerifyArgs {
    /// The node's data directory.
    #[arg(value_name = "DIR")]
    data: PathBuf,
    /// Print JSON; 64-bit numbers as strings.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &WalArgs) -> u8 {
    match &args.command {
        WalCommand::Inspect(args) => inspected(args),
        WalCommand::Verify(args) => verified(args),
    }
}

/// A data directory and whose it is.
pub(super) struct Opened {
    pub(super) directory: ReadOnlyDirectory,
    pub(super) superblock: Superblock,
    /// Which copy of the superblock is damaged, counted from 0; the other one is used.
    damaged_copy: Option<usize>,
}

/// Opens a formatted directory, with a word about a damaged copy of its superblock; otherwise says why not, and with which
/// code to end.
pub(super) fn open(data: &Path) -> Result<Opened, (String, u8)> {
    let place = data.display();
    let mut directory =
        ReadOnlyDirectory::open(data).map_err(|error| (format!("{place}: {error}"), exit::FAILED))?;
    let refused = |refusal: Refusal| (format!("{place}: {refusal}"), code_of(&refusal));
    let superblock = Superblock::load(&mut directory).map_err(refused)?;
    let damaged_copy = Superblock::damaged_copy(&mut directory).map_err(refused)?;
    if let Some(copy) = damaged_copy {
        let file = data.join(FileName::Superblock.to_string());
        complain(&format!(
            "{}: one of its two copies is damaged (at offset {}); the other one is used. Look after the disk; the node says at \
             its next start how to mend it",
            file.display(),
            copy * BLOCK_BYTES
        ));
    }
    Ok(Opened { directory, superblock, damaged_copy })
}

/// A snapshot that counts, and is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LostSnapshot {
    cell: CellId,
    file: FileName,
    refusal: SnapshotRefusal,
}

impl Opened {
    fn shards(&self) -> std::ops::Range<u16> {
        0..self.superblock.shards
    }

    /// The cells that the logs have records of.
    pub(super) fn cells(&mut self) -> Result<BTreeSet<CellId>, Refusal> {
        let mut cells = BTreeSet::new();
        for shard in self.shards() {
            cells.extend(self.survey(shard, None)?.cells.into_keys());
        }
        Ok(cells)
    }

    /// Reads a shard and the snapshots that its newest marks name. A running node replaces those; one that is not whole
    /// counts when it is met twice.
    fn survey_with_snapshots(&mut self, shard: u16) -> Result<(ShardSurvey, Option<LostSnapshot>), Refusal> {
        let mut before = None;
        for _ in 0..LOOKS_MAX {
            let survey = self.survey(shard, None)?;
            let lost = self.lost_snapshot(&survey);
            if lost.is_none() || lost == before {
                return Ok((survey, lost));
            }
            before = lost;
            std::thread::sleep(BETWEEN_LOOKS);
        }
        Ok((self.survey(shard, None)?, before))
    }

    /// The first snapshot that a cell's newest mark names and that is not whole.
    fn lost_snapshot(&mut self, survey: &ShardSurvey) -> Option<LostSnapshot> {
        let marks = survey.cells.iter().filter_map(|(cell, of_cell)| Some((*cell, of_cell.mark?)));
        marks.into_iter().find_map(|(cell, (index, term))| {
            let id = SnapshotId { index, term };
            let file = FileName::Snapshot { cell, index };
            let frozen = self.directory.freeze_snapshot(cell, index);
            let frozen = frozen.map_err(|error| match error {
                DiskError::NotFound => SnapshotRefusal::Missing { file },
                error => SnapshotRefusal::Disk { file: Some(file), error },
            });
            let loaded = frozen.and_then(|()| load_snapshot(&mut self.directory, cell, id, &mut |_| {}));
            loaded.err().map(|refusal| LostSnapshot { cell, file, refusal })
        })
    }

    /// Reads a shard, again if need be.
    fn survey(&mut self, shard: u16, selection: Option<Selection>) -> Result<ShardSurvey, Refusal> {
        let mut refused = None;
        for _ in 0..LOOKS_MAX {
            match self.look(shard, selection) {
                Ok(survey) => return Ok(survey),
                Err(refusal) if refused == Some(refusal) => break,
                Err(refusal) => refused = Some(refusal),
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        Err(refused.expect("a look that does not succeed is refused"))
    }

    fn look(&mut self, shard: u16, selection: Option<Selection>) -> Result<ShardSurvey, Refusal> {
        let mut cells = BTreeMap::new();
        let inspection = self.walk(shard, selection, &mut cells)?;
        Ok(ShardSurvey { inspection, cells })
    }

    /// What stands before the damage of a shard that is refused.
    fn before_damage(&mut self, shard: u16, selection: Option<Selection>) -> BTreeMap<CellId, CellSurvey> {
        let mut cells = BTreeMap::new();
        // Why it is refused has been said.
        let _ = self.walk(shard, selection, &mut cells);
        cells
    }

    fn walk(
        &mut self,
        shard: u16,
        selection: Option<Selection>,
        cells: &mut BTreeMap<CellId, CellSurvey>,
    ) -> Result<Inspection, Refusal> {
        let shard = ShardId(shard);
        self.directory.freeze(shard).map_err(|error| Refusal::Disk { file: None, error })?;
        inspect(&mut self.directory, &self.superblock, shard, &mut |lsn, record| {
            survey::on_record(cells, selection, lsn, &record);
        })
    }
}

fn inspected(args: &InspectArgs) -> u8 {
    let mut opened = match open(&args.data) {
        Ok(opened) => opened,
        Err((why, code)) => {
            complain(&why);
            return code;
        }
    };
    let selection =
        args.entries.then_some(Selection { cell: args.cell.map(CellId), from: LogIndex(args.from) });
    let (mut code, mut known) = (0, BTreeSet::new());
    let mut shards: Vec<Value> = Vec::new();
    if !args.entries && !args.json {
        print(&show::superblock(&opened.superblock));
    }
    for shard in opened.shards() {
        match opened.survey(shard, selection) {
            Ok(survey) => {
                known.extend(survey.cells.keys().copied());
                match (args.entries, args.json) {
                    (true, _) => list(&survey.cells, args.json),
                    (false, true) => shards.push(show::shard_json(shard, &survey)),
                    (false, false) => print(&show::shard(shard, &survey)),
                }
            }
            Err(refusal) => {
                let cells = opened.before_damage(shard, selection);
                match (args.entries, args.json) {
                    (true, _) => list(&cells, args.json),
                    (false, true) => shards.push(show::refused_shard_json(shard, &refusal, &cells)),
                    (false, false) => print(&show::refused_shard(shard, &cells)),
                }
                complain(&format!("{}: shard {shard}: {refusal}", args.data.display()));
                code = code_of(&refusal);
            }
        }
    }
    if args.json && !args.entries {
        let mut json = show::superblock_json(&opened.superblock);
        json["damaged_superblock_copy"] = json!(opened.damaged_copy);
        json["shards"] = json!(shards);
        print(&json.to_string());
    }
    match args.cell.map(CellId) {
        Some(cell) if code == 0 && !known.contains(&cell) => {
            complain(&no_such_cell(&args.data, cell, &known));
            exit::FAILED
        }
        Some(_) | None => code,
    }
}

/// What is said to whoever asks for a cell that the logs have nothing of.
pub(super) fn no_such_cell(data: &Path, cell: CellId, known: &BTreeSet<CellId>) -> String {
    let known: Vec<String> = known.iter().map(CellId::to_string).collect();
    let (data, known) = (data.display(), known.join(", "));
    format!("{data}: there is no cell {cell}; the log has records of these: {known}")
}

fn list(cells: &BTreeMap<CellId, CellSurvey>, as_json: bool) {
    let mut lines = Vec::new();
    for (cell, of_cell) in cells {
        lines.extend(of_cell.listed.iter().map(|listed| match as_json {
            true => show::entry_json(*cell, listed).to_string(),
            false => show::entry(*cell, listed),
        }));
    }
    if !lines.is_empty() {
        print(&lines.join("\n"));
    }
}

fn verified(args: &VerifyArgs) -> u8 {
    let refused = |why: &str, mut json: Value, code| {
        complain(&format!("{}: {why}", args.data.display()));
        if args.json {
            json["ok"] = json!(false);
            print(&json.to_string());
        }
        code
    };
    let mut opened = match open(&args.data) {
        Ok(opened) => opened,
        Err((why, code)) => {
            complain(&why);
            if args.json {
                print(&json!({ "ok": false, "refusal": why }).to_string());
            }
            return code;
        }
    };
    let (mut segments, mut records, mut is_torn) = (0_u64, 0, false);
    for shard in opened.shards() {
        let (survey, lost) = match opened.survey_with_snapshots(shard) {
            Ok(survey) => survey,
            Err(refusal) => {
                let mut json = show::refusal_json(&refusal);
                json["shard"] = json!(shard);
                return refused(&format!("shard {shard}: {refusal}"), json, code_of(&refusal));
            }
        };
        for (cell, of_cell) in &survey.cells {
            let Some((index, why)) = &of_cell.unreadable else { continue };
            let why = format!("shard {shard}: entry {index} of cell {cell} cannot be read: {why}");
            let json = json!({ "refusal": why, "shard": shard, "cell": cell.0, "index": index.to_string() });
            return refused(&why, json, exit::DAMAGED);
        }
        if let Some(LostSnapshot { cell, file, refusal }) = lost {
            let why = format!(
                "shard {shard}: the newest snapshot of cell {cell} is not whole: {refusal}; a start tries an older one, or \
                 the leader's"
            );
            let json = json!({ "refusal": why, "shard": shard, "cell": cell.0, "file": file.to_string() });
            return refused(&why, json, exit::DAMAGED);
        }
        segments += survey.inspection.segments.len() as u64;
        records += survey.inspection.segments.iter().map(|segment| segment.records).sum::<u64>();
        is_torn |= survey.inspection.is_torn;
    }
    if args.json {
        print(
            &json!({
                "ok": true,
                "shards": opened.superblock.shards,
                "segments": segments,
                "records": records.to_string(),
                "torn": is_torn,
                "damaged_superblock_copy": opened.damaged_copy,
            })
            .to_string(),
        );
    } else {
        let torn = if is_torn { "; the last batch is not whole, a start cuts it" } else { "" };
        print(&format!(
            "ok: {}, {}, {}{torn}",
            counted(opened.superblock.shards, "shard"),
            counted(segments, "segment"),
            counted(records, "record")
        ));
    }
    0
}

/// Whether the bytes are wrong, or could not be had.
pub(super) fn code_of(refusal: &Refusal) -> u8 {
    match refusal {
        Refusal::SuperblockDamaged
        | Refusal::SuperblocksDiffer
        | Refusal::BadGeometry { .. }
        | Refusal::NoSegments { .. }
        | Refusal::SegmentMissing { .. }
        | Refusal::SegmentHeaderless { .. }
        | Refusal::SegmentLength { .. }
        | Refusal::Rot(_)
        | Refusal::Foreign(_)
        | Refusal::Contradiction(_) => exit::DAMAGED,
        Refusal::NotFormatted
        | Refusal::AlreadyFormatted { .. }
        | Refusal::OtherVersion { .. }
        | Refusal::Disk { .. } => exit::FAILED,
    }
}
