//! Two logs that have an entry of one term at one index are the same up to there (Raft, figure 3, "log matching"; contract,
//! point 8).
//!
//! Invariant checked at each append: whoever has an entry of a term at an index has the same payload there, and an entry of
//! the same term before it. By induction that is the whole property, at the price of one look an append. It knows
//! what replicas appended. Deliberately absent: which entries are committed.

use lockstep_wire::{LogIndex, NodeId, Term};

use super::{Verdict, violated};

#[derive(Clone, Copy, Debug)]
struct Appended {
    term: Term,
    prev_term: Term,
    payload: u64,
    first: NodeId,
}

/// The entries that any replica of one cell ever appended. See the module.
#[derive(Debug, Default)]
pub struct Matching {
    /// By index, from 1; one for each term that had an entry there.
    entries: Vec<Vec<Appended>>,
}

impl Matching {
    /// The cell goes on behind this entry, as restored from a backup: other entries may come in the terms of those that are gone.
    pub fn on_restored(&mut self, through: LogIndex) {
        self.entries.truncate(usize::try_from(through.0).expect("a run is short"));
    }

    /// A replica appends an entry behind one of `prev_term` (0 for none). `payload` is a hash of what it says.
    ///
    /// # Errors
    /// Another replica has another one of that term there, or another one before it.
    pub fn on_appended(
        &mut self,
        node: NodeId,
        index: LogIndex,
        term: Term,
        prev_term: Term,
        payload: u64,
    ) -> Verdict {
        let at = usize::try_from(index.0 - 1).expect("a run is short");
        if self.entries.len() <= at {
            self.entries.resize_with(at + 1, Vec::new);
        }
        let Some(known) = self.entries[at].iter().find(|known| known.term == term) else {
            self.entries[at].push(Appended { term, prev_term, payload, first: node });
            return Ok(());
        };
        if (known.prev_term, known.payload) == (prev_term, payload) {
            return Ok(());
        }
        violated(
            "logs match (contract 8)",
            format!(
                "node {node} appends an entry of term {term} at {index} behind one of term {prev_term}; node {} has \
                 appended {} there, behind one of term {}",
                known.first,
                if known.payload == payload { "the same" } else { "another one of that term" },
                known.prev_term
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_that_do_not_match_are_seen() {
        let mut logs = Matching::default();
        let mut append = |node, index, term, prev, payload| {
            logs.on_appended(NodeId(node), LogIndex(index), Term(term), Term(prev), payload)
        };
        assert!(append(1, 1, 1, 0, 5).is_ok());
        assert!(append(1, 2, 2, 1, 6).is_ok());
        assert!(append(2, 1, 1, 0, 5).is_ok());
        assert!(append(2, 2, 3, 1, 9).is_ok(), "another term's entry is no conflict by itself");
        assert!(append(3, 2, 2, 1, 7).is_err(), "another entry of the same term");
        assert!(append(3, 2, 2, 0, 6).is_err(), "the same entry behind another one");
    }
}
