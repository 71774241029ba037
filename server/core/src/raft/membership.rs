//! Members that come and go (Raft dissertation, sections 4.1 and 4.2; ARCHITECTURE section 4.1, "Membership").
//!
//! Invariant: the newest list in the log counts from its append on, and with its entry it is taken back; one voter is
//! added or removed at a time, by a leader that has committed an entry of its own term and nothing else of this kind on
//! its way; nothing is begun that would leave the cell without a majority that is heard. Whoever is not in the list
//! that counts may speak, because this node's may be old, and gets neither entries nor a say. Deliberately absent: the
//! list itself, and who else is told of it.

use lockstep_wire::entry::Command;
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::peer::PeerRefusal;
use lockstep_wire::{Incarnation, LogIndex, MemberChange, Members, NodeId};

use super::{Peer, Raft, RaftEvent, Role};
use crate::cell::Member;
use crate::members::{Listed, MemberObjection, Membership};
use crate::{Effects, Time};

/// Entries that a learner may lack and yet be promoted, and a follower and yet be given the office: what a leader makes in a
/// moment.
pub(super) const LAG_MAX: u64 = 4_096;
/// Nodes that are not members and may say who they are nevertheless.
const GUESTS_MAX: usize = 16;

impl Raft {
    /// The members, as the newest list in the log says.
    pub fn membership(&self) -> &Membership {
        self.memberships.current()
    }

    /// Whether the newest list is not known to be committed.
    pub fn is_membership_changing(&self) -> bool {
        self.memberships.is_changing()
    }

    /// What is known of a node: the newest list that it is in, or was in until lately.
    pub fn listed(&self, node: NodeId) -> Option<&Listed> {
        self.memberships.iter().find_map(|list| list.get(node))
    }

    /// Which life of its directory a node has in every list that can still come to count: that of a committed list, or of
    /// one in which it votes, because no leader promotes a learner before the list that added it is committed. To a leader
    /// its own list is certain: no other one counts while it leads.
    pub(super) fn certain_life(&self, node: NodeId) -> Option<Incarnation> {
        let voter = self.memberships.iter().find_map(|list| list.get(node).filter(|member| member.is_voter));
        let own = || self.memberships.current().get(node).filter(|_| self.role == Role::Leader);
        voter.or_else(own).or_else(|| self.memberships.committed().get(node)).map(|member| member.incarnation)
    }

    /// The other nodes that this one talks to: members, those whose removal is not certain, and guests.
    pub fn peers(&self) -> impl Iterator<Item = NodeId> {
        self.peers.iter().map(|peer| peer.node)
    }

    pub(super) fn is_voter(&self, node: NodeId) -> bool {
        self.memberships.current().is_voter(node)
    }

    pub(super) fn majority(&self) -> usize {
        self.memberships.current().majority()
    }

    /// The other voters.
    pub(super) fn voters(&self) -> impl Iterator<Item = &Peer> {
        let counts = |peer: &&Peer| peer.is_voter || peer.is_member && mutant::is(Mutant::LearnerCounts);
        self.peers.iter().filter(counts)
    }

    /// Changes who the members are; nothing is done when they are so already. Tells where the entry is. `configured` says
    /// where those serve that are listed without addresses.
    ///
    /// # Errors
    /// Why not.
    pub fn change_members(
        &mut self,
        change: &MemberChange<'_>,
        configured: &[Member],
        now: Time,
        fx: &mut Effects,
    ) -> Result<Option<LogIndex>, MemberObjection> {
        assert!(self.is_serving(), "only a leader that has committed an entry of its term changes members");
        if self.memberships.is_changing() {
            return Err(MemberObjection::ChangeUnderWay);
        }
        let next = self.memberships.current().changed(change, configured)?;
        if next == *self.memberships.current() {
            return Ok(None);
        }
        self.object_to(change, &next, now)?;
        let mut payload = Vec::new();
        next.with_rows(|members| Command::Members(*members).encode(&mut payload));
        let index = self.propose(now, fx, |out| out.extend_from_slice(&payload));
        index.map(Some).ok_or(MemberObjection::ChangeUnderWay)
    }

