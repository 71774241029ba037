//! What the command sees before it asks a leader, and what it says.

use lockstep_wire::{ClusterId, Incarnation};

use super::*;

fn member(node: u16, is_voter: bool, is_heard: bool, matched: u64) -> MemberState {
    MemberState {
        node: NodeId(node),
        incarnation: Incarnation([7; 16]),
        is_voter,
        peer_address: format!("10.0.0.{node}:7500"),
        client_address: format!("10.0.0.{node}:7400"),
        is_heard,
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

/// A cell by its leader's word.
fn seen(cell: u16, node_max: u16, nodes: &[u16]) -> Seen {
    Seen {
        cell: CellId(cell),
        role: "leader".to_owned(),
        members: MembersInfo {
            node_max: NodeId(node_max),
            members: nodes.iter().map(|node| member(*node, true, true, 90)).collect(),
            ..self::cell()
        },
    }
}

fn add(node: u16) -> MemberWish {
    MemberWish::AddLearner {
        node: NodeId(node),
        incarnation: Incarnation([7; 16]),
        peer_address: String::new(),
        client_address: String::new(),
    }
}

fn remove(node: u16) -> MemberWish {
    MemberWish::Remove { node: NodeId(node) }
}

#[test]
fn what_only_some_cells_have_done_can_be_undone() {
    let asked = |node: u16, is_changing: bool| {
        let mut cells = vec![seen(0, 4, &[1, 2, 3, 4]), seen(1, 3, &[1, 2, 3]), seen(2, 4, &[1, 2, 3])];
        cells[1].members.is_changing = is_changing;
        let passed = pass_over(&mut cells, &remove(node));
        let numbers = |cells: Vec<CellId>| cells.iter().map(|cell| cell.0).collect::<Vec<_>>();
        (numbers(cells.iter().map(|seen| seen.cell).collect()), numbers(passed))
    };
    assert_eq!(asked(4, false), (vec![0, 2], vec![1]), "cell 1 has never had it, cell 2 no more");
    assert_eq!(asked(4, true), (vec![0, 1, 2], vec![]), "its addition may be under way");
    assert_eq!(asked(9, false), (vec![0, 1, 2], vec![]), "and each says that it has none");
    assert_eq!(asked(9, true), (vec![1], vec![0, 2]), "it may be that one's");
}

#[test]
fn who_refuses_a_removal_as_wrong_has_never_had_the_node() {
    let refused = |status| Error::Refused { what: String::new(), status, detail: String::new() };
    assert!(is_no_member(&refused(Status::Invalid), &remove(4)));
    assert!(!is_no_member(&refused(Status::Conflict), &remove(4)));
    assert!(!is_no_member(&refused(Status::Invalid), &add(4)));
}

#[test]
fn no_id_is_skipped_that_another_cell_has_or_that_all_skip() {
    let cells = [seen(0, 4, &[1, 2, 3, 4]), seen(1, 3, &[1, 2, 3])];
    let split = |node, cell: Option<u16>| {
        splits(&cells, |it| cell.is_none_or(|cell| cell == it.0), &add(node)).unwrap_or_default()
    };
    assert_eq!(split(4, None), "", "what is missing can be done");
    assert_eq!(split(4, Some(1)), "");
    let wanted = "node 4 is a member of cell 0 and not of cell 1, which could never have it once node 5 is added: add \
                  node 4 to all cells first, or remove it";
    assert_eq!(split(5, None), wanted);
    assert_eq!(split(5, Some(1)), wanted);
    assert_eq!(split(5, Some(0)), "", "nothing is skipped there");
    let gone = [seen(0, 4, &[1, 2, 3]), seen(1, 3, &[1, 2, 3])];
    assert_eq!(splits(&gone, |_| true, &add(5)), None, "node 4 is removed where it was");
    assert_eq!(splits(&gone, |cell| cell == CellId(1), &add(5)), None, "5 is the next one of the cluster");
    let objection = MemberObjection::IdTooFar { node: NodeId(6), next: 5 };
    assert_eq!(splits(&gone, |_| true, &add(6)), Some(objection.to_string()));
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
}

#[test]
fn a_leader_hands_over_only_if_its_removal_can_follow() {
    let mut members = cell();
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
  node 2  voter    10.0.0.2:7400  members 10.0.0.2:7500  not heard
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
    assert!(
        describe(&seen).contains("node 2  voter    10.0.0.2:7400  members 10.0.0.2:7500  not connected\n")
    );
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
    let learner = "node 4 is a learner; `lockstep members promote 4` waits until it has caught up";
    let mut before = seen(0, 3, &[1, 2, 3]);
    assert_eq!(deed(&add(4), &before), learner);
    assert_eq!(deed(&add(3), &before), "node 3 is a member already, with a vote");
    before.members.is_changing = true;
    let unsure = "node 3 is a member; `lockstep members` shows whether it has a vote";
    assert_eq!(deed(&add(3), &before), unsure, "its promotion may be taken back");
}

#[test]
fn what_a_removal_did_is_said_of_each_cell() {
    let before = [seen(0, 4, &[1, 2, 3, 4]), seen(2, 4, &[1, 2, 3])];
    let wanted = "cell 0: node 4 is removed, for ever; delete its data directory
cell 1: node 4 has never been a member; passed over
cell 2: node 4 is no member, and cannot become one; nothing was to do
node 4 still waits to join where it was passed over, and does not end by itself: stop it";
    assert_eq!(deeds(&remove(4), &[&before[0], &before[1]], &[CellId(1)]), wanted);
    let alone = deeds(&remove(4), &[&before[0]], &[]);
    assert_eq!(alone, "cell 0: node 4 is removed, for ever; delete its data directory");
}

#[test]
fn a_member_moves_only_to_where_it_can_be_reached() {
    for text in ["0.0.0.0:7400", "[::]:7400", "10.0.0.1:0"] {
        assert!(parse_client(text).is_err(), "{text}");
        assert!(parse_peer(text).is_err(), "{text}");
    }
    for text in ["no such host:7400", "host", ":7400", ""] {
        assert!(parse_client(text).is_err(), "{text}");
    }
    assert_eq!(parse_client("lock-1.example:7400").as_deref(), Ok("lock-1.example:7400"));
    assert_eq!(parse_peer("10.0.0.1:7500"), Ok("10.0.0.1:7500".parse().unwrap()));
}
