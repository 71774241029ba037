//! The lock table once more, written from docs/SEMANTICS.md alone and as plainly as possible.
//!
//! Invariant: a command does here what the page says, in the page's own order, with lists and scans only; so
//! that whoever doubts it reads the page beside it. Deliberately absent: speed, digests, and any look at the
//! real table.

mod command;
pub mod compare;
mod promotion;
mod reading;
pub mod search;
mod session;
pub mod twins;

use lockstep_core::table::{Answer, Limits, Outcome};
use lockstep_wire::entry::Command;
use lockstep_wire::reply::EndReason;
use lockstep_wire::request::{Acquire, Mode};
use lockstep_wire::{Epoch, FencingToken, LogIndex, Nonce, Owner, RequestId, SessionId};

/// What one session may leave unseen, and how many ids below its highest may be missing (SEMANTICS section 9, "Fixed").
pub(crate) const WINDOW_MAX: usize = 64;

/// The state of one cell (SEMANTICS section 1).
#[derive(Clone, Debug)]
pub struct Model {
    pub(crate) epoch: Epoch,
    pub(crate) limits: Limits,
    pub(crate) applied: LogIndex,
    pub(crate) sessions: Vec<Session>,
    pub(crate) locks: Vec<Lock>,
    /// Ended sessions, first ended first.
    pub(crate) reap_queue: Vec<SessionId>,
    /// Names of locks whose promotion must continue, first marked first.
    pub(crate) marks: Vec<String>,
    /// Nothing is granted.
    pub(crate) is_quiet: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) client_id: String,
    pub(crate) ttl_ms: u32,
    pub(crate) nonce: Option<Nonce>,
    pub(crate) ended: Option<EndReason>,
    pub(crate) silence_ms: u64,
    pub(crate) highest: u64,
    pub(crate) gaps: Vec<u64>,
    pub(crate) outcomes: Vec<Kept>,
}

/// A final answer that is kept until its client has seen it.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) id: RequestId,
    pub(crate) content: Content,
    pub(crate) answer: Answer,
}

/// Everything of a request except its id, its remaining wait and what it says it has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Acquire {
        names: Vec<String>,
        owner: Owner,
        mode: Mode,
        permits: u16,
        is_reentrant: bool,
        data: Vec<u8>,
        lock_delay_ms: u32,
        max_hold_ms: u32,
    },
    Cancel {
        acquire_id: RequestId,
    },
    Release {
        acquire_id: RequestId,
        name: String,
        token: FencingToken,
    },
}

impl Content {
    pub(crate) fn of_acquire(acquire: &Acquire<'_>) -> Content {
        Content::Acquire {
            names: acquire.names.iter().map(str::to_owned).collect(),
            owner: acquire.owner,
            mode: acquire.mode,
            permits: acquire.permits,
            is_reentrant: acquire.is_reentrant,
            data: acquire.data.to_vec(),
            lock_delay_ms: acquire.lock_delay_ms,
            max_hold_ms: acquire.max_hold_ms,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) name: String,
    /// In the order of granting.
    pub(crate) holds: Vec<Hold>,
    /// First come first.
    pub(crate) waits: Vec<Wait>,
}

#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) session: SessionId,
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    pub(crate) fence: FencingToken,
    pub(crate) data: Vec<u8>,
    pub(crate) acquires: Vec<HoldAcquire>,
}

impl Hold {
    pub(crate) fn lowest_id(&self) -> RequestId {
        self.acquires.iter().map(|acquire| acquire.id).min().expect("a hold has an acquire id")
    }
}

#[derive(Clone, Debug)]
pub(crate) struct HoldAcquire {
    pub(crate) id: RequestId,
    pub(crate) content: Content,
    pub(crate) is_seen: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) session: SessionId,
    pub(crate) owner: Owner,
    pub(crate) id: RequestId,
    pub(crate) content: Content,
    pub(crate) mode: Mode,
    pub(crate) data: Vec<u8>,
    pub(crate) position: u32,
}

