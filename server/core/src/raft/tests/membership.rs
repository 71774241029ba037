//! Members that come and go: learners, promotion, removal, replacement, and what is taken back.

use lockstep_wire::peer::{
    Append, Beat, BeatKind, CellHello, EntryRow, Manifest, MemberIncarnation, PeerMessage, PeerRefusal, kind,
};
use lockstep_wire::{BirthId, Incarnation, LogIndex, MemberChange, NodeId, RoundId, Rows, Term};

use super::super::{Raft, RaftConfig, Restored, Urgency};
use super::cluster::{CELL, Cluster};
use crate::members::MemberObjection;
use crate::{Effect, Effects, RecordHead, RecordKind, Report, Span, Time};

pub(super) const SECOND: Span = Span::from_ms(1_000);

type Outcome = Result<Option<LogIndex>, MemberObjection>;

fn change(cluster: &mut Cluster, change: &MemberChange<'_>) -> Outcome {
    let leader = cluster.serving_leader().expect("somebody serves");
    cluster.step(leader, |raft, now, fx| raft.change_members(change, &[], now, fx)).expect("the leader runs")
}

fn learner(cluster: &mut Cluster, node: NodeId) -> MemberChange<'static> {
    let incarnation = cluster.member(node.0).incarnation;
    addition(node, incarnation)
}

fn addition(node: NodeId, incarnation: Incarnation) -> MemberChange<'static> {
    let [peer_address, client_address] = ["peer", "client"].map(|name| &*format!("{name}-{node}").leak());
    MemberChange::AddLearner { node, incarnation, peer_address, client_address }
}

/// Does it, and waits until everybody who is a member then knows that it is committed.
pub(super) fn must_change(cluster: &mut Cluster, wish: &MemberChange<'_>) {
    assert!(matches!(change(cluster, wish), Ok(Some(_))), "{wish:?}");
    cluster.run_for(Span::from_ms(200));
    let leader = cluster.serving_leader().expect("somebody serves");
    assert!(!cluster.raft(leader.0).is_membership_changing(), "{wish:?} is committed");
}

pub(super) fn add(cluster: &mut Cluster) -> NodeId {
    let node = cluster.add_node();
    let wish = learner(cluster, node);
    must_change(cluster, &wish);
    node
}

fn voters(cluster: &Cluster, node: NodeId) -> Vec<u16> {
    cluster.raft(node.0).membership().voters().map(|node| node.0).collect()
}

#[test]
fn a_learner_catches_up_and_counts_only_once_it_is_promoted() {
    let mut cluster = Cluster::serving(3, 1);
    let leader = cluster.serving_leader().unwrap();
    for _ in 0..100 {
        cluster.propose(leader, b"some work");
    }
    let learner = add(&mut cluster);
    assert_eq!(cluster.raft(learner.0).role_name(), "learner");
    assert_eq!(cluster.raft(learner.0).last_index(), cluster.raft(leader.0).last_index());
    assert_eq!(cluster.raft(leader.0).majority(), 2);
    must_change(&mut cluster, &MemberChange::Promote { node: learner });
    assert_eq!(voters(&cluster, leader), [1, 2, 3, 4]);
    assert_eq!(voters(&cluster, learner), [1, 2, 3, 4]);
    assert_eq!(cluster.raft(learner.0).role_name(), "follower");
    // Three of four: two are not enough any more.
    let others: Vec<NodeId> = cluster.nodes().into_iter().filter(|node| *node != leader).collect();
    cluster.crash(others[0]);
    let index = cluster.propose(leader, b"with three").unwrap();
    cluster.run_for(Span::from_ms(50));
    assert!(cluster.raft(leader.0).committed() >= index);
    cluster.crash(others[1]);
    let index = cluster.propose(leader, b"with two").unwrap();
    cluster.run_for(Span::from_ms(50));
    assert!(cluster.raft(leader.0).committed() < index);
}

#[test]
fn a_learner_that_loses_its_leader_does_not_campaign() {
    let mut cluster = Cluster::serving(3, 2);
    let learner = add(&mut cluster);
    let term = cluster.raft(learner.0).term();
    cluster.isolate(learner);
    cluster.run_for(Span::from_ms(10_000));
    assert_eq!(cluster.raft(learner.0).term(), term);
    assert_eq!(cluster.raft(learner.0).role_name(), "learner");
}

