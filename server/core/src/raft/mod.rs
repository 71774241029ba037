//! The Raft node of one cell, pure and sans-io (ARCHITECTURE sections 4.1 and 4.2).
//!
//! Invariant: an effect that comes out is safe to carry out at once; what depends on the disk waits in
//! `durability` until the disk has confirmed it, and nothing that proves leadership waits for a disk.
//! This file holds the state and says who deals with what: `birth` and `membership` with who the members are,
//! `election` with terms, votes and roles, `transfer` and `preference` with leaving on purpose, `replication` with
//! entries and what is committed, `install` with snapshots, `round` with proofs of leadership, `space` with full
//! disks. Deliberately absent: clocks, disks, sockets, randomness beyond the seed, and what an entry or a snapshot
//! says, lists of members aside.

mod birth;
mod durability;
mod election;
mod event;
mod install;
mod log;
mod membership;
mod origin;
mod preference;
mod progress;
mod replication;
mod restore;
mod round;
mod space;
#[cfg(test)]
mod tests;
mod transfer;

use std::collections::{BTreeSet, VecDeque};

use lockstep_wire::limit::MEMBERS_MAX;
use lockstep_wire::peer::{Beat, BeatKind, CellHello, PeerMessage, PeerRefusal};
use lockstep_wire::{BirthId, CellId, Incarnation, LogIndex, NodeId, RoundId, SnapshotId, Term};

use self::birth::Birth;
use self::durability::Durability;
use self::install::Installing;
use self::log::Log;
use self::progress::Progress;
use self::round::Rounds;
use self::transfer::Transfer;
use crate::members::MembershipHistory;
use crate::{AppendId, Effect, Effects, Halt, LogRead, RecordHead, RecordKind, SnapshotRead, Span, Time};

pub(crate) use self::birth::refusal_sentence;
pub use self::event::{Committed, RaftEvent};
pub use self::restore::Restored;
pub use self::round::Urgency;

/// What a node is told about itself, its cell and its patience.
#[derive(Clone, Debug)]
pub struct RaftConfig {
    /// The cell.
    pub cell: CellId,
    /// This node.
    pub node: NodeId,
    /// The nodes by rising id: the voters that the cell is born with, this node among them; of a node that joins, those
    /// that it looks for.
    pub members: Vec<NodeId>,
    /// This node was not there at the birth and waits to be added.
    pub is_joining: bool,
    /// The life of this node's data directory.
    pub incarnation: Incarnation,
    /// A fresh random id, used if this is the lowest member and the cell has yet to be born.
    pub birth_id: BirthId,
    /// How often a leader says that it leads.
    pub heartbeat: Span,
    /// The shortest silence of a leader that lets others try.
    pub election_min: Span,
    /// The longest one; also how long a leader goes on without a majority or without its disk.
    pub election_max: Span,
    /// What the lengths of those silences are drawn from, and nothing else.
    pub seed: u64,
    /// The payload of a leader's first entry.
    pub blank: Vec<u8>,
    /// Payload bytes kept in memory once they are applied and durable.
    pub cache_bytes_max: usize,
    /// Payload bytes on their way to one follower.
    pub inflight_bytes_max: usize,
    /// How long the member that should lead must have been well before it is given the office; 0 for never.
    pub preference: Span,
    /// The least time between the beginnings of two rounds that only keep-alives wait for.
    pub round_pace: Span,
}

impl RaftConfig {
    fn assert_sound(&self) {
        assert!(self.members.is_sorted_by(|a, b| a < b), "members come by rising id, each once");
        assert!(self.is_joining || self.members.contains(&self.node), "a node is a member of its cell");
        assert!(self.members.len() <= MEMBERS_MAX, "a cell has at most {MEMBERS_MAX} members");
        assert!(self.members.iter().all(|node| node.0 != 0), "node 0 is nobody");
        assert!(self.heartbeat < self.election_min, "a heartbeat comes before anybody gets impatient");
        assert!(self.election_min <= self.election_max, "the shortest silence is not the longest");
    }
}

/// What a node does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Follower,
    PreCandidate,
    Candidate,
    Leader,
}

