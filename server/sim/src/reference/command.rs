//! The commands, row by row (SEMANTICS sections 4 and 5).
//!
//! Invariant: rows are looked at in the page's order, and the first that applies decides.

use lockstep_core::table::{Answer, LimitKind, Outcome};
use lockstep_wire::limit::VIEW_ROWS_MAX;
use lockstep_wire::reply::{EndReason, Grant};
use lockstep_wire::request::{Acquire, Mutation};
use lockstep_wire::{FencingToken, Nonce, RequestId, SessionId};

use super::session::count;
use super::{Content, Hold, HoldAcquire, Model, Session, WINDOW_MAX, Wait};

/// Names in the list of what a closed session held (SEMANTICS section 5).
const RELEASED_MAX: usize = VIEW_ROWS_MAX;

impl Model {
    pub(super) fn open_session(
        &mut self,
        client_id: &str,
        ttl_ms: u32,
        nonce: Nonce,
        out: &mut Vec<Outcome>,
    ) {
        let existing = self.sessions.iter().find(|session| session.nonce == Some(nonce));
        let refusal = match existing {
            Some(session) if session.client_id == client_id => {
                let (session, ttl_ms) = (session.id, session.ttl_ms);
                self.session_mut(session).silence_ms = 0;
                out.push(Outcome::Opened { session, ttl_ms, is_new: false });
                return;
            }
            Some(_) => Some(Answer::Invalid("nonce")),
            None if client_id.is_empty() => Some(Answer::Invalid("client_id")),
            None if client_id.len() > self.limits.client_id_bytes_max as usize => {
                Some(Answer::Limit(LimitKind::ClientIdBytes))
            }
            None if self.sessions.len() >= self.limits.sessions_max as usize => {
                Some(Answer::Limit(LimitKind::Sessions))
            }
            None => None,
        };
        if let Some(answer) = refusal {
            out.push(Outcome::OpenRefused { answer });
            return;
        }
        let session = SessionId(self.now());
        let ttl_ms = ttl_ms.clamp(self.limits.ttl_ms_min, self.limits.ttl_ms_max);
        self.sessions.push(Session {
            id: session,
            client_id: client_id.to_owned(),
            ttl_ms,
            nonce: Some(nonce),
            ended: None,
            silence_ms: 0,
            highest: 0,
            gaps: Vec::new(),
            outcomes: Vec::new(),
        });
        out.push(Outcome::Opened { session, ttl_ms, is_new: true });
    }

    pub(super) fn acquire(&mut self, acquire: &Acquire<'_>, out: &mut Vec<Outcome>) {
        let content = Content::of_acquire(acquire);
        let shape = self.acquire_shape(acquire);
        if !self.admit(&acquire.mutation, shape, &content, acquire.wait_ms, out) {
            return;
        }
        let (session, request_id) = (acquire.mutation.session, acquire.mutation.request_id);
        let answer = self.acquire_row(acquire, content.clone());
        let is_consumed = !matches!(answer, Answer::Limit(_) | Answer::Invalid(_) | Answer::Unsupported(_));
        if is_consumed {
            self.consume(session, request_id);
        }
        if matches!(answer, Answer::TimedOut | Answer::AlreadyHeld { .. }) {
            self.keep(session, request_id, content, answer);
        }
        out.push(Outcome::Reply { session, request_id, answer });
        if matches!(answer, Answer::Queued { .. }) {
            out.push(Outcome::WaitStarted { session, acquire_id: request_id, wait_ms: acquire.wait_ms });
        }
    }

    pub(super) fn cancel_shape(mutation: &Mutation<'_>, acquire_id: RequestId) -> Option<Answer> {
        let is_shaped = acquire_id.0 != 0 && acquire_id < mutation.request_id;
        (!is_shaped).then_some(Answer::Invalid("acquire_id"))
    }

    pub(super) fn acquire_shape(&self, acquire: &Acquire<'_>) -> Option<Answer> {
        let name_bytes = acquire.names.iter().next().map_or(0, str::len);
        if acquire.names.is_empty() {
            Some(Answer::Invalid("names"))
        } else if acquire.names.len() > 1 {
            Some(Answer::Unsupported("names"))
        } else if acquire.permits != 0 {
            Some(Answer::Unsupported("permits"))
        } else if acquire.lock_delay_ms != 0 {
            Some(Answer::Unsupported("lock_delay_ms"))
        } else if acquire.max_hold_ms != 0 {
            Some(Answer::Unsupported("max_hold_ms"))
        } else if name_bytes > self.limits.name_bytes_max as usize {
            Some(Answer::Limit(LimitKind::NameBytes))
        } else if acquire.data.len() > self.limits.data_bytes_max as usize {
            Some(Answer::Limit(LimitKind::DataBytes))
        } else {
            None
        }
    }

