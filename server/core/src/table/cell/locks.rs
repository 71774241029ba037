//! The steps that change locks, their holds and their lines.
//!
//! Invariant: a hold or wait, its place in its lock and its claim come and go in one step. Deliberately absent: who may
//! hold, and when.

use std::sync::Arc;

use lockstep_wire::request::Mode;
use lockstep_wire::{FencingToken, LogIndex, Owner, RequestId};

use super::Table;
use crate::table::chain::{Chain, Links};
use crate::table::record::{Claim, ClaimState, Hold, HoldSlot, Lock, LockSlot, SessionSlot, Wait, WaitSlot};

/// An acquire that is about to hold or to wait.
pub(crate) struct Candidate {
    pub(crate) session: SessionSlot,
    pub(crate) lock: LockSlot,
    pub(crate) owner: Owner,
    pub(crate) acquire_id: RequestId,
    pub(crate) content: u64,
    pub(crate) mode: Mode,
    pub(crate) data: Box<[u8]>,
    pub(crate) data_hash: u64,
}

impl Table {
    pub(crate) fn add_lock(&mut self, name: &str, name_hash: u64) -> LockSlot {
        let slot = self.put_lock(name, name_hash);
        self.locks_by_name.insert(name, slot);
        slot
    }

    /// Adds a lock whose name is above all others.
    pub(crate) fn add_last_lock(&mut self, name: &str, name_hash: u64) -> LockSlot {
        let slot = self.put_lock(name, name_hash);
        self.locks_by_name.push(name, slot);
        slot
    }

    fn put_lock(&mut self, name: &str, name_hash: u64) -> LockSlot {
        self.locks.insert(Lock {
            name: Arc::from(name),
            name_hash,
            holds: Chain::new(),
            waits: Chain::new(),
            mark: None,
            copied_for: self.snapshots_begun,
        })
    }

    /// Deletes a lock that nobody holds or waits for; a snapshot has copied it when the last of them left.
    pub(crate) fn delete_if_empty(&mut self, slot: LockSlot) {
        if self.locks[slot].is_empty() {
            self.clear_mark(slot);
            let lock = self.locks.remove(slot);
            self.locks_by_name.remove(&lock.name);
        }
    }

    /// Marks that a lock's promotion must continue, at the end of the marks unless it has one.
    pub(crate) fn set_mark(&mut self, slot: LockSlot) {
        if self.locks[slot].mark.is_some() {
            return;
        }
        self.digest.remove(self.cell_fact());
        self.mark_places += 1;
        self.digest.add(self.cell_fact());
        self.put_mark(slot, self.mark_places);
    }

    /// Marks an unmarked lock at this place.
    pub(crate) fn put_mark(&mut self, slot: LockSlot, place: u64) {
        self.before_lock_change(slot);
        self.locks[slot].mark = Some(place);
        self.digest.add(self.locks[slot].mark_fact(place));
        self.marks.insert(place, slot);
    }

    pub(crate) fn clear_mark(&mut self, slot: LockSlot) {
        if let Some(place) = self.locks[slot].mark {
            self.before_lock_change(slot);
            self.locks[slot].mark = None;
            self.digest.remove(self.locks[slot].mark_fact(place));
            self.marks.remove(&place);
        }
    }

    pub(crate) fn add_hold(
        &mut self,
        candidate: Candidate,
        token: FencingToken,
        fence: FencingToken,
    ) -> HoldSlot {
        let (acquire_id, content) = (candidate.acquire_id, candidate.content);
        let slot = self.put_hold(candidate, token, fence);
        self.join_hold(slot, acquire_id, content, false);
        slot
    }

    /// Adds a hold that no acquire is in yet.
    pub(crate) fn put_hold(
        &mut self,
        candidate: Candidate,
        token: FencingToken,
        fence: FencingToken,
    ) -> HoldSlot {
        self.before_lock_change(candidate.lock);
        let Candidate { session, lock, owner, acquire_id, content: _, mode, data, data_hash } = candidate;
        let links = Links::none();
        let hold = Hold {
            session,
            lock,
            owner,
            mode,
            token,
            fence,
            data,
            data_hash,
            acquire_id,
            acquires: 0,
            links,
        };
        self.digest.add(hold.fact(self.sessions[session].id, self.locks[lock].name_hash));
        let slot = self.holds.insert(hold);
        self.locks[lock].holds.push(&mut self.holds, slot);
        slot
    }

