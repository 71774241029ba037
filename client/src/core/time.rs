//! Time as the session core sees it, and the timers it keeps.
//!
//! Invariant: the core compares and adds times that its driver brings along; it never asks for one.
//! A key has at most one time in a [`Timers`].

use std::collections::{BTreeMap, BTreeSet};

/// A moment on a clock that does not stop while the machine is suspended (CLOCK_BOOTTIME), in ns since an
/// origin of the driver's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// A moment that never comes.
    pub const NEVER: Time = Time(u64::MAX);

    /// So many ms later.
    pub fn plus_ms(self, ms: u64) -> Time {
        self.plus_ns(ms.saturating_mul(1_000_000))
    }

    /// So many ns later.
    pub fn plus_ns(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }

    /// How many whole ms lie between `earlier` and this moment; 0 when it is not earlier.
    pub fn ms_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0) / 1_000_000
    }
}

/// When something is due, by key.
#[derive(Debug)]
pub(super) struct Timers<K> {
    by_time: BTreeSet<(Time, K)>,
    by_key: BTreeMap<K, Time>,
}

impl<K: Copy + Ord> Timers<K> {
    pub(super) fn new() -> Timers<K> {
        Timers { by_time: BTreeSet::new(), by_key: BTreeMap::new() }
    }

    /// Sets the key's time, in place of the one that it had.
    pub(super) fn set(&mut self, key: K, at: Time) {
        self.clear(key);
        if at < Time::NEVER {
            self.by_key.insert(key, at);
            self.by_time.insert((at, key));
        }
    }

    pub(super) fn clear(&mut self, key: K) {
        if let Some(at) = self.by_key.remove(&key) {
            self.by_time.remove(&(at, key));
        }
    }

    /// The earliest time of all keys.
    pub(super) fn first(&self) -> Option<Time> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes the first key whose time is `until` or earlier.
    pub(super) fn take_due(&mut self, until: Time) -> Option<K> {
        let (at, key) = *self.by_time.first()?;
        if at > until {
            return None;
        }
        self.clear(key);
        Some(key)
    }
}
