//! What known-bad variants of the table do, where it takes more than an `if` in its place.
//!
//! Invariant: nothing calls this unless a variant is chosen, which an ordinary build cannot do. Deliberately absent: which
//! variants there are; see [`Mutant`](lockstep_wire::mutant::Mutant).

use lockstep_wire::RequestId;
use lockstep_wire::reply::EndReason;

use super::cell::Table;
use super::departure::Release;
use super::outcome::{Answer, Outcome, Outcomes};
use super::record::{ClaimState, HoldSlot, SessionSlot};

impl Table {
    /// A release whose answer was retained ends another hold of its owner, as if it had never run.
    pub(super) fn release_again(&mut self, release: &Release<'_>, out: &mut Outcomes) {
        let (session, request_id) = (release.mutation.session, release.mutation.request_id);
        let slot = self.sessions_by_id[&session];
        let is_of_name = |hold: HoldSlot| *self.locks[self.holds[hold].lock].name == *release.name;
        let held = self.sessions[slot].claims.iter().find(|claim| match claim.state {
            ClaimState::Holds { hold, .. } => is_of_name(hold),
            ClaimState::Waits(_) => false,
        });
        let acquire_id = held.map(|claim| claim.id);
        let vacated = acquire_id.and_then(|id| self.depart(slot, id, EndReason::Released, out));
        out.push(Outcome::Reply { session, request_id, answer: Answer::Done });
        self.promote_vacated(vacated, out);
    }

    /// No session remembers any more what it was told, nor which of its numbers are used up.
    pub(super) fn forget_windows(&mut self) {
        let slots: Vec<SessionSlot> = self.sessions_by_id.values().copied().collect();
        for slot in slots {
            let kept: Vec<RequestId> = self.sessions[slot].kept.iter().map(|kept| kept.id).collect();
            kept.into_iter().for_each(|id| self.mark_seen(slot, id));
            self.set_highest(slot, RequestId(0));
        }
    }
}
