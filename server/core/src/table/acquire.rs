//! Acquires: granted, lined up or refused (docs/SEMANTICS.md, section 4).
//!
//! Invariant: an acquire is granted at once only when nobody live is ahead of it, unless its owner holds the name
//! already. Deliberately absent: promotion; a newcomer never moves anybody else.

use lockstep_wire::limit::REQUEST_WINDOW_MAX;
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::request::{Acquire, Mode};
use lockstep_wire::{FencingToken, Owner};

use super::cell::{Candidate, Table};
use super::digest;
use super::limits::LimitKind;
use super::outcome::{Answer, Outcome, Outcomes, Settled};
use super::promotion::Occupancy;
use super::record::{ClaimState, HoldSlot, LockSlot, SessionSlot, WaitSlot};
use super::window::acquire_content;

impl Table {
    pub(crate) fn apply_acquire(&mut self, acquire: &Acquire<'_>, out: &mut Outcomes) {
        let mutation = &acquire.mutation;
        let content = acquire_content(acquire);
        let answer = match self.admit(mutation, self.acquire_shape(acquire), content) {
            Ok(slot) => self.acquire_new(slot, acquire, content),
            Err(answer) => answer,
        };
        let (session, request_id) = (mutation.session, mutation.request_id);
        out.push(Outcome::Reply { session, request_id, answer });
        if let Answer::Queued { .. } = answer {
            out.push(Outcome::WaitStarted { session, acquire_id: request_id, wait_ms: acquire.wait_ms });
        }
    }

    /// What an acquire must look like whatever the state is.
    pub(crate) fn acquire_shape(&self, acquire: &Acquire<'_>) -> Result<(), Answer> {
        let name = acquire.names.iter().next().ok_or(Answer::Invalid("names"))?;
        let limits = &self.limits;
        if acquire.names.len() > 1 {
            Err(Answer::Unsupported("names"))
        } else if acquire.permits != 0 {
            Err(Answer::Unsupported("permits"))
        } else if acquire.lock_delay_ms != 0 {
            Err(Answer::Unsupported("lock_delay_ms"))
        } else if acquire.max_hold_ms != 0 {
            Err(Answer::Unsupported("max_hold_ms"))
        } else if name.len() > limits.name_bytes_max as usize {
            Err(Answer::Limit(LimitKind::NameBytes))
        } else if acquire.data.len() > limits.data_bytes_max as usize {
            Err(Answer::Limit(LimitKind::DataBytes))
        } else {
            Ok(())
        }
    }

    fn acquire_new(&mut self, slot: SessionSlot, acquire: &Acquire<'_>, content: u64) -> Answer {
        if self.sessions[slot].load() >= REQUEST_WINDOW_MAX {
            return Answer::Limit(LimitKind::UnseenOutcomes);
        }
        let name = acquire.names.iter().next().expect("the shape of the acquire was checked");
        let found = self.locks_by_name.get(name).copied();
        if let Some(lock) = found {
            if let Some(hold) = self.hold_of(slot, acquire.owner, lock) {
                return self.acquire_again(slot, hold, acquire, content);
            }
            if let Some(wait) = self.wait_of(slot, acquire.owner, lock) {
                let acquire_id = self.waits[wait].acquire_id;
                let settled = Settled::AlreadyHeld { acquire_id, token: FencingToken(0) };
                return self.settle_acquire(slot, acquire, content, settled);
            }
        }
        if self.is_session_full(slot) {
            return Answer::Limit(LimitKind::LocksPerSession);
        }
        match found {
            Some(lock) => self.acquire_contended(slot, lock, acquire, content),
            None if self.locks.len() >= self.limits.locks_max as usize => Answer::Limit(LimitKind::Locks),
            None if self.is_quiet() => self.line_up(slot, None, acquire, content),
            None => {
                let lock = self.add_lock(name, digest::bytes(name.as_bytes()));
                self.consume(slot, acquire.mutation.request_id);
                let candidate = candidate(slot, lock, acquire, content);
                Answer::Granted(self.grant_of_new(candidate, Occupancy::Vacant))
            }
        }
    }

    /// The owner holds the name already.
    fn acquire_again(
        &mut self,
        slot: SessionSlot,
        hold_slot: HoldSlot,
        acquire: &Acquire<'_>,
        content: u64,
    ) -> Answer {
        let hold = &self.holds[hold_slot];
        if !acquire.is_reentrant || acquire.mode != hold.mode {
            let settled = Settled::AlreadyHeld { acquire_id: hold.acquire_id, token: hold.token };
            return self.settle_acquire(slot, acquire, content, settled);
        }
        if hold.acquires >= self.limits.acquires_per_hold_max {
            return Answer::Limit(LimitKind::AcquiresPerHold);
        }
        if self.is_session_full(slot) {
            return Answer::Limit(LimitKind::LocksPerSession);
        }
        let id = acquire.mutation.request_id;
        self.consume(slot, id);
        self.join_hold(hold_slot, id, content, false);
        Answer::Granted(self.grant_of(hold_slot))
    }

