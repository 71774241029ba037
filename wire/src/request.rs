//! What a client asks of a cell (ARCHITECTURE section 3).
//!
//! Invariant: kinds are numbered once; the gaps are the places of the calls that come later. In a decoded
//! request every size is within its hard limit. Deliberately absent: whether a name is well formed, whether a
//! time is within its bounds, and what the cell's own limits allow; the cell answers those in words.

use crate::cursor::{DecodeError, Decoded, Reader, Writer};
use crate::frame::{self, Frame, Head};
use crate::limit::{
    CLIENT_ID_BYTES_MAX, DATA_BYTES_MAX, NAME_BYTES_MAX, NAMES_PER_ACQUIRE_MAX, REQUEST_WINDOW_MAX,
    SESSIONS_PER_BATCH_MAX,
};
use crate::membership::MemberChange;
use crate::rows::{Row, Rows};
use crate::{CellId, Correlation, FencingToken, NodeId, Nonce, Owner, RequestId, SessionId, SnapshotId};

/// The kinds of frames from a client; a reply has its request's kind with [`kind::REPLY`] set.
pub mod kind {
    /// The first frame of a connection.
    pub const HELLO: u16 = 0x0001;
    /// [`super::Request::OpenSession`].
    pub const OPEN_SESSION: u16 = 0x0101;
    /// [`super::Request::AttachSessions`].
    pub const ATTACH_SESSIONS: u16 = 0x0102;
    /// [`super::Request::KeepAlive`].
    pub const KEEP_ALIVE: u16 = 0x0103;
    /// [`super::Request::CloseSession`].
    pub const CLOSE_SESSION: u16 = 0x0104;
    // 0x0105 SetTtl
    /// [`super::Request::Acquire`].
    pub const ACQUIRE: u16 = 0x0110;
    /// [`super::Request::Cancel`].
    pub const CANCEL: u16 = 0x0111;
    /// [`super::Request::Release`].
    pub const RELEASE: u16 = 0x0112;
    // 0x0113 Downgrade, 0x0114 Upgrade, 0x0115 SetData
    /// [`super::Request::CheckToken`].
    pub const CHECK_TOKEN: u16 = 0x0120;
    /// [`super::Request::GetLock`].
    pub const GET_LOCK: u16 = 0x0121;
    // 0x0122 ListLocks
    /// [`super::Request::GetSession`].
    pub const GET_SESSION: u16 = 0x0123;
    // 0x0130 Watch, 0x0131 events of a watch, 0x0140 Revoke
    /// [`super::Request::Status`].
    pub const STATUS: u16 = 0x0150;
    /// [`super::Request::Members`].
    pub const MEMBERS: u16 = 0x0151;
    /// [`crate::MemberChange::AddLearner`].
    pub const ADD_LEARNER: u16 = 0x0152;
    /// [`crate::MemberChange::Promote`].
    pub const PROMOTE: u16 = 0x0153;
    /// [`crate::MemberChange::Remove`].
    pub const REMOVE: u16 = 0x0154;
    /// [`super::Request::TransferLeader`].
    pub const TRANSFER_LEADER: u16 = 0x0155;
    /// [`super::Request::Routes`].
    pub const ROUTES: u16 = 0x0156;
    /// [`super::Request::SaveSnapshot`].
    pub const SAVE_SNAPSHOT: u16 = 0x0157;
    /// [`crate::MemberChange::SetAddresses`].
    pub const SET_ADDRESSES: u16 = 0x0158;
    /// [`crate::reply::Event`], which nobody asked for.
    pub const EVENT: u16 = 0x0180;
    /// Set in the kind of a reply.
    pub const REPLY: u16 = 0x8000;
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mode {
    /// By one owner alone.
    Exclusive = 0,
    /// By any number of owners together.
    Shared = 1,
}

impl Mode {
    /// Reads a mode.
    pub fn read(reader: &mut Reader<'_>) -> Decoded<Mode> {
        match reader.u8("mode")? {
            0 => Ok(Mode::Exclusive),
            1 => Ok(Mode::Shared),
            _ => Err(DecodeError::Invalid("mode")),
        }
    }

