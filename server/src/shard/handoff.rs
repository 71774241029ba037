//! Connections that came in at one shard and belong to another (ARCHITECTURE section 6, "Connections name their
//! cell in Hello").
//!
//! Invariant: a connection that is handed over has nothing in flight, and every byte that it had sent goes
//! with it. A full queue refuses; whoever connected tries again.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lockstep_core::hello::Port;
use lockstep_ring::{Doorbell, Waker};

/// Connections that wait for a shard to take them.
const QUEUE_MAX: usize = 1_024;

/// A connection on its way.
#[derive(Debug)]
pub(crate) struct Handoff {
    pub(crate) fd: OwnedFd,
    pub(crate) port: Port,
    /// What it has sent so far, its Hello first.
    pub(crate) bytes: Vec<u8>,
}

/// Where the other shards leave what is one shard's.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    queue: Mutex<VecDeque<Handoff>>,
    doorbell: OnceLock<Doorbell>,
    waker: OnceLock<Waker>,
}

/// The mailboxes of all shards of a node, by shard.
pub(crate) type Mailboxes = Arc<Vec<Mailbox>>;

impl Mailbox {
    /// Says how this shard is rung and woken; once, by the shard itself.
    pub(crate) fn open(&self, doorbell: Doorbell, waker: Waker) {
        assert!(self.doorbell.set(doorbell).is_ok(), "a mailbox is opened once");
        assert!(self.waker.set(waker).is_ok(), "a mailbox is opened once");
    }

    /// How another shard rings; none before this shard runs.
    pub(crate) fn doorbell(&self) -> Option<Doorbell> {
        self.doorbell.get().cloned()
    }

    /// Wakes the shard from any thread.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.get()
            && let Err(error) = waker.wake()
        {
            tracing::warn!(%error, "a shard could not be woken; it looks around by itself within its next deadline");
        }
    }

    /// Leaves a connection. Gives it back when the queue is full.
    pub(crate) fn leave(&self, handoff: Handoff) -> Result<(), Handoff> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() >= QUEUE_MAX {
            return Err(handoff);
        }
        queue.push_back(handoff);
        Ok(())
    }

    /// Takes all that has been left.
    pub(crate) fn take_all(&self) -> VecDeque<Handoff> {
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
