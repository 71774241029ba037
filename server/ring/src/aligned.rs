//! Memory the kernel may read and write by address: page-aligned, zeroed, of fixed length, never moved.
//!
//! Invariant: a region's address is fixed from allocation to drop and never dangles while the region lives.
//! [`AlignedBuf`] is exclusively owned memory and hands out ordinary slices; [`Region`] is shared with the kernel and
//! hands out pointers only. Deliberately absent: growth (a moved buffer is what O_DIRECT and io_uring cannot have).
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// The alignment of every buffer here, in bytes: a page, and at least the logical block of any disk in use.
pub const ALIGNMENT: usize = 4096;

/// Raw zeroed memory at a page boundary. The base of everything whose address the kernel learns.
pub(crate) struct Region {
    base: NonNull<u8>,
    layout: Layout,
}

impl Region {
    /// Allocates `len` zeroed bytes. An empty region still owns one byte, so that its address is real.
    pub(crate) fn zeroed(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT)
            .expect("a buffer is smaller than the address space");
        // SAFETY: the layout has a non-zero size (`max(1)` above).
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Self { base, layout }
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this very layout and is freed once, here.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// A heap buffer for O_DIRECT: 4,096-aligned, zeroed at birth, of fixed length.
pub struct AlignedBuf {
    region: Region,
    len: usize,
}

// SAFETY: the region is plain memory owned by this value alone; no thread has a claim on it.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access gives `&[u8]` and nothing else; there is no interior mutability.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Allocates a zeroed buffer of exactly `len` bytes.
    pub fn zeroed(len: usize) -> Self {
        Self { region: Region::zeroed(len), len }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.region.base().as_ptr()
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes from the base are allocated and initialized (zeroed at birth), and `&self` keeps every
        // writer away: the kernel writes only while the ring owns this value.
        unsafe { std::slice::from_raw_parts(self.region.base().as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.region.base().as_ptr(), self.len) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

/// A value in its own heap cell, reached through a pointer alone, so that it may be moved about as a handle while
/// the kernel reads or writes the cell.
pub(crate) struct Pinned<T>(NonNull<T>);

impl<T> Pinned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    /// The cell's address: valid as long as this handle lives.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a leaked box in `new` and is turned back once, here.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_aligned_zeroed_and_of_the_length_asked_for() {
        for len in [0, 1, 512, 4096, 12_288] {
            let mut buffer = AlignedBuf::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.base() as usize % ALIGNMENT, 0);
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(7);
            assert!(buffer.iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn buffer_keeps_its_address_when_its_handle_moves() {
        let buffer = AlignedBuf::zeroed(4096);
        let before = buffer.base();
        let moved = Box::new([buffer]);
        assert_eq!(moved[0].base(), before);
    }
}
