//! What the clients of a soak have in common: which names they take, and how far they have come.
//!
//! Invariant: no two clients ever take the same name. Deliberately absent: what a client is at.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far the run has come.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// Acquires and releases that have succeeded.
    pub(super) writes: AtomicU64,
    /// Lasting locks that are held.
    pub(super) held: AtomicU64,
    /// Names that nobody had used before, each acquired once.
    pub(super) names_new: AtomicU64,
    /// Acquires of names that had been used before, each under a greater token.
    pub(super) names_again: AtomicU64,
    /// Clients that have given all of theirs back.
    pub(super) clients_done: AtomicU64,
    pub(super) clients: AtomicU64,
    pub(super) failures: AtomicU64,
    /// From here on lasting locks are given back.
    pub(super) is_enough: AtomicBool,
}

impl Course {
    pub(super) fn has_failed(&self) -> bool {
        self.failures.load(Ordering::Relaxed) > 0
    }

    /// Whether every client has given its lasting locks back.
    pub(super) fn is_returned(&self) -> bool {
        self.clients_done.load(Ordering::Relaxed) == self.clients.load(Ordering::Relaxed)
    }
}

/// What all clients of the run have in common.
#[derive(Debug)]
pub(super) struct Plan {
    /// Tells the names of this run from those of any other.
    pub(super) run: u64,
    pub(super) ttl_ms: u32,
    pub(super) clients: u32,
    pub(super) live: u32,
    pub(super) writes_enough: u64,
    /// Names of each client that come again.
    pub(super) names_each: u32,
    pub(super) course: Course,
}

impl Plan {
    /// How many lasting locks are this client's.
    pub(super) fn share(&self, client: u32) -> usize {
        let rest = u32::from(client < self.live % self.clients);
        (self.live / self.clients + rest) as usize
    }

    pub(super) fn name(&self, client: u32, kind: &str, number: u64) -> String {
        format!("/ls/soak/{:016x}/{kind}-{client}-{number}", self.run)
    }

    /// Which of its names a client's pair takes: in turns one that comes again and one that never does, which has no number.
    pub(super) fn name_again(&self, pair: u64) -> Option<u32> {
        let turn =
            u32::try_from(pair / 2 % u64::from(self.names_each)).expect("names are counted in 32 bits");
        pair.is_multiple_of(2).then_some(turn)
    }

    pub(super) fn passing_name(&self, client: u32, pair: u64) -> String {
        match self.name_again(pair) {
            Some(number) => self.name(client, "again", u64::from(number)),
            None => self.name(client, "new", pair / 2),
        }
    }

    pub(super) fn is_enough(&self) -> bool {
        self.course.is_enough.load(Ordering::Relaxed)
    }

    pub(super) fn on_write(&self) {
        if self.course.writes.fetch_add(1, Ordering::Relaxed) + 1 >= self.writes_enough {
            self.course.is_enough.store(true, Ordering::Relaxed);
        }
    }
}
