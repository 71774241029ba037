//! What the user asks for.
//!
//! Invariant: every command has exactly one outcome, given as [`Event::Finished`], unless it is cancelled;
//! a cancelled acquire leaves neither a hold nor a place in a line behind, wherever it was (ARCHITECTURE section 2, "Cancel").

use std::sync::Arc;

use lockstep_wire::limit::{DATA_BYTES_MAX, WAIT_MS_MAX};
use lockstep_wire::reply::EndReason;
use lockstep_wire::{FencingToken, Name, NodeId, Nonce, SessionId, SnapshotId};

use super::call::{AcquireOptions, Body, Call, MemberWish};
use super::outcome::{CallId, Event, Failure, Loss, Outcome, SessionKey};
use super::session::{BACKLOG_MAX, Session};
use super::time::Time;
use super::{ClientCore, READS_MAX, SESSIONS_MAX};

impl ClientCore {
    /// Opens a session; its holds may be asked for at once. The nonce is 128 random bits of the driver's.
    pub fn open_session(&mut self, ttl_ms: u32, nonce: Nonce, now: Time) -> (SessionKey, CallId) {
        self.begin(now);
        self.next_key += 1;
        let key = SessionKey(self.next_key);
        if self.sessions.len() >= SESSIONS_MAX {
            return (key, self.refuse(Failure::Backlog));
        }
        let call = self.ask(Some(key), Body::Open);
        self.sessions.insert(key, Session::new(nonce, ttl_ms, call));
        self.requeue(call);
        self.flush();
        (key, call)
    }

    /// Ends a session: its holds are invalid from here on, and the cell is told so.
    pub fn close_session(&mut self, key: SessionKey, now: Time) -> CallId {
        self.begin(now);
        let nothing = Outcome::Closed { released_total: 0, released: Vec::new() };
        let Some(session) = self.sessions.get(&key).filter(|session| !session.is_closing) else {
            return self.answer(nothing);
        };
        let opening = session.opening.and_then(|call| self.calls.get(&call));
        let is_unsent = opening.is_some_and(|call| call.flight.is_none() && !call.is_in_doubt);
        self.strip(key, Loss::Ended(EndReason::Closed));
        if is_unsent {
            self.forget(key);
            return self.answer(nothing);
        }
        let call = self.ask(Some(key), Body::Close);
        self.requeue(call);
        self.flush();
        call
    }

    /// Asks for a lock. The call names the hold as well.
    pub fn acquire(&mut self, key: SessionKey, options: AcquireOptions, now: Time) -> CallId {
        self.begin(now);
        let Some(session) = self.sessions.get(&key).filter(|session| !session.is_closing) else {
            return self.refuse(Failure::SessionEnded(Loss::Unknown));
        };
        if session.acquires.len() >= BACKLOG_MAX {
            return self.refuse(Failure::Backlog);
        }
        if let Err(detail) = check(&options) {
            return self.refuse(Failure::Invalid { detail });
        }
        let wait_until = self.now.plus_ms(u64::from(options.wait_ms));
        let call = self.ask(Some(key), Body::Acquire { options: Arc::new(options), wait_until });
        self.set_give_up(call, wait_until.plus_ms(self.config.call_timeout_ms));
        self.requeue(call);
        self.flush();
        call
    }

    /// Withdraws a call; nothing more is said of it. An acquire is taken out of its line, or released when it was
    /// granted meanwhile, delivered or not.
    pub fn cancel(&mut self, call: CallId, now: Time) {
        self.begin(now);
        if self.calls.contains_key(&call) {
            self.withdraw(call);
        } else if let Some((key, hold)) = self.take_hold(call) {
            let cancel = self.ask(Some(key), Body::Cancel { acquire_id: hold.acquire_id });
            self.make_silent(cancel);
            self.requeue(cancel);
        }
        self.flush();
    }

    /// Gives a hold back; it is invalid from here on.
    pub fn release(&mut self, acquire: CallId, now: Time) -> CallId {
        self.begin(now);
        let Some((key, hold)) = self.take_hold(acquire) else {
            return self.answer(Outcome::StaleToken);
        };
        let body =
            Body::Release { acquire_id: hold.acquire_id, options: hold.options, token: hold.grant.token };
        let call = self.ask(Some(key), body);
        self.requeue(call);
        self.flush();
        call
    }

    /// Asks whether a token is still current; of one session's hold, unless `of` is 0.
    pub fn check_token(&mut self, name: &str, token: FencingToken, of: SessionId, now: Time) -> CallId {
        self.read_of_name(name, now, |name| Body::Check { name, token, of })
    }

    /// Asks who holds a lock and who waits.
    pub fn get_lock(&mut self, name: &str, now: Time) -> CallId {
        self.read_of_name(name, now, |name| Body::GetLock { name })
    }

