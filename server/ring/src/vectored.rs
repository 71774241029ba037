//! A gathered send: several buffers, the table of their addresses and the message header, kept together.
//!
//! Invariant: the table describes exactly the bytes that have not been sent yet, in order, at most
//! [`PIECES_MAX`] pieces at a time. It lives in a pinned cell, because the kernel is given its address.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// Pieces in one system call at most (the kernel's UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// One gathered send.
pub(crate) struct Vectored {
    pub(crate) buffers: Vec<Vec<u8>>,
    pieces: Vec<libc::iovec>,
    header: libc::msghdr,
    /// The first buffer with unsent bytes, and how many of its bytes are sent.
    next: (usize, usize),
}

impl Vectored {
    pub(crate) fn new() -> Self {
        // SAFETY: `msghdr` is a C struct of integers and pointers, for which all-zero bytes are a valid value.
        let header = unsafe { MaybeUninit::zeroed().assume_init() };
        Self { buffers: Vec::new(), pieces: Vec::new(), header, next: (0, 0) }
    }

    /// Starts over with these buffers.
    pub(crate) fn load(&mut self, buffers: Vec<Vec<u8>>) {
        self.buffers = buffers;
        self.next = (0, 0);
    }

    /// Notes that `len` more bytes went out.
    pub(crate) fn advance(&mut self, mut len: usize) {
        while let Some(buffer) = self.buffers.get(self.next.0) {
            let left = buffer.len() - self.next.1;
            if len < left {
                self.next.1 += len;
                return;
            }
            len -= left;
            self.next = (self.next.0 + 1, 0);
        }
        assert_eq!(len, 0, "the kernel sends no more than it was given");
    }

    /// Whether all bytes went out.
    pub(crate) fn is_sent(&self) -> bool {
        self.next.1 == 0 && self.buffers.iter().skip(self.next.0).all(Vec::is_empty)
    }

    /// Describes what is unsent and returns the header to send. The pointers in it stay valid until the next call or
    /// until the buffers are taken out.
    pub(crate) fn describe(&mut self) -> *const libc::msghdr {
        self.pieces.clear();
        let (first, offset) = self.next;
        for (position, buffer) in self.buffers.iter().enumerate().skip(first).take(PIECES_MAX) {
            let unsent = if position == first { &buffer[offset..] } else { &buffer[..] };
            self.pieces
                .push(libc::iovec { iov_base: unsent.as_ptr().cast_mut().cast(), iov_len: unsent.len() });
        }
        self.header.msg_iov = self.pieces.as_mut_ptr();
        self.header.msg_iovlen = self.pieces.len();
        &raw const self.header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_sends_leave_exactly_the_unsent_bytes() {
        let mut message = Vectored::new();
        message.load(vec![vec![1; 10], vec![], vec![2; 5]]);
        message.describe();
        assert_eq!(message.pieces.len(), 3);
        message.advance(10);
        message.advance(3);
        assert!(!message.is_sent());
        message.describe();
        assert_eq!(message.pieces.len(), 1);
        assert_eq!(message.pieces[0].iov_len, 2);
        message.advance(2);
        assert!(message.is_sent());
    }
}
