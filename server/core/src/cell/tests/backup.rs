//! Snapshots that are saved from a leader.

use lockstep_wire::request::Request;
use lockstep_wire::{LogIndex, SnapshotId};

use super::asking::acquire;
use super::rig::Rig;
use super::snapshot::{digest, grow};
use crate::table::Limits;
use crate::{ConnectionId, Input};

const NAME: &[&str] = &["/ls/a/b"];

fn save(snapshot: SnapshotId, piece: u32) -> Request<'static> {
    Request::SaveSnapshot { snapshot, piece }
}

fn begin() -> Request<'static> {
    save(SnapshotId::default(), 0)
}

/// Asks for the pieces behind the first, and gives what is said of them.
fn go_on(rig: &mut Rig, on: ConnectionId, snapshot: SnapshotId) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for piece in 1.. {
        told.extend(rig.call(on, save(snapshot, piece)));
        if told.last().is_none_or(|line| !line.starts_with("OK") || line.ends_with("last")) {
            break;
        }
    }
    told
}

/// The newest snapshot of member 1.
fn newest(rig: &Rig) -> SnapshotId {
    *rig.snapshots(1).last().expect("it has one")
}

fn piece(number: u32, snapshot: SnapshotId) -> String {
    format!("OK piece {number} of {snapshot}")
}

#[test]
fn a_save_has_all_that_was_applied_when_it_began_in_pieces_in_their_order() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let client = rig.connect(leader);
    grow(&mut rig, client, 10..30);
    let a = rig.connect(leader);
    let applied = rig.cell(leader).applied();
    let told = rig.call(a, begin());
    let snapshot = rig.snapshots(leader)[0];
    assert_eq!((snapshot.index, &told[..]), (applied, &[piece(0, snapshot)][..]));
    // What is committed meanwhile is not in it.
    grow(&mut rig, client, 30..31);
    let rest = go_on(&mut rig, a, snapshot);
    assert!(rest.len() > 2, "{rest:?}");
    for (line, number) in rest[..rest.len() - 1].iter().zip(1..) {
        assert_eq!(*line, piece(number, snapshot));
    }
    assert!(rest.last().is_some_and(|line| line.ends_with(" last")));
    // It is over; another one begins with what is new.
    assert_eq!(rig.call(a, save(snapshot, 1)), ["COMPACTED"]);
    rig.ask(a, begin());
    assert_eq!(rig.snapshots(leader).len(), 2);
}

#[test]
fn a_snapshot_that_has_everything_is_saved_as_it_is() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    rig.take_snapshot(leader);
    let snapshot = rig.snapshots(leader)[0];
    let a = rig.connect(leader);
    for _ in 0..3 {
        assert_eq!(rig.call(a, begin()), [piece(0, snapshot) + " last"]);
    }
    assert_eq!(rig.snapshots(leader), [snapshot]);
}

#[test]
fn one_that_is_being_taken_and_lacks_something_does_not_do() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let client = rig.connect(leader);
    grow(&mut rig, client, 10..12);
    rig.hold_snapshots(leader);
    rig.take_snapshot(leader);
    grow(&mut rig, client, 12..13);
    let applied = rig.cell(leader).applied();
    let a = rig.connect(leader);
    rig.ask(a, begin());
    assert_eq!(rig.told(a), [""; 0]);
    rig.release_snapshots(leader);
    rig.advance(60);
    let snapshots = rig.snapshots(leader);
    assert_eq!((snapshots.len(), snapshots[1].index), (2, applied));
    assert_eq!(rig.told(a), [piece(0, snapshots[1]) + " last"]);
}

#[test]
fn only_a_leader_that_a_majority_confirms_gives_a_snapshot() {
    let mut rig = Rig::serving(3);
    let (leader, follower) = (rig.leader(), rig.follower());
    let b = rig.connect(follower);
    let hint = format!("NOT_LEADER ask node {leader} at node{leader}:4600");
    assert_eq!(rig.call(b, begin()), [hint]);
    let a = rig.connect(leader);
    rig.isolate(leader);
    rig.ask(a, begin());
    assert_eq!(rig.told(a), [""; 0]);
    assert_eq!(rig.snapshots(leader), []);
    rig.advance(5_000);
    assert_eq!(rig.told(a), ["NOT_LEADER"]);
}

#[test]
fn a_leader_that_loses_its_office_answers_whoever_waits_for_a_snapshot() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let [waits, rests] = [rig.connect(leader), rig.connect(leader)];
    grow(&mut rig, rests, 10..30);
    rig.ask(rests, begin());
    let snapshot = rig.snapshots(leader)[0];
    grow(&mut rig, rests, 30..31);
    rig.hold_snapshots(leader);
    rig.ask(waits, begin());
    rig.depose();
    rig.advance(1_500);
    assert_eq!(rig.told(waits), ["NOT_LEADER"]);
    assert_eq!(rig.unanswered(), 0);
    // What it gives as the leader again is begun anew.
    rig.heal();
    rig.release_snapshots(leader);
    rig.advance(2_000);
    let (to, now) = (rig.connect(rig.leader()), rig.leader());
    assert!(rig.call(to, Request::TransferLeader { to: lockstep_wire::NodeId(leader) })[0].starts_with("OK"));
    assert_ne!(now, leader);
    rig.told(rests);
    assert_eq!(rig.call(rests, save(snapshot, 1)), ["COMPACTED"]);
}

