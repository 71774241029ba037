//! What must hold whatever happens (Raft, figure 3), checked while a cluster runs.
//!
//! Invariant: the oracle knows messages, records and committed entries, not how the nodes arrive at them.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_wire::peer::{AppendOutcome, Ballot, PeerMessage};
use lockstep_wire::{LogIndex, NodeId, RoundId, Term};

use super::super::Raft;
use super::cluster::{Cluster, Member};
use crate::RecordKind;

/// What has been seen of the whole cell so far.
#[derive(Default)]
pub(super) struct Oracle {
    pub(super) leaders: BTreeMap<Term, NodeId>,
    pub(super) committed: Vec<(Term, Vec<u8>)>,
    /// The newest term in which each of them can have been committed.
    pub(super) committed_in: Vec<Term>,
    pub(super) rounds_confirmed: usize,
    pub(super) truncations: usize,
    pub(super) conflicts: usize,
    pub(super) deposed: usize,
    pub(super) handed_over: usize,
    votes: BTreeMap<(Term, NodeId), NodeId>,
    /// Whose disk has had a manifest, whatever has become of it since.
    bound: BTreeSet<NodeId>,
}

impl Cluster {
    /// Some disk may have a manifest that it did not have before.
    pub(super) fn note_bound(&mut self) {
        let is_bound = |member: &&Member| {
            let mut durable = member.records[..member.records_durable].iter();
            durable.any(|(head, _)| head.kind == RecordKind::Manifest)
        };
        self.oracle.bound.extend(self.members.iter().filter(is_bound).map(|member| member.node));
    }

    /// Nobody takes the cell for born before everybody whom it is born with has stored the manifest.
    pub(super) fn check_birth(&mut self) {
        self.note_bound();
        for node in (1..=self.born).map(NodeId) {
            assert!(self.oracle.bound.contains(&node), "born, and node {node} has not stored the manifest");
        }
    }

    /// A read that joined a round sees everything that anybody had seen committed when it was asked for.
    pub(super) fn check_round(&mut self, node: NodeId, raft: &Raft, round: RoundId) {
        assert!(raft.is_serving(), "only a serving leader's rounds are confirmed");
        self.oracle.rounds_confirmed += 1;
        let member = &mut self.members[usize::from(node.0) - 1];
        let later = member.rounds.split_off(&RoundId(round.0 + 1));
        for (round, index) in std::mem::replace(&mut member.rounds, later) {
            assert!(member.applied >= index.0, "round {round} of {node} reads an old state");
        }
    }

    /// A leader has what was committed in earlier terms.
    pub(super) fn check_completeness(&self, raft: &Raft) {
        let committed = self.oracle.committed.iter().zip(&self.oracle.committed_in);
        for (at, ((term, _), committed_in)) in committed.enumerate() {
            let index = LogIndex(at as u64 + 1);
            let has_it = raft.log.term_at(index) == Some(*term);
            assert!(has_it || *committed_in >= raft.term(), "leader completeness at {index}");
        }
    }

    /// What a leader takes for committed is on a majority of disks.
    pub(super) fn check_commit(&self, raft: &Raft) {
        let index = raft.committed();
        if index == LogIndex(0) {
            return;
        }
        let term = raft.log.term_at(index).unwrap();
        let at = usize::try_from(index.0 - 1).unwrap();
        let has = |member: &&Member| member.disk_log.get(at).is_some_and(|entry| entry.0 == term);
        let voters = raft.membership();
        let is_voter = |member: &&Member| voters.is_voter(member.node);
        let count = self.members.iter().filter(is_voter).filter(has).count();
        assert!(count >= voters.majority(), "entry {index} is on {count} disks only");
    }

    /// A vote and an acknowledgement promise what the disk has.
    pub(super) fn check_promise(&mut self, from: NodeId, to: NodeId, message: &PeerMessage<'_>) {
        let member = &self.members[usize::from(from.0) - 1];
        match message {
            PeerMessage::VoteReply { ballot: Ballot::Real | Ballot::TakeOver, term, is_granted: true } => {
                let durable = member.records[..member.records_durable].iter();
                let newest = durable.rev().find(|(head, _)| head.kind == RecordKind::HardState);
                let vote = to.0.to_le_bytes().to_vec();
                assert!(newest.is_some_and(|(head, stored)| head.term == *term && *stored == vote));
                let known = *self.oracle.votes.entry((*term, from)).or_insert(to);
                assert_eq!(known, to, "node {from} votes twice in term {term}");
            }
            PeerMessage::AppendReply { outcome: AppendOutcome::Durable { through }, .. } => {
                assert!(
                    through.0 <= member.disk_log.len() as u64,
                    "node {from} acknowledges {through} too early"
                );
            }
            PeerMessage::AppendReply { outcome: AppendOutcome::Conflict { .. }, .. } => {
                self.oracle.conflicts += 1;
            }
            PeerMessage::Vote { ballot: Ballot::TakeOver, .. } => self.oracle.handed_over += 1,
            _ => {}
        }
    }

    /// Wherever two logs agree on an index and its term they agree on everything before.
    pub(super) fn check_logs_match(&self) {
        let rafts: Vec<&Raft> = self.members.iter().filter_map(|member| member.raft.as_ref()).collect();
        for (at, a) in rafts.iter().enumerate() {
            for b in &rafts[at + 1..] {
                let last = a.last_index().min(b.last_index()).0;
                let mut must_agree = false;
                for index in (1..=last).rev().map(LogIndex) {
                    let is_same = a.log.term_at(index) == b.log.term_at(index);
                    assert!(is_same || !must_agree, "log matching at {index}");
                    if is_same {
                        must_agree = true;
                        let payloads = (a.log.payload(index), b.log.payload(index));
                        if let (Some(a), Some(b)) = payloads {
                            assert_eq!(a, b, "log matching at {index}");
                        }
                    }
                }
            }
        }
    }
}
