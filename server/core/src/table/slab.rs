//! Records in slots that do not move.
//!
//! Invariant: a slot names the same record from `insert` to `remove`; a freed slot is reused before a new one is
//! made. Growth adds a page and moves nothing, so that no insert stalls for the size of what is there.
//! Deliberately absent: any order that behaviour may depend on.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

const PAGE_SLOTS: usize = 1024;

/// A number of a slot that knows what its slab holds.
pub(crate) trait Slot: Copy + Eq {
    /// From the number.
    fn new(number: u32) -> Self;
    /// To the number.
    fn number(self) -> u32;
}

#[derive(Clone, Debug)]
enum Place<T> {
    Taken(T),
    Free { next: Option<u32> },
}

/// Records of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Slab<K, T> {
    pages: Vec<Vec<Place<T>>>,
    free: Option<u32>,
    len: usize,
    kind: PhantomData<K>,
}

impl<K: Slot, T> Slab<K, T> {
    pub(crate) fn new() -> Slab<K, T> {
        Slab { pages: Vec::new(), free: None, len: 0, kind: PhantomData }
    }

    /// How many records there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// One above the highest slot that was ever taken.
    pub(crate) fn slots_end(&self) -> u32 {
        let full = self.pages.len().saturating_sub(1) * PAGE_SLOTS;
        let slots = full + self.pages.last().map_or(0, Vec::len);
        u32::try_from(slots).expect("the limits keep the slots below 2^32")
    }

    pub(crate) fn insert(&mut self, record: T) -> K {
        self.len += 1;
        if let Some(number) = self.free {
            let place = self.place_mut(number);
            let Place::Free { next } = *place else { panic!("slot {number} is in the free list and taken") };
            *place = Place::Taken(record);
            self.free = next;
            return K::new(number);
        }
        let number = self.slots_end();
        if self.pages.last().is_none_or(|page| page.len() == PAGE_SLOTS) {
            self.pages.push(Vec::with_capacity(PAGE_SLOTS));
        }
        let page = self.pages.last_mut().expect("there is a page with room");
        page.push(Place::Taken(record));
        K::new(number)
    }

    /// Takes a record out.
    ///
    /// # Panics
    /// When the slot is free.
    pub(crate) fn remove(&mut self, slot: K) -> T {
        let number = slot.number();
        let next = self.free;
        let place = std::mem::replace(self.place_mut(number), Place::Free { next });
        let Place::Taken(record) = place else { panic!("slot {number} was free") };
        self.free = Some(number);
        self.len -= 1;
        record
    }

    /// Frees the last page with the records in it; tells whether there was one. What is left can be freed, and nothing else.
    pub(crate) fn free_page(&mut self) -> bool {
        self.pages.pop().is_some()
    }

    /// The record in a slot, if it is taken.
    pub(crate) fn get(&self, slot: K) -> Option<&T> {
        let number = slot.number() as usize;
        match self.pages.get(number / PAGE_SLOTS)?.get(number % PAGE_SLOTS)? {
            Place::Taken(record) => Some(record),
            Place::Free { .. } => None,
        }
    }

    /// Every slot that is taken, in the order of the numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        (0..self.slots_end()).map(K::new).filter_map(|slot| self.get(slot).map(|record| (slot, record)))
    }

    fn place_mut(&mut self, number: u32) -> &mut Place<T> {
        let number = number as usize;
        &mut self.pages[number / PAGE_SLOTS][number % PAGE_SLOTS]
    }
}

impl<K: Slot, T> Index<K> for Slab<K, T> {
    type Output = T;

    fn index(&self, slot: K) -> &T {
        self.get(slot).expect("a slot that is kept names a record")
    }
}

impl<K: Slot, T> IndexMut<K> for Slab<K, T> {
    fn index_mut(&mut self, slot: K) -> &mut T {
        match self.place_mut(slot.number()) {
            Place::Taken(record) => record,
            Place::Free { .. } => panic!("a slot that is kept names a record"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::SessionSlot;

    #[test]
    fn slots_stay_and_freed_ones_are_reused_first() {
        let mut slab: Slab<SessionSlot, u64> = Slab::new();
        let slots: Vec<SessionSlot> = (0..3000).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.slots_end(), 3000);
        assert_eq!(slab.remove(slots[7]), 7);
        assert_eq!(slab.remove(slots[2900]), 2900);
        assert_eq!((slab.get(slots[7]), slab.len()), (None, 2998));
        assert_eq!(slab.insert(1), slots[2900]);
        assert_eq!(slab.insert(2), slots[7]);
        assert_eq!(slab.insert(3).number(), 3000);
        assert_eq!(slab[slots[1500]], 1500);
        assert_eq!(slab.iter().count(), 3001);
    }
}
