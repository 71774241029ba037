//! Silence that outlives its leader: logged in time, never early, ended before anything is acknowledged.

use lockstep_wire::request::Request;
use lockstep_wire::{Rows, SessionId};

use super::asking::{acquire, open, token};
use super::rig::Rig;
use crate::{ConnectionId, Time};

const NAME: &[&str] = &["/ls/a/b"];

fn silence_ms(rig: &Rig, session: SessionId) -> u32 {
    rig.cell(rig.leader()).table().session(session).expect("it lives").silence_ms()
}

fn lives(rig: &Rig, session: SessionId) -> bool {
    rig.cell(rig.leader()).table().session(session).is_ok()
}

fn alive(session: SessionId) -> String {
    format!("alive: {session} OK")
}

/// Deposes the leader, and lets the others go on with it as a follower.
fn change_leader(rig: &mut Rig) -> u16 {
    let (_, new) = rig.depose();
    rig.heal();
    new
}

fn hold_followers(rig: &mut Rig) -> Vec<u16> {
    let leader = rig.leader();
    let followers: Vec<u16> = (1..=3).filter(|node| *node != leader).collect();
    followers.iter().for_each(|node| rig.hold_disk(*node));
    followers
}

#[test]
fn ordinary_traffic_leaves_no_silence_in_the_log() {
    let mut rig = Rig::serving(3);
    let mut sessions: Vec<(ConnectionId, SessionId)> = Vec::new();
    let a = rig.connect(rig.leader());
    for client in 0..20 {
        sessions.push((a, rig.open(a, client, 3_000)));
    }
    for _ in 0..3 {
        rig.advance_beating(7_000, 1_000, &sessions);
        let new = change_leader(&mut rig);
        let at = rig.connect(new);
        for (client, (connection, session)) in (0..).zip(&mut sessions) {
            *connection = at;
            rig.say_attach(at, *session, client);
        }
        rig.settle();
    }
    rig.advance_beating(7_000, 1_000, &sessions);
    let leader = rig.leader();
    assert_eq!(
        (rig.count(leader, "silent"), rig.count(leader, "returned"), rig.count(leader, "end")),
        (0, 0, 0)
    );
}

#[test]
fn a_silent_session_is_logged_after_half_a_ttl_and_then_every_step() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 4_000);
    rig.advance(1_990);
    assert_eq!(rig.count(rig.leader(), "silent"), 0);
    let mut logged = Vec::new();
    for ms in [60, 1_000, 950] {
        rig.advance(ms);
        logged.push((rig.count(rig.leader(), "silent"), silence_ms(&rig, session) / 100));
    }
    assert_eq!(logged, [(1, 20), (2, 30), (2, 30)]);
    rig.advance(250);
    assert!(!lives(&rig, session), "silence in the log prolongs nothing");
}

#[test]
fn a_beat_of_a_silent_session_is_acknowledged_once_its_return_is_committed() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 4_000);
    rig.advance(2_100);
    assert!(silence_ms(&rig, session) > 0);
    let followers = hold_followers(&mut rig);
    rig.told(a);
    for _ in 0..3 {
        rig.beat(a, session);
        rig.advance(100);
        assert_eq!(rig.told(a), ["alive:"], "the leader answers at once, and says nothing of it");
    }
    assert_eq!(rig.count(rig.leader(), "returned 1"), 1, "one return is on its way at a time");
    followers.iter().for_each(|node| rig.release_disk(*node));
    rig.advance(10);
    assert_eq!(silence_ms(&rig, session), 0);
    rig.beat(a, session);
    rig.advance(10);
    assert_eq!(rig.told(a), [alive(session)]);
    rig.advance(3_900);
    assert!(lives(&rig, session), "the whole TTL counts again");
    rig.advance(350);
    assert!(!lives(&rig, session));
}