    /// The lock has a record, in which this owner is not.
    fn acquire_contended(
        &mut self,
        slot: SessionSlot,
        lock: LockSlot,
        acquire: &Acquire<'_>,
        content: u64,
    ) -> Answer {
        let occupancy = self.occupancy(lock);
        let id = acquire.mutation.request_id;
        let barges = mutant::is(Mutant::SharedBargesPast) && acquire.mode == Mode::Shared;
        let is_free = !self.is_quiet() && occupancy.admits(acquire.mode);
        if is_free && (barges || !self.has_live_wait(lock)) {
            if acquire.mode == Mode::Shared && self.is_full_of_holders(lock) {
                return Answer::Limit(LimitKind::HoldersPerLock);
            }
            self.consume(slot, id);
            let candidate = candidate(slot, lock, acquire, content);
            return Answer::Granted(self.grant_of_new(candidate, occupancy));
        }
        self.line_up(slot, Some(lock), acquire, content)
    }

    /// The lock is not to be had now. It may have no record while the cell is quiet; then nobody will leave it, and the
    /// mark is what promotes its line in the end.
    fn line_up(
        &mut self,
        slot: SessionSlot,
        found: Option<LockSlot>,
        acquire: &Acquire<'_>,
        content: u64,
    ) -> Answer {
        if acquire.wait_ms == 0 {
            return self.settle_acquire(slot, acquire, content, Settled::TimedOut);
        }
        if found.map_or(0, |lock| self.locks[lock].waits.len()) >= self.limits.waiters_per_lock_max {
            return Answer::Limit(LimitKind::WaitersPerLock);
        }
        self.consume(slot, acquire.mutation.request_id);
        let lock = found.unwrap_or_else(|| {
            let name = acquire.names.iter().next().expect("the shape of the acquire was checked");
            self.add_lock(name, digest::bytes(name.as_bytes()))
        });
        let candidate = candidate(slot, lock, acquire, content);
        let position = self.add_wait(candidate, acquire.wait_ms);
        if self.is_quiet() {
            self.set_mark(lock);
        }
        Answer::Queued { position }
    }

    fn settle_acquire(
        &mut self,
        slot: SessionSlot,
        acquire: &Acquire<'_>,
        content: u64,
        settled: Settled,
    ) -> Answer {
        let id = acquire.mutation.request_id;
        self.consume(slot, id);
        self.settle(slot, id, content, settled)
    }

    fn is_session_full(&self, slot: SessionSlot) -> bool {
        self.sessions[slot].claims.len() >= self.limits.locks_per_session_max as usize
    }

    /// The hold of this owner on this lock: looked for where there is less to look through.
    fn hold_of(&self, slot: SessionSlot, owner: Owner, lock: LockSlot) -> Option<HoldSlot> {
        let (session, holds) = (&self.sessions[slot], &self.locks[lock].holds);
        if (holds.len() as usize) < session.claims.len() {
            let mut holds = holds.iter(&self.holds);
            return holds.find(|(_, hold)| hold.session == slot && hold.owner == owner).map(|(hold, _)| hold);
        }
        session.claims.iter().find_map(|claim| match claim.state {
            ClaimState::Holds { hold, .. } => {
                let record = &self.holds[hold];
                (record.lock == lock && record.owner == owner).then_some(hold)
            }
            ClaimState::Waits(_) => None,
        })
    }

    /// The wait of this owner for this lock.
    fn wait_of(&self, slot: SessionSlot, owner: Owner, lock: LockSlot) -> Option<WaitSlot> {
        let session = &self.sessions[slot];
        if session.waiting == 0 || self.locks[lock].waits.is_empty() {
            return None;
        }
        session.claims.iter().find_map(|claim| match claim.state {
            ClaimState::Waits(wait) => {
                let record = &self.waits[wait];
                (record.lock == lock && record.owner == owner).then_some(wait)
            }
            ClaimState::Holds { .. } => None,
        })
    }
}

fn candidate(session: SessionSlot, lock: LockSlot, acquire: &Acquire<'_>, content: u64) -> Candidate {
    Candidate {
        session,
        lock,
        owner: acquire.owner,
        acquire_id: acquire.mutation.request_id,
        content,
        mode: acquire.mode,
        data: Box::from(acquire.data),
        data_hash: digest::bytes(acquire.data),
    }
}
