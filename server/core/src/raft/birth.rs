//! A cell is born once, outside Raft: who its members are, and which life of each (ARCHITECTURE section 4.1).
//!
//! Invariant: a member stores one manifest ever; nobody votes before every member has stored it; and only
//! the life of a member that the manifest names is listened to. The lowest member says that a cell is born
//! only once its own disk says so: while it does not, nothing was ever acknowledged. A node that joins later is not in the
//! manifest; it stores it as everybody does, so that it is bound to the cell, and a member by the log. Deliberately absent:
//! lists of members that the log has.

use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::peer::{CellHello, Manifest, MemberIncarnation, PeerMessage, PeerRefusal};
use lockstep_wire::{BirthId, CellId, Incarnation, LogIndex, NodeId, Rows, Term};

use super::durability::Deferred;
use super::origin::hash;
use super::restore::{Restored, StoredManifest};
use super::{Raft, RaftConfig, RaftEvent};
use crate::members::Membership;
use crate::{Effect, Effects, Lane, RecordHead, RecordKind, Report, Span, Time};

/// Hellos from before the birth that a link may bring without anybody being told: what a cut link held back comes
/// all at once.
const HELLOS_FROM_BEFORE_MAX: u8 = 8;
/// How often a node that can do nothing without others says what it waits for.
const WAITING_REPORT: Span = Span::from_ms(10_000);

/// How far this node's cell has been born.
#[derive(Debug)]
pub(super) struct Birth {
    manifest: Option<StoredManifest>,
    /// [`Origin::half_hash`](super::origin::Origin::half_hash); of no use once there is a manifest.
    origin: u32,
    is_manifest_durable: bool,
    /// A record that says so is appended; not yet durable at the lowest member, perhaps.
    is_born_appended: bool,
    is_born: bool,
    hello_at: Time,
    report_at: Time,
    /// When a node that is to join says that it waits to be added, if it does; in each life once.
    say_joined_at: Time,
}

impl Birth {
    pub(super) fn new(restored: &Restored, now: Time) -> Birth {
        let (manifest, is_born) = (restored.manifest.clone(), restored.is_born);
        Birth {
            origin: restored.origin.half_hash(),
            is_manifest_durable: manifest.is_some(),
            manifest,
            is_born_appended: is_born,
            is_born,
            hello_at: now,
            report_at: now + WAITING_REPORT,
            say_joined_at: if is_born { now + WAITING_REPORT } else { Time::NEVER },
        }
    }

    pub(super) fn is_born(&self) -> bool {
        self.is_born
    }

    #[cfg(test)]
    pub(super) fn id(&self) -> Option<BirthId> {
        self.manifest.as_ref().map(|manifest| manifest.birth)
    }

    /// Whether it is known who the members were at the birth.
    pub(super) fn is_decided(&self) -> bool {
        self.manifest.is_some()
    }

    /// Why this node cannot be a member of the cell that its own disk knows.
    pub(super) fn defect(&self, config: &RaftConfig) -> Option<String> {
        let manifest = self.manifest.as_ref()?;
        let (cell, node) = (config.cell, config.node);
        (manifest.has(node) && !manifest.names(node, config.incarnation)).then(|| {
            format!(
                "cell {cell}: the log of node {node} belongs to another formatting of its data directory; \
                 restore the matching superblock; without it this replica is lost"
            )
        })
    }
}

impl StoredManifest {
    fn has(&self, node: NodeId) -> bool {
        self.members.iter().any(|member| member.node == node)
    }

    fn names(&self, node: NodeId, incarnation: lockstep_wire::Incarnation) -> bool {
        if mutant::is(Mutant::WipedNodeVotes) {
            return self.has(node);
        }
        self.members.contains(&MemberIncarnation { node, incarnation })
    }
}

pub(super) fn members_hash(members: &[NodeId]) -> u64 {
    hash(members.iter().flat_map(|node| node.0.to_le_bytes()))
}

