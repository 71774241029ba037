//! What comes in, and what it means for whatever was asked.
//!
//! Invariant: a reply counts only for a request that is under way on the connection it came on. What a server may
//! not say closes the connection; nothing it says makes the core panic.

use std::sync::Arc;

use lockstep_wire::frame::Frame;
use lockstep_wire::hello::HelloReply;
use lockstep_wire::reply::{EndReason, Event as Told, Grant, Refusal, Reply};
use lockstep_wire::request::kind;
use lockstep_wire::{ClusterId, NodeId, Retry, Status};

use super::call::{Body, Errand, Flight};
use super::link::Phase;
use super::outcome::{CallId, Event, Failure, Loss, Outcome, SessionKey};
use super::session::Hold;
use super::view::{MembersInfo, RouteInfo, SessionInfo};
use super::{ClientCore, Due};

/// The pause before something that the cell did not execute, and named no delay for, is sent again, in ms.
const AGAIN_MS: u64 = 20;
/// The longest pause that a server may ask for, in ms.
const RETRY_AFTER_MS_MAX: u64 = 5_000;
/// For how long full disks are waited for, in ms. What recycles a segment is over in a second; what lasts longer wants an
/// operator, and whoever asked had better know.
const NO_SPACE_MS_MAX: u64 = 3_000;

impl ClientCore {
    pub(super) fn on_frame(&mut self, frame: &Frame<'_>) {
        match (self.link.phase, frame.head.kind) {
            (Phase::Greeting(..), kind) if kind == kind::HELLO | kind::REPLY => self.on_hello(frame),
            (Phase::Ready(_), _) if frame.head.cell != self.config.cell => {
                self.leave("spoke for another cell", "");
            }
            (Phase::Ready(_), kind::EVENT) => match Told::decode(frame) {
                Ok(event) => self.on_told(&event),
                Err(error) => self.leave(&error.to_string(), ""),
            },
            (Phase::Ready(_), _) => self.on_reply(frame),
            (Phase::Greeting(..) | Phase::Idle | Phase::Pausing(_) | Phase::Connecting(..), _) => {
                self.leave("spoke before it answered Hello; this may not be a Lockstep server", "");
            }
        }
    }

    fn on_hello(&mut self, frame: &Frame<'_>) {
        let hello = match HelloReply::decode(frame.body) {
            Ok(hello) => hello,
            Err(error) => return self.leave(&error.to_string(), ""),
        };
        if hello.status != Status::Ok {
            let trouble = explain(hello.status, hello.detail);
            self.leave(&trouble, hello.leader_address);
            if self.config.is_pinned {
                self.refuse_all(hello.status, hello.detail);
            }
            return;
        }
        let is_foreign = self.config.cluster != ClusterId::default() && self.config.cluster != hello.cluster;
        if is_foreign {
            let trouble = format!("belongs to cluster {}, wanted is {}", hello.cluster, self.config.cluster);
            return self.leave(&trouble, "");
        }
        self.config.cluster = hello.cluster;
        if hello.leader != hello.node && !self.config.is_pinned {
            let trouble = if hello.leader == NodeId(0) { "knows no leader" } else { "does not lead" };
            return self.leave(trouble, hello.leader_address);
        }
        let connection = self.link.connection().expect("a frame comes on a connection");
        self.link.phase = Phase::Ready(connection);
        let waiting: Vec<SessionKey> =
            self.sessions.iter().filter(|(_, session)| session.id.is_some()).map(|(key, _)| *key).collect();
        for key in waiting {
            self.beats.set(key, self.now);
        }
    }

    fn on_told(&mut self, event: &Told<'_>) {
        match event {
            Told::HoldEnded { session, acquire_id, token, reason, name: _ } => {
                let session = self.by_id.get(session).and_then(|key| self.sessions.get(key));
                let Some(session) = session else { return };
                for acquire in session.calls_of_hold(*acquire_id, *token) {
                    self.lose_hold(acquire, Loss::Ended(*reason));
                }
            }
            Told::SessionEnded { session, reason } => {
                if let Some(key) = self.by_id.get(session) {
                    self.end_session(*key, Loss::Ended(*reason));
                }
            }
            Told::ShuttingDown { leader: _, leader_address } => {
                self.leave("is shutting down", leader_address);
            }
        }
    }

