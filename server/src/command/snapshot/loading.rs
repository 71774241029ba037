//! Reading a snapshot into a table, as a start would, and what can be wrong with it.
//!
//! Invariant: what is loaded verified piece by piece, and is a state whose last entry is the one that its name says.
//! Deliberately absent: which snapshots there are.

use std::fmt;
use std::path::Path;

use lockstep_core::table::{Limits, SnapshotError, Table, TableLoader};
use lockstep_server::backup::BackupFile;
use lockstep_wal::disk::{DiskError, FileName, StorageRead};
use lockstep_wal::layout::SNAPSHOT_STRIDE_BYTES;
use lockstep_wal::{SnapshotInspection, SnapshotRefusal, inspect_snapshot};
use lockstep_wire::{CellId, DecodeError, LogIndex};
use serde_json::{Value, json};

use super::super::exit;

/// Why a snapshot is not whole.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
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
    pub(super) fn is_gone(&self) -> bool {
        matches!(
            self,
            Trouble::File(
                SnapshotRefusal::Missing { .. } | SnapshotRefusal::Disk { error: DiskError::NotFound, .. }
            )
        )
    }

    /// Whether the bytes are wrong, or could not be had or understood.
    pub(crate) fn code(&self) -> u8 {
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

    /// For whoever knows the file as `place`, a backup: it has no name of a data directory's.
    pub(crate) fn of_backup(&self, place: &Path) -> String {
        let (text, place) = (self.to_string(), place.display().to_string());
        match self.file_and_offset().0 {
            Some(file) => text.replacen(&file.to_string(), &place, 1),
            None => format!("{place}: {text}"),
        }
    }

    /// Likewise.
    pub(super) fn json_of_backup(&self, place: &Path) -> Value {
        let mut json = self.json();
        (json["refusal"], json["file"]) = (json!(self.of_backup(place)), json!(place.display().to_string()));
        json
    }

    pub(super) fn json(&self) -> Value {
        let (file, offset) = self.file_and_offset();
        json!({
            "refusal": self.to_string(),
            "file": file.map(|file| file.to_string()),
            "offset": offset.map(|offset| offset.to_string()),
        })
    }
}

/// Reads a snapshot into a table.
pub(crate) fn load(
    storage: &mut dyn StorageRead,
    cell: CellId,
    index: LogIndex,
) -> Result<(SnapshotInspection, Table), Trouble> {
    let file = FileName::Snapshot { cell, index };
    // Every node has these.
    let mut loader = TableLoader::new(Limits::default());
    let (mut pieces, mut failed) = (0_u64, None);
    let visited = inspect_snapshot(storage, cell, index, &mut |bytes| {
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
    if table.applied() != index {
        return Err(state((0, SnapshotError::Contradiction("applied"))));
    }
    Ok((inspection, table))
}

/// Opens a backup; otherwise says why not, and with which code to end.
pub(crate) fn backup(path: &Path) -> Result<BackupFile, (String, u8)> {
    let place = path.display();
    match BackupFile::open(path) {
        Ok(Some(file)) => Ok(file),
        Ok(None) => Err((format!("{place} does not begin as a snapshot does"), exit::DAMAGED)),
        Err(error) => Err((format!("{place}: {error}"), exit::FAILED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_backup_is_named_once() {
        let file = FileName::Snapshot { cell: CellId(0), index: LogIndex(80) };
        let damaged = Trouble::File(SnapshotRefusal::Damaged { file, offset: 0 });
        assert_eq!(damaged.of_backup(Path::new("/b/x")), "/b/x is damaged at offset 0");
        let state =
            Trouble::State { file, offset: 9, error: SnapshotError::Trailing }.of_backup(Path::new("/b/x"));
        assert!(state.starts_with("/b/x, piece at offset 9: "), "{state}");
        let json = damaged.json_of_backup(Path::new("/b/x"));
        let wanted = json!({ "refusal": "/b/x is damaged at offset 0", "file": "/b/x", "offset": "0" });
        assert_eq!(json, wanted);
        let disk = Trouble::File(SnapshotRefusal::Disk { file: None, error: DiskError::NotFound });
        assert!(disk.of_backup(Path::new("/b/x")).starts_with("/b/x: "), "{disk}");
    }
}
