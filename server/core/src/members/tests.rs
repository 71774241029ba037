//! Which lists can follow which, and what is said of those that cannot.

use super::*;

impl Membership {
    /// After a change of a cell in which no configuration says where anybody serves.
    fn after(&self, change: &MemberChange<'_>) -> Result<Membership, MemberObjection> {
        self.changed(change, &[])
    }
}

fn birth(ids: &[u16]) -> Membership {
    let member = |id: &u16| MemberIncarnation {
        node: NodeId(*id),
        incarnation: Incarnation([id.to_le_bytes()[0]; 16]),
    };
    Membership::of_birth(&ids.iter().map(member).collect::<Vec<_>>())
}

fn learner(id: u16) -> MemberChange<'static> {
    MemberChange::AddLearner {
        node: NodeId(id),
        incarnation: Incarnation([id.to_le_bytes()[0]; 16]),
        peer_address: "10.0.0.4:7500",
        client_address: "10.0.0.4:7400",
    }
}

#[test]
fn ids_grow_in_small_steps_and_each_is_given_once_ever() {
    let list = birth(&[1, 2, 6]);
    let objection = MemberObjection::IdTooFar { node: NodeId(24), next: 7 };
    assert_eq!(list.after(&learner(24)), Err(objection));
    let far = list.after(&learner(23)).unwrap();
    let objection = MemberObjection::IdTaken { node: NodeId(7), next: 24 };
    assert_eq!(far.after(&learner(7)), Err(objection), "it was left out");
    let list = list.after(&learner(7)).unwrap();
    assert!(!list.is_voter(NodeId(7)));
    let list = list.after(&MemberChange::Remove { node: NodeId(7) }).unwrap();
    assert!(list.has_removed(NodeId(7)) && list.has_removed(NodeId(5)) && !list.has_removed(NodeId(8)));
    let other = MemberChange::AddLearner {
        node: NodeId(1),
        incarnation: Incarnation([99; 16]),
        peer_address: "10.0.0.4:7500",
        client_address: "10.0.0.4:7400",
    };
    for change in [learner(7), learner(5), other] {
        let objection = MemberObjection::IdTaken { node: change.node(), next: 8 };
        assert_eq!(list.after(&change), Err(objection), "{change:?}");
    }
    assert!(list.after(&learner(8)).is_ok());
}

fn serving_at(id: u16, peer_address: &'static str, client_address: &'static str) -> MemberChange<'static> {
    MemberChange::SetAddresses { node: NodeId(id), peer_address, client_address }
}

#[test]
fn no_two_members_serve_at_one_address() {
    let configured = |id: u16| Member {
        node: NodeId(id),
        peer_address: format!("10.0.0.{id}:7500"),
        client_address: format!("10.0.0.{id}:7400"),
    };
    // Node 4 is configured and no member, so that nobody serves there.
    let configured: Vec<Member> = (1..=4).map(configured).collect();
    let list = birth(&[1, 2, 3]);
    let added = list.changed(&learner(4), &configured).expect("nobody else serves there");
    let taken = |node, by| Err(MemberObjection::AddressTaken { node: NodeId(node), by: NodeId(by) });
    for (by, peer, client) in
        [(2, "10.0.0.2:7500", "a:1"), (2, "a:1", "10.0.0.2:7400"), (4, "10.0.0.4:7400", "a:1")]
    {
        assert_eq!(added.changed(&serving_at(3, peer, client), &configured), taken(3, by));
        let newcomer = MemberChange::AddLearner {
            node: NodeId(5),
            incarnation: Incarnation([5; 16]),
            peer_address: peer,
            client_address: client,
        };
        assert_eq!(added.changed(&newcomer, &configured), taken(5, by));
    }
    // Its own it may keep, and where somebody served before he moved another one may.
    let moved = added.changed(&serving_at(2, "10.0.0.2:7500", "b:1"), &configured).unwrap();
    let there = serving_at(3, "10.0.0.3:7500", "10.0.0.2:7400");
    let there = moved.changed(&there, &configured).unwrap();
    // Asked for again, an addition is no failure wherever others serve by now.
    let away = there.changed(&serving_at(4, "c:1", "c:2"), &configured).unwrap();
    let away = away.changed(&serving_at(1, "10.0.0.4:7500", "10.0.0.4:7400"), &configured).unwrap();
    assert_eq!(away.changed(&learner(4), &configured).as_ref(), Ok(&away));
}

