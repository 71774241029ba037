//! What the command sees before it asks a leader, and what it says.

use lockstep_wire::{ClusterId, Incarnation};

use super::*;

fn member(node: u16, is_voter: bool, is_linked: bool, matched: u64) -> MemberState {
    MemberState {
        node: NodeId(node),
        incarnation: Incarnation([7; 16]),
        is_voter,
        peer_address: format!("10.0.0.{node}:7500"),
        client_address: format!("10.0.0.{node}:7400"),
        is_linked,
        matched: LogIndex(matched),
    }
}

fn cell() -> MembersInfo {
    MembersInfo {
        cluster: ClusterId([1; 16]),
        node: NodeId(1),
        incarnation: Incarnation([7; 16]),
        peer_address: "10.0.0.1:7500".to_owned(),
        client_address: "10.0.0.1:7400".to_owned(),
        cells: 2,
        shards: 2,
        leader: NodeId(1),
        leader_address: String::new(),
        last: LogIndex(90),
        is_changing: false,
        node_max: NodeId(3),
        members: vec![member(1, true, true, 90), member(2, true, true, 90), member(3, true, false, 40)],
    }
}

fn newcomer(node: u16) -> MembersInfo {
    MembersInfo {
        node: NodeId(node),
        peer_address: format!("10.0.0.{node}:7500"),
        client_address: format!("10.0.0.{node}:7400"),
        members: Vec::new(),
        ..cell()
    }
}

#[test]
fn what_only_some_cells_have_done_can_be_done_or_undone() {
    let seen = |cell: u16, node_max: u16, nodes: &[u16]| Seen {
        cell: CellId(cell),
        role: "leader".to_owned(),
        members: MembersInfo {
            node_max: NodeId(node_max),
            members: nodes.iter().map(|node| member(*node, true, true, 90)).collect(),
            ..self::cell()
        },
    };
    let left = |node: u16| {
        let mut cells = vec![seen(0, 4, &[1, 2, 3, 4]), seen(1, 3, &[1, 2, 3]), seen(2, 4, &[1, 2, 3])];
        pass_over(&mut cells, &MemberWish::Remove { node: NodeId(node) });
        cells.iter().map(|seen| seen.cell.0).collect::<Vec<_>>()
    };
    assert_eq!(left(4), [0, 2], "cell 1 has never had it, cell 2 no more");
    assert_eq!(left(9), [0, 1, 2], "and each says that it has none");
    let cells = [seen(0, 4, &[1, 2, 3, 4]), seen(1, 3, &[1, 2, 3])];
    let add = |node: u16| MemberWish::AddLearner {
        node: NodeId(node),
        incarnation: Incarnation([8; 16]),
        peer_address: String::new(),
        client_address: String::new(),
    };
    assert_eq!(leaves_out(&cells, &add(5)), None, "cell 1 leaves 4 out");
    let objection = MemberObjection::IdTooFar { node: NodeId(6), next: 5 };
    assert_eq!(leaves_out(&cells, &add(6)), Some(objection));
}