    /// Why a change that could be made must not be made now.
    fn object_to(
        &self,
        change: &MemberChange<'_>,
        next: &Membership,
        now: Time,
    ) -> Result<(), MemberObjection> {
        match change {
            MemberChange::AddLearner { .. } | MemberChange::SetAddresses { .. } => return Ok(()),
            MemberChange::Promote { node } => {
                let progress = self.peer_at(*node).filter(|at| self.is_reachable(*at));
                let progress = progress.map(|at| &self.peers[at].progress);
                let Some(progress) = progress.filter(|_| self.is_heard(*node, now)) else {
                    return Err(MemberObjection::Silent(*node));
                };
                let lag = self.log.last_index().0 - progress.matched.0;
                if progress.matched == LogIndex(0) {
                    return Err(MemberObjection::NotAnswered(*node));
                }
                if lag > LAG_MAX || progress.waits_for_snapshot() {
                    return Err(MemberObjection::NotCaughtUp { node: *node, lag });
                }
            }
            MemberChange::Remove { .. } => {}
        }
        next.must_be_heard(|node| self.is_heard(node, now))?;
        // Last, because a hand-over is worth while only if the removal can follow.
        let node = self.config.node;
        if *change == (MemberChange::Remove { node }) { Err(MemberObjection::Leads(node)) } else { Ok(()) }
    }

    /// Whether a node is this one or is linked with it as that member and, if this one leads, was heard in this term and
    /// within an election timeout. Nobody but the leader hears from all.
    pub fn is_heard(&self, node: NodeId, now: Time) -> bool {
        let is_heard = |at: usize| {
            let peer = &self.peers[at];
            self.role != Role::Leader || (peer.progress.is_heard && !self.is_silent(peer, now))
        };
        node == self.config.node || self.peer_at(node).is_some_and(|at| self.is_reachable(at) && is_heard(at))
    }

    /// The entry at `index`, which was just appended, may be a list of members.
    pub(super) fn note_members(&mut self, index: LogIndex, now: Time) {
        let payload = self.log.payload(index).expect("an entry is in memory when it is made");
        if let Some(members) = Members::in_entry(payload) {
            let members = members.expect("a list that cannot be read was not appended");
            let list = Membership::of(&members);
            self.memberships.push(index, list);
            self.on_members_changed(now);
            if self.role == Role::Leader {
                self.are_farewells_due |= mutant::is(Mutant::FarewellBeforeCommit);
                // Whom a round waited for may have no say any more, and nobody else will answer.
                self.count_answers();
            }
        }
    }

    pub(super) fn truncate_members(&mut self, first: LogIndex, now: Time) {
        if self.memberships.truncate_from(first) {
            self.on_members_changed(now);
        }
    }

    /// The state of a snapshot through `index` has taken the place of this node's.
    pub(super) fn install_members(
        &mut self,
        index: LogIndex,
        list: Option<Membership>,
        is_log_kept: bool,
        now: Time,
    ) {
        if !mutant::is(Mutant::MembershipKeptAtInstall) {
            self.memberships.install(index, list, is_log_kept);
            self.on_members_changed(now);
        }
    }

