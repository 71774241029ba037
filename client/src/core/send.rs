//! What goes out, in which order, and again after what.
//!
//! Invariant: a session's mutations leave in the order of their request ids, on a connection that the
//! session is attached to, within the cell's window (ARCHITECTURE section 2, "Request window"). Releases and cancels do
//! not stand behind acquires.

use lockstep_wire::frame::{self, Head};
use lockstep_wire::hello::{self, Hello, Role};
use lockstep_wire::request::{Acquire, Mutation, Request, kind};
use lockstep_wire::{Correlation, RequestId, Rows, SessionId};

use super::call::{Body, Call, Errand, Flight};
use super::link::Phase;
use super::outcome::{CallId, ConnectionId, SessionKey};
use super::time::Time;
use super::{ClientCore, Due};

impl ClientCore {
    pub(super) fn greet(&mut self, connection: ConnectionId) {
        let until = self.now.plus_ms(self.try_timeout_ms);
        self.link.phase = Phase::Greeting(connection, until);
        let hello = Hello {
            protocol_min: hello::PROTOCOL.0,
            protocol_max: hello::PROTOCOL.1,
            cluster: self.config.cluster,
            role: Role::Client,
            peer_address: "",
            credentials: b"",
        };
        self.correlations += 1;
        let head =
            Head { kind: kind::HELLO, cell: self.config.cell, correlation: Correlation(self.correlations) };
        frame::encode(&mut self.out, head, |out| hello.put(out));
    }

    /// Puts a call where it is sent from.
    pub(super) fn requeue(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        if state.is_cancelled || state.flight.is_some() || state.not_before > self.now {
            return;
        }
        let key = state.session.filter(|_| !matches!(state.body, Body::Open));
        let Some(key) = key else {
            self.unsent.insert(call);
            return;
        };
        let Some(session) = self.sessions.get_mut(&key) else { return };
        match (&state.body, state.request_id) {
            (_, Some(id)) => {
                session.unsent.insert(id);
            }
            (Body::Acquire { .. }, None) => session.acquires.push_back(call),
            (body, None) if body.is_mutation() => session.endings.push_back(call),
            (_, None) => {
                session.errands.insert(call);
            }
        }
        self.dirty.insert(key);
    }

    /// Lets a call rest, after the cell asked for it.
    pub(super) fn delay(&mut self, call: CallId, ms: u64) {
        let ms = ms + self.chance.below(ms / 2 + 1);
        let until = self.now.plus_ms(ms);
        if let Some(state) = self.calls.get_mut(&call) {
            state.not_before = until;
        }
        self.arm(call);
    }

    /// Has a call looked at when it has rested, or when its user has waited long enough.
    pub(super) fn arm(&mut self, call: CallId) {
        if let Some(state) = self.calls.get(&call) {
            let rests = state.not_before > self.now;
            let due = if rests { state.not_before.min(state.give_up) } else { state.give_up };
            self.timers.set(Due::Call(call), due);
        }
    }

    /// Sends everything that may be sent now.
    pub(super) fn send_due(&mut self) {
        self.send_beats();
        for call in std::mem::take(&mut self.unsent) {
            self.send(call);
        }
        for key in std::mem::take(&mut self.dirty) {
            self.send_of_session(key);
        }
    }

    fn send_of_session(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if !session.is_attached {
            // It is looked at again as soon as it is attached.
            return;
        }
        for call in std::mem::take(&mut session.errands) {
            self.send(call);
        }
        self.number(key);
        let Some(session) = self.sessions.get_mut(&key) else { return };
        let due: Vec<CallId> = std::mem::take(&mut session.unsent)
            .into_iter()
            .filter_map(|id| session.unfinished.get(&id).copied())
            .collect();
        for call in due {
            self.send(call);
        }
    }

    /// Gives request ids to calls as far as the window allows.
    fn number(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        while session.admits_ending()
            && let Some(call) = session.endings.pop_front()
        {
            if let Some(state) = self.calls.get_mut(&call) {
                state.request_id = Some(session.number(call));
            }
        }
        while session.admits_acquire()
            && let Some(call) = session.acquires.pop_front()
        {
            if let Some(state) = self.calls.get_mut(&call) {
                state.request_id = Some(session.number(call));
            }
        }
    }

