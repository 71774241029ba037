//! Attaching sessions and keeping them alive.
//!
//! Invariant: at most one attach or keep-alive of a session is under way on a connection. A session that is not
//! attached is attached in place of its next beat, so that a new leader hears of every session at once.

use lockstep_wire::limit::SESSIONS_PER_BATCH_MAX;
use lockstep_wire::reply::{Attached, EndReason, KeptAlive};
use lockstep_wire::request::{Request, SessionProof};
use lockstep_wire::{Rows, SessionId, Status};

use super::ClientCore;
use super::call::Body;
use super::outcome::{Condition, Loss, SessionKey};
use super::time::Time;

/// Beats due within this time go out together, in ms.
const TOGETHER_MS: u64 = 50;
/// The pause before a beat that did not confirm its session is tried again, in ms; it doubles so many times at most.
const AGAIN_MS: u64 = 50;
const DOUBLINGS_MAX: u32 = 3;

impl ClientCore {
    /// Sends the attaches and beats that are due, and those that soon will be with them.
    pub(super) fn send_beats(&mut self) {
        if self.beats.first().is_none_or(|at| at > self.now) {
            return;
        }
        let (mut attach, mut keep) = (Vec::new(), Vec::new());
        while let Some(key) = self.beats.take_due(self.now.plus_ms(TOGETHER_MS)) {
            let Some(session) = self.sessions.get_mut(&key) else { continue };
            let Some(id) = session.id else { continue };
            if session.is_attached && session.is_closing {
                continue;
            }
            session.is_beating = true;
            if session.is_attached {
                keep.push((key, id));
            } else {
                attach.push((key, SessionProof { session: id, nonce: session.nonce }));
            }
        }
        attach.sort_unstable_by_key(|(key, _)| *key);
        keep.sort_unstable();
        for batch in attach.chunks(SESSIONS_PER_BATCH_MAX) {
            let (keys, proofs): (Vec<SessionKey>, Vec<SessionProof>) = batch.iter().copied().unzip();
            self.send_batch(&Request::AttachSessions(Rows::Slice(&proofs)), keys);
        }
        for batch in keep.chunks(SESSIONS_PER_BATCH_MAX) {
            let (keys, ids): (Vec<SessionKey>, Vec<SessionId>) = batch.iter().copied().unzip();
            self.send_batch(&Request::KeepAlive(Rows::Slice(&ids)), keys);
        }
    }

    pub(super) fn on_attached(&mut self, rows: Rows<'_, Attached>, keys: &[SessionKey], sent_at: Time) {
        self.led_at = Some(self.now);
        for row in rows.iter() {
            let Some(key) = self.asked_for(row.session, keys) else { continue };
            let Some(session) = self.sessions.get_mut(&key) else { continue };
            session.is_beating = false;
            match row.status {
                Status::Ok => {
                    session.is_attached = true;
                    session.skip_to(row.next_request_id);
                    let must_reconcile = !session.holds.is_empty();
                    self.dirty.insert(key);
                    self.confirm(key, sent_at, row.ttl_ms);
                    self.beat_after(key, sent_at, row.ttl_ms);
                    if must_reconcile {
                        self.reconcile(key);
                    }
                }
                status => self.on_beat_refused(key, status),
            }
        }
        self.beat_unanswered(keys);
    }

    pub(super) fn on_kept_alive(&mut self, rows: Rows<'_, KeptAlive>, keys: &[SessionKey], sent_at: Time) {
        self.led_at = Some(self.now);
        for row in rows.iter() {
            let Some(key) = self.asked_for(row.session, keys) else { continue };
            let Some(session) = self.sessions.get_mut(&key) else { continue };
            session.is_beating = false;
            match row.status {
                Status::Ok => {
                    self.confirm(key, sent_at, row.ttl_ms);
                    self.beat_after(key, sent_at, row.ttl_ms);
                }
                status => self.on_beat_refused(key, status),
            }
        }
        self.beat_unanswered(keys);
    }

    /// The session of a row, if the batch was about it.
    fn asked_for(&self, id: SessionId, keys: &[SessionKey]) -> Option<SessionKey> {
        let key = *self.by_id.get(&id)?;
        keys.binary_search(&key).is_ok().then_some(key)
    }

    fn on_beat_refused(&mut self, key: SessionKey, status: Status) {
        match status {
            Status::SessionExpired => self.end_session(key, Loss::Ended(EndReason::Expired)),
            Status::SessionUnknown | Status::Denied => self.end_session(key, Loss::Unknown),
            Status::NotAttached => self.detach(key),
            _ => self.beat_later(key),
        }
    }

    /// The session was not confirmed: it may be that its end or its return is on its way to a majority.
    fn beat_later(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get_mut(&key) {
            let pause = AGAIN_MS << session.unconfirmed.min(DOUBLINGS_MAX);
            session.unconfirmed += 1;
            self.beats.set(key, self.now.plus_ms(pause));
        }
    }

    /// The cell says that the session is not attached to this connection: it is attached again, unhurriedly, because
    /// somebody else with the same nonce may be doing the same.
    pub(super) fn detach(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        session.is_attached = false;
        // While a beat is under way its answer sets the next one.
        if !session.is_beating {
            let pause = AGAIN_MS + self.chance.below(AGAIN_MS);
            self.beats.set(key, self.now.plus_ms(pause));
        }
    }

    /// Sessions of a batch that its reply did not mention are asked for again.
    pub(super) fn beat_unanswered(&mut self, keys: &[SessionKey]) {
        for key in keys {
            if self.sessions.get_mut(key).is_some_and(|session| std::mem::take(&mut session.is_beating)) {
                self.beat_later(*key);
            }
        }
    }

    pub(super) fn beat_again(&mut self, keys: &[SessionKey], ms: u64) {
        for key in keys {
            if let Some(session) = self.sessions.get_mut(key)
                && std::mem::take(&mut session.is_beating)
            {
                self.beats.set(*key, self.now.plus_ms(ms));
            }
        }
    }

    /// Lets a session beat before its time, so that the member shows whether it leads.
    pub(super) fn beat_now(&mut self) {
        let beating = self.sessions.iter().find(|(_, session)| session.is_attached && !session.is_closing);
        if let Some((key, session)) = beating
            && !session.is_beating
        {
            self.beats.set(*key, self.now);
        }
    }

    /// The next beat: a third of the TTL after the one that was acknowledged, a tenth of that less by chance.
    pub(super) fn beat_after(&mut self, key: SessionKey, sent_at: Time, ttl_ms: u32) {
        if self.sessions.get(&key).is_some_and(|session| !session.is_attached) {
            self.beats.set(key, self.now.plus_ms(AGAIN_MS));
            return;
        }
        let third_ns = u64::from(ttl_ms) * 1_000_000 / 3;
        let jitter_ns = self.chance.below(third_ns / 10);
        self.beats.set(key, sent_at.plus_ns(third_ns - jitter_ns));
    }

    /// Events may have been missed: asks the cell what the session still holds.
    fn reconcile(&mut self, key: SessionKey) {
        let is_live = self
            .sessions
            .get(&key)
            .is_some_and(|session| !session.is_closing && session.condition != Condition::Opening);
        if is_live {
            let call = self.ask(Some(key), Body::Reconcile { granted_max: self.grants });
            self.make_silent(call);
            self.requeue(call);
        }
    }
}
