//! Freeing a whole table bit by bit, when another has taken its place.
//!
//! Invariant: a part is so small that a turn of the loop does not notice it. Deliberately absent: when.

use super::cell::Table;

/// Sessions in each of the indexes, marks, and nodes of names, that go with one part.
pub(super) const ROWS: usize = 1_024;
const NODES: usize = 32;

impl Table {
    /// Frees a part of a table that nothing is wanted of any more; tells whether something is left. What is left can be
    /// freed, and nothing else.
    pub fn free_part(&mut self) -> bool {
        self.abandon_snapshot();
        let mut is_left = self.free_some();
        is_left |= self.sessions.free_page();
        is_left |= self.locks.free_page();
        is_left |= self.holds.free_page();
        is_left |= self.waits.free_page();
        for _ in 0..NODES {
            is_left |= self.locks_by_name.free_some();
        }
        for _ in 0..ROWS {
            is_left |= self.sessions_by_id.pop_first().is_some();
            is_left |= self.sessions_by_nonce.pop_first().is_some();
            is_left |= self.marks.pop_first().is_some();
        }
        is_left
    }
}
