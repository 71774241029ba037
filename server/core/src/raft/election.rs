//! Terms, votes and roles (Raft, sections 5.2 and 5.4.1; pre-vote and check-quorum as in the
//! dissertation, sections 6.2 and 9.6).
//!
//! Invariant: one vote a term, durable before it leaves; a vote goes only to a log that is at least as
//! new; and a node that hears its leader over a whole link deposes it for nobody. Deliberately absent:
//! what a leader does with its office.

use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::peer::{Ballot, PeerMessage};
use lockstep_wire::{LogIndex, NodeId, Term};

use super::durability::Deferred;
use super::{Raft, RaftEvent, Role};
use crate::{Effect, Effects, Halt, Lane, Span, Time};

/// Between the candidacies of two members that notice the same crash: several round trips and a write.
const STAGGER: Span = Span::from_ms(4);
/// Before the first of them: the others have to notice, too.
const STAGGER_FIRST: Span = Span::from_ms(1);

/// The source of election timeouts: splitmix64 over the seed.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn between(&mut self, min: Span, max: Span) -> Span {
        Span(min.0 + self.next() % (max.0 - min.0 + 1))
    }
}

/// What a candidate asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) ballot: Ballot,
    pub(super) term: Term,
    /// The term and index of its last entry, which compare in this order.
    pub(super) last: (Term, LogIndex),
}

impl Raft {
    /// Draws the next silence after which this node tries to be elected.
    pub(super) fn arm_election(&mut self, now: Time) {
        if !self.is_born() || self.stop.is_some() || self.is_removed {
            self.election_at = Time::NEVER;
            return;
        }
        self.election_at = now + self.dice.between(self.config.election_min, self.config.election_max);
    }

    /// How long this node lets others go first: by its rank among the members, the leader aside.
    fn stagger(&self) -> Span {
        let voters = self.membership().voters().filter(|node| Some(*node) != self.leader);
        let rank = voters.take_while(|node| *node != self.config.node).count() as u64;
        Span(STAGGER_FIRST.0 + rank * STAGGER.0)
    }

    /// After a start nobody waits for a whole silence once there is a majority to ask. A leader that is
    /// there gets the time to say so.
    pub(super) fn hurry_first_election(&mut self, now: Time) {
        let is_asked = |at: &usize| self.peers[*at].is_voter && self.is_reachable(*at);
        let reachable = (0..self.peers.len()).filter(is_asked).count();
        if self.is_fresh && self.stop.is_none() && reachable + 1 >= self.majority() {
            let patience = Span(2 * self.config.heartbeat.0 + self.stagger().0);
            self.election_at = self.election_at.min(now + patience);
        }
    }

    /// The leader's link broke; its process is gone when an attempt to connect was refused.
    pub(super) fn on_leader_link_broken(&mut self, is_refused: bool, now: Time) {
        self.is_leader_link_broken = true;
        if is_refused && self.stop.is_none() {
            self.election_at = self.election_at.min(now + self.stagger());
            self.hurry_until = now + self.config.election_min;
        }
    }

    /// Whether this node keeps the leader that it hears, whoever else asks for votes.
    fn insists_on_leader(&self, candidate: NodeId, now: Time) -> bool {
        match self.leader {
            Some(leader) if leader == self.config.node => true,
            Some(leader) if leader == candidate => false,
            Some(_) => {
                !self.is_leader_link_broken && now.since(self.leader_heard_at) < self.config.election_min
            }
            None => false,
        }
    }

    fn is_disk_hung(&self, now: Time) -> bool {
        self.durability.is_hung(now, self.config.election_max)
    }

    pub(super) fn start_pre_vote(&mut self, now: Time, fx: &mut Effects) {
        self.arm_election(now);
        let lacks_state = self.lacks_state() && !mutant::is(Mutant::CampaignWithoutState);
        let is_barred = !self.is_born() || self.stop.is_some() || !self.may_campaign();
        if is_barred || self.is_disk_hung(now) || lacks_state {
            return;
        }
        if now < self.hurry_until {
            let again = Span(STAGGER.0 * self.membership().voters().count() as u64);
            self.election_at = self.election_at.min(now + again);
        }
        self.is_fresh = false;
        self.leader = None;
        self.role = Role::PreCandidate;
        self.forget_votes();
        self.send_vote_requests(Ballot::Pre, Term(self.term.0 + 1), fx);
        self.count_votes(now, fx);
    }