#[test]
fn a_dead_node_is_replaced_by_one_with_a_new_id() {
    let mut cluster = Cluster::serving(3, 3);
    let leader = cluster.serving_leader().unwrap();
    let others: Vec<NodeId> = cluster.nodes().into_iter().filter(|node| *node != leader).collect();
    let (dead, left) = (others[0], others[1]);
    cluster.crash(dead);
    cluster.run_for(Span::from_ms(100));
    let new = add(&mut cluster);
    must_change(&mut cluster, &MemberChange::Promote { node: new });
    must_change(&mut cluster, &MemberChange::Remove { node: dead });
    // The cell bears the loss of one again.
    cluster.crash(left);
    let index = cluster.propose(leader, b"with the new one").unwrap();
    cluster.run_for(Span::from_ms(100));
    assert!(cluster.raft(leader.0).committed() >= index);
    cluster.crash(leader);
    cluster.start(left);
    assert_ne!(cluster.run_until_serving(Span::from_ms(10_000)), dead);
}

#[test]
fn a_removed_node_learns_it_and_disturbs_nobody() {
    let mut cluster = Cluster::serving(3, 4);
    let leader = cluster.serving_leader().unwrap();
    let removed = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    cluster.begin_trace();
    must_change(&mut cluster, &MemberChange::Remove { node: removed });
    assert!(cluster.end_trace().contains(&format!("{removed}    removed")));
    assert_eq!(cluster.raft(removed.0).role_name(), "removed");
    assert_eq!(cluster.raft(removed.0).leader(), None, "it names nobody who leads");
    let term = cluster.raft(leader.0).term();
    // Also when it was away, and its own log knows nothing of it.
    cluster.crash(removed);
    cluster.start(removed);
    cluster.run_for(Span::from_ms(5_000));
    assert_eq!(cluster.raft(removed.0).role_name(), "removed");
    assert_eq!((cluster.serving_leader(), cluster.raft(leader.0).term()), (Some(leader), term));
}

/// Whoever was removed votes by an older list, and what it has stored may be all that stands against that list's majority.
#[test]
fn a_node_that_was_removed_keeps_out_of_office_whoever_missed_an_earlier_removal() {
    let mut cluster = Cluster::serving(3, 26);
    let leader = cluster.serving_leader().unwrap();
    let others: Vec<NodeId> = cluster.nodes().into_iter().filter(|node| *node != leader).collect();
    let (kept, first) = (others[0], others[1]);
    cluster.crash(first);
    cluster.run_for(Span::from_ms(100));
    must_change(&mut cluster, &MemberChange::Remove { node: first });
    cluster.crash(kept);
    cluster.run_for(Span::from_ms(100));
    must_change(&mut cluster, &MemberChange::Remove { node: kept });
    let index = cluster.propose(leader, b"alone").unwrap();
    cluster.run_for(Span::from_ms(100));
    assert!(cluster.raft(leader.0).committed() >= index);
    cluster.start(kept);
    cluster.run_for(Span::from_ms(1_000));
    assert_eq!(cluster.raft(kept.0).role_name(), "removed");
    // By the list of the birth these are two of three.
    cluster.crash(leader);
    cluster.crash(kept);
    cluster.start(kept);
    cluster.start(first);
    cluster.run_for(Span::from_ms(20_000));
    assert_eq!(cluster.serving_leader(), None);
}

#[test]
fn what_would_cost_the_majority_is_refused() {
    let mut cluster = Cluster::serving(3, 5);
    let leader = cluster.serving_leader().unwrap();
    let others: Vec<NodeId> = cluster.nodes().into_iter().filter(|node| *node != leader).collect();
    assert_eq!(
        change(&mut cluster, &MemberChange::Remove { node: leader }),
        Err(MemberObjection::Leads(leader))
    );
    cluster.crash(others[0]);
    cluster.run_for(Span::from_ms(1_100));
    assert_eq!(
        change(&mut cluster, &MemberChange::Remove { node: others[1] }),
        Err(MemberObjection::NoMajority { heard: 1, voters: 2 })
    );
    // A hand-over would be in vain.
    assert_eq!(
        change(&mut cluster, &MemberChange::Remove { node: leader }),
        Err(MemberObjection::NoMajority { heard: 1, voters: 2 })
    );
    let node = cluster.add_node();
    cluster.crash(node);
    let wish = learner(&mut cluster, node);
    must_change(&mut cluster, &wish);
    assert_eq!(change(&mut cluster, &MemberChange::Promote { node }), Err(MemberObjection::Silent(node)));
    assert_eq!(change(&mut cluster, &wish), Ok(None), "asked again");
}

