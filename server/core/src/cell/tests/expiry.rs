//! Expiry: never early, not late without bound, and never against a beat that had arrived.

use lockstep_wire::request::Request;
use lockstep_wire::{Rows, SessionId};

use super::asking::{acquire, open};
use super::rig::Rig;
use crate::{ConnectionId, Input, Span};

const NAME: &[&str] = &["/ls/a/b"];

fn ended(rig: &mut Rig, connection: ConnectionId) -> bool {
    rig.told(connection).iter().any(|line| line.starts_with("event: session"))
}

/// Opens sessions with the TTL, at most so many in one breath.
fn open_many(rig: &mut Rig, connection: ConnectionId, count: u64, ttl_ms: u32) -> Vec<SessionId> {
    for client in 0..count {
        rig.say(connection, open(1_000 + client, ttl_ms));
        if client % 1_000 == 999 {
            rig.settle();
        }
    }
    rig.settle();
    let told = rig.told(connection);
    let ids = told.iter().filter_map(|line| line.split(' ').nth(2)?.parse().ok().map(SessionId));
    let ids: Vec<_> = ids.collect();
    assert_eq!(ids.len() as u64, count);
    ids
}

#[test]
fn a_silent_session_ends_after_its_ttl_and_within_250_ms() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    rig.open(a, 1, 2_000);
    rig.advance(1_999);
    assert!(!ended(&mut rig, a), "not before its TTL");
    rig.advance(251);
    assert!(ended(&mut rig, a), "within TTL + 250 ms");
    assert_eq!(rig.count(rig.leader(), "end expired 1"), 1);
}

#[test]
fn the_ttl_counts_from_the_last_acknowledgement() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 1_000);
    rig.advance_beating(10_000, 330, &[(a, session)]);
    rig.advance(10);
    assert!(!ended(&mut rig, a));
    rig.advance(985);
    assert!(!ended(&mut rig, a));
    rig.advance(260);
    assert!(ended(&mut rig, a));
}

#[test]
fn a_session_is_not_ended_before_the_sockets_are_drained() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 1_000);
    rig.are_drains_held = true;
    rig.advance(1_100);
    assert_eq!((rig.drains_held(), rig.count(rig.leader(), "end")), (1, 0));
    // The beat had reached the socket, and comes out before the drain is over.
    rig.say_beat(a, session);
    rig.release_drains();
    rig.advance(20);
    assert_eq!(
        rig.told(a),
        [format!("OK session {session} ttl 1000 next 1"), format!("alive: {session} OK")][1..]
    );
    rig.advance(900);
    assert_eq!(rig.count(rig.leader(), "end"), 0);
    rig.advance(400);
    assert_eq!(rig.count(rig.leader(), "end expired 1"), 1);
}

#[test]
fn an_attach_or_an_open_that_reached_the_socket_in_time_keeps_the_session() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let (first, second) = (rig.open(a, 1, 1_000), rig.open(a, 2, 1_000));
    let b = rig.connect(rig.leader());
    rig.are_drains_held = true;
    rig.advance(1_100);
    rig.say_attach(b, first, 1);
    rig.say(b, open(2, 1_000));
    rig.release_drains();
    rig.advance(50);
    let told = rig.told(b);
    assert!(told.contains(&format!("attached: {first} OK ttl 1000 next 1")), "{told:?}");
    assert!(told.contains(&format!("OK session {second} ttl 1000 next 1")), "{told:?}");
    assert_eq!(rig.count(rig.leader(), "end"), 0);
}

#[test]
fn an_open_that_is_refused_for_its_client_id_keeps_nobody() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    rig.open(a, 1, 1_000);
    rig.advance(900);
    let nonce = super::asking::nonce(1);
    rig.ask(a, Request::OpenSession { client_id: "another", ttl_ms: 1_000, nonce });
    assert_eq!(rig.told(a), ["INVALID (nonce)"]);
    rig.advance(350);
    assert!(ended(&mut rig, a));
}

#[test]
fn a_client_that_dies_right_after_its_beat_does_not_live_for_ever() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 1_000);
    rig.say_beat(a, session);
    rig.disconnect(a);
    rig.advance(1_300);
    assert_eq!(rig.count(rig.leader(), "end expired 1"), 1);
}

