//! What the client knows of one session: its lease, its request window, its holds.
//!
//! Invariant: `safe_until` never moves back; a hold is listed exactly while its user may believe in it
//! (the lease permitting). Deliberately absent: sending; that is `sending`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use lockstep_wire::limit::{REQUEST_ID_LIMIT, REQUEST_WINDOW_MAX, TTL_MS_MAX};
use lockstep_wire::reply::Grant;
use lockstep_wire::{FencingToken, Nonce, RequestId, SessionId};

use super::call::AcquireOptions;
use super::outcome::{CallId, Condition};
use super::time::Time;

/// Acquires under way at the cell; the rest of the window is kept for cancels and releases.
const ACQUIRES_UNDER_WAY_MAX: usize = REQUEST_WINDOW_MAX - 16;
/// Acquires that wait in the client for a place in the window; one more fails with `Backlog`.
pub(super) const BACKLOG_MAX: usize = 4_096;

/// How long a promise of `ttl_ms` lasts for the client: less a drift of 1,000 ppm and 5 ms (ARCHITECTURE section 5).
pub(super) fn lease_ns(ttl_ms: u32) -> u64 {
    let ttl_ms = u64::from(ttl_ms.min(TTL_MS_MAX));
    let margin_ns = ttl_ms * 1_000 + 5_000_000;
    (ttl_ms * 1_000_000).saturating_sub(margin_ns)
}

/// A lock that is held.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    /// As it was asked for.
    pub(super) options: Arc<AcquireOptions>,
    pub(super) acquire_id: RequestId,
    pub(super) grant: Grant,
    /// Counts the grants of the core, so that a view of the session is only compared with older ones.
    pub(super) granted: u64,
    /// Not shown to the user yet, because the session was not safe when the grant came.
    pub(super) is_withheld: bool,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) nonce: Nonce,
    /// The call that opens it, while it has no outcome.
    pub(super) opening: Option<CallId>,
    /// Known from `Opened` on.
    pub(super) id: Option<SessionId>,
    pub(super) ttl_ms: u32,
    pub(super) condition: Condition,
    /// The user has closed it; what is left to do is to tell the cell.
    pub(super) is_closing: bool,
    pub(super) safe_until: Time,
    /// Attached to the connection that is there now.
    pub(super) is_attached: bool,
    /// An attach or a keep-alive is under way on this connection.
    pub(super) is_beating: bool,
    /// Attaches and keep-alives that were answered without confirming it, since one did.
    pub(super) unconfirmed: u32,
    next_request_id: RequestId,
    /// All its calls.
    pub(super) calls: BTreeSet<CallId>,
    /// Calls that have a request id and no final outcome.
    pub(super) unfinished: BTreeMap<RequestId, CallId>,
    /// Those of them that must be sent (again).
    pub(super) unsent: BTreeSet<RequestId>,
    /// Those of them that the cell may not have seen: what could become gaps of its window.
    pub(super) unanswered: BTreeSet<RequestId>,
    /// Request ids whose final outcome is known and of which the cell has not been told so.
    unseen: BTreeSet<RequestId>,
    /// Releases and cancels that have no request id yet.
    pub(super) endings: VecDeque<CallId>,
    /// Acquires that have no request id yet.
    pub(super) acquires: VecDeque<CallId>,
    /// Calls without a request id that need the session to be attached.
    pub(super) errands: BTreeSet<CallId>,
    pub(super) holds: BTreeMap<CallId, Hold>,
}

impl Session {
    pub(super) fn new(nonce: Nonce, ttl_ms: u32, opening: CallId) -> Session {
        Session {
            nonce,
            opening: Some(opening),
            id: None,
            ttl_ms,
            condition: Condition::Opening,
            is_closing: false,
            safe_until: Time(0),
            is_attached: false,
            is_beating: false,
            unconfirmed: 0,
            next_request_id: RequestId(1),
            calls: BTreeSet::from([opening]),
            unfinished: BTreeMap::new(),
            unsent: BTreeSet::new(),
            unanswered: BTreeSet::new(),
            unseen: BTreeSet::new(),
            endings: VecDeque::new(),
            acquires: VecDeque::new(),
            errands: BTreeSet::new(),
            holds: BTreeMap::new(),
        }
    }

    /// Whether it is open and its user may still get something from it.
    pub(super) fn is_live(&self) -> bool {
        !self.is_closing && matches!(self.condition, Condition::Safe | Condition::Jeopardy)
    }

    /// Whether the cell's promise covers this moment.
    pub(super) fn is_safe(&self, now: Time) -> bool {
        self.is_live() && now < self.safe_until
    }

    /// Takes the next request id for a call.
    pub(super) fn number(&mut self, call: CallId) -> RequestId {
        let id = self.next_request_id;
        self.next_request_id = RequestId(id.0 + 1);
        self.unfinished.insert(id, call);
        self.unanswered.insert(id);
        self.unsent.insert(id);
        id
    }

    /// The cell says which request id it has not seen yet. One that no request can have says nothing.
    pub(super) fn skip_to(&mut self, next: RequestId) {
        if next.0 < REQUEST_ID_LIMIT {
            self.next_request_id = self.next_request_id.max(next);
        }
    }

    /// The ids below `id` that a mutation tells the cell to forget.
    pub(super) fn seen_below(&self, id: RequestId) -> Vec<RequestId> {
        self.unseen.range(..id).take(REQUEST_WINDOW_MAX).copied().collect()
    }

    /// The cell has processed a mutation that carried these.
    pub(super) fn forget_seen(&mut self, seen: &[RequestId]) {
        for id in seen {
            self.unseen.remove(id);
        }
    }

    /// What the next mutation could not tell the cell to forget.
    fn left_over(&self) -> usize {
        self.unseen.len().saturating_sub(REQUEST_WINDOW_MAX)
    }

    /// Whether one more acquire keeps within the cell's window whatever becomes of those under way.
    pub(super) fn admits_acquire(&self) -> bool {
        self.unfinished.is_empty() || self.left_over() + self.unfinished.len() < ACQUIRES_UNDER_WAY_MAX
    }

    /// Whether one more release or cancel does.
    pub(super) fn admits_ending(&self) -> bool {
        self.unanswered.is_empty() || self.left_over() + self.unanswered.len() < REQUEST_WINDOW_MAX
    }

    /// The mutation has its final outcome; `is_retained` says that the cell keeps it until told otherwise.
    pub(super) fn finish(&mut self, id: RequestId, is_retained: bool) {
        self.unfinished.remove(&id);
        self.unanswered.remove(&id);
        self.unsent.remove(&id);
        if is_retained {
            self.unseen.insert(id);
        }
    }

    /// The calls of the hold that this acquire id is part of: one owner's holds of one name are one hold.
    pub(super) fn calls_of_hold(&self, acquire_id: RequestId, token: FencingToken) -> Vec<CallId> {
        let mut all = self.holds.values();
        let Some(named) = all.find(|hold| hold.acquire_id == acquire_id && hold.grant.token == token) else {
            return Vec::new();
        };
        let same = |hold: &Hold| {
            hold.options.name == named.options.name && hold.options.owner == named.options.owner
        };
        self.holds.iter().filter(|(_, hold)| same(hold)).map(|(call, _)| *call).collect()
    }
}