#[test]
fn a_member_that_stands_still_is_not_heard_though_its_link_stands() {
    let mut cluster = Cluster::serving(3, 9);
    let leader = cluster.serving_leader().unwrap();
    let still = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    let is_heard = |cluster: &Cluster, node| cluster.raft(leader.0).is_heard(node, cluster.now);
    assert!(cluster.nodes().into_iter().all(|node| is_heard(&cluster, node)));
    cluster.member(still.0).paused_until = cluster.now + Span::from_ms(5_000);
    cluster.run_for(Span::from_ms(3_000));
    assert_eq!(cluster.serving_leader(), Some(leader));
    assert!(!is_heard(&cluster, still));
    assert!(cluster.nodes().into_iter().all(|node| node == still || is_heard(&cluster, node)));
    assert!(cluster.raft(leader.0).accepts(still), "it is linked");
    cluster.run_for(Span::from_ms(3_000));
    assert!(cluster.nodes().into_iter().all(|node| {
        let leader = cluster.serving_leader().expect("there is a leader");
        cluster.raft(leader.0).is_heard(node, cluster.now)
    }));
}

#[test]
fn a_new_leader_has_heard_nobody_who_has_not_answered_it() {
    let mut cluster = Cluster::serving(3, 10);
    let leader = cluster.serving_leader().unwrap();
    let mut others = cluster.nodes().into_iter().filter(|node| *node != leader);
    let (still, to) = (others.next().unwrap(), others.next().unwrap());
    cluster.member(still.0).paused_until = cluster.now + Span::from_ms(60_000);
    cluster.run_for(Span::from_ms(3_000));
    assert_eq!(cluster.step(leader, |raft, now, fx| raft.transfer(to, now, fx)), Some(true));
    cluster.run_for(Span::from_ms(10));
    assert_eq!(cluster.serving_leader(), Some(to));
    let is_heard = |node| cluster.raft(to.0).is_heard(node, cluster.now);
    assert!(is_heard(leader) && is_heard(to) && !is_heard(still), "its link stands, and that is all");
    // The list would need it.
    assert_eq!(
        change(&mut cluster, &MemberChange::Remove { node: leader }),
        Err(MemberObjection::NoMajority { heard: 1, voters: 2 })
    );
}

#[test]
fn nobody_hands_over_to_a_member_that_stands_still() {
    for (seed, at) in [(11, 0), (12, 1)] {
        let mut cluster = Cluster::serving(3, seed);
        let leader = cluster.serving_leader().unwrap();
        let mut others: Vec<NodeId> = cluster.nodes().into_iter().filter(|node| *node != leader).collect();
        let still = others.remove(at);
        cluster.member(still.0).paused_until = cluster.now + Span::from_ms(60_000);
        cluster.run_for(Span::from_ms(3_000));
        assert!(cluster.raft(leader.0).accepts(still), "it is linked, and its log matches");
        assert_eq!(cluster.raft(leader.0).successor(cluster.now), Some(others[0]));
        assert_eq!(cluster.step(leader, |raft, now, fx| raft.transfer(still, now, fx)), Some(false));
        cluster.step(leader, |raft, now, fx| raft.on_stop(now, fx));
        cluster.run_for(Span::from_ms(10));
        assert_eq!(cluster.serving_leader(), Some(others[0]));
    }
}

#[test]
fn one_change_at_a_time_and_no_id_twice() {
    let mut cluster = Cluster::serving(3, 6);
    let (one, two) = (cluster.add_node(), cluster.add_node());
    let (first, second) = (learner(&mut cluster, one), learner(&mut cluster, two));
    assert!(change(&mut cluster, &first).is_ok());
    assert_eq!(change(&mut cluster, &second), Err(MemberObjection::ChangeUnderWay));
    cluster.run_for(Span::from_ms(100));
    must_change(&mut cluster, &second);
    must_change(&mut cluster, &MemberChange::Remove { node: two });
    for wish in [second, other_life(two)] {
        assert_eq!(change(&mut cluster, &wish), Err(MemberObjection::IdTaken { node: two, next: 6 }));
    }
}