/// The sentence for whoever operates `node`, which `cell` will not listen to.
pub(crate) fn refusal_sentence(cell: CellId, node: NodeId, reason: PeerRefusal) -> String {
    match reason {
        PeerRefusal::OtherIncarnation => format!(
            "cell {cell}: another directory than the member's runs under the id of node {node}: it was formatted \
             again, or is a stray beside the member. It does not know what the member promised, so it may not vote \
             under this id; stop it, and start the member with its old data directory if there is one (if the cell \
             is still unborn, format all members again instead; if the cell was restored, one of the two is of the \
             old cell: stop that one for good)"
        ),
        PeerRefusal::OtherMembers => format!(
            "cell {cell}: node {node} is configured with another list of members; make the lists the same (a \
             node that is to be added to a cell needs `join = true`)"
        ),
        PeerRefusal::OtherBirth => format!(
            "cell {cell}: node {node} does not have the manifest of this cell's birth: its data directory is \
             of another cluster or was rolled back; start it with the right one"
        ),
        PeerRefusal::Unborn => format!(
            "cell {cell} is unborn: node {node} was formatted again before the birth was complete; nothing \
             was ever acknowledged, so format all members again"
        ),
        PeerRefusal::NotMember => {
            format!(
                "cell {cell}: node {node} is not a member; check its id and its list of members. A new node needs \
                 `join = true` in its configuration, then `lockstep members add` adds it"
            )
        }
        PeerRefusal::Removed => format!(
            "cell {cell}: node {node} was removed from the cell for ever; stop it, and delete its data directory. To use \
             the machine again, format it as a node with a new id and add that"
        ),
        PeerRefusal::OtherOrigin => format!(
            "cell {cell} is unborn: node {node} begins with another state; all members have to be restored from the \
             same backup with the same epoch, or none: format and restore them again, all alike"
        ),
    }
}

impl Raft {
    /// Who gives the birth: the lowest of those that the cell is born with.
    fn lowest(&self) -> NodeId {
        self.birth.manifest.as_ref().map_or(self.config.members[0], |manifest| manifest.members[0].node)
    }

    fn is_lowest(&self) -> bool {
        !self.is_waiting_to_join() && self.lowest() == self.config.node
    }

    pub(super) fn send_hello(&mut self, at: usize, now: Time, fx: &mut Effects) {
        if self.peers[at].refused == Some(PeerRefusal::Removed) {
            // Said before there was a way to tell it.
            return self.refuse(self.peers[at].node, PeerRefusal::Removed, fx);
        }
        let stored = self.birth.manifest.as_ref().filter(|_| self.birth.is_manifest_durable);
        let hello = CellHello {
            incarnation: self.config.incarnation,
            members_hash: match stored {
                Some(_) => members_hash(&self.config.members),
                None => members_hash(&self.config.members) ^ u64::from(self.birth.origin),
            },
            birth: stored.map(|manifest| manifest.birth),
            is_born: self.birth.is_born,
        };
        self.peers[at].hello_sent_at = Some(now);
        fx.send(self.peers[at].node, Lane::Control, self.config.cell, &PeerMessage::CellHello(hello));
    }

    pub(super) fn on_hello(&mut self, from: NodeId, hello: &CellHello, now: Time, fx: &mut Effects) {
        let known = self.peer_at(from).or_else(|| if self.is_born() { self.add_guest(from) } else { None });
        let Some(at) = known else {
            return self.refuse(from, PeerRefusal::NotMember, fx);
        };
        if self.is_waiting_to_join() && hello.birth.is_none() {
            // Neither knows the cell: the other one may, when it is born.
            return;
        }
        let said = self.peers[at].hello;
        if hello.birth.is_none() && said.is_some_and(|said| said.birth.is_some()) {
            // From before the manifest; it was overtaken.
            return;
        }
        if let Some(reason) = self.misfit(from, hello) {
            self.peers[at].hello = None;
            self.peers[at].refused = Some(reason);
            return self.refuse(from, reason, fx);
        }
        if hello.birth.is_none() && self.is_born() && !mutant::is(Mutant::WipedNodeVotes) {
            return match self.birth.manifest.as_ref().is_some_and(|manifest| manifest.has(from)) {
                true => self.on_hello_from_before(at, fx),
                // It joins, and must know what; before the birth it was none of the members. It takes a manifest from nobody
                // who has not said hello since the birth.
                false => {
                    self.peers[at].hello = None;
                    self.peers[at].refused = None;
                    self.send_hello(at, now, fx);
                    self.send_manifest_to(from, fx);
                }
            };
        }
        // Whoever says hello again has not got the answer.
        let sent_at = self.peers[at].hello_sent_at;
        let is_again = self.peers[at].hello.is_some();
        if is_again && sent_at.is_none_or(|sent| now.since(sent) >= self.config.election_min) {
            self.send_hello(at, now, fx);
        }
        self.peers[at].hello = Some(*hello);
        self.peers[at].refused = None;
        self.birth_on_hello(at, hello, now, fx);
        if !is_again {
            self.on_accepted(at, now);
        }
    }

