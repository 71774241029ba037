//! The real table and the model, taken through one log side by side.
//!
//! Invariant: what is told of an entry is what the table tells, so that whoever judges it judges the table; and it is
//! told only if the model tells the same, unless the model is not asked, as when it is to be seen what the other judges
//! see by themselves. Deliberately absent: who has committed the entries.

use lockstep_core::table::{Limits, Outcome, Table};
use lockstep_wire::entry::Command;
use lockstep_wire::{Epoch, LogIndex};

use super::Model;
use super::compare::{Difference, compare, same};

/// See the module.
#[derive(Debug)]
pub struct Twins {
    table: Table,
    model: Model,
    is_model_asked: bool,
}

impl Twins {
    /// Both before the first entry.
    pub fn new(epoch: Epoch, limits: Limits, is_model_asked: bool) -> Twins {
        Twins { table: Table::new(epoch, limits), model: Model::new(epoch, limits), is_model_asked }
    }

    /// The cell is restored from a backup, which gives this table.
    pub fn restore(&mut self, table: Table) {
        self.model = Model::restored(table.epoch(), *table.limits(), table.applied());
        self.table = table;
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Applies an entry to both, and tells what it did to the table.
    ///
    /// # Errors
    /// The model tells otherwise.
    pub fn apply(&mut self, index: LogIndex, command: &Command<'_>) -> Result<Vec<Outcome>, Difference> {
        let mut outcomes = Vec::new();
        self.table.apply(index, command, &mut outcomes);
        let expected = self.model.apply(index, command);
        if self.is_model_asked {
            same(&format!("what entry {index} does, {command:?}"), &outcomes, &expected)?;
        }
        Ok(outcomes)
    }

    /// Holds a table that has applied as much against the model.
    ///
    /// # Errors
    /// Where they differ.
    pub fn compare(&self, table: &Table) -> Result<(), Difference> {
        if self.is_model_asked { compare(table, &self.model) } else { Ok(()) }
    }
}
