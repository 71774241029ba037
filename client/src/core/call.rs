//! What was asked for and has no outcome yet.
//!
//! Invariant: a call is sent again with the same content, the remaining wait aside, and with the same
//! request id when it has one.

use std::sync::Arc;

use lockstep_wire::request::Mode;
use lockstep_wire::{
    FencingToken, Incarnation, MemberChange, NodeId, Owner, RequestId, SessionId, SnapshotId,
};

use super::outcome::{CallId, SessionKey};
use super::time::Time;

/// How an acquire is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireOptions {
    /// The lock, `/ls/<namespace>/...`.
    pub name: String,
    /// Who holds, within the session; a fresh number for whoever contends on his own.
    pub owner: Owner,
    /// How.
    pub mode: Mode,
    /// Granted again, under the same token, when the owner holds the name in this mode already.
    pub is_reentrant: bool,
    /// How long to stand in line, in ms; 0 is a try. A day at most.
    pub wait_ms: u32,
    /// What others see on the lock; 1 KiB at most.
    pub data: Vec<u8>,
}

/// How the members of a cell are to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberWish {
    /// Adds a node that gets the log and has no vote.
    AddLearner {
        /// The node.
        node: NodeId,
        /// The life of its data directory.
        incarnation: Incarnation,
        /// Where it serves members.
        peer_address: String,
        /// Where it serves clients.
        client_address: String,
    },
    /// Gives a learner that has caught up its vote.
    Promote {
        /// The learner.
        node: NodeId,
    },
    /// Takes a member out, for ever.
    Remove {
        /// The member.
        node: NodeId,
    },
    /// Says where a member serves from now on.
    SetAddresses {
        /// The member.
        node: NodeId,
        /// Where it serves members.
        peer_address: String,
        /// Where it serves clients.
        client_address: String,
    },
}

impl MemberWish {
    /// As a request carries it.
    pub fn as_change(&self) -> MemberChange<'_> {
        match self {
            MemberWish::AddLearner { node, incarnation, peer_address, client_address } => {
                MemberChange::AddLearner {
                    node: *node,
                    incarnation: *incarnation,
                    peer_address,
                    client_address,
                }
            }
            MemberWish::Promote { node } => MemberChange::Promote { node: *node },
            MemberWish::Remove { node } => MemberChange::Remove { node: *node },
            MemberWish::SetAddresses { node, peer_address, client_address } => {
                MemberChange::SetAddresses { node: *node, peer_address, client_address }
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Body {
    Open,
    Close,
    Acquire {
        options: Arc<AcquireOptions>,
        wait_until: Time,
    },
    Cancel {
        acquire_id: RequestId,
    },
    Release {
        acquire_id: RequestId,
        options: Arc<AcquireOptions>,
        token: FencingToken,
    },
    Check {
        name: String,
        token: FencingToken,
        of: SessionId,
    },
    GetLock {
        name: String,
    },
    GetSession {
        of: SessionId,
    },
    /// The core's own look at what its session holds; grants up to this one can be missed.
    Reconcile {
        granted_max: u64,
    },
    /// The core's own look at one hold that did not fit the view of the session.
    Verify {
        acquire: CallId,
        options: Arc<AcquireOptions>,
        token: FencingToken,
    },
    Status,
    Members,
    ChangeMembers(MemberWish),
    Transfer {
        to: NodeId,
    },
    Routes,
    /// A piece of a snapshot; the first one of the newest if its index is 0.
    Save {
        snapshot: SnapshotId,
        piece: u32,
    },
}

impl Body {
    /// Whether its outcome is kept by the cell, under a request id.
    pub(super) fn is_mutation(&self) -> bool {
        match self {
            Body::Acquire { .. } | Body::Cancel { .. } | Body::Release { .. } => true,
            Body::Open
            | Body::Close
            | Body::Transfer { .. }
            | Body::ChangeMembers(_)
            | Body::Check { .. }
            | Body::GetLock { .. }
            | Body::GetSession { .. }
            | Body::Reconcile { .. }
            | Body::Verify { .. }
            | Body::Status
            | Body::Members
            | Body::Routes
            | Body::Save { .. } => false,
        }
    }

    /// Whether it is for whoever asked to say if it is asked again: another member may be the one to ask by then.
    pub(super) fn is_asked_once(&self) -> bool {
        matches!(self, Body::Transfer { .. } | Body::ChangeMembers(_))
    }

    /// Whether its answer comes with an entry of the log, and so no sooner than disks allow.
    pub(super) fn is_entry(&self) -> bool {
        self.is_mutation() || matches!(self, Body::Open | Body::Close)
    }

    /// Whether asking twice is the same as asking once, so that a lost reply leaves no doubt.
    pub(super) fn is_read(&self) -> bool {
        match self {
            Body::Check { .. }
            | Body::GetLock { .. }
            | Body::GetSession { .. }
            | Body::Reconcile { .. }
            | Body::Verify { .. }
            | Body::Status
            | Body::Members
            | Body::Routes
            | Body::Save { .. } => true,
            Body::Open
            | Body::Close
            | Body::Acquire { .. }
            | Body::Cancel { .. }
            | Body::Release { .. }
            | Body::ChangeMembers(_)
            | Body::Transfer { .. } => false,
        }
    }
}

#[derive(Debug)]
pub(super) struct Call {
    /// The session it acts for.
    pub(super) session: Option<SessionKey>,
    pub(super) body: Body,
    /// Its number within the session, from its first send on.
    pub(super) request_id: Option<RequestId>,
    /// What the last send told the cell to forget.
    pub(super) seen: Vec<RequestId>,
    /// The correlation under which it is under way on this connection.
    pub(super) flight: Option<u64>,
    /// A send of it was lost with its connection, or the cell could not say what became of it.
    pub(super) is_in_doubt: bool,
    /// Nobody waits for its outcome.
    pub(super) is_silent: bool,
    /// An acquire that the user has withdrawn; it is not sent again, its cancel is.
    pub(super) is_cancelled: bool,
    /// When its user is told that it was not carried out.
    pub(super) give_up: Time,
    /// When it may be sent again.
    pub(super) not_before: Time,
    /// Since when the cell has refused it because its disks are full.
    pub(super) no_space_since: Option<Time>,
}

impl Call {
    pub(super) fn new(session: Option<SessionKey>, body: Body, give_up: Time) -> Call {
        Call {
            session,
            body,
            request_id: None,
            seen: Vec::new(),
            flight: None,
            is_in_doubt: false,
            is_silent: false,
            is_cancelled: false,
            give_up,
            not_before: Time(0),
            no_space_since: None,
        }
    }
}

/// What is under way on the connection under one correlation.
#[derive(Debug)]
pub(super) struct Flight {
    /// The kind of the request's frame.
    pub(super) kind: u16,
    pub(super) sent_at: Time,
    /// When the try began that runs at the moment: a member that proves meanwhile that it leads is given another one.
    pub(super) try_began: Time,
    pub(super) what: Errand,
}

#[derive(Debug)]
pub(super) enum Errand {
    Call(CallId),
    /// Attaches sessions, or keeps them alive.
    Beat(Vec<SessionKey>),
}
