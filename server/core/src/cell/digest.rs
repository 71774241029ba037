//! Comparing the digests of the replicas (ARCHITECTURE section 2, "Digest").
//!
//! Invariant: a replica stops only when a majority of the members agree on another digest than its own.
//! Deliberately absent: the digest itself, which is the table's.

use std::collections::{BTreeMap, VecDeque};

use lockstep_wire::{LogIndex, NodeId};

/// Entries between two comparisons.
pub(crate) const DIGEST_EVERY: u64 = 4_096;
/// Own digests that are kept for comparisons that come late.
const KEPT: usize = 16;

/// What the leader makes of the digests of one index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A majority has this digest; these members have another.
    Disagree { index: LogIndex, digest: u64, members: Vec<NodeId> },
    /// Everybody has reported, and no digest has a majority.
    NoMajority { index: LogIndex },
}

/// The digests of the last few compared indexes.
#[derive(Debug, Default)]
pub(crate) struct DigestBook {
    own: VecDeque<(LogIndex, u64)>,
    reported: BTreeMap<LogIndex, BTreeMap<NodeId, u64>>,
}

impl DigestBook {
    /// Whether digests are compared after this entry.
    pub(crate) fn is_due(index: LogIndex) -> bool {
        index.0.is_multiple_of(DIGEST_EVERY)
    }

    /// Keeps this replica's digest.
    pub(crate) fn note(&mut self, index: LogIndex, digest: u64) {
        self.own.push_back((index, digest));
        if self.own.len() > KEPT {
            self.own.pop_front();
        }
    }

    /// This replica's digest after an entry, while it is kept.
    pub(crate) fn own(&self, index: LogIndex) -> Option<u64> {
        self.own.iter().find(|(at, _)| *at == index).map(|(_, digest)| *digest)
    }

    /// Takes a member's digest without judging.
    pub(crate) fn add(&mut self, from: NodeId, index: LogIndex, digest: u64) {
        self.reported.entry(index).or_default().insert(from, digest);
    }

    /// Takes a member's digest, the leader's own among them, and judges once enough are known.
    pub(crate) fn on_reported(
        &mut self,
        from: NodeId,
        index: LogIndex,
        digest: u64,
        members: usize,
    ) -> Option<Verdict> {
        self.add(from, index, digest);
        let reports = &self.reported[&index];
        let majority = members / 2 + 1;
        let agreed = reports
            .values()
            .copied()
            .find(|digest| reports.values().filter(|other| *other == digest).count() >= majority);
        let verdict = match agreed {
            Some(digest) => {
                let members: Vec<NodeId> =
                    reports.iter().filter(|(_, other)| **other != digest).map(|(node, _)| *node).collect();
                (!members.is_empty()).then_some(Verdict::Disagree { index, digest, members })
            }
            None => (reports.len() == members).then_some(Verdict::NoMajority { index }),
        };
        while self.reported.len() > KEPT {
            self.reported.pop_first();
        }
        verdict
    }

    /// Forgets what others reported; a new leader gathers anew.
    pub(crate) fn clear_reports(&mut self) {
        self.reported.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: LogIndex = LogIndex(DIGEST_EVERY);

    #[test]
    fn a_replica_that_disagrees_with_a_majority_is_named() {
        let mut book = DigestBook::default();
        assert_eq!(book.on_reported(NodeId(1), AT, 7, 3), None);
        assert_eq!(book.on_reported(NodeId(2), AT, 8, 3), None);
        let verdict = Verdict::Disagree { index: AT, digest: 7, members: vec![NodeId(2)] };
        assert_eq!(book.on_reported(NodeId(3), AT, 7, 3), Some(verdict));
    }

    #[test]
    fn nobody_stops_without_a_majority_on_one_digest() {
        let mut book = DigestBook::default();
        for (node, digest) in [(1, 7), (2, 8)] {
            assert_eq!(book.on_reported(NodeId(node), AT, digest, 3), None);
        }
        assert_eq!(book.on_reported(NodeId(3), AT, 9, 3), Some(Verdict::NoMajority { index: AT }));
    }

    #[test]
    fn equal_digests_raise_no_alarm() {
        let mut book = DigestBook::default();
        for node in 1..=5 {
            assert_eq!(book.on_reported(NodeId(node), AT, 7, 5), None);
        }
    }
}
