//! What a change of leader keeps, what it forgets, and what it must not do.

use lockstep_wire::peer::{Beat, BeatKind, PeerMessage};
use lockstep_wire::request::Request;
use lockstep_wire::{FencingToken, LogIndex, NodeId, RoundId};

use super::asking::{acquire, open, release, token};
use super::rig::{CELL, Rig};
use crate::{Input, Span, Time};

const NAME: &[&str] = &["/ls/a/b"];

#[test]
fn a_retry_at_the_new_leader_has_the_outcome_that_the_old_one_had() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 10_000);
    let first = token(&rig.call(a, acquire(session, 1, NAME, 0))[0]);
    let (old, new) = rig.depose();
    let b = rig.connect(new);
    rig.say(b, acquire(session, 1, NAME, 0));
    rig.say_attach(b, session, 1);
    rig.settle();
    rig.ask(b, acquire(session, 1, NAME, 0));
    let told = rig.told(b);
    assert!(told[0].starts_with("NOT_ATTACHED"), "{told:?}");
    assert_eq!(
        told[1..],
        [format!("attached: {session} OK ttl 10000 next 2"), format!("OK token {first} holders 1")]
    );
    rig.ask(b, release(session, 2, 1, NAME[0], first));
    rig.ask(b, acquire(session, 1, NAME, 0));
    assert_eq!(rig.told(b), ["OK".to_owned(), format!("LOST token {first} released")]);
    // And after all of them have started anew.
    rig.heal();
    rig.advance(500);
    for node in [old, new, 6 - old - new] {
        rig.crash(node);
        rig.start(node);
        rig.advance_until(5_000, |rig| (1..=3).any(|node| rig.cell(node).raft().is_serving()));
        rig.advance(100);
    }
    let c = rig.connect(rig.leader());
    rig.attach(c, session, 1);
    rig.ask(c, acquire(session, 1, NAME, 0));
    assert_eq!(rig.told(c), [format!("LOST token {first} released")]);
}

#[test]
fn a_deposed_leader_says_that_it_does_not_know_or_whom_to_ask() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 10_000);
    let old = rig.leader();
    rig.isolate(old);
    rig.ask(a, acquire(session, 1, NAME, 0));
    rig.ask(a, open(2, 5_000));
    rig.ask(a, Request::CloseSession { session });
    rig.ask(a, Request::GetLock { name: NAME[0] });
    rig.beat(a, session);
    rig.say_attach(a, session, 1);
    rig.advance_until(5_000, |rig| rig.unanswered() == 0);
    let told = rig.told(a);
    assert_eq!(told.iter().filter(|line| line.starts_with("OUTCOME_UNKNOWN")).count(), 3, "{told:?}");
    assert_eq!(told.iter().filter(|line| line.starts_with("NOT_LEADER")).count(), 3, "{told:?}");
    rig.heal();
    rig.advance(2_000);
    let new = rig.leader();
    let b = rig.connect(6 - old - new);
    let hint = format!("NOT_LEADER ask node {new} at node{new}:4600");
    assert_eq!(rig.call(b, Request::GetLock { name: NAME[0] }), [hint]);
}

#[test]
fn what_a_deposed_leader_proposed_ends_nobody() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 1_000);
    let first = token(&rig.call(a, acquire(session, 1, NAME, 0))[0]);
    rig.advance(100);
    // The old leader is cut off just before the deadline, and proposes the end of the session alone.
    rig.advance(800);
    let old = rig.leader();
    rig.isolate(old);
    rig.advance(250);
    assert_eq!(rig.count(old, "end expired 1"), 1);
    rig.advance_until(3_000, |rig| (1..=3).any(|at| at != old && rig.cell(at).raft().is_serving()));
    let new = rig.leader();
    let b = rig.connect(new);
    rig.attach(b, session, 1);
    rig.heal();
    rig.advance_beating(3_000, 300, &[(b, session)]);
    rig.advance(10);
    assert_eq!(rig.count(old, "end"), 0, "it was never committed");
    assert_eq!(
        rig.call(b, acquire(session, 1, NAME, 0)).last().unwrap(),
        &format!("OK token {first} holders 1")
    );
}