impl Model {
    /// The state before the first entry.
    pub fn new(epoch: Epoch, limits: Limits) -> Model {
        Model {
            epoch,
            limits,
            applied: LogIndex(0),
            sessions: Vec::new(),
            locks: Vec::new(),
            reap_queue: Vec::new(),
            marks: Vec::new(),
            is_quiet: false,
        }
    }

    /// What a cell begins with that is restored under a new epoch from a backup with these limits, after this entry.
    pub fn restored(epoch: Epoch, limits: Limits, applied: LogIndex) -> Model {
        Model { applied, is_quiet: true, ..Model::new(epoch, limits) }
    }

    /// How far the log has been applied.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// Applies one entry and tells what it did.
    pub fn apply(&mut self, index: LogIndex, command: &Command<'_>) -> Vec<Outcome> {
        self.applied = index;
        let mut out = Vec::new();
        match command {
            // Who the members are is not a matter of locks; it is judged by itself.
            Command::Blank | Command::Members(_) => {}
            Command::OpenSession { client_id, ttl_ms, nonce } => {
                self.open_session(client_id, *ttl_ms, *nonce, &mut out);
            }
            Command::Acquire(acquire) => self.acquire(acquire, &mut out),
            Command::Cancel { mutation, acquire_id } => self.cancel(mutation, *acquire_id, &mut out),
            Command::Release { mutation, acquire_id, name, token } => {
                self.release(mutation, *acquire_id, name, *token, &mut out);
            }
            Command::CancelWait { session, acquire_id } => self.cancel_wait(*session, *acquire_id, &mut out),
            Command::EndSessions { reason, sessions } => {
                let ids: Vec<SessionId> = sessions.iter().collect();
                self.end_sessions(*reason, &ids, &mut out);
            }
            Command::Reap => self.reap_slice(&mut out),
            Command::SessionsSilent { silences } => {
                for silence in
                    silences.iter().filter(|silence| self.is_live(silence.session)).collect::<Vec<_>>()
                {
                    let session = self.session_mut(silence.session);
                    let silence_ms = session.silence_ms + u64::from(silence.ms);
                    session.silence_ms = silence_ms.min(u64::from(session.ttl_ms));
                }
            }
            Command::SessionsReturned { sessions } => {
                for id in sessions.iter().filter(|id| self.is_live(*id)).collect::<Vec<_>>() {
                    self.session_mut(id).silence_ms = 0;
                }
            }
            Command::EndQuiet => self.is_quiet = false,
        }
        if self.needs_reaping() {
            out.push(Outcome::ReapNeeded);
        }
        out
    }

    /// at(this index), as SEMANTICS section 1 calls it.
    pub(crate) fn now(&self) -> u64 {
        self.epoch.with(self.applied)
    }

    pub(crate) fn session_record(&self, id: SessionId) -> Option<&Session> {
        self.sessions.iter().find(|session| session.id == id)
    }

    pub(crate) fn session_mut(&mut self, id: SessionId) -> &mut Session {
        self.sessions
            .iter_mut()
            .find(|session| session.id == id)
            .expect("a session that was looked up is there")
    }

    pub(crate) fn is_live(&self, id: SessionId) -> bool {
        self.session_record(id).is_some_and(|session| session.ended.is_none())
    }

    pub(crate) fn lock_record(&self, name: &str) -> Option<&Lock> {
        self.locks.iter().find(|lock| lock.name == name)
    }

    /// The record of a lock, made if there is none.
    pub(crate) fn lock_mut(&mut self, name: &str) -> &mut Lock {
        let at = match self.locks.iter().position(|lock| lock.name == name) {
            Some(at) => at,
            None => {
                self.locks.push(Lock { name: name.to_owned(), holds: Vec::new(), waits: Vec::new() });
                self.locks.len() - 1
            }
        };
        &mut self.locks[at]
    }

    /// Deletes a record that has neither holds nor waits, and its mark.
    pub(crate) fn delete_if_empty(&mut self, name: &str) {
        let is_empty =
            self.lock_record(name).is_some_and(|lock| lock.holds.is_empty() && lock.waits.is_empty());
        if is_empty {
            self.locks.retain(|lock| lock.name != name);
            self.marks.retain(|mark| mark != name);
        }
    }
}