#[test]
fn a_change_that_does_not_commit_is_taken_back_with_its_entry() {
    let mut cluster = Cluster::serving(3, 7);
    let old = cluster.serving_leader().unwrap();
    let removed = cluster.nodes().into_iter().find(|node| *node != old).unwrap();
    cluster.isolate(old);
    assert!(change(&mut cluster, &MemberChange::Remove { node: removed }).is_ok());
    assert_eq!(voters(&cluster, old).len(), 2, "it counts at once");
    cluster.run_until(Span::from_ms(10_000), "no other leader", |cluster| {
        cluster.serving_leader().is_some_and(|leader| leader != old)
    });
    let leader = cluster.serving_leader().unwrap();
    cluster.propose(leader, b"in the place of the change").unwrap();
    cluster.run_for(Span::from_ms(100));
    cluster.cut.clear();
    cluster.run_for(Span::from_ms(3_000));
    assert_eq!(voters(&cluster, old), [1, 2, 3]);
    assert!(!cluster.raft(old.0).is_membership_changing());
    assert_ne!(cluster.raft(removed.0).role_name(), "removed");
}

/// A list that adds `node` with a life that no directory has.
fn other_life(node: NodeId) -> MemberChange<'static> {
    addition(node, Incarnation([99; 16]))
}

#[test]
fn a_life_that_only_a_list_which_may_be_taken_back_names_keeps_no_other_out() {
    let mut cluster = Cluster::serving(3, 19);
    let node = cluster.add_node();
    cluster.run_for(Span::from_ms(200));
    let life = cluster.member(node.0).incarnation;
    let old = cluster.serving_leader().unwrap();
    cluster.isolate(old);
    assert!(change(&mut cluster, &other_life(node)).is_ok());
    cluster.run_until(Span::from_ms(10_000), "no other leader", |cluster| {
        cluster.serving_leader().is_some_and(|leader| leader != old)
    });
    let wish = learner(&mut cluster, node);
    must_change(&mut cluster, &wish);
    must_change(&mut cluster, &MemberChange::Promote { node });
    let leader = cluster.serving_leader().unwrap();
    cluster.step(leader, |raft, now, fx| assert!(raft.transfer(node, now, fx)));
    cluster.run_until(SECOND, "no hand-over", |cluster| cluster.serving_leader() == Some(node));
    // Who would have the list taken back is the one that it does not name. As long as the old leader takes itself for one
    // it counts, and then no more.
    assert_eq!(
        cluster.raft(old.0).objection_to(node, life),
        cluster.raft(old.0).is_leader().then_some(PeerRefusal::OtherIncarnation)
    );
    cluster.disconnect(old, node, false);
    cluster.run_for(Span::from_ms(10));
    cluster.cut.clear();
    cluster.connect(old, node);
    cluster.run_for(Span::from_ms(3_000));
    assert_eq!(cluster.raft(old.0).leader(), Some(node));
    assert_eq!(voters(&cluster, old), [1, 2, 3, 4]);
    let objection = cluster.raft(old.0).objection_to(node, Incarnation([99; 16]));
    assert_eq!(objection, Some(PeerRefusal::OtherIncarnation));
}

#[test]
fn a_learners_life_is_certain_once_it_votes_or_its_list_is_committed() {
    let mut cluster = Cluster::serving(3, 20);
    let other = Incarnation([77; 16]);
    let objection_after_a_restart = |cluster: &mut Cluster, node| {
        let away = cluster.nodes().into_iter().find(|node| Some(*node) != cluster.serving_leader()).unwrap();
        cluster.crash(away);
        cluster.run_for(Span::from_ms(10));
        cluster.isolate(away);
        cluster.start(away);
        let raft = cluster.raft(away.0);
        assert!(raft.is_membership_changing(), "it knows of nothing that is committed");
        let objection = raft.objection_to(node, other);
        cluster.cut.clear();
        cluster.run_for(Span::from_ms(2_000));
        assert_eq!(cluster.raft(away.0).objection_to(node, other), Some(PeerRefusal::OtherIncarnation));
        objection
    };
    let node = add(&mut cluster);
    assert_eq!(objection_after_a_restart(&mut cluster, node), None);
    must_change(&mut cluster, &MemberChange::Promote { node });
    assert_eq!(objection_after_a_restart(&mut cluster, node), Some(PeerRefusal::OtherIncarnation));
}

