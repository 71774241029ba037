//! What is committed is on a majority of disks (contract, points 1 and 8).
//!
//! Invariant checked when the first replica applies an entry, which is before anybody is told of it: more than half of
//! the voters have it on their disks, as the disks and not the replicas say. It knows what disks have confirmed and
//! which entries truncations took away. And what a disk has confirmed, entries, term and vote, a start over it finds again, unless
//! the disk was lost. Deliberately absent: disks that confirm and forget.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_wire::{LogIndex, NodeId, Term};

use super::{Verdict, violated};

const KEPT: &str = "what a disk has confirmed survives (contract 8)";

/// The disks under the replicas of one cell.
#[derive(Debug, Default)]
pub struct Disks {
    /// The terms of the entries that each disk holds, from index 1.
    durable: BTreeMap<NodeId, Vec<Term>>,
    /// What disks held that were lost: others may have relied on it.
    lost: BTreeMap<NodeId, Vec<Term>>,
    ballots: BTreeMap<NodeId, Ballot>,
}

/// A member's term, and whom it voted for in it; nobody is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ballot {
    /// The term.
    pub term: Term,
    /// The number of the node.
    pub vote: u16,
}

impl Disks {
    /// The cell was restored from a backup, on other disks.
    pub fn on_restored(&mut self) {
        *self = Disks::default();
    }

    /// A disk has confirmed an entry.
    pub fn on_durable(&mut self, node: NodeId, index: LogIndex, term: Term) {
        let held = self.durable.entry(node).or_default();
        held.truncate(place(index));
        if held.len() == place(index) {
            held.push(term);
        }
    }

    /// A disk has confirmed the mark of a snapshot, which stands for entries of these terms.
    pub fn on_snapshot(&mut self, node: NodeId, terms: impl Iterator<Item = Term>) {
        let held = self.durable.entry(node).or_default();
        for (at, term) in terms.enumerate() {
            match held.get_mut(at) {
                Some(known) => *known = term,
                None => held.push(term),
            }
        }
    }

    /// A log is about to lose what it has from an index on.
    pub fn on_truncated(&mut self, node: NodeId, from: LogIndex) {
        self.durable.entry(node).or_default().truncate(place(from));
    }

    /// A disk has confirmed a term and a vote.
    pub fn on_ballot_durable(&mut self, node: NodeId, ballot: Ballot) {
        self.ballots.insert(node, ballot);
    }

    /// A disk is lost, and another one in its place.
    pub fn on_lost(&mut self, node: NodeId) {
        let held = self.durable.remove(&node).unwrap_or_default();
        self.lost.insert(node, held);
        self.ballots.remove(&node);
    }

    /// A process has started, and this is what its disk holds.
    ///
    /// # Errors
    /// Something that it has confirmed is not there.
    pub fn on_recovered(
        &mut self,
        node: NodeId,
        terms: impl Iterator<Item = Term>,
        ballot: Ballot,
    ) -> Verdict {
        let held: Vec<Term> = terms.collect();
        let known = self.durable.get(&node).map_or(&[][..], Vec::as_slice);
        if !held.starts_with(known) {
            let same = known.iter().zip(&held).take_while(|(known, held)| known == held).count();
            let (known, held) = (known.len(), held.len());
            return violated(
                KEPT,
                format!("node {node} confirmed {known} entries and starts with {held}, alike up to {same}"),
            );
        }
        let promised = self.ballots.get(&node).copied().unwrap_or_default();
        let is_kept = ballot.term > promised.term
            || ballot.term == promised.term && [0, ballot.vote].contains(&promised.vote);
        if !is_kept {
            return violated(KEPT, format!("node {node} confirmed {promised:?} and starts with {ballot:?}"));
        }
        self.durable.insert(node, held);
        self.ballots.insert(node, ballot);
        Ok(())
    }

