//! How sessions, holds and calls end.
//!
//! Invariant: each is reported once, and nothing valid comes after the end of its session (ARCHITECTURE section 5).

use lockstep_wire::Status;
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::reply::EndReason;

use super::call::Body;
use super::outcome::{CallId, Condition, Event, Failure, Loss, Outcome, SessionKey};
use super::session::{Hold, lease_ns};
use super::time::Time;
use super::{ClientCore, Due};

impl ClientCore {
    /// The cell has acknowledged the session in answer to something sent at `sent_at`.
    pub(super) fn confirm(&mut self, key: SessionKey, sent_at: Time, ttl_ms: u32) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        self.link.confirm();
        session.unconfirmed = 0;
        if session.is_closing {
            return;
        }
        let sent_at = if mutant::is(Mutant::DeadlineFromReceipt) { self.now } else { sent_at };
        session.safe_until = session.safe_until.max(sent_at.plus_ns(lease_ns(ttl_ms)));
        if self.now >= session.safe_until {
            // An acknowledgement that comes after its own deadline says nothing about now.
            if session.condition == Condition::Opening {
                self.change(key, Condition::Jeopardy);
            }
            self.arm_lease(key);
            return;
        }
        if session.condition != Condition::Safe {
            self.change(key, Condition::Safe);
            self.deliver_withheld(key);
        }
        self.arm_lease(key);
    }

    /// The deadline, or the grace period behind it, is over.
    pub(super) fn on_lease_over(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(&key) else { return };
        let given_up_at = session.safe_until.plus_ms(self.config.grace_ms);
        if session.condition == Condition::Safe && self.now >= session.safe_until {
            self.change(key, Condition::Jeopardy);
        }
        if self.now >= given_up_at {
            self.end_session(key, Loss::Unconfirmed);
        } else {
            self.arm_lease(key);
        }
    }

    fn arm_lease(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(&key) else { return };
        match session.condition {
            Condition::Safe => self.leases.set(key, session.safe_until),
            Condition::Jeopardy => {
                self.leases.set(key, session.safe_until.plus_ms(self.config.grace_ms));
            }
            Condition::Opening | Condition::Ended(_) => self.leases.clear(key),
        }
    }

    fn change(&mut self, key: SessionKey, condition: Condition) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.condition = condition;
            self.events.push_back(Event::SessionChanged { session: key, condition });
        }
    }

    fn deliver_withheld(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        for (call, hold) in session.holds.iter_mut().filter(|(_, hold)| hold.is_withheld) {
            hold.is_withheld = false;
            self.events.push_back(Event::Finished { call: *call, outcome: Outcome::Granted(hold.grant) });
        }
    }

    /// The session is over, and nothing remains to be done for it.
    pub(super) fn end_session(&mut self, key: SessionKey, loss: Loss) {
        self.strip(key, loss);
        self.forget(key);
    }

    /// Ends the session in the eyes of its user: holds, calls, condition.
    pub(super) fn strip(&mut self, key: SessionKey, loss: Loss) {
        let Some(session) = self.sessions.get_mut(&key).filter(|session| !session.is_closing) else { return };
        session.is_closing = true;
        session.endings.clear();
        session.acquires.clear();
        session.unfinished.clear();
        session.unsent.clear();
        session.unanswered.clear();
        let opening = session.opening;
        let calls: Vec<CallId> =
            session.calls.iter().copied().filter(|call| Some(*call) != opening).collect();
        let holds: Vec<CallId> = session.holds.keys().copied().collect();
        self.leases.clear(key);
        self.change(key, Condition::Ended(loss));
        for acquire in holds {
            self.lose_hold(acquire, loss);
        }
        for call in calls {
            self.finish(call, Outcome::Failed(Failure::SessionEnded(loss)));
        }
        if let Some(call) = opening
            && let Some(state) = self.calls.get_mut(&call)
            && !std::mem::replace(&mut state.is_silent, true)
        {
            // It may be under way, so that it stays until it is known whether there is something to close.
            let outcome = Outcome::Failed(Failure::SessionEnded(loss));
            self.events.push_back(Event::Finished { call, outcome });
        }
    }

    /// Drops what is left of a session that was stripped.
    pub(super) fn forget(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.remove(&key) else { return };
        if let Some(id) = session.id {
            self.by_id.remove(&id);
        }
        self.beats.clear(key);
        self.leases.clear(key);
        self.dirty.remove(&key);
        for call in session.calls {
            self.finish(call, Outcome::Closed { released_total: 0, released: Vec::new() });
        }
    }

    /// Takes a hold off the books.
    pub(super) fn take_hold(&mut self, acquire: CallId) -> Option<(SessionKey, Hold)> {
        let key = self.holds.remove(&acquire)?;
        let hold = self.sessions.get_mut(&key)?.holds.remove(&acquire)?;
        Some((key, hold))
    }

    /// A hold has ended otherwise than by its user.
    pub(super) fn lose_hold(&mut self, acquire: CallId, loss: Loss) {
        let Some((session, hold)) = self.take_hold(acquire) else { return };
        if !hold.is_withheld {
            self.events.push_back(Event::HoldLost { session, acquire, reason: loss });
            return;
        }
        let outcome = match loss {
            Loss::Ended(EndReason::Expired | EndReason::Closed) | Loss::Unconfirmed | Loss::Unknown => {
                Outcome::Failed(Failure::SessionEnded(loss))
            }
            Loss::Ended(reason) => Outcome::Lost { token: hold.grant.token, reason },
        };
        self.events.push_back(Event::Finished { call: acquire, outcome });
    }

    /// A call has its outcome.
    pub(super) fn finish(&mut self, call: CallId, outcome: Outcome) {
        let Some(state) = self.calls.get(&call) else { return };
        if !state.is_silent {
            self.events.push_back(Event::Finished { call, outcome });
        }
        self.remove_call(call);
    }

    /// A mutation has its outcome; `is_retained` says that the cell keeps it until told otherwise.
    pub(super) fn finish_mutation(&mut self, call: CallId, outcome: Outcome, is_retained: bool) {
        if let Some(state) = self.calls.get(&call)
            && let (Some(key), Some(id)) = (state.session, state.request_id)
            && let Some(session) = self.sessions.get_mut(&key)
        {
            session.finish(id, is_retained);
            self.dirty.insert(key);
        }
        self.finish(call, outcome);
    }

    /// Takes a call off the books wherever it is.
    pub(super) fn remove_call(&mut self, call: CallId) {
        let Some(state) = self.calls.remove(&call) else { return };
        self.timers.clear(Due::Call(call));
        self.unsent.remove(&call);
        if let Some(correlation) = state.flight {
            self.flights.remove(&correlation);
            self.timers.clear(Due::Flight(correlation));
        }
        let Some(session) = state.session.and_then(|key| self.sessions.get_mut(&key)) else { return };
        session.calls.remove(&call);
        session.errands.remove(&call);
        match (&state.body, state.request_id) {
            (Body::Open, _) => session.opening = None,
            (Body::Acquire { .. }, None) => session.acquires.retain(|other| *other != call),
            (body, None) if body.is_mutation() => session.endings.retain(|other| *other != call),
            (_, _) => {}
        }
    }

    /// A call is to be sent again, or its user has waited long enough.
    pub(super) fn on_call_due(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        if self.now < state.give_up {
            self.arm(call);
            self.requeue(call);
            return;
        }
        self.give_up(call);
    }

    /// Tells the user of a call that it was not carried out, or may not have been.
    pub(super) fn give_up(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        let trouble = self.link.trouble.clone();
        // Whoever has given a hold back has no other handle on it, so that this is tried for as long as the session lives.
        let goes_on = matches!(state.body, Body::Release { .. } | Body::Cancel { .. });
        let is_sent = state.flight.is_some() || state.is_in_doubt;
        let is_unknown = goes_on || (!state.body.is_read() && is_sent);
        let failure = match (is_unknown, state.no_space_since) {
            (true, _) => Failure::OutcomeUnknown { trouble },
            (false, Some(_)) => Failure::NoSpace,
            (false, None) => Failure::NotExecuted { trouble },
        };
        let (key, is_numbered) = (state.session, state.request_id.is_some());
        match (&state.body, key) {
            (Body::Open, Some(key)) => {
                self.finish(call, Outcome::Failed(failure));
                self.end_session(key, Loss::Unconfirmed);
            }
            (Body::Close, Some(key)) => {
                self.finish(call, Outcome::Failed(failure));
                self.forget(key);
            }
            (body, _) if goes_on || (body.is_mutation() && is_numbered) => {
                self.tell(call, failure);
                self.withdraw(call);
                self.make_silent(call);
            }
            (_, _) => self.finish(call, Outcome::Failed(failure)),
        }
    }

    /// The one member that is asked has refused whatever may be asked of it.
    pub(super) fn refuse_all(&mut self, status: Status, detail: &str) {
        for call in self.calls.keys().copied().collect::<Vec<_>>() {
            let detail = detail.to_owned();
            self.finish(call, Outcome::Failed(Failure::Refused { status, detail }));
        }
    }

    fn tell(&mut self, call: CallId, failure: Failure) {
        if let Some(state) = self.calls.get_mut(&call)
            && !std::mem::replace(&mut state.is_silent, true)
        {
            self.events.push_back(Event::Finished { call, outcome: Outcome::Failed(failure) });
        }
    }
}
