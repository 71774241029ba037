//! Lists, votes and answers that break a rule, and those next to them that do not.

use lockstep_wire::entry::Command;
use lockstep_wire::peer::MemberIncarnation;
use lockstep_wire::{BirthId, MemberRow, Rows};

use super::*;

fn incarnation(node: u16) -> Incarnation {
    Incarnation([node.to_le_bytes()[0]; 16])
}

/// A list of these voters and learners.
fn list(voters: &[u16], learners: &[u16]) -> Vec<u8> {
    let row = |(node, is_voter): (u16, bool)| MemberRow {
        node: NodeId(node),
        incarnation: incarnation(node),
        is_voter,
        peer_address: "",
        client_address: "",
    };
    let all = voters.iter().map(|node| (*node, true)).chain(learners.iter().map(|node| (*node, false)));
    let mut rows: Vec<MemberRow<'_>> = all.map(row).collect();
    rows.sort_by_key(|row| row.node);
    let mut payload = Vec::new();
    Command::Members(Members { node_max: NodeId(9), members: Rows::Slice(&rows) }).encode(&mut payload);
    payload
}

fn born() -> Memberships {
    let ids = || (1..=3).map(NodeId);
    let members: Vec<MemberIncarnation> =
        ids().map(|node| MemberIncarnation { node, incarnation: incarnation(node.0) }).collect();
    let mut memberships = Memberships::new(ids());
    memberships.on_born(&Manifest { birth: BirthId([1; 16]), members: Rows::Slice(&members) });
    memberships
}

fn rule(verdict: Verdict) -> Option<&'static str> {
    verdict.err().map(|violation| violation.rule)
}

fn commit(memberships: &mut Memberships, index: u64, payload: &[u8]) -> Verdict {
    memberships.on_committed(LogIndex(index), payload, Term(1)).map(|_| ())
}

#[test]
fn a_birth_that_is_told_late_makes_nobody_forget_the_lists_since() {
    let mut it = Memberships::new([NodeId(1)].into_iter());
    assert_eq!(commit(&mut it, 1, &list(&[1], &[3])), Ok(()));
    assert!(it.has_removed(NodeId(2)), "its id was left out");
    let members = [MemberIncarnation { node: NodeId(1), incarnation: incarnation(1) }];
    it.on_born(&Manifest { birth: BirthId([1; 16]), members: Rows::Slice(&members) });
    assert!(it.has_removed(NodeId(2)) && !it.has_removed(NodeId(3)) && !it.has_removed(NodeId(1)));
    assert_eq!(it.on_removed(NodeId(2)), Ok(()));
    assert_eq!(commit(&mut it, 2, &list(&[1, 3], &[])), Ok(()));
}

#[test]
fn two_voters_at_once_and_two_lists_on_their_way_are_seen() {
    let (node, term) = (NodeId(1), Term(1));
    let mut it = born();
    let two = it.on_appended(node, &[], term, &list(&[1, 2, 3, 4, 5], &[]), LogIndex(0));
    assert_eq!(rule(two), Some(ONE_AT_A_TIME));
    let mut it = born();
    let first = list(&[1, 2, 3], &[4]);
    assert_eq!(it.on_appended(node, &[], term, &first, LogIndex(0)), Ok(()));
    let log = [(term, first)];
    let mut again = |committed| it.on_appended(node, &log, term, &list(&[1, 2, 3, 4], &[]), committed);
    assert_eq!(rule(again(LogIndex(0))), Some(ONE_AT_A_TIME));
    assert_eq!(again(LogIndex(0)), Ok(()), "the next replica only does as it is told");
    let mut it = born();
    assert_eq!(rule(commit(&mut it, 1, &list(&[1, 4], &[]))), Some(ONE_AT_A_TIME));
}

#[test]
fn an_id_that_comes_back_or_has_another_incarnation_is_seen() {
    let mut it = born();
    assert_eq!(commit(&mut it, 1, &list(&[1, 2], &[])), Ok(()));
    assert!(it.has_removed(NodeId(3)) && !it.has_removed(NodeId(4)));
    assert_eq!(rule(commit(&mut it, 2, &list(&[1, 2], &[3]))), Some(ONE_INCARNATION));
    let mut it = born();
    it.incarnations.insert(NodeId(2), incarnation(7));
    assert_eq!(rule(commit(&mut it, 1, &list(&[1, 2, 3], &[4]))), Some(ONE_INCARNATION));
    let mut it = born();
    assert_eq!(commit(&mut it, 1, &list(&[1, 2, 3], &[6])), Ok(()));
    assert_eq!(rule(commit(&mut it, 2, &list(&[1, 2, 3], &[5, 6]))), Some(ONE_INCARNATION), "it is too low");
}

fn leads(it: &Memberships, node: u16, term: u64, log: &[(Term, Vec<u8>)]) -> Option<&'static str> {
    let voters = it.newest_in(log).voters.clone();
    let claim = Claim { node: NodeId(node), term: Term(term), log, voters: &voters };
    rule(it.on_leading(&claim))
}