    /// As documents and tools print it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        }
    }
}

/// A session and the secret that proves its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionProof {
    /// The session.
    pub session: SessionId,
    /// The nonce that it was opened with.
    pub nonce: Nonce,
}

impl Row<'_> for SessionProof {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.session.0);
        out.put(&self.nonce.0);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<SessionProof> {
        Ok(SessionProof { session: SessionId(reader.u64("session")?), nonce: Nonce(reader.random("nonce")?) })
    }
}

impl Row<'_> for SessionId {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.0);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<SessionId> {
        reader.u64("session").map(SessionId)
    }
}

impl Row<'_> for RequestId {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.0);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<RequestId> {
        reader.u64("request_id").map(RequestId)
    }
}

/// A name inside a list; what it must look like is checked by [`crate::Name`].
impl<'a> Row<'a> for &'a str {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_bytes(self.as_bytes());
    }
    fn read(reader: &mut Reader<'a>) -> Decoded<&'a str> {
        reader.text(NAME_BYTES_MAX, "name")
    }
}

/// Which mutation of a session this is, and which outcomes its client has seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mutation<'a> {
    /// The session that acts.
    pub session: SessionId,
    /// The number of this mutation within the session; increases.
    pub request_id: RequestId,
    /// Request ids whose final outcomes the client has seen, so that they need not be kept.
    pub seen: Rows<'a, RequestId>,
}

impl<'a> Mutation<'a> {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.session.0);
        out.put_u64(self.request_id.0);
        self.seen.put(out);
    }

    pub(crate) fn read(reader: &mut Reader<'a>) -> Decoded<Mutation<'a>> {
        Ok(Mutation {
            session: SessionId(reader.u64("session")?),
            request_id: RequestId(reader.u64("request_id")?),
            seen: Rows::read(reader, REQUEST_WINDOW_MAX, "seen")?,
        })
    }
}