/// Another member.
#[derive(Debug)]
struct Peer {
    node: NodeId,
    is_linked: bool,
    /// What it last said of itself on this link, if that fits what is known of it.
    hello: Option<CellHello>,
    /// Why what it said of itself does not fit, if that is so; what it says further is ignored.
    refused: Option<PeerRefusal>,
    /// It will not talk to this node.
    is_refusing: bool,
    /// How many hellos from before the birth it has said on this link since the cell was born.
    hellos_from_before: u8,
    hello_sent_at: Option<Time>,
    /// It has stored the manifest.
    is_confirmed: bool,
    /// The newest list has it, and as a voter.
    is_member: bool,
    is_voter: bool,
    /// It has voted for this candidate.
    has_voted: bool,
    progress: Progress,
}

impl Peer {
    fn new(node: NodeId) -> Peer {
        Peer {
            node,
            is_linked: false,
            hello: None,
            refused: None,
            is_refusing: false,
            hellos_from_before: 0,
            hello_sent_at: None,
            is_confirmed: false,
            is_member: false,
            is_voter: false,
            has_voted: false,
            progress: Progress::default(),
        }
    }
}

/// What only a leader has.
#[derive(Debug)]
struct Leading {
    rounds: Rounds,
    heartbeat_at: Time,
    blank_index: LogIndex,
    is_serving: bool,
    transfer: Option<Transfer>,
    installing: Option<Installing>,
    /// The place of the peer whose turn it is to get a snapshot.
    install_turn: usize,
    /// When the log was last committed further, or began to wait for that.
    commit_moved_at: Time,
    /// From when on it may leave its office for want of space.
    may_leave_at: Time,
    /// An operator put the office here.
    is_wished: bool,
    /// Since when the member that should lead could.
    preferred_well_since: Time,
}

/// The Raft node of one cell.
#[derive(Debug)]
pub struct Raft {
    config: RaftConfig,
    /// By rising id.
    peers: Vec<Peer>,
    /// The nodes that there are links to, peers or not.
    linked: BTreeSet<NodeId>,
    memberships: MembershipHistory,
    /// A list has become certain, and nobody was told yet.
    are_farewells_due: bool,
    /// This node is a member no more.
    is_removed: bool,
    birth: Birth,
    dice: election::Dice,

    term: Term,
    vote: Option<NodeId>,
    role: Role,
    leader: Option<NodeId>,
    election_at: Time,
    leader_heard_at: Time,
    /// The link to the leader broke since it was last heard.
    is_leader_link_broken: bool,
    /// Until then a failed pre-vote is repeated quickly: the leader's process is known to be gone.
    hurry_until: Time,
    /// No leader was heard and no vote was tried in this life of the process.
    is_fresh: bool,
    /// The leader asked this candidate to campaign.
    is_told_to_take_over: bool,
    /// It did because an operator wished it.
    is_take_over_wished: bool,

    log: Log,
    durability: Durability,
    committed: LogIndex,
    handed_out: LogIndex,
    /// The log is the same as that of this term's leader through here.
    verified: LogIndex,
    is_ack_due: bool,
    /// The newest snapshot that has its mark and, as far as is known, is whole.
    snapshot: Option<SnapshotId>,
    /// The one before it, which is kept for a while.
    older_snapshot: Option<SnapshotId>,
    /// Where the newest mark stands, durable or not.
    marked: LogIndex,
    /// The newest snapshot that has its mark, when neither it nor an older one is whole: this node has no state.
    missing: Option<SnapshotId>,
    missing_asked_at: Time,
    /// Where the one read of the log that is under way begins.
    reading: Option<LogIndex>,
    /// The place of the peer whose turn it is to have the log read for it.
    read_turn: usize,
    /// The disk of this node has no room for the next segment of its log.
    is_short_of_space: bool,
    /// The leader counts a time that would begin anew with another one.
    is_settled: bool,

    leading: Leading,
    stop: Option<transfer::Stop>,
    events: VecDeque<RaftEvent>,
    /// Why this node must not take part; said at the first occasion.
    defect: Option<String>,
}