    /// What in a hello does not fit this node's manifest or configuration.
    fn misfit(&self, from: NodeId, hello: &CellHello) -> Option<PeerRefusal> {
        let Some(manifest) = &self.birth.manifest else {
            if hello.birth.is_some() {
                return None;
            }
            let is_known = self.config.members.contains(&from);
            return if is_known { self.misfit_of_hash(hello) } else { Some(PeerRefusal::NotMember) };
        };
        if hello.birth.is_some_and(|birth| birth != manifest.birth) {
            return Some(PeerRefusal::OtherBirth);
        }
        if self.is_surely_removed(from) {
            // For certain, and for good, only to the one that was: another may have been formatted under its id.
            let was_member = hello.birth.is_some();
            return Some(if was_member { PeerRefusal::Removed } else { PeerRefusal::NotMember });
        }
        self.objection_to(from, hello.incarnation)
    }

    /// Whether the members of a hello are those of this node, and both begin with the same state.
    fn misfit_of_hash(&self, hello: &CellHello) -> Option<PeerRefusal> {
        let difference = hello.members_hash ^ members_hash(&self.config.members);
        if difference >> 32 != 0 {
            return Some(PeerRefusal::OtherMembers);
        }
        (difference != u64::from(self.birth.origin)).then_some(PeerRefusal::OtherOrigin)
    }

    /// A hello from before the manifest, and the cell is born: the birth overtook it, or the member's directory was
    /// rolled back. Of a member that was let in on this link it is stale; another one is not let in by it, and is
    /// said hello to until it says more. Whoever has nothing more to say is named after a while.
    fn on_hello_from_before(&mut self, at: usize, fx: &mut Effects) {
        let peer = &mut self.peers[at];
        if peer.hello.is_some() {
            return;
        }
        peer.hellos_from_before = peer.hellos_from_before.saturating_add(1);
        if peer.hellos_from_before > HELLOS_FROM_BEFORE_MAX {
            let node = peer.node;
            let reason = refusal_sentence(self.config.cell, node, PeerRefusal::OtherBirth);
            fx.push(Effect::Report(Report::Refused { peer: node, reason }));
        }
    }

    /// Why whoever says that it is this node, with this life of its directory, is not the one that the cell knows: for
    /// certain, because what a list that may be taken back says of a learner keeps nobody out. A leader listens to nobody
    /// but the one that its list names, so that nothing of another life counts for that.
    pub fn objection_to(&self, node: NodeId, incarnation: Incarnation) -> Option<PeerRefusal> {
        // Before the manifest nobody's life is known, though lists have blank ones.
        let known = self.certain_life(node).filter(|_| self.birth.is_decided());
        if known.is_none_or(|life| life == incarnation) || mutant::is(Mutant::WipedNodeVotes) {
            return None;
        }
        let is_surely_unborn = self.is_lowest() && !self.birth.is_born_appended;
        Some(if is_surely_unborn { PeerRefusal::Unborn } else { PeerRefusal::OtherIncarnation })
    }

    pub(super) fn refuse(&mut self, peer: NodeId, reason: PeerRefusal, fx: &mut Effects) {
        fx.send(peer, Lane::Control, self.config.cell, &PeerMessage::Refused { reason });
        let reason = refusal_sentence(self.config.cell, peer, reason);
        fx.push(Effect::Report(Report::Refused { peer, reason }));
    }

    pub(super) fn on_refused(&mut self, from: NodeId, reason: PeerRefusal, now: Time, fx: &mut Effects) {
        let Some(at) = self.peer_at(from) else { return };
        // A node that waits to join asks again: the cell may be not born yet.
        self.peers[at].is_refusing = !self.is_waiting_to_join();
        if reason == PeerRefusal::Removed && self.birth.is_decided() {
            self.on_removed(now);
        }
        let sentence = refusal_sentence(self.config.cell, self.config.node, reason);
        let reason = format!("refused by node {from}: {sentence}");
        fx.push(Effect::Report(Report::Refused { peer: from, reason }));
    }

