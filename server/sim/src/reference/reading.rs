//! What reads show (SEMANTICS section 8), in values that can be compared and printed.
//!
//! Invariant: an ended session holds nothing in any reading.

use lockstep_core::table::Answer;
use lockstep_wire::entry::Command;
use lockstep_wire::request::Mode;
use lockstep_wire::{FencingToken, Nonce, Owner, RequestId, SessionId};

use super::session::Standing;
use super::{Content, Lock, Model};
use crate::oracle::reading;

/// A lock as reads see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockState {
    /// Whether it has a record.
    pub exists: bool,
    /// How it is held.
    pub mode: Option<Mode>,
    /// While nobody holds it.
    pub fence_floor: FencingToken,
    /// Live holds in the order of granting.
    pub holders: Vec<HolderState>,
    /// Live waits in line.
    pub waiters: Vec<WaiterState>,
}

/// One live hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderState {
    /// Whose it is.
    pub session: SessionId,
    /// Who, within the session.
    pub owner: Owner,
    /// The acquire that names it.
    pub acquire_id: RequestId,
    /// Its token.
    pub token: FencingToken,
    /// Its fence.
    pub fence: FencingToken,
    /// Of the session.
    pub client_id: String,
    /// What its owner shows.
    pub data: Vec<u8>,
}

/// One live wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterState {
    /// Whose it is.
    pub session: SessionId,
    /// Who, within the session.
    pub owner: Owner,
    /// The acquire.
    pub acquire_id: RequestId,
    /// How it wishes to hold.
    pub mode: Mode,
    /// Counted now.
    pub position: u32,
}

/// A live session as reads see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// Its TTL.
    pub ttl_ms: u32,
    /// Of whoever opened it.
    pub client_id: String,
    /// For how long leaders have not heard of it.
    pub silence_ms: u64,
    /// The lowest id it has not used.
    pub next_request_id: RequestId,
    /// What it holds and waits for: acquire id, owner, mode, token, fence, name; in the order of the ids.
    pub claims: Vec<(RequestId, Owner, Mode, FencingToken, FencingToken, String)>,
}

impl LockState {
    /// What the judges of reads want to know of it.
    pub fn as_seen(&self) -> reading::Lock {
        let holders = self.holders.iter().map(|holder| reading::Holder {
            session: holder.session,
            owner: holder.owner,
            acquire_id: holder.acquire_id,
            token: holder.token,
            fence: holder.fence,
        });
        let waiters =
            self.waiters.iter().map(|waiter| (waiter.session, waiter.owner, waiter.acquire_id, waiter.mode));
        reading::Lock { holders: holders.collect(), waiters: waiters.collect() }
    }
}

impl Model {
    /// Every lock that has a record.
    pub fn lock_names(&self) -> impl Iterator<Item = &str> {
        self.locks.iter().map(|lock| lock.name.as_str())
    }

    /// Every session that has a record, ended or not.
    pub fn session_ids(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.iter().map(|session| session.id)
    }

    /// The live session that a nonce opened.
    pub fn session_by_nonce(&self, nonce: &Nonce) -> Option<SessionId> {
        self.sessions.iter().find(|session| session.nonce == Some(*nonce)).map(|session| session.id)
    }

    /// Whether something is left to reap.
    pub fn needs_reaping(&self) -> bool {
        !self.reap_queue.is_empty() || (!self.marks.is_empty() && !self.is_quiet)
    }

