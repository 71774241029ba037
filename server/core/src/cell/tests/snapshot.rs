//! Snapshots: taken while commits go on, restarted from, and installed at members whose entries are gone.

use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::peer::PeerMessage;
use lockstep_wire::{
    LogIndex, NodeId, SessionId, SnapshotAnswer, SnapshotId, SnapshotPiece, SnapshotReply, Term,
};

use super::asking::{acquire, release, token};
use super::rig::Rig;
use crate::{ConnectionId, Input, Span, Time};

const NAME: &[&str] = &["/ls/a/b"];
/// Locks of each session that `grow` opens.
const LOCKS: u64 = 40;

/// Opens sessions that hold many locks with long names: about 24 KiB of state each.
pub(super) fn grow(rig: &mut Rig, on: ConnectionId, clients: std::ops::Range<u64>) {
    for client in clients {
        let session = rig.open(on, client, 60_000);
        for lock in 1..=LOCKS {
            let name = format!("/ls/{client}/{lock}/{}", "x".repeat(480));
            rig.ask(on, acquire(session, lock, &[&name], 0));
        }
    }
    rig.told(on);
}

/// A cell of three, its leader and a follower, and a client of the leader with a session and a lock.
struct Scene {
    rig: Rig,
    leader: u16,
    follower: u16,
    client: ConnectionId,
    session: SessionId,
    token: u64,
}

fn scene() -> Scene {
    let mut rig = Rig::uncached(3);
    let (leader, follower) = (rig.leader(), rig.follower());
    let client = rig.connect(leader);
    let session = rig.open(client, 1, 60_000);
    let granted = rig.call(client, acquire(session, 1, NAME, 0));
    Scene { leader, follower, client, session, token: token(&granted[0]), rig }
}

/// Stops a member, lets the others go on without its entries, and gives the newest snapshot of the leader.
fn leave_behind(scene: &mut Scene, sessions: u64) -> SnapshotId {
    let (leader, follower) = (scene.leader, scene.follower);
    scene.rig.crash(follower);
    grow(&mut scene.rig, scene.client, 10..10 + sessions);
    scene.rig.take_snapshot(leader);
    let snapshot = *scene.rig.snapshots(leader).last().expect("a snapshot was taken");
    scene.rig.recycle(leader, snapshot.index);
    snapshot
}

pub(super) fn digest(rig: &Rig, node: u16) -> (LogIndex, u64) {
    (rig.cell(node).applied(), rig.cell(node).table().digest())
}

#[test]
fn a_replica_goes_on_from_its_snapshot_and_the_entries_behind_it() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    let session = rig.open(a, 1, 60_000);
    let granted = rig.call(a, acquire(session, 1, NAME, 0));
    rig.take_snapshot(1);
    let snapshot = rig.snapshots(1)[0];
    rig.ask(a, acquire(session, 2, &["/ls/a/later"], 0));
    let later = rig.told(a);
    let before = digest(&rig, 1);
    rig.recycle(1, snapshot.index);
    rig.crash(1);
    rig.start(1);
    rig.advance_until(5_000, |rig| rig.cell(1).applied() > before.0);
    let a = rig.connect(1);
    rig.attach(a, session, 1);
    // Exactly once, across the snapshot: the same ids have the same outcomes.
    assert_eq!(rig.call(a, acquire(session, 1, NAME, 0)), granted);
    assert_eq!(rig.call(a, acquire(session, 2, &["/ls/a/later"], 0)), later);
    assert_eq!(rig.call(a, release(session, 3, 1, NAME[0], token(&granted[0]))), ["OK"]);
}

#[test]
fn a_snapshot_is_the_state_at_its_beginning_whatever_is_committed_meanwhile() {
    let Scene { mut rig, leader, follower, client, session, token: held } = scene();
    grow(&mut rig, client, 10..30);
    rig.advance(60);
    rig.take_snapshot(follower);
    let undisturbed = rig.snapshots(follower)[0];
    rig.hold_snapshots(leader);
    rig.take_snapshot(leader);
    rig.ask(client, release(session, 2, 1, NAME[0], held));
    let mut pieces = 0;
    while rig.release_piece(leader) {
        // Every commit changes what is there, and adds to it.
        let name = format!("/ls/new/{pieces}");
        rig.ask(client, acquire(session, 3 + pieces, &[&name], 0));
        pieces += 1;
    }
    assert!(pieces > 3, "{pieces} pieces");
    assert_eq!(rig.snapshots(leader), [undisturbed]);
    assert!(rig.snapshot_bytes(leader, undisturbed) == rig.snapshot_bytes(follower, undisturbed));
}