#[test]
fn a_leader_that_was_cut_off_for_a_moment_clears_the_doom_with_its_office() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let a = rig.connect(leader);
    let session = rig.open(a, 1, 1_000);
    rig.advance(900);
    rig.is_bulk_cut = true;
    rig.advance(250);
    assert_eq!(rig.count(leader, "end expired 1"), 1);
    rig.told(a);
    rig.beat(a, session);
    rig.advance(10);
    assert_eq!(rig.told(a), ["alive:"]);
    // Its entry commits under its successor, or never: nobody was told otherwise.
    rig.isolate(leader);
    rig.is_bulk_cut = false;
    rig.advance_until(3_000, |rig| (1..=3).any(|at| at != leader && rig.cell(at).raft().is_serving()));
    let b = rig.connect(rig.leader());
    assert_eq!(rig.attach(b, session, 1), [format!("attached: {session} OK ttl 1000 next 1")]);
}

#[test]
fn reads_of_a_new_leader_wait_for_its_blank_entry() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 10_000);
    let old = rig.leader();
    // Granted and acknowledged, and nobody else knows that it is committed.
    let granted = rig.call(a, acquire(session, 1, NAME, 0));
    let first = token(&granted[0]);
    rig.crash(old);
    rig.is_bulk_cut = true;
    let leads = |rig: &Rig, node: u16| node != old && rig.cell(node).raft().is_leader();
    rig.advance_until(5_000, |rig| (1..=3).any(|node| node != old && leads(rig, node)));
    let new = (1..=3).find(|node| *node != old && leads(&rig, *node)).unwrap();
    let b = rig.connect(new);
    rig.ask(b, Request::GetLock { name: NAME[0] });
    rig.ask(b, Request::CheckToken { name: NAME[0], token: FencingToken(first), session });
    rig.advance(200);
    assert!(rig.told(b).is_empty(), "nothing is said before the blank entry has applied");
    rig.is_bulk_cut = false;
    rig.advance(700);
    assert_eq!(
        rig.told(b),
        [format!("OK held by: {session}, waiting:"), format!("OK current true latest {first} floor 0")]
    );
}

#[test]
fn a_new_leader_gives_everybody_a_whole_ttl_and_arms_in_slices() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    for client in 0..10_000 {
        rig.say(a, open(client, 3_000));
        if client % 1_000 == 999 {
            rig.settle();
        }
    }
    rig.advance(100);
    let live = rig.cell(rig.leader()).table().sessions_len();
    assert_eq!(live, 10_000);
    rig.advance(1_000);
    let old = rig.leader();
    rig.isolate(old);
    rig.advance_until(1_900, |rig| (1..=3).any(|at| at != old && rig.cell(at).raft().is_serving()));
    let new = rig.leader();
    // One turn arms so many, and it goes on at once.
    let soon = rig.cell(new).deadline().since(rig.now);
    assert!(soon <= Span::from_ms(1), "{soon:?}");
    rig.advance(2_990);
    assert_eq!(rig.count(new, "end"), 0);
    rig.advance(260);
    assert_eq!(rig.cell(new).table().sessions_len(), 0);
    assert!(rig.count(new, "end expired") >= 10_000 / 256);
}

#[test]
fn a_wait_starts_again_with_a_new_leader_and_ends() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let (one, two) = (rig.open(a, 1, 30_000), rig.open(a, 2, 30_000));
    rig.ask(a, acquire(one, 1, NAME, 0));
    rig.ask(a, acquire(two, 1, NAME, 3_000));
    rig.advance(2_000);
    let (_, new) = rig.depose();
    let b = rig.connect(new);
    rig.attach(b, two, 2);
    // What remains of the wait comes with the request.
    assert_eq!(rig.call(b, acquire(two, 1, NAME, 500)), ["QUEUED 1"]);
    rig.advance(560);
    assert_eq!(rig.told(b), ["TIMED_OUT"]);
    // Without that it is the whole wait again, and no more.
    rig.ask(b, acquire(two, 2, NAME, 1_000));
    rig.heal();
    let (_, newer) = rig.depose();
    rig.advance(990);
    assert_eq!(rig.count(newer, &format!("cancel-wait {two}/2")), 0);
    rig.advance(100);
    assert_eq!(rig.count(newer, &format!("cancel-wait {two}/2")), 1);
}