    /// Adds an acquire to a hold.
    pub(crate) fn join_hold(&mut self, slot: HoldSlot, acquire_id: RequestId, content: u64, is_seen: bool) {
        self.before_lock_change(self.holds[slot].lock);
        let hold = &mut self.holds[slot];
        hold.acquires += 1;
        hold.acquire_id = hold.acquire_id.min(acquire_id);
        let state = ClaimState::Holds { hold: slot, is_seen };
        let claim = Claim { id: acquire_id, content, state };
        let session = &mut self.sessions[hold.session];
        session.unseen += usize::from(!is_seen);
        insert_claim(&mut session.claims, claim);
        self.digest.add(hold.claim_fact(session.id, self.locks[hold.lock].name_hash, &claim, is_seen));
    }

    /// Takes an acquire out of its hold, which stays even if it was the last; tells whether its grant was seen.
    pub(crate) fn leave_hold(&mut self, session: SessionSlot, acquire_id: RequestId) -> (Claim, bool) {
        let state = self.sessions[session].claim(acquire_id).map(|claim| claim.state);
        let Some(ClaimState::Holds { hold: slot, is_seen }) = state else {
            panic!("acquire {acquire_id} does not hold");
        };
        self.before_lock_change(self.holds[slot].lock);
        let session = &mut self.sessions[session];
        let claim = take_claim(&mut session.claims, acquire_id);
        session.unseen -= usize::from(!is_seen);
        let hold = &mut self.holds[slot];
        hold.acquires -= 1;
        self.digest.remove(hold.claim_fact(session.id, self.locks[hold.lock].name_hash, &claim, is_seen));
        if hold.acquire_id == acquire_id && hold.acquires > 0 {
            let is_of_hold =
                |other: &&Claim| matches!(other.state, ClaimState::Holds { hold, .. } if hold == slot);
            hold.acquire_id = session.claims.iter().find(is_of_hold).expect("an acquire is left").id;
        }
        (claim, is_seen)
    }

    /// Takes away a hold that no acquire is in.
    pub(crate) fn remove_hold(&mut self, slot: HoldSlot) -> Hold {
        let lock = self.holds[slot].lock;
        self.before_lock_change(lock);
        self.locks[lock].holds.unlink(&mut self.holds, slot);
        let hold = self.holds.remove(slot);
        assert_eq!(hold.acquires, 0, "a hold ends with its last acquire");
        self.digest.remove(hold.fact(self.sessions[hold.session].id, self.locks[lock].name_hash));
        hold
    }

    /// Lines an acquire up; tells its position.
    pub(crate) fn add_wait(&mut self, candidate: Candidate, wait_ms: u32) -> u32 {
        let position = self.locks[candidate.lock].waits.len() + 1;
        self.put_wait(candidate, wait_ms, position, self.applied);
        position
    }

    /// Adds a wait at the end of the line, in which it was told this position by the entry `since`.
    pub(crate) fn put_wait(&mut self, candidate: Candidate, wait_ms: u32, position: u32, since: LogIndex) {
        self.before_lock_change(candidate.lock);
        let Candidate { session, lock, owner, acquire_id, content, mode, data, data_hash } = candidate;
        let links = Links::none();
        let wait =
            Wait { session, lock, owner, acquire_id, mode, data, data_hash, wait_ms, position, since, links };
        self.digest.add(wait.fact(self.sessions[session].id, self.locks[lock].name_hash, content));
        let slot = self.waits.insert(wait);
        self.locks[lock].waits.push(&mut self.waits, slot);
        let session = &mut self.sessions[session];
        session.waiting += 1;
        insert_claim(&mut session.claims, Claim { id: acquire_id, content, state: ClaimState::Waits(slot) });
    }

    /// Takes an acquire out of line.
    pub(crate) fn remove_wait(&mut self, slot: WaitSlot) -> Candidate {
        let lock = self.waits[slot].lock;
        self.before_lock_change(lock);
        self.locks[lock].waits.unlink(&mut self.waits, slot);
        let wait = self.waits.remove(slot);
        let session = &mut self.sessions[wait.session];
        session.waiting -= 1;
        let claim = take_claim(&mut session.claims, wait.acquire_id);
        self.digest.remove(wait.fact(session.id, self.locks[lock].name_hash, claim.content));
        let Wait { session, owner, acquire_id, mode, data, data_hash, .. } = wait;
        Candidate { session, lock, owner, acquire_id, content: claim.content, mode, data, data_hash }
    }
}

fn insert_claim(claims: &mut Vec<Claim>, claim: Claim) {
    let at = claims.partition_point(|other| other.id < claim.id);
    claims.insert(at, claim);
}

fn take_claim(claims: &mut Vec<Claim>, id: RequestId) -> Claim {
    let at = claims.binary_search_by_key(&id, |claim| claim.id).expect("a hold or wait has its claim");
    claims.remove(at)
}
