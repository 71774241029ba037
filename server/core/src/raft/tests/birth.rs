//! How a cell is born, and whom it does not let in.

use expect_test::expect;
use lockstep_wire::peer::{Ballot, CellHello, Manifest, MemberIncarnation, PeerMessage, PeerRefusal, kind};
use lockstep_wire::{BirthId, LogIndex, NodeId, Rows, Term};

use super::cluster::Cluster;
use crate::Span;
use crate::raft::birth::members_hash;

#[test]
fn lowest_member_gives_birth_once_it_knows_everybody() {
    let mut cluster = Cluster::new(3, 1);
    cluster.begin_trace();
    cluster.start(NodeId(1));
    cluster.start(NodeId(2));
    cluster.run_for(Span::from_ms(5));
    cluster.note("3 starts");
    cluster.start(NodeId(3));
    cluster.run_for(Span::from_ms(5));
    expect![[r#"
        0.2    2>1  hello
        0.2    1>2  hello
        5.0    -- 3 starts
        5.2    3>1  hello
        5.2    1>3  hello
        5.2    3>2  hello
        5.2    2>3  hello
        5.4    1    log 1: manifest
        5.5    1>2  manifest of 3
        5.5    1>3  manifest of 3
        5.7    2    log 1: manifest
        5.7    3    log 1: manifest
        5.8    2>1  manifest stored
        5.8    3>1  manifest stored
        6.0    1    log 2: born
        6.1    1    born
        6.1    1>2  born
        6.1    1>3  born
        6.1    1>2  vote? Pre term 1 log 0@0
        6.1    1>3  vote? Pre term 1 log 0@0
        6.3    2    born
        6.3    2    log 2: born
        6.3    3    born
        6.3    3    log 2: born
        6.3    2>1  vote yes Pre term 1
        6.3    3>1  vote yes Pre term 1
        6.5    1    log 3: term 1 vote 1
        6.6    1>2  vote? Real term 1 log 0@0
        6.6    1>3  vote? Real term 1 log 0@0
        6.8    2    log 3: term 1 vote 1
        6.8    3    log 3: term 1 vote 1
        6.9    2>1  vote yes Real term 1
        6.9    3>1  vote yes Real term 1
        7.1    1    elected in term 1
        7.1    1    log 4: entry 1@1 blank
        7.1    1>2  append term 1 after 0@0: 1..1, committed 0
        7.1    1>3  append term 1 after 0@0: 1..1, committed 0
        7.3    2    follows 1
        7.3    3    follows 1
        7.3    2    log 4: entry 1@1 blank
        7.3    3    log 4: entry 1@1 blank
        7.4    2>1  durable through 1 term 1
        7.4    3>1  durable through 1 term 1
        7.6    1    serves in term 1
    "#]]
    .assert_eq(&cluster.end_trace());
}

#[test]
fn lone_member_gives_birth_to_itself_and_serves() {
    let mut cluster = Cluster::new(1, 1);
    cluster.begin_trace();
    cluster.start(NodeId(1));
    cluster.run_for(Span::from_ms(5));
    cluster.note("a proposal, then a crash before the disk has another one");
    cluster.propose(NodeId(1), b"x");
    cluster.run_for(Span::from_ms(1));
    cluster.propose(NodeId(1), b"y");
    cluster.crash(NodeId(1));
    cluster.start(NodeId(1));
    cluster.run_for(Span::from_ms(5));
    expect![[r#"
        0.0    1    log 1: manifest
        0.1    1    log 2: born
        0.2    1    born
        0.2    1    log 3: term 1 vote 1
        0.3    1    elected in term 1
        0.3    1    log 4: entry 1@1 blank
        0.4    1    serves in term 1
        5.0    -- a proposal, then a crash before the disk has another one
        5.0    1    log 5: entry 2@1 x
        6.0    1    log 6: entry 3@1 y
        6.0    1    log 1: term 2 vote 1
        6.1    1    elected in term 2
        6.1    1    log 2: entry 3@2 blank
        6.2    1    serves in term 2
    "#]]
    .assert_eq(&cluster.end_trace());
    assert_eq!(cluster.member(1).applied, 3, "two blanks and x");
}

#[test]
fn restarted_members_need_no_second_birth() {
    let mut cluster = Cluster::serving(3, 2);
    for node in cluster.nodes() {
        cluster.crash(node);
    }
    cluster.run_for(Span::from_ms(10));
    cluster.begin_trace();
    cluster.start_all();
    cluster.run_until_serving(Span::from_ms(400));
    let trace = cluster.end_trace();
    assert!(!trace.contains("manifest") && trace.contains("hello born"), "{trace}");
}

#[test]
fn member_that_crashed_between_manifest_and_birth_confirms_again() {
    let mut cluster = Cluster::new(3, 3);
    cluster.start_all();
    cluster.member(3).disk_delay = Span::from_ms(20);
    cluster.run_for(Span::from_ms(25));
    assert!(cluster.raft(2).role_name() == "unborn" || cluster.raft(2).leader().is_some());
    cluster.crash(NodeId(3));
    cluster.crash(NodeId(2));
    cluster.run_for(Span::from_ms(10));
    cluster.start(NodeId(2));
    cluster.start(NodeId(3));
    cluster.run_until_serving(Span::from_ms(3_000));
}

#[test]
fn birth_survives_a_crash_at_any_moment() {
    for crashed in 1..=3 {
        for at in 0..30 {
            let mut cluster = Cluster::new(3, at);
            cluster.start_all();
            cluster.run_for(Span(at * 50_000));
            cluster.crash(NodeId(crashed));
            cluster.run_for(Span::from_ms(3));
            cluster.start(NodeId(crashed));
            cluster.run_until_serving(Span::from_ms(5_000));
            assert!(cluster.members.iter().all(|member| member.reports.is_empty()));
        }
    }
}

#[test]
fn wiped_member_is_refused_told_so_and_never_votes() {
    let mut cluster = Cluster::serving(3, 4);
    let leader = cluster.serving_leader().unwrap();
    let wiped = NodeId(if leader.0 == 3 { 2 } else { 3 });
    cluster.wipe(wiped);
    cluster.run_for(Span::from_ms(10));
    cluster.begin_trace();
    cluster.start(wiped);
    cluster.run_for(Span::from_ms(20));
    expect![[r#"
        72.8   3>1  hello
        72.8   1>3  hello born
        72.8   3>2  hello
        72.8   2>3  hello born
        73.0   1>3  refused OtherIncarnation
        73.0   1    reports: cell 7: another directory than the member's runs under the id of node 3: it was formatted again, or is a stray beside the member. It does not know what the member promised, so it may not vote under this id; stop it, and start the member with its old data directory if there is one (if the cell is still unborn, format all members again instead; if the cell was restored, one of the two is of the old cell: stop that one for good)
        73.0   2>3  refused OtherIncarnation
        73.0   2    reports: cell 7: another directory than the member's runs under the id of node 3: it was formatted again, or is a stray beside the member. It does not know what the member promised, so it may not vote under this id; stop it, and start the member with its old data directory if there is one (if the cell is still unborn, format all members again instead; if the cell was restored, one of the two is of the old cell: stop that one for good)
        73.2   3    reports: refused by node 1: cell 7: another directory than the member's runs under the id of node 3: it was formatted again, or is a stray beside the member. It does not know what the member promised, so it may not vote under this id; stop it, and start the member with its old data directory if there is one (if the cell is still unborn, format all members again instead; if the cell was restored, one of the two is of the old cell: stop that one for good)
        73.2   3    reports: refused by node 2: cell 7: another directory than the member's runs under the id of node 3: it was formatted again, or is a stray beside the member. It does not know what the member promised, so it may not vote under this id; stop it, and start the member with its old data directory if there is one (if the cell is still unborn, format all members again instead; if the cell was restored, one of the two is of the old cell: stop that one for good)
    "#]].assert_eq(&cluster.end_trace());

    cluster.note("without the leader, the wiped one makes no majority");
    cluster.crash(leader);
    cluster.run_for(Span::from_ms(10_000));
    assert_eq!(cluster.serving_leader(), None);
    assert_eq!(cluster.raft(wiped.0).term(), Term(0));
    assert_eq!(cluster.raft(wiped.0).last_index(), LogIndex(0));
}

#[test]
fn member_wiped_in_the_middle_of_birth_leaves_a_cell_that_says_it_is_unborn() {
    let mut cluster = Cluster::new(3, 5);
    cluster.start_all();
    cluster.member(3).disk_delay = Span::from_ms(20);
    cluster.run_for(Span::from_ms(10));
    cluster.wipe(NodeId(3));
    cluster.run_for(Span::from_ms(1));
    cluster.start(NodeId(3));
    cluster.run_for(Span::from_ms(30_000));
    assert_eq!(cluster.serving_leader(), None);
    let life = cluster.member(3).incarnation;
    assert_eq!(cluster.raft(1).objection_to(NodeId(3), life), Some(PeerRefusal::Unborn));
    assert_eq!(cluster.raft(2).objection_to(NodeId(3), life), Some(PeerRefusal::OtherIncarnation));
    let reports: Vec<String> = cluster.member(1).reports.iter().cloned().collect();
    expect![[r#"
        cell 7 is unborn: node 3 was formatted again before the birth was complete; nothing was ever acknowledged, so format all members again"#]].assert_eq(&reports.join("\n"));
    let reports: Vec<String> = cluster.member(3).reports.iter().cloned().collect();
    expect![[r#"
        cell 7 is unborn as far as this node knows: waiting for node 1 to say who it is and to store the list of members; if a member says that another directory than the member's runs under the id of this node, that is why
        refused by node 1: cell 7 is unborn: node 3 was formatted again before the birth was complete; nothing was ever acknowledged, so format all members again
        refused by node 2: cell 7: another directory than the member's runs under the id of node 3: it was formatted again, or is a stray beside the member. It does not know what the member promised, so it may not vote under this id; stop it, and start the member with its old data directory if there is one (if the cell is still unborn, format all members again instead; if the cell was restored, one of the two is of the old cell: stop that one for good)"#]].assert_eq(&reports.join("\n"));
}

#[test]
fn unborn_cell_says_whom_it_waits_for() {
    let mut cluster = Cluster::new(3, 6);
    cluster.start(NodeId(1));
    cluster.start(NodeId(3));
    cluster.run_for(Span::from_ms(15_000));
    let reports: Vec<String> = cluster.member(1).reports.iter().cloned().collect();
    expect!["cell 7 is unborn as far as this node knows: waiting for node 2 to say who it is and to store the list of members; if a member says that another directory than the member's runs under the id of this node, that is why"].assert_eq(&reports.join("\n"));
    assert_eq!(cluster.raft(1).role_name(), "unborn");
}

#[test]
fn whoever_waits_to_join_before_the_birth_stands_for_nobody() {
    let mut cluster = Cluster::new(3, 11);
    cluster.start_all();
    cluster.member(3).disk_delay = Span::from_ms(20);
    cluster.run_for(Span::from_ms(1));
    let early = cluster.add_node();
    cluster.run_for(Span::from_ms(15));
    assert!(cluster.nodes().iter().all(|node| !cluster.raft(node.0).is_born()), "node 3 has stored nothing");
    cluster.run_until_serving(Span::from_ms(100));
    assert!([1, 2, 3].iter().all(|node| cluster.raft(*node).is_born()));
    cluster.run_for(Span::from_ms(2_000));
    assert!(cluster.raft(early.0).is_born(), "it has met the cell");
}

#[test]
fn whoever_waits_to_join_is_bound_whenever_it_came() {
    for (count, disk_delay_ms) in [(1, 5), (1, 20), (3, 5), (3, 20)] {
        for came_at_ms in 0..45 {
            let mut cluster = Cluster::new(count, came_at_ms);
            cluster.start_all();
            for node in 1..=count {
                cluster.member(node).disk_delay = Span::from_ms(disk_delay_ms);
            }
            cluster.run_for(Span::from_ms(came_at_ms));
            let joiner = cluster.add_node();
            cluster.run_until_serving(Span::from_ms(3_000));
            cluster.run_for(Span::from_ms(1_500));
            let what = format!("{count} members, disks of {disk_delay_ms} ms, it came after {came_at_ms} ms");
            assert!(cluster.raft(joiner.0).is_born(), "{what}");
        }
    }
}

#[test]
fn strangers_crowd_no_configured_member_out_of_a_node_that_waits_to_join() {
    let mut cluster = Cluster::new(3, 10);
    let early = cluster.add_node();
    for stranger in 100..140 {
        cluster.step(early, |raft, now, fx| raft.on_link_up(NodeId(stranger), now, fx));
    }
    for node in [1, 2, 3].map(NodeId) {
        assert!(cluster.raft(early.0).peers().any(|peer| peer == node), "node {node} is to be looked for");
        cluster.start(node);
    }
    cluster.run_until_serving(Span::from_ms(5_000));
    cluster.run_for(Span::from_ms(2_000));
    assert!(cluster.raft(early.0).is_born(), "it has met the cell");
}

#[test]
fn second_manifest_is_refused() {
    let mut cluster = Cluster::serving(3, 7);
    let members: Vec<MemberIncarnation> = cluster
        .members
        .iter()
        .map(|member| MemberIncarnation { node: member.node, incarnation: member.incarnation })
        .collect();
    let second = Manifest { birth: BirthId([9; 16]), members: Rows::Slice(&members) };
    cluster.begin_trace();
    cluster.step(NodeId(2), |raft, now, fx| {
        raft.on_message(NodeId(1), &PeerMessage::Manifest(second), now, fx);
    });
    let trace = cluster.end_trace();
    assert!(trace.contains("2>1  refused OtherBirth") && !trace.contains("log"), "{trace}");
}

#[test]
fn what_a_stranger_says_about_the_log_is_ignored() {
    let mut cluster = Cluster::serving(3, 8);
    let leader = cluster.serving_leader().unwrap();
    let follower = NodeId(if leader.0 == 2 { 3 } else { 2 });
    let vote = PeerMessage::Vote {
        ballot: Ballot::TakeOver,
        term: Term(99),
        last_index: LogIndex(99),
        last_term: Term(98),
    };
    cluster.disconnect(NodeId(1), follower, false);
    cluster.run_for(Span::from_ms(1));
    cluster.begin_trace();
    for stranger in [NodeId(1), NodeId(77)] {
        cluster.step(follower, |raft, now, fx| raft.on_message(stranger, &vote, now, fx));
        assert!(!cluster.raft(follower.0).accepts(stranger));
    }
    assert_eq!(cluster.end_trace(), "");
    assert_eq!(cluster.raft(follower.0).term(), Term(1));
}

#[test]
fn other_list_of_members_is_refused() {
    let mut cluster = Cluster::new(3, 9);
    cluster.start(NodeId(1));
    let hello = CellHello {
        incarnation: cluster.members[2].incarnation,
        members_hash: 1,
        birth: None,
        is_born: false,
    };
    cluster.begin_trace();
    cluster.step(NodeId(1), |raft, now, fx| {
        raft.on_message(NodeId(3), &PeerMessage::CellHello(hello), now, fx);
    });
    assert!(cluster.end_trace().contains("1>3  refused OtherMembers"));
    assert!(!cluster.raft(1).accepts(NodeId(3)));
    // After the birth the manifest and the log say who the members are.
    let mut cluster = Cluster::serving(3, 9);
    cluster.step(NodeId(1), |raft, now, fx| {
        let hello = CellHello { birth: raft.birth.id(), is_born: true, ..hello };
        raft.on_message(NodeId(3), &PeerMessage::CellHello(hello), now, fx);
    });
    assert!(cluster.raft(1).accepts(NodeId(3)));
}

#[test]
fn hello_that_the_birth_overtook_does_not_part_two_members_for_good() {
    let mut cluster = Cluster::serving(3, 12);
    let early = CellHello {
        incarnation: cluster.member(2).incarnation,
        members_hash: members_hash(&cluster.nodes()),
        birth: None,
        is_born: false,
    };
    cluster.step(NodeId(3), |raft, now, fx| raft.on_hello(NodeId(2), &early, now, fx));
    assert!(cluster.raft(3).accepts(NodeId(2)), "it has said more than that already");
    cluster.disconnect(NodeId(2), NodeId(3), false);
    cluster.run_for(Span::from_ms(1));
    cluster.muted.insert((NodeId(2), kind::CELL_HELLO));
    cluster.connect(NodeId(2), NodeId(3));
    cluster.run_for(Span::from_ms(1));
    cluster.step(NodeId(3), |raft, now, fx| raft.on_hello(NodeId(2), &early, now, fx));
    assert!(!cluster.raft(3).accepts(NodeId(2)), "it may have forgotten what it stored");
    cluster.muted.clear();
    cluster.run_for(Span::from_ms(2_000));
    assert!(cluster.raft(3).accepts(NodeId(2)));
}
