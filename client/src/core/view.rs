//! What a cell shows of its locks, sessions and members, in values that outlive the frame.
//!
//! Invariant: nothing is added to or left out of what came over the wire.

use lockstep_wire::reply;
use lockstep_wire::request::Mode;
use lockstep_wire::{
    CellId, ClusterId, FencingToken, Incarnation, LogIndex, NodeId, Owner, RequestId, Revision, SavedPiece,
    SessionId, SnapshotId, Term,
};

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The session.
    pub session: SessionId,
    /// Who, within the session.
    pub owner: Owner,
    /// The request id of the acquire that made the hold.
    pub acquire_id: RequestId,
    /// Its token.
    pub token: FencingToken,
    /// Its fence.
    pub fence: FencingToken,
    /// What people see of the client.
    pub client_id: String,
    /// What the owner shows.
    pub data: Vec<u8>,
}

/// Who waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The session.
    pub session: SessionId,
    /// Who, within the session.
    pub owner: Owner,
    /// The request id of its acquire.
    pub acquire_id: RequestId,
    /// How it wishes to hold.
    pub mode: Mode,
    /// Its place in the line, from 1.
    pub position: u32,
    /// What people see of the client.
    pub client_id: String,
}

/// A lock as it was at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// At which revision.
    pub revision: Revision,
    /// Whether the lock has a record: a holder, a waiter or a delay.
    pub exists: bool,
    /// How it is held; meaningless without a holder.
    pub mode: Mode,
    /// What every token granted so far is at most, and every later one is above; 0 while somebody holds it.
    pub fence_floor: FencingToken,
    /// The cell was restored, and grants nothing yet.
    pub is_quiet: bool,
    /// How many hold it; the list may be shorter.
    pub holders_total: u32,
    /// How many wait; the list may be shorter.
    pub waiters_total: u32,
    /// Who holds it, in the order of the grants.
    pub holders: Vec<Holder>,
    /// Who waits, in line.
    pub waiters: Vec<Waiter>,
}

/// What a session holds or waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The request id of the acquire.
    pub acquire_id: RequestId,
    /// Who, within the session.
    pub owner: Owner,
    /// How.
    pub mode: Mode,
    /// The token of the hold; 0 while it waits.
    pub token: FencingToken,
    /// The fence of the hold; 0 while it waits.
    pub fence: FencingToken,
    /// The lock.
    pub name: String,
}

/// A session as it was at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// At which revision.
    pub revision: Revision,
    /// Its TTL, in ms.
    pub ttl_ms: u32,
    /// What people see of the client.
    pub client_id: String,
    /// How many holds and waits it has; the list may be shorter.
    pub claims_total: u32,
    /// What it holds and waits for, by request id.
    pub claims: Vec<Claim>,
}

/// A member of a cell as the node that was asked knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// The node.
    pub node: NodeId,
    /// Whether it is the node that was asked or linked with it and, if that one leads, was heard in its term and within an
    /// election timeout.
    pub is_heard: bool,
    /// How far its log is known to match; only a leader knows.
    pub matched: LogIndex,
    /// Where it serves clients.
    pub address: String,
}

/// A cell as the node that was asked knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusInfo {
    /// The node that answered.
    pub node: NodeId,
    /// What it is: `leader`, `follower`, `learner`, `pre-candidate`, `candidate`, `unborn`, `joining` or `removed`.
    pub role: String,
    /// Its term.
    pub term: Term,
    /// The leader it knows; 0 for none.
    pub leader: NodeId,
    /// Where that leader serves clients; empty when not known.
    pub leader_address: String,
    /// How far it knows the log to be committed.
    pub committed: LogIndex,
    /// How far it has applied the log.
    pub applied: LogIndex,
    /// How far its own disk has the log.
    pub durable: LogIndex,
    /// Sessions that have not ended.
    pub sessions: u64,
    /// Locks that have a record.
    pub locks: u64,
    /// The digest of its replicated state at `applied`.
    pub digest: u64,
    /// Its disk has no room for the next segment of its log.
    pub is_short_of_space: bool,
    /// The cell was restored, and grants nothing yet.
    pub is_quiet: bool,
    /// For how long that stays so, in ms; 0 unless the leader was asked.
    pub quiet_left_ms: u32,
    /// The cell's members.
    pub members: Vec<MemberInfo>,
}

/// A member of a cell, and how it gets on, as the node that was asked knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// The node.
    pub node: NodeId,
    /// The life of its data directory.
    pub incarnation: Incarnation,
    /// Whether it votes; a learner only gets the log.
    pub is_voter: bool,
    /// Where it serves members.
    pub peer_address: String,
    /// Where it serves clients.
    pub client_address: String,
    /// Whether it is the node that was asked or linked with it and, if that one leads, was heard in its term and within an
    /// election timeout.
    pub is_heard: bool,
    /// How far its log is known to match; 0 unless the leader was asked.
    pub matched: LogIndex,
}