    /// Another list counts, or it is known who the members were at the birth: peers are made of it anew. What is known
    /// of those who stay is kept.
    pub(super) fn on_members_changed(&mut self, now: Time) {
        let mut former = std::mem::take(&mut self.peers);
        let mut nodes: Vec<NodeId> = self
            .memberships
            .iter()
            .flat_map(|list| list.members().iter().map(|member| member.node))
            .collect();
        nodes.extend(former.iter().filter(|peer| peer.is_linked).map(|peer| peer.node));
        if !self.is_born() {
            nodes.extend(self.config.members.iter());
        }
        nodes.sort_unstable();
        nodes.dedup();
        nodes.retain(|node| *node != self.config.node);
        for node in nodes {
            let mut peer = match former.iter().position(|peer| peer.node == node) {
                Some(at) => former.swap_remove(at),
                None => {
                    let mut peer = Peer::new(node);
                    peer.is_linked = self.linked.contains(&node);
                    peer.progress.restart(self.log.last_index(), now);
                    peer
                }
            };
            let list = self.memberships.current();
            peer.is_voter = list.is_voter(node);
            let was_member = std::mem::replace(&mut peer.is_member, list.get(node).is_some());
            if peer.is_member && !was_member {
                peer.progress.restart(self.log.last_index(), now);
            }
            let objection = peer.hello.and_then(|hello| self.objection_to(node, hello.incarnation));
            if objection.is_some() {
                // The member itself may stand at the other end of the link to it by now: it is asked anew.
                peer.hello = None;
                peer.refused = None;
            }
            self.peers.push(peer);
        }
        self.leading.installing = self
            .leading
            .installing
            .filter(|installing| self.memberships.current().get(installing.to()).is_some());
        self.events.push_back(RaftEvent::MembersChanged);
    }

    /// The log is committed further: a list may be certain now, and with it who is a member no more.
    pub(super) fn commit_members(&mut self, now: Time) {
        if self.memberships.commit(self.committed) {
            self.are_farewells_due = true;
            self.on_members_changed(now);
        }
    }

    /// Tells those who were removed for certain; they ask nothing any more.
    pub(super) fn say_farewells(&mut self, fx: &mut Effects) {
        if !std::mem::take(&mut self.are_farewells_due) {
            return;
        }
        for at in 0..self.peers.len() {
            let node = self.peers[at].node;
            if self.is_surely_removed(node) && self.peers[at].hello.take().is_some() {
                self.peers[at].refused = Some(PeerRefusal::Removed);
                self.refuse(node, PeerRefusal::Removed, fx);
            }
        }
    }

    pub(super) fn is_surely_removed(&self, node: NodeId) -> bool {
        if self.role == Role::Leader && mutant::is(Mutant::FarewellBeforeCommit) {
            return self.memberships.current().has_removed(node);
        }
        self.memberships.committed().has_removed(node) && self.listed(node).is_none()
    }

    /// Another member says that this node was removed: that is certain, and for ever.
    pub(super) fn on_removed(&mut self, now: Time) {
        if !self.is_removed {
            self.step_down("this node was removed from the cell", now);
            self.is_removed = true;
            // Whoever asks here is not sent to somebody who may be gone, too.
            self.leader = None;
            self.election_at = Time::NEVER;
            self.events.push_back(RaftEvent::Removed);
        }
    }

    /// A node that this one does not know has linked up; it may be a member by a list that is not here yet.
    pub(super) fn add_guest(&mut self, node: NodeId) -> Option<usize> {
        if node == self.config.node || node == NodeId(0) {
            return None;
        }
        if self.peers.iter().filter(|peer| self.is_guest(peer.node)).count() >= GUESTS_MAX {
            // One that only spoke once, over a link that never came up, makes room.
            let idle = self.peers.iter().find(|peer| self.is_guest(peer.node) && !peer.is_linked)?.node;
            self.peers.retain(|peer| peer.node != idle);
        }
        let at = self.peers.partition_point(|peer| peer.node < node);
        let mut guest = Peer::new(node);
        guest.is_linked = self.linked.contains(&node);
        self.peers.insert(at, guest);
        self.events.push_back(RaftEvent::MembersChanged);
        Some(at)
    }

    /// The link to a node that nothing else is known of broke.
    pub(super) fn drop_if_guest(&mut self, at: usize) {
        if self.is_guest(self.peers[at].node) {
            self.peers.remove(at);
            self.events.push_back(RaftEvent::MembersChanged);
        }
    }

    /// Whether nothing names a node: no list, and before the birth not the configuration either.
    fn is_guest(&self, node: NodeId) -> bool {
        let is_configured = !self.is_born() && self.config.members.contains(&node);
        self.listed(node).is_none() && !is_configured
    }

    /// Whether this node may stand for election.
    pub(super) fn may_campaign(&self) -> bool {
        !self.is_removed && self.is_voter(self.config.node) && self.role != Role::Leader
    }
}