#[test]
fn a_session_closed_with_a_beat_under_way_leaves_nothing_to_look_after() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    let session = rig.open(a, 1, 1_000);
    rig.say(a, Request::CloseSession { session });
    rig.say_beat(a, session);
    rig.settle();
    rig.advance(1_100);
    rig.are_drains_held = true;
    let ticks = rig.ticks;
    rig.advance(5_000);
    assert_eq!(rig.drains_held(), 0);
    assert!(rig.ticks - ticks <= 110, "{} ticks in 5 s", rig.ticks - ticks);
}

#[test]
fn a_stall_of_the_leader_beyond_100_ms_is_added_to_every_deadline() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    rig.open(a, 1, 1_000);
    rig.advance(500);
    // Stopped for an hour, or its clock was.
    rig.now = rig.now + Span::from_ms(3_600_000);
    rig.advance(380);
    assert!(!ended(&mut rig, a), "500 + 100 + 380 ms of 1,000 have counted");
    rig.advance(300);
    assert!(ended(&mut rig, a));
}

#[test]
fn a_leader_without_a_majority_acknowledges_nothing_and_ends_nobody() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let a = rig.connect(leader);
    let session = rig.open(a, 1, 1_000);
    rig.isolate(leader);
    rig.advance_beating(900, 100, &[(a, session)]);
    let told = rig.told(a);
    assert!(told.is_empty(), "{told:?}");
    rig.advance(3_000);
    assert!(rig.told(a).iter().all(|line| line.starts_with("NOT_LEADER")));
    assert_eq!((rig.unanswered(), rig.count(leader, "end")), (0, 0));
}

#[test]
fn sessions_that_end_in_masses_do_so_in_batches_while_others_are_kept_alive() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let a = rig.connect(leader);
    let b = rig.connect(leader);
    let live = rig.open(b, 1, 2_000);
    let held = open_many(&mut rig, a, 3_000, 2_000);
    for (at, session) in held.iter().take(100).enumerate() {
        let name = format!("/ls/many/{at}");
        rig.say(a, acquire(*session, 1, &[&name], 0));
    }
    rig.settle();
    rig.advance_beating(2_250, 300, &[(b, live)]);
    rig.advance(10);
    let told = rig.told(b);
    assert_eq!(told.len(), 8, "{told:?}");
    assert!(told.iter().all(|line| *line == format!("alive: {live} OK")), "{told:?}");
    let log = rig.log(leader);
    let batches: Vec<_> = log.iter().filter(|command| command.starts_with("end")).collect();
    assert!(
        batches.len() >= 3_000 / 256 && batches.iter().all(|batch| batch.len() <= "end expired 256".len())
    );
    assert_eq!((rig.cell(leader).table().sessions_len(), rig.cell(leader).table().locks_len()), (1, 0));
}

#[test]
fn an_expiry_that_is_refused_dooms_nobody_and_does_not_spin() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let a = rig.connect(leader);
    let session = rig.open(a, 1, 1_000);
    rig.ask(a, acquire(session, 1, NAME, 0));
    let b = rig.connect(leader);
    let waiter = rig.open(b, 2, 60_000);
    rig.ask(b, acquire(waiter, 1, NAME, 450));
    // Its silence is not logged yet.
    rig.advance(400);
    // Leadership is on its way to somebody who does not take it: proposals are refused for a while.
    for node in (1..=3).filter(|node| *node != leader) {
        rig.hold_disk(node);
    }
    rig.ask(b, acquire(waiter, 2, &["/ls/a/c"], 0));
    rig.step(leader, Input::Stop);
    let ticks = rig.ticks;
    rig.advance(900);
    assert!(rig.cell(leader).raft().is_leader());
    assert!(rig.ticks - ticks < 300, "{} ticks in 900 ms", rig.ticks - ticks);
    assert_eq!(rig.count(leader, "end") + rig.count(leader, "cancel-wait"), 0);
    rig.told(a);
    rig.beat(a, session);
    rig.advance(20);
    assert_eq!(rig.told(a), [format!("alive: {session} OK")], "nobody is doomed by what was refused");
}

#[test]
fn a_session_expires_while_another_one_that_never_answers_beats() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    let (live, silent) = (rig.open(a, 1, 1_000), rig.open(a, 2, 1_000));
    for _ in 0..5 {
        rig.ask(a, Request::KeepAlive(Rows::Slice(&[live])));
        rig.advance(300);
    }
    let told = rig.told(a);
    assert!(told.contains(&format!("event: session {silent} expired")), "{told:?}");
    assert!(!told.contains(&format!("event: session {live} expired")), "{told:?}");
}
