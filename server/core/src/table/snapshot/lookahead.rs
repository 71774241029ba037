//! The next locks of an index, with what they are made of already on its way from memory.
//!
//! A lock, its holder's hold, session and claims lie in four places, none of which the others are near to. Waited
//! for one after the other they would cost more than everything else about a slice; asked for by the batch, the waits
//! overlap.
//!
//! Invariant: what is given, and in which order, is what the index gives. Deliberately absent: long lines and crowds of
//! sharers, whose records are many to one lock.

use std::hint::black_box;

use crate::table::cell::Table;
use crate::table::record::LockSlot;

/// So many that the batch takes more than a KiB: when it is asked for that much, glibc's allocator joins the small pieces
/// that entries have freed. Asked in every slice of locks it finds few; asked but once in a snapshot of a million locks it takes
/// 0.9 ms.
const BATCH: usize = 64;

/// See the module.
pub(super) struct Lookahead<'a, I> {
    table: &'a Table,
    locks: I,
    batch: Vec<(&'a str, LockSlot)>,
    /// How many of the batch were given.
    given: usize,
}

impl<'a, I: Iterator<Item = (&'a str, &'a LockSlot)>> Lookahead<'a, I> {
    pub(super) fn new(table: &'a Table, locks: I) -> Lookahead<'a, I> {
        Lookahead { table, locks, batch: Vec::with_capacity(BATCH), given: 0 }
    }

    fn refill(&mut self) {
        self.batch.clear();
        self.given = 0;
        self.batch.extend(self.locks.by_ref().take(BATCH).map(|(name, slot)| (name, *slot)));
        // Each pass asks for what the pass before has found, for all of the batch.
        let table = self.table;
        let locks = || self.batch.iter().map(|(_, slot)| &table.locks[*slot]);
        let holds = || locks().filter_map(|lock| lock.holds.first()).map(|hold| &table.holds[hold]);
        let sessions = || holds().map(|hold| &table.sessions[hold.session]);
        black_box(locks().fold(0, |seen, lock| seen ^ lock.holds.len()));
        black_box(holds().fold(0, |seen, hold| seen ^ hold.acquires));
        black_box(sessions().fold(0, |seen, session| seen ^ session.claims.len()));
        black_box(
            sessions()
                .filter_map(|session| session.claims.first())
                .fold(0, |seen, claim| seen ^ claim.content),
        );
    }
}

impl<'a, I: Iterator<Item = (&'a str, &'a LockSlot)>> Iterator for Lookahead<'a, I> {
    type Item = (&'a str, LockSlot);

    fn next(&mut self) -> Option<(&'a str, LockSlot)> {
        if self.given == self.batch.len() {
            self.refill();
        }
        let next = self.batch.get(self.given).copied();
        self.given += usize::from(next.is_some());
        next
    }
}