impl Raft {
    /// A node as its records left it.
    ///
    /// # Panics
    /// When the configuration is not sound; whoever reads it from a file has checked it. When payloads were not kept for a
    /// snapshot that is not gone on from.
    pub fn new(config: RaftConfig, restored: Restored, now: Time) -> Raft {
        config.assert_sound();
        assert!(restored.has_payloads(), "what is to be applied is in memory");
        let through = restored.loaded.map_or(LogIndex(0), |snapshot| snapshot.index);
        let missing = restored.mark.filter(|_| restored.lacks_state());
        let memberships = restored.memberships(&config);
        let birth = Birth::new(&restored, now);
        // The list that the state had is lost with it: whoever is known from the birth, the log or the configuration.
        let listed = memberships.current().members().iter().map(|member| member.node);
        let is_alone = listed.chain(config.members.iter().copied()).all(|node| node == config.node);
        let alone_without_state = missing.filter(|_| is_alone && !config.is_joining).map(|missing| {
            format!(
                "cell {}: snapshot {missing} is damaged, and this node knows of no other member that has it. If the cell \
                 has others, put them under `nodes` in its configuration and start it again; if not, restore the cell \
                 from a backup",
                config.cell
            )
        });
        let mut raft = Raft {
            peers: Vec::new(),
            linked: BTreeSet::new(),
            memberships,
            are_farewells_due: false,
            is_removed: false,
            dice: election::Dice::new(config.seed),
            term: restored.term.max(restored.log.last_term()),
            vote: restored.vote,
            role: Role::Follower,
            leader: None,
            election_at: Time::NEVER,
            leader_heard_at: Time(0),
            is_leader_link_broken: true,
            hurry_until: Time(0),
            is_fresh: true,
            is_told_to_take_over: false,
            is_take_over_wished: false,
            durability: Durability::new(restored.log.last_index(), Span(config.election_min.0 / 16)),
            log: restored.log,
            committed: through,
            handed_out: through,
            verified: LogIndex(0),
            is_ack_due: false,
            snapshot: restored.loaded,
            older_snapshot: None,
            marked: restored.mark.map_or(LogIndex(0), |mark| mark.index),
            missing,
            missing_asked_at: Time(0),
            reading: None,
            read_turn: 0,
            is_short_of_space: false,
            is_settled: false,
            leading: Leading {
                rounds: Rounds::new(config.round_pace),
                heartbeat_at: Time::NEVER,
                blank_index: LogIndex(0),
                is_serving: false,
                transfer: None,
                installing: None,
                install_turn: 0,
                commit_moved_at: now,
                may_leave_at: now,
                is_wished: false,
                preferred_well_since: now,
            },
            stop: None,
            events: VecDeque::new(),
            defect: birth.defect(&config).or(alone_without_state),
            birth,
            config,
        };
        assert!(restored.term == raft.term, "entries are never newer than the term");
        raft.on_members_changed(now);
        if raft.is_born() {
            raft.arm_election(now);
            if raft.peers.is_empty() {
                raft.election_at = now;
            }
        }
        raft
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Time, fx: &mut Effects) {
        if let Some(reason) = self.defect.take() {
            fx.push(Effect::Halt(Halt { reason }));
        }
        self.tick_birth(now, fx);
        if self.role == Role::Leader {
            self.tick_leader(now, fx);
        } else if now >= self.election_at {
            self.start_pre_vote(now, fx);
        }
        self.tick_stop(now, fx);
    }

    /// Everything at hand has been given: what was gathered goes out.
    pub fn on_end_of_turn(&mut self, now: Time, fx: &mut Effects) {
        self.say_farewells(fx);
        if self.role == Role::Leader {
            self.begin_round_if_due(now, fx);
            self.replicate(now, fx);
        } else {
            self.acknowledge(fx);
        }
        let through = self.handed_out.min(self.durability.durable_index());
        self.log.evict(self.config.cache_bytes_max, through);
    }

