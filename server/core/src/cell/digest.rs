//! Comparing the digests of the replicas (ARCHITECTURE section 2, "Digest").
//!
//! Invariant: a replica stops only when a majority of the voters agree on another digest than its own. Learners are held
//! against it and do not count.
//! Deliberately absent: the digest itself, which is the table's.

use std::collections::{BTreeMap, VecDeque};

use lockstep_wire::{LogIndex, NodeId};

use crate::members::Membership;

/// Entries between two comparisons.
pub(crate) const DIGEST_EVERY: u64 = 4_096;
/// Own digests that are kept for comparisons that come late.
const KEPT: usize = 16;

/// What the leader makes of the digests of one index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A majority has this digest; these members have another.
    Disagree { index: LogIndex, digest: u64, members: Vec<NodeId> },
    /// All voters have reported, and no digest has a majority.
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

    /// Takes a member's digest, the leader's own among them, and judges once enough are known. Whoever is no member is
    /// not asked.
    pub(crate) fn on_reported(
        &mut self,
        from: NodeId,
        index: LogIndex,
        digest: u64,
        members: &Membership,
    ) -> Option<Verdict> {
        members.get(from)?;
        self.add(from, index, digest);
        let reports = &self.reported[&index];
        let voted: Vec<u64> = members.voters().filter_map(|voter| reports.get(&voter)).copied().collect();
        let has_majority =
            |digest: &u64| voted.iter().filter(|other| *other == digest).count() >= members.majority();
        let verdict = match voted.iter().copied().find(has_majority) {
            Some(digest) => {
                let differs = |node: &NodeId| reports.get(node).is_some_and(|other| *other != digest);
                let members: Vec<NodeId> =
                    members.members().iter().map(|member| member.node).filter(differs).collect();
                (!members.is_empty()).then_some(Verdict::Disagree { index, digest, members })
            }
            // Said when the last voter has reported, not again for each learner.
            None => (members.is_voter(from) && voted.len() == members.voters().count())
                .then_some(Verdict::NoMajority { index }),
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
    use lockstep_wire::peer::MemberIncarnation;
    use lockstep_wire::{Incarnation, MemberChange};

    use super::*;

    const AT: LogIndex = LogIndex(DIGEST_EVERY);

    fn voters(count: u16) -> Membership {
        let incarnation = Incarnation([1; 16]);
        let born: Vec<MemberIncarnation> =
            (1..=count).map(|node| MemberIncarnation { node: NodeId(node), incarnation }).collect();
        Membership::of_birth(&born)
    }

    fn and_learner(list: &Membership, node: u16) -> Membership {
        let change = MemberChange::AddLearner {
            node: NodeId(node),
            incarnation: Incarnation([1; 16]),
            peer_address: &format!("peer-{node}"),
            client_address: &format!("client-{node}"),
        };
        list.changed(&change, &[]).expect("it can be added")
    }

    /// What is said of these digests, reported one after the other.
    fn verdicts(members: &Membership, digests: &[(u16, u64)]) -> Vec<Option<Verdict>> {
        let mut book = DigestBook::default();
        digests.iter().map(|(node, digest)| book.on_reported(NodeId(*node), AT, *digest, members)).collect()
    }

    #[test]
    fn a_replica_that_disagrees_with_a_majority_is_named() {
        let verdict = Verdict::Disagree { index: AT, digest: 7, members: vec![NodeId(2)] };
        assert_eq!(verdicts(&voters(3), &[(1, 7), (2, 8), (3, 7)]), [None, None, Some(verdict)]);
    }

    #[test]
    fn nobody_stops_without_a_majority_on_one_digest() {
        let verdict = Verdict::NoMajority { index: AT };
        let members = and_learner(&voters(3), 4);
        assert_eq!(verdicts(&members, &[(1, 7), (2, 8), (3, 9), (4, 9)]), [None, None, Some(verdict), None]);
    }

    #[test]
    fn equal_digests_raise_no_alarm() {
        let digests: Vec<(u16, u64)> = (1..=5).map(|node| (node, 7)).collect();
        assert!(verdicts(&voters(5), &digests).iter().all(Option::is_none));
    }

    #[test]
    fn learners_stop_nobody_and_are_held_against_the_voters() {
        let members = and_learner(&and_learner(&voters(3), 4), 5);
        // Three of five have 8, and one of the three voters.
        let verdict =
            Verdict::Disagree { index: AT, digest: 7, members: vec![NodeId(3), NodeId(4), NodeId(5)] };
        let digests = [(4, 8), (5, 8), (3, 8), (1, 7), (2, 7)];
        assert_eq!(verdicts(&members, &digests), [None, None, None, None, Some(verdict)]);
    }

    #[test]
    fn whoever_is_no_member_is_not_asked() {
        assert_eq!(verdicts(&voters(2), &[(1, 7), (9, 7), (8, 7), (2, 7)]), [None, None, None, None]);
    }
}
