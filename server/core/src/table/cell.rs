//! The table itself: its records, its indexes, and the steps that keep records, indexes and digest together.
//!
//! Invariant: every change of the replicated state goes through a step of this file or of `cell/locks.rs`, and each
//! step keeps the digest and lets a snapshot under way copy the record first. Deliberately absent: which step a command
//! takes.

mod locks;

use std::collections::{BTreeMap, VecDeque};

use lockstep_wire::{Epoch, FencingToken, LogIndex, Nonce, RequestId, SessionId};

use super::digest::{self, Digest, Fact};
use super::limits::Limits;
use super::names::Names;
use super::record::{ClaimState, Hold, HoldSlot, Kept, Lock, LockSlot, Session, SessionSlot, Wait, WaitSlot};
use super::slab::Slab;
use super::snapshot::SnapshotWriter;
use crate::members::Membership;

pub(crate) use locks::Candidate;

/// The replicated state of one cell.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) epoch: Epoch,
    pub(crate) limits: Limits,
    pub(crate) applied: LogIndex,
    /// As the last entry about them says; none while they are those of the birth.
    members: Option<Membership>,
    pub(crate) sessions: Slab<SessionSlot, Session>,
    pub(crate) sessions_by_id: BTreeMap<SessionId, SessionSlot>,
    /// Live sessions only.
    pub(crate) sessions_by_nonce: BTreeMap<Nonce, SessionSlot>,
    pub(crate) locks: Slab<LockSlot, Lock>,
    pub(crate) locks_by_name: Names<LockSlot>,
    pub(crate) holds: Slab<HoldSlot, Hold>,
    pub(crate) waits: Slab<WaitSlot, Wait>,
    /// Ended sessions that still have records, first ended first.
    pub(crate) reap_queue: VecDeque<SessionSlot>,
    reap_places: u64,
    /// Nothing is granted.
    is_quiet: bool,
    /// Locks whose promotion must continue, by place.
    pub(crate) marks: BTreeMap<u64, LockSlot>,
    mark_places: u64,
    digest: Digest,
    /// The snapshot that is under way.
    pub(super) snapshot: Option<Box<SnapshotWriter>>,
    pub(super) snapshots_begun: u64,
    /// What is left of those that are over, to be freed bit by bit.
    pub(super) given_up: Vec<SnapshotWriter>,
}

/// What a cell is besides its records, its limits and its digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CellNumbers {
    pub(crate) epoch: Epoch,
    pub(crate) applied: LogIndex,
    /// The place in the reap queue that was given last.
    pub(crate) reap_places: u64,
    /// The place among the marks that was given last.
    pub(crate) mark_places: u64,
    pub(crate) is_quiet: bool,
}

impl Table {
    /// The state before the first entry.
    ///
    /// # Panics
    /// When the limits contradict each other.
    pub fn new(epoch: Epoch, limits: Limits) -> Table {
        limits.assert_coherent();
        Table::without_records(limits, CellNumbers { epoch, ..CellNumbers::default() })
    }

    /// A cell in which there is nothing yet.
    pub(crate) fn without_records(limits: Limits, numbers: CellNumbers) -> Table {
        let CellNumbers { epoch, applied, reap_places, mark_places, is_quiet } = numbers;
        let mut table = Table {
            epoch,
            limits,
            applied,
            members: None,
            sessions: Slab::new(),
            sessions_by_id: BTreeMap::new(),
            sessions_by_nonce: BTreeMap::new(),
            locks: Slab::new(),
            locks_by_name: Names::new(),
            holds: Slab::new(),
            waits: Slab::new(),
            reap_queue: VecDeque::new(),
            reap_places,
            is_quiet,
            marks: BTreeMap::new(),
            mark_places,
            digest: Digest::default(),
            snapshot: None,
            snapshots_begun: 0,
            given_up: Vec::new(),
        };
        table.digest.add(table.cell_fact());
        table
    }

    /// The last entry that was applied.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// The epoch that tokens and session ids carry.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The limits that requests are held against.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Who the members are; none while they are those of the birth.
    pub fn members(&self) -> Option<&Membership> {
        self.members.as_ref()
    }

    /// The digest of the replicated state; compared between replicas at the same applied index.
    pub fn digest(&self) -> u64 {
        self.digest.value()
    }

    /// How many session records there are, ended ones that are not reaped yet among them.
    pub fn sessions_len(&self) -> usize {
        self.sessions.len()
    }

    /// How many lock records there are.
    pub fn locks_len(&self) -> usize {
        self.locks.len()
    }

