//! Lists that run through the records of a slab: append and removal from the middle in O(1).
//!
//! Invariant: a record is in one chain at most. Deliberately absent: search.

use super::slab::{Slab, Slot};

/// A record's neighbours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links<K> {
    before: Option<K>,
    after: Option<K>,
}

impl<K> Links<K> {
    /// Of a record that is in no chain yet.
    pub(crate) fn none() -> Links<K> {
        Links { before: None, after: None }
    }
}

impl<K: Copy> Links<K> {
    /// The record behind this one.
    pub(crate) fn after(&self) -> Option<K> {
        self.after
    }
}

/// A record that can be in a chain.
pub(crate) trait Linked<K> {
    fn links(&self) -> &Links<K>;
    fn links_mut(&mut self) -> &mut Links<K>;
}

/// A list of slots, oldest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain<K> {
    first: Option<K>,
    last: Option<K>,
    len: u32,
}

impl<K: Slot> Chain<K> {
    pub(crate) fn new() -> Chain<K> {
        Chain { first: None, last: None, len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn first(&self) -> Option<K> {
        self.first
    }

    pub(crate) fn push<T: Linked<K>>(&mut self, slab: &mut Slab<K, T>, slot: K) {
        *slab[slot].links_mut() = Links { before: self.last, after: None };
        match self.last {
            Some(last) => slab[last].links_mut().after = Some(slot),
            None => self.first = Some(slot),
        }
        self.last = Some(slot);
        self.len += 1;
    }

    pub(crate) fn unlink<T: Linked<K>>(&mut self, slab: &mut Slab<K, T>, slot: K) {
        let Links { before, after } = *slab[slot].links();
        match before {
            Some(before) => slab[before].links_mut().after = after,
            None => self.first = after,
        }
        match after {
            Some(after) => slab[after].links_mut().before = before,
            None => self.last = before,
        }
        *slab[slot].links_mut() = Links::none();
        self.len -= 1;
    }

    pub(crate) fn iter<'a, T: Linked<K>>(&self, slab: &'a Slab<K, T>) -> ChainIter<'a, K, T> {
        ChainIter { slab, next: self.first }
    }
}

/// The slots of a chain and their records, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct ChainIter<'a, K, T> {
    slab: &'a Slab<K, T>,
    next: Option<K>,
}

impl<'a, K: Slot, T: Linked<K>> Iterator for ChainIter<'a, K, T> {
    type Item = (K, &'a T);

    fn next(&mut self) -> Option<(K, &'a T)> {
        let slot = self.next?;
        let record = &self.slab[slot];
        self.next = record.links().after;
        Some((slot, record))
    }
}