    /// GetLock.
    pub fn lock(&self, name: &str) -> LockState {
        let vacant = Lock { name: name.to_owned(), holds: Vec::new(), waits: Vec::new() };
        let record = self.lock_record(name);
        let lock = record.unwrap_or(&vacant);
        let holders: Vec<HolderState> = lock
            .holds
            .iter()
            .filter(|hold| self.is_live(hold.session))
            .map(|hold| HolderState {
                session: hold.session,
                owner: hold.owner,
                acquire_id: hold.lowest_id(),
                token: hold.token,
                fence: hold.fence,
                client_id: self.session_record(hold.session).map_or("", |it| &it.client_id).to_owned(),
                data: hold.data.clone(),
            })
            .collect();
        let waiters: Vec<WaiterState> = lock
            .waits
            .iter()
            .filter(|wait| self.is_live(wait.session))
            .zip(1..)
            .map(|(wait, position)| WaiterState {
                session: wait.session,
                owner: wait.owner,
                acquire_id: wait.id,
                mode: wait.mode,
                position,
            })
            .collect();
        let mode = lock.holds.iter().find(|hold| self.is_live(hold.session)).map(|hold| hold.mode);
        let fence_floor = FencingToken(if holders.is_empty() { self.now() } else { 0 });
        LockState { exists: record.is_some(), mode, fence_floor, holders, waiters }
    }

    /// GetSession, and the next request id.
    pub fn session(&self, id: SessionId) -> Result<SessionState, Answer> {
        if let Some(answer) = self.session_refusal(id) {
            return Err(answer);
        }
        let record = self.session_record(id).expect("it was not refused");
        let mut claims = Vec::new();
        for lock in &self.locks {
            for hold in lock.holds.iter().filter(|hold| hold.session == id) {
                for acquire in &hold.acquires {
                    claims.push((
                        acquire.id,
                        hold.owner,
                        hold.mode,
                        hold.token,
                        hold.fence,
                        lock.name.clone(),
                    ));
                }
            }
            for wait in lock.waits.iter().filter(|wait| wait.session == id) {
                let none = FencingToken(0);
                claims.push((wait.id, wait.owner, wait.mode, none, none, lock.name.clone()));
            }
        }
        claims.sort();
        Ok(SessionState {
            ttl_ms: record.ttl_ms,
            client_id: record.client_id.clone(),
            silence_ms: record.silence_ms,
            next_request_id: RequestId(record.highest + 1),
            claims,
        })
    }

    /// CheckToken: whether it is current, the latest token, the floor.
    pub fn check(
        &self,
        name: &str,
        token: FencingToken,
        of: Option<SessionId>,
    ) -> (bool, FencingToken, FencingToken) {
        let lock = self.lock(name);
        let is_current = lock
            .holders
            .iter()
            .any(|holder| holder.token == token && of.is_none_or(|session| session == holder.session));
        let latest = lock.holders.iter().map(|holder| holder.token).max().unwrap_or_default();
        (is_current, latest, lock.fence_floor)
    }

    /// What may be answered from the applied table without an entry: everything that section 2 answers before
    /// the command's row.
    pub fn replay(&self, command: &Command<'_>) -> Option<Answer> {
        let (mutation, shape, content) = match command {
            Command::Acquire(acquire) => {
                (acquire.mutation, self.acquire_shape(acquire), Content::of_acquire(acquire))
            }
            Command::Cancel { mutation, acquire_id } => {
                let content = Content::Cancel { acquire_id: *acquire_id };
                (*mutation, Model::cancel_shape(mutation, *acquire_id), content)
            }
            Command::Release { mutation, acquire_id, name, token } => {
                let name = (*name).to_owned();
                (*mutation, None, Content::Release { acquire_id: *acquire_id, name, token: *token })
            }
            Command::Blank
            | Command::OpenSession { .. }
            | Command::CancelWait { .. }
            | Command::EndSessions { .. }
            | Command::Reap
            | Command::SessionsSilent { .. }
            | Command::SessionsReturned { .. }
            | Command::EndQuiet
            | Command::Members(_) => return None,
        };
        if let Some(refusal) = self.early_refusal(&mutation, shape) {
            return Some(refusal);
        }
        match self.standing(mutation.session, mutation.request_id, &content) {
            Standing::Replay { answer, .. } | Standing::Refused(answer) => Some(answer),
            Standing::New => None,
        }
    }
}