    /// The disk has every append through this one.
    pub fn on_durable(&mut self, append: AppendId, now: Time, fx: &mut Effects) {
        let durable_before = self.durability.durable_index();
        let was_hard_state_durable = self.durability.is_hard_state_durable();
        self.durability.on_durable(append);
        while let Some(deferred) = self.durability.poll_deferred() {
            self.on_deferred(deferred, now, fx);
        }
        let is_news = self.durability.durable_index() > durable_before || !was_hard_state_durable;
        if self.role == Role::Leader {
            self.advance_commit(now);
        } else if is_news && self.verified > LogIndex(0) {
            self.is_ack_due = true;
        }
        self.tick_stop(now, fx);
    }

    /// A piece of the log came back from the disk.
    pub fn on_log_read(&mut self, read: &LogRead<'_>, now: Time, fx: &mut Effects) {
        self.send_read(read, now, fx);
    }

    /// A piece of a snapshot came back from the disk.
    pub fn on_snapshot_read(&mut self, read: &SnapshotRead<'_>, now: Time, fx: &mut Effects) {
        self.send_piece(read, now, fx);
    }

    /// A link to a node came up in both directions.
    pub fn on_link_up(&mut self, peer: NodeId, now: Time, fx: &mut Effects) {
        self.linked.insert(peer);
        let Some(at) = self.peer_at(peer).or_else(|| self.add_guest(peer)) else { return };
        self.peers[at].is_linked = true;
        self.peers[at].is_refusing = false;
        self.send_hello(at, now, fx);
        self.on_accepted(at, now);
    }

    /// A link to a member broke; may be said again once an attempt to connect was refused.
    pub fn on_link_down(&mut self, peer: NodeId, is_refused: bool, now: Time) {
        self.linked.remove(&peer);
        let Some(at) = self.peer_at(peer) else { return };
        let peer = &mut self.peers[at];
        peer.is_linked = false;
        peer.hello = None;
        peer.refused = None;
        peer.is_refusing = false;
        peer.hellos_from_before = 0;
        peer.hello_sent_at = None;
        peer.progress.probe();
        let node = peer.node;
        self.stop_installing(node);
        if self.leader == Some(node) {
            self.on_leader_link_broken(is_refused, now);
        }
        self.drop_if_guest(at);
    }

    /// A member said something.
    pub fn on_message(&mut self, from: NodeId, message: &PeerMessage<'_>, now: Time, fx: &mut Effects) {
        let is_accepted = self.accepts(from);
        match message {
            PeerMessage::CellHello(hello) => self.on_hello(from, hello, now, fx),
            PeerMessage::Refused { reason } => self.on_refused(from, *reason, now, fx),
            PeerMessage::Manifest(manifest) => self.on_manifest(from, manifest, now, fx),
            PeerMessage::ManifestStored { birth } => self.on_manifest_stored(from, *birth, now, fx),
            PeerMessage::Born { birth } => self.on_born(from, *birth, now, fx),
            PeerMessage::Vote { ballot, term, last_index, last_term } if is_accepted => {
                let asked = election::Asked { ballot: *ballot, term: *term, last: (*last_term, *last_index) };
                self.on_vote(from, asked, now, fx);
            }
            PeerMessage::VoteReply { ballot, term, is_granted } if is_accepted => {
                self.on_vote_reply(from, *ballot, *term, *is_granted, now, fx);
            }
            PeerMessage::TakeOver { term, is_wished } if is_accepted => {
                self.on_take_over(from, *term, *is_wished, now, fx);
            }
            PeerMessage::Append(append) if is_accepted => self.on_append(from, append, now, fx),
            PeerMessage::AppendReply { term, outcome } if is_accepted => {
                self.on_append_reply(from, *term, *outcome, now, fx);
            }
            PeerMessage::SnapshotReply(reply) if is_accepted => self.on_snapshot_reply(from, reply, now, fx),
            // From somebody who has not shown to be the member that the cell was born with.
            PeerMessage::Vote { .. }
            | PeerMessage::VoteReply { .. }
            | PeerMessage::TakeOver { .. }
            | PeerMessage::Append(_)
            | PeerMessage::AppendReply { .. }
            | PeerMessage::SnapshotReply(_) => {}
            // Between the cells above.
            PeerMessage::SnapshotPiece(_)
            | PeerMessage::Digest { .. }
            | PeerMessage::DigestDisagrees { .. } => {}
        }
        self.tick_stop(now, fx);
    }

