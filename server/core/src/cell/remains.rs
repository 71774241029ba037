//! What a replica needs no more and what is too large to be freed at once: a table that its leader's has replaced, or one
//! that never came to be whole, and what snapshots that are over have left behind.
//!
//! Invariant: a tick frees a small part, and the ticks for it leave the loop most of its time. Deliberately absent: the
//! parts, which are the table's.

use super::Cell;
use crate::table::Table;
use crate::time::{Span, Time};

/// Between two parts.
const PAUSE: Span = Span::from_ms(2);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Remains {
    tables: Vec<Table>,
    freed_at: Time,
}

impl Remains {
    /// Nothing is wanted of this table any more.
    pub(super) fn add(&mut self, table: Table) {
        self.tables.push(table);
    }

    #[cfg(test)]
    pub(super) fn tables_len(&self) -> usize {
        self.tables.len()
    }
}

impl Cell {
    /// Frees a part of what remains, if it is time.
    pub(super) fn free_remains(&mut self, now: Time) {
        if now < self.remains_deadline() {
            return;
        }
        self.remains.freed_at = now;
        if self.table.has_remains() {
            self.table.free_some();
        } else if let Some(table) = self.remains.tables.last_mut()
            && !table.free_part()
        {
            self.remains.tables.pop();
        }
    }

    /// When the next part is to be freed.
    pub(super) fn remains_deadline(&self) -> Time {
        let is_left = self.table.has_remains() || !self.remains.tables.is_empty();
        if is_left { self.remains.freed_at + PAUSE } else { Time::NEVER }
    }
}
