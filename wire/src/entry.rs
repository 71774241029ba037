//! The payload of a log entry: one command to the lock table (docs/SEMANTICS.md).
//!
//! A payload is the feature level (u16), the kind (u16) and the kind's fixed layout. Invariant: a payload that
//! decodes means the same to every build that knows its level, for ever; anything else is refused with a typed
//! error before apply sees it. Deliberately absent: what a command does, and whether the cell's limits allow it.

use crate::cursor::{DecodeError, Decoded, Reader, Writer};
use crate::frame::LEVEL;
use crate::limit::{CLIENT_ID_BYTES_MAX, NAME_BYTES_MAX, SESSIONS_PER_BATCH_MAX};
use crate::membership::Members;
use crate::reply::EndReason;
use crate::request::{Acquire, Mutation};
use crate::rows::{Row, Rows};
use crate::{FencingToken, Nonce, RequestId, SessionId};

/// The kinds of commands; the gaps are the places of those that come later.
pub mod kind {
    /// [`super::Command::Blank`].
    pub const BLANK: u16 = 0x0000;
    /// [`super::Command::OpenSession`].
    pub const OPEN_SESSION: u16 = 0x0001;
    // 0x0002 SetTtl
    /// [`super::Command::Acquire`].
    pub const ACQUIRE: u16 = 0x0010;
    /// [`super::Command::Cancel`].
    pub const CANCEL: u16 = 0x0011;
    /// [`super::Command::Release`].
    pub const RELEASE: u16 = 0x0012;
    // 0x0013 Downgrade, 0x0014 Upgrade, 0x0015 SetData, 0x0016 Revoke
    /// [`super::Command::CancelWait`].
    pub const CANCEL_WAIT: u16 = 0x0020;
    /// [`super::Command::EndSessions`].
    pub const END_SESSIONS: u16 = 0x0021;
    /// [`super::Command::Reap`].
    pub const REAP: u16 = 0x0022;
    // 0x0023 EndLockDelay, 0x0024 EndHold
    /// [`super::Command::SessionsSilent`].
    pub const SESSIONS_SILENT: u16 = 0x0025;
    /// [`super::Command::SessionsReturned`].
    pub const SESSIONS_RETURNED: u16 = 0x0026;
    // 0x0027 is free.
    /// [`super::Command::EndQuiet`].
    pub const END_QUIET: u16 = 0x0028;
    // 0x0040 ChangeConfig
    /// [`super::Command::Members`].
    pub const MEMBERS: u16 = 0x0041;
    // 0x0042 routing rows
}

/// For how much longer a leader has not heard of a session than was logged before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// The session.
    pub session: SessionId,
    /// How long, in ms.
    pub ms: u32,
}

impl Row<'_> for Silence {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.session.0);
        out.put_u32(self.ms);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Silence> {
        Ok(Silence { session: SessionId(reader.u64("session")?), ms: reader.u32("ms")? })
    }
}

