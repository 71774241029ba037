//! Who waits for which answer: the leader's volatile map from requests to connections.
//!
//! Invariant: every call in here is of a session attached to the call's connection, or opens one; a
//! session that is attached elsewhere takes its calls along only by sending them again. Deliberately
//! absent: outcomes; those are the table's, and survive this map.

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
}

/// The calls that wait for entries of the log, or for waits to end.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// By the request that made them.
    pub(crate) mutations: BTreeMap<(SessionId, RequestId), Call>,
    /// By the index of their entry, in its order.
    pub(crate) openings: VecDeque<(LogIndex, Call)>,
    /// By the session that they close.
    pub(crate) closings: BTreeMap<SessionId, Call>,
}

impl Calls {
    /// Takes everything out that a session still has outstanding.
    pub(crate) fn take_session(&mut self, session: SessionId) -> Vec<Call> {
        let range = (session, RequestId(0))..=(session, RequestId(u64::MAX));
        let keys: Vec<_> = self.mutations.range(range).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.mutations.remove(key)).collect()
    }

    /// The opening call whose entry is at `index`.
    pub(crate) fn take_opening(&mut self, index: LogIndex) -> Option<Call> {
        while let Some((at, call)) = self.openings.front().copied() {
            if at > index {
                return None;
            }
            self.openings.pop_front();
            if at == index {
                return Some(call);
            }
        }
        None
    }

    /// Takes everything out.
    pub(crate) fn take_all(&mut self) -> Vec<Call> {
        let mut calls: Vec<Call> = std::mem::take(&mut self.mutations).into_values().collect();
        calls.extend(self.openings.drain(..).map(|(_, call)| call));
        calls.extend(std::mem::take(&mut self.closings).into_values());
        calls
    }
}

/// Which connection each session is attached to; memory of one leader only.
#[derive(Debug, Default)]
pub(crate) struct Attachments {
    slots: Vec<Option<(SessionId, ConnectionId)>>,
    connections: BTreeMap<ConnectionId, BTreeSet<(SessionId, SessionSlot)>>,
}

impl Attachments {
    /// Notes a connection that sessions may be attached to.
    pub(crate) fn on_connected(&mut self, connection: ConnectionId) {
        self.connections.entry(connection).or_default();
    }

    /// Ties a session to a connection; the newest attachment wins. Gives the connection that lost it. A
    /// connection that is gone meanwhile gets nothing.
    pub(crate) fn attach(
        &mut self,
        session: SessionId,
        slot: SessionSlot,
        connection: ConnectionId,
    ) -> Option<ConnectionId> {
        let former = self.connection(session, slot);
        if former == Some(connection) || !self.connections.contains_key(&connection) {
            return None;
        }
        self.detach(session, slot);
        let at = slot.index();
        if at >= self.slots.len() {
            self.slots.resize(at + 1, None);
        }
        self.slots[at] = Some((session, connection));
        self.connections.entry(connection).or_default().insert((session, slot));
        former
    }

    /// Where a session is attached.
    pub(crate) fn connection(&self, session: SessionId, slot: SessionSlot) -> Option<ConnectionId> {
        match self.slots.get(slot.index()).copied().flatten() {
            Some((attached, connection)) if attached == session => Some(connection),
            _ => None,
        }
    }

    /// Unties a session.
    pub(crate) fn detach(&mut self, session: SessionId, slot: SessionSlot) {
        let Some(connection) = self.connection(session, slot) else { return };
        self.slots[slot.index()] = None;
        if let Some(sessions) = self.connections.get_mut(&connection) {
            sessions.remove(&(session, slot));
        }
    }

    /// Unties every session of a connection that is gone, and names them.
    pub(crate) fn on_disconnected(&mut self, connection: ConnectionId) -> BTreeSet<(SessionId, SessionSlot)> {
        let sessions = self.connections.remove(&connection).unwrap_or_default();
        for (_, slot) in &sessions {
            self.slots[slot.index()] = None;
        }
        sessions
    }

    /// The connections that have a session attached.
    pub(crate) fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.connections.keys().copied()
    }

    /// Forgets every attachment.
    pub(crate) fn clear(&mut self) {
        *self = Attachments::default();
    }
}