    /// An entry is taken to be committed by a majority of these voters.
    ///
    /// # Errors
    /// It is on half of their disks at most.
    pub fn on_committed(&self, index: LogIndex, term: Term, voters: &BTreeSet<NodeId>) -> Verdict {
        let all = self.durable.iter().chain(&self.lost);
        let with = all.filter(|(_, held)| held.get(place(index)) == Some(&term));
        let holders: BTreeSet<NodeId> = with.map(|(node, _)| *node).collect();
        if holders.intersection(voters).count() * 2 > voters.len() {
            return Ok(());
        }
        violated(
            "what is committed is on a majority of disks (contract 1)",
            format!(
                "entry {index} of term {term} is applied, and of {voters:?} only {holders:?} have it on disk"
            ),
        )
    }
}

fn place(index: LogIndex) -> usize {
    usize::try_from(index.0.max(1) - 1).expect("a run is short")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voters(count: u16) -> BTreeSet<NodeId> {
        (1..=count).map(NodeId).collect()
    }

    #[test]
    fn an_entry_that_is_applied_before_a_majority_has_it_is_seen() {
        let mut disks = Disks::default();
        disks.on_durable(NodeId(1), LogIndex(1), Term(1));
        assert!(disks.on_committed(LogIndex(1), Term(1), &voters(3)).is_err());
        disks.on_durable(NodeId(2), LogIndex(1), Term(2));
        assert!(
            disks.on_committed(LogIndex(1), Term(1), &voters(3)).is_err(),
            "another entry does not count"
        );
        disks.on_durable(NodeId(2), LogIndex(1), Term(1));
        assert!(disks.on_committed(LogIndex(1), Term(1), &voters(3)).is_ok());
    }

    #[test]
    fn only_the_disks_of_voters_count() {
        let mut disks = Disks::default();
        for node in [1, 4, 5] {
            disks.on_durable(NodeId(node), LogIndex(1), Term(1));
        }
        assert!(disks.on_committed(LogIndex(1), Term(1), &voters(3)).is_err());
        assert!(disks.on_committed(LogIndex(1), Term(1), &voters(5)).is_ok());
    }

    #[test]
    fn what_was_truncated_does_not_count_and_what_a_start_finds_does() {
        let mut disks = Disks::default();
        for node in [1, 2] {
            disks.on_durable(NodeId(node), LogIndex(1), Term(1));
        }
        disks.on_truncated(NodeId(1), LogIndex(1));
        assert!(disks.on_committed(LogIndex(1), Term(1), &voters(3)).is_err());
        disks.on_recovered(NodeId(3), [Term(1)].into_iter(), Ballot::default()).unwrap();
        assert!(disks.on_committed(LogIndex(1), Term(1), &voters(3)).is_ok());
        disks.on_lost(NodeId(2));
        disks.on_recovered(NodeId(2), std::iter::empty(), Ballot::default()).unwrap();
        assert!(disks.on_committed(LogIndex(1), Term(1), &voters(3)).is_ok(), "it had confirmed it");
    }

    #[test]
    fn a_log_that_comes_back_shorter_than_it_was_confirmed_is_seen() {
        let mut disks = Disks::default();
        for index in [1, 2, 3] {
            disks.on_durable(NodeId(1), LogIndex(index), Term(1));
        }
        let recovered = |disks: &mut Disks, terms: &[u64]| {
            disks.on_recovered(NodeId(1), terms.iter().copied().map(Term), Ballot::default())
        };
        assert!(recovered(&mut disks, &[1, 1]).is_err());
        assert!(recovered(&mut disks, &[1, 1, 2]).is_err());
        assert!(recovered(&mut disks, &[1, 1, 1, 2]).is_ok(), "what was on its way may have come");
        disks.on_truncated(NodeId(1), LogIndex(2));
        assert!(recovered(&mut disks, &[1]).is_ok());
    }

    #[test]
    fn a_vote_that_comes_back_otherwise_is_seen() {
        let mut disks = Disks::default();
        let ballot = |term, vote| Ballot { term: Term(term), vote };
        let mut recovered = |found| {
            disks.on_ballot_durable(NodeId(1), ballot(2, 3));
            disks.on_recovered(NodeId(1), std::iter::empty(), found)
        };
        assert!(recovered(ballot(1, 1)).is_err());
        assert!(recovered(ballot(2, 0)).is_err());
        assert!(recovered(ballot(2, 1)).is_err());
        assert!(recovered(ballot(2, 3)).is_ok());
        assert!(recovered(ballot(3, 0)).is_ok(), "a newer one may have been on its way");
    }
}