    fn on_reply(&mut self, frame: &Frame<'_>) {
        let correlation = frame.head.correlation.0;
        // Without a flight it was for something that was withdrawn meanwhile.
        let Some(flight) = self.flights.get(&correlation) else { return };
        if frame.head.kind != flight.kind | kind::REPLY {
            return self.leave("answered another question than was asked", "");
        }
        let reply = match Reply::decode(frame) {
            Ok(reply) => reply,
            Err(error) => return self.leave(&error.to_string(), ""),
        };
        self.timers.clear(Due::Flight(correlation));
        if let (Reply::Queued { position }, Errand::Call(call)) = (&reply, &flight.what) {
            let call = *call;
            return self.on_queued(call, *position);
        }
        let Some(flight) = self.flights.remove(&correlation) else { return };
        match (reply, flight) {
            (Reply::Refused(refusal), Flight { what: Errand::Beat(keys), .. }) => {
                self.on_batch_refused(&refusal, &keys);
            }
            (Reply::Attached(rows), Flight { what: Errand::Beat(keys), sent_at, .. }) => {
                self.on_attached(rows, &keys, sent_at);
            }
            (Reply::KeptAlive(rows), Flight { what: Errand::Beat(keys), sent_at, .. }) => {
                self.on_kept_alive(rows, &keys, sent_at);
            }
            (_, Flight { what: Errand::Beat(_), .. }) => self.leave("gave an answer of the wrong shape", ""),
            (reply, Flight { what: Errand::Call(call), sent_at, .. }) => {
                let Some(state) = self.calls.get_mut(&call) else { return };
                state.flight = None;
                match reply {
                    Reply::Refused(refusal) => self.on_refused(call, &refusal),
                    Reply::Opened { session, ttl_ms, next_request_id } => {
                        let Some(key) = state.session else { return };
                        if let Some(opened) = self.sessions.get_mut(&key) {
                            opened.id = Some(session);
                            opened.ttl_ms = ttl_ms;
                            opened.is_attached = true;
                            opened.skip_to(next_request_id);
                            self.by_id.insert(session, key);
                            self.dirty.insert(key);
                            self.try_timeout_ms = self.try_timeout_ms.min(u64::from(ttl_ms / 4).max(1));
                        }
                        self.confirm(key, sent_at, ttl_ms);
                        self.beat_after(key, sent_at, ttl_ms);
                        self.finish(call, Outcome::Opened { ttl_ms });
                    }
                    reply => self.on_answer(call, &reply),
                }
            }
        }
    }

    fn on_queued(&mut self, call: CallId, position: u32) {
        self.processed(call);
        let Some(state) = self.calls.get_mut(&call) else { return };
        state.no_space_since = None;
        if !state.is_silent {
            self.events.push_back(Event::Queued { call, position });
        }
    }

    /// The cell has processed a mutation: it has forgotten what that told it to, and knows its request id.
    fn processed(&mut self, call: CallId) {
        if let Some(state) = self.calls.get(&call)
            && let (Some(key), Some(id)) = (state.session, state.request_id)
            && let Some(session) = self.sessions.get_mut(&key)
        {
            session.unanswered.remove(&id);
            session.forget_seen(&state.seen);
            self.dirty.insert(key);
        }
    }