    fn birth_on_hello(&mut self, at: usize, hello: &CellHello, now: Time, fx: &mut Effects) {
        let Some(manifest) = &self.birth.manifest else {
            return self.make_manifest_if_all_known(now, fx);
        };
        let birth = manifest.birth;
        match hello.birth {
            None => self.send_manifest(at, fx),
            Some(_) if self.birth.is_born && !hello.is_born => {
                fx.send(self.peers[at].node, Lane::Control, self.config.cell, &PeerMessage::Born { birth });
            }
            Some(_) if hello.is_born && !self.is_lowest() => self.be_born(birth, now, fx),
            Some(_) => {
                self.peers[at].is_confirmed = true;
                self.finish_if_all_confirmed(now, fx);
            }
        }
    }

    /// The lowest member, once it knows everybody's life, decides who the members are.
    fn make_manifest_if_all_known(&mut self, now: Time, fx: &mut Effects) {
        // Only a lowest member that was wiped meets others that have a manifest; they will say so.
        let is_unborn = |peer: &super::Peer| peer.hello.is_some_and(|hello| hello.birth.is_none());
        if !self.is_lowest() || self.birth.manifest.is_some() || !self.born_with().all(is_unborn) {
            return;
        }
        let own = MemberIncarnation { node: self.config.node, incarnation: self.config.incarnation };
        let others = self.born_with().filter_map(|peer| {
            peer.hello.map(|hello| MemberIncarnation { node: peer.node, incarnation: hello.incarnation })
        });
        let members = std::iter::once(own).chain(others).collect();
        self.store_manifest(StoredManifest { birth: self.config.birth_id, members }, now, fx);
    }

    fn store_manifest(&mut self, manifest: StoredManifest, now: Time, fx: &mut Effects) {
        assert!(self.birth.manifest.is_none(), "a member stores one manifest ever");
        let append = self.durability.append(now);
        let head = RecordHead { kind: RecordKind::Manifest, term: Term(0), index: LogIndex(0) };
        let body = Manifest { birth: manifest.birth, members: Rows::Slice(&manifest.members) };
        fx.append(append, head, |out| body.put(out));
        self.durability.defer(append, Deferred::Manifest);
        self.memberships.begin(Membership::of_birth(&manifest.members));
        self.birth.manifest = Some(manifest);
        self.on_members_changed(now);
    }

    /// The others that the cell is born with, or is to be.
    fn born_with(&self) -> impl Iterator<Item = &super::Peer> {
        let manifest = self.birth.manifest.as_ref();
        self.peers.iter().filter(move |peer| match manifest {
            Some(manifest) => manifest.has(peer.node),
            None => self.config.members.contains(&peer.node),
        })
    }

    /// Whether this node has yet to hear of the cell that it is to join.
    fn is_waiting_to_join(&self) -> bool {
        self.config.is_joining && self.birth.manifest.is_none()
    }

    /// Whether this node knows the cell that it is to join, and is in none of its lists yet.
    fn is_waiting_to_be_added(&self) -> bool {
        let list = self.memberships.current();
        let node = self.config.node;
        self.config.is_joining && !self.is_removed && list.get(node).is_none() && !list.has_removed(node)
    }

    /// Before the birth it is for those that the cell is born with: whoever joins takes it as a word that the cell is born.
    fn send_manifest(&mut self, at: usize, fx: &mut Effects) {
        let node = self.peers[at].node;
        let is_meant = self.birth.manifest.as_ref().is_some_and(|manifest| manifest.has(node))
            || mutant::is(Mutant::ManifestBeforeBirth);
        if is_meant && self.is_lowest() && self.birth.is_manifest_durable && self.peers[at].hello.is_some() {
            self.send_manifest_to(node, fx);
        }
    }

    fn send_manifest_to(&self, to: NodeId, fx: &mut Effects) {
        let manifest = self.birth.manifest.as_ref().expect("what is sent is there");
        let message = Manifest { birth: manifest.birth, members: Rows::Slice(&manifest.members) };
        fx.send(to, Lane::Control, self.config.cell, &PeerMessage::Manifest(message));
    }

