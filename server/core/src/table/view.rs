//! What reads see: the state as live sessions make it (docs/SEMANTICS.md, section 8).
//!
//! Invariant: an ended session holds nothing in any reading, whether or not it was reaped. Deliberately absent: the
//! proof that this replica may answer at all; that is a read round's.

use lockstep_wire::reply::{ClaimView, HolderView, WaiterView};
use lockstep_wire::request::Mode;
use lockstep_wire::{FencingToken, Nonce, RequestId, Revision, SessionId};

use super::cell::Table;
use super::outcome::Answer;
use super::promotion::Occupancy;
use super::record::{ClaimState, LockSlot, SessionSlot};
use super::slab::Slot;

/// A lock as it is at one revision.
#[derive(Clone, Copy, Debug)]
pub struct LockReading<'a> {
    table: &'a Table,
    lock: Option<LockSlot>,
}

/// A live session as it is at one revision.
#[derive(Clone, Copy, Debug)]
pub struct SessionReading<'a> {
    table: &'a Table,
    slot: SessionSlot,
}

/// What is known of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Whether it names a live hold (of the session asked for, if one was).
    pub is_current: bool,
    /// The greatest token of the live holds; 0 without one.
    pub latest_token: FencingToken,
    /// At least every token granted so far and below every later one; 0 while there is a live hold.
    pub fence_floor: FencingToken,
}

impl Table {
    /// The revision that readings are of.
    pub fn revision(&self) -> Revision {
        Revision(self.token().0)
    }

    /// Reads a lock; one without a record reads as vacant.
    pub fn lock(&self, name: &str) -> LockReading<'_> {
        LockReading { table: self, lock: self.locks_by_name.get(name).copied() }
    }

    /// Checks a token against the live holds of a lock, of one session if given.
    pub fn check(&self, name: &str, token: FencingToken, session: Option<SessionId>) -> Checked {
        let reading = self.lock(name);
        let mut checked =
            Checked { is_current: false, latest_token: FencingToken(0), fence_floor: reading.fence_floor() };
        for holder in reading.holders() {
            checked.latest_token = checked.latest_token.max(holder.token);
            checked.is_current |= holder.token == token && session.is_none_or(|id| id == holder.session);
        }
        checked
    }

    /// Reads a live session; otherwise tells why there is none: expired or unknown.
    pub fn session(&self, id: SessionId) -> Result<SessionReading<'_>, Answer> {
        self.live_session(id).map(|slot| SessionReading { table: self, slot })
    }

    /// The slot of a session's record, ended or not.
    pub fn slot_of(&self, id: SessionId) -> Option<SessionSlot> {
        self.sessions_by_id.get(&id).copied()
    }

    /// The live session in a slot.
    pub fn session_at(&self, slot: SessionSlot) -> Option<SessionReading<'_>> {
        let session = self.sessions.get(slot)?;
        session.is_live().then_some(SessionReading { table: self, slot })
    }

    /// The live session that this nonce opened.
    pub fn session_by_nonce(&self, nonce: &Nonce) -> Option<SessionReading<'_>> {
        self.sessions_by_nonce.get(nonce).map(|slot| SessionReading { table: self, slot: *slot })
    }

    /// Every lock that has a record, in the order of the names, from the first name at or above `from`.
    pub fn locks_from(&self, from: &str) -> impl Iterator<Item = (&str, LockReading<'_>)> {
        let locks = self.locks_by_name.from(from);
        locks.map(|(name, slot)| (name, LockReading { table: self, lock: Some(*slot) }))
    }
}

impl<'a> LockReading<'a> {
    /// Whether the lock has a record: holds or waits, those of ended sessions that are not reaped yet among them.
    pub fn exists(&self) -> bool {
        self.lock.is_some()
    }

    /// How live sessions hold it; `None` when nobody does.
    pub fn mode(&self) -> Option<Mode> {
        match self.table.occupancy(self.lock?) {
            Occupancy::Vacant => None,
            Occupancy::Shared { .. } => Some(Mode::Shared),
            Occupancy::Exclusive => Some(Mode::Exclusive),
        }
    }