    /// A call was carried out.
    fn on_answer(&mut self, call: CallId, reply: &Reply<'_>) {
        self.processed(call);
        let Some(state) = self.calls.get(&call) else { return };
        let body = state.body.clone();
        if state.session.is_none() {
            self.link.confirm();
        }
        match (body, reply) {
            (Body::Acquire { .. }, Reply::Granted(grant)) => self.on_granted(call, *grant),
            (Body::Acquire { .. }, Reply::TimedOut) => self.finish_mutation(call, Outcome::TimedOut, true),
            (Body::Acquire { .. }, Reply::Cancelled) => {
                let failure = Failure::Refused { status: Status::Cancelled, detail: String::new() };
                self.finish_mutation(call, Outcome::Failed(failure), true);
            }
            (Body::Acquire { .. }, Reply::AlreadyHeld { acquire_id, token }) => {
                let outcome = Outcome::AlreadyHeld { acquire_id: *acquire_id, token: *token };
                self.finish_mutation(call, outcome, true);
            }
            (Body::Acquire { .. }, Reply::Lost { token, reason }) => {
                let outcome = Outcome::Lost { token: *token, reason: *reason };
                self.finish_mutation(call, outcome, true);
            }
            (Body::Release { .. }, Reply::Done) => self.finish_mutation(call, Outcome::Released, true),
            (Body::Release { .. }, Reply::StaleToken) => {
                self.finish_mutation(call, Outcome::StaleToken, true);
            }
            (Body::Cancel { .. }, Reply::Done) => self.on_cancelled(call),
            (Body::Close, Reply::Closed { released_total, released }) => {
                let released = released.iter().map(str::to_owned).collect();
                self.on_closed(call, Outcome::Closed { released_total: *released_total, released });
            }
            (Body::Check { .. }, Reply::Checked { is_current, latest_token, fence_floor }) => {
                let (is_current, latest_token, fence_floor) = (*is_current, *latest_token, *fence_floor);
                self.finish(call, Outcome::Checked { is_current, latest_token, fence_floor });
            }
            (Body::Verify { acquire, .. }, Reply::Checked { is_current, .. }) => {
                self.finish(call, Outcome::Released);
                if !is_current {
                    self.lose_hold(acquire, Loss::Unknown);
                }
            }
            (Body::GetLock { .. }, Reply::Lock(view)) => {
                self.finish(call, Outcome::Lock((*view).into()));
            }
            (Body::GetSession { .. }, Reply::Session(view)) => {
                self.finish(call, Outcome::Session((*view).into()));
            }
            (Body::Reconcile { granted_max }, Reply::Session(view)) => {
                self.on_reconciled(call, &SessionInfo::from(*view), granted_max);
            }
            (Body::Status, Reply::Status(view)) => self.finish(call, Outcome::Status((*view).into())),
            (Body::Members, Reply::Members(view)) => {
                let members = MembersInfo::of(self.config.cluster, *view);
                self.finish(call, Outcome::Members(members));
            }
            (Body::ChangeMembers(_), Reply::Done) => self.finish(call, Outcome::MembersChanged),
            (Body::Transfer { .. }, Reply::Transferred { leader, term }) => {
                self.finish(call, Outcome::Transferred { leader: *leader, term: *term });
            }
            (Body::Routes, Reply::Routes(rows)) => {
                self.finish(call, Outcome::Routes(rows.iter().map(RouteInfo::from).collect()));
            }
            (Body::Save { .. }, Reply::SavedPiece(piece)) => {
                self.finish(call, Outcome::Piece((*piece).into()));
            }
            (Body::Save { .. }, Reply::SnapshotGone) => self.finish(call, Outcome::SnapshotGone),
            (_, _) => {
                // What became of it is as unknown as if nothing had come.
                if let Some(state) = self.calls.get_mut(&call) {
                    state.is_in_doubt = true;
                }
                self.leave("gave an answer of the wrong shape", "");
                self.requeue(call);
            }
        }
    }

    fn on_granted(&mut self, call: CallId, grant: Grant) {
        let Some(state) = self.calls.get(&call) else { return };
        let (Some(key), Some(acquire_id), Body::Acquire { options, .. }) =
            (state.session, state.request_id, &state.body)
        else {
            return;
        };
        if state.is_silent {
            // Withdrawn meanwhile; its cancel is on its way and gives the hold back.
            return self.finish_mutation(call, Outcome::Granted(grant), true);
        }
        let Some(session) = self.sessions.get_mut(&key) else { return };
        self.grants += 1;
        let is_withheld = !session.is_safe(self.now);
        let (options, granted) = (Arc::clone(options), self.grants);
        session.holds.insert(call, Hold { options, acquire_id, grant, granted, is_withheld });
        self.holds.insert(call, key);
        if is_withheld && let Some(state) = self.calls.get_mut(&call) {
            state.is_silent = true;
        }
        self.finish_mutation(call, Outcome::Granted(grant), true);
    }

    /// A cancel was carried out: the acquire neither holds nor waits, whatever else is known of it.
    fn on_cancelled(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        let acquire = match (&state.body, state.session) {
            (Body::Cancel { acquire_id }, Some(key)) => {
                self.sessions.get(&key).and_then(|session| session.unfinished.get(acquire_id)).copied()
            }
            (_, _) => None,
        };
        let outcome =
            || Outcome::Failed(Failure::Refused { status: Status::Cancelled, detail: String::new() });
        if let Some(acquire) = acquire {
            self.finish_mutation(acquire, outcome(), true);
        }
        self.finish_mutation(call, outcome(), true);
    }

    fn on_closed(&mut self, call: CallId, outcome: Outcome) {
        let key = self.calls.get(&call).and_then(|state| state.session);
        self.finish(call, outcome);
        if let Some(key) = key {
            self.end_session(key, Loss::Ended(EndReason::Closed));
        }
    }

    /// What the session held when this was asked, and does not hold in the cell's eyes, is lost.
    fn on_reconciled(&mut self, call: CallId, view: &SessionInfo, granted_max: u64) {
        let key = self.calls.get(&call).and_then(|state| state.session);
        self.finish(call, Outcome::Released);
        let Some((key, session)) = key.and_then(|key| Some((key, self.sessions.get(&key)?))) else { return };
        let is_whole = view.claims.len() as u64 >= u64::from(view.claims_total);
        let listed_max = view.claims.iter().map(|claim| claim.acquire_id).max();
        let (mut lost, mut unclear) = (Vec::new(), Vec::new());
        for (acquire, hold) in session.holds.iter().filter(|(_, hold)| hold.granted <= granted_max) {
            let is_there = view.claims.iter().any(|claim| {
                claim.name == hold.options.name
                    && claim.owner == hold.options.owner
                    && claim.token == hold.grant.token
            });
            if is_there {
                continue;
            }
            if is_whole || listed_max.is_some_and(|max| hold.acquire_id <= max) {
                lost.push(*acquire);
            } else {
                unclear.push((*acquire, Arc::clone(&hold.options), hold.grant.token));
            }
        }
        for acquire in lost {
            self.lose_hold(acquire, Loss::Unknown);
        }
        for (acquire, options, token) in unclear {
            let verify = self.ask(Some(key), Body::Verify { acquire, options, token });
            self.make_silent(verify);
            self.requeue(verify);
        }
    }