    pub(super) fn on_manifest(&mut self, from: NodeId, manifest: &Manifest<'_>, now: Time, fx: &mut Effects) {
        let Some(at) = self.peer_at(from) else { return };
        let Some(hello) = self.peers[at].hello else { return };
        if self.is_waiting_to_join() {
            let offered = StoredManifest::of(manifest);
            // One that names this node is of a birth that it has lost all memory of.
            return match offered.has(self.config.node) {
                true => self.refuse(from, PeerRefusal::OtherIncarnation, fx),
                false => self.store_manifest(offered, now, fx),
            };
        }
        if from != self.lowest() {
            return;
        }
        if let Some(known) = &self.birth.manifest {
            if known.birth != manifest.birth {
                self.refuse(from, PeerRefusal::OtherBirth, fx);
            } else if self.birth.is_manifest_durable {
                self.send_manifest_stored(fx);
            }
            return;
        }
        let offered = StoredManifest::of(manifest);
        let are_members_right =
            offered.members.iter().map(|member| member.node).eq(self.config.members.iter().copied());
        if !are_members_right {
            self.refuse(from, PeerRefusal::OtherMembers, fx);
        } else if !offered.names(self.config.node, self.config.incarnation)
            || !offered.names(from, hello.incarnation)
        {
            self.refuse(from, PeerRefusal::OtherIncarnation, fx);
        } else {
            self.store_manifest(offered, now, fx);
        }
    }

    pub(super) fn on_manifest_durable(&mut self, now: Time, fx: &mut Effects) {
        self.birth.is_manifest_durable = true;
        if self.birth.manifest.as_ref().is_some_and(|manifest| !manifest.has(self.config.node)) {
            return self.join(now, fx);
        }
        if !self.is_lowest() {
            return self.send_manifest_stored(fx);
        }
        for at in 0..self.peers.len() {
            self.send_manifest(at, fx);
        }
        self.finish_if_all_confirmed(now, fx);
    }

    fn send_manifest_stored(&mut self, fx: &mut Effects) {
        let birth = self.birth.manifest.as_ref().expect("it is stored").birth;
        let message = PeerMessage::ManifestStored { birth };
        fx.send(self.lowest(), Lane::Control, self.config.cell, &message);
    }

    pub(super) fn on_manifest_stored(&mut self, from: NodeId, birth: BirthId, now: Time, fx: &mut Effects) {
        let Some(at) = self.peer_at(from) else { return };
        let is_ours = self.birth.manifest.as_ref().is_some_and(|manifest| manifest.birth == birth);
        if !is_ours || self.peers[at].hello.is_none() {
            return;
        }
        self.peers[at].is_confirmed = true;
        if self.birth.is_born {
            fx.send(from, Lane::Control, self.config.cell, &PeerMessage::Born { birth });
        } else {
            self.finish_if_all_confirmed(now, fx);
        }
    }

    /// The lowest member stores that the cell is born once everybody has the manifest.
    fn finish_if_all_confirmed(&mut self, now: Time, fx: &mut Effects) {
        if self.birth.is_born_appended || !self.is_lowest() || !self.birth.is_manifest_durable {
            return;
        }
        if self.born_with().all(|peer| peer.is_confirmed) {
            let append = self.append_born(now, fx);
            self.durability.defer(append, Deferred::Born);
        }
    }

    /// The manifest of a cell that was born without this node is durable: it is bound to it, and says so.
    fn join(&mut self, now: Time, fx: &mut Effects) {
        let birth = self.birth.manifest.as_ref().expect("it is durable").birth;
        self.be_born(birth, now, fx);
        for at in (0..self.peers.len()).filter(|at| self.peers[*at].is_linked).collect::<Vec<_>>() {
            self.send_hello(at, now, fx);
        }
    }

    fn append_born(&mut self, now: Time, fx: &mut Effects) -> crate::AppendId {
        self.birth.is_born_appended = true;
        let append = self.durability.append(now);
        let head = RecordHead { kind: RecordKind::Born, term: Term(0), index: LogIndex(0) };
        fx.append(append, head, |_| {});
        append
    }

    pub(super) fn on_born_durable(&mut self, now: Time, fx: &mut Effects) {
        let birth = self.birth.manifest.as_ref().expect("a cell is born by its manifest").birth;
        if self.birth.is_born {
            return;
        }
        self.birth.is_born = true;
        self.events.push_back(RaftEvent::Born);
        for peer in self.peers.iter().filter(|peer| peer.is_linked && peer.hello.is_some()) {
            fx.send(peer.node, Lane::Control, self.config.cell, &PeerMessage::Born { birth });
        }
        // Somebody has to be first, and everybody's link is up.
        self.start_pre_vote(now, fx);
    }

    pub(super) fn on_born(&mut self, from: NodeId, birth: BirthId, now: Time, fx: &mut Effects) {
        if self.peer_at(from).is_some_and(|at| self.peers[at].hello.is_some()) {
            self.be_born(birth, now, fx);
        }
    }