    /// How many hold records there are, those of ended sessions that are not reaped yet among them.
    pub fn holds_len(&self) -> usize {
        self.holds.len()
    }

    /// How many wait records there are, likewise.
    pub fn waits_len(&self) -> usize {
        self.waits.len()
    }

    /// Whether a `Reap` entry has something to do.
    pub fn needs_reaping(&self) -> bool {
        !self.reap_queue.is_empty() || (!self.marks.is_empty() && !self.is_quiet)
    }

    /// Whether nothing is granted, because the cell was restored and those who held its locks before may not know yet.
    pub fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// From now on locks are granted again; those that somebody waits for are marked.
    pub(crate) fn end_quiet(&mut self) {
        self.digest.remove(self.cell_fact());
        self.is_quiet = false;
        self.digest.add(self.cell_fact());
    }

    /// The token of what the entry that is being applied grants.
    pub(crate) fn token(&self) -> FencingToken {
        FencingToken(self.epoch.with(self.applied))
    }

    pub(crate) fn is_live(&self, session: SessionSlot) -> bool {
        self.sessions[session].is_live()
    }

    pub(crate) fn numbers(&self) -> CellNumbers {
        CellNumbers {
            epoch: self.epoch,
            applied: self.applied,
            reap_places: self.reap_places,
            mark_places: self.mark_places,
            is_quiet: self.is_quiet,
        }
    }

    fn cell_fact(&self) -> u64 {
        let limits = digest::fact(Fact::Cell, &self.limits.fields().map(u64::from));
        let (epoch, is_quiet) = (u64::from(self.epoch.0), u64::from(self.is_quiet));
        digest::fact(Fact::Cell, &[epoch, limits, self.reap_places, self.mark_places, is_quiet])
    }

    fn members_fact(&self) -> u64 {
        let Some(members) = &self.members else { return 0 };
        let mut bytes = Vec::new();
        members.with_rows(|rows| rows.put(&mut bytes));
        digest::fact(Fact::Members, &[digest::bytes(&bytes)])
    }

    pub(crate) fn set_members(&mut self, members: Membership) {
        self.digest.remove(self.members_fact());
        self.members = Some(members);
        self.digest.add(self.members_fact());
    }

    /// What every step calls before it changes or deletes a session's record.
    #[inline]
    fn before_session_change(&mut self, slot: SessionSlot) {
        if self.snapshot.is_some() {
            self.copy_session(slot);
        }
    }

    /// What every step calls before it changes a lock's record: its mark, its holds with their acquires, its line.
    #[inline]
    fn before_lock_change(&mut self, slot: LockSlot) {
        if self.snapshot.is_some() {
            self.copy_lock(slot);
        }
    }

    /// Changes what the session's own fact is about.
    fn change_session(&mut self, slot: SessionSlot, change: impl FnOnce(&mut Session)) {
        self.before_session_change(slot);
        let session = &mut self.sessions[slot];
        self.digest.remove(session.fact());
        change(session);
        self.digest.add(session.fact());
    }

    /// Adds a session that has no claims and, if it has ended, has not joined the reap queue.
    pub(crate) fn add_session(&mut self, session: Session) -> SessionSlot {
        self.digest.add(session.fact());
        session.gaps.iter().for_each(|gap| self.digest.add(session.gap_fact(*gap)));
        session.kept.iter().for_each(|kept| self.digest.add(session.kept_fact(kept)));
        let (id, live_nonce) = (session.id, session.is_live().then_some(session.nonce));
        let slot = self.sessions.insert(session);
        self.sessions_by_id.insert(id, slot);
        if let Some(nonce) = live_nonce {
            self.sessions_by_nonce.insert(nonce, slot);
        }
        slot
    }

    pub(crate) fn end_session(&mut self, slot: SessionSlot, reason: lockstep_wire::reply::EndReason) {
        self.digest.remove(self.cell_fact());
        self.reap_places += 1;
        self.digest.add(self.cell_fact());
        let place = self.reap_places;
        self.change_session(slot, |session| {
            session.ended = Some(reason);
            session.reap_place = place;
        });
        self.sessions_by_nonce.remove(&self.sessions[slot].nonce);
        self.reap_queue.push_back(slot);
    }

