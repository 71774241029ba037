//! A cell that was restored from a backup: what is void, when it grants again, and who may be restored together.

use lockstep_wire::request::Request;
use lockstep_wire::{Epoch, FencingToken, NodeId, SessionId, SnapshotId, Term};

use super::asking::{acquire, cancel, release, token};
use super::rig::Rig;
use crate::table::{Limits, Table};
use crate::{ConnectionId, Input, Report, Span};

const NAME: &[&str] = &["/ls/a/b"];
const QUIET_MS: u64 = 60_000;

/// What the old cell left.
struct Backup {
    snapshot: SnapshotId,
    table: Table,
    session: SessionId,
    token: u64,
}

fn backup() -> Backup {
    let mut rig = Rig::serving(1);
    let client = rig.connect(1);
    let session = rig.open(client, 1, 60_000);
    let granted = rig.call(client, acquire(session, 1, NAME, 0));
    rig.take_snapshot(1);
    let snapshot = rig.snapshots(1)[0];
    Backup { snapshot, table: rig.cell(1).table().clone(), session, token: token(&granted[0]) }
}

/// Members that begin with a backup under these epochs, one each; 0 is for a member that begins empty.
fn restored(backup: &Backup, epochs: &[u16]) -> Rig {
    let count = u16::try_from(epochs.len()).unwrap();
    let mut rig = Rig::unstarted(count, Limits::default(), crate::CACHE_BYTES_MAX);
    for (node, epoch) in (1..).zip(epochs) {
        if *epoch > 0 {
            let mut table = backup.table.restored(Epoch(*epoch)).unwrap();
            rig.begin_with(node, backup.snapshot, &mut table);
        }
        rig.start(node);
    }
    rig
}

fn serving(backup: &Backup, epoch: u16) -> Rig {
    let mut rig = restored(backup, &[epoch; 3]);
    rig.advance_until(5_000, Rig::has_leader);
    rig
}

/// A client of the leader with a new session.
fn newcomer(rig: &mut Rig) -> (ConnectionId, SessionId) {
    let client = rig.connect(rig.leader());
    let session = rig.open(client, 2, 60_000);
    (client, session)
}

#[test]
fn restored_members_are_born_and_go_on_behind_the_snapshot() {
    let backup = backup();
    let mut rig = serving(&backup, 1);
    let leader = rig.cell(rig.leader());
    assert!(leader.raft().term() > backup.snapshot.term, "an election is won in a term of its own");
    assert_eq!(leader.applied(), backup.snapshot.index.next(), "with the leader's blank entry");
    rig.advance(1_000);
    let states: Vec<_> =
        (1..=3).map(|node| (rig.cell(node).applied(), rig.cell(node).table().digest())).collect();
    assert_eq!(states, [states[0]; 3]);
    // And again, now from the manifest.
    for node in 1..=3 {
        rig.crash(node);
    }
    for node in 1..=3 {
        rig.start(node);
    }
    rig.advance_until(5_000, Rig::has_leader);
    assert!(rig.cell(rig.leader()).table().is_quiet());
}

#[test]
fn what_the_old_cell_gave_is_over_and_every_number_is_above_it() {
    let backup = backup();
    let mut rig = serving(&backup, 9);
    let client = rig.connect(rig.leader());
    let old = backup.session;
    // Opened after the backup was taken: the restored cell never knew it.
    let unknown = SessionId(old.0 + 1_000);
    for id in [old, unknown] {
        assert_eq!(rig.attach(client, id, 1), [format!("attached: {id} SESSION_EXPIRED")]);
        rig.beat(client, id);
        rig.advance(10);
        assert_eq!(rig.told(client), [format!("alive: {id} SESSION_EXPIRED")]);
        assert_eq!(rig.call(client, Request::GetSession { session: id }), ["SESSION_EXPIRED"]);
    }
    assert_eq!(
        rig.call(client, release(old, 2, 1, NAME[0], backup.token)),
        ["NOT_ATTACHED (the session is not attached to this connection)"]
    );
    let check =
        Request::CheckToken { name: NAME[0], token: FencingToken(backup.token), session: SessionId(0) };
    let floor = Epoch(9).with(rig.cell(rig.leader()).applied());
    assert_eq!(rig.call(client, check), [format!("OK current false latest 0 floor {floor}")]);
    let session = rig.open(client, 1, 10_000);
    assert!(session.0 > Epoch(9).with(backup.snapshot.index), "the old nonce opens a new session");
}

#[test]
fn nothing_is_granted_until_the_leader_has_served_for_the_longest_ttl() {
    let backup = backup();
    let mut rig = serving(&backup, 1);
    let served_from = rig.now;
    let (client, session) = newcomer(&mut rig);
    assert_eq!(rig.call(client, acquire(session, 1, NAME, 0)), ["TIMED_OUT"]);
    assert_eq!(rig.call(client, acquire(session, 2, NAME, 90_000)), ["QUEUED 1"]);
    assert_eq!(rig.call(client, acquire(session, 3, &["/ls/a/c"], 90_000)), ["QUEUED 1"]);
    assert_eq!(rig.call(client, acquire(session, 4, &["/ls/a/d"], 5_000)), ["QUEUED 1"]);
    assert_eq!(rig.call(client, cancel(session, 5, 3)), ["CANCELLED", "OK"]);
    rig.advance_beating(6_000, 2_000, &[(client, session)]);
    assert!(rig.told(client).contains(&"TIMED_OUT".to_owned()), "a wait ends at its time");
    let left = QUIET_MS - rig.now.since(served_from).ms();
    rig.advance_beating(left - 10, 2_000, &[(client, session)]);
    let told = rig.told(client);
    assert!(told.iter().all(|line| line.starts_with("alive")), "{told:?}");
    assert_eq!(rig.count(rig.leader(), "end quiet"), 0);
    rig.advance(20);
    let granted = token(&rig.told(client)[0]);
    assert!(granted > backup.token + (1 << 47), "{granted} is of the new epoch");
    assert_eq!(rig.count(rig.leader(), "end quiet"), 1);
    assert_eq!(rig.count(rig.leader(), "reap"), 1);
    assert!(token(&rig.call(client, acquire(session, 6, &["/ls/a/e"], 0))[0]) > granted);
    rig.advance(2 * QUIET_MS);
    assert_eq!(rig.count(rig.leader(), "end quiet"), 1, "it ends once");
}