#[test]
fn a_leader_by_the_votes_of_too_few_of_learners_or_of_the_removed_is_seen() {
    let mut it = born();
    it.on_vote(NodeId(1), Term(2), 1);
    assert_eq!(leads(&it, 1, 2, &[]), Some(ELECTED));
    it.on_vote(NodeId(4), Term(2), 1);
    assert_eq!(leads(&it, 1, 2, &[]), Some(ELECTED), "4 has no vote");
    it.on_vote(NodeId(2), Term(2), 1);
    assert_eq!(leads(&it, 1, 2, &[]), None);
    // The list of its log counts, committed or not.
    let payload = list(&[1, 2, 3, 4], &[]);
    it.on_appended(NodeId(1), &[], Term(1), &payload, LogIndex(0)).unwrap();
    let log = [(Term(1), payload)];
    assert_eq!(leads(&it, 1, 2, &log), None, "1, 2 and 4");
    it.on_vote(NodeId(1), Term(3), 1);
    it.on_vote(NodeId(2), Term(3), 1);
    assert_eq!(leads(&it, 1, 3, &log), Some(ELECTED));
    let voters = BTreeSet::from([NodeId(1), NodeId(2)]);
    let claim = Claim { node: NodeId(1), term: Term(3), log: &[], voters: &voters };
    assert_eq!(rule(it.on_leading(&claim)), Some(KNOWN));
}

#[test]
fn who_was_removed_leads_in_no_newer_term_and_nobody_else_ends_for_it() {
    let mut it = born();
    for term in [1, 2] {
        it.on_vote(NodeId(1), Term(term), 3);
        it.on_vote(NodeId(2), Term(term), 3);
    }
    assert_eq!(rule(it.on_removed(NodeId(3))), Some(REMOVED));
    let log = [(Term(2), list(&[1, 2], &[]))];
    it.on_appended(NodeId(1), &[], Term(2), &log[0].1, LogIndex(0)).unwrap();
    assert_eq!(rule(it.on_removed(NodeId(3))), Some(REMOVED), "it may yet be taken back");
    let (on_disks, on_none) = (|_: Term, _: &Roster| true, |_: Term, _: &Roster| false);
    it.on_certain(&log, LogIndex(0), on_disks);
    it.on_certain(&[(Term(3), Vec::new())], LogIndex(1), on_disks);
    assert_eq!(rule(it.on_removed(NodeId(3))), Some(REMOVED), "something else is committed");
    it.on_certain(&log, LogIndex(1), on_none);
    assert_eq!(rule(it.on_removed(NodeId(3))), Some(REMOVED), "it is said to be committed too early");
    it.on_certain(&log, LogIndex(1), on_disks);
    it.on_certain(&[], LogIndex(0), on_none);
    assert_eq!(
        it.on_removed(NodeId(3)),
        Ok(()),
        "nobody has applied it yet, and whoever knew of it may be gone"
    );
    commit(&mut it, 1, &list(&[1, 2], &[])).unwrap();
    assert_eq!(leads(&it, 3, 1, &[]), None, "it was elected before, and hears of it late");
    assert_eq!(leads(&it, 3, 2, &[]), Some(OVER));
    assert_eq!(it.on_removed(NodeId(3)), Ok(()));
    assert_eq!(rule(it.on_removed(NodeId(4))), Some(REMOVED));
}

#[test]
fn whose_id_was_left_out_ends_when_the_list_that_leaves_it_out_is_committed() {
    let mut it = born();
    let log = [(Term(1), list(&[1, 2, 3], &[5])), (Term(1), list(&[1, 2, 3], &[5, 7]))];
    it.on_appended(NodeId(1), &[], Term(1), &log[0].1, LogIndex(0)).unwrap();
    assert_eq!(rule(it.on_removed(NodeId(4))), Some(REMOVED));
    it.on_certain(&log[..1], LogIndex(1), |_, _| true);
    assert_eq!(it.on_removed(NodeId(4)), Ok(()), "nobody has applied it yet");
    it.on_appended(NodeId(1), &log[..1], Term(1), &log[1].1, LogIndex(1)).unwrap();
    assert_eq!(rule(it.on_removed(NodeId(6))), Some(REMOVED), "this list is not certain yet");
    it.on_certain(&log, LogIndex(2), |_, _| true);
    assert_eq!(it.on_removed(NodeId(6)), Ok(()));
    for member in [5, 7] {
        assert_eq!(rule(it.on_removed(NodeId(member))), Some(REMOVED));
    }
    for (index, list) in [(1, &log[0].1), (2, &log[1].1)] {
        commit(&mut it, index, list).unwrap();
        assert_eq!(it.on_removed(NodeId(4)), Ok(()));
    }
    assert_eq!(rule(it.on_removed(NodeId(8))), Some(REMOVED), "it may yet be added");
    assert_eq!(it.marks().count(Mark::IdLeftOut), 2, "4 and 6");
    assert_eq!(it.marks().count(Mark::LeftOutNodeEnded), 4, "4 three times, and 6");
}

#[test]
fn an_acknowledged_change_must_have_been_made_and_be_known_to_later_leaders() {
    let mut it = born();
    let promote = MemberChange::Promote { node: NodeId(4) };
    assert_eq!(rule(it.on_done(&promote, 1, Term(1))), Some(KEPT));
    commit(&mut it, 1, &list(&[1, 2, 3], &[4])).unwrap();
    commit(&mut it, 2, &list(&[1, 2, 3, 4], &[])).unwrap();
    commit(&mut it, 3, &list(&[1, 2, 3], &[])).unwrap();
    assert_eq!(rule(it.on_done(&promote, 4, Term(1))), Some(KEPT), "it was over when it was asked for");
    assert_eq!(it.on_done(&promote, 1, Term(1)), Ok(()), "it was so meanwhile");
    for voter in [1, 2] {
        it.on_vote(NodeId(voter), Term(1), 1);
        it.on_vote(NodeId(voter), Term(2), 1);
    }
    assert_eq!(leads(&it, 1, 1, &[]), None, "elected before, late");
    assert_eq!(leads(&it, 1, 2, &[]), Some(KEPT));
}
