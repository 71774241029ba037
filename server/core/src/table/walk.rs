//! Walks over all sessions and all waits, a bounded piece at a time: how a new leader arms its timers without
//! standing still (ARCHITECTURE section 4.4).
//!
//! Invariant: what exists from the first piece to the last is visited exactly once. What begins meanwhile may be
//! missed, and has been told by an outcome. Deliberately absent: the timers.

use lockstep_wire::{RequestId, SessionId};

use super::cell::Table;
use super::record::{SessionSlot, WaitSlot};
use super::slab::Slot;

/// A live session that a walk met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionStep {
    /// The session.
    pub session: SessionId,
    /// Where its record is.
    pub slot: SessionSlot,
    /// Its TTL, in ms.
    pub ttl_ms: u32,
    /// For how long leaders have not heard of it, as far as that was logged, in ms.
    pub silence_ms: u32,
}

/// A wait of a live session that a walk met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitStep {
    /// The session.
    pub session: SessionId,
    /// The request id of the acquire.
    pub acquire_id: RequestId,
    /// The whole wait as it was asked for, in ms.
    pub wait_ms: u32,
}

impl Table {
    /// Visits the live sessions in at most `slots_max` slots from `cursor` on (0 at first); gives the cursor to go
    /// on from, or `None` at the end.
    pub fn walk_sessions(
        &self,
        cursor: u32,
        slots_max: u32,
        mut visit: impl FnMut(SessionStep),
    ) -> Option<u32> {
        let end = self.sessions.slots_end();
        let stop = cursor.saturating_add(slots_max).min(end);
        for slot in (cursor..stop).map(SessionSlot::new) {
            if let Some(session) = self.sessions.get(slot).filter(|session| session.is_live()) {
                let (ttl_ms, silence_ms) = (session.ttl_ms, session.silence_ms);
                visit(SessionStep { session: session.id, slot, ttl_ms, silence_ms });
            }
        }
        (stop < end).then_some(stop)
    }

    /// Likewise for the waits of live sessions.
    pub fn walk_waits(&self, cursor: u32, slots_max: u32, mut visit: impl FnMut(WaitStep)) -> Option<u32> {
        let end = self.waits.slots_end();
        let stop = cursor.saturating_add(slots_max).min(end);
        for slot in (cursor..stop).map(WaitSlot::new) {
            let Some(wait) = self.waits.get(slot) else { continue };
            let session = &self.sessions[wait.session];
            if session.is_live() {
                let (session, acquire_id, wait_ms) = (session.id, wait.acquire_id, wait.wait_ms);
                visit(WaitStep { session, acquire_id, wait_ms });
            }
        }
        (stop < end).then_some(stop)
    }
}