#[test]
fn a_quiet_cell_says_that_it_is_and_for_how_long() {
    let mut rig = serving(&backup(), 1);
    let (leader, follower) = (rig.leader(), rig.follower());
    let served_from = rig.now;
    let quiet = Report::Quiet { left: Span::from_ms(QUIET_MS) };
    assert_eq!(rig.reports(leader).iter().filter(|report| **report == quiet).count(), 1);
    assert!(!rig.reports(follower).contains(&quiet), "only the leader knows for how long");
    rig.advance(10_000);
    let (client, other) = (rig.connect(leader), rig.connect(follower));
    let left = QUIET_MS - rig.now.since(served_from).ms();
    assert_eq!(rig.call(client, Request::Status), [format!("OK leader sessions 0, quiet for {left} ms")]);
    assert_eq!(rig.call(other, Request::Status), ["OK follower sessions 0, quiet for 0 ms"]);
    assert_eq!(rig.call(client, Request::GetLock { name: NAME[0] }), ["OK held by:, waiting:, quiet"]);
    assert!(!rig.reports(leader).contains(&Report::QuietEnded));
    rig.advance(left + 10);
    assert_eq!(rig.call(client, Request::Status), ["OK leader sessions 0"]);
    assert_eq!(rig.call(client, Request::GetLock { name: NAME[0] }), ["OK held by:, waiting:"]);
    assert_eq!(rig.reports(leader).iter().filter(|report| **report == Report::QuietEnded).count(), 1);
    assert!(!rig.reports(follower).contains(&Report::QuietEnded), "one says it for all");
}

#[test]
fn the_quiet_time_begins_anew_with_each_leader() {
    let mut rig = serving(&backup(), 1);
    rig.advance(QUIET_MS - 1_000);
    let (_, new) = rig.depose();
    let served_from = rig.now;
    rig.advance(QUIET_MS - 10);
    assert!(rig.cell(new).table().is_quiet(), "whoever leads knows of no time but its own");
    rig.advance_until(20, |rig| !rig.cell(new).table().is_quiet());
    assert!(rig.now.since(served_from).ms() >= QUIET_MS);
    // A leader that takes over later finds it ended.
    rig.heal();
    rig.advance(1_000);
    let (_, new) = rig.depose();
    let client = rig.connect(new);
    let session = rig.open(client, 2, 10_000);
    token(&rig.call(client, acquire(session, 1, NAME, 0))[0]);
}

#[test]
fn a_full_disk_moves_no_leadership_while_the_cell_is_quiet() {
    let mut rig = serving(&backup(), 1);
    let full = rig.leader();
    rig.advance(1_100);
    rig.step(full, Input::Space { is_short: true });
    rig.advance(QUIET_MS - 2_000);
    assert_eq!(rig.leader(), full, "the next one would begin the quiet time anew");
    rig.advance_until(2_000, |rig| !rig.cell(full).table().is_quiet());
    rig.advance(2_000);
    assert_ne!(rig.leader(), full);
}

#[test]
fn members_that_were_not_restored_alike_make_no_cell() {
    let backup = backup();
    for epochs in [[1, 1, 0], [0, 1, 1], [2, 1, 1]] {
        let mut rig = restored(&backup, &epochs);
        rig.advance(3_000);
        assert!(!rig.has_leader(), "{epochs:?}");
        let told = rig.refusals();
        let says = |reason: &String| reason.contains("restored from the same backup with the same epoch");
        assert!(told.iter().any(says), "{told:?}");
        // Whoever looks only later hears why as well.
        rig.advance(30_000);
        for node in 1..=3 {
            let told = rig.reports(node).iter().filter(|report| match report {
                Report::Refused { reason, .. } => says(reason) && !reason.starts_with("refused by"),
                _ => false,
            });
            assert!(told.count() >= 3, "{epochs:?}, node {node}");
        }
        assert!(!rig.refusals().iter().any(|reason| reason.contains("waiting for node")), "{epochs:?}");
    }
    let mut rig = Rig::unstarted(2, Limits::default(), crate::CACHE_BYTES_MAX);
    for (node, term) in [(1, 1), (2, 2)] {
        let snapshot = SnapshotId { term: Term(term), ..backup.snapshot };
        rig.begin_with(node, snapshot, &mut backup.table.restored(Epoch(1)).unwrap());
        rig.start(node);
    }
    rig.advance(3_000);
    assert!(!rig.has_leader() && !rig.cell(1).raft().accepts(NodeId(2)), "of another snapshot");
}

#[test]
fn a_member_alone_is_restored_too() {
    let mut rig = restored(&backup(), &[3]);
    rig.advance_until(5_000, Rig::has_leader);
    rig.advance_until(QUIET_MS + 10, |rig| !rig.cell(1).table().is_quiet());
    let (client, session) = newcomer(&mut rig);
    token(&rig.call(client, acquire(session, 1, NAME, 0))[0]);
}