#[test]
fn one_piece_at_a_time_on_a_connection_and_a_few_saves_in_a_cell() {
    let mut rig = Rig::serving(1);
    let client = rig.connect(1);
    grow(&mut rig, client, 10..30);
    rig.hold_snapshots(1);
    let all: Vec<ConnectionId> = (0..5).map(|_| rig.connect(1)).collect();
    for a in &all[..4] {
        rig.ask(*a, begin());
    }
    assert_eq!(rig.call(all[0], begin()), ["OVERLOADED (a save is under way on this connection)"]);
    let full = ["OVERLOADED (as many saves are under way as this cell takes)"];
    assert_eq!(rig.call(all[4], begin()), full);
    rig.release_snapshots(1);
    let snapshot = rig.snapshots(1)[0];
    for a in &all[..4] {
        assert_eq!(rig.told(*a), [piece(0, snapshot)], "one snapshot does for all");
    }
    assert_eq!(rig.snapshots(1), [snapshot]);
    assert_eq!(rig.call(all[0], save(snapshot, 2)), ["INVALID (piece: 1 is next)"]);
    assert_eq!(rig.call(all[0], save(snapshot, 0)), ["INVALID (piece: 1 is next)"]);
    assert_eq!(rig.call(all[0], save(SnapshotId::default(), 1)), ["COMPACTED"]);
    // Whoever goes makes room, and so does whoever rests for too long.
    assert_eq!(rig.call(all[4], begin()), full);
    rig.disconnect(all[3]);
    assert_eq!(rig.call(all[4], begin()), [piece(0, snapshot)]);
    rig.advance(8_000);
    rig.ask(all[1], save(snapshot, 1));
    rig.told(all[1]);
    rig.advance(3_000);
    let late = rig.connect(1);
    assert_eq!(rig.call(late, begin()), [piece(0, snapshot)]);
    assert_eq!(rig.call(all[0], save(snapshot, 1)), ["COMPACTED"], "it was heard of least recently");
    assert_eq!(rig.call(all[1], save(snapshot, 2)), [piece(2, snapshot)]);
}

#[test]
fn no_second_snapshot_is_taken_while_the_mark_of_the_first_is_on_its_way() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let [client, a] = [rig.connect(leader), rig.connect(leader)];
    grow(&mut rig, client, 10..12);
    rig.hold_disk(leader);
    rig.ask(a, begin());
    // The others commit, and the leader applies.
    grow(&mut rig, client, 12..14);
    rig.advance(300);
    let [snapshot] = rig.snapshots(leader)[..] else { panic!("one was taken: {:?}", rig.snapshots(leader)) };
    assert_eq!(rig.told(a), [""; 0], "it counts by its mark");
    rig.release_disk(leader);
    assert_eq!(rig.told(a), [piece(0, snapshot) + " last"]);
}

#[test]
fn a_save_takes_no_snapshot_away_that_another_save_goes_on_with() {
    let mut rig = Rig::serving(1);
    let client = rig.connect(1);
    let [a, b, c] = [rig.connect(1), rig.connect(1), rig.connect(1)];
    grow(&mut rig, client, 10..30);
    rig.ask(a, begin());
    grow(&mut rig, client, 30..31);
    rig.ask(b, begin());
    grow(&mut rig, client, 31..32);
    let [older, newer] = rig.snapshots(1)[..] else { panic!("two are kept") };
    assert_eq!((rig.told(a), rig.told(b)), (vec![piece(0, older)], vec![piece(0, newer)]));
    let refused = ["OVERLOADED (the next snapshot would take away one that is being saved or sent)"];
    assert_eq!(rig.call(c, begin()), refused);
    assert_eq!(rig.snapshots(1), [older, newer]);
    assert!(go_on(&mut rig, a, older).last().is_some_and(|line| line.ends_with(" last")));
    // The older one is nobody's any more.
    rig.ask(c, begin());
    assert_eq!(rig.told(c), [piece(0, newest(&rig))]);
    // And b's may go once b has rested for too long.
    grow(&mut rig, client, 32..33);
    rig.advance(11_000);
    rig.ask(a, begin());
    assert_eq!(rig.told(a), [piece(0, newest(&rig))]);
}