    /// Asks what a session holds and waits for.
    pub fn get_session(&mut self, key: SessionKey, now: Time) -> CallId {
        self.begin(now);
        let known = self.sessions.get(&key).filter(|session| session.is_live());
        let Some(of) = known.and_then(|session| session.id) else {
            return self.refuse(Failure::SessionEnded(Loss::Unknown));
        };
        let call = self.ask(Some(key), Body::GetSession { of });
        self.requeue(call);
        self.flush();
        call
    }

    /// Asks the member that the core is at how its cell is.
    pub fn status(&mut self, now: Time) -> CallId {
        self.read(Body::Status, now)
    }

    /// Asks the member that the core is at, which should lead, to hand over; to whom it thinks best when `to` is 0.
    pub fn transfer_leader(&mut self, to: NodeId, now: Time) -> CallId {
        self.read(Body::Transfer { to }, now)
    }

    /// Asks the member that the core is at who the members are.
    pub fn members(&mut self, now: Time) -> CallId {
        self.read(Body::Members, now)
    }

    /// Asks the member that the core is at, which should lead, to change who the members are.
    pub fn change_members(&mut self, wish: MemberWish, now: Time) -> CallId {
        self.read(Body::ChangeMembers(wish), now)
    }

    /// Asks which cell serves which namespace.
    pub fn routes(&mut self, now: Time) -> CallId {
        self.read(Body::Routes, now)
    }

    /// Asks the leader for a piece of a snapshot, of one that has all that is applied by now if its index is 0.
    pub fn save_snapshot(&mut self, snapshot: SnapshotId, piece: u32, now: Time) -> CallId {
        self.read(Body::Save { snapshot, piece }, now)
    }

    fn read_of_name(&mut self, name: &str, now: Time, body: impl FnOnce(String) -> Body) -> CallId {
        match Name::parse(name) {
            Ok(_) => self.read(body(name.to_owned()), now),
            Err(error) => self.refuse(Failure::Invalid { detail: error.to_string() }),
        }
    }

    fn read(&mut self, body: Body, now: Time) -> CallId {
        self.begin(now);
        if self.calls.len() >= READS_MAX {
            return self.refuse(Failure::Backlog);
        }
        let call = self.ask(None, body);
        self.requeue(call);
        self.flush();
        call
    }

    /// A new call that gives up after the configured time.
    pub(super) fn ask(&mut self, session: Option<SessionKey>, body: Body) -> CallId {
        let call = self.next_call();
        let give_up = self.now.plus_ms(self.config.call_timeout_ms);
        self.calls.insert(call, Call::new(session, body, give_up));
        if let Some(session) = session.and_then(|key| self.sessions.get_mut(&key)) {
            session.calls.insert(call);
        }
        self.arm(call);
        call
    }

    fn next_call(&mut self) -> CallId {
        self.next_key += 1;
        CallId(self.next_key)
    }

    /// A call that has its outcome before anything is sent.
    fn answer(&mut self, outcome: Outcome) -> CallId {
        let call = self.next_call();
        self.events.push_back(Event::Finished { call, outcome });
        call
    }

    fn refuse(&mut self, failure: Failure) -> CallId {
        self.answer(Outcome::Failed(failure))
    }

    pub(super) fn set_give_up(&mut self, call: CallId, give_up: Time) {
        if let Some(state) = self.calls.get_mut(&call) {
            state.give_up = give_up;
        }
        self.arm(call);
    }

    /// Nobody waits for the call any more, and it is tried for as long as its session lives.
    pub(super) fn make_silent(&mut self, call: CallId) {
        if let Some(state) = self.calls.get_mut(&call) {
            state.is_silent = true;
        }
        self.set_give_up(call, Time::NEVER);
    }

    /// Withdraws a call that has no outcome yet.
    pub(super) fn withdraw(&mut self, call: CallId) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        if state.is_cancelled {
            return;
        }
        let key = state.session;
        match (&state.body, state.request_id) {
            (Body::Acquire { .. }, None) => self.remove_call(call),
            (Body::Acquire { .. }, Some(acquire_id)) => {
                state.is_cancelled = true;
                self.make_silent(call);
                if let Some(session) = key.and_then(|key| self.sessions.get_mut(&key)) {
                    session.unsent.remove(&acquire_id);
                }
                let cancel = self.ask(key, Body::Cancel { acquire_id });
                self.make_silent(cancel);
                self.requeue(cancel);
            }
            (body, _) if body.is_read() => self.remove_call(call),
            // An open that was asked for is closed by `close_session`; an ending goes on unheard.
            (_, _) => state.is_silent = true,
        }
    }
}

fn check(options: &AcquireOptions) -> Result<(), String> {
    Name::parse(&options.name).map_err(|error| error.to_string())?;
    if options.wait_ms > WAIT_MS_MAX {
        return Err(format!("an acquire waits {WAIT_MS_MAX} ms at most, not {} ms", options.wait_ms));
    }
    if options.data.len() > DATA_BYTES_MAX {
        let bytes = options.data.len();
        return Err(format!("the data on a hold has {DATA_BYTES_MAX} bytes at most, not {bytes}"));
    }
    Ok(())
}
