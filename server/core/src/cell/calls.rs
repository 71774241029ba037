//! Who waits for which answer: the leader's volatile map from requests to connections.
//!
//! Invariant: every mutation in here is of a session attached to the call's connection; a session that is
//! attached elsewhere takes its calls along only by sending them again. Deliberately absent: outcomes; those
//! are the table's, and survive this map.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lockstep_wire::{Correlation, LogIndex, RequestId, SessionId};

use crate::effect::ConnectionId;
use crate::table::SessionSlot;

/// Where an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) connection: ConnectionId,
    pub(crate) correlation: Correlation,
    /// The kind of the request.
    pub(crate) asked: u16,
    /// Its place among the requests that have come to this replica.
    pub(crate) arrival: u64,
}

/// A call that waits for an entry to be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proposed {
    pub(crate) index: LogIndex,
    pub(crate) call: Call,
}

/// The calls that wait for entries of the log, or for waits to end.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// By the request that made them.
    mutations: BTreeMap<(SessionId, RequestId), Proposed>,
    /// In the order of their entries.
    openings: VecDeque<Proposed>,
    /// By the session that they close.
    closings: BTreeMap<SessionId, Proposed>,
    /// The one that changes the members.
    member_change: Option<Proposed>,
}

impl Calls {
    /// Adds a mutation. Gives the call that the same request came by before, if that is not answered yet.
    pub(crate) fn add_mutation(
        &mut self,
        session: SessionId,
        request_id: RequestId,
        proposed: Proposed,
    ) -> Option<Call> {
        self.mutations.insert((session, request_id), proposed).map(|former| former.call)
    }

    /// The call that the entry at `index` answers, or an earlier one did without ending it. A call whose own
    /// entry is still to come is not meant: its request may be another under the same id.
    pub(crate) fn mutation(
        &self,
        session: SessionId,
        request_id: RequestId,
        index: LogIndex,
    ) -> Option<Call> {
        let proposed = self.mutations.get(&(session, request_id))?;
        (proposed.index <= index).then_some(proposed.call)
    }

    /// Likewise, and takes it out.
    pub(crate) fn take_mutation(
        &mut self,
        session: SessionId,
        request_id: RequestId,
        index: LogIndex,
    ) -> Option<Call> {
        let call = self.mutation(session, request_id, index)?;
        self.mutations.remove(&(session, request_id));
        Some(call)
    }

    /// Takes out every mutation that a session still has outstanding.
    pub(crate) fn take_session(&mut self, session: SessionId) -> Vec<Call> {
        let range = (session, RequestId(0))..=(session, RequestId(u64::MAX));
        let keys: Vec<_> = self.mutations.range(range).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.mutations.remove(key)).map(|proposed| proposed.call).collect()
    }

    /// Adds a call that opens a session.
    pub(crate) fn add_opening(&mut self, proposed: Proposed) {
        self.openings.push_back(proposed);
    }

    /// The opening call whose entry is at `index`.
    pub(crate) fn take_opening(&mut self, index: LogIndex) -> Option<Call> {
        let front = *self.openings.front()?;
        assert!(front.index >= index, "the entry at {} was applied and its call not answered", front.index);
        if front.index > index {
            return None;
        }
        self.openings.pop_front().map(|front| front.call)
    }

    /// Adds the call that closes a session.
    pub(crate) fn add_closing(&mut self, session: SessionId, proposed: Proposed) {
        self.closings.insert(session, proposed);
    }

    /// The entry by which a session is being closed.
    pub(crate) fn closing(&self, session: SessionId) -> Option<LogIndex> {
        self.closings.get(&session).map(|proposed| proposed.index)
    }

    /// Takes out the call that closes a session.
    pub(crate) fn take_closing(&mut self, session: SessionId) -> Option<Call> {
        self.closings.remove(&session).map(|proposed| proposed.call)
    }

    /// Adds the call that changes the members; there is one at a time.
    pub(crate) fn add_member_change(&mut self, proposed: Proposed) {
        self.member_change = Some(proposed);
    }

    /// Takes out the call that changes the members, if this is its entry.
    pub(crate) fn take_member_change(&mut self, index: LogIndex) -> Option<Call> {
        self.member_change.take_if(|change| change.index == index).map(|change| change.call)
    }

    /// Takes everything out.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Call> + use<> {
        let mutations = std::mem::take(&mut self.mutations).into_values();
        let openings = std::mem::take(&mut self.openings).into_iter();
        let closings = std::mem::take(&mut self.closings).into_values();
        let member_change = self.member_change.take();
        mutations.chain(openings).chain(closings).chain(member_change).map(|proposed| proposed.call)
    }
}

/// Where one session is attached.
#[derive(Clone, Copy, Debug)]
struct Attachment {
    session: SessionId,
    connection: ConnectionId,
    /// When the call that attached it came.
    arrival: u64,
}

/// Which connection each session is attached to; memory of one leader only. What is left of a connection
/// that is gone, or of a session that has ended, is found out when it is looked at.
#[derive(Debug, Default)]
pub(crate) struct Attachments {
    slots: Vec<Option<Attachment>>,
    connections: BTreeSet<ConnectionId>,
}

impl Attachments {
    /// Notes a connection that sessions may be attached to.
    pub(crate) fn on_connected(&mut self, connection: ConnectionId) {
        self.connections.insert(connection);
    }

    /// Ties a session to the connection of a call; the one that came last wins, whenever it is answered.
    /// Whether another connection has lost the session by that. A connection that is gone gets nothing.
    pub(crate) fn attach(&mut self, session: SessionId, slot: SessionSlot, call: Call) -> bool {
        if !self.connections.contains(&call.connection) {
            return false;
        }
        let at = slot.index();
        if at >= self.slots.len() {
            self.slots.resize(at + 1, None);
        }
        let former = self.slots[at].filter(|former| former.session == session);
        if former.is_some_and(|former| former.arrival > call.arrival) {
            return false;
        }
        let Call { connection, arrival, .. } = call;
        self.slots[at] = Some(Attachment { session, connection, arrival });
        former.is_some_and(|former| former.connection != connection)
    }

    /// Whether a session is attached to this connection, which lives.
    pub(crate) fn is_attached(
        &self,
        session: SessionId,
        slot: SessionSlot,
        connection: ConnectionId,
    ) -> bool {
        let attachment = self.slots.get(slot.index()).copied().flatten();
        attachment.is_some_and(|found| found.session == session && found.connection == connection)
    }

    /// Where a session is attached.
    pub(crate) fn connection(&self, session: SessionId, slot: SessionSlot) -> Option<ConnectionId> {
        let attachment = self.slots.get(slot.index()).copied().flatten()?;
        let is_there = attachment.session == session && self.connections.contains(&attachment.connection);
        is_there.then_some(attachment.connection)
    }

    /// Unties a session that has ended.
    pub(crate) fn detach(&mut self, session: SessionId, slot: SessionSlot) {
        if let Some(found) = self.slots.get_mut(slot.index())
            && found.is_some_and(|found| found.session == session)
        {
            *found = None;
        }
    }

    /// A connection is gone, and nothing is attached to it any more.
    pub(crate) fn on_disconnected(&mut self, connection: ConnectionId) {
        self.connections.remove(&connection);
    }

    /// The connections that sessions may be attached to.
    pub(crate) fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.connections.iter().copied()
    }

    /// Forgets every attachment.
    pub(crate) fn clear(&mut self) {
        *self = Attachments::default();
    }
}