/// A member alone that has begun a snapshot of several pieces and staged the first; its disk answers at once, and its log is in
/// no hurry.
fn paced() -> (Rig, ConnectionId, SessionId) {
    let mut rig = Rig::serving(1);
    let client = rig.connect(1);
    let session = rig.open(client, 1, 60_000);
    grow(&mut rig, client, 10..30);
    rig.hurries_snapshots = false;
    rig.take_snapshot(1);
    assert_eq!(slices(&mut rig), FIRST_PIECE_SLICES, "the first piece is made at once");
    (rig, client, session)
}

const FIRST_PIECE_SLICES: usize = SNAPSHOT_PIECE_BYTES_MAX.div_ceil(crate::SNAPSHOT_SLICE_BYTES);

/// Makes slices as long as one is due now, with an end of turn behind each; says how many.
fn slices(rig: &mut Rig) -> usize {
    let mut made = 0;
    while rig.cell(1).slice_deadline() <= rig.now {
        rig.step(1, Input::Tick);
        rig.settle();
        made += 1;
    }
    made
}

#[test]
fn from_the_second_piece_on_a_slice_is_made_after_a_pause_and_no_sooner_for_other_ticks() {
    let (mut rig, ..) = paced();
    let mut made = FIRST_PIECE_SLICES;
    while rig.snapshots(1).is_empty() {
        let due = rig.cell(1).slice_deadline();
        assert!(due > rig.now && due <= rig.now + Span::from_ms(16), "{due:?} at {:?}", rig.now);
        rig.step(1, Input::Tick);
        assert_eq!(rig.cell(1).slice_deadline(), due, "it came for something else");
        rig.now = due;
        assert_eq!(slices(&mut rig), 1);
        made += 1;
    }
    let bytes = rig.snapshot_bytes(1, rig.snapshots(1)[0]).len();
    let (whole, rest) = (bytes / SNAPSHOT_PIECE_BYTES_MAX, bytes % SNAPSHOT_PIECE_BYTES_MAX);
    assert_eq!(made, whole * FIRST_PIECE_SLICES + rest.div_ceil(crate::SNAPSHOT_SLICE_BYTES));
}

#[test]
fn a_snapshot_keeps_up_with_what_is_used_of_the_logs_room_and_is_written_when_three_quarters_are() {
    let (mut rig, ..) = paced();
    let mut before = FIRST_PIECE_SLICES;
    for millionths in (0..750_000).step_by(10_000) {
        rig.step(1, Input::RoomUsed { millionths });
        let (written, records) = rig.cell(1).table().snapshot_progress().unwrap();
        let is_behind = (written as u64) * 750_000 < (records as u64) * millionths;
        let made = slices(&mut rig);
        assert_eq!(made > 0, is_behind, "{written} of {records} at {millionths}");
        assert!(made <= 3, "{made} slices for a fiftieth");
        before += made;
        assert!(rig.snapshots(1).is_empty());
    }
    assert!(before > 2 * FIRST_PIECE_SLICES, "{before} slices");
    rig.step(1, Input::RoomUsed { millionths: 750_000 });
    slices(&mut rig);
    assert_eq!(rig.snapshots(1).len(), 1, "all of it is there");
    assert!(!rig.cell(1).is_taking_snapshot());
}

#[test]
fn the_room_that_an_earlier_snapshot_used_does_not_hurry_the_next_one() {
    let (mut rig, client, _) = paced();
    rig.step(1, Input::RoomUsed { millionths: 900_000 });
    slices(&mut rig);
    grow(&mut rig, client, 30..32);
    rig.take_snapshot(1);
    assert_eq!(slices(&mut rig), FIRST_PIECE_SLICES);
    assert!(rig.cell(1).slice_deadline() > rig.now);
}