    /// Another member knows that the cell is born. The lowest believes nobody but its own disk.
    fn be_born(&mut self, birth: BirthId, now: Time, fx: &mut Effects) {
        let is_ours = self.birth.manifest.as_ref().is_some_and(|manifest| manifest.birth == birth);
        if !is_ours || !self.birth.is_manifest_durable || self.birth.is_born || self.is_lowest() {
            return;
        }
        if !self.birth.is_born_appended {
            self.append_born(now, fx);
        }
        self.birth.is_born = true;
        self.birth.say_joined_at = now;
        self.events.push_back(RaftEvent::Born);
        self.arm_election(now);
    }

    /// Says hello again where no answer came, and what an unborn cell waits for.
    pub(super) fn tick_birth(&mut self, now: Time, fx: &mut Effects) {
        self.make_manifest_if_all_known(now, fx);
        self.finish_if_all_confirmed(now, fx);
        if now >= self.birth.hello_at {
            self.birth.hello_at = now + self.config.election_min;
            for at in 0..self.peers.len() {
                let sent_at = self.peers[at].hello_sent_at;
                let waited = sent_at.is_none_or(|sent| now.since(sent) >= self.config.election_min);
                if self.owes_hello(at) && waited {
                    self.send_hello(at, now, fx);
                }
            }
        }
        if self.is_waiting_for_others() && now >= self.birth.report_at {
            self.birth.report_at = now + WAITING_REPORT;
            match self.birth.is_born {
                true => self.report_missing(fx),
                false => self.report_unborn(fx),
            }
        }
        if now >= self.birth.say_joined_at {
            self.birth.say_joined_at = Time::NEVER;
            if self.is_waiting_to_be_added() {
                self.events.push_back(RaftEvent::WaitsToBeAdded);
            }
        }
    }

    /// For the birth, or for a leader that sends the state that was lost.
    fn is_waiting_for_others(&self) -> bool {
        !self.birth.is_born || (self.lacks_state() && self.leader.is_none() && !self.is_removed)
    }

    fn owes_hello(&self, at: usize) -> bool {
        let peer = &self.peers[at];
        let is_open = peer.hello.is_none() || !self.birth.is_born;
        peer.is_linked && peer.refused.is_none() && !peer.is_refusing && is_open
    }

    fn report_unborn(&mut self, fx: &mut Effects) {
        let lowest = self.lowest();
        if self.is_waiting_to_join() {
            return self.report_joining(lowest, fx);
        }
        let is_missing = |peer: &&super::Peer| match &self.birth.manifest {
            _ if !self.is_lowest() => peer.node == lowest,
            None => peer.hello.is_none(),
            Some(_) => !peer.is_confirmed,
        };
        let missing: Vec<NodeId> = self.born_with().filter(is_missing).map(|peer| peer.node).collect();
        if let Some((peer, reason)) = self.born_with().find_map(|peer| Some((peer.node, peer.refused?))) {
            let reason = refusal_sentence(self.config.cell, peer, reason);
            return fx.push(Effect::Report(Report::Refused { peer, reason }));
        }
        let Some(first) = missing.first() else { return };
        let names: Vec<String> = missing.iter().map(NodeId::to_string).collect();
        let reason = format!(
            "cell {} is unborn as far as this node knows: waiting for node {} to say who it is and to store the list of \
             members; if a member says that another directory than the member's runs under the id of this node, that is \
             why",
            self.config.cell,
            names.join(", ")
        );
        fx.push(Effect::Report(Report::Refused { peer: *first, reason }));
    }

    fn report_joining(&self, first: NodeId, fx: &mut Effects) {
        let reason = format!(
            "cell {}: this node is to join and has not met a member of a cell that is born; check that the members run and \
             that `nodes` says where",
            self.config.cell
        );
        fx.push(Effect::Report(Report::Refused { peer: first, reason }));
    }

    pub(super) fn birth_deadline(&self) -> Time {
        let hello = (0..self.peers.len()).any(|at| self.owes_hello(at));
        let hello_at = if hello || self.birth.manifest.is_none() { self.birth.hello_at } else { Time::NEVER };
        let report_at = if self.is_waiting_for_others() { self.birth.report_at } else { Time::NEVER };
        let joined_at = if self.config.is_joining { self.birth.say_joined_at } else { Time::NEVER };
        hello_at.min(report_at).min(joined_at)
    }
}