#[test]
fn a_snapshot_that_was_replaced_is_gone_and_one_that_is_damaged_is_taken_anew() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    grow(&mut rig, a, 10..30);
    rig.ask(a, begin());
    let snapshot = rig.snapshots(1)[0];
    rig.told(a);
    rig.remove_snapshot(1, snapshot);
    assert_eq!(rig.call(a, save(snapshot, 1)), ["COMPACTED"]);
    assert_eq!(rig.call(a, begin()), [piece(0, snapshot)], "the same state has the same name");
    assert_eq!(rig.snapshots(1), [snapshot]);
}

#[test]
fn without_room_for_a_snapshot_whoever_waits_is_told() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    rig.fill_disk(1, true);
    assert_eq!(rig.call(a, begin()), ["NO_SPACE (the leader's disk has no room for a snapshot)"]);
    rig.fill_disk(1, false);
    rig.ask(a, begin());
    assert_eq!(rig.told(a), [""; 0], "it is tried again in a second");
    rig.advance(1_100);
    assert_eq!(rig.told(a), [piece(0, rig.snapshots(1)[0]) + " last"]);
}

/// The follower gets its pieces, and the save gets its own, though both want the same ones.
#[test]
fn a_save_and_an_install_at_once_do_not_take_each_others_pieces() {
    let mut rig = Rig::uncached(3);
    let (leader, follower) = (rig.leader(), rig.follower());
    let client = rig.connect(leader);
    rig.crash(follower);
    grow(&mut rig, client, 10..60);
    rig.take_snapshot(leader);
    let snapshot = rig.snapshots(leader)[0];
    rig.recycle(leader, snapshot.index);
    let a = rig.connect(leader);
    assert_eq!(rig.call(a, begin()), [piece(0, snapshot)]);
    rig.hold_snapshots(follower);
    rig.start(follower);
    rig.advance(200);
    let mut told = Vec::new();
    for number in 1.. {
        rig.release_piece(follower);
        // Whose turn it is first changes from piece to piece.
        rig.say(a, save(snapshot, number));
        rig.step(leader, Input::Tick);
        rig.settle();
        told.extend(rig.told(a));
        if told.last().is_none_or(|line| line.ends_with("last")) {
            break;
        }
    }
    rig.release_snapshots(follower);
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
    let pieces = told.len() + 1;
    assert!(pieces > 8, "{pieces} pieces");
    for (line, number) in told.iter().zip(1..) {
        assert!(line.starts_with(&piece(number, snapshot)), "{line}");
    }
    assert_eq!(rig.pieces_sent(), pieces, "the follower was sent each piece once");
    assert_eq!(rig.snapshots(follower), [snapshot]);
}

/// Its answer comes when nobody wants it any more, and is not taken for a follower's.
#[test]
fn a_piece_that_is_read_for_a_connection_that_is_gone_goes_nowhere() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    let session = rig.open(a, 1, 10_000);
    rig.ask(a, acquire(session, 1, NAME, 0));
    rig.told(a);
    rig.take_snapshot(1);
    let b = rig.connect(1);
    rig.say(b, begin());
    rig.step(1, Input::EndOfTurn);
    rig.disconnect(b);
    assert_eq!(rig.told(b), [""; 0]);
    assert_eq!(rig.call(a, begin()), [piece(0, rig.snapshots(1)[0]) + " last"]);
    assert!(rig.snapshots(1)[0].index > LogIndex(0));
}

/// Nobody else has it, so nobody knows whether it would have been committed.
#[test]
fn the_last_state_of_a_log_has_what_was_not_committed() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let a = rig.connect(leader);
    let session = rig.open(a, 1, 60_000);
    rig.ask(a, acquire(session, 1, NAME, 0));
    rig.take_snapshot(leader);
    rig.ask(a, acquire(session, 2, &["/ls/a/committed"], 0));
    rig.isolate(leader);
    rig.ask(a, acquire(session, 3, &["/ls/a/not"], 0));
    let applied = rig.cell(leader).applied();
    for recycled in [LogIndex(0), rig.snapshots(leader)[0].index] {
        rig.recycle(leader, recycled);
        let (last, table) = rig.restored(leader).into_last_state(Limits::default()).expect("there is one");
        assert_eq!((last.index, table.applied()), (applied.next(), applied.next()));
        assert_eq!(last.term, rig.cell(leader).raft().term());
        assert_eq!((table.locks_len(), table.holds_len()), (3, 3), "{recycled} recycled");
    }
}

#[test]
fn a_log_without_its_beginning_and_without_a_snapshot_has_no_last_state() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    rig.open(a, 1, 60_000);
    rig.take_snapshot(1);
    let snapshot = rig.snapshots(1)[0];
    rig.recycle(1, snapshot.index);
    rig.remove_snapshot(1, snapshot);
    let why = rig.restored(1).into_last_state(Limits::default()).expect_err("it has no state");
    assert!(why.contains("first entries are gone"), "{why}");
    let why = crate::Restore::new().into_last_state(Limits::default()).expect_err("it has no state");
    assert_eq!(why, "it has no entry");
}