#[test]
fn whatever_comes_between_two_slices_the_bytes_are_those_of_the_beginning() {
    let Scene { mut rig, leader, follower, client, session, token: held } = scene();
    grow(&mut rig, client, 10..30);
    rig.advance(60);
    rig.take_snapshot(follower);
    let undisturbed = rig.snapshots(follower)[0];
    rig.hurries_snapshots = false;
    rig.take_snapshot(leader);
    rig.ask(client, release(session, 2, 1, NAME[0], held));
    let mut asked = 0;
    let mut copies = None;
    while rig.snapshots(leader).is_empty() {
        // Another slice, of a piece that is not whole; then a lock that is there in the snapshot changes, one comes, a session
        // is opened and beats.
        rig.advance(4);
        asked += 1;
        let grown = format!("/ls/{}/{}/{}", 29 - asked % 20, 1 + asked % LOCKS, "x".repeat(480));
        rig.ask(client, acquire(session, 1 + 2 * asked, &[&format!("/ls/new/{asked}")], 0));
        rig.ask(client, acquire(session, 2 + 2 * asked, &[&grown], 60_000));
        if asked % 5 == 0 {
            rig.open(client, 1_000 + asked, 60_000);
        }
        rig.beat(client, session);
        copies = copies.max(rig.cell(leader).table().snapshot_copies_len());
        assert!(asked < 1_000, "it does not end");
    }
    assert!(asked > 10 && copies > Some(1), "{asked} times, {copies:?} copies");
    rig.told(client);
    assert_eq!(rig.snapshots(leader), [undisturbed]);
    assert!(rig.snapshot_bytes(leader, undisturbed) == rig.snapshot_bytes(follower, undisturbed));
}

#[test]
fn a_member_whose_entries_are_gone_gets_a_snapshot_and_what_follows_it() {
    let mut scene = scene();
    let snapshot = leave_behind(&mut scene, 20);
    let Scene { mut rig, leader, follower, client, session, .. } = scene;
    let term = rig.cell(leader).raft().term();
    rig.ask(client, acquire(session, 2, &["/ls/a/behind"], 0));
    rig.start(follower);
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
    assert_eq!(rig.snapshots(follower), [snapshot]);
    assert_eq!(rig.snapshot_bytes(follower, snapshot), rig.snapshot_bytes(leader, snapshot));
    assert_eq!(rig.cell(leader).raft().term(), term, "it disturbed somebody");
    // What it has is durable: it counts for a majority with the leader, and goes on from there after a crash.
    rig.recycle(follower, snapshot.index);
    rig.crash(follower);
    rig.start(follower);
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
    assert_eq!(rig.complaints(follower), [""; 0]);
}

#[test]
fn the_table_that_an_install_replaces_is_freed_bit_by_bit_beside_other_work() {
    let mut scene = scene();
    grow(&mut scene.rig, scene.client, 100..110);
    leave_behind(&mut scene, 20);
    let Scene { mut rig, leader, follower, client, session, .. } = scene;
    rig.start(follower);
    rig.advance_until(5_000, |rig| rig.cell(follower).remains.len() > 0);
    assert!(rig.cell(follower).deadline() < Time::NEVER);
    rig.ask(client, acquire(session, 2, &["/ls/a/meanwhile"], 0));
    rig.advance_until(5_000, |rig| rig.cell(follower).remains.len() == 0);
    assert_eq!(rig.told(client).len(), 1, "commits go on");
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
}

#[test]
fn retries_find_their_outcomes_at_a_leader_that_was_installed() {
    let mut scene = scene();
    leave_behind(&mut scene, 5);
    let Scene { mut rig, leader, follower, session, token: granted, .. } = scene;
    rig.start(follower);
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
    let third = (1..=3).find(|node| *node != leader && *node != follower).unwrap();
    rig.crash(leader);
    // The third has no reason to try before the one that was installed.
    rig.hold_disk(third);
    rig.advance(30);
    rig.release_disk(third);
    rig.advance_until(5_000, |rig| rig.has_leader());
    let client = rig.connect(rig.leader());
    rig.attach(client, session, 1);
    assert_eq!(rig.call(client, acquire(session, 1, NAME, 0)), [format!("OK token {granted} holders 1")]);
}

