//! What is committed is on a majority of disks (contract, points 1 and 8).
//!
//! Invariant checked when the first replica applies an entry, which is before anybody is told of it: more than half of
//! the members have it on their disks, as the disks and not the replicas say. It knows what disks have confirmed and
//! which entries truncations took away. Deliberately absent: disks that confirm and forget.

use std::collections::BTreeMap;

use lockstep_wire::{LogIndex, NodeId, Term};

use super::{Verdict, violated};

/// The disks under the replicas of one cell.
#[derive(Debug)]
pub struct Disks {
    members: usize,
    /// The terms of the entries that each disk holds, from index 1.
    durable: BTreeMap<NodeId, Vec<Term>>,
}

impl Disks {
    /// Empty disks of so many members.
    pub fn new(members: usize) -> Disks {
        Disks { members, durable: BTreeMap::new() }
    }

    /// A disk has confirmed an entry.
    pub fn on_durable(&mut self, node: NodeId, index: LogIndex, term: Term) {
        let held = self.durable.entry(node).or_default();
        held.truncate(place(index));
        if held.len() == place(index) {
            held.push(term);
        }
    }

    /// A log is about to lose what it has from an index on.
    pub fn on_truncated(&mut self, node: NodeId, from: LogIndex) {
        self.durable.entry(node).or_default().truncate(place(from));
    }

    /// A process has started, and this is what its disk holds. What it had confirmed and has lost since (a wiped directory)
    /// it had when others relied on it.
    pub fn on_recovered(&mut self, node: NodeId, terms: impl Iterator<Item = Term>) {
        let held: Vec<Term> = terms.collect();
        let known = self.durable.entry(node).or_default();
        if !known.starts_with(&held) {
            *known = held;
        }
    }

    /// An entry is taken to be committed.
    ///
    /// # Errors
    /// It is on half of the disks at most.
    pub fn on_committed(&self, index: LogIndex, term: Term) -> Verdict {
        let holders = || self.durable.iter().filter(|(_, held)| held.get(place(index)) == Some(&term));
        if holders().count() * 2 > self.members {
            return Ok(());
        }
        let holders: Vec<NodeId> = holders().map(|(node, _)| *node).collect();
        violated(
            "what is committed is on a majority of disks (contract 1)",
            format!("entry {index} of term {term} is applied, and is on the disks of {holders:?} alone"),
        )
    }
}

fn place(index: LogIndex) -> usize {
    usize::try_from(index.0.max(1) - 1).expect("a run is short")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_applied_before_a_majority_has_it_is_seen() {
        let mut disks = Disks::new(3);
        disks.on_durable(NodeId(1), LogIndex(1), Term(1));
        assert!(disks.on_committed(LogIndex(1), Term(1)).is_err());
        disks.on_durable(NodeId(2), LogIndex(1), Term(2));
        assert!(disks.on_committed(LogIndex(1), Term(1)).is_err(), "another entry does not count");
        disks.on_durable(NodeId(2), LogIndex(1), Term(1));
        assert!(disks.on_committed(LogIndex(1), Term(1)).is_ok());
    }

    #[test]
    fn what_was_truncated_does_not_count_and_what_a_start_finds_does() {
        let mut disks = Disks::new(3);
        for node in [1, 2] {
            disks.on_durable(NodeId(node), LogIndex(1), Term(1));
        }
        disks.on_truncated(NodeId(1), LogIndex(1));
        assert!(disks.on_committed(LogIndex(1), Term(1)).is_err());
        disks.on_recovered(NodeId(3), [Term(1)].into_iter());
        assert!(disks.on_committed(LogIndex(1), Term(1)).is_ok());
        disks.on_recovered(NodeId(2), std::iter::empty());
        assert!(disks.on_committed(LogIndex(1), Term(1)).is_ok(), "it had confirmed it");
    }
}