/// Who the members of a cell are, as the node that was asked knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembersInfo {
    /// The cluster of the node that answered.
    pub cluster: ClusterId,
    /// The node that answered.
    pub node: NodeId,
    /// The life of its data directory: what it is to be added under.
    pub incarnation: Incarnation,
    /// Where it serves members, as its own configuration says.
    pub peer_address: String,
    /// Where it serves clients, likewise.
    pub client_address: String,
    /// How many cells the cluster has, from 0 on.
    pub cells: u16,
    /// How many shards the node that answered was formatted with.
    pub shards: u16,
    /// The leader it knows; 0 for none.
    pub leader: NodeId,
    /// Where that leader serves clients; empty when not known.
    pub leader_address: String,
    /// The last entry of its log.
    pub last: LogIndex,
    /// The last change of the members is not known to be committed.
    pub is_changing: bool,
    /// The highest id that any member ever had.
    pub node_max: NodeId,
    /// The members, by id; none when the node is not one yet.
    pub members: Vec<MemberState>,
}

/// Which cell serves a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// The namespace; empty for every one that has no row of its own.
    pub namespace: String,
    /// The cell.
    pub cell: CellId,
}

/// A piece of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceInfo {
    /// Of which snapshot.
    pub snapshot: SnapshotId,
    /// Which one, from 0.
    pub piece: u32,
    /// Whether the snapshot ends with it.
    pub is_last: bool,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl From<reply::LockView<'_>> for LockInfo {
    fn from(view: reply::LockView<'_>) -> LockInfo {
        LockInfo {
            revision: view.revision,
            exists: view.exists,
            mode: view.mode,
            fence_floor: view.fence_floor,
            is_quiet: view.is_quiet,
            holders_total: view.holders_total,
            waiters_total: view.waiters_total,
            holders: view.holders.iter().map(Holder::from).collect(),
            waiters: view.waiters.iter().map(Waiter::from).collect(),
        }
    }
}

impl From<reply::HolderView<'_>> for Holder {
    fn from(row: reply::HolderView<'_>) -> Holder {
        Holder {
            session: row.session,
            owner: row.owner,
            acquire_id: row.acquire_id,
            token: row.token,
            fence: row.fence,
            client_id: row.client_id.to_owned(),
            data: row.data.to_owned(),
        }
    }
}

impl From<reply::WaiterView<'_>> for Waiter {
    fn from(row: reply::WaiterView<'_>) -> Waiter {
        Waiter {
            session: row.session,
            owner: row.owner,
            acquire_id: row.acquire_id,
            mode: row.mode,
            position: row.position,
            client_id: row.client_id.to_owned(),
        }
    }
}

impl From<reply::SessionView<'_>> for SessionInfo {
    fn from(view: reply::SessionView<'_>) -> SessionInfo {
        let claims = view.claims.iter().map(|row| Claim {
            acquire_id: row.acquire_id,
            owner: row.owner,
            mode: row.mode,
            token: row.token,
            fence: row.fence,
            name: row.name.to_owned(),
        });
        SessionInfo {
            revision: view.revision,
            ttl_ms: view.ttl_ms,
            client_id: view.client_id.to_owned(),
            claims_total: view.claims_total,
            claims: claims.collect(),
        }
    }
}

impl From<reply::StatusView<'_>> for StatusInfo {
    fn from(view: reply::StatusView<'_>) -> StatusInfo {
        let members = view.members.iter().map(|row| MemberInfo {
            node: row.node,
            is_heard: row.is_heard,
            matched: row.matched,
            address: row.address.to_owned(),
        });
        StatusInfo {
            node: view.node,
            role: view.role.to_owned(),
            term: view.term,
            leader: view.leader,
            leader_address: view.leader_address.to_owned(),
            committed: view.committed,
            applied: view.applied,
            durable: view.durable,
            sessions: view.sessions,
            locks: view.locks,
            digest: view.digest,
            is_short_of_space: view.is_short_of_space,
            is_quiet: view.is_quiet,
            quiet_left_ms: view.quiet_left_ms,
            members: members.collect(),
        }
    }
}

impl From<reply::MemberProgress<'_>> for MemberState {
    fn from(row: reply::MemberProgress<'_>) -> MemberState {
        MemberState {
            node: row.member.node,
            incarnation: row.member.incarnation,
            is_voter: row.member.is_voter,
            peer_address: row.member.peer_address.to_owned(),
            client_address: row.member.client_address.to_owned(),
            is_heard: row.is_heard,
            matched: row.matched,
        }
    }
}

impl MembersInfo {
    /// What a node of this cluster has answered.
    pub(super) fn of(cluster: ClusterId, view: reply::MembersView<'_>) -> MembersInfo {
        MembersInfo {
            cluster,
            node: view.node,
            incarnation: view.incarnation,
            peer_address: view.peer_address.to_owned(),
            client_address: view.client_address.to_owned(),
            cells: view.cells,
            shards: view.shards,
            leader: view.leader,
            leader_address: view.leader_address.to_owned(),
            last: view.last,
            is_changing: view.is_changing,
            node_max: view.node_max,
            members: view.members.iter().map(MemberState::from).collect(),
        }
    }
}

impl From<reply::Route<'_>> for RouteInfo {
    fn from(row: reply::Route<'_>) -> RouteInfo {
        RouteInfo { namespace: row.namespace.to_owned(), cell: row.cell }
    }
}

impl From<SavedPiece<'_>> for PieceInfo {
    fn from(piece: SavedPiece<'_>) -> PieceInfo {
        let SavedPiece { snapshot, piece, is_last, bytes } = piece;
        PieceInfo { snapshot, piece, is_last, bytes: bytes.to_vec() }
    }
}