#[test]
fn what_another_life_has_stored_is_not_counted_for_the_one_that_is_listed() {
    let mut cluster = Cluster::serving(3, 21);
    let node = cluster.add_node();
    cluster.run_for(Span::from_ms(200));
    let leader = cluster.serving_leader().unwrap();
    cluster.isolate(leader);
    cluster.cut.remove(&(leader, node));
    cluster.cut.remove(&(node, leader));
    assert!(change(&mut cluster, &other_life(node)).is_ok());
    cluster.run_for(Span::from_ms(100));
    assert!(!cluster.raft(leader.0).accepts(node), "the leader's list names another life");
    assert_eq!(cluster.raft(leader.0).progress(node), Some(LogIndex(0)));
    cluster.wipe(node);
    cluster.run_for(Span::from_ms(10));
    cluster.cut.clear();
    cluster.run_for(Span::from_ms(1_000));
    assert!(!cluster.raft(leader.0).is_membership_changing(), "committed by the voters");
    cluster.member(node.0).incarnation = Incarnation([99; 16]);
    cluster.muted.insert((node, kind::APPEND_REPLY));
    cluster.start(node);
    cluster.run_for(Span::from_ms(200));
    assert!(cluster.raft(leader.0).accepts(node));
    assert_eq!(cluster.raft(leader.0).progress(node), Some(LogIndex(0)));
}

#[test]
fn a_member_that_was_away_follows_a_leader_that_it_does_not_know() {
    let mut cluster = Cluster::serving(3, 8);
    let leader = cluster.serving_leader().unwrap();
    let away = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    cluster.crash(away);
    let new = add(&mut cluster);
    must_change(&mut cluster, &MemberChange::Promote { node: new });
    cluster.step(leader, |raft, now, fx| assert!(raft.transfer(new, now, fx)));
    cluster.run_until(SECOND, "no hand-over", |cluster| cluster.serving_leader() == Some(new));
    cluster.start(away);
    cluster.run_for(Span::from_ms(2_000));
    assert_eq!(cluster.serving_leader(), Some(new));
    assert_eq!(cluster.raft(away.0).leader(), Some(new));
    assert_eq!(voters(&cluster, away), [1, 2, 3, 4]);
}

#[test]
fn a_node_knows_the_members_after_a_restart() {
    let mut cluster = Cluster::serving(3, 9);
    let new = add(&mut cluster);
    must_change(&mut cluster, &MemberChange::Promote { node: new });
    for node in cluster.nodes() {
        cluster.crash(node);
    }
    for node in [2, 3, 4].map(NodeId) {
        cluster.start(node);
        assert_eq!(voters(&cluster, node), [1, 2, 3, 4]);
    }
    cluster.run_until_serving(Span::from_ms(10_000));
}

#[test]
fn a_node_that_has_met_the_cell_that_it_is_to_join_says_once_that_it_waits() {
    let mut cluster = Cluster::serving(3, 13);
    let says = |cluster: &mut Cluster, ms| {
        cluster.begin_trace();
        cluster.run_for(Span::from_ms(ms));
        cluster.end_trace().matches("waits to be added").count()
    };
    let new = cluster.add_node();
    assert_eq!(says(&mut cluster, 30_000), 1);
    assert_eq!(cluster.raft(new.0).role_name(), "joining");
    cluster.crash(new);
    cluster.start(new);
    assert_eq!(says(&mut cluster, 30_000), 1, "in its next life again");
    let wish = learner(&mut cluster, new);
    must_change(&mut cluster, &wish);
    cluster.crash(new);
    cluster.start(new);
    assert_eq!(says(&mut cluster, 30_000), 0, "it was added");
}

#[test]
fn a_new_node_under_a_wiped_members_id_does_not_join() {
    let mut cluster = Cluster::serving(3, 10);
    let new = add(&mut cluster);
    cluster.wipe(new);
    cluster.run_for(Span::from_ms(10));
    cluster.start(new);
    cluster.run_for(Span::from_ms(2_000));
    let leader = cluster.serving_leader().unwrap();
    assert!(!cluster.raft(leader.0).accepts(new));
    let reports = &cluster.member(leader.0).reports;
    assert!(reports.iter().any(|report| report.contains("formatted again")), "{reports:?}");
}

#[test]
fn a_node_that_was_removed_before_it_heard_of_its_cells_birth_learns_it() {
    let mut cluster = Cluster::new(3, 11);
    cluster.start_all();
    cluster.run_until(SECOND, "no birth", |cluster| cluster.raft(1).is_born());
    let late = NodeId(3);
    cluster.crash(late);
    cluster.run_until_serving(Span::from_ms(10_000));
    must_change(&mut cluster, &MemberChange::Remove { node: late });
    cluster.start(late);
    assert!(!cluster.raft(late.0).is_born());
    cluster.run_for(Span::from_ms(2_000));
    assert_eq!(cluster.raft(late.0).role_name(), "removed");
}