    fn send(&mut self, call: CallId) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        let session = state.session.and_then(|key| self.sessions.get(&key));
        let id = session.and_then(|session| session.id).unwrap_or_default();
        state.seen = match (session, state.request_id) {
            (Some(session), Some(request_id)) => session.seen_below(request_id),
            (_, _) => Vec::new(),
        };
        self.correlations += 1;
        let correlation = self.correlations;
        let names: [&str; 1];
        let request = match (&state.body, session) {
            (Body::Open, Some(session)) => Request::OpenSession {
                client_id: &self.config.client_id,
                ttl_ms: session.ttl_ms,
                nonce: session.nonce,
            },
            (Body::Acquire { options, .. }, _) => {
                names = [&options.name];
                Request::Acquire(acquire(state, id, &names, self.now))
            }
            (body, _) => plain(body, id, mutation(state, id)),
        };
        request.encode(self.config.cell, Correlation(correlation), &mut self.out);
        let kind = request.kind();
        state.flight = Some(correlation);
        let try_ms = if state.body.is_entry() { self.try_timeout_ms / 2 } else { self.try_timeout_ms };
        self.timers.set(Due::Flight(correlation), self.now.plus_ms(try_ms));
        let what = Errand::Call(call);
        self.flights.insert(correlation, Flight { kind, sent_at: self.now, try_began: self.now, what });
        self.arm(call);
    }

    /// A request has got no answer. One that waits for an entry may have to wait for disks; half a try later the member is
    /// asked whether it still leads, and left only if nothing since then has shown it: another member could do no better.
    pub(super) fn on_flight_due(&mut self, correlation: u64) {
        let Some(flight) = self.flights.get_mut(&correlation) else { return };
        let end = flight.try_began.plus_ms(self.try_timeout_ms);
        let half_ms = self.try_timeout_ms / 2;
        let is_entry = match &flight.what {
            Errand::Call(call) => self.calls.get(call).is_some_and(|state| state.body.is_entry()),
            Errand::Beat(_) => false,
        };
        if is_entry && self.now < end {
            self.timers.set(Due::Flight(correlation), end);
            self.beat_now();
        } else if is_entry && self.led_at >= Some(flight.try_began.plus_ms(half_ms)) {
            flight.try_began = self.now;
            self.timers.set(Due::Flight(correlation), self.now.plus_ms(half_ms));
        } else {
            self.leave_silent("gave no answer in time");
        }
    }

    /// Sends a batch about sessions.
    pub(super) fn send_batch(&mut self, request: &Request<'_>, keys: Vec<SessionKey>) {
        self.correlations += 1;
        let correlation = self.correlations;
        request.encode(self.config.cell, Correlation(correlation), &mut self.out);
        self.timers.set(Due::Flight(correlation), self.now.plus_ms(self.try_timeout_ms));
        let what = Errand::Beat(keys);
        let (kind, sent_at) = (request.kind(), self.now);
        self.flights.insert(correlation, Flight { kind, sent_at, try_began: sent_at, what });
    }
}

fn mutation(state: &Call, session: SessionId) -> Mutation<'_> {
    Mutation { session, request_id: state.request_id.unwrap_or(RequestId(0)), seen: Rows::Slice(&state.seen) }
}

/// An acquire with what remains of its wait.
fn acquire<'a>(state: &'a Call, session: SessionId, names: &'a [&'a str], now: Time) -> Acquire<'a> {
    let Body::Acquire { options, wait_until } = &state.body else {
        unreachable!("only acquires are encoded here")
    };
    let left_ms = u32::try_from(wait_until.ms_since(now)).unwrap_or(u32::MAX);
    Acquire {
        mutation: mutation(state, session),
        owner: options.owner,
        mode: options.mode,
        is_reentrant: options.is_reentrant,
        permits: 0,
        wait_ms: left_ms.min(options.wait_ms),
        lock_delay_ms: 0,
        max_hold_ms: 0,
        names: Rows::Slice(names),
        data: &options.data,
    }
}

/// A request whose body says all.
fn plain<'a>(body: &'a Body, session: SessionId, mutation: Mutation<'a>) -> Request<'a> {
    match body {
        Body::Open | Body::Acquire { .. } => unreachable!("they are encoded with their session"),
        Body::Close => Request::CloseSession { session },
        Body::Cancel { acquire_id } => Request::Cancel { mutation, acquire_id: *acquire_id },
        Body::Release { acquire_id, options, token } => {
            Request::Release { mutation, acquire_id: *acquire_id, name: &options.name, token: *token }
        }
        Body::Check { name, token, of } => Request::CheckToken { name, token: *token, session: *of },
        Body::Verify { options, token, .. } => {
            Request::CheckToken { name: &options.name, token: *token, session }
        }
        Body::GetLock { name } => Request::GetLock { name },
        Body::GetSession { of } => Request::GetSession { session: *of },
        Body::Reconcile { .. } => Request::GetSession { session },
        Body::Status => Request::Status,
        Body::Members => Request::Members,
        Body::ChangeMembers(wish) => Request::ChangeMembers(wish.as_change()),
        Body::Transfer { to } => Request::TransferLeader { to: *to },
        Body::Routes => Request::Routes,
        Body::Save { snapshot, piece } => Request::SaveSnapshot { snapshot: *snapshot, piece: *piece },
    }
}