/// Asks for a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Acquire<'a> {
    /// Which mutation it is; its request id names the hold or the wait that it makes.
    pub mutation: Mutation<'a>,
    /// Who holds, within the session.
    pub owner: Owner,
    /// How.
    pub mode: Mode,
    /// Granted again, under the same token, when the owner holds the name in this mode already.
    pub is_reentrant: bool,
    /// The size of a counted shared lock; 0 for a lock that is not counted.
    pub permits: u16,
    /// How long to wait, in ms; 0 is a try. A re-send carries what remains.
    pub wait_ms: u32,
    /// For how long nobody gets the lock after the session expired while holding, in ms.
    pub lock_delay_ms: u32,
    /// After how long the hold ends by itself, in ms; 0 for never.
    pub max_hold_ms: u32,
    /// The names to hold together.
    pub names: Rows<'a, &'a str>,
    /// What the owner shows to whoever looks at the lock.
    pub data: &'a [u8],
}

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request<'a> {
    /// Opens a session, or finds the one that this nonce has opened.
    OpenSession {
        /// What people see of the client, a host and process for example.
        client_id: &'a str,
        /// The TTL it wishes, in ms; the reply says what it gets.
        ttl_ms: u32,
        /// Makes the call idempotent, and proves the owner later.
        nonce: Nonce,
    },
    /// Ties sessions to this connection; the newest attachment wins.
    AttachSessions(Rows<'a, SessionProof>),
    /// Says that the owners of these sessions live.
    KeepAlive(Rows<'a, SessionId>),
    /// Ends a session and frees all that it holds.
    CloseSession {
        /// The session.
        session: SessionId,
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
        /// The token of the hold; another one changes nothing.
        token: FencingToken,
    },
    /// Asks whether a token is still the current one.
    CheckToken {
        /// The lock.
        name: &'a str,
        /// The token.
        token: FencingToken,
        /// Whose hold it should be; 0 for anybody's.
        session: SessionId,
    },
    /// Asks who holds a lock and who waits.
    GetLock {
        /// The lock.
        name: &'a str,
    },
    /// Asks what a session holds and waits for.
    GetSession {
        /// The session.
        session: SessionId,
    },
    /// Asks how the cell is, as the node that is asked knows it.
    Status,
    /// Asks who the members are, as the node that is asked knows it.
    Members,
    /// Asks the leader to change who the members are.
    ChangeMembers(MemberChange<'a>),
    /// Asks the leader to hand its office over.
    TransferLeader {
        /// To which member; 0 for the one whose disk has most of the log.
        to: NodeId,
    },
    /// Asks which cell serves which namespace.
    Routes,
    /// Asks the leader for a piece of a snapshot, for a backup.
    SaveSnapshot {
        /// Of which; index 0 for one that has all that was applied when this was asked.
        snapshot: SnapshotId,
        /// Which piece, from 0 on and in their order.
        piece: u32,
    },
}

impl<'a> Request<'a> {
    /// The kind in the frame's head.
    pub fn kind(&self) -> u16 {
        match self {
            Request::OpenSession { .. } => kind::OPEN_SESSION,
            Request::AttachSessions(_) => kind::ATTACH_SESSIONS,
            Request::KeepAlive(_) => kind::KEEP_ALIVE,
            Request::CloseSession { .. } => kind::CLOSE_SESSION,
            Request::Acquire(_) => kind::ACQUIRE,
            Request::Cancel { .. } => kind::CANCEL,
            Request::Release { .. } => kind::RELEASE,
            Request::CheckToken { .. } => kind::CHECK_TOKEN,
            Request::GetLock { .. } => kind::GET_LOCK,
            Request::GetSession { .. } => kind::GET_SESSION,
            Request::Status => kind::STATUS,
            Request::Members => kind::MEMBERS,
            Request::ChangeMembers(MemberChange::AddLearner { .. }) => kind::ADD_LEARNER,
            Request::ChangeMembers(MemberChange::Promote { .. }) => kind::PROMOTE,
            Request::ChangeMembers(MemberChange::Remove { .. }) => kind::REMOVE,
            Request::ChangeMembers(MemberChange::SetAddresses { .. }) => kind::SET_ADDRESSES,
            Request::TransferLeader { .. } => kind::TRANSFER_LEADER,
            Request::Routes => kind::ROUTES,
            Request::SaveSnapshot { .. } => kind::SAVE_SNAPSHOT,
        }
    }

    /// Appends the whole frame.
    pub fn encode(&self, cell: CellId, correlation: Correlation, out: &mut Vec<u8>) {
        frame::encode(out, Head { kind: self.kind(), cell, correlation }, |out| self.put(out));
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Request::OpenSession { client_id, ttl_ms, nonce } => {
                out.put_bytes(client_id.as_bytes());
                out.put_u32(*ttl_ms);
                out.put(&nonce.0);
            }
            Request::AttachSessions(proofs) => proofs.put(out),
            Request::KeepAlive(sessions) => sessions.put(out),
            Request::CloseSession { session } | Request::GetSession { session } => out.put_u64(session.0),
            Request::Acquire(acquire) => acquire.put(out),
            Request::Cancel { mutation, acquire_id } => {
                mutation.put(out);
                out.put_u64(acquire_id.0);
            }
            Request::Release { mutation, acquire_id, name, token } => {
                mutation.put(out);
                out.put_u64(acquire_id.0);
                out.put_bytes(name.as_bytes());
                out.put_u64(token.0);
            }
            Request::CheckToken { name, token, session } => {
                out.put_bytes(name.as_bytes());
                out.put_u64(token.0);
                out.put_u64(session.0);
            }
            Request::GetLock { name } => out.put_bytes(name.as_bytes()),
            Request::TransferLeader { to } => out.put_u16(to.0),
            Request::ChangeMembers(change) => change.put(out),
            Request::SaveSnapshot { snapshot, piece } => {
                snapshot.put(out);
                out.put_u32(*piece);
            }
            Request::Status | Request::Members | Request::Routes => {}
        }
    }

    /// Reads a request out of its frame.
    pub fn decode(frame: &Frame<'a>) -> Decoded<Request<'a>> {
        let mut reader = Reader::new(frame.body);
        let request = match frame.head.kind {
            kind::OPEN_SESSION => Request::OpenSession {
                client_id: reader.text(CLIENT_ID_BYTES_MAX, "client_id")?,
                ttl_ms: reader.u32("ttl_ms")?,
                nonce: Nonce(reader.random("nonce")?),
            },
            kind::ATTACH_SESSIONS => {
                Request::AttachSessions(Rows::read(&mut reader, SESSIONS_PER_BATCH_MAX, "sessions")?)
            }
            kind::KEEP_ALIVE => {
                Request::KeepAlive(Rows::read(&mut reader, SESSIONS_PER_BATCH_MAX, "sessions")?)
            }
            kind::CLOSE_SESSION => Request::CloseSession { session: SessionId(reader.u64("session")?) },
            kind::ACQUIRE => Request::Acquire(Acquire::read(&mut reader)?),
            kind::CANCEL => Request::Cancel {
                mutation: Mutation::read(&mut reader)?,
                acquire_id: RequestId(reader.u64("acquire_id")?),
            },
            kind::RELEASE => Request::Release {
                mutation: Mutation::read(&mut reader)?,
                acquire_id: RequestId(reader.u64("acquire_id")?),
                name: reader.text(NAME_BYTES_MAX, "name")?,
                token: FencingToken(reader.u64("token")?),
            },
            kind::CHECK_TOKEN => Request::CheckToken {
                name: reader.text(NAME_BYTES_MAX, "name")?,
                token: FencingToken(reader.u64("token")?),
                session: SessionId(reader.u64("session")?),
            },
            kind::GET_LOCK => Request::GetLock { name: reader.text(NAME_BYTES_MAX, "name")? },
            kind::GET_SESSION => Request::GetSession { session: SessionId(reader.u64("session")?) },
            kind::STATUS => Request::Status,
            kind::MEMBERS => Request::Members,
            kind::ADD_LEARNER => Request::ChangeMembers(MemberChange::read_add_learner(&mut reader)?),
            kind::PROMOTE => {
                Request::ChangeMembers(MemberChange::Promote { node: NodeId(reader.u16("node")?) })
            }
            kind::REMOVE => {
                Request::ChangeMembers(MemberChange::Remove { node: NodeId(reader.u16("node")?) })
            }
            kind::SET_ADDRESSES => Request::ChangeMembers(MemberChange::read_set_addresses(&mut reader)?),
            kind::TRANSFER_LEADER => Request::TransferLeader { to: NodeId(reader.u16("to")?) },
            kind::ROUTES => Request::Routes,
            kind::SAVE_SNAPSHOT => Request::SaveSnapshot {
                snapshot: SnapshotId::read(&mut reader)?,
                piece: reader.u32("piece")?,
            },
            unknown => return Err(DecodeError::UnknownKind(unknown)),
        };
        reader.finish()?;
        Ok(request)
    }
}

impl<'a> Acquire<'a> {
    /// Appends the body; a log entry carries it in the same layout.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.mutation.put(out);
        out.put_u64(self.owner.0);
        out.put_u8(self.mode as u8);
        out.put_bool(self.is_reentrant);
        out.put_u16(self.permits);
        out.put_u32(self.wait_ms);
        out.put_u32(self.lock_delay_ms);
        out.put_u32(self.max_hold_ms);
        self.names.put(out);
        out.put_bytes(self.data);
    }

    /// Reads the body.
    pub fn read(reader: &mut Reader<'a>) -> Decoded<Acquire<'a>> {
        Ok(Acquire {
            mutation: Mutation::read(reader)?,
            owner: Owner(reader.u64("owner")?),
            mode: Mode::read(reader)?,
            is_reentrant: reader.bool("is_reentrant")?,
            permits: reader.u16("permits")?,
            wait_ms: reader.u32("wait_ms")?,
            lock_delay_ms: reader.u32("lock_delay_ms")?,
            max_hold_ms: reader.u32("max_hold_ms")?,
            names: Rows::read(reader, NAMES_PER_ACQUIRE_MAX, "names")?,
            data: reader.bytes(DATA_BYTES_MAX, "data")?,
        })
    }
}