    /// A member's beat.
    pub fn on_beat(&mut self, from: NodeId, beat: Beat, now: Time, fx: &mut Effects) {
        if !self.accepts(from) {
            return;
        }
        match beat.kind {
            BeatKind::Ask => self.on_ask(from, beat, now, fx),
            BeatKind::Answer => self.on_answer(from, beat, now),
            BeatKind::Deposed => self.on_newer_term(beat.term, now, fx),
        }
        self.tick_stop(now, fx);
    }

    /// Appends an entry whose payload `payload` writes. None, and nothing written, when this node does
    /// not lead or is about to leave.
    pub fn propose(
        &mut self,
        now: Time,
        fx: &mut Effects,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Option<LogIndex> {
        let may_append = self.role == Role::Leader && !self.is_transferring() && self.stop.is_none();
        may_append.then(|| self.append_own(now, fx, payload))
    }

    /// The next committed entry, to be applied now. What a confirmed round answers is to be answered once all
    /// have been polled that were committed when that was said.
    pub fn poll_committed(&mut self) -> Option<Committed<'_>> {
        if !self.has_more_to_apply() {
            return None;
        }
        let index = self.handed_out.next();
        self.handed_out = index;
        if self.role == Role::Leader && index == self.leading.blank_index {
            self.leading.is_serving = true;
            self.events.push_back(RaftEvent::Serving { term: self.term });
            self.announce_rounds();
        }
        let term = self.log.term_at(index).expect("a committed entry is in the log");
        let payload = self.log.payload(index).expect("what is not applied stays in memory");
        Some(Committed { index, term, payload })
    }

    /// Whether committed entries are left to be polled.
    pub fn has_more_to_apply(&self) -> bool {
        self.handed_out < self.committed && !self.lacks_state()
    }

    /// The payloads of the committed entries that are to be applied next.
    pub fn upcoming(&self) -> impl Iterator<Item = &[u8]> {
        let entries = usize::try_from(self.committed.0 - self.handed_out.0).unwrap_or(usize::MAX);
        self.log.payloads_from(self.handed_out.next()).take(entries)
    }

    /// The id of the next round that begins after this call; none when this node does not lead.
    pub fn ask_round(&mut self, urgency: Urgency) -> Option<RoundId> {
        (self.role == Role::Leader).then(|| self.leading.rounds.ask(urgency))
    }

    /// The next thing to know.
    pub fn poll_event(&mut self) -> Option<RaftEvent> {
        self.events.pop_front()
    }

    /// The newest round of this leader that was confirmed, and its newest.
    pub fn rounds(&self) -> (RoundId, RoundId) {
        (self.leading.rounds.confirmed(), self.leading.rounds.begun())
    }

    /// Whether this node leads.
    pub fn is_leader(&self) -> bool {
        self.role == Role::Leader
    }

    /// Whether it leads and all that was committed before it did has been handed out.
    pub fn is_serving(&self) -> bool {
        self.role == Role::Leader && self.leading.is_serving
    }

    /// Whether this leader is handing over and takes no proposals.
    pub fn is_transferring(&self) -> bool {
        self.leading.transfer.is_some()
    }

    /// Whether the member that is to take over has been told.
    pub fn has_told_successor(&self) -> bool {
        self.leading.transfer.is_some_and(|transfer| transfer.is_told())
    }

