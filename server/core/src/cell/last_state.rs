//! The state that a replica's log ends with, for a backup of a node that does not run.
//!
//! Invariant: every entry of the log is in it, committed or not, so that nothing that this replica has confirmed is
//! missing. What was not committed may never have been; so it is a state to restore a cell from under a new epoch, and
//! nothing else. Deliberately absent: which replica's log goes furthest; whoever has several compares them.

use lockstep_wire::entry::Command;
use lockstep_wire::{Epoch, SnapshotId};

use super::Restore;
use crate::table::{Limits, Outcomes, Table};

impl Restore {
    /// The state after the last entry of the log, and which entry that is. [`Restore::load`] comes before.
    ///
    /// # Errors
    /// When there is none, because entries are gone and no snapshot that has them is whole, or there never was an entry,
    /// or one cannot be applied; in words for a person.
    pub fn into_last_state(self, limits: Limits) -> Result<(SnapshotId, Table), String> {
        let Restore { restored, table } = self;
        if restored.lacks_state() {
            return Err("its first entries are gone, and no snapshot that has them is whole".to_owned());
        }
        let last = restored.last_entry().ok_or("it has no entry")?;
        let mut table = table.unwrap_or_else(|| Table::new(Epoch(0), limits));
        let mut outcomes = Outcomes::new();
        while table.applied() < last.index {
            let index = table.applied().next();
            let payload = restored.payload(index).expect("entries are contiguous behind the state");
            let command = Command::decode(payload)
                .map_err(|error| format!("entry {index} cannot be applied: {error}"))?;
            table.apply(index, &command, &mut outcomes);
            outcomes.clear();
        }
        Ok((last, table))
    }
}