    /// Votes for itself in a new term, and asks the others once its disk has that.
    fn campaign(&mut self, now: Time, fx: &mut Effects) {
        self.arm_election(now);
        self.leader = None;
        self.role = Role::Candidate;
        self.forget_votes();
        self.set_term(Term(self.term.0 + 1), Some(self.config.node), now, fx);
        self.durability.defer(self.durability.hard_state(), Deferred::Campaign { term: self.term });
    }

    pub(super) fn ask_for_votes(&mut self, term: Term, now: Time, fx: &mut Effects) {
        if self.role != Role::Candidate || self.term != term {
            return;
        }
        let ballot = if self.is_told_to_take_over { Ballot::TakeOver } else { Ballot::Real };
        self.send_vote_requests(ballot, term, fx);
        self.count_votes(now, fx);
    }

    fn send_vote_requests(&mut self, ballot: Ballot, term: Term, fx: &mut Effects) {
        let (last_index, last_term) = (self.log.last_index(), self.log.last_term());
        let message = PeerMessage::Vote { ballot, term, last_index, last_term };
        let is_asked = |at: &usize| self.peers[*at].is_voter && self.is_reachable(*at);
        for at in (0..self.peers.len()).filter(is_asked) {
            fx.send(self.peers[at].node, Lane::Control, self.config.cell, &message);
        }
    }

    fn forget_votes(&mut self) {
        self.peers.iter_mut().for_each(|peer| peer.has_voted = false);
    }

    fn count_votes(&mut self, now: Time, fx: &mut Effects) {
        if self.voters().filter(|peer| peer.has_voted).count() + 1 < self.majority() {
            return;
        }
        match self.role {
            Role::PreCandidate => {
                (self.is_told_to_take_over, self.is_take_over_wished) = (false, false);
                self.campaign(now, fx);
            }
            // Its own vote is durable: nobody was asked before.
            Role::Candidate => self.become_leader(now, fx),
            Role::Follower | Role::Leader => {}
        }
    }

    fn become_leader(&mut self, now: Time, fx: &mut Effects) {
        self.role = Role::Leader;
        self.leader = Some(self.config.node);
        self.is_fresh = false;
        self.is_ack_due = false;
        self.events.push_back(RaftEvent::Elected { term: self.term });
        if self.is_membership_changing() {
            // From now on its list says who is whom.
            self.on_members_changed(now);
        }
        self.begin_to_lead(now, fx);
    }

    /// Gives up whatever this node is, in its term.
    pub(super) fn step_down(&mut self, reason: &'static str, now: Time) {
        if self.role == Role::Leader {
            let is_planned = self.stop.is_some() || self.has_told_successor();
            self.events.push_back(RaftEvent::Deposed { term: self.term, reason, is_planned });
            self.leader = None;
            self.end_leading();
        }
        self.be_follower(now);
    }

    fn be_follower(&mut self, now: Time) {
        self.role = Role::Follower;
        self.forget_votes();
        self.arm_election(now);
    }

    /// Somebody knows a newer term.
    pub(super) fn on_newer_term(&mut self, term: Term, now: Time, fx: &mut Effects) {
        if term > self.term {
            self.step_down("another member knows a newer term", now);
            self.leader = None;
            self.set_term(term, None, now, fx);
        }
    }

    /// The hard state is appended before anything depends on it.
    fn set_term(&mut self, term: Term, vote: Option<NodeId>, now: Time, fx: &mut Effects) {
        assert!(term > self.term || self.vote.is_none(), "a term has one vote");
        if term > self.term {
            self.verified = LogIndex(0);
            self.is_ack_due = false;
        }
        self.term = term;
        self.vote = vote;
        self.append_hard_state(now, fx);
    }

    /// The leader of `term`, which is not older than this node's, was heard. Says whether to go on.
    pub(super) fn hear_leader(&mut self, from: NodeId, term: Term, now: Time, fx: &mut Effects) -> bool {
        self.on_newer_term(term, now, fx);
        let is_other = self.leader.is_some_and(|leader| leader != from);
        if is_other || self.role == Role::Leader {
            let (cell, node) = (self.config.cell, self.config.node);
            let reason =
                format!("cell {cell}: node {node} has seen two leaders in term {term}, {from} is one");
            fx.push(Effect::Halt(Halt { reason }));
            return false;
        }
        if self.leader.is_none() {
            self.be_follower(now);
            self.leader = Some(from);
            self.events.push_back(RaftEvent::LeaderChanged { leader: from });
        }
        self.leader_heard_at = now;
        self.is_leader_link_broken = false;
        self.hurry_until = Time(0);
        self.is_fresh = false;
        self.arm_election(now);
        true
    }

