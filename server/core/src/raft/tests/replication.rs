//! How entries reach a majority, and what happens to those that did not.

use expect_test::expect;
use lockstep_wire::peer::kind;
use lockstep_wire::{LogIndex, NodeId};

use super::super::Urgency;
use super::cluster::Cluster;
use crate::Span;

/// The leader and its followers.
fn roles(cluster: &Cluster) -> (NodeId, Vec<NodeId>) {
    let leader = cluster.serving_leader().unwrap();
    (leader, cluster.nodes().into_iter().filter(|node| *node != leader).collect())
}

#[test]
fn entries_are_sent_before_the_own_disk_has_them_and_committed_by_a_majority_of_disks() {
    let mut cluster = Cluster::serving(3, 1);
    let (leader, followers) = roles(&cluster);
    cluster.member(leader.0).disk_delay = Span::from_ms(2);
    cluster.member(followers[1].0).disk_delay = Span::from_ms(1);
    cluster.begin_trace();
    cluster.step(leader, |raft, now, fx| {
        raft.propose(now, fx, |out| out.extend_from_slice(b"a"));
        raft.propose(now, fx, |out| out.extend_from_slice(b"b"));
    });
    cluster.run_for(Span::from_ms(1));
    cluster.propose(leader, b"c");
    cluster.run_for(Span::from_ms(5));
    expect![[r#"
        62.6   1    log 5: entry 2@1 a
        62.6   1    log 6: entry 3@1 b
        62.6   1>2  append term 1 after 1@1: 2..3, committed 1
        62.6   1>3  append term 1 after 1@1: 2..3, committed 1
        62.8   2    log 5: entry 2@1 a
        62.8   2    log 6: entry 3@1 b
        62.8   3    log 5: entry 2@1 a
        62.8   3    log 6: entry 3@1 b
        62.9   2>1  durable through 2 term 1
        62.9   2>1  durable through 3 term 1
        63.6   1    log 7: entry 4@1 c
        63.6   1>2  append term 1 after 3@1: 4..4, committed 1
        63.6   1>3  append term 1 after 3@1: 4..4, committed 1
        63.8   3>1  durable through 2 term 1
        63.8   3>1  durable through 3 term 1
        63.8   2    log 7: entry 4@1 c
        63.8   3    log 7: entry 4@1 c
        63.9   2>1  durable through 4 term 1
        64.8   3>1  durable through 4 term 1
    "#]]
    .assert_eq(&cluster.end_trace());
    assert_eq!(cluster.raft(leader.0).committed(), LogIndex(4));
}

#[test]
fn conflicting_suffix_is_truncated_and_replaced() {
    let mut cluster = Cluster::serving(3, 2);
    let (old, _) = roles(&cluster);
    cluster.isolate(old);
    for payload in [b"lost a", b"lost b"] {
        cluster.propose(old, payload);
    }
    cluster.run_until(Span::from_ms(5_000), "no new leader", |cluster| {
        cluster.serving_leader().is_some_and(|new| new != old)
    });
    let (new, _) = roles(&cluster);
    cluster.propose(new, b"kept");
    cluster.run_for(Span::from_ms(40));
    assert_eq!(cluster.raft(old.0).last_index(), LogIndex(3));
    cluster.begin_trace();
    cluster.cut.clear();
    cluster.disconnect(old, new, false);
    cluster.connect(old, new);
    cluster.run_for(Span::from_ms(5));
    expect![[r#"
        869.7  1>2  hello born
        869.7  1>2  append term 1 after 1@1: 2..3, committed 1
        869.7  2>1  hello born
        869.7  2>1  append term 2 after 1@1: 2..3, committed 3
        869.9  1    deposed in term 1: another member knows a newer term
        869.9  1    follows 2
        869.9  1    log 7: term 2 vote 0
        869.9  1    log 8: truncate from 2
        869.9  1    log 9: entry 2@2 blank
        869.9  1    log 10: entry 3@2 kept
        870.0  1>2  durable through 1 term 2
        870.0  1>2  durable through 2 term 2
        870.0  1>2  durable through 3 term 2
        870.2  2>1  append term 2 after 1@1: 2..3, committed 3
        870.4  1>2  durable through 3 term 2
    "#]]
    .assert_eq(&cluster.end_trace());
    assert_eq!(cluster.raft(old.0).durable(), LogIndex(3));
    cluster.check_logs_match();
}

#[test]
fn follower_acknowledges_replaced_entries_only_by_their_own_write() {
    let mut cluster = Cluster::serving(5, 4);
    let (old, followers) = roles(&cluster);
    let follower = followers[3];
    // Only one follower gets the old leader's entries, and its disk takes its time with them.
    for peer in &followers[..3] {
        cluster.cut.insert((old, *peer));
        cluster.cut.insert((*peer, old));
    }
    cluster.member(follower.0).disk_delay = Span::from_ms(900);
    cluster.propose(old, b"a");
    cluster.propose(old, b"b");
    cluster.run_for(Span::from_ms(1));
    assert_eq!(cluster.raft(follower.0).last_index(), LogIndex(3));
    cluster.cut.insert((old, follower));
    cluster.cut.insert((follower, old));
    for member in &mut cluster.members {
        let raft = member.raft.as_mut().unwrap();
        if followers[..3].contains(&member.node) {
            raft.leader = None;
        }
    }
    let now = cluster.now;
    cluster.members[usize::from(followers[0].0) - 1].raft.as_mut().unwrap().election_at = now;
    cluster.begin_trace();
    cluster.run_for(Span::from_ms(2_000));
    let trace = cluster.end_trace();
    let lines: Vec<&str> = trace
        .lines()
        .filter(|line| {
            let is_follower =
                line.contains(&format!(" {follower}  ")) || line.contains(&format!(" {follower}>"));
            is_follower && !line.contains("vote")
        })
        .collect();
    expect![[r#"
        64.8   5    follows 2
        64.8   5    log 8: truncate from 2
        64.8   5    log 9: entry 2@2 blank
        964.8  5>2  durable through 1 term 2
        964.8  5>2  durable through 2 term 2
        965.2  5>2  durable through 2 term 2"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn new_leader_confirms_no_round_before_its_blank_entry_is_committed() {
    let mut cluster = Cluster::serving(3, 5);
    let (old, followers) = roles(&cluster);
    cluster.propose(old, b"granted");
    cluster.run_for(Span::from_ms(1));
    assert_eq!(cluster.oracle().committed.len(), 2, "acknowledged at the old leader");
    cluster.crash(old);
    for node in &followers {
        cluster.muted.insert((*node, kind::APPEND_REPLY));
    }
    cluster.run_until(Span::from_ms(100), "no leader", |cluster| {
        followers.iter().any(|node| cluster.raft(node.0).is_leader())
    });
    let new = *followers.iter().find(|node| cluster.raft(node.0).is_leader()).unwrap();
    let before = cluster.oracle().rounds_confirmed;
    assert!(cluster.ask_round(new, Urgency::Now).is_some());
    cluster.run_for(Span::from_ms(300));
    assert_eq!(cluster.oracle().rounds_confirmed, before, "everybody has answered; the read waits");
    assert!(!cluster.raft(new.0).is_serving());
    cluster.muted.clear();
    cluster.run_for(Span::from_ms(700));
    assert_eq!(cluster.oracle().rounds_confirmed, before + 1);
    assert!(cluster.member(new.0).applied >= 3, "the grant and the blank entry are applied");
}

#[test]
fn rounds_batch_and_only_keep_alives_are_paced() {
    let mut cluster = Cluster::serving(3, 6);
    let (leader, _) = roles(&cluster);
    cluster.begin_trace();
    cluster.has_beats_in_trace = true;
    cluster.ask_round(leader, Urgency::Paced);
    cluster.note("both of these join the second round");
    cluster.ask_round(leader, Urgency::Now);
    cluster.ask_round(leader, Urgency::Paced);
    cluster.run_for(Span::from_ms(1));
    cluster.ask_round(leader, Urgency::Now);
    cluster.run_for(Span::from_ms(1));
    cluster.note("keep-alives wait until 3 ms after the last round began, and share one");
    cluster.ask_round(leader, Urgency::Paced);
    cluster.run_for(Span::from_ms(1));
    cluster.ask_round(leader, Urgency::Paced);
    cluster.run_for(Span::from_ms(5));
    expect![[r#"
        62.6   1>2  beat term 1 round 1 committed 1
        62.6   1>3  beat term 1 round 1 committed 1
        62.6   -- both of these join the second round
        62.8   2>1  answer term 1 round 1
        62.8   3>1  answer term 1 round 1
        63.0   1    round 1 confirmed
        63.0   1>2  beat term 1 round 2 committed 1
        63.0   1>3  beat term 1 round 2 committed 1
        63.2   2>1  answer term 1 round 2
        63.2   3>1  answer term 1 round 2
        63.4   1    round 2 confirmed
        63.6   1>2  beat term 1 round 3 committed 1
        63.6   1>3  beat term 1 round 3 committed 1
        63.8   2>1  answer term 1 round 3
        63.8   3>1  answer term 1 round 3
        64.0   1    round 3 confirmed
        64.6   -- keep-alives wait until 3 ms after the last round began, and share one
        66.6   1>2  beat term 1 round 4 committed 1
        66.6   1>3  beat term 1 round 4 committed 1
        66.8   2>1  answer term 1 round 4
        66.8   3>1  answer term 1 round 4
        67.0   1    round 4 confirmed
    "#]]
    .assert_eq(&cluster.end_trace());
}

#[test]
fn follower_far_behind_catches_up_from_the_leaders_disk() {
    let mut cluster = Cluster::new(3, 7);
    cluster.cache_bytes_max = 64 * 1024;
    cluster.start_all();
    cluster.run_until_serving(Span::from_ms(3_000));
    cluster.run_for(Span::from_ms(60));
    let (leader, followers) = roles(&cluster);
    cluster.crash(followers[0]);
    for _ in 0..400 {
        cluster.propose(leader, &[7; 4096]);
        cluster.run_for(Span::from_ms(1));
    }
    assert!(cluster.raft(leader.0).log.cache_first() > LogIndex(300), "the beginning is on disk only");
    cluster.start(followers[0]);
    cluster.run_for(Span::from_ms(400));
    assert_eq!(cluster.raft(followers[0].0).durable(), cluster.raft(leader.0).last_index());
    assert!(cluster.member(leader.0).log_reads > 4);
    assert_eq!(cluster.raft(leader.0).progress(followers[0]), Some(cluster.raft(leader.0).last_index()));
}

#[test]
fn bytes_on_their_way_to_a_silent_follower_are_bounded() {
    let mut cluster = Cluster::serving(3, 8);
    let (leader, followers) = roles(&cluster);
    cluster.muted.insert((followers[0], kind::APPEND_REPLY));
    cluster.begin_trace();
    for _ in 0..100 {
        cluster.propose(leader, &[1; 4096]);
        cluster.run_for(Span(100_000));
    }
    let trace = cluster.end_trace();
    let sent = trace.matches(&format!("{leader}>{}  append", followers[0])).count();
    assert_eq!(sent, 16, "64 KiB in messages of one entry each");
    cluster.muted.clear();
    cluster.run_for(Span::from_ms(700));
    assert_eq!(cluster.raft(followers[0].0).durable(), cluster.raft(leader.0).last_index());
}

#[test]
fn lost_append_is_sent_again() {
    let mut cluster = Cluster::serving(3, 9);
    let (leader, followers) = roles(&cluster);
    cluster.muted.insert((leader, kind::APPEND));
    cluster.propose(leader, b"x");
    cluster.run_for(Span::from_ms(10));
    cluster.muted.clear();
    cluster.begin_trace();
    cluster.propose(leader, b"y");
    cluster.run_for(Span::from_ms(60));
    cluster.end_trace();
    for node in followers {
        assert_eq!(cluster.raft(node.0).committed(), LogIndex(3));
    }
}

#[test]
fn directory_rolled_back_to_an_older_copy_is_reported_when_it_shows() {
    let mut cluster = Cluster::serving(3, 10);
    let (leader, followers) = roles(&cluster);
    cluster.crash(followers[0]);
    let copy = cluster.copy_disk(followers[0]);
    cluster.start(followers[0]);
    cluster.run_for(Span::from_ms(10));
    cluster.propose(leader, b"x");
    cluster.run_for(Span::from_ms(60));
    cluster.crash(followers[0]);
    cluster.restore_disk(followers[0], copy);
    cluster.start(followers[0]);
    cluster.run_for(Span::from_ms(3_000));
    let reports = cluster.member(leader.0).reports.clone();
    assert!(reports.iter().any(|report| report.contains("rolled back")), "{reports:?}");
}

#[test]
fn entry_of_an_older_term_is_not_committed_by_counting() {
    // Raft, figure 8: it would not be safe even on a majority of disks before the own term's entry is.
    let mut cluster = Cluster::serving(3, 11);
    let (leader, followers) = roles(&cluster);
    for node in &followers {
        cluster.crash(*node);
    }
    cluster.propose(leader, b"old");
    cluster.run_for(Span::from_ms(1));
    cluster.crash(leader);
    cluster.start_all();
    // The log with more in it wins; the other disks confirm entry by entry.
    cluster.run_until(Span::from_ms(5_000), "nobody serves", |cluster| {
        let is_counted = cluster.nodes().iter().any(|node| cluster.raft(node.0).committed() == LogIndex(2));
        assert!(!is_counted, "the old entry was committed alone");
        cluster.serving_leader().is_some()
    });
    assert_eq!(cluster.serving_leader(), Some(leader));
    assert_eq!(cluster.raft(leader.0).committed(), LogIndex(3));
}

#[test]
fn long_conflicting_suffix_is_found_in_few_messages() {
    let mut cluster = Cluster::serving(3, 12);
    let (old, _) = roles(&cluster);
    cluster.isolate(old);
    for _ in 0..200 {
        cluster.propose(old, b"lost");
    }
    cluster.run_until(Span::from_ms(5_000), "no new leader", |cluster| {
        cluster.serving_leader().is_some_and(|new| new != old)
    });
    let (new, followers) = roles(&cluster);
    for _ in 0..300 {
        cluster.propose(new, b"kept");
    }
    cluster.run_for(Span::from_ms(20));
    // The next leader begins to look at its own end, far from where they part.
    let next = followers.into_iter().find(|node| *node != old).unwrap();
    cluster.step(new, |raft, now, fx| raft.transfer(next, now, fx));
    cluster.run_for(Span::from_ms(20));
    assert_eq!(cluster.serving_leader(), Some(next));
    let conflicts = cluster.oracle().conflicts;
    cluster.cut.clear();
    cluster.disconnect(old, next, false);
    cluster.connect(old, next);
    cluster.run_for(Span::from_ms(20));
    assert_eq!(cluster.raft(old.0).durable(), cluster.raft(next.0).last_index());
    assert_eq!(cluster.oracle().conflicts - conflicts, 1);
}
