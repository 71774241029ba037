//! One entry, one command, one step of the state (docs/SEMANTICS.md).
//!
//! Invariant: every command has its arm here; none is ignored. Deliberately absent: decoding, which has refused
//! already what this build does not know.

use lockstep_wire::entry::{Command, Silence};
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::{LogIndex, Nonce, RequestId, SessionId};

use super::cell::Table;
use super::departure::{Release, cancel_shape};
use super::limits::LimitKind;
use super::outcome::{Answer, Outcome, Outcomes};
use super::record::{self, Session};
use super::window::{acquire_content, cancel_content, check_request_id};
use crate::members::Membership;

impl Table {
    /// Applies the entry at `index` and appends what it did to `out`.
    ///
    /// # Panics
    /// When the index does not grow: an entry is applied once, in the order of the log.
    pub fn apply(&mut self, index: LogIndex, command: &Command<'_>, out: &mut Outcomes) {
        self.advance(index);
        match command {
            Command::Blank => {
                if mutant::is(Mutant::WindowLostAtFailover) {
                    self.forget_windows();
                }
            }
            Command::OpenSession { client_id, ttl_ms, nonce } => {
                out.push(self.open_session(client_id, *ttl_ms, *nonce));
            }
            Command::Acquire(acquire) => self.apply_acquire(acquire, out),
            Command::Cancel { mutation, acquire_id } => self.apply_cancel(mutation, *acquire_id, out),
            Command::Release { mutation, acquire_id, name, token } => {
                let release = Release { mutation, acquire_id: *acquire_id, name, token: *token };
                self.apply_release(release, out);
            }
            Command::CancelWait { session, acquire_id } => self.apply_cancel_wait(*session, *acquire_id, out),
            Command::EndSessions { reason, sessions } => {
                self.apply_end_sessions(*reason, sessions.iter(), out);
            }
            Command::Reap => self.reap_slice(out),
            Command::SessionsSilent { silences } => {
                for silence in silences.iter() {
                    self.add_silence(silence);
                }
            }
            Command::SessionsReturned { sessions } => {
                for session in sessions.iter() {
                    if let Ok(slot) = self.live_session(session) {
                        self.set_silence(slot, 0);
                    }
                }
            }
            Command::Members(members) => self.set_members(Membership::of(members)),
            Command::EndQuiet => self.end_quiet(),
        }
        if self.needs_reaping() {
            out.push(Outcome::ReapNeeded);
        }
    }

    /// Moves the applied index past an entry that is not the table's.
    ///
    /// # Panics
    /// When the index does not grow.
    pub fn advance(&mut self, index: LogIndex) {
        assert!(index > self.applied, "entry {index} comes after {}", self.applied);
        self.applied = index;
    }

    /// What a request would be answered without an entry: it is a retry whose outcome is known, it is below the
    /// window, or it is refused whatever the locks are. `None`: it must be proposed. What it says its client has
    /// seen is not taken. The answer counts under a read round only.
    pub fn replay(&self, command: &Command<'_>) -> Option<Answer> {
        match command {
            Command::Acquire(acquire) => {
                let shape = self.acquire_shape(acquire);
                self.foresee(&acquire.mutation, shape, acquire_content(acquire))
            }
            Command::Release { mutation, acquire_id, name, token } => {
                let release = Release { mutation, acquire_id: *acquire_id, name, token: *token };
                self.foresee(mutation, Ok(()), release.content())
            }
            Command::Cancel { mutation, acquire_id } => {
                self.foresee(mutation, cancel_shape(mutation, *acquire_id), cancel_content(*acquire_id))
            }
            Command::Blank
            | Command::OpenSession { .. }
            | Command::CancelWait { .. }
            | Command::EndSessions { .. }
            | Command::Reap
            | Command::SessionsSilent { .. }
            | Command::SessionsReturned { .. }
            | Command::EndQuiet
            | Command::Members(_) => None,
        }
    }

    /// Why a command is refused whatever the state is, by its shape alone: no entry is needed to know that.
    pub fn objection(&self, command: &Command<'_>) -> Option<Answer> {
        let shape = match command {
            Command::OpenSession { client_id, .. } => self.client_id_shape(client_id),
            Command::Acquire(acquire) => {
                check_request_id(acquire.mutation.request_id).and_then(|()| self.acquire_shape(acquire))
            }
            Command::Release { mutation, .. } => check_request_id(mutation.request_id),
            Command::Cancel { mutation, acquire_id } => {
                check_request_id(mutation.request_id).and_then(|()| cancel_shape(mutation, *acquire_id))
            }
            Command::Blank
            | Command::CancelWait { .. }
            | Command::EndSessions { .. }
            | Command::Reap
            | Command::SessionsSilent { .. }
            | Command::SessionsReturned { .. }
            | Command::EndQuiet
            | Command::Members(_) => Ok(()),
        };
        shape.err()
    }

    /// More than its TTL says no more than its TTL.
    fn add_silence(&mut self, silence: Silence) {
        if let Ok(slot) = self.live_session(silence.session) {
            let session = &self.sessions[slot];
            let silence_ms = session.silence_ms.saturating_add(silence.ms).min(session.ttl_ms);
            self.set_silence(slot, silence_ms);
        }
    }

    fn client_id_shape(&self, client_id: &str) -> Result<(), Answer> {
        if client_id.is_empty() {
            Err(Answer::Invalid("client_id"))
        } else if client_id.len() > self.limits.client_id_bytes_max as usize {
            Err(Answer::Limit(LimitKind::ClientIdBytes))
        } else {
            Ok(())
        }
    }

    fn open_session(&mut self, client_id: &str, ttl_ms: u32, nonce: Nonce) -> Outcome {
        if let Some(slot) = self.sessions_by_nonce.get(&nonce).copied() {
            if *self.sessions[slot].client_id != *client_id {
                return Outcome::OpenRefused { answer: Answer::Invalid("nonce") };
            }
            self.set_silence(slot, 0);
            let session = &self.sessions[slot];
            return Outcome::Opened { session: session.id, ttl_ms: session.ttl_ms, is_new: false };
        }
        if let Err(answer) = self.client_id_shape(client_id) {
            return Outcome::OpenRefused { answer };
        }
        if self.sessions.len() >= self.limits.sessions_max as usize {
            return Outcome::OpenRefused { answer: Answer::Limit(LimitKind::Sessions) };
        }
        let id = SessionId(self.token().0);
        let ttl_ms = ttl_ms.clamp(self.limits.ttl_ms_min, self.limits.ttl_ms_max);
        self.add_session(Session {
            id,
            client_id: Box::from(client_id),
            ttl_ms,
            nonce,
            identity: record::identity(id, client_id, ttl_ms, nonce),
            ended: None,
            reap_place: 0,
            silence_ms: 0,
            highest: RequestId(0),
            gaps: Vec::new(),
            claims: Vec::new(),
            kept: Vec::new(),
            waiting: 0,
            unseen: 0,
            copied_for: self.snapshots_begun,
        });
        Outcome::Opened { session: id, ttl_ms, is_new: true }
    }
}