#[test]
fn a_session_whose_silence_is_appended_and_not_committed_is_not_acknowledged_either() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 4_000);
    let followers = hold_followers(&mut rig);
    rig.advance(2_100);
    assert_eq!((rig.count(rig.leader(), "silent 1"), silence_ms(&rig, session)), (1, 0));
    rig.told(a);
    rig.beat(a, session);
    rig.advance(100);
    assert_eq!(rig.told(a), ["alive:"]);
    followers.iter().for_each(|node| rig.release_disk(*node));
    rig.advance(10);
    rig.beat(a, session);
    rig.advance(10);
    assert_eq!(rig.told(a), [alive(session)]);
}

#[test]
fn who_beats_beside_a_silent_session_waits_for_no_entry() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let (silent, other) = (rig.open(a, 1, 4_000), rig.open(a, 2, 4_000));
    rig.advance_beating(2_400, 600, &[(a, other)]);
    rig.advance(10);
    let followers = hold_followers(&mut rig);
    rig.told(a);
    rig.ask(a, Request::KeepAlive(Rows::Slice(&[silent, other])));
    rig.advance(10);
    assert_eq!(rig.told(a), [alive(other)], "the return of the silent one waits for disks");
    rig.advance(1_000);
    followers.iter().for_each(|node| rig.release_disk(*node));
    rig.advance(10);
    rig.beat(a, silent);
    rig.advance(10);
    assert_eq!(rig.told(a), [alive(silent)]);
    rig.advance(3_900);
    assert!(lives(&rig, silent));
}

#[test]
fn a_beat_in_the_last_moment_keeps_a_silent_session_however_long_its_return_takes() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 4_000);
    rig.advance(3_900);
    let followers = hold_followers(&mut rig);
    rig.told(a);
    rig.beat(a, session);
    rig.advance(450);
    followers.iter().for_each(|node| rig.release_disk(*node));
    rig.advance(10);
    assert_eq!((rig.told(a), rig.count(rig.leader(), "end")), (vec!["alive:".to_owned()], 0));
    rig.beat(a, session);
    rig.advance(10);
    assert_eq!(rig.told(a), [alive(session)]);
}

#[test]
fn an_attach_behind_a_return_that_is_on_its_way_waits_for_it_and_keeps_the_session() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 4_000);
    rig.advance(3_900);
    let followers = hold_followers(&mut rig);
    rig.beat(a, session);
    rig.advance(10);
    rig.told(a);
    let b = rig.connect(rig.leader());
    rig.say_attach(b, session, 1);
    rig.settle();
    // Longer than a whole TTL.
    rig.advance(9_000);
    let leader = rig.leader();
    assert_eq!((rig.count(leader, "returned 1"), rig.count(leader, "end"), rig.told(b).len()), (1, 0, 0));
    followers.iter().for_each(|node| rig.release_disk(*node));
    rig.advance(10);
    assert_eq!(rig.told(b), [format!("attached: {session} OK ttl 4000 next 1")]);
}

#[test]
fn who_has_been_heard_is_looked_at_again_unhurriedly_however_long_disks_take() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 4_000);
    rig.advance(1_900);
    hold_followers(&mut rig);
    let b = rig.connect(rig.leader());
    rig.say(b, acquire(session, 1, NAME, 0));
    rig.say_attach(b, session, 1);
    rig.settle();
    let before = rig.drains();
    rig.advance(1_000);
    assert!(rig.drains() - before <= 12, "{} drains in a second", rig.drains() - before);
}

#[test]
fn a_beat_that_reached_the_socket_when_half_a_ttl_was_over_is_no_silence() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 4_000);
    rig.told(a);
    rig.are_drains_held = true;
    rig.advance(2_100);
    assert_eq!((rig.drains_held(), rig.count(rig.leader(), "silent")), (1, 0));
    rig.say_beat(a, session);
    rig.release_drains();
    rig.advance(10);
    assert_eq!((rig.told(a), rig.count(rig.leader(), "silent")), (vec![alive(session)], 0));
}

#[test]
fn an_open_that_finds_a_silent_session_ends_its_silence_by_itself() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 4_000);
    rig.advance(2_100);
    rig.told(a);
    rig.ask(a, open(1, 4_000));
    assert_eq!(rig.told(a), [format!("OK session {session} ttl 4000 next 1")]);
    assert_eq!((silence_ms(&rig, session), rig.count(rig.leader(), "returned")), (0, 0));
}

