//! The end of sessions: irrevocable at once, carried out in slices (docs/SEMANTICS.md, sections 5 and 6).
//!
//! Invariant: no entry takes more than the limit's transitions, and what is left over is part of the replicated
//! state, so that whoever leads next carries on. Deliberately absent: who decides that a session has expired.

use lockstep_wire::SessionId;
use lockstep_wire::limit::VIEW_ROWS_MAX;
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::reply::EndReason;

use super::cell::Table;
use super::outcome::{Outcome, Outcomes};
use super::record::{ClaimState, HoldSlot, LockSlot, SessionSlot};

impl Table {
    pub(crate) fn apply_end_sessions(
        &mut self,
        reason: EndReason,
        sessions: impl Iterator<Item = SessionId>,
        out: &mut Outcomes,
    ) {
        for session in sessions {
            let Ok(slot) = self.live_session(session) else { continue };
            let mut released = Vec::new();
            let mut released_total = 0;
            if reason == EndReason::Closed {
                for hold in self.holds_of(slot) {
                    released_total += 1;
                    if released.len() < VIEW_ROWS_MAX {
                        released.push(self.locks[self.holds[hold].lock].name.clone());
                    }
                }
            }
            self.end_session(slot, reason);
            out.push(Outcome::SessionEnded { session, reason, released_total, released });
            if mutant::is(Mutant::PromoteInsideRemovals) {
                self.reap_slice(out);
            }
        }
        self.reap_slice(out);
    }

    /// Takes away what ended sessions left, as much as one entry may, then promotes what that made room for.
    pub(crate) fn reap_slice(&mut self, out: &mut Outcomes) {
        let limit = self.limits.transitions_per_entry_max;
        let mut removals = 0;
        while removals < limit / 2 {
            let Some(slot) = self.reap_queue.front().copied() else { break };
            removals += 1;
            match self.remove_first_of(slot, out) {
                Some(lock) => self.note_departure(lock),
                None => self.delete_first_ended(),
            }
        }
        let mut budget = limit - removals;
        while budget > 0 && !self.is_quiet() {
            let Some((_, lock)) = self.marks.first_key_value() else { break };
            budget -= 1;
            self.promote(*lock, &mut budget, out);
        }
    }

    /// Removes the ended session's first hold, or else its first wait; tells the lock.
    fn remove_first_of(&mut self, slot: SessionSlot, out: &mut Outcomes) -> Option<LockSlot> {
        let first_hold = self.holds_of(slot).next();
        if let Some(hold) = first_hold {
            return Some(self.end_whole_hold(slot, hold, out));
        }
        let session = &self.sessions[slot];
        let claim = session.claims.first()?;
        let ClaimState::Waits(wait) = claim.state else { panic!("no hold is left, so what is left waits") };
        out.push(Outcome::WaitEnded { session: session.id, acquire_id: claim.id });
        Some(self.remove_wait(wait).lock)
    }

    fn end_whole_hold(&mut self, slot: SessionSlot, hold_slot: HoldSlot, out: &mut Outcomes) -> LockSlot {
        let session = &self.sessions[slot];
        let reason = session.ended.expect("only ended sessions are reaped");
        let hold = &self.holds[hold_slot];
        let (lock, token, acquire_id) = (hold.lock, hold.token, hold.acquire_id);
        let name = self.locks[lock].name.clone();
        out.push(Outcome::HoldEnded { session: session.id, acquire_id, name, token, reason });
        while self.holds[hold_slot].acquires > 0 {
            self.leave_hold(slot, self.holds[hold_slot].acquire_id);
        }
        self.remove_hold(hold_slot);
        lock
    }

    /// The lock lost a hold or a wait: marks it for promotion in this entry or a later one.
    fn note_departure(&mut self, lock: LockSlot) {
        if !self.locks[lock].waits.is_empty() {
            self.set_mark(lock);
        }
        self.delete_if_empty(lock);
    }

    /// The holds of a session, in the order of their lowest acquire ids.
    fn holds_of(&self, slot: SessionSlot) -> impl Iterator<Item = HoldSlot> {
        self.sessions[slot].claims.iter().filter_map(|claim| match claim.state {
            ClaimState::Holds { hold, .. } => (self.holds[hold].acquire_id == claim.id).then_some(hold),
            ClaimState::Waits(_) => None,
        })
    }
}
