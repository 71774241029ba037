//! How other threads reach a ring: a doorbell for threads that have a ring, a waker for those that have none.
//!
//! Invariant: both keep alive the descriptor that they use, so neither can ever signal somebody else's.
//! Deliberately absent: the messages themselves; they travel in a queue of the caller's, put there *before* the bell.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The bell of one ring, for other rings: hand it to their threads, let each [`connect`](crate::Ring::connect_doorbell)
/// it once and [`ring`](crate::Ring::ring_doorbell) it at will.
#[derive(Debug, Clone)]
pub struct Doorbell {
    pub(crate) ring_fd: Arc<OwnedFd>,
}

/// A doorbell that a ring has connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DoorbellId(pub(crate) u32);

/// Wakes one ring from any thread, with one `write` to an eventfd: async-signal-safe, never blocks in practice.
#[derive(Debug, Clone)]
pub struct Waker {
    pub(crate) event: Arc<OwnedFd>,
}

impl Waker {
    /// Makes the ring return from its wait and yield [`Completion::Woken`](crate::Completion::Woken).
    pub fn wake(&self) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.event, &1_u64.to_ne_bytes()) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Waker {
    /// The eventfd; writing a `u64` of 1 to it is what [`Waker::wake`] does.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