#[test]
fn a_node_that_does_not_belong_there_is_not_added() {
    let misfit = |new: &MembersInfo, role| misfit(&cell(), new, role).unwrap_or_default();
    assert_eq!(misfit(&newcomer(4), "joining"), "");
    assert_eq!(misfit(&newcomer(2), "follower"), "", "asked for again");
    for (new, role, words) in [
        (MembersInfo { cluster: ClusterId([2; 16]), ..newcomer(4) }, "joining", "of cluster"),
        (MembersInfo { cells: 1, ..newcomer(4) }, "joining", "correct `cells`"),
        (
            MembersInfo { shards: 1, ..newcomer(4) },
            "joining",
            "formatted with 1 shard, the others with 2 shards",
        ),
        (newcomer(4), "unborn", "set `join = true`"),
        (MembersInfo { peer_address: String::new(), ..newcomer(4) }, "joining", "where it serves members"),
    ] {
        let said = misfit(&new, role);
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn what_a_leader_would_refuse_is_seen_before_any_is_asked() {
    let move_to = |client: &str| MemberWish::SetAddresses {
        node: NodeId(3),
        peer_address: "10.0.0.3:7500".to_owned(),
        client_address: client.to_owned(),
    };
    let taken = MemberObjection::AddressTaken { node: NodeId(3), by: NodeId(2) };
    assert_eq!(foresee(&cell(), &move_to("10.0.0.2:7400")), Err(taken));
    assert_eq!(foresee(&cell(), &move_to("10.0.0.9:7400")), Ok(()));
    let stale = MembersInfo { node: NodeId(2), ..cell() };
    assert_eq!(foresee(&stale, &move_to("10.0.0.2:7400")), Ok(()), "who does not lead may know less");
}

#[test]
fn a_leader_hands_over_only_if_its_removal_can_follow() {
    let mut members = cell();
    let remove = |node| MemberWish::Remove { node: NodeId(node) };
    assert_eq!(foresee(&members, &remove(2)), Ok(()), "its leader knows better who is heard");
    let silent = MemberObjection::NoMajority { heard: 1, voters: 2 };
    assert_eq!(foresee(&members, &remove(1)), Err(silent));
    members.members.truncate(1);
    assert_eq!(foresee(&members, &remove(1)), Err(MemberObjection::LastVoter(NodeId(1))));
}

#[test]
fn each_member_is_shown_with_what_it_lacks() {
    let members = MembersInfo {
        cluster: ClusterId::default(),
        node: NodeId(1),
        incarnation: Incarnation([7; 16]),
        peer_address: String::new(),
        client_address: String::new(),
        cells: 4,
        shards: 2,
        leader: NodeId(1),
        leader_address: String::new(),
        last: LogIndex(90),
        is_changing: true,
        node_max: NodeId(6),
        members: vec![member(1, true, true, 90), member(2, true, false, 40), member(6, false, true, 50)],
    };
    let wanted = "cell 3: led by node 1
  node 1  voter    10.0.0.1:7400  members 10.0.0.1:7500  has everything
  node 2  voter    10.0.0.2:7400  members 10.0.0.2:7500  not connected
  node 6  learner  10.0.0.6:7400  members 10.0.0.6:7500  lacks 40 entries
  the last change is not committed yet
";
    let mut seen = Seen { cell: CellId(3), members, role: "leader".to_owned() };
    assert_eq!(describe(&seen), wanted);
    assert_eq!(as_json(&seen)["members"][2]["lag"], "40");
    seen.members.members[2].matched = LogIndex(89);
    assert!(describe(&seen).contains("members 10.0.0.6:7500  lacks 1 entry\n"));
    seen.members.leader = NodeId(2);
    assert!(describe(&seen).contains("node 6  learner  10.0.0.6:7400  members 10.0.0.6:7500  connected\n"));
}

#[test]
fn a_cell_that_is_not_born_says_so() {
    let members = MembersInfo { leader: NodeId(0), members: Vec::new(), ..cell() };
    let unborn = Seen { cell: CellId(0), members, role: "unborn".to_owned() };
    assert_eq!(
        describe(&unborn),
        "cell 0: not born yet; every one of its members must be up together once\n"
    );
    assert_eq!(as_json(&unborn)["unborn"], true);
    let joining = Seen { role: "joining".to_owned(), ..unborn };
    assert!(describe(&joining).ends_with("  none: this node waits to be added\n"));
}

#[test]
fn who_was_added_is_said_to_be_no_more_than_is_sure() {
    let add = |node| MemberWish::AddLearner {
        node: NodeId(node),
        incarnation: Incarnation([7; 16]),
        peer_address: String::new(),
        client_address: String::new(),
    };
    let seen = |role: &str| Seen { cell: CellId(0), members: cell(), role: role.to_owned() };
    let learner = "node 4 is a learner; promote it when `lockstep members` shows that it has everything";
    assert_eq!(deed(&add(4), &seen("leader")), learner);
    for role in ["leader", "follower"] {
        assert_eq!(deed(&add(3), &seen(role)), "node 3 is a member already, with a vote");
    }
    let unsure = "node 3 is a member; `lockstep members` shows whether it has a vote";
    let mut changing = seen("leader");
    changing.members.is_changing = true;
    assert_eq!(deed(&add(3), &changing), unsure, "its promotion may be taken back");
    let mut behind = seen("follower");
    behind.members.members[2].is_voter = false;
    assert_eq!(deed(&add(3), &behind), unsure, "it may have been promoted");
}
