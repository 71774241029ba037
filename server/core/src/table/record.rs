//! The records of the table: sessions, locks, holds and waits.
//!
//! Invariant: a claim of a session and its hold or wait name each other. Deliberately absent: what moves them.

use std::sync::Arc;

use lockstep_wire::reply::EndReason;
use lockstep_wire::request::Mode;
use lockstep_wire::{FencingToken, LogIndex, Nonce, Owner, RequestId, SessionId};

use super::chain::{Chain, Linked, Links};
use super::digest::{self, Fact};
use super::outcome::Settled;
use super::slab::Slot;

macro_rules! slot {
    ($(#[$doc:meta])* $visible:vis $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        $visible struct $name(u32);

        impl Slot for $name {
            fn new(number: u32) -> Self {
                $name(number)
            }
            fn number(self) -> u32 {
                self.0
            }
        }
    };
}

slot!(
    /// Where a session's record is, for arrays beside the table; stays while the record exists, then is reused.
    pub SessionSlot
);
slot!(
    pub(crate) LockSlot
);
slot!(
    pub(crate) HoldSlot
);
slot!(
    pub(crate) WaitSlot
);

impl SessionSlot {
    /// As an index into an array of one element per slot.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A client's session.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) client_id: Box<str>,
    pub(crate) ttl_ms: u32,
    pub(crate) nonce: Nonce,
    /// A hash of what never changes.
    pub(crate) identity: u64,
    pub(crate) ended: Option<EndReason>,
    /// Its place in the reap queue, once ended.
    pub(crate) reap_place: u64,
    /// For how long leaders have not heard of it, as far as that was logged; at most its TTL.
    pub(crate) silence_ms: u32,
    /// The highest request id that was consumed.
    pub(crate) highest: RequestId,
    /// The ids below it that were not; ascending.
    pub(crate) gaps: Vec<RequestId>,
    /// What it waits for and holds, one per acquire id; ascending.
    pub(crate) claims: Vec<Claim>,
    /// The final answers that the client has not said it has seen; ascending.
    pub(crate) kept: Vec<Kept>,
    /// How many of the claims wait.
    pub(crate) waiting: usize,
    /// How many of the claims hold without that their client has said that it knows.
    pub(crate) unseen: usize,
    /// The last snapshot that has a copy of the record, or that is older than it. Not replicated.
    pub(crate) copied_for: u64,
}

/// An acquire that waits or holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) id: RequestId,
    pub(crate) content: u64,
    pub(crate) state: ClaimState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimState {
    Waits(WaitSlot),
    Holds { hold: HoldSlot, is_seen: bool },
}

/// A final answer that is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) id: RequestId,
    pub(crate) content: u64,
    pub(crate) settled: Settled,
}

/// A name that somebody holds or waits for.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) name: Arc<str>,
    pub(crate) name_hash: u64,
    /// In the order of granting.
    pub(crate) holds: Chain<HoldSlot>,
    /// First come, first in line.
    pub(crate) waits: Chain<WaitSlot>,
    /// Its place among the marks: its promotion must continue.
    pub(crate) mark: Option<u64>,
    /// See [`Session::copied_for`].
    pub(crate) copied_for: u64,
}

/// Somebody holds a lock.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) session: SessionSlot,
    pub(crate) lock: LockSlot,
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    pub(crate) fence: FencingToken,
    pub(crate) data: Box<[u8]>,
    pub(crate) data_hash: u64,
    /// The lowest of its acquire ids.
    pub(crate) acquire_id: RequestId,
    /// How many acquire ids it has.
    pub(crate) acquires: u32,
    pub(crate) links: Links<HoldSlot>,
}

/// Somebody waits for a lock.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) session: SessionSlot,
    pub(crate) lock: LockSlot,
    pub(crate) owner: Owner,
    pub(crate) acquire_id: RequestId,
    pub(crate) mode: Mode,
    pub(crate) data: Box<[u8]>,
    pub(crate) data_hash: u64,
    pub(crate) wait_ms: u32,
    /// Its place in line when it lined up, from 1.
    pub(crate) position: u32,
    /// The entry with which it lined up.
    pub(crate) since: LogIndex,
    pub(crate) links: Links<WaitSlot>,
}

