//! How much of the log one turn applies, and what waits for the next.

use lockstep_wire::SessionId;
use lockstep_wire::request::Request;

use super::asking::{acquire, cancel};
use super::rig::Rig;
use crate::cell::request::BACKLOG_MAX;
use crate::table::Limits;
use crate::{CACHE_BYTES_MAX, ConnectionId, Input};

/// An entry and what comes of it count: one acquire a turn.
const PER_TURN: usize = 2;

fn name(number: u64) -> String {
    format!("/ls/turns/{number}")
}

/// A cell that applies little in a turn, and a session at its leader that has asked for so many locks, none of which is committed.
fn with_uncommitted(members: u16, count: u64) -> (Rig, ConnectionId, SessionId) {
    let mut rig = Rig::unstarted(members, Limits::default(), CACHE_BYTES_MAX);
    rig.apply_per_turn = PER_TURN;
    (1..=members).for_each(|node| rig.start(node));
    rig.advance_until(5_000, Rig::has_leader);
    let connection = rig.connect(rig.leader());
    let session = rig.open(connection, 1, 60_000);
    (1..=members).for_each(|node| rig.hold_disk(node));
    for number in 1..=count {
        rig.say(connection, acquire(session, number, &[&name(number)], 0));
    }
    rig.settle();
    (rig, connection, session)
}

#[test]
fn a_turn_applies_so_much_and_the_next_one_comes_at_once() {
    let (mut rig, connection, _) = with_uncommitted(1, 100);
    let before = rig.cell(1).applied();
    rig.release_disk(1);
    let committed = rig.cell(1).raft().committed();
    assert_eq!(committed.0, before.0 + 100, "all of it is committed by one write");
    let mut turns = 0;
    while rig.cell(1).applied() < committed {
        assert!(rig.cell(1).deadline() <= rig.now, "it wants to go on at once");
        let applied = rig.cell(1).applied();
        rig.step(1, Input::Tick);
        assert!(rig.cell(1).applied().0 <= applied.0 + 1, "an acquire a turn");
        rig.step(1, Input::Tick);
        assert!(rig.cell(1).applied().0 <= applied.0 + 1, "the turn goes on and has no more to spend");
        rig.step(1, Input::EndOfTurn);
        turns += 1;
        assert!(turns <= 200, "it never ends");
    }
    assert!(turns >= 90, "{turns} turns");
    assert!(rig.cell(1).deadline() > rig.now);
    rig.settle();
    assert_eq!(rig.told(connection).len(), 100, "each was answered");
}

#[test]
fn a_read_waits_until_everything_is_applied_that_was_committed_when_its_round_was_confirmed() {
    let (mut rig, connection, session) = with_uncommitted(3, 50);
    let leader = rig.leader();
    (1..=3).for_each(|node| rig.release_disk(node));
    let (applied, committed) = (rig.cell(leader).applied(), rig.cell(leader).raft().committed());
    assert!(applied.0 + 10 < committed.0, "much is left: {applied} of {committed}");
    let reader = rig.connect(leader);
    rig.ask(reader, Request::GetLock { name: &name(50) });
    rig.beat(connection, session);
    let (confirmed, begun) = rig.cell(leader).raft().rounds();
    assert_eq!(confirmed, begun, "the round of the read is confirmed");
    assert!(rig.cell(leader).applied() < committed);
    assert!(rig.told(reader).is_empty(), "it says nothing of what is not applied");
    rig.advance(20);
    assert_eq!(rig.told(reader), [format!("OK held by: {session}, waiting:")]);
    assert_eq!(rig.told(connection).len(), 51, "the beat and the grants");
}

#[test]
fn what_frees_something_is_admitted_while_a_start_applies_a_long_log() {
    let (mut rig, connection, session) = with_uncommitted(1, 1);
    let mut request = 1;
    while rig.cell(1).backlog() < 2 * BACKLOG_MAX {
        request += 1;
        assert!(request <= 2 * BACKLOG_MAX + 1, "each of them is an entry");
        rig.say(connection, cancel(session, request, request - 1));
    }
    rig.settle();
    rig.say(connection, cancel(session, request + 1, request));
    assert!(rig.told(connection).iter().any(|told| told.starts_with("OVERLOADED")), "it bounds what is new");
    rig.release_disk(1);
    rig.crash(1);
    rig.start(1);
    rig.advance_until(5_000, |rig| rig.cell(1).raft().is_leader());
    let connection = rig.connect(1);
    rig.attach(connection, session, 1);
    rig.say(connection, acquire(session, request + 1, &["/ls/turns/more"], 0));
    assert!(rig.told(connection).iter().any(|told| told.starts_with("OVERLOADED")));
    let before = rig.cell(1).raft().last_index();
    for _ in 0..500 {
        request += 1;
        rig.say(connection, cancel(session, request, request - 1));
    }
    assert_eq!(rig.cell(1).raft().last_index().0, before.0 + 500, "all of it is on its way");
}

#[test]
fn no_snapshot_is_begun_before_what_the_log_had_at_the_start_is_applied() {
    let (mut rig, _, _) = with_uncommitted(1, 20);
    rig.release_disk(1);
    // In a life that began before, a snapshot that is due is begun whatever is left.
    assert!(rig.cell(1).raft().has_more_to_apply());
    rig.step(1, Input::SnapshotDue);
    rig.settle();
    assert_eq!(rig.snapshots(1).len(), 1);
    let through = rig.cell(1).raft().last_index();
    rig.crash(1);
    rig.start(1);
    rig.advance_until(5_000, |rig| rig.cell(1).raft().is_leader());
    rig.settle();
    let mut turns = 0;
    while rig.cell(1).applied() < through {
        rig.step(1, Input::SnapshotDue);
        rig.step(1, Input::EndOfTurn);
        turns += 1;
        assert!(turns <= 40, "it never ends");
    }
    assert!(turns >= 10, "{turns} turns");
    rig.advance(1_000);
    assert_eq!(rig.snapshots(1).len(), 1, "one was begun in between");
    rig.step(1, Input::SnapshotDue);
    rig.advance(1_000);
    let newest = rig.snapshots(1).last().expect("one was due").index;
    assert_eq!(newest, rig.cell(1).applied());
}