    pub(super) fn on_vote(&mut self, from: NodeId, asked: Asked, now: Time, fx: &mut Effects) {
        let is_log_new_enough = asked.last >= (self.log.last_term(), self.log.last_index());
        let insists = asked.ballot != Ballot::TakeOver && self.insists_on_leader(from, now);
        if asked.ballot == Ballot::Pre {
            let is_newer = asked.term > self.term;
            let is_granted = is_newer && is_log_new_enough && !insists && !self.is_disk_hung(now);
            if is_granted {
                // Whoever says yes lets the other try first, so that slow disks do not split the votes.
                self.election_at = self.election_at.max(now + self.config.heartbeat);
            }
            let term = if is_granted { asked.term } else { self.term };
            return self.send_vote_reply(from, asked.ballot, term, is_granted, fx);
        }
        if asked.term < self.term || insists {
            return self.send_vote_reply(from, asked.ballot, self.term, false, fx);
        }
        let is_granted = if asked.term > self.term {
            self.step_down("another member campaigns in a newer term", now);
            self.leader = None;
            self.set_term(asked.term, is_log_new_enough.then_some(from), now, fx);
            is_log_new_enough
        } else if self.vote == Some(from) {
            is_log_new_enough
        } else if self.vote.is_none() && self.leader.is_none() && is_log_new_enough {
            self.be_follower(now);
            self.set_term(asked.term, Some(from), now, fx);
            true
        } else {
            false
        };
        if !is_granted {
            return self.send_vote_reply(from, asked.ballot, self.term, false, fx);
        }
        self.arm_election(now);
        let reply = Deferred::VoteReply { to: from, ballot: asked.ballot, term: self.term };
        if self.durability.is_hard_state_durable() || mutant::is(Mutant::VoteBeforeDurable) {
            self.give_vote(from, asked.ballot, self.term, fx);
        } else {
            self.durability.defer(self.durability.hard_state(), reply);
        }
    }

    /// The vote is durable: it leaves, unless a newer term has made it worthless.
    pub(super) fn give_vote(&mut self, to: NodeId, ballot: Ballot, term: Term, fx: &mut Effects) {
        if self.term == term && self.vote == Some(to) {
            self.send_vote_reply(to, ballot, term, true, fx);
        }
    }

    fn send_vote_reply(&self, to: NodeId, ballot: Ballot, term: Term, is_granted: bool, fx: &mut Effects) {
        let message = PeerMessage::VoteReply { ballot, term, is_granted };
        fx.send(to, Lane::Control, self.config.cell, &message);
    }

    pub(super) fn on_vote_reply(
        &mut self,
        from: NodeId,
        ballot: Ballot,
        term: Term,
        is_granted: bool,
        now: Time,
        fx: &mut Effects,
    ) {
        if !is_granted {
            return self.on_newer_term(term, now, fx);
        }
        let is_mine = match ballot {
            Ballot::Pre => self.role == Role::PreCandidate && term.0 == self.term.0 + 1,
            Ballot::Real | Ballot::TakeOver => self.role == Role::Candidate && term == self.term,
        };
        if let (true, Some(at)) = (is_mine, self.peer_at(from)) {
            self.peers[at].has_voted = true;
            self.count_votes(now, fx);
        }
    }

    /// The leader wishes this node to lead.
    pub(super) fn on_take_over(
        &mut self,
        from: NodeId,
        term: Term,
        is_wished: bool,
        now: Time,
        fx: &mut Effects,
    ) {
        let is_from_leader = term == self.term && self.leader == Some(from) && self.role == Role::Follower;
        let is_able = self.stop.is_none() && self.may_campaign() && !self.lacks_state();
        if is_from_leader && is_able && !self.is_disk_hung(now) {
            (self.is_told_to_take_over, self.is_take_over_wished) = (true, is_wished);
            self.campaign(now, fx);
        }
    }

    /// A leader without its disk, or without a majority, leads no more.
    pub(super) fn step_down_if_unfit(&mut self, now: Time, fx: &mut Effects) {
        if !self.has_quorum_contact(now) {
            self.step_down("no contact with a majority for an election timeout", now);
        } else if self.majority() > 1 && self.is_disk_hung(now) {
            self.abdicate("its disk has not completed a write for an election timeout", now, fx);
        }
    }
}