    /// A batch of attaches or beats was not executed.
    fn on_batch_refused(&mut self, refusal: &Refusal<'_>, keys: &[SessionKey]) {
        match refusal.status {
            Status::Overloaded | Status::NoSpace | Status::OutcomeUnknown | Status::NotAttached => {
                let ms = u64::from(refusal.retry_after_ms).clamp(AGAIN_MS, RETRY_AFTER_MS_MAX);
                self.beat_again(keys, ms);
            }
            _ => self.leave(&explain(refusal.status, refusal.detail), refusal.leader_address),
        }
    }

    fn on_refused(&mut self, call: CallId, refusal: &Refusal<'_>) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        let (session, status) = (state.session, refusal.status);
        if state.body.is_asked_once() {
            return self.on_refused_once(call, refusal);
        }
        match (status.retry(), status) {
            (Retry::Anywhere, Status::Overloaded | Status::NoSpace) => {
                let ms = u64::from(refusal.retry_after_ms).clamp(AGAIN_MS, RETRY_AFTER_MS_MAX);
                self.link.trouble = format!("{}: {}", self.link.address, explain(status, refusal.detail));
                let is_full = status == Status::NoSpace;
                let since = is_full.then(|| *state.no_space_since.get_or_insert(self.now));
                if since.is_some_and(|since| since.plus_ms(NO_SPACE_MS_MAX) <= self.now) {
                    self.give_up(call);
                } else {
                    self.delay(call, ms);
                }
            }
            (Retry::Anywhere, Status::NotAttached) => {
                if let Some(key) = session {
                    self.detach(key);
                }
                self.requeue(call);
            }
            (Retry::Anywhere, _) => {
                self.leave(&explain(status, refusal.detail), refusal.leader_address);
                self.requeue(call);
            }
            (Retry::SameRequestId, _) => {
                state.is_in_doubt = true;
                self.delay(call, AGAIN_MS);
            }
            (Retry::Done | Retry::Never, Status::SessionExpired | Status::SessionUnknown) => {
                let loss = match status {
                    Status::SessionExpired => Loss::Ended(EndReason::Expired),
                    _ => Loss::Unknown,
                };
                match session {
                    Some(key) => self.end_session(key, loss),
                    None => self.finish(call, Outcome::Failed(Failure::SessionEnded(loss))),
                }
            }
            (Retry::Done | Retry::Never, _) => self.on_refused_for_good(call, refusal),
        }
    }

    /// Whoever asked decides whether to ask again: by then another member may lead.
    fn on_refused_once(&mut self, call: CallId, refusal: &Refusal<'_>) {
        let was_sent_before = self.calls.get(&call).is_some_and(|state| state.is_in_doubt);
        let failure = if was_sent_before || refusal.status.retry() == Retry::SameRequestId {
            Failure::OutcomeUnknown { trouble: explain(refusal.status, refusal.detail) }
        } else {
            Failure::Refused { status: refusal.status, detail: refusal.detail.to_owned() }
        };
        self.finish(call, Outcome::Failed(failure));
    }

    fn on_refused_for_good(&mut self, call: CallId, refusal: &Refusal<'_>) {
        let Some(state) = self.calls.get(&call) else { return };
        let failure = Failure::Refused { status: refusal.status, detail: refusal.detail.to_owned() };
        match (&state.body, state.session) {
            (Body::Open, Some(key)) => {
                self.finish(call, Outcome::Failed(failure));
                self.end_session(key, Loss::Unknown);
            }
            (Body::Close, Some(key)) => {
                self.finish(call, Outcome::Failed(failure));
                self.forget(key);
            }
            (Body::Cancel { .. }, _) => self.on_cancelled(call),
            (body, _) if body.is_mutation() => self.finish_mutation(call, Outcome::Failed(failure), false),
            (_, _) => self.finish(call, Outcome::Failed(failure)),
        }
    }
}

/// A refusal in words.
fn explain(status: Status, detail: &str) -> String {
    if detail.is_empty() { status.name().to_owned() } else { format!("{}: {detail}", status.name()) }
}