#[test]
fn a_round_that_waits_for_a_voter_which_is_removed_is_confirmed_by_those_who_are_left() {
    let mut cluster = Cluster::serving(2, 12);
    let leader = cluster.serving_leader().unwrap();
    let removed = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    cluster.isolate(removed);
    let before = cluster.oracle().rounds_confirmed;
    cluster.ask_round(leader, Urgency::Now).unwrap();
    cluster.run_for(Span::from_ms(10));
    assert_eq!(cluster.oracle().rounds_confirmed, before, "one of two is no majority");
    must_change(&mut cluster, &MemberChange::Remove { node: removed });
    assert_eq!(cluster.oracle().rounds_confirmed, before + 1);
    cluster.ask_round(leader, Urgency::Now).unwrap();
    cluster.run_for(Span::from_ms(10));
    assert_eq!(cluster.oracle().rounds_confirmed, before + 2, "and so are later ones");
}

#[test]
fn only_the_life_that_was_removed_is_told_so() {
    let mut cluster = Cluster::serving(3, 13);
    let leader = cluster.serving_leader().unwrap();
    let removed = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    must_change(&mut cluster, &MemberChange::Remove { node: removed });
    cluster.crash(removed);
    cluster.run_for(Span::from_ms(10));
    let incarnation = Incarnation([77; 16]);
    for (birth, answer) in [(Some(BirthId([78; 16])), "OtherBirth"), (None, "NotMember")] {
        let hello = CellHello { incarnation, members_hash: 0, birth, is_born: birth.is_some() };
        cluster.begin_trace();
        cluster.step(leader, |raft, now, fx| {
            raft.on_message(removed, &PeerMessage::CellHello(hello), now, fx);
        });
        let trace = cluster.end_trace();
        assert!(trace.contains(&format!("{leader}>{removed}  refused {answer}")), "{trace}");
    }
}

#[test]
fn a_node_that_waited_to_join_before_the_birth_joins_after_it() {
    let mut cluster = Cluster::new(3, 14);
    cluster.start(NodeId(1));
    cluster.start(NodeId(2));
    let early = cluster.add_node();
    cluster.run_for(Span::from_ms(3_000));
    assert_eq!(cluster.raft(early.0).role_name(), "joining");
    cluster.start(NodeId(3));
    cluster.run_until_serving(Span::from_ms(5_000));
    cluster.run_for(Span::from_ms(2_000));
    let wish = learner(&mut cluster, early);
    must_change(&mut cluster, &wish);
    assert_eq!(cluster.raft(early.0).role_name(), "learner");
    must_change(&mut cluster, &MemberChange::Promote { node: early });
}

#[test]
fn strangers_who_spoke_once_keep_no_node_from_joining() {
    let mut cluster = Cluster::serving(3, 15);
    for stranger in 100..140 {
        let hello = CellHello {
            incarnation: Incarnation([9; 16]),
            members_hash: 0,
            birth: cluster.raft(1).birth.id(),
            is_born: true,
        };
        for node in cluster.nodes() {
            cluster.step(node, |raft, now, fx| {
                raft.on_message(NodeId(stranger), &PeerMessage::CellHello(hello), now, fx);
            });
        }
    }
    let new = add(&mut cluster);
    must_change(&mut cluster, &MemberChange::Promote { node: new });
    assert_eq!(voters(&cluster, new), [1, 2, 3, 4]);
}

#[test]
fn a_learner_that_has_answered_nothing_is_not_promoted() {
    let mut cluster = Cluster::serving(3, 16);
    let leader = cluster.serving_leader().unwrap();
    let node = cluster.add_node();
    cluster.run_for(Span::from_ms(100));
    cluster.cut.insert((node, leader));
    let wish = learner(&mut cluster, node);
    must_change(&mut cluster, &wish);
    let promotion = MemberChange::Promote { node };
    assert_eq!(change(&mut cluster, &promotion), Err(MemberObjection::Silent(node)));
    // It answers beats, and has said nothing of its log.
    let beat = Beat {
        cell: CELL,
        kind: BeatKind::Answer,
        term: cluster.raft(leader.0).term(),
        round: RoundId(0),
        committed: LogIndex(0),
        is_short_of_space: false,
    };
    cluster.step(leader, |raft, now, fx| raft.on_beat(node, beat, now, fx));
    assert_eq!(change(&mut cluster, &promotion), Err(MemberObjection::NotAnswered(node)));
}