    /// When nobody holds it: at least every token granted so far, below every later token and fence. Otherwise 0.
    pub fn fence_floor(&self) -> FencingToken {
        if self.mode().is_none() { self.table.token() } else { FencingToken(0) }
    }

    /// Who holds it, in the order of granting.
    pub fn holders(&self) -> impl Iterator<Item = HolderView<'a>> + use<'a> {
        let table = self.table;
        let holds = self.lock.into_iter().flat_map(|lock| table.locks[lock].holds.iter(&table.holds));
        holds.filter(|(_, hold)| table.is_live(hold.session)).map(|(_, hold)| {
            let session = &table.sessions[hold.session];
            HolderView {
                session: session.id,
                owner: hold.owner,
                acquire_id: hold.acquire_id,
                token: hold.token,
                fence: hold.fence,
                client_id: &session.client_id,
                data: &hold.data,
            }
        })
    }

    /// Who waits, in line, with positions as they are now.
    pub fn waiters(&self) -> impl Iterator<Item = WaiterView<'a>> + use<'a> {
        let table = self.table;
        let waits = self.lock.into_iter().flat_map(|lock| table.locks[lock].waits.iter(&table.waits));
        waits.filter(|(_, wait)| table.is_live(wait.session)).zip(1..).map(|((_, wait), position)| {
            let session = &table.sessions[wait.session];
            WaiterView {
                session: session.id,
                owner: wait.owner,
                acquire_id: wait.acquire_id,
                mode: wait.mode,
                position,
                client_id: &session.client_id,
            }
        })
    }

    /// How many hold it.
    pub fn holders_total(&self) -> u32 {
        self.lock.map_or(0, |lock| self.table.live_holds_len(lock))
    }

    /// How many wait for it.
    pub fn waiters_total(&self) -> u32 {
        self.lock.map_or(0, |lock| self.table.live_waits_len(lock))
    }
}

impl<'a> SessionReading<'a> {
    /// Its id.
    pub fn id(&self) -> SessionId {
        self.table.sessions[self.slot].id
    }

    /// Where its record is.
    pub fn slot(&self) -> SessionSlot {
        self.slot
    }

    /// Its TTL, in ms.
    pub fn ttl_ms(&self) -> u32 {
        self.table.sessions[self.slot].ttl_ms
    }

    /// For how long leaders have not heard of it, as far as that was logged, in ms; at most its TTL.
    pub fn silence_ms(&self) -> u32 {
        self.table.sessions[self.slot].silence_ms
    }

    /// What people see of the client.
    pub fn client_id(&self) -> &'a str {
        &self.table.sessions[self.slot].client_id
    }

    /// Whether this nonce opened it.
    pub fn is_opened_by(&self, nonce: &Nonce) -> bool {
        self.table.sessions[self.slot].nonce == *nonce
    }

    /// The lowest request id above every one that it has used.
    pub fn next_request_id(&self) -> RequestId {
        RequestId(self.table.sessions[self.slot].highest.0 + 1)
    }

    /// How many acquires of it hold or wait.
    pub fn claims_total(&self) -> usize {
        self.table.sessions[self.slot].claims.len()
    }

    /// What it holds and waits for, by acquire id.
    pub fn claims(&self) -> impl Iterator<Item = ClaimView<'a>> + use<'a> {
        let table = self.table;
        table.sessions[self.slot].claims.iter().map(move |claim| match claim.state {
            ClaimState::Holds { hold, .. } => {
                let hold = &table.holds[hold];
                ClaimView {
                    acquire_id: claim.id,
                    owner: hold.owner,
                    mode: hold.mode,
                    token: hold.token,
                    fence: hold.fence,
                    name: &table.locks[hold.lock].name,
                }
            }
            ClaimState::Waits(wait) => {
                let wait = &table.waits[wait];
                ClaimView {
                    acquire_id: claim.id,
                    owner: wait.owner,
                    mode: wait.mode,
                    token: FencingToken(0),
                    fence: FencingToken(0),
                    name: &table.locks[wait.lock].name,
                }
            }
        })
    }
}

impl SessionSlot {
    /// The slot with this index into an array beside the table.
    pub fn from_index(index: usize) -> SessionSlot {
        SessionSlot::new(u32::try_from(index).expect("the limits keep the slots below 2^32"))
    }
}
