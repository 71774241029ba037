//! Provided-buffer rings: memory lent to the kernel for receives, returned to it when the bytes have been read.
//!
//! Invariant: each buffer is at any time either the kernel's (in the ring of free buffers or being filled) or
//! exactly one [`Chunk`](crate::Chunk)'s. A chunk that is leaked costs one buffer and nothing else.
//! Deliberately absent: partial consumption of a buffer; a receive uses a whole one.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::aligned::Region;

/// One slot of the ring of free buffers, as the kernel reads it. The last field of the first slot is the tail.
#[repr(C)]
struct Slot {
    address: u64,
    len: u32,
    buffer_id: u16,
    tail: u16,
}

/// One group of equal buffers and the ring through which they are lent.
pub(crate) struct BufferGroup {
    slots: Region,
    buffers: Region,
    /// A power of two.
    count: u16,
    size: u32,
    tail: Cell<u16>,
}

impl BufferGroup {
    /// Allocates `count` buffers of `size` bytes, none of them lent yet.
    pub(crate) fn new(count: u16, size: u32) -> Self {
        assert!(count.is_power_of_two(), "a buffer group holds a power of two of buffers, not {count}");
        assert!(size > 0, "a buffer holds at least one byte");
        Self {
            slots: Region::zeroed(usize::from(count) * size_of::<Slot>()),
            buffers: Region::zeroed(usize::from(count) * size as usize),
            count,
            size,
            tail: Cell::new(0),
        }
    }

    /// Where the ring of free buffers lies, for its registration.
    pub(crate) fn slots_address(&self) -> u64 {
        self.slots.base().as_ptr() as u64
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Lends every buffer; called once, after the registration.
    pub(crate) fn lend_all(&self) {
        for buffer_id in 0..self.count {
            self.lend(buffer_id);
        }
    }

    /// Gives one buffer (back) to the kernel. The caller holds no reference into it any more.
    pub(crate) fn lend(&self, buffer_id: u16) {
        let tail = self.tail.get();
        let slots = self.slots.base().cast::<Slot>().as_ptr();
        // SAFETY: the index is masked to `count - 1` and the region holds `count` slots. The kernel reads only slots
        // before the published tail; this one is beyond it, because at most `count` buffers exist and each is in the
        // ring at most once. Fields are written through pointers, so no reference to shared memory is formed, and the
        // `tail` field of slot 0 is left alone.
        unsafe {
            let slot = slots.add(usize::from(tail & (self.count - 1)));
            (&raw mut (*slot).address).write(self.buffer(buffer_id).as_ptr() as u64);
            (&raw mut (*slot).len).write(self.size);
            (&raw mut (*slot).buffer_id).write(buffer_id);
        }
        let tail = tail.wrapping_add(1);
        self.tail.set(tail);
        // SAFETY: the tail field lies inside the first slot, is aligned to two bytes, lives as long as the region, and
        // is written by this store alone; the kernel only loads it.
        let published = unsafe { AtomicU16::from_ptr(&raw mut (*slots).tail) };
        published.store(tail, Ordering::Release);
    }

    /// The address of one buffer.
    pub(crate) fn buffer(&self, buffer_id: u16) -> NonNull<u8> {
        assert!(buffer_id < self.count, "the kernel names a buffer of its group");
        // SAFETY: the offset is below `count * size`, the length of the allocation.
        unsafe { self.buffers.base().add(usize::from(buffer_id) * self.size as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_slot_has_the_kernels_layout() {
        assert_eq!(size_of::<Slot>(), 16);
        assert_eq!(std::mem::offset_of!(Slot, tail), 14);
    }

    #[test]
    fn buffers_do_not_overlap() {
        let group = BufferGroup::new(4, 100);
        let addresses: Vec<usize> = (0..4).map(|id| group.buffer(id).as_ptr() as usize).collect();
        assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] == 100));
    }
}