#[test]
#[should_panic(expected = "has a list of members that this program cannot read")]
fn a_list_of_members_that_cannot_be_read_stops_the_node_before_it_is_recorded() {
    let mut cluster = Cluster::serving(3, 17);
    let leader = cluster.serving_leader().unwrap();
    let follower = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    let (term, last) = (cluster.raft(leader.0).term(), cluster.raft(leader.0).last_index());
    // The kind of a list, of a level that is not known here.
    let rows = [EntryRow { term, payload: &[2, 0, 0x41, 0, 0, 0] }];
    let append = PeerMessage::Append(Append {
        term,
        prev_index: last,
        prev_term: term,
        committed: last,
        entries: Rows::Slice(&rows),
    });
    cluster.step(follower, |raft, now, fx| raft.on_message(leader, &append, now, fx));
}

#[test]
fn another_life_under_a_members_id_is_objected_to() {
    let mut cluster = Cluster::serving(3, 18);
    let new = add(&mut cluster);
    let raft = cluster.raft(1);
    for (node, life) in [(NodeId(2), [2; 16]), (new, [4; 16]), (NodeId(9), [1; 16])] {
        assert_eq!(raft.objection_to(node, Incarnation(life)), None, "node {node}");
    }
    for node in [NodeId(2), new] {
        let objection = raft.objection_to(node, Incarnation([77; 16]));
        assert_eq!(objection, Some(PeerRefusal::OtherIncarnation), "node {node}");
    }
}

/// What node 1 says that was born alone, is configured with these nodes, and has lost the state of its only snapshot:
/// why it halts, and what it waits for.
fn words_without_state(nodes: &[u16]) -> (Option<String>, Option<String>) {
    let own = MemberIncarnation { node: NodeId(1), incarnation: Incarnation([1; 16]) };
    let manifest = Manifest { birth: BirthId([1; 16]), members: Rows::Slice(&[own]) };
    let mut payload = Vec::new();
    manifest.put(&mut payload);
    let mut restored = Restored::new();
    for (kind, term, index, payload) in [
        (RecordKind::Manifest, 0, 0, &payload[..]),
        (RecordKind::Born, 0, 0, &[]),
        (RecordKind::HardState, 3, 0, &[0, 0]),
        (RecordKind::SnapshotMark, 3, 80, &[]),
        (RecordKind::Entry, 3, 81, b"entry"),
    ] {
        restored.on_record(RecordHead { kind, term: Term(term), index: LogIndex(index) }, payload);
    }
    let config = RaftConfig {
        cell: CELL,
        node: NodeId(1),
        members: nodes.iter().copied().map(NodeId).collect(),
        is_joining: false,
        incarnation: own.incarnation,
        birth_id: BirthId([1; 16]),
        heartbeat: Span::from_ms(50),
        election_min: Span::from_ms(500),
        election_max: Span::from_ms(1_000),
        seed: 1,
        blank: Vec::new(),
        cache_bytes_max: 0,
        inflight_bytes_max: 0,
        preference: Span(0),
        round_pace: Span::from_ms(3),
    };
    let (mut raft, mut fx) = (Raft::new(config, restored, Time(0)), Effects::new());
    raft.on_tick(Time(10_000_000_000), &mut fx);
    let halted = fx.list().iter().find_map(|effect| match effect {
        Effect::Halt(halt) => Some(halt.reason.clone()),
        _ => None,
    });
    let waiting = fx.list().iter().find_map(|effect| match effect {
        Effect::Report(Report::Refused { reason, .. }) => Some(reason.clone()),
        _ => None,
    });
    (halted, waiting)
}

#[test]
fn a_node_that_was_born_alone_and_lost_its_state_waits_for_others_that_it_knows_of() {
    let (halted, _) = words_without_state(&[1]);
    assert!(halted.expect("nobody has it").contains("put them under `nodes`"));
    let (halted, waiting) = words_without_state(&[1, 2, 3]);
    assert_eq!(halted, None, "the cell has grown, and they have it");
    assert!(waiting.expect("somebody must know").contains("no leader is heard"));
}