#[test]
fn a_broken_link_costs_no_piece_that_the_disk_has() {
    let mut scene = scene();
    let snapshot = leave_behind(&mut scene, 30);
    let Scene { mut rig, leader, follower, .. } = scene;
    rig.hold_snapshots(follower);
    rig.start(follower);
    rig.advance(200);
    assert!(rig.release_piece(follower) && rig.release_piece(follower), "pieces come");
    let sent = rig.pieces_sent();
    rig.break_link(leader, follower);
    rig.release_piece(follower);
    rig.mend_link(leader, follower);
    rig.release_snapshots(follower);
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
    let pieces = rig.snapshot_bytes(leader, snapshot).len().div_ceil(SNAPSHOT_PIECE_BYTES_MAX);
    // At most a window of pieces, and the one that asks where to go on, go twice.
    let again = rig.pieces_sent() - pieces;
    assert!(again <= 9, "{sent} pieces before, {pieces} in all, {again} again");
    assert!(sent >= 3);
}

#[test]
fn a_new_leader_goes_on_where_the_old_one_was() {
    let mut scene = scene();
    let snapshot = leave_behind(&mut scene, 60);
    let Scene { mut rig, leader, follower, .. } = scene;
    let third = (1..=3).find(|node| *node != leader && *node != follower).unwrap();
    rig.advance(60);
    rig.take_snapshot(third);
    rig.recycle(third, snapshot.index);
    assert_eq!(rig.snapshot_bytes(third, snapshot), rig.snapshot_bytes(leader, snapshot), "canonical");
    rig.hold_snapshots(follower);
    rig.start(follower);
    rig.advance(200);
    assert!(rig.release_piece(follower) && rig.release_piece(follower));
    rig.crash(leader);
    rig.release_snapshots(follower);
    rig.advance_until(5_000, |rig| rig.has_leader() && digest(rig, follower) == digest(rig, third));
    assert_eq!(rig.leader(), third, "the follower has nothing to lead with");
    assert_eq!(rig.snapshots(follower), [snapshot]);
    let pieces = rig.snapshot_bytes(leader, snapshot).len().div_ceil(SNAPSHOT_PIECE_BYTES_MAX);
    let again = rig.pieces_sent() - pieces;
    assert!(again <= 9, "{pieces} pieces in all, {again} again");
}

#[test]
fn a_snapshot_that_was_overtaken_by_entries_is_given_up() {
    for is_whole in [false, true] {
        let mut scene = scene();
        leave_behind(&mut scene, if is_whole { 5 } else { 60 });
        let Scene { mut rig, leader, follower, .. } = scene;
        let third = (1..=3).find(|node| *node != leader && *node != follower).unwrap();
        rig.hold_snapshots(follower);
        rig.start(follower);
        rig.advance(200);
        // The other one still has the entries, and leads next.
        rig.isolate(leader);
        rig.advance_until(5_000, |rig| rig.has_leader() && rig.leader() == third);
        rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, third));
        let applied = rig.cell(follower).applied();
        if is_whole {
            rig.release_snapshots(follower);
            assert_eq!(rig.cell(follower).applied(), applied, "it has gone back");
        } else {
            rig.take_snapshot(follower);
            rig.release_snapshots(follower);
        }
        rig.take_snapshot(follower);
        assert_eq!(rig.snapshots(follower).last().unwrap().index, rig.cell(follower).applied());
        assert_eq!(digest(&rig, follower), digest(&rig, third));
    }
}

#[test]
fn a_member_whose_newest_snapshot_is_damaged_goes_on_from_the_older_one() {
    let mut scene = scene();
    let Scene { ref mut rig, leader, follower, client, .. } = scene;
    rig.take_snapshot(follower);
    grow(rig, client, 10..12);
    rig.take_snapshot(follower);
    let [older, newer] = rig.snapshots(follower)[..] else { panic!("two were taken") };
    rig.recycle(follower, older.index);
    rig.crash(follower);
    rig.damage_snapshot(follower, newer);
    rig.start(follower);
    assert_eq!(rig.complaints(follower).len(), 1);
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
}

#[test]
fn a_member_without_a_whole_snapshot_asks_its_leader_for_one_and_leads_nobody() {
    let mut scene = scene();
    let Scene { ref mut rig, leader, follower, client, .. } = scene;
    rig.take_snapshot(follower);
    let only = rig.snapshots(follower)[0];
    rig.recycle(follower, only.index);
    rig.crash(follower);
    rig.damage_snapshot(follower, only);
    grow(rig, client, 10..12);
    rig.isolate(follower);
    rig.start(follower);
    let term = rig.cell(follower).raft().term();
    rig.advance(5_000);
    assert_eq!(rig.cell(follower).raft().term(), term, "it campaigned without a state");
    assert_eq!(rig.cell(follower).applied(), LogIndex(0));
    rig.heal();
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
    assert!(rig.snapshots(leader)[0].index > only.index, "the leader took one for it");
}

