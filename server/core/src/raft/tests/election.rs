//! Who leads, and who must not: silence, crashes, flapping links, hung disks, transfers.

use expect_test::expect;
use lockstep_wire::peer::kind;
use lockstep_wire::{LogIndex, NodeId, Term};

use super::cluster::{Cluster, ELECTION_MAX};
use crate::{Span, Time};

const SECOND: Span = Span::from_ms(1_000);

#[test]
fn first_election_begins_with_a_pre_vote() {
    let mut cluster = Cluster::new(3, 1);
    cluster.start_all();
    cluster.run_until(SECOND, "unborn", |cluster| cluster.raft(1).role_name() != "unborn");
    cluster.begin_trace();
    cluster.has_beats_in_trace = true;
    cluster.run_for(Span::from_ms(3));
    expect![[r#"
        1.3    2    born
        1.3    2    log 2: born
        1.3    3    born
        1.3    3    log 2: born
        1.3    2>1  vote yes Pre term 1
        1.3    3>1  vote yes Pre term 1
        1.5    1    log 3: term 1 vote 1
        1.6    1>2  vote? Real term 1 log 0@0
        1.6    1>3  vote? Real term 1 log 0@0
        1.8    2    log 3: term 1 vote 1
        1.8    3    log 3: term 1 vote 1
        1.9    2>1  vote yes Real term 1
        1.9    3>1  vote yes Real term 1
        2.1    1    elected in term 1
        2.1    1    log 4: entry 1@1 blank
        2.1    1>2  beat term 1 round 0 committed 0
        2.1    1>3  beat term 1 round 0 committed 0
        2.1    1>2  append term 1 after 0@0: 1..1, committed 0
        2.1    1>3  append term 1 after 0@0: 1..1, committed 0
        2.3    2    follows 1
        2.3    2>1  answer term 1 round 0
        2.3    3    follows 1
        2.3    3>1  answer term 1 round 0
        2.3    2    log 4: entry 1@1 blank
        2.3    3    log 4: entry 1@1 blank
        2.4    2>1  durable through 1 term 1
        2.4    3>1  durable through 1 term 1
        2.6    1    serves in term 1
    "#]]
    .assert_eq(&cluster.end_trace());
}

#[test]
fn crashed_leader_is_replaced_within_milliseconds() {
    let mut cluster = Cluster::serving(5, 2);
    let leader = cluster.serving_leader().unwrap();
    let crashed_at = cluster.now;
    cluster.begin_trace();
    cluster.crash(leader);
    cluster.run_until(SECOND, "no new leader", |cluster| {
        cluster.serving_leader().is_some_and(|new| new != leader)
    });
    expect![[r#"
        63.8   2>3  vote? Pre term 2 log 1@1
        63.8   2>4  vote? Pre term 2 log 1@1
        63.8   2>5  vote? Pre term 2 log 1@1
        64.0   3>2  vote yes Pre term 2
        64.0   4>2  vote yes Pre term 2
        64.0   5>2  vote yes Pre term 2
        64.2   2    log 5: term 2 vote 2
        64.3   2>3  vote? Real term 2 log 1@1
        64.3   2>4  vote? Real term 2 log 1@1
        64.3   2>5  vote? Real term 2 log 1@1
        64.5   3    log 5: term 2 vote 2
        64.5   4    log 5: term 2 vote 2
        64.5   5    log 5: term 2 vote 2
        64.6   3>2  vote yes Real term 2
        64.6   4>2  vote yes Real term 2
        64.6   5>2  vote yes Real term 2
        64.8   2    elected in term 2
        64.8   2    log 6: entry 2@2 blank
        64.8   2>3  append term 2 after 1@1: 2..2, committed 1
        64.8   2>4  append term 2 after 1@1: 2..2, committed 1
        64.8   2>5  append term 2 after 1@1: 2..2, committed 1
        65.0   3    follows 2
        65.0   4    follows 2
        65.0   5    follows 2
        65.0   3    log 6: entry 2@2 blank
        65.0   4    log 6: entry 2@2 blank
        65.0   5    log 6: entry 2@2 blank
        65.1   3>2  durable through 2 term 2
        65.1   4>2  durable through 2 term 2
        65.1   5>2  durable through 2 term 2
        65.3   2    serves in term 2
    "#]]
    .assert_eq(&cluster.end_trace());
    assert!(cluster.now.since(crashed_at) < Span::from_ms(20));
}

#[test]
fn crashed_leader_is_replaced_within_milliseconds_whoever_notices_first() {
    for seed in 0..200 {
        let mut cluster = Cluster::serving(5, seed);
        let leader = cluster.serving_leader().unwrap();
        let crashed_at = cluster.now;
        // The links of a process break at slightly different times.
        cluster.members[usize::from(leader.0) - 1].raft = None;
        for peer in cluster.nodes() {
            let pause = Span(cluster.random.below(3_000_000));
            cluster.disconnect(leader, peer, true);
            cluster.run_for(pause);
        }
        cluster.run_until(SECOND, "no new leader", |cluster| cluster.serving_leader().is_some());
        assert!(cluster.now.since(crashed_at) < Span::from_ms(100), "seed {seed}: {:?}", cluster.now);
    }
}

#[test]
fn crashed_leader_is_replaced_quickly_although_disks_are_slower_than_the_stagger() {
    for seed in 0..500 {
        let mut cluster = Cluster::serving(5, seed);
        let leader = cluster.serving_leader().unwrap();
        cluster.faults.duplicate = 1;
        for node in cluster.nodes() {
            let slow = Span(cluster.random.below(20_000_000));
            cluster.member(node.0).disk_delay = slow;
        }
        let crashed_at = cluster.now;
        cluster.crash(leader);
        cluster.run_until(SECOND, "no new leader", |cluster| cluster.serving_leader().is_some());
        let took = cluster.now.since(crashed_at);
        assert!(took < Span::from_ms(150), "seed {seed}: {took}");
    }
}

#[test]
fn leader_that_restarts_at_once_does_not_block_the_cell() {
    let mut cluster = Cluster::serving(3, 3);
    let leader = cluster.serving_leader().unwrap();
    cluster.crash(leader);
    cluster.start(leader);
    cluster.run_until(Span::from_ms(300), "nobody serves", |cluster| cluster.serving_leader().is_some());
}

#[test]
fn survivors_of_a_silent_leader_elect_one_for_every_seed() {
    for seed in 0..3_000 {
        let mut cluster = Cluster::serving(3, seed);
        let leader = cluster.serving_leader().unwrap();
        cluster.isolate(leader);
        // Both survivors run out of patience nearly together.
        let at = cluster.now + Span::from_ms(600);
        for member in cluster.members.iter_mut().filter(|member| member.node != leader) {
            let offset = Span(cluster.random.below(500_000));
            member.raft.as_mut().unwrap().election_at = at + offset;
        }
        cluster.run_until(Span::from_ms(10_000), "no leader", |cluster| {
            cluster.serving_leader().is_some_and(|new| new != leader)
        });
    }
}

#[test]
fn flapping_member_changes_neither_leader_nor_term() {
    for (peers, has_load) in [("all", true), ("all", false), ("leader", true), ("leader", false)] {
        let mut cluster = Cluster::serving(3, 4);
        let leader = cluster.serving_leader().unwrap();
        let term = cluster.raft(leader.0).term();
        let flapping = NodeId(if leader.0 == 3 { 2 } else { 3 });
        let mut others = cluster.nodes();
        others.retain(|node| *node != flapping && (peers == "all" || *node == leader));
        for round in 0u64..200 {
            for peer in &others {
                cluster.disconnect(flapping, *peer, round % 2 == 0);
            }
            for _ in 0..5 {
                if has_load {
                    cluster.propose(leader, b"work");
                }
                cluster.run_for(Span::from_ms(100 + 30 * (round % 7)));
            }
            for peer in &others {
                cluster.connect(flapping, *peer);
            }
            cluster.run_for(Span::from_ms(100 + 40 * (round % 20)));
        }
        assert_eq!(cluster.serving_leader(), Some(leader), "{peers} {has_load}");
        assert!(cluster.nodes().iter().all(|node| cluster.raft(node.0).term() == term));
        assert_eq!(cluster.oracle().leaders.len(), 1);
    }
}

#[test]
fn member_that_does_not_hear_the_leader_deposes_it_with_nobodys_help() {
    // The link stays up and only this direction is silent, for longer than any timeout.
    let mut cluster = Cluster::serving(3, 14);
    let leader = cluster.serving_leader().unwrap();
    let deaf = NodeId(if leader.0 == 3 { 2 } else { 3 });
    cluster.cut.insert((leader, deaf));
    cluster.run_for(Span::from_ms(20_000));
    assert_eq!(cluster.raft(deaf.0).role_name(), "pre-candidate");
    cluster.cut.clear();
    cluster.run_for(SECOND);
    assert_eq!(cluster.serving_leader(), Some(leader));
    assert_eq!(cluster.raft(deaf.0).leader(), Some(leader));
    assert_eq!(cluster.oracle().leaders.len(), 1);
}

#[test]
fn leader_without_a_majority_steps_down() {
    let mut cluster = Cluster::serving(3, 5);
    let leader = cluster.serving_leader().unwrap();
    cluster.isolate(leader);
    cluster.run_for(Span::from_ms(900));
    assert!(cluster.raft(leader.0).is_leader());
    cluster.run_for(Span::from_ms(200));
    assert!(!cluster.raft(leader.0).is_leader());
    assert!(!cluster.raft(leader.0).has_quorum_contact(cluster.now));
}

#[test]
fn one_way_silence_from_the_leader_is_noticed() {
    let mut cluster = Cluster::serving(3, 6);
    let leader = cluster.serving_leader().unwrap();
    for peer in cluster.nodes() {
        cluster.cut.insert((leader, peer));
    }
    cluster.run_until(Span::from_ms(5_000), "no new leader", |cluster| {
        cluster.serving_leader().is_some_and(|new| new != leader)
    });
}

#[test]
fn vote_leaves_only_once_it_is_durable_and_is_remembered() {
    // Crashes at every point between a vote's request and its reply; the oracle notices a second vote.
    for after in 0..60u64 {
        let mut cluster = Cluster::serving(3, after);
        let leader = cluster.serving_leader().unwrap();
        let followers: Vec<NodeId> = cluster.nodes().into_iter().filter(|node| *node != leader).collect();
        cluster.isolate(leader);
        cluster.member(followers[1].0).disk_delay = Span::from_ms(1);
        let term = cluster.raft(followers[0].0).term();
        cluster.members[usize::from(followers[0].0) - 1].raft.as_mut().unwrap().election_at =
            cluster.now + Span::from_ms(700);
        cluster.members[usize::from(followers[1].0) - 1].raft.as_mut().unwrap().election_at = Time::NEVER;
        cluster.run_until(Span::from_ms(3_000), "no candidate", |cluster| {
            cluster.raft(followers[0].0).term() > term
        });
        cluster.run_for(Span(after * 50_000));
        cluster.crash(followers[1]);
        cluster.run_for(Span::from_ms(5));
        cluster.cut.clear();
        cluster.start(followers[1]);
        cluster.run_for(Span::from_ms(50));
        cluster.crash(followers[0]);
        cluster.run_until_serving(Span::from_ms(6_000));
    }
}

#[test]
fn transfer_hands_over_in_order() {
    let mut cluster = Cluster::serving(3, 7);
    let leader = cluster.serving_leader().unwrap();
    let to = NodeId(if leader.0 == 2 { 3 } else { 2 });
    cluster.begin_trace();
    assert_eq!(cluster.step(leader, |raft, now, fx| raft.transfer(to, now, fx)), Some(true));
    assert_eq!(cluster.propose(leader, b"refused meanwhile"), None);
    cluster.run_for(Span::from_ms(2));
    expect![[r#"
        62.6   1>2  take over from term 1
        62.8   2    log 5: term 2 vote 2
        62.9   2>1  vote? TakeOver term 2 log 1@1
        62.9   2>3  vote? TakeOver term 2 log 1@1
        63.1   1    deposed in term 1 as planned: another member campaigns in a newer term
        63.1   1    log 5: term 2 vote 2
        63.1   3    log 5: term 2 vote 2
        63.2   1>2  vote yes TakeOver term 2
        63.2   3>2  vote yes TakeOver term 2
        63.4   2    elected in term 2
        63.4   2    log 6: entry 2@2 blank
        63.4   2>1  append term 2 after 1@1: 2..2, committed 1
        63.4   2>3  append term 2 after 1@1: 2..2, committed 1
        63.6   1    follows 2
        63.6   3    follows 2
        63.6   1    log 6: entry 2@2 blank
        63.6   3    log 6: entry 2@2 blank
        63.7   1>2  durable through 2 term 2
        63.7   3>2  durable through 2 term 2
        63.9   2    serves in term 2
    "#]]
    .assert_eq(&cluster.end_trace());
    assert_eq!(cluster.serving_leader(), Some(to));
}

#[test]
fn transfer_to_an_unreachable_member_ends_and_writes_resume() {
    let mut cluster = Cluster::serving(3, 8);
    let leader = cluster.serving_leader().unwrap();
    let to = NodeId(if leader.0 == 3 { 2 } else { 3 });
    cluster.cut.insert((leader, to));
    cluster.propose(leader, b"x");
    assert_eq!(cluster.step(leader, |raft, now, fx| raft.transfer(to, now, fx)), Some(true));
    assert_eq!(cluster.propose(leader, b"y"), None);
    cluster.run_for(ELECTION_MAX);
    assert!(cluster.raft(leader.0).is_leader() && !cluster.raft(leader.0).is_transferring());
    assert!(cluster.propose(leader, b"z").is_some());
    cluster.cut.clear();
    cluster.run_for(SECOND);
    assert_eq!(cluster.step(leader, |raft, now, fx| raft.transfer(to, now, fx)), Some(true));
    cluster.run_for(Span::from_ms(10));
    assert_eq!(cluster.serving_leader(), Some(to));
}

/// The member that should lead is the second of three: the cell's number is 7.
const PREFERRED: NodeId = NodeId(2);

fn with_preference(seed: u64) -> Cluster {
    let mut cluster = Cluster::new(3, seed);
    cluster.preference = Span::from_ms(5_000);
    cluster.start_all();
    cluster.run_until_serving(SECOND);
    cluster
}

#[test]
fn leadership_goes_to_the_preferred_member_once_that_has_been_well_for_a_while() {
    let mut cluster = with_preference(21);
    assert_eq!(cluster.raft(1).preferred(), Some(PREFERRED));
    assert_eq!(cluster.serving_leader(), Some(NodeId(1)), "the birth has begun with it");
    cluster.run_for(Span::from_ms(4_000));
    cluster.crash(PREFERRED);
    cluster.run_for(Span::from_ms(2_000));
    cluster.start(PREFERRED);
    cluster.run_for(Span::from_ms(4_500));
    assert_eq!(cluster.serving_leader(), Some(NodeId(1)), "the while begins anew when it comes back");
    cluster.run_for(Span::from_ms(1_000));
    assert_eq!(cluster.serving_leader(), Some(PREFERRED));
    let term = cluster.raft(1).term();
    cluster.run_for(Span::from_ms(30_000));
    assert_eq!((cluster.serving_leader(), cluster.raft(1).term()), (Some(PREFERRED), term));
}

#[test]
fn leadership_stays_while_the_leader_counts_what_would_begin_anew() {
    let mut cluster = with_preference(25);
    cluster.step(NodeId(1), |raft, _, _| raft.settle_down(true));
    cluster.run_for(Span::from_ms(60_000));
    assert_eq!(cluster.serving_leader(), Some(NodeId(1)));
    cluster.step(NodeId(1), |raft, _, _| raft.settle_down(false));
    cluster.run_for(Span::from_ms(4_500));
    assert_eq!(cluster.serving_leader(), Some(NodeId(1)), "the while begins then");
    cluster.run_for(Span::from_ms(1_000));
    assert_eq!(cluster.serving_leader(), Some(PREFERRED));
}

#[test]
fn where_an_operator_puts_leadership_it_stays() {
    let mut cluster = with_preference(22);
    cluster.run_for(Span::from_ms(6_000));
    assert_eq!(cluster.serving_leader(), Some(PREFERRED));
    let to = NodeId(3);
    cluster.step(PREFERRED, |raft, now, fx| assert!(raft.transfer(to, now, fx)));
    cluster.run_for(Span::from_ms(60_000));
    assert_eq!(cluster.serving_leader(), Some(to));
    // Until that leader is gone.
    cluster.crash(to);
    cluster.run_for(Span::from_ms(8_000));
    assert_eq!(cluster.serving_leader(), Some(PREFERRED));
}

#[test]
fn a_preferred_member_that_is_cut_off_is_not_given_the_office() {
    let mut cluster = with_preference(23);
    cluster.isolate(PREFERRED);
    cluster.run_for(Span::from_ms(60_000));
    assert_eq!(cluster.serving_leader(), Some(NodeId(1)));
    assert!(!cluster.raft(1).is_transferring());
}

#[test]
fn a_preferred_member_whose_disk_hangs_is_not_given_the_office_again_and_again() {
    let mut cluster = with_preference(24);
    cluster.member(PREFERRED.0).is_disk_stuck = true;
    let refused = (0..400).filter(|_| {
        cluster.run_for(Span::from_ms(100));
        cluster.propose(NodeId(1), b"ten a second, so that it lags little").is_none()
    });
    assert_eq!(refused.count(), 0, "it answers beats, and acknowledges nothing");
    assert_eq!(cluster.serving_leader(), Some(NodeId(1)));
}

#[test]
fn orderly_stop_hands_over_first() {
    let mut cluster = Cluster::serving(3, 9);
    let leader = cluster.serving_leader().unwrap();
    cluster.step(leader, |raft, now, fx| raft.on_stop(now, fx));
    cluster.run_for(Span::from_ms(3));
    assert!(cluster.member(leader.0).has_stopped);
    let new = cluster.serving_leader().unwrap();
    assert_ne!(new, leader);
    let follower = cluster.nodes().into_iter().find(|node| *node != new && *node != leader).unwrap();
    cluster.step(follower, |raft, now, fx| raft.on_stop(now, fx));
    assert!(cluster.member(follower.0).has_stopped, "a follower has nothing to hand over");
}

#[test]
fn orderly_stop_of_a_leader_that_nobody_answers_ends_after_an_election_timeout() {
    let mut cluster = Cluster::serving(3, 10);
    let leader = cluster.serving_leader().unwrap();
    cluster.isolate(leader);
    cluster.step(leader, |raft, now, fx| raft.on_stop(now, fx));
    cluster.run_for(ELECTION_MAX);
    assert!(cluster.member(leader.0).has_stopped);
    assert!(!cluster.raft(leader.0).is_leader());
}

#[test]
fn leader_with_a_hung_disk_steps_down_and_does_not_come_back_before_its_disk() {
    let mut cluster = Cluster::serving(3, 11);
    let leader = cluster.serving_leader().unwrap();
    cluster.member(leader.0).is_disk_stuck = true;
    cluster.begin_trace();
    cluster.propose(leader, b"x");
    cluster.run_for(Span::from_ms(1_200));
    let deposed = format!("{leader}    deposed in term 1: its disk");
    assert!(cluster.end_trace().contains(&deposed));
    let new = cluster.serving_leader().expect("another leads");
    assert_ne!(new, leader);
    assert!(cluster.oracle().committed.iter().any(|entry| entry.1 == b"x"), "the followers have it");

    cluster.crash(new);
    cluster.run_for(Span::from_ms(5_000));
    assert_eq!(cluster.serving_leader(), None, "the hung one neither votes nor campaigns");
    cluster.unstick_disk(leader.0);
    cluster.run_until_serving(Span::from_ms(3_000));
}

#[test]
fn paused_leader_is_replaced_and_proves_nothing_afterwards() {
    for seed in 0..100 {
        let mut cluster = Cluster::serving(3, seed);
        let leader = cluster.serving_leader().unwrap();
        cluster.member(leader.0).paused_until = cluster.now + Span::from_ms(4_000);
        // Asked for just before the pause; its answers wait in the socket.
        cluster.ask_round(leader, super::super::Urgency::Now);
        cluster.ask_round(leader, super::super::Urgency::Now);
        cluster.run_until(Span::from_ms(2_000), "nobody took over", |cluster| {
            cluster.serving_leader().is_some_and(|new| new != leader)
        });
        let new = cluster.serving_leader().unwrap();
        cluster.propose(new, b"x");
        cluster.run_for(Span::from_ms(4_000));
        assert!(!cluster.raft(leader.0).is_leader());
        assert_eq!(cluster.raft(leader.0).leader(), Some(new));
        assert_eq!(cluster.raft(leader.0).committed(), LogIndex(3));
    }
}

#[test]
fn beats_and_rounds_do_not_wait_for_the_disk() {
    let mut cluster = Cluster::serving(3, 12);
    let leader = cluster.serving_leader().unwrap();
    for node in cluster.nodes() {
        cluster.member(node.0).is_disk_stuck = true;
    }
    cluster.propose(leader, b"x");
    cluster.run_for(Span::from_ms(600));
    let confirmed = cluster.oracle().rounds_confirmed;
    cluster.ask_round(leader, super::super::Urgency::Now);
    cluster.run_for(Span::from_ms(1));
    assert_eq!(cluster.oracle().rounds_confirmed, confirmed + 1);
    assert_eq!(cluster.raft(leader.0).term(), Term(1));
}

#[test]
fn stalled_commit_is_noticed() {
    let mut cluster = Cluster::serving(3, 13);
    let leader = cluster.serving_leader().unwrap();
    let append = kind::APPEND;
    cluster.muted.insert((leader, append));
    cluster.run_for(SECOND);
    cluster.propose(leader, b"x");
    cluster.run_for(ELECTION_MAX);
    assert!(!cluster.raft(leader.0).is_commit_stalled(cluster.now));
    cluster.run_for(Span::from_ms(1));
    assert!(cluster.raft(leader.0).is_commit_stalled(cluster.now));
    assert!(cluster.raft(leader.0).is_leader(), "it hears a majority all the same");
    cluster.muted.clear();
    cluster.run_for(SECOND);
    assert!(!cluster.raft(leader.0).is_commit_stalled(cluster.now));
}

#[test]
fn a_leader_that_stops_hands_over_to_a_full_disk_rather_than_to_one_that_hangs() {
    let mut cluster = Cluster::serving(3, 24);
    let leader = cluster.serving_leader().unwrap();
    let others: Vec<NodeId> = cluster.nodes().into_iter().filter(|it| *it != leader).collect();
    let (full, hung) = (others[0], others[1]);
    cluster.step(full, |raft, _, _| raft.on_space(true));
    cluster.member(hung.0).is_disk_stuck = true;
    cluster.run_for(Span::from_ms(200));
    for _ in 0..10 {
        cluster.propose(leader, b"work");
    }
    cluster.run_for(SECOND);
    assert_eq!(cluster.raft(leader.0).successor(cluster.now), None, "as long as it need not go it stays");
    let from = cluster.now;
    cluster.step(leader, |raft, now, fx| raft.on_stop(now, fx));
    let has_taken_over = |cluster: &Cluster| cluster.serving_leader() == Some(full);
    cluster.run_until(Span::from_ms(10_000), "nobody leads", has_taken_over);
    let took = cluster.now.since(from).ms();
    assert!(took < 100, "{took} ms without a leader");
}