    /// The table of section 4, Acquire.
    fn acquire_row(&mut self, acquire: &Acquire<'_>, content: Content) -> Answer {
        let session = acquire.mutation.session;
        let name = acquire.names.iter().next().expect("the shape was checked").to_owned();
        let limits = self.limits;
        let claims = self.claims_of(session);
        if self.load(session) >= WINDOW_MAX {
            return Answer::Limit(LimitKind::UnseenOutcomes);
        }
        let lock = self.lock_record(&name).cloned();
        let (holds, waits) =
            lock.as_ref().map_or((&[][..], &[][..]), |lock| (&lock.holds[..], &lock.waits[..]));
        if let Some(hold) = holds.iter().find(|hold| hold.session == session && hold.owner == acquire.owner) {
            if !(acquire.is_reentrant && hold.mode == acquire.mode) {
                return Answer::AlreadyHeld { acquire_id: hold.lowest_id(), token: hold.token };
            }
            if hold.acquires.len() >= limits.acquires_per_hold_max as usize {
                return Answer::Limit(LimitKind::AcquiresPerHold);
            }
            if claims >= limits.locks_per_session_max as usize {
                return Answer::Limit(LimitKind::LocksPerSession);
            }
            return self.grant_again(acquire, &name, content);
        }
        if let Some(wait) = waits.iter().find(|wait| wait.session == session && wait.owner == acquire.owner) {
            return Answer::AlreadyHeld { acquire_id: wait.id, token: FencingToken(0) };
        }
        if claims >= limits.locks_per_session_max as usize {
            return Answer::Limit(LimitKind::LocksPerSession);
        }
        if lock.is_none() && self.locks.len() >= limits.locks_max as usize {
            return Answer::Limit(LimitKind::Locks);
        }
        let request = Wait {
            session,
            owner: acquire.owner,
            id: acquire.mutation.request_id,
            content,
            mode: acquire.mode,
            data: acquire.data.to_vec(),
            position: count(waits.len()) + 1,
        };
        let vacant = super::Lock { name: name.clone(), holds: Vec::new(), waits: Vec::new() };
        let lock = lock.as_ref().unwrap_or(&vacant);
        if self.is_grantable(lock, acquire.mode, waits) {
            return self.grant(&name, request);
        }
        if !self.is_quiet && self.is_only_full(lock, acquire, waits) {
            return Answer::Limit(LimitKind::HoldersPerLock);
        }
        if acquire.wait_ms == 0 {
            return Answer::TimedOut;
        }
        if waits.len() >= limits.waiters_per_lock_max as usize {
            return Answer::Limit(LimitKind::WaitersPerLock);
        }
        let position = request.position;
        self.lock_mut(&name).waits.push(request);
        if self.is_quiet && !self.marks.contains(&name) {
            self.marks.push(name);
        }
        Answer::Queued { position }
    }

    /// Whether a shared request is refused by the number of hold records and by nothing else.
    fn is_only_full(&self, lock: &super::Lock, acquire: &Acquire<'_>, ahead: &[Wait]) -> bool {
        use lockstep_wire::request::Mode;
        let is_exclusive = |hold: &Hold| hold.mode == Mode::Exclusive && self.is_live(hold.session);
        acquire.mode == Mode::Shared
            && !lock.holds.iter().any(is_exclusive)
            && !ahead.iter().any(|wait| self.is_live(wait.session))
    }

    fn grant_again(&mut self, acquire: &Acquire<'_>, name: &str, content: Content) -> Answer {
        let holders = self.live_holders(self.lock_record(name).expect("it has a hold"));
        let lock = self.lock_mut(name);
        let is_it =
            |hold: &&mut Hold| hold.session == acquire.mutation.session && hold.owner == acquire.owner;
        let hold = lock.holds.iter_mut().find(is_it).expect("the hold was found");
        hold.acquires.push(HoldAcquire { id: acquire.mutation.request_id, content, is_seen: false });
        Answer::Granted(Grant { token: hold.token, fence: hold.fence, slot: 0, hold_left_ms: 0, holders })
    }

    /// Acquire ids of holds, and waits, of a session.
    pub(super) fn claims_of(&self, session: SessionId) -> usize {
        let mut claims = 0;
        for lock in &self.locks {
            claims += lock.waits.iter().filter(|wait| wait.session == session).count();
            for hold in lock.holds.iter().filter(|hold| hold.session == session) {
                claims += hold.acquires.len();
            }
        }
        claims
    }

    pub(super) fn release(
        &mut self,
        mutation: &Mutation<'_>,
        acquire_id: RequestId,
        name: &str,
        token: FencingToken,
        out: &mut Vec<Outcome>,
    ) {
        let content = Content::Release { acquire_id, name: name.to_owned(), token };
        if !self.admit(mutation, None, &content, 0, out) {
            return;
        }
        let (session, request_id) = (mutation.session, mutation.request_id);
        self.consume(session, request_id);
        let is_held = self.lock_record(name).is_some_and(|lock| {
            lock.holds.iter().any(|hold| {
                hold.session == session
                    && hold.token == token
                    && hold.acquires.iter().any(|acquire| acquire.id == acquire_id)
            })
        });
        let answer = if is_held { Answer::Done } else { Answer::StaleToken };
        if is_held || self.load(session) < WINDOW_MAX {
            self.keep(session, request_id, content, answer);
        }
        let has_ended = is_held && self.leave_hold(session, acquire_id, name, EndReason::Released, out);
        out.push(Outcome::Reply { session, request_id, answer });
        if has_ended {
            self.promote(name, self.limits.transitions_per_entry_max, out);
        }
    }