impl Linked<HoldSlot> for Hold {
    fn links(&self) -> &Links<HoldSlot> {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links<HoldSlot> {
        &mut self.links
    }
}

impl Linked<WaitSlot> for Wait {
    fn links(&self) -> &Links<WaitSlot> {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links<WaitSlot> {
        &mut self.links
    }
}

impl Session {
    pub(crate) fn is_live(&self) -> bool {
        self.ended.is_none()
    }

    /// What still needs a place for its outcome: docs/SEMANTICS.md, "Load".
    pub(crate) fn load(&self) -> usize {
        self.kept.len() + self.waiting + self.unseen
    }

    pub(crate) fn claim(&self, id: RequestId) -> Option<&Claim> {
        self.claims.binary_search_by_key(&id, |claim| claim.id).ok().map(|at| &self.claims[at])
    }

    pub(crate) fn kept(&self, id: RequestId) -> Option<&Kept> {
        self.kept.binary_search_by_key(&id, |kept| kept.id).ok().map(|at| &self.kept[at])
    }

    /// Whether this id was never consumed and still may be.
    pub(crate) fn is_new(&self, id: RequestId) -> bool {
        id > self.highest || self.gaps.binary_search(&id).is_ok()
    }

    pub(crate) fn fact(&self) -> u64 {
        let ended = self.ended.map_or(0, |reason| reason as u64 + 1);
        digest::fact(
            Fact::Session,
            &[self.identity, self.highest.0, ended, self.reap_place, u64::from(self.silence_ms)],
        )
    }

    pub(crate) fn gap_fact(&self, gap: RequestId) -> u64 {
        digest::fact(Fact::Gap, &[self.id.0, gap.0])
    }

    pub(crate) fn kept_fact(&self, kept: &Kept) -> u64 {
        let [kind, first, second] = kept.settled.words();
        digest::fact(Fact::Outcome, &[self.id.0, kept.id.0, kept.content, kind, first, second])
    }
}

/// The hash of what never changes in a session.
pub(crate) fn identity(id: SessionId, client_id: &str, ttl_ms: u32, nonce: Nonce) -> u64 {
    let client = digest::bytes(client_id.as_bytes());
    digest::fact(Fact::Session, &[id.0, client, u64::from(ttl_ms), digest::bytes(&nonce.0)])
}

impl Lock {
    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.waits.is_empty()
    }

    pub(crate) fn mark_fact(&self, place: u64) -> u64 {
        digest::fact(Fact::Mark, &[place, self.name_hash])
    }
}

impl Hold {
    pub(crate) fn fact(&self, session: SessionId, name_hash: u64) -> u64 {
        let words = [
            session.0,
            name_hash,
            self.owner.0,
            self.mode as u64,
            self.token.0,
            self.fence.0,
            self.data_hash,
        ];
        digest::fact(Fact::Hold, &words)
    }

    /// The fact that this acquire is one of the hold's.
    pub(crate) fn claim_fact(&self, session: SessionId, name_hash: u64, claim: &Claim, is_seen: bool) -> u64 {
        let words =
            [session.0, name_hash, self.owner.0, self.token.0, claim.id.0, claim.content, u64::from(is_seen)];
        digest::fact(Fact::HeldClaim, &words)
    }
}

impl Wait {
    pub(crate) fn fact(&self, session: SessionId, name_hash: u64, content: u64) -> u64 {
        let words = [
            session.0,
            name_hash,
            self.owner.0,
            self.acquire_id.0,
            content,
            self.mode as u64,
            self.data_hash,
            u64::from(self.wait_ms),
            u64::from(self.position),
            self.since.0,
        ];
        digest::fact(Fact::Wait, &words)
    }
}
