//! Who the members are, for whoever asks, and changes of that (ARCHITECTURE section 4.1, "Membership").
//!
//! Invariant: a change is answered when its entry is applied by the leader that appended it, and one that is so already
//! under a read round. Deliberately absent: what a majority is; that is Raft's.

use lockstep_wire::reply::{MemberProgress, MembersView, Reply};
use lockstep_wire::{Incarnation, MemberChange, MemberRow, NodeId, Rows, Status};

use super::calls::{Call, Proposed};
use super::question::Question;
use super::{Cell, Member};
use crate::effect::Effects;
use crate::members::Listed;
use crate::raft::refusal_sentence;
use crate::time::Time;

impl Cell {
    /// Where a node serves clients, as far as is known: the log before the configuration.
    pub(crate) fn client_address(&self, node: NodeId) -> &str {
        let listed = self.raft.listed(node).map_or("", |member| member.client_address.as_str());
        let configured = self.configured(node).map_or("", |member| member.client_address.as_str());
        if listed.is_empty() { configured } else { listed }
    }

    /// Where it serves members, likewise.
    fn peer_address(&self, node: NodeId) -> &str {
        let listed = self.raft.listed(node).map_or("", |member| member.peer_address.as_str());
        let configured = self.configured(node).map_or("", |member| member.peer_address.as_str());
        if listed.is_empty() { configured } else { listed }
    }

    /// Where this node serves clients and members, as its own configuration says.
    pub(crate) fn own_addresses(&self) -> [String; 2] {
        let own = self.configured(self.config.node);
        own.map_or_else(Default::default, |own| [own.client_address.clone(), own.peer_address.clone()])
    }

    fn configured(&self, node: NodeId) -> Option<&Member> {
        self.config.members.iter().find(|member| member.node == node)
    }

    /// Why whoever says that it is this node, with this life of its directory, is not the member of that id.
    pub fn objection_to(&self, node: NodeId, incarnation: Incarnation) -> Option<String> {
        let reason = self.raft.objection_to(node, incarnation)?;
        Some(refusal_sentence(self.config.cell, node, reason))
    }

    /// The nodes that this replica talks to, and where they serve members as far as is known; empty if it is not.
    pub fn peers(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.raft.peers().map(|node| (node, self.peer_address(node)))
    }

    /// Answers who the members are, as this replica knows it; no round confirms it.
    pub(crate) fn answer_members(&self, call: Call, now: Time, fx: &mut Effects) {
        let membership = self.raft.membership();
        let progress = |member: &Listed| {
            let node = member.node;
            let matched = self.raft.progress(node).unwrap_or_default();
            MemberProgress {
                member: MemberRow {
                    node,
                    incarnation: member.incarnation,
                    is_voter: member.is_voter,
                    peer_address: self.peer_address(node),
                    client_address: self.client_address(node),
                },
                is_heard: self.raft.is_heard(node, now),
                matched: if node == self.config.node { self.raft.durable() } else { matched },
            }
        };
        let rows: Vec<MemberProgress<'_>> = membership.members().iter().map(progress).collect();
        let (leader, leader_address) = self.leader();
        let own = self.configured(self.config.node);
        let view = MembersView {
            node: self.config.node,
            incarnation: self.config.incarnation,
            peer_address: own.map_or("", |member| member.peer_address.as_str()),
            client_address: own.map_or("", |member| member.client_address.as_str()),
            cells: self.config.cells,
            shards: self.config.shards,
            leader,
            leader_address,
            last: self.raft.last_index(),
            is_changing: self.raft.is_membership_changing(),
            node_max: membership.node_max(),
            members: Rows::Slice(&rows),
        };
        self.answer(call, &Reply::Members(view), fx);
    }

    /// The leader is asked to change who the members are.
    pub(crate) fn on_change_members(
        &mut self,
        call: Call,
        change: &MemberChange<'_>,
        now: Time,
        fx: &mut Effects,
    ) {
        if self.is_stopping {
            return self.refuse(call, Status::ShuttingDown, "this node is stopping; ask another member", fx);
        }
        if !self.raft.is_serving() || self.raft.is_transferring() {
            let detail = "leadership is moving, or has moved a moment ago";
            return self.refuse(call, Status::NoQuorum, detail, fx);
        }
        match self.raft.change_members(change, &self.config.members, now, fx) {
            Ok(Some(index)) => self.calls.add_member_change(Proposed { index, call }),
            Ok(None) => self.ask(call, Question::Members, fx),
            Err(objection) => {
                let is_about_request = objection.is_about_request();
                let status = if is_about_request { Status::Invalid } else { Status::Conflict };
                self.refuse(call, status, &objection.to_string(), fx);
            }
        }
    }
}