#[test]
fn what_a_leader_left_to_be_reaped_its_successor_reaps() {
    let limits = crate::table::Limits { transitions_per_entry_max: 4, ..Default::default() };
    let mut rig = Rig::limited(3, limits);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 30_000);
    for request in 1..=40 {
        let name = format!("/ls/reap/{request}");
        rig.ask(a, acquire(session, request, &[&name], 0));
    }
    let old = rig.leader();
    rig.ask(a, Request::CloseSession { session });
    assert_eq!(rig.cell(old).table().locks_len(), 0, "a leader goes on until nothing is left");
    assert!(rig.count(old, "reap") >= 19);
    let next = rig.open(a, 2, 30_000);
    for request in 1..=40 {
        let name = format!("/ls/reap/{request}");
        rig.ask(a, acquire(next, request, &[&name], 0));
    }
    let third = rig.follower();
    rig.hold_disk(third);
    let other = 6 - old - third;
    rig.hold_disk(other);
    rig.ask(a, Request::CloseSession { session: next });
    let reaps = rig.count(old, "reap");
    rig.crash(old);
    for node in [third, other] {
        rig.release_disk(node);
    }
    rig.advance_until(5_000, |rig| {
        rig.cell(third).raft().is_serving() || rig.cell(other).raft().is_serving()
    });
    rig.advance(100);
    let new = rig.leader();
    assert!(rig.count(new, "reap") > reaps);
    assert_eq!((rig.cell(new).table().locks_len(), rig.cell(new).table().sessions_len()), (0, 0));
}

#[test]
fn a_session_survives_leaders_that_come_and_go() {
    let mut rig = Rig::serving(3);
    let mut at = rig.connect(rig.leader());
    let session = rig.open(at, 1, 4_000);
    let first = token(&rig.call(at, acquire(session, 1, NAME, 0))[0]);
    for _ in 0..5 {
        let (_, new) = rig.depose();
        at = rig.connect(new);
        rig.attach(at, session, 1);
        rig.heal();
        rig.advance_beating(1_200, 400, &[(at, session)]);
    }
    rig.told(at);
    assert_eq!(rig.call(at, acquire(session, 1, NAME, 0)), [format!("OK token {first} holders 1")]);
}

#[test]
fn an_orderly_stop_tells_the_clients_and_hands_over() {
    let mut rig = Rig::serving(3);
    let old = rig.leader();
    let a = rig.connect(old);
    let session = rig.open(a, 1, 10_000);
    rig.advance(100);
    rig.step(old, Input::Stop);
    rig.say(a, acquire(session, 1, NAME, 0));
    rig.settle();
    rig.advance(50);
    assert!(rig.has_stopped(old));
    assert_ne!(rig.leader(), old, "the successor need not wait for anybody's patience");
    let told = rig.told(a);
    assert_eq!(
        told[..2],
        ["event: shutting down", "SHUTTING_DOWN (this node is stopping; ask another member)"]
    );
    let new = rig.leader();
    let hint = format!("SHUTTING_DOWN ask node {new} at node{new}:4600");
    assert_eq!(rig.call(a, Request::GetLock { name: NAME[0] }), [hint]);
    assert_eq!(rig.unanswered(), 0);
}

