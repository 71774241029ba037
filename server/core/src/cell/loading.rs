//! A snapshot that is loaded before the log has said whether it counts.
//!
//! Whoever starts a replica may guess which snapshot is the newest, load it while the log is still being read, and spare
//! the payloads that it covers. Invariant: the log decides. What was loaded early is gone on from only if it is what would
//! have been loaded after the log; otherwise the records are taken again as if there had been no guess. Deliberately
//! absent: where the guess comes from.

use lockstep_wire::{LogIndex, SnapshotId};

use super::Restore;
use super::snapshot::finish_loading;
use crate::raft::Restored;
use crate::table::{Limits, Table, TableLoader};

/// The state of a whole snapshot, which may count or not.
#[derive(Debug)]
pub struct LoadedSnapshot {
    pub(super) snapshot: SnapshotId,
    pub(super) table: Table,
}

impl LoadedSnapshot {
    /// Loads a snapshot. `read` reads it, hands out its bytes in order and tells which one it is, or says why it cannot.
    ///
    /// # Errors
    /// When it is not whole, in words for a person.
    pub fn load(
        limits: Limits,
        read: impl FnOnce(&mut dyn FnMut(&[u8])) -> Result<SnapshotId, String>,
    ) -> Result<LoadedSnapshot, String> {
        let mut loader = TableLoader::new(limits);
        let snapshot = read(&mut |bytes| {
            // What is wrong is said at the end once more.
            let _ = loader.push(bytes);
        })?;
        let table = finish_loading(&mut loader, snapshot)?;
        Ok(LoadedSnapshot { snapshot, table })
    }
}

impl Restore {
    /// Nothing yet, of a replica that is likely to go on from a snapshot through this index: the payloads of entries
    /// that it covers are not kept. [`Restore::go_on_from`] has to follow the last record.
    pub fn behind(through: LogIndex) -> Restore {
        Restore { restored: Restored::behind(through), table: None }
    }

    /// Goes on from what was loaded early if it is the newest snapshot that counts, after the last record. Tells whether
    /// it is; otherwise this is of no use, and another one has to take the records again.
    #[must_use]
    pub fn go_on_from(&mut self, early: LoadedSnapshot, newest: Option<SnapshotId>) -> bool {
        let counts = newest == Some(early.snapshot);
        if counts {
            self.adopt(early);
        }
        counts
    }

    /// Whether there is a state to go on from.
    pub fn is_loaded(&self) -> bool {
        self.table.is_some()
    }
}