#[test]
fn a_successor_subtracts_what_was_logged() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 4_000);
    rig.advance(3_100);
    assert_eq!(silence_ms(&rig, session) / 100, 30);
    change_leader(&mut rig);
    let serves_since = rig.now;
    rig.advance(900);
    assert!(lives(&rig, session), "1,000 ms are left");
    rig.advance_until(400, |rig| !lives(rig, session));
    assert!(rig.now.since(serves_since).ms() <= 1_000 + 250);
}

#[test]
fn an_attach_at_the_successor_ends_the_silence_before_it_is_answered() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 4_000);
    let first = token(&rig.call(a, acquire(session, 1, NAME, 0))[0]);
    rig.advance(3_100);
    let new = change_leader(&mut rig);
    let b = rig.connect(new);
    rig.say_attach(b, session, 1);
    rig.settle();
    rig.advance(10);
    assert_eq!(rig.told(b), [format!("attached: {session} OK ttl 4000 next 2")]);
    assert_eq!((silence_ms(&rig, session), rig.count(new, "returned 1")), (0, 1));
    // And the one after that starts from there.
    rig.advance(100);
    let newest = change_leader(&mut rig);
    rig.advance(3_800);
    assert!(lives(&rig, session));
    let c = rig.connect(newest);
    rig.say_attach(c, session, 1);
    rig.settle();
    rig.advance(10);
    rig.told(c);
    assert_eq!(rig.call(c, acquire(session, 1, NAME, 0)), [format!("OK token {first} holders 1")]);
}

#[test]
fn an_attach_that_came_before_its_leader_had_applied_the_silence_ends_it_too() {
    let mut rig = Rig::serving(3);
    let old = rig.leader();
    let a = rig.connect(old);
    let session = rig.open(a, 1, 4_000);
    rig.advance(1_900);
    // Every disk has the silence, and nobody else knows that it is committed.
    rig.advance_until(200, |rig| rig.count(old, "silent") == 1);
    rig.crash(old);
    rig.is_bulk_cut = true;
    let leads = |rig: &Rig, node: u16| node != old && rig.cell(node).raft().is_leader();
    rig.advance_until(5_000, |rig| (1..=3).any(|node| node != old && leads(rig, node)));
    let new = (1..=3).find(|node| *node != old && leads(&rig, *node)).unwrap();
    assert_eq!(rig.cell(new).table().session(session).unwrap().silence_ms(), 0);
    let b = rig.connect(new);
    rig.say_attach(b, session, 1);
    rig.settle();
    rig.is_bulk_cut = false;
    rig.advance_until(1_000, |rig| rig.unanswered() == 0);
    assert_eq!(rig.told(b), [format!("attached: {session} OUTCOME_UNKNOWN")]);
    assert_eq!(rig.attach(b, session, 1), [format!("attached: {session} OK ttl 4000 next 1")]);
    assert_eq!(
        (silence_ms(&rig, session), rig.count(new, "silent 1"), rig.count(new, "returned 1")),
        (0, 1, 1)
    );
}

#[test]
fn what_a_deposed_leader_alone_called_silence_is_none() {
    let mut rig = Rig::serving(3);
    let old = rig.leader();
    let a = rig.connect(old);
    let session = rig.open(a, 1, 1_000);
    rig.isolate(old);
    rig.advance(550);
    assert_eq!(rig.count(old, "silent"), 1);
    rig.advance_until(3_000, |rig| (1..=3).any(|at| at != old && rig.cell(at).raft().is_serving()));
    let new = rig.leader();
    assert_eq!(silence_ms(&rig, session), 0);
    let b = rig.connect(new);
    assert_eq!(rig.attach(b, session, 1), [format!("attached: {session} OK ttl 1000 next 1")]);
    rig.heal();
    rig.advance_beating(3_000, 300, &[(b, session)]);
    assert_eq!((silence_ms(&rig, session), rig.count(old, "silent")), (0, 0));
}

