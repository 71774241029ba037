//! One log for all replicas (contract, points 1 and 8; Raft, figure 3, "log matching" and "state machine safety").
//!
//! Invariant checked: whatever any replica ever applied at an index, every replica applies there, in every life;
//! and replicas that have applied the same entries have the same digest. Deliberately absent: what entries mean.

use std::collections::BTreeMap;

use lockstep_wire::{LogIndex, NodeId, Term};

use super::{Verdict, violated};

/// The entries of one cell that some replica has applied, from the first on.
#[derive(Debug, Default)]
pub struct Commitment {
    entries: Vec<(Term, Vec<u8>)>,
    /// For each of them the newest term that had a leader when it was first applied: it was committed in that term
    /// or an older one.
    committed_by: Vec<Term>,
    /// The digest after an index, as the first replica that stopped there had it.
    digests: BTreeMap<LogIndex, (NodeId, u64)>,
}

impl Commitment {
    /// How far anybody has applied.
    pub fn last(&self) -> LogIndex {
        LogIndex(self.entries.len() as u64)
    }

    /// The entries through an index, as far as anybody has applied them.
    pub fn through(&self, index: LogIndex) -> &[(Term, Vec<u8>)] {
        let count = usize::try_from(index.0).expect("a run is short");
        &self.entries[..count.min(self.entries.len())]
    }

    /// Their terms.
    pub fn terms_through(&self, index: LogIndex) -> impl Iterator<Item = Term> + '_ {
        self.through(index).iter().map(|(term, _)| *term)
    }

    /// The last entry that was surely committed before a term, and its own term.
    pub fn last_before(&self, term: Term) -> Option<(LogIndex, Term)> {
        let count = self.committed_by.partition_point(|by| *by < term);
        let (entry_term, _) = self.entries.get(count.checked_sub(1)?)?;
        Some((LogIndex(count as u64), *entry_term))
    }

    /// The cell goes on behind an entry of this term, as restored from a backup; what was committed after it is gone.
    pub fn on_restored(&mut self, through: LogIndex, term: Term) {
        let count = usize::try_from(through.0).expect("a run is short");
        self.entries.truncate(count);
        self.committed_by.truncate(count);
        self.committed_by.iter_mut().for_each(|by| *by = term.min(*by));
        self.digests.split_off(&through);
    }

    /// Takes an entry that a replica has applied; `newest` is the newest term that has had a leader. Says whether the
    /// replica is the first to do so.
    ///
    /// # Errors
    /// Another replica had applied another entry there.
    pub fn on_applied(
        &mut self,
        node: NodeId,
        index: LogIndex,
        term: Term,
        payload: &[u8],
        newest: Term,
    ) -> Result<bool, super::Violation> {
        let at = usize::try_from(index.0 - 1).expect("a run is short");
        match self.entries.get(at) {
            Some((known_term, known)) if *known_term == term && known == payload => Ok(false),
            Some((known_term, _)) => violated(
                "one log for all replicas (contract 8)",
                format!(
                    "node {node} applies at {index} an entry of term {term} where another replica had applied \
                     one of term {known_term}: what was committed is lost"
                ),
            ),
            None => {
                assert_eq!(at, self.entries.len(), "replicas apply without gaps");
                self.entries.push((term, payload.to_vec()));
                let by = self.committed_by.last().map_or(newest, |last| newest.max(*last));
                self.committed_by.push(by);
                Ok(true)
            }
        }
    }

    /// Takes a replica's digest after an index.
    ///
    /// # Errors
    /// Another replica had another one there.
    pub fn on_digest(&mut self, node: NodeId, index: LogIndex, digest: u64) -> Verdict {
        let (first, known) = *self.digests.entry(index).or_insert((node, digest));
        if known != digest {
            return violated(
                "equal digests after equal entries (contract 8)",
                format!(
                    "after entry {index} node {node} has {digest:016x} and node {first} had {known:016x}"
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
    fn two_entries_at_one_index_are_seen() {
        let mut log = Commitment::default();
        assert_eq!(log.on_applied(NodeId(1), LogIndex(1), Term(1), b"a", Term(1)), Ok(true));
        assert_eq!(log.on_applied(NodeId(2), LogIndex(1), Term(1), b"a", Term(1)), Ok(false));
        assert!(log.on_applied(NodeId(3), LogIndex(1), Term(1), b"b", Term(1)).is_err());
        assert!(log.on_applied(NodeId(3), LogIndex(1), Term(2), b"a", Term(1)).is_err());
    }

    #[test]
    fn two_digests_at_one_index_are_seen() {
        let mut log = Commitment::default();
        assert_eq!(log.on_digest(NodeId(1), LogIndex(1), 7), Ok(()));
        assert!(log.on_digest(NodeId(2), LogIndex(1), 8).is_err());
    }
}
