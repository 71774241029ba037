//! At most one leader in a term, who has all that was committed (Raft, figure 3, "election safety" and "leader
//! completeness").
//!
//! Deliberately absent: how long an election takes; progress is demanded at the end of a run.

use std::collections::BTreeMap;

use lockstep_wire::{LogIndex, NodeId, Term};

use super::beat::ServerLife;
use super::commitment::Commitment;
use super::{Verdict, violated};

/// The leaders of one cell.
#[derive(Debug, Default)]
pub struct Elections {
    leaders: BTreeMap<Term, ServerLife>,
    /// Terms that had a leader before the cell was restored.
    before: usize,
}

impl Elections {
    /// Terms that had a leader.
    pub fn count(&self) -> usize {
        self.before + self.leaders.len()
    }

    /// The newest term that had a leader, and the leader.
    pub fn newest(&self) -> Option<(Term, NodeId)> {
        self.leaders.last_key_value().map(|(term, (node, _))| (*term, *node))
    }

    /// The cell was restored from a backup: terms go back to the backup's.
    pub fn on_restored(&mut self) {
        self.before = self.count();
        self.leaders.clear();
    }

    /// A node leads; whoever has crashed in office does not come back to it, as it wrote down that it had stood for it.
    /// `entry_term` tells the term of its own log's entries.
    ///
    /// # Errors
    /// Another one leads in the same term, or it lacks what was committed.
    pub fn on_leading(
        &mut self,
        (node, life): ServerLife,
        term: Term,
        commitment: &Commitment,
        entry_term: impl FnOnce(LogIndex) -> Option<Term>,
    ) -> Verdict {
        let first = *self.leaders.entry(term).or_insert((node, life));
        if first != (node, life) {
            return violated(
                "one leader a term (contract 8)",
                format!(
                    "node {node} leads in term {term} in its life {life}, which node {} has led in its life {}",
                    first.0, first.1
                ),
            );
        }
        // A candidate of an older term may be elected late, and need not have what was committed since.
        let Some((last, last_term)) = commitment.last_before(term) else { return Ok(()) };
        let own = entry_term(last);
        if own != Some(last_term) {
            return violated(
                "a leader has all that was committed (contract 8)",
                format!(
                    "node {node} leads in term {term}; entry {last} of term {last_term} was committed before that, \
                     and it has {own:?} there"
                ),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_leaders_of_a_term_are_seen() {
        let mut elections = Elections::default();
        let none = Commitment::default();
        assert_eq!(elections.on_leading((NodeId(1), 1), Term(2), &none, |_| None), Ok(()));
        assert_eq!(elections.on_leading((NodeId(1), 1), Term(2), &none, |_| None), Ok(()));
        assert!(elections.on_leading((NodeId(2), 1), Term(2), &none, |_| None).is_err());
        assert!(elections.on_leading((NodeId(1), 2), Term(2), &none, |_| None).is_err(), "its next life");
    }

    #[test]
    fn a_leader_without_what_was_committed_is_seen() {
        let mut log = Commitment::default();
        log.on_applied(NodeId(1), LogIndex(1), Term(1), b"a", Term(1)).unwrap();
        let mut elections = Elections::default();
        assert!(elections.on_leading((NodeId(2), 1), Term(2), &log, |_| None).is_err());
        assert!(elections.on_leading((NodeId(2), 1), Term(2), &log, |_| Some(Term(1))).is_ok());
        assert!(elections.on_leading((NodeId(2), 1), Term(1), &log, |_| None).is_ok(), "elected late");
    }
}