/// Ten changes of leader, each after a while; how long leaders have served until a session that nobody keeps alive is
/// gone, how many changes there were until then, and how much time had passed in all.
fn outlived(ttl_ms: u32, tenure_ms: u64) -> (u64, u64, u64) {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, ttl_ms);
    let opened: Time = rig.now;
    let (mut served, mut changes) = (0, 0);
    while changes < 10 {
        let from = rig.now;
        for _ in 0..tenure_ms / 10 {
            rig.advance(10);
            if !lives(&rig, session) {
                return (served + rig.now.since(from).ms(), changes, rig.now.since(opened).ms());
            }
        }
        served += rig.now.since(from).ms();
        change_leader(&mut rig);
        changes += 1;
    }
    let from = rig.now;
    rig.advance_until(u64::from(ttl_ms) + 250, |rig| !lives(rig, session));
    (served + rig.now.since(from).ms(), changes, rig.now.since(opened).ms())
}

#[test]
fn a_dead_holder_is_freed_within_a_bound_however_often_the_leader_changes_and_never_early() {
    for (ttl_ms, tenure_ms) in
        [(1_000, 500), (4_000, 2_000), (4_000, 1_100), (10_000, 5_000), (20_000, 2_100)]
    {
        let ttl = u64::from(ttl_ms);
        let step = (ttl / 4).min(2_000);
        let (served, changes, passed) = outlived(ttl_ms, tenure_ms);
        // The first leader may log nothing of what it has seen, every other one all but a part of a step.
        let lost_later = tenure_ms - (tenure_ms - 100) / step * step;
        let lost = if changes == 0 { 0 } else { tenure_ms + (changes - 1) * lost_later };
        assert!(lost <= changes * (ttl / 2 + step));
        assert!(served <= ttl + 250 + lost, "ttl {ttl}, {tenure_ms} each: {served} ms, {changes} changes");
        assert!(passed >= ttl, "ttl {ttl}, {tenure_ms} each: freed after {passed} ms");
    }
}

#[test]
fn a_holder_that_lives_is_never_freed_however_often_the_leader_changes() {
    let mut rig = Rig::serving(3);
    let mut at = rig.connect(rig.leader());
    let session = rig.open(at, 1, 4_000);
    for gap_ms in [100, 700, 1_300, 1_900, 2_500, 3_100] {
        // It is heard of once in each tenure, and late.
        rig.advance(gap_ms);
        let new = change_leader(&mut rig);
        let acknowledged = rig.now;
        at = rig.connect(new);
        rig.say_attach(at, session, 1);
        rig.settle();
        rig.advance(10);
        assert_eq!(rig.told(at), [format!("attached: {session} OK ttl 4000 next 1")], "after {gap_ms}");
        let newest = change_leader(&mut rig);
        while rig.now.since(acknowledged).ms() < 3_950 {
            rig.advance(10);
            assert!(lives(&rig, session), "after {gap_ms} it believes for 4,000 ms from its last attach on");
        }
        at = rig.connect(newest);
        rig.say_attach(at, session, 1);
        rig.settle();
        rig.advance(10);
        assert_eq!(rig.told(at).len(), 1);
    }
}

#[test]
fn silence_in_masses_is_logged_in_batches_while_others_are_kept_alive() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let b = rig.connect(rig.leader());
    let live = rig.open(b, 1, 4_000);
    for client in 0..5_000 {
        rig.say(a, open(1_000 + client, 4_000));
        if client % 1_000 == 999 {
            rig.settle();
        }
    }
    rig.settle();
    rig.told(b);
    rig.advance_beating(2_200, 200, &[(b, live)]);
    rig.advance(10);
    assert_eq!(rig.told(b), vec![alive(live); 11]);
    let log = rig.log(rig.leader());
    let batches: Vec<_> = log.iter().filter(|command| command.starts_with("silent")).collect();
    assert!((5..20).contains(&batches.len()), "{batches:?}");
    let new = change_leader(&mut rig);
    rig.advance(2_300);
    assert_eq!(
        rig.cell(new).table().sessions_len(),
        1,
        "all of them have had 4,000 ms, but the one that beat"
    );
}