#[test]
fn a_cell_keeps_a_voter_and_a_majority_that_is_heard() {
    let list = birth(&[1]).after(&learner(2)).unwrap();
    let remove = MemberChange::Remove { node: NodeId(1) };
    assert_eq!(list.after(&remove), Err(MemberObjection::LastVoter(NodeId(1))));
    let list = birth(&[1, 2, 3, 4]).after(&learner(5)).unwrap();
    assert_eq!(list.must_be_heard(|node| node <= NodeId(3)), Ok(()));
    let silent = list.must_be_heard(|node| node <= NodeId(2) || node == NodeId(5));
    assert_eq!(silent, Err(MemberObjection::NoMajority { heard: 2, voters: 4 }));
}

#[test]
fn what_is_so_already_may_be_asked_for_again() {
    let list = birth(&[1, 2, 3]).after(&learner(4)).unwrap();
    assert_eq!(list.after(&learner(4)).as_ref(), Ok(&list));
    let promote = MemberChange::Promote { node: NodeId(4) };
    let promoted = list.after(&promote).unwrap();
    assert_eq!(promoted.after(&promote).as_ref(), Ok(&promoted));
    assert_eq!(promoted.after(&learner(4)).as_ref(), Ok(&promoted), "a late repetition takes no vote away");
    // It was born with no address in the list.
    assert_eq!(promoted.after(&learner(1)).as_ref(), Ok(&promoted));
    let there = ("10.0.9.4:7500", "10.0.9.4:7400");
    let moved = promoted.after(&serving_at(4, there.0, there.1)).unwrap();
    assert_eq!(moved.after(&learner(4)).as_ref(), Ok(&moved), "it is not moved back");
    let remove = MemberChange::Remove { node: NodeId(2) };
    let removed = promoted.after(&remove).unwrap();
    assert_eq!(removed.after(&remove).as_ref(), Ok(&removed));
    assert_eq!((removed.majority(), promoted.majority()), (2, 3));
}

#[test]
fn nonsense_is_refused() {
    let list = birth(&[1, 2, 3]);
    let unknown = MemberChange::Promote { node: NodeId(9) };
    assert_eq!(list.after(&unknown), Err(MemberObjection::NotMember(NodeId(9))));
    assert_eq!(list.after(&learner(0)), Err(MemberObjection::Nobody));
    let nowhere = serving_at(1, "", "x");
    assert_eq!(list.after(&nowhere), Err(MemberObjection::NoAddress));
}

#[test]
fn the_newest_list_counts_and_goes_with_its_entry() {
    let one = birth(&[1, 2, 3]);
    let two = one.after(&learner(4)).unwrap();
    let mut history = MembershipHistory::new(one.clone());
    history.push(LogIndex(5), two.clone());
    assert_eq!((history.current(), history.committed()), (&two, &one));
    assert!(history.truncate_from(LogIndex(5)) && !history.is_changing());
    assert_eq!(history.current(), &one);
    history.push(LogIndex(5), two.clone());
    assert!(!history.commit(LogIndex(4)) && history.commit(LogIndex(6)));
    assert_eq!(history.committed(), &two);
}

#[test]
fn a_state_from_before_the_newest_committed_list_does_not_take_it_back() {
    let one = birth(&[1, 2, 3]);
    let two = one.after(&learner(4)).unwrap();
    let mut history = MembershipHistory::new(one.clone());
    history.push(LogIndex(5), two.clone());
    assert!(history.commit(LogIndex(6)));
    history.install(LogIndex(4), Some(one.clone()), true);
    assert_eq!(history.current(), &two, "the log goes on with the entry");
    history.install(LogIndex(7), Some(one.clone()), false);
    assert_eq!(history.current(), &one);
}