#[test]
fn a_member_that_lost_its_state_is_not_offered_the_older_snapshot_that_it_was_sent_once() {
    let mut scene = scene();
    let sent = leave_behind(&mut scene, 20);
    let Scene { mut rig, leader, follower, client, .. } = scene;
    rig.start(follower);
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
    grow(&mut rig, client, 100..102);
    rig.advance(60);
    rig.take_snapshot(follower);
    rig.take_snapshot(leader);
    let own = *rig.snapshots(follower).last().unwrap();
    assert!(own.index > sent.index && rig.snapshots(leader) == [sent, own]);
    rig.recycle(follower, own.index);
    rig.crash(follower);
    rig.damage_snapshot(follower, sent);
    rig.damage_snapshot(follower, own);
    rig.start(follower);
    // Nothing new is committed, so that the leader has no other snapshot to take.
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
}

#[test]
fn a_member_alone_whose_snapshot_is_damaged_refuses_to_go_on() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    rig.open(a, 1, 60_000);
    rig.take_snapshot(1);
    let only = rig.snapshots(1)[0];
    rig.recycle(1, only.index);
    rig.crash(1);
    rig.damage_snapshot(1, only);
    rig.start(1);
    rig.advance(10);
    let halted = rig.halted(1).expect("it has nothing to go on from");
    assert!(halted.contains("damaged") && halted.contains("backup"), "{halted}");
}

#[test]
fn a_snapshot_without_room_is_tried_again_and_commits_go_on() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    let session = rig.open(a, 1, 60_000);
    rig.fill_disk(1, true);
    rig.take_snapshot(1);
    assert_eq!(rig.snapshots(1), []);
    rig.fill_disk(1, false);
    rig.take_snapshot(1);
    assert_eq!(rig.snapshots(1), [], "not at once");
    token(&rig.call(a, acquire(session, 1, NAME, 0))[0]);
    rig.advance(1_000);
    rig.take_snapshot(1);
    assert_eq!(rig.snapshots(1).len(), 1);
}

#[test]
fn an_install_without_room_is_refused_and_tried_again() {
    let mut scene = scene();
    leave_behind(&mut scene, 3);
    let Scene { mut rig, leader, follower, .. } = scene;
    rig.fill_disk(follower, true);
    rig.start(follower);
    rig.advance(3_000);
    assert_eq!(rig.snapshots(follower), []);
    assert!(rig.pieces_sent() < 10, "{} pieces to a full disk", rig.pieces_sent());
    rig.fill_disk(follower, false);
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
}

#[test]
fn entries_that_a_snapshot_overrules_are_truncated_with_its_mark() {
    let mut scene = scene();
    let Scene { ref mut rig, leader, client, session, .. } = scene;
    // The leader appends what nobody else gets.
    let old = leader;
    rig.isolate(old);
    for id in 2..6 {
        rig.ask(client, acquire(session, id, &[&format!("/ls/lost/{id}")], 0));
    }
    rig.advance_until(5_000, |rig| rig.has_leader() && rig.leader() != old);
    let new = rig.leader();
    let other = rig.connect(new);
    grow(rig, other, 10..16);
    rig.take_snapshot(new);
    let snapshot = rig.snapshots(new)[0];
    rig.recycle(new, snapshot.index);
    rig.break_link(old, new);
    rig.heal();
    rig.mend_link(old, new);
    rig.advance_until(5_000, |rig| digest(rig, old) == digest(rig, new));
    assert_eq!(rig.snapshots(old), [snapshot]);
    rig.crash(old);
    rig.start(old);
    rig.advance_until(5_000, |rig| digest(rig, old) == digest(rig, new));
    assert_eq!(rig.cell(old).table().locks_len(), rig.cell(new).table().locks_len());
}

#[test]
fn nothing_new_makes_no_snapshot() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    rig.open(a, 1, 60_000);
    rig.take_snapshot(1);
    rig.take_snapshot(1);
    assert_eq!(rig.snapshots(1).len(), 1);
}

