//! `lockstep restore`: a freshly formatted data directory gets the state of a backup, under a new epoch.
//!
//! Invariant: the epoch is given by whoever restores, never taken from the backup, which does not know what was granted
//! after it. Deliberately absent: other members; each is restored for itself, from the same file.

use std::path::PathBuf;

use clap::Args;
use lockstep_core::table::Table;
use lockstep_server::restore::{Restoration, restore};
use lockstep_wire::limit::TTL_MS_MAX;
use lockstep_wire::{CellId, Epoch, FencingToken, SnapshotId};
use serde_json::json;

use super::snapshot::{backup, load};
use super::{complain, counted, exit, print};

/// Give a freshly formatted data directory the state of a backup, before its node's first start.
///
/// Restore every member of the cell, from the same file and with the same epoch. All sessions are void, and so is what
/// they held; every new token is above every old one.
#[derive(Args, Debug)]
pub(crate) struct RestoreArgs {
    /// A backup, as `lockstep snapshot save` wrote it.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The node's data directory, formatted and never used.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The cell; the backup must be of it.
    #[arg(long, value_name = "ID", default_value_t = 0)]
    cell: u16,
    #[command(flatten)]
    numbers: Numbers,
    /// Print JSON; 64-bit numbers as strings.
    #[arg(long)]
    json: bool,
}

/// What new tokens are to be above.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct Numbers {
    /// The new epoch; above every one that the cell has had.
    #[arg(long, value_name = "EPOCH", value_parser = clap::value_parser!(u16).range(1..i64::from(Epoch::LIMIT)))]
    epoch: Option<u16>,
    /// The greatest token that anybody has on record, instead: the new epoch is the one above the epoch of that token.
    #[arg(long, value_name = "TOKEN")]
    above_token: Option<u64>,
}

impl Numbers {
    fn epoch(&self) -> Option<Epoch> {
        let above = || FencingToken(self.above_token?).epoch().0.checked_add(1);
        self.epoch.or_else(above).filter(|epoch| *epoch < Epoch::LIMIT).map(Epoch)
    }
}

/// What was done.
struct Done {
    before: Table,
    id: SnapshotId,
    epoch: Epoch,
    restoration: Restoration,
}

pub(super) fn run(args: &RestoreArgs) -> u8 {
    match restored(args) {
        Ok(done) => {
            print(&if args.json { done.json(args).to_string() } else { done.describe(args) });
            0
        }
        Err((why, code)) => {
            complain(&why);
            code
        }
    }
}

fn restored(args: &RestoreArgs) -> Result<Done, (String, u8)> {
    let (cell, place) = (CellId(args.cell), args.file.display());
    let refuse = |why: String| (why, exit::FAILED);
    let mut file = backup(&args.file)?;
    if file.cell != cell {
        let why = format!("{place} is a backup of cell {}, not of cell {cell}", file.cell);
        return Err(refuse(why));
    }
    let (cell_of_file, index) = (file.cell, file.id.index);
    let (inspection, before) = load(&mut file, cell_of_file, index).map_err(|trouble| {
        let why = trouble.of_backup(&args.file);
        (format!("{why}; nothing was changed; take another backup"), trouble.code())
    })?;
    let epoch = args.numbers.epoch().ok_or_else(|| {
        refuse(
            "no epoch is above the one of that token; no cell has ever granted it, look where it comes from"
                .to_owned(),
        )
    })?;
    let mut table = before.restored(epoch).map_err(|error| {
        let next = match args.numbers.above_token {
            Some(_) => "that token is older than the backup: give the greatest that anybody has on record, or --epoch",
            None => "give a greater one",
        };
        refuse(format!("{place}: {error}; {next}"))
    })?;
    let id = inspection.id;
    let restoration = restore(&args.data, cell, id, &mut table).map_err(|error| refuse(error.to_string()))?;
    Ok(Done { before, id, epoch, restoration })
}

impl Done {
    fn first_token(&self) -> u64 {
        self.epoch.with(self.id.index.next())
    }

    fn describe(&self, args: &RestoreArgs) -> String {
        let Done { before, id, epoch, restoration } = self;
        let (data, cell, node) = (args.data.display(), args.cell, restoration.node);
        let done = match restoration.was_done_before {
            true => "was restored before, just so, in",
            false => "is restored in",
        };
        format!(
            "cell {cell} of node {node} {done} {data}\n  \
             the state after entry {id} of epoch {}, without its {} and {}, which are void\n  \
             epoch {epoch}: new tokens begin at {}\n  \
             nothing is granted for {} s after the cell has a leader; requests wait\n\
             next: restore the cell for every other node with the same file and --epoch {epoch}, then start all nodes",
            before.epoch(),
            counted(before.sessions_len() as u64, "session"),
            counted(before.holds_len() as u64, "hold"),
            self.first_token(),
            TTL_MS_MAX / 1_000,
        )
    }

    fn json(&self, args: &RestoreArgs) -> serde_json::Value {
        json!({
            "cell": args.cell,
            "node": self.restoration.node.0,
            "index": self.id.index.to_string(),
            "term": self.id.term.to_string(),
            "epoch_before": self.before.epoch().0,
            "epoch": self.epoch.0,
            "first_token": self.first_token().to_string(),
            "quiet_ms": TTL_MS_MAX,
            "void_sessions": self.before.sessions_len(),
            "void_holds": self.before.holds_len(),
            "was_done_before": self.restoration.was_done_before,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_epoch_above_a_token_is_above_every_token_of_its_epoch() {
        let above = |token| Numbers { epoch: None, above_token: Some(token) }.epoch();
        assert_eq!(above(0), Some(Epoch(1)));
        assert_eq!(above((1 << 48) - 1), Some(Epoch(1)));
        assert_eq!(above(1 << 48), Some(Epoch(2)));
        assert_eq!(above((3 << 48) + 77), Some(Epoch(4)));
        assert_eq!(above(u64::from(Epoch::LIMIT - 1) << 48), None, "there is none above the last one");
        assert_eq!(above(u64::MAX), None);
        assert_eq!(Numbers { epoch: Some(9), above_token: None }.epoch(), Some(Epoch(9)));
    }
}