    /// Who leads, as far as this node knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.leader
    }

    /// The current term.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The last index known to be committed.
    pub fn committed(&self) -> LogIndex {
        self.committed
    }

    /// The last index that this node's disk has.
    pub fn durable(&self) -> LogIndex {
        self.durability.durable_index()
    }

    /// The last index of the log.
    pub fn last_index(&self) -> LogIndex {
        self.log.last_index()
    }

    /// What this node is, in a word for people.
    pub fn role_name(&self) -> &'static str {
        match self.role {
            Role::Follower if self.is_removed => "removed",
            Role::Follower if self.is_born() && self.membership().get(self.config.node).is_none() => {
                "joining"
            }
            Role::Follower if !self.is_born() && self.config.is_joining => "joining",
            Role::Follower if !self.is_born() => "unborn",
            Role::Follower if !self.is_voter(self.config.node) => "learner",
            Role::Follower => "follower",
            Role::PreCandidate => "pre-candidate",
            Role::Candidate => "candidate",
            Role::Leader => "leader",
        }
    }

    /// How far a follower's disk has this leader's log; none when this node does not lead.
    pub fn progress(&self, peer: NodeId) -> Option<LogIndex> {
        let at = self.peer_at(peer)?;
        (self.role == Role::Leader).then(|| self.peers[at].progress.matched)
    }

    /// Whether what a member says about the log counts: the cell is born, and the member is who it was then.
    pub fn accepts(&self, from: NodeId) -> bool {
        self.is_born() && self.peer_at(from).is_some_and(|at| self.peers[at].hello.is_some())
    }

    /// Whether a leader has heard a majority, or a follower its leader, within an election timeout.
    pub fn has_quorum_contact(&self, now: Time) -> bool {
        if self.role != Role::Leader {
            return self.leader.is_some() && now.since(self.leader_heard_at) <= self.config.election_max;
        }
        self.voters().filter(|peer| !self.is_silent(peer, now)).count() + 1 >= self.majority()
    }

    /// Whether this leader's entries have waited for their commit longer than an election timeout.
    pub fn is_commit_stalled(&self, now: Time) -> bool {
        self.role == Role::Leader
            && self.log.last_index() > self.committed
            && now.since(self.leading.commit_moved_at) > self.config.election_max
    }

    /// When [`Raft::on_tick`] has to be called at the latest.
    pub fn deadline(&self) -> Time {
        if self.defect.is_some() {
            return Time(0);
        }
        let role = match self.role {
            Role::Leader => self.leader_deadline(),
            Role::Follower | Role::PreCandidate | Role::Candidate => self.election_at,
        };
        role.min(self.birth_deadline()).min(self.stop_deadline())
    }

    /// Whether this replica knows that every member has stored who the members are.
    pub fn is_born(&self) -> bool {
        self.birth.is_born()
    }

    fn peer_at(&self, node: NodeId) -> Option<usize> {
        self.peers.iter().position(|peer| peer.node == node)
    }

    /// Whether messages about the log go to this peer.
    fn is_reachable(&self, at: usize) -> bool {
        self.is_born() && self.peers[at].is_linked && self.peers[at].hello.is_some()
    }

    /// Whether this leader has not heard the peer for longer than an election timeout, and has led and had it as a member for
    /// so long.
    fn is_silent(&self, peer: &Peer, now: Time) -> bool {
        now.since(peer.progress.heard_at) > self.config.election_max
    }

    /// Whether entries and beats go to this peer.
    fn is_followed_by(&self, at: usize) -> bool {
        self.peers[at].is_member && self.is_reachable(at)
    }

    /// A peer may have become one whose messages count: what waited for that begins.
    fn on_accepted(&mut self, at: usize, now: Time) {
        if !self.is_reachable(at) {
            return;
        }
        if self.role == Role::Leader {
            self.peers[at].progress.probe();
        } else {
            self.hurry_first_election(now);
        }
    }

    fn append_hard_state(&mut self, now: Time, fx: &mut Effects) {
        let append = self.durability.append_hard_state(now);
        let head = RecordHead { kind: RecordKind::HardState, term: self.term, index: LogIndex(0) };
        let vote = self.vote.unwrap_or_default().0.to_le_bytes();
        fx.append(append, head, |out| out.extend_from_slice(&vote));
    }

    fn on_deferred(&mut self, deferred: durability::Deferred, now: Time, fx: &mut Effects) {
        match deferred {
            durability::Deferred::Manifest => self.on_manifest_durable(now, fx),
            durability::Deferred::Born => self.on_born_durable(now, fx),
            durability::Deferred::Marked(snapshot) => self.on_marked(snapshot),
            durability::Deferred::Installed(snapshot) => self.on_installed(snapshot, fx),
            durability::Deferred::Campaign { term } => self.ask_for_votes(term, now, fx),
            durability::Deferred::VoteReply { to, ballot, term } => self.give_vote(to, ballot, term, fx),
        }
    }
}