#[test]
fn a_member_without_a_state_counts_for_a_majority_while_it_waits() {
    let mut scene = scene();
    let Scene { ref mut rig, leader, follower, client, session, .. } = scene;
    rig.take_snapshot(follower);
    let only = rig.snapshots(follower)[0];
    rig.recycle(follower, only.index);
    rig.crash(follower);
    rig.damage_snapshot(follower, only);
    let third = (1..=3).find(|node| *node != leader && *node != follower).unwrap();
    rig.crash(third);
    rig.hold_snapshots(leader);
    rig.start(follower);
    rig.advance(2_000);
    token(&rig.call(client, acquire(session, 2, &["/ls/a/meanwhile"], 0))[0]);
    assert_eq!(rig.cell(follower).applied(), LogIndex(0), "it has a state already");
    rig.release_snapshots(leader);
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
}

#[test]
fn a_snapshot_is_installed_where_the_log_has_no_entry_left() {
    let mut scene = scene();
    let Scene { ref mut rig, follower, .. } = scene;
    rig.advance(60);
    rig.take_snapshot(follower);
    let own = rig.snapshots(follower)[0];
    rig.recycle(follower, own.index);
    let snapshot = leave_behind(&mut scene, 20);
    let Scene { mut rig, leader, follower, .. } = scene;
    rig.start(follower);
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
    assert_eq!(rig.snapshots(follower), [own, snapshot]);
    rig.crash(follower);
    rig.start(follower);
    rig.advance_until(5_000, |rig| digest(rig, follower) == digest(rig, leader));
}

#[test]
fn a_replica_that_started_from_the_older_snapshot_names_none_below_its_newest_mark() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    rig.open(a, 1, 60_000);
    rig.take_snapshot(1);
    rig.open(a, 2, 60_000);
    rig.take_snapshot(1);
    let [older, newer] = rig.snapshots(1)[..] else { panic!("two were taken") };
    rig.recycle(1, older.index);
    rig.crash(1);
    rig.damage_snapshot(1, newer);
    rig.start(1);
    // Before anything is committed.
    rig.take_snapshot(1);
    rig.advance_until(5_000, |rig| rig.cell(1).applied() > newer.index);
    rig.take_snapshot(1);
    assert!(rig.snapshots(1).last().unwrap().index > newer.index);
}

#[test]
fn pieces_and_answers_that_cannot_be_change_nothing() {
    let Scene { mut rig, leader, follower, .. } = scene();
    rig.advance(60);
    let before = [leader, follower].map(|node| digest(&rig, node));
    let term = rig.cell(leader).raft().term();
    let full = vec![7; SNAPSHOT_PIECE_BYTES_MAX];
    let id = |index, term| SnapshotId { index: LogIndex(index), term: Term(term) };
    let ahead = rig.cell(leader).applied().0 + 100;
    for snapshot in
        [id(0, 1), id(ahead, 0), id(ahead, term.0 + 1), id(1 << 48, 1), id(u64::MAX, 1), id(ahead, 1)]
    {
        for (piece, is_last) in [(0, false), (0, true), (1, true), (u32::MAX, false), (u32::MAX, true)] {
            let bytes = if is_last { &b"what"[..] } else { &full };
            let message = PeerMessage::SnapshotPiece(SnapshotPiece { term, snapshot, piece, is_last, bytes });
            rig.step(follower, Input::Peer { from: NodeId(leader), message });
            rig.settle();
        }
        let answers = [
            SnapshotAnswer::Wanted { piece: 0 },
            SnapshotAnswer::Wanted { piece: u32::MAX },
            SnapshotAnswer::Installed,
            SnapshotAnswer::Refused,
            SnapshotAnswer::Missing,
        ];
        for answer in answers {
            let message = PeerMessage::SnapshotReply(SnapshotReply { term, snapshot, answer });
            rig.step(leader, Input::Peer { from: NodeId(follower), message });
            rig.settle();
        }
    }
    rig.advance(2_000);
    assert_eq!([leader, follower].map(|node| digest(&rig, node)), before);
    assert_eq!(rig.snapshots(follower), []);
    assert_eq!((rig.halted(leader), rig.halted(follower)), (None, None));
    assert_eq!(rig.cell(leader).raft().term(), term);
}
