//! Full disks: what is refused, what goes on, and whose disk counts (ARCHITECTURE section 6.1, "No space").

use lockstep_wire::request::Request;
use lockstep_wire::{NodeId, SessionId};

use super::asking::{acquire, cancel, open, release, token};
use super::rig::Rig;
use crate::{ConnectionId, Input};

const NAME: &[&str] = &["/ls/a/b"];
const OTHER: &[&str] = &["/ls/a/c"];

/// Tells members that their disks have no room, or have room again, and lets it get about.
fn space(rig: &mut Rig, nodes: &[u16], is_short: bool) {
    for node in nodes {
        rig.step(*node, Input::Space { is_short });
    }
    rig.settle();
    rig.advance(60);
}

/// A session that holds a lock, with its connection to the leader and its token.
fn holder(rig: &mut Rig) -> (ConnectionId, SessionId, u64) {
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 10_000);
    let first = token(&rig.call(a, acquire(session, 1, NAME, 0))[0]);
    (a, session, first)
}

#[test]
fn without_space_nothing_is_added_and_everything_else_goes_on() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let (a, session, first) = holder(&mut rig);
    assert_eq!(rig.call(a, acquire(session, 2, OTHER, 0)).len(), 1);
    let b = rig.connect(leader);
    let waiter = rig.open(b, 2, 10_000);
    assert_eq!(rig.call(b, acquire(waiter, 1, NAME, 60_000)), ["QUEUED 1"]);
    assert_eq!(rig.call(b, acquire(waiter, 2, OTHER, 60_000)), ["QUEUED 1"]);
    space(&mut rig, &[1, 2, 3], true);

    let refused = "NO_SPACE (the disks of this cell have no room for anything new)";
    let entries = rig.log(leader).len();
    assert_eq!(rig.call(b, open(3, 10_000)), [refused]);
    assert_eq!(rig.call(b, acquire(waiter, 3, &["/ls/a/d"], 0)), [refused]);
    assert_eq!(rig.log(leader).len(), entries, "what is refused is no entry");

    rig.beat(a, session);
    rig.advance(10);
    assert_eq!(rig.told(a), [format!("alive: {session} OK")]);
    let lock = rig.call(b, Request::GetLock { name: NAME[0] });
    assert_eq!(lock, [format!("OK held by: {session}, waiting: {waiter}")]);
    let c = rig.connect(leader);
    assert_eq!(rig.attach(c, waiter, 2), [format!("attached: {waiter} OK ttl 10000 next 3")]);
    rig.told(b);
    assert_eq!(rig.call(c, cancel(waiter, 4, 2)), ["OK"]);
    assert_eq!(rig.call(a, release(session, 3, 1, NAME[0], first)), ["OK"]);
    let lock = rig.call(c, Request::GetLock { name: NAME[0] });
    assert_eq!(lock, [format!("OK held by: {waiter}, waiting:")], "who waited before is promoted");
    assert_eq!(rig.call(a, Request::CloseSession { session }), ["OK released 1"]);

    space(&mut rig, &[1, 2, 3], false);
    assert!(
        rig.call(c, acquire(waiter, 3, &["/ls/a/d"], 0))[0].starts_with("OK token"),
        "the id was not used"
    );
}

#[test]
fn a_leader_without_space_still_ends_whoever_is_silent_and_grants_to_whoever_waits() {
    let mut rig = Rig::serving(1);
    holder(&mut rig);
    let b = rig.connect(1);
    let waiter = rig.open(b, 2, 10_000);
    assert_eq!(rig.call(b, acquire(waiter, 1, NAME, 60_000)), ["QUEUED 1"]);
    space(&mut rig, &[1], true);
    rig.advance_beating(11_000, 3_000, &[(b, waiter)]);
    let told = rig.told(b);
    assert!(told.iter().any(|line| line.starts_with("OK token")), "{told:?}");
    assert!(rig.count(1, "silent") > 0 && rig.count(1, "end expired") == 1, "{:?}", rig.log(1));
}

#[test]
fn what_was_done_before_the_disks_were_full_is_answered_when_it_is_asked_again() {
    let mut rig = Rig::serving(1);
    let (a, session, first) = holder(&mut rig);
    let b = rig.connect(1);
    let waiter = rig.open(b, 2, 10_000);
    assert_eq!(rig.call(b, acquire(waiter, 1, NAME, 60_000)), ["QUEUED 1"]);
    space(&mut rig, &[1], true);
    assert_eq!(rig.call(a, open(1, 10_000)), [format!("OK session {session} ttl 10000 next 2")]);
    assert_eq!(rig.call(a, acquire(session, 1, NAME, 0)), [format!("OK token {first} holders 1")]);
    let told = rig.call(b, acquire(waiter, 1, NAME, 60_000));
    assert_eq!(told.last().map(String::as_str), Some("QUEUED 1"), "{told:?}");
}

