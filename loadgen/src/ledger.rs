//! What the simulated clients believe to hold, written down apart from client and server to check both (ARCHITECTURE
//! section 1, "Grant").
//!
//! Two things are checked whenever a client hears of a grant of an exclusive lock: its token is greater than every
//! token of that name heard of before, and nobody else of this run believes to hold the name at that moment. The first
//! is sound in the order in which clients hear of grants: the next grant is made only after the holder has heard of his
//! own and given it up, or has stopped believing in his session.
//!
//! Invariant: a belief is on the books from before its client acts on it until before the client gives it up, or until
//! the deadline that its session had when it was granted, so that a violation is never reported without one. Beats after the
//! grant are not followed: a hold that outlives that deadline is no longer watched. Deliberately absent: shared holds.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_client::core::Time;
use lockstep_wire::FencingToken;

/// Violations that are kept in words; the rest is counted.
const VIOLATIONS_KEPT_MAX: usize = 16;

/// A name of the run, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameIndex(pub u32);

/// A simulated client of the run, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientIndex(pub u32);

/// What a client believes of a name since its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belief {
    /// Who.
    pub client: ClientIndex,
    /// Under which token.
    pub token: FencingToken,
    /// At least until then, unless he gives it up.
    pub until: Time,
}

/// What must never be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A grant came with a token that is not above one that was heard of before.
    TokenNotAbove {
        /// Of which name.
        name: NameIndex,
        /// The grant.
        granted: Belief,
        /// The greatest token before it.
        before: FencingToken,
    },
    /// A grant came while somebody else believed to hold the name.
    TwoHolders {
        /// Which name.
        name: NameIndex,
        /// The grant.
        granted: Belief,
        /// What the other believed.
        other: Belief,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::TokenNotAbove { name, granted, before } => write!(
                f,
                "name {}: client {} was granted token {}, not above token {before} heard of before",
                name.0, granted.client.0, granted.token
            ),
            Violation::TwoHolders { name, granted, other } => write!(
                f,
                "name {}: client {} was granted token {} while client {} held it with token {}",
                name.0, granted.client.0, granted.token, other.client.0, other.token
            ),
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    token_max: FencingToken,
    holder: Option<Belief>,
}

/// The books of one run, shared by its executors.
#[derive(Debug)]
pub struct Ledger {
    entries: Vec<Mutex<Entry>>,
    violations_total: AtomicU64,
    kept: Mutex<Vec<Violation>>,
}

impl Ledger {
    /// Empty books for so many names.
    pub fn new(names: u32) -> Ledger {
        Ledger {
            entries: (0..names).map(|_| Mutex::default()).collect(),
            violations_total: AtomicU64::new(0),
            kept: Mutex::default(),
        }
    }

    /// A client hears of a grant; `now` is not earlier than that.
    ///
    /// # Panics
    /// For a name that the books do not have.
    pub fn on_granted(&self, name: NameIndex, granted: Belief, now: Time) {
        let mut entry = self.entry(name);
        if granted.token <= entry.token_max {
            self.report(Violation::TokenNotAbove { name, granted, before: entry.token_max });
        }
        if let Some(other) = entry.holder
            && other.client != granted.client
            && now < other.until
        {
            self.report(Violation::TwoHolders { name, granted, other });
        }
        entry.token_max = entry.token_max.max(granted.token);
        entry.holder = Some(granted);
    }

    /// A client stops believing in its hold; to be said before the cell can know of it.
    ///
    /// # Panics
    /// For a name that the books do not have.
    pub fn on_given_up(&self, name: NameIndex, client: ClientIndex, token: FencingToken) {
        let mut entry = self.entry(name);
        if entry.holder.is_some_and(|holder| holder.client == client && holder.token == token) {
            entry.holder = None;
        }
    }

    /// How many violations there were.
    pub fn violations_total(&self) -> u64 {
        self.violations_total.load(Ordering::Relaxed)
    }

    /// The first of them.
    pub fn violations(&self) -> Vec<Violation> {
        self.kept.lock().expect("nobody panics with the lock").clone()
    }

    fn entry(&self, name: NameIndex) -> std::sync::MutexGuard<'_, Entry> {
        self.entries[name.0 as usize].lock().expect("nobody panics with the lock")
    }

    fn report(&self, violation: Violation) {
        self.violations_total.fetch_add(1, Ordering::Relaxed);
        let mut kept = self.kept.lock().expect("nobody panics with the lock");
        if kept.len() < VIOLATIONS_KEPT_MAX {
            kept.push(violation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: NameIndex = NameIndex(0);

    fn belief(client: u32, token: u64, until: u64) -> Belief {
        Belief { client: ClientIndex(client), token: FencingToken(token), until: Time(until) }
    }

    #[test]
    fn grants_one_after_the_other_are_fine() {
        let ledger = Ledger::new(1);
        for token in 1..10 {
            let client = u32::try_from(token % 3).expect("small");
            ledger.on_granted(NAME, belief(client, token, 1_000), Time(token));
            ledger.on_given_up(NAME, ClientIndex(client), FencingToken(token));
        }
        assert_eq!(ledger.violations_total(), 0);
    }

    #[test]
    fn a_grant_while_another_believes_is_a_violation() {
        let ledger = Ledger::new(1);
        ledger.on_granted(NAME, belief(1, 5, 1_000), Time(10));
        ledger.on_granted(NAME, belief(2, 6, 1_000), Time(999));
        let other = belief(1, 5, 1_000);
        let granted = belief(2, 6, 1_000);
        assert_eq!(ledger.violations(), [Violation::TwoHolders { name: NAME, granted, other }]);
    }

    #[test]
    fn a_grant_at_the_deadline_of_the_last_holder_is_fine() {
        let ledger = Ledger::new(1);
        ledger.on_granted(NAME, belief(1, 5, 1_000), Time(10));
        ledger.on_granted(NAME, belief(2, 6, 2_000), Time(1_000));
        assert_eq!(ledger.violations_total(), 0);
    }

    #[test]
    fn a_token_heard_of_twice_or_out_of_order_is_a_violation() {
        let ledger = Ledger::new(2);
        for token in [5, 5, 4] {
            ledger.on_granted(NAME, belief(1, token, 1_000), Time(10));
            ledger.on_given_up(NAME, ClientIndex(1), FencingToken(token));
        }
        ledger.on_granted(NameIndex(1), belief(1, 1, 1_000), Time(10));
        assert_eq!(ledger.violations_total(), 2, "names have tokens of their own");
        let before = FencingToken(5);
        let expected = [5, 4].map(|token| Violation::TokenNotAbove {
            name: NAME,
            granted: belief(1, token, 1_000),
            before,
        });
        assert_eq!(ledger.violations(), expected);
    }

    #[test]
    fn an_old_holder_who_gives_up_late_does_not_take_the_new_one_off_the_books() {
        let ledger = Ledger::new(1);
        ledger.on_granted(NAME, belief(1, 5, 100), Time(10));
        ledger.on_granted(NAME, belief(2, 6, 1_000), Time(200));
        ledger.on_given_up(NAME, ClientIndex(1), FencingToken(5));
        ledger.on_granted(NAME, belief(3, 7, 1_000), Time(300));
        assert_eq!(ledger.violations_total(), 1);
    }

    #[test]
    fn violations_beyond_the_kept_ones_are_counted() {
        let ledger = Ledger::new(1);
        for _ in 0..100 {
            ledger.on_granted(NAME, belief(1, 1, 0), Time(10));
        }
        assert_eq!(ledger.violations_total(), 99);
        assert_eq!(ledger.violations().len(), VIOLATIONS_KEPT_MAX);
    }
}