    /// Takes an acquire id out of its hold. Says whether the hold has ended with it.
    fn leave_hold(
        &mut self,
        session: SessionId,
        acquire_id: RequestId,
        name: &str,
        reason: EndReason,
        out: &mut Vec<Outcome>,
    ) -> bool {
        let lock = self.lock_mut(name);
        let is_it = |hold: &Hold| {
            hold.session == session && hold.acquires.iter().any(|acquire| acquire.id == acquire_id)
        };
        let at = lock.holds.iter().position(is_it).expect("the hold was found");
        let hold = &mut lock.holds[at];
        let token = hold.token;
        let within = hold.acquires.iter().position(|acquire| acquire.id == acquire_id).expect("it is in it");
        let left = hold.acquires.remove(within);
        let has_ended = hold.acquires.is_empty();
        if has_ended {
            lock.holds.remove(at);
            out.push(Outcome::HoldEnded { session, acquire_id, name: name.into(), token, reason });
        }
        if !left.is_seen {
            self.keep(session, acquire_id, left.content, Answer::Lost { token, reason });
        }
        has_ended
    }

    pub(super) fn cancel(&mut self, mutation: &Mutation<'_>, acquire_id: RequestId, out: &mut Vec<Outcome>) {
        let content = Content::Cancel { acquire_id };
        let shape = Model::cancel_shape(mutation, acquire_id);
        if !self.admit(mutation, shape, &content, 0, out) {
            return;
        }
        let (session, request_id) = (mutation.session, mutation.request_id);
        self.consume(session, request_id);
        let waiting = self
            .locks
            .iter()
            .find(|lock| lock.waits.iter().any(|wait| wait.session == session && wait.id == acquire_id));
        let holding = self.locks.iter().find(|lock| {
            lock.holds.iter().any(|hold| {
                hold.session == session && hold.acquires.iter().any(|acquire| acquire.id == acquire_id)
            })
        });
        let mut promoted = None;
        let mut has_changed = true;
        if let Some(name) = waiting.map(|lock| lock.name.clone()) {
            self.leave_line(session, acquire_id, &name, Answer::Cancelled, out);
            promoted = Some(name);
        } else if let Some(name) = holding.map(|lock| lock.name.clone()) {
            if self.leave_hold(session, acquire_id, &name, EndReason::Cancelled, out) {
                promoted = Some(name);
            }
        } else {
            has_changed = false;
            self.session_mut(session).gaps.retain(|gap| *gap != acquire_id.0);
        }
        if has_changed || self.load(session) < WINDOW_MAX {
            self.keep(session, request_id, content, Answer::Done);
        }
        out.push(Outcome::Reply { session, request_id, answer: Answer::Done });
        if let Some(name) = promoted {
            self.promote(&name, self.limits.transitions_per_entry_max, out);
        }
    }

    fn leave_line(
        &mut self,
        session: SessionId,
        acquire_id: RequestId,
        name: &str,
        answer: Answer,
        out: &mut Vec<Outcome>,
    ) {
        let lock = self.lock_mut(name);
        let is_it = |wait: &Wait| wait.session == session && wait.id == acquire_id;
        let at = lock.waits.iter().position(is_it).expect("the wait was found");
        let wait = lock.waits.remove(at);
        out.push(Outcome::WaitEnded { session, acquire_id });
        self.keep(session, acquire_id, wait.content, answer);
        out.push(Outcome::Reply { session, request_id: acquire_id, answer });
    }

    pub(super) fn cancel_wait(&mut self, session: SessionId, acquire_id: RequestId, out: &mut Vec<Outcome>) {
        let waiting = self
            .locks
            .iter()
            .find(|lock| lock.waits.iter().any(|wait| wait.session == session && wait.id == acquire_id));
        let Some(name) = waiting.map(|lock| lock.name.clone()) else { return };
        if self.is_live(session) {
            self.leave_line(session, acquire_id, &name, Answer::TimedOut, out);
            self.promote(&name, self.limits.transitions_per_entry_max, out);
        }
    }

    pub(super) fn end_sessions(&mut self, reason: EndReason, ids: &[SessionId], out: &mut Vec<Outcome>) {
        for &session in ids {
            if !self.is_live(session) {
                continue;
            }
            let mut held: Vec<(RequestId, String)> = Vec::new();
            for lock in &self.locks {
                let holds = lock.holds.iter().filter(|hold| hold.session == session);
                held.extend(holds.map(|hold| (hold.lowest_id(), lock.name.clone())));
            }
            held.sort();
            if reason != EndReason::Closed {
                held.clear();
            }
            let record = self.session_mut(session);
            record.ended = Some(reason);
            record.nonce = None;
            self.reap_queue.push(session);
            out.push(Outcome::SessionEnded {
                session,
                reason,
                released_total: count(held.len()),
                released: held.iter().take(RELEASED_MAX).map(|(_, name)| name.as_str().into()).collect(),
            });
        }
        self.reap_slice(out);
    }
}