#[test]
fn a_replica_whose_digest_is_not_the_majoritys_halts_and_says_no_more() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let odd = rig.follower();
    let a = rig.connect(leader);
    while rig.cell(odd).applied() < LogIndex(4_096) {
        for client in 0..512 {
            rig.say(a, open(client, 60_000));
        }
        rig.settle();
        rig.advance(50);
    }
    assert!((1..=3).all(|node| rig.halted(node).is_none()), "equal digests raise no alarm");
    let from = NodeId(leader);
    let message = PeerMessage::DigestDisagrees { index: LogIndex(4_096), digest: 1 };
    rig.step(odd, Input::Peer { from, message });
    rig.settle();
    assert!(rig.halted(odd).unwrap().contains("entry 4096"), "{:?}", rig.halted(odd));
    assert_eq!(rig.cell(odd).deadline(), Time::NEVER);
    let b = rig.connect(odd);
    assert!(rig.call(b, Request::Status).is_empty());
    rig.advance(3_000);
    assert_eq!(rig.leader(), leader, "the others go on");
}

#[test]
fn a_leader_that_disagrees_with_the_majority_halts_though_it_did_not_lead_at_that_entry() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    for client in 0..4_608 {
        rig.say(a, open(client % 512, 60_000));
        if client % 512 == 511 {
            rig.settle();
        }
    }
    rig.advance(100);
    let (old, leader) = rig.depose();
    assert!(rig.cell(leader).applied() >= LogIndex(4_096));
    for peer in [old, 6 - old - leader] {
        assert!(rig.halted(leader).is_none());
        let message = PeerMessage::Digest { index: LogIndex(4_096), digest: 1 };
        rig.step(leader, Input::Peer { from: NodeId(peer), message });
    }
    assert!(rig.halted(leader).unwrap().contains("entry 4096"));
}

#[test]
fn a_replica_that_its_raft_node_halts_says_no_more() {
    let mut rig = Rig::serving(3);
    let (leader, other) = (rig.leader(), rig.follower());
    let a = rig.connect(leader);
    let session = rig.open(a, 1, 10_000);
    rig.say_beat(a, session);
    // Another one claims to lead in the same term.
    let term = rig.cell(leader).raft().term();
    let (round, committed) = (RoundId(0), LogIndex(0));
    let beat = Beat { cell: CELL, kind: BeatKind::Ask, term, round, committed, is_short_of_space: false };
    rig.told(a);
    rig.step(leader, Input::Beat { from: NodeId(other), beat });
    rig.settle();
    rig.ask(a, Request::Status);
    assert!(rig.halted(leader).unwrap().contains("two leaders"));
    assert_eq!((rig.told(a).len(), rig.cell(leader).deadline()), (0, Time::NEVER));
}

#[test]
fn a_session_in_the_slot_of_one_that_ended_before_its_leader_served_expires_in_time() {
    let mut rig = Rig::serving(3);
    let old = rig.leader();
    let a = rig.connect(old);
    let former = rig.open(a, 1, 10_000);
    rig.advance(100);
    // Every disk has these, and only the leader knows that they are committed.
    rig.say(a, Request::CloseSession { session: former });
    rig.say(a, open(2, 1_000));
    rig.settle();
    assert_eq!(rig.told(a)[0], "OK released 0");
    rig.crash(old);
    rig.is_bulk_cut = true;
    let leads = |rig: &Rig, node: u16| node != old && rig.cell(node).raft().is_leader();
    rig.advance_until(5_000, |rig| (1..=3).any(|node| node != old && leads(rig, node)));
    let new = (1..=3).find(|node| *node != old && leads(&rig, *node)).unwrap();
    let b = rig.connect(new);
    rig.say_attach(b, former, 1);
    rig.ask(b, Request::CloseSession { session: former });
    assert!(rig.told(b).is_empty());
    rig.is_bulk_cut = false;
    rig.advance_until(2_000, |rig| rig.cell(new).raft().is_serving());
    rig.advance(100);
    assert_eq!(rig.unanswered(), 0, "the close of a session that has ended is answered");
    assert_eq!(rig.cell(new).table().sessions_len(), 1);
    rig.advance(1_150);
    assert_eq!(rig.cell(new).table().sessions_len(), 0);
}