/// What one log entry asks of the lock table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Command<'a> {
    /// The first entry of a leader's term; changes nothing.
    Blank,
    /// Opens a session, or finds the one that this nonce has opened.
    OpenSession {
        /// What people see of the client.
        client_id: &'a str,
        /// The TTL it wishes, in ms.
        ttl_ms: u32,
        /// Makes the call idempotent.
        nonce: Nonce,
    },
    /// Asks for a lock.
    Acquire(Acquire<'a>),
    /// Withdraws an acquire, wherever it is.
    Cancel {
        /// Which mutation this is.
        mutation: Mutation<'a>,
        /// The request id of the acquire.
        acquire_id: RequestId,
    },
    /// Ends one acquire's hold.
    Release {
        /// Which mutation this is.
        mutation: Mutation<'a>,
        /// The request id of the acquire.
        acquire_id: RequestId,
        /// The lock.
        name: &'a str,
        /// The token of the hold.
        token: FencingToken,
    },
    /// The leader's timer of a wait ran out.
    CancelWait {
        /// The session that waits.
        session: SessionId,
        /// The request id of its acquire.
        acquire_id: RequestId,
    },
    /// Ends sessions, irrevocably and at once.
    EndSessions {
        /// Why: expired or closed.
        reason: EndReason,
        /// Which, in the order in which they are reaped.
        sessions: Rows<'a, SessionId>,
    },
    /// Takes away the next slice of what ended sessions left.
    Reap,
    /// The leader has not heard of these sessions.
    SessionsSilent {
        /// Which, and for how long.
        silences: Rows<'a, Silence>,
    },
    /// The leader has heard of these sessions again.
    SessionsReturned {
        /// Which.
        sessions: Rows<'a, SessionId>,
    },
    /// What anybody could believe from before the cell was restored is over.
    EndQuiet,
    /// Who the members of the cell are; counts for majorities from its append on.
    Members(Members<'a>),
}

impl<'a> Command<'a> {
    /// The kind in the payload's head.
    pub fn kind(&self) -> u16 {
        match self {
            Command::Blank => kind::BLANK,
            Command::OpenSession { .. } => kind::OPEN_SESSION,
            Command::Acquire(_) => kind::ACQUIRE,
            Command::Cancel { .. } => kind::CANCEL,
            Command::Release { .. } => kind::RELEASE,
            Command::CancelWait { .. } => kind::CANCEL_WAIT,
            Command::EndSessions { .. } => kind::END_SESSIONS,
            Command::Reap => kind::REAP,
            Command::SessionsSilent { .. } => kind::SESSIONS_SILENT,
            Command::SessionsReturned { .. } => kind::SESSIONS_RETURNED,
            Command::EndQuiet => kind::END_QUIET,
            Command::Members(_) => kind::MEMBERS,
        }
    }

    /// Appends the payload.
    ///
    /// # Panics
    /// When a field is over its hard limit or `EndSessions` has a reason that does not end sessions: whoever
    /// proposes has checked.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(LEVEL.0);
        out.put_u16(self.kind());
        match self {
            Command::Blank | Command::Reap | Command::EndQuiet => {}
            Command::OpenSession { client_id, ttl_ms, nonce } => {
                assert!(client_id.len() <= CLIENT_ID_BYTES_MAX, "a client id is within its limit");
                out.put_bytes(client_id.as_bytes());
                out.put_u32(*ttl_ms);
                out.put(&nonce.0);
            }
            Command::Acquire(acquire) => acquire.put(out),
            Command::Cancel { mutation, acquire_id } => {
                mutation.put(out);
                out.put_u64(acquire_id.0);
            }
            Command::Release { mutation, acquire_id, name, token } => {
                assert!(name.len() <= NAME_BYTES_MAX, "a name is within its limit");
                mutation.put(out);
                out.put_u64(acquire_id.0);
                out.put_bytes(name.as_bytes());
                out.put_u64(token.0);
            }
            Command::CancelWait { session, acquire_id } => {
                out.put_u64(session.0);
                out.put_u64(acquire_id.0);
            }
            Command::EndSessions { reason, sessions } => {
                assert!(ends_sessions(*reason), "{} does not end a session", reason.name());
                assert!(sessions.len() <= SESSIONS_PER_BATCH_MAX, "a batch of sessions is within its limit");
                out.put_u8(*reason as u8);
                sessions.put(out);
            }
            Command::SessionsSilent { silences } => {
                assert!(silences.len() <= SESSIONS_PER_BATCH_MAX, "a batch of sessions is within its limit");
                silences.put(out);
            }
            Command::SessionsReturned { sessions } => {
                assert!(sessions.len() <= SESSIONS_PER_BATCH_MAX, "a batch of sessions is within its limit");
                sessions.put(out);
            }
            Command::Members(members) => members.put(out),
        }
    }

    /// Reads a payload.
    pub fn decode(payload: &'a [u8]) -> Decoded<Command<'a>> {
        let mut reader = Reader::new(payload);
        let level = reader.u16("feature_level")?;
        if level != LEVEL.0 {
            return Err(DecodeError::UnknownLevel(level));
        }
        let kind = reader.u16("kind")?;
        let command = Command::read(kind, &mut reader)?;
        reader.finish()?;
        Ok(command)
    }

    fn read(kind: u16, reader: &mut Reader<'a>) -> Decoded<Command<'a>> {
        Ok(match kind {
            kind::BLANK => Command::Blank,
            kind::OPEN_SESSION => Command::OpenSession {
                client_id: reader.text(CLIENT_ID_BYTES_MAX, "client_id")?,
                ttl_ms: reader.u32("ttl_ms")?,
                nonce: Nonce(reader.random("nonce")?),
            },
            kind::ACQUIRE => Command::Acquire(Acquire::read(reader)?),
            kind::CANCEL => Command::Cancel {
                mutation: Mutation::read(reader)?,
                acquire_id: RequestId(reader.u64("acquire_id")?),
            },
            kind::RELEASE => Command::Release {
                mutation: Mutation::read(reader)?,
                acquire_id: RequestId(reader.u64("acquire_id")?),
                name: reader.text(NAME_BYTES_MAX, "name")?,
                token: FencingToken(reader.u64("token")?),
            },
            kind::CANCEL_WAIT => Command::CancelWait {
                session: SessionId(reader.u64("session")?),
                acquire_id: RequestId(reader.u64("acquire_id")?),
            },
            kind::END_SESSIONS => {
                let reason = EndReason::read(reader)?;
                if !ends_sessions(reason) {
                    return Err(DecodeError::Invalid("reason"));
                }
                let sessions = Rows::read(reader, SESSIONS_PER_BATCH_MAX, "sessions")?;
                Command::EndSessions { reason, sessions }
            }
            kind::REAP => Command::Reap,
            kind::SESSIONS_SILENT => {
                Command::SessionsSilent { silences: Rows::read(reader, SESSIONS_PER_BATCH_MAX, "silences")? }
            }
            kind::SESSIONS_RETURNED => Command::SessionsReturned {
                sessions: Rows::read(reader, SESSIONS_PER_BATCH_MAX, "sessions")?,
            },
            kind::END_QUIET => Command::EndQuiet,
            kind::MEMBERS => Command::Members(Members::read(reader)?),
            unknown => return Err(DecodeError::UnknownKind(unknown)),
        })
    }
}

fn ends_sessions(reason: EndReason) -> bool {
    match reason {
        EndReason::Expired | EndReason::Closed => true,
        EndReason::Released
        | EndReason::Cancelled
        | EndReason::Revoked
        | EndReason::MaxHold
        | EndReason::CellRestored => false,
    }
}

#[cfg(test)]
mod tests;
