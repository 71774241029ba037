//! The request window: which request of a session is new, which is a retry, and what a retry is told
//! (docs/SEMANTICS.md, sections 2 and 3).
//!
//! Invariant: a request id is consumed once at most. Deliberately absent: what the new requests do.

use lockstep_wire::limit::{REQUEST_ID_LIMIT, REQUEST_WINDOW_MAX};
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::reply::Grant;
use lockstep_wire::request::{Acquire, Mutation};
use lockstep_wire::{FencingToken, RequestId, SessionId};

use super::cell::Table;
use super::digest::{self, Fact};
use super::outcome::{Answer, Settled};
use super::record::{ClaimState, HoldSlot, Kept, Session, SessionSlot};

/// What a request asks, without its id, its remaining wait and what its client has seen.
pub(crate) fn acquire_content(acquire: &Acquire<'_>) -> u64 {
    let names = acquire
        .names
        .iter()
        .fold(0, |hash, name| digest::fact(Fact::Content, &[hash, digest::bytes(name.as_bytes())]));
    let words = [
        1,
        acquire.owner.0,
        acquire.mode as u64,
        u64::from(acquire.is_reentrant),
        u64::from(acquire.permits),
        u64::from(acquire.lock_delay_ms),
        u64::from(acquire.max_hold_ms),
        names,
        digest::bytes(acquire.data),
    ];
    digest::fact(Fact::Content, &words)
}

/// See [`acquire_content`].
pub(crate) fn release_content(acquire_id: RequestId, name: &str, token: FencingToken) -> u64 {
    digest::fact(Fact::Content, &[2, acquire_id.0, digest::bytes(name.as_bytes()), token.0])
}

/// See [`acquire_content`].
pub(crate) fn cancel_content(acquire_id: RequestId) -> u64 {
    digest::fact(Fact::Content, &[3, acquire_id.0])
}

impl Table {
    /// Decides what the window decides. `Ok` is a new request of a live session; its id is not consumed yet.
    pub(crate) fn admit(
        &mut self,
        mutation: &Mutation<'_>,
        shape: Result<(), Answer>,
        content: u64,
    ) -> Result<SessionSlot, Answer> {
        let slot = self.live_session(mutation.session)?;
        check_request_id(mutation.request_id)?;
        shape?;
        for seen in mutation.seen.iter().filter(|seen| *seen < mutation.request_id) {
            self.mark_seen(slot, seen);
        }
        match self.recorded(slot, mutation.request_id, content) {
            Some(answer) => Err(answer),
            None => Ok(slot),
        }
    }

    /// What [`Table::admit`] would refuse with or replay, without changing anything.
    pub(crate) fn foresee(
        &self,
        mutation: &Mutation<'_>,
        shape: Result<(), Answer>,
        content: u64,
    ) -> Option<Answer> {
        let refusal = |slot| {
            check_request_id(mutation.request_id)?;
            shape?;
            Ok(slot)
        };
        match self.live_session(mutation.session).and_then(refusal) {
            Ok(slot) => self.recorded(slot, mutation.request_id, content),
            Err(answer) => Some(answer),
        }
    }

    /// The session, or why there is none: docs/SEMANTICS.md, section 2, rule 1.
    pub(crate) fn live_session(&self, id: SessionId) -> Result<SessionSlot, Answer> {
        match self.sessions_by_id.get(&id) {
            Some(slot) if self.is_live(*slot) => Ok(*slot),
            Some(_) => Err(Answer::SessionExpired),
            None if id.0 <= self.token().0 && id.0 << 16 != 0 => Err(Answer::SessionExpired),
            None => Err(Answer::SessionUnknown),
        }
    }

    /// What is known of a request, or `None` when it is new.
    fn recorded(&self, slot: SessionSlot, id: RequestId, content: u64) -> Option<Answer> {
        let session = &self.sessions[slot];
        if let Some(claim) = session.claim(id) {
            if claim.content != content {
                return Some(Answer::Invalid("request_id"));
            }
            return Some(match claim.state {
                ClaimState::Waits(wait) => Answer::Queued { position: self.waits[wait].position },
                ClaimState::Holds { hold, .. } => Answer::Granted(self.grant_of(hold)),
            });
        }
        if let Some(kept) = session.kept(id) {
            if mutant::is(Mutant::ReplayIgnoresHold)
                && let Settled::Lost { token, .. } = kept.settled
            {
                return Some(Answer::Granted(Grant {
                    token,
                    fence: token,
                    slot: 0,
                    hold_left_ms: 0,
                    holders: 1,
                }));
            }
            let is_same = kept.content == content;
            return Some(if is_same { kept.settled.answer() } else { Answer::Invalid("request_id") });
        }
        (!session.is_new(id)).then_some(Answer::StaleRequest)
    }

    /// What the owner of a hold is told.
    pub(crate) fn grant_of(&self, slot: HoldSlot) -> Grant {
        let hold = &self.holds[slot];
        let holders = self.live_holds_len(hold.lock);
        Grant { token: hold.token, fence: hold.fence, slot: 0, hold_left_ms: 0, holders }
    }

    /// Consumes a new request id: docs/SEMANTICS.md, section 2, rule 5.
    pub(crate) fn consume(&mut self, slot: SessionSlot, id: RequestId) {
        let highest = self.sessions[slot].highest;
        if id <= highest {
            return self.close_gap(slot, id);
        }
        let room = REQUEST_WINDOW_MAX as u64;
        let lowest = (highest.0 + 1).max(id.0.saturating_sub(room));
        for gap in lowest..id.0 {
            self.add_gap(slot, RequestId(gap));
        }
        while let Some(gap) = excess_gap(&self.sessions[slot]) {
            self.close_gap(slot, gap);
        }
        self.set_highest(slot, id);
    }

    /// Keeps a final answer until it is seen, and gives it.
    pub(crate) fn settle(
        &mut self,
        slot: SessionSlot,
        id: RequestId,
        content: u64,
        settled: Settled,
    ) -> Answer {
        self.keep(slot, Kept { id, content, settled });
        settled.answer()
    }

    /// Likewise for a request that took nothing from anybody: kept only while there is room.
    pub(crate) fn settle_if_room(
        &mut self,
        slot: SessionSlot,
        id: RequestId,
        content: u64,
        settled: Settled,
    ) -> Answer {
        if self.sessions[slot].load() < REQUEST_WINDOW_MAX {
            self.keep(slot, Kept { id, content, settled });
        }
        settled.answer()
    }
}

/// What a request id must be whatever the state is.
pub(crate) fn check_request_id(id: RequestId) -> Result<(), Answer> {
    match id.0 {
        1..REQUEST_ID_LIMIT => Ok(()),
        _ => Err(Answer::Invalid("request_id")),
    }
}

/// The lowest gap, when there are too many.
fn excess_gap(session: &Session) -> Option<RequestId> {
    (session.gaps.len() > REQUEST_WINDOW_MAX).then(|| session.gaps[0])
}