#[test]
fn one_full_follower_stops_nobody_and_two_of_three_members_do() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let followers: Vec<u16> = (1..=3).filter(|node| *node != leader).collect();
    let (a, session, _) = holder(&mut rig);
    space(&mut rig, &followers[..1], true);
    assert!(rig.call(a, acquire(session, 2, OTHER, 0))[0].starts_with("OK token"));
    space(&mut rig, &followers[1..], true);
    assert!(rig.call(a, acquire(session, 3, &["/ls/a/d"], 0))[0].starts_with("NO_SPACE"));
    space(&mut rig, &followers[..1], false);
    assert!(rig.call(a, acquire(session, 3, &["/ls/a/d"], 0))[0].starts_with("OK token"));
    // Whoever has space and is gone is no part of a majority.
    rig.crash(followers[0]);
    rig.advance(1_100);
    assert!(rig.call(a, acquire(session, 4, &["/ls/a/e"], 0))[0].starts_with("NO_SPACE"));
    assert_eq!(rig.leader(), leader);
}

#[test]
fn a_leader_with_a_full_disk_leaves_its_office_to_a_member_that_has_space() {
    let mut rig = Rig::serving(3);
    let full = rig.leader();
    let (a, session, _) = holder(&mut rig);
    rig.advance(1_100);
    space(&mut rig, &[full], true);
    rig.advance_until(3_000, |rig| (1..=3).any(|node| node != full && rig.cell(node).raft().is_serving()));
    let next = rig.leader();
    assert_ne!(next, full);
    rig.told(a);
    let b = rig.connect(next);
    rig.attach(b, session, 1);
    assert!(rig.call(b, acquire(session, 2, OTHER, 0))[0].starts_with("OK token"));
    // It stays there, and nobody leaves when there is nobody to leave it to.
    rig.advance(5_000);
    assert_eq!(rig.leader(), next);
    space(&mut rig, &[1, 2, 3], true);
    let term = rig.cell(next).raft().term();
    rig.advance(10_000);
    assert_eq!((rig.leader(), rig.cell(next).raft().term()), (next, term));
}

#[test]
fn a_new_leader_learns_from_its_followers_that_they_are_full() {
    let mut rig = Rig::serving(3);
    let (_, session, _) = holder(&mut rig);
    space(&mut rig, &[1, 2, 3], true);
    let (_, new) = rig.depose();
    let a = rig.connect(new);
    rig.attach(a, session, 1);
    space(&mut rig, &[new], false);
    // The old leader, too, counts as heard for as long as an election timeout.
    rig.advance(1_000);
    assert!(rig.call(a, acquire(session, 2, OTHER, 0))[0].starts_with("NO_SPACE"));
    rig.heal();
    space(&mut rig, &[1, 2, 3], false);
    assert!(rig.call(a, acquire(session, 2, OTHER, 0))[0].starts_with("OK token"));
}

#[test]
fn leadership_is_not_moved_to_a_full_disk_without_a_word() {
    let mut rig = Rig::serving(3);
    let (leader, full) = (rig.leader(), rig.follower());
    let a = rig.connect(leader);
    space(&mut rig, &[full], true);
    let told = rig.call(a, Request::TransferLeader { to: NodeId(full) });
    assert!(told[0].starts_with(&format!("NO_QUORUM (the disk of node {full} is full")), "{told:?}");
    assert_eq!(rig.leader(), leader);
    space(&mut rig, &[full], false);
    let told = rig.call(a, Request::TransferLeader { to: NodeId(full) });
    assert!(told[0].starts_with(&format!("OK leader {full}")), "{told:?}");
}

#[test]
fn an_office_without_a_wish_for_somebody_goes_to_a_member_with_room() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let full = (1..=3).rev().find(|node| *node != leader).unwrap();
    let other = (1..=3).find(|node| *node != leader && *node != full).unwrap();
    space(&mut rig, &[full], true);
    let a = rig.connect(leader);
    let told = rig.call(a, Request::TransferLeader { to: NodeId(0) });
    assert!(told.iter().all(|line| line.starts_with("OK")), "{told:?}");
    rig.advance(100);
    assert_eq!(rig.leader(), other);
    // So does that of one that stops.
    rig.step(other, Input::Stop);
    rig.settle();
    rig.advance(100);
    assert_eq!(rig.leader(), leader);
}