    /// Takes away the first session of the reap queue.
    ///
    /// # Panics
    /// When it still holds or waits.
    pub(crate) fn delete_first_ended(&mut self) {
        let slot = self.reap_queue.pop_front().expect("a session waits to be reaped");
        self.before_session_change(slot);
        let session = self.sessions.remove(slot);
        assert!(session.claims.is_empty(), "a session is deleted when nothing of it is left");
        self.sessions_by_id.remove(&session.id);
        self.digest.remove(session.fact());
        session.gaps.iter().for_each(|gap| self.digest.remove(session.gap_fact(*gap)));
        session.kept.iter().for_each(|kept| self.digest.remove(session.kept_fact(kept)));
    }

    pub(crate) fn set_highest(&mut self, slot: SessionSlot, highest: RequestId) {
        self.change_session(slot, |session| session.highest = highest);
    }

    pub(crate) fn set_silence(&mut self, slot: SessionSlot, silence_ms: u32) {
        if self.sessions[slot].silence_ms != silence_ms {
            self.change_session(slot, |session| session.silence_ms = silence_ms);
        }
    }

    pub(crate) fn add_gap(&mut self, slot: SessionSlot, gap: RequestId) {
        self.before_session_change(slot);
        let session = &mut self.sessions[slot];
        self.digest.add(session.gap_fact(gap));
        let at = session.gaps.partition_point(|other| *other < gap);
        session.gaps.insert(at, gap);
    }

    /// Closes a gap, if it is one.
    pub(crate) fn close_gap(&mut self, slot: SessionSlot, gap: RequestId) {
        if let Ok(at) = self.sessions[slot].gaps.binary_search(&gap) {
            self.before_session_change(slot);
            let session = &mut self.sessions[slot];
            session.gaps.remove(at);
            self.digest.remove(session.gap_fact(gap));
        }
    }

    pub(crate) fn keep(&mut self, slot: SessionSlot, kept: Kept) {
        self.before_session_change(slot);
        let session = &mut self.sessions[slot];
        self.digest.add(session.kept_fact(&kept));
        let at = session.kept.partition_point(|other| other.id < kept.id);
        session.kept.insert(at, kept);
    }

    /// The client has seen the final answer to this request: forgets it, or notes it at the hold.
    pub(crate) fn mark_seen(&mut self, slot: SessionSlot, id: RequestId) {
        let session = &self.sessions[slot];
        if let Ok(at) = session.kept.binary_search_by_key(&id, |kept| kept.id) {
            self.before_session_change(slot);
            let session = &mut self.sessions[slot];
            let kept = session.kept.remove(at);
            self.digest.remove(session.kept_fact(&kept));
            return;
        }
        let Ok(at) = session.claims.binary_search_by_key(&id, |claim| claim.id) else { return };
        if let ClaimState::Holds { hold: hold_slot, is_seen: false } = session.claims[at].state {
            self.before_lock_change(self.holds[hold_slot].lock);
            let session = &mut self.sessions[slot];
            let (claim, hold) = (&mut session.claims[at], &self.holds[hold_slot]);
            let name_hash = self.locks[hold.lock].name_hash;
            self.digest.remove(hold.claim_fact(session.id, name_hash, claim, false));
            self.digest.add(hold.claim_fact(session.id, name_hash, claim, true));
            claim.state = ClaimState::Holds { hold: hold_slot, is_seen: true };
            session.unseen -= 1;
        }
    }

    /// The digest computed anew from every record: equal to [`Table::digest`], and slow. For tests and for
    /// whoever loads a state.
    pub fn recomputed_digest(&self) -> u64 {
        let mut digest = Digest::default();
        digest.add(self.cell_fact());
        digest.add(self.members_fact());
        for (_, session) in self.sessions.iter() {
            digest.add(session.fact());
            session.gaps.iter().for_each(|gap| digest.add(session.gap_fact(*gap)));
            session.kept.iter().for_each(|kept| digest.add(session.kept_fact(kept)));
            for claim in &session.claims {
                digest.add(match claim.state {
                    ClaimState::Waits(slot) => {
                        let wait = &self.waits[slot];
                        wait.fact(session.id, self.locks[wait.lock].name_hash, claim.content)
                    }
                    ClaimState::Holds { hold, is_seen } => {
                        let hold = &self.holds[hold];
                        hold.claim_fact(session.id, self.locks[hold.lock].name_hash, claim, is_seen)
                    }
                });
            }
        }
        for (_, hold) in self.holds.iter() {
            digest.add(hold.fact(self.sessions[hold.session].id, self.locks[hold.lock].name_hash));
        }
        for (place, lock) in &self.marks {
            digest.add(self.locks[*lock].mark_fact(*place));
        }
        digest.value()
    }
}
