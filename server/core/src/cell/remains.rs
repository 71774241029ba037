//! What a replica needs no more and what is too large to be freed at once: a table that its leader's has replaced, or one
//! that never came to be whole, and what snapshots that are over have left behind.
//!
//! Invariant: a tick frees a small part, and the ticks for it leave the loop most of its time. Deliberately absent: the
//! parts, which are the table's.

use super::Cell;
use crate::table::{Table, TableLoader};
use crate::time::{Span, Time};

/// Between two parts.
const PAUSE: Span = Span::from_ms(2);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Remains {
    tables: Vec<Table>,
    loaders: Vec<TableLoader>,
    freed_at: Time,
}

impl Remains {
    /// Nothing is wanted of this table any more.
    pub(super) fn add(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// What this loader has loaded is not gone on with.
    pub(super) fn add_loader(&mut self, loader: TableLoader) {
        self.loaders.push(loader);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.tables.len() + self.loaders.len()
    }
}

impl Cell {
    /// Frees a part of what remains, if it is time.
    pub(super) fn free_remains(&mut self, now: Time) {
        if now < self.remains_deadline() {
            return;
        }
        self.remains.freed_at = now;
        let Remains { tables, loaders, .. } = &mut self.remains;
        if self.table.has_remains() {
            self.table.free_some();
        } else if let Some(table) = tables.last_mut() {
            if !table.free_part() {
                tables.pop();
            }
        } else if let Some(loader) = loaders.last_mut()
            && !loader.free_part()
        {
            loaders.pop();
        }
    }

    /// When the next part is to be freed.
    pub(super) fn remains_deadline(&self) -> Time {
        let Remains { tables, loaders, freed_at } = &self.remains;
        let is_left = self.table.has_remains() || !tables.is_empty() || !loaders.is_empty();
        if is_left { *freed_at + PAUSE } else { Time::NEVER }
    }
}
