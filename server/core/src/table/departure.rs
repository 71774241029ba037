//! Releases, cancels and waits that ran out (docs/SEMANTICS.md, sections 4 and 5).
//!
//! Invariant: whatever leaves a lock, the same entry promotes who can be granted now. Deliberately absent: the end
//! of whole sessions.

use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::reply::EndReason;
use lockstep_wire::request::Mutation;
use lockstep_wire::{FencingToken, RequestId, SessionId};

use super::cell::Table;
use super::outcome::{Answer, Outcome, Outcomes, Settled};
use super::record::{ClaimState, Kept, LockSlot, SessionSlot, WaitSlot};
use super::window::{cancel_content, release_content};

/// What a release asks.
#[derive(Clone, Copy)]
pub(crate) struct Release<'a> {
    pub(crate) mutation: &'a Mutation<'a>,
    pub(crate) acquire_id: RequestId,
    pub(crate) name: &'a str,
    pub(crate) token: FencingToken,
}

impl Release<'_> {
    pub(crate) fn content(&self) -> u64 {
        release_content(self.acquire_id, self.name, self.token)
    }
}

/// What a cancel must look like whatever the state is.
pub(crate) fn cancel_shape(mutation: &Mutation<'_>, acquire_id: RequestId) -> Result<(), Answer> {
    let is_earlier = RequestId(0) < acquire_id && acquire_id < mutation.request_id;
    if is_earlier { Ok(()) } else { Err(Answer::Invalid("acquire_id")) }
}

impl Table {
    pub(crate) fn apply_release(&mut self, release: Release<'_>, out: &mut Outcomes) {
        let (session, request_id) = (release.mutation.session, release.mutation.request_id);
        let content = release.content();
        let slot = match self.admit(release.mutation, Ok(()), content) {
            Ok(slot) => slot,
            Err(Answer::Done) if mutant::is(Mutant::ReleaseRunsTwice) => {
                return self.release_again(&release, out);
            }
            Err(answer) => return out.push(Outcome::Reply { session, request_id, answer }),
        };
        self.consume(slot, request_id);
        if !self.is_held(slot, &release) {
            let answer = self.settle_if_room(slot, request_id, content, Settled::StaleToken);
            return out.push(Outcome::Reply { session, request_id, answer });
        }
        let vacated = self.depart(slot, release.acquire_id, EndReason::Released, out);
        let answer = self.settle(slot, request_id, content, Settled::Done);
        out.push(Outcome::Reply { session, request_id, answer });
        self.promote_vacated(vacated, out);
    }

    pub(crate) fn apply_cancel(
        &mut self,
        mutation: &Mutation<'_>,
        acquire_id: RequestId,
        out: &mut Outcomes,
    ) {
        let (session, request_id) = (mutation.session, mutation.request_id);
        let content = cancel_content(acquire_id);
        let slot = match self.admit(mutation, cancel_shape(mutation, acquire_id), content) {
            Ok(slot) => slot,
            Err(answer) => return out.push(Outcome::Reply { session, request_id, answer }),
        };
        self.consume(slot, request_id);
        let (vacated, answer) = match self.sessions[slot].claim(acquire_id).map(|claim| claim.state) {
            Some(ClaimState::Waits(wait)) => {
                let lock = self.end_wait(wait, Settled::Cancelled, out);
                (Some(lock), self.settle(slot, request_id, content, Settled::Done))
            }
            Some(ClaimState::Holds { .. }) if mutant::is(Mutant::CancelForgetsGrant) => {
                (None, self.settle(slot, request_id, content, Settled::Done))
            }
            Some(ClaimState::Holds { .. }) => {
                let vacated = self.depart(slot, acquire_id, EndReason::Cancelled, out);
                (vacated, self.settle(slot, request_id, content, Settled::Done))
            }
            None => {
                self.close_gap(slot, acquire_id);
                (None, self.settle_if_room(slot, request_id, content, Settled::Done))
            }
        };
        out.push(Outcome::Reply { session, request_id, answer });
        self.promote_vacated(vacated, out);
    }

    pub(crate) fn apply_cancel_wait(
        &mut self,
        session: SessionId,
        acquire_id: RequestId,
        out: &mut Outcomes,
    ) {
        let Ok(slot) = self.live_session(session) else { return };
        let Some(claim) = self.sessions[slot].claim(acquire_id) else { return };
        if let ClaimState::Waits(wait) = claim.state {
            let lock = self.end_wait(wait, Settled::TimedOut, out);
            self.promote_vacated(Some(lock), out);
        }
    }

    /// Whether the release names a live hold: its acquire, name and token.
    fn is_held(&self, slot: SessionSlot, release: &Release<'_>) -> bool {
        match self.sessions[slot].claim(release.acquire_id).map(|claim| claim.state) {
            Some(ClaimState::Holds { hold, .. }) => {
                let hold = &self.holds[hold];
                hold.token == release.token && *self.locks[hold.lock].name == *release.name
            }
            Some(ClaimState::Waits(_)) | None => false,
        }
    }

    /// An acquire leaves its hold; tells the lock when the hold ended with it.
    pub(super) fn depart(
        &mut self,
        slot: SessionSlot,
        acquire_id: RequestId,
        reason: EndReason,
        out: &mut Outcomes,
    ) -> Option<LockSlot> {
        let (claim, is_seen) = self.leave_hold(slot, acquire_id);
        let ClaimState::Holds { hold: hold_slot, .. } = claim.state else {
            panic!("what left a hold was in it");
        };
        let (token, lock) = (self.holds[hold_slot].token, self.holds[hold_slot].lock);
        if !is_seen {
            let settled = Settled::Lost { token, reason };
            self.keep(slot, Kept { id: acquire_id, content: claim.content, settled });
        }
        if self.holds[hold_slot].acquires > 0 {
            return None;
        }
        self.remove_hold(hold_slot);
        let name = self.locks[lock].name.clone();
        out.push(Outcome::HoldEnded { session: self.sessions[slot].id, acquire_id, name, token, reason });
        Some(lock)
    }

    /// A wait of a live session ends without a grant, and its acquire is answered.
    fn end_wait(&mut self, wait: WaitSlot, settled: Settled, out: &mut Outcomes) -> LockSlot {
        let left = self.remove_wait(wait);
        let (session, acquire_id) = (self.sessions[left.session].id, left.acquire_id);
        let answer = self.settle(left.session, acquire_id, left.content, settled);
        out.push(Outcome::WaitEnded { session, acquire_id });
        out.push(Outcome::Reply { session, request_id: acquire_id, answer });
        left.lock
    }

    pub(super) fn promote_vacated(&mut self, vacated: Option<LockSlot>, out: &mut Outcomes) {
        if let Some(lock) = vacated {
            let mut budget = self.limits.transitions_per_entry_max;
            self.promote(lock, &mut budget, out);
        }
    }
}
