//! Backups: saved from a running cell or from what is left of one, and restored into new directories.
//!
//! Deliberately absent: the end of the quiet time, which is a minute away; the core's own tests wait for it.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_wal::disk::FileName;
use lockstep_wire::reply::Reply;
use lockstep_wire::request::{Acquire, Mode, Mutation, Request};
use lockstep_wire::{CellId, FencingToken, Nonce, Owner, RequestId, Rows, SessionId, Status};
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Cluster, SEGMENT_MIB};
use crate::connection::{Connection, leader};
use crate::damage::{contents, flip};
use crate::load::Load;
use crate::process::{Process, format, run};
use crate::snapshot::{go_around, small};
use crate::worker::Worker;
use crate::{PATIENCE, until};

const CELL: CellId = CellId(0);
const DAMAGED: Option<i32> = Some(65);
const NO_CLUSTER: Option<i32> = Some(69);
const FAILED: Option<i32> = Some(70);

/// Runs the program: exit code, stdout, stderr.
#[track_caller]
fn done(arguments: &[&dyn Display]) -> (Option<i32>, String, String) {
    let (status, said, complained) = run(arguments.iter().map(ToString::to_string));
    (status.code(), said, complained)
}

#[track_caller]
fn json(arguments: &[&dyn Display]) -> Value {
    let (code, said, complained) = done(arguments);
    assert_eq!(code, Some(0), "{complained}");
    serde_json::from_str(&said).expect("JSON")
}

fn number(json: &Value) -> u64 {
    json.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{json} is no number"))
}

fn endpoints(cluster: &Cluster) -> String {
    let all: Vec<String> = cluster.endpoints().iter().map(ToString::to_string).collect();
    all.join(",")
}

/// A worker with a session and some holds.
fn worker(cluster: &Cluster, grants: usize) -> Worker {
    worker_of(cluster, CELL, grants)
}

fn worker_of(cluster: &Cluster, cell: CellId, grants: usize) -> Worker {
    let mut connection = leader(&cluster.endpoints(), cell, PATIENCE);
    let mut worker = Worker::new(cell, "/ls/backup/worker");
    worker.begin(&mut connection).expect("a session");
    for _ in 0..grants {
        worker.one(&mut connection).expect("the cell grants");
    }
    worker
}

/// Restores one member of a cluster that was just formatted; gives what was said.
#[track_caller]
fn restore(cluster: &Cluster, at: usize, file: &Path, numbers: &[&dyn Display]) -> Value {
    let (data, file) = (cluster.places[at].data.display(), file.display());
    let mut arguments: Vec<&dyn Display> = vec![&"restore", &"--json", &"--data", &data, &file];
    arguments.extend(numbers);
    json(&arguments)
}

/// Formats a member's directory once more.
fn format_again(cluster: &Cluster, at: usize) {
    let place = &cluster.places[at];
    std::fs::remove_dir_all(&place.data).expect("a directory can be removed");
    format(&place.data, place.id, Some(&cluster.id), cluster.shards, SEGMENT_MIB);
}

/// A cell that was restored: nobody's old session lives, nobody is granted anything yet, and whatever will be granted is
/// above `before`.
#[track_caller]
fn is_quiet_and_above(cluster: &Cluster, worker: &Worker, before: FencingToken) {
    let mut connection = leader(&cluster.endpoints(), worker.cell, PATIENCE);
    let old = worker.session.expect("the worker had a session");
    let answer = connection.call(&Request::GetSession { session: old }).expect("the leader answers");
    assert_eq!(answer.reply().status(), Status::SessionExpired);
    let answer = connection.call(&Request::GetLock { name: &worker.holds[0].name }).expect("it answers");
    let Reply::Lock(lock) = answer.reply() else { panic!("{:?}", answer.reply()) };
    assert!(!lock.exists && lock.fence_floor > before, "{lock:?}, before: {before}");

    let open = Request::OpenSession { client_id: "after", ttl_ms: 10_000, nonce: Nonce([3; 16]) };
    let answer = connection.call(&open).expect("the leader answers");
    let Reply::Opened { session, .. } = answer.reply() else { panic!("{:?}", answer.reply()) };
    assert!(session.0 > before.0, "session {session}, token {before}");
    let answer = connection.call(&acquire(session, 1, 0)).expect("the leader answers");
    assert_eq!(answer.reply(), Reply::TimedOut, "it was tried in the quiet time");
    connection.send(&acquire(session, 2, 60_000)).expect("the kernel takes it");
    assert_eq!(connection.receive().expect("it is answered").reply(), Reply::Queued { position: 1 });
    connection.stream.set_read_timeout(Some(Duration::from_millis(1_500))).expect("a time can be set");
    let granted = connection.receive();
    assert!(granted.is_err(), "granted in the quiet time: {granted:?}");
}

fn acquire(session: SessionId, id: u64, wait_ms: u32) -> Request<'static> {
    Request::Acquire(Acquire {
        mutation: Mutation { session, request_id: RequestId(id), seen: Rows::Slice(&[]) },
        owner: Owner(id),
        mode: Mode::Exclusive,
        is_reentrant: false,
        permits: 0,
        wait_ms,
        lock_delay_ms: 0,
        max_hold_ms: 0,
        names: Rows::Slice(&["/ls/backup/after"]),
        data: b"",
    })
}

/// So much state that a snapshot of it takes longer than it takes to notice that it has begun: sessions with as many holds
/// as they may have unseen, each with a KiB of data.
fn fill(cluster: &Cluster) {
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    for number in 0..40_u8 {
        let open =
            Request::OpenSession { client_id: "filler", ttl_ms: 60_000, nonce: Nonce([100 + number; 16]) };
        let answer = connection.call(&open).expect("the leader answers");
        let Reply::Opened { session, .. } = answer.reply() else { panic!("{:?}", answer.reply()) };
        for id in 1..=60 {
            let name = format!("/ls/filler/{number}/{id}");
            let Request::Acquire(acquire) = acquire(session, id, 0) else { unreachable!("it is one") };
            let acquire = Acquire { names: Rows::Slice(&[&name]), data: &[7; 1024], ..acquire };
            connection.send(&Request::Acquire(acquire)).expect("the kernel takes it");
        }
        for _ in 1..=60 {
            let answer = connection.receive().expect("it is answered");
            assert!(matches!(answer.reply(), Reply::Granted(_)), "{:?}", answer.reply());
        }
    }
}

#[test]
fn a_save_whose_leader_stands_still_goes_on_with_the_next_one() {
    let mut cluster = Cluster::start(3);
    fill(&cluster);
    let leading = cluster.leader(CELL);
    let place = &cluster.places[leading];
    let staging = place.data.join(FileName::SnapshotStaging { cell: CELL }.to_string());
    let file = cluster.directory.path().join("cell-0.backup").display().to_string();
    let command = ["snapshot", "save", &file, "--endpoints", &place.client.to_string()].map(str::to_owned);
    let saving = thread::spawn(move || run(&command));
    until("the leader takes a snapshot", PATIENCE, || staging.exists().then_some(()));
    cluster.process(leading).stand_still();
    assert!(!saving.is_finished(), "the snapshot was too quick");
    let (status, said, complained) = saving.join().expect("it ends while somebody waits for it");
    assert_eq!(status.code(), Some(0), "{said}{complained}");
    let survey = json(&[&"snapshot", &"inspect", &"--json", &file]);
    assert!(survey["snapshots"][0]["holds"].as_u64() >= Some(2_400), "{survey}");
    cluster.process(leading).signal(Signal::CONT);
    cluster.agree(CELL);
}

#[test]
fn a_cell_that_was_saved_under_load_is_restored_above_every_token() {
    let mut cluster = small(3);
    let mut old = worker(&cluster, 10);
    let load = Load::start(&cluster.endpoints(), "load");
    go_around(&cluster, cluster.leader(CELL));
    let leading = cluster.leader(CELL);
    let committed = cluster.known(leading, CELL).expect("the leader answers").committed;
    let file = cluster.directory.path().join("cell-0.backup");
    let (path, from) = (file.display(), endpoints(&cluster));
    let began = Instant::now();
    let saved = json(&[&"snapshot", &"save", &"--json", &"--endpoints", &from, &path]);
    println!("saved in {:.2?}: {saved}", began.elapsed());
    assert!(number(&saved["index"]) >= committed, "{saved} lacks what was committed before");
    assert_eq!((&saved["cell"], &saved["epoch"]), (&0.into(), &0.into()));
    assert!(saved["sessions"].as_u64() >= Some(9) && saved["holds"].as_u64() >= Some(8), "{saved}");

    // It is there, whole, and the same as was said; and nothing replaces it unless that is wished for.
    let shown = json(&[&"snapshot", &"inspect", &"--json", &path]);
    for field in ["cell", "index", "term", "bytes", "pieces", "epoch", "digest", "sessions", "locks", "holds"]
    {
        assert_eq!(shown["snapshots"][0][field], saved[field], "{field}");
    }
    assert_eq!(
        done(&[&"snapshot", &"verify", &path]).1,
        format!("ok: 1 snapshot, {} bytes\n", number(&saved["bytes"]))
    );
    let (code, _, complained) = done(&[&"snapshot", &"save", &"--endpoints", &from, &path]);
    assert!(code == FAILED && complained.contains("is there already"), "{complained}");
    let again = json(&[&"snapshot", &"save", &"--json", &"--force", &"--endpoints", &from, &path]);
    let link = format!("{path}.link");
    std::os::unix::fs::symlink("/dev/zero", &link).expect("a link can be made");
    let (code, _, complained) = done(&[&"snapshot", &"save", &"--force", &"--endpoints", &from, &link]);
    assert!(code == FAILED && complained.contains("is no regular file"), "{complained}");
    assert!(number(&again["index"]) > number(&saved["index"]));

    // What is granted after the backup was made is unknown to it.
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    old.begin(&mut connection).expect("it attaches");
    for _ in 0..10 {
        old.one(&mut connection).expect("the cell grants");
    }
    assert!(old.token_max.0 > number(&again["index"]));
    load.finish();
    for at in 0..3 {
        cluster.kill(at);
    }

    let mut new = Cluster::format(3, 1, "");
    for at in 0..3 {
        let said = restore(&new, at, &file, &[&"--above-token", &old.token_max]);
        assert_eq!((&said["epoch"], &said["epoch_before"]), (&1.into(), &0.into()));
        assert_eq!((&said["index"], &said["void_sessions"]), (&again["index"], &again["sessions"]));
        assert_eq!(number(&said["first_token"]), (1 << 48) + number(&again["index"]) + 1);
        assert_eq!(said["was_done_before"], false);
        // A second time says so, and changes nothing.
        let before = contents(&new.places[at].data);
        assert_eq!(restore(&new, at, &file, &[&"--epoch", &1])["was_done_before"], true);
        assert!(contents(&new.places[at].data) == before);
    }
    new.start_all();
    new.leader(CELL);
    is_quiet_and_above(&new, &old, old.token_max);
    new.agree(CELL);
    // A node starts again from what it was restored with.
    for at in 0..3 {
        new.kill(at);
    }
    new.start_all();
    is_quiet_and_above(&new, &old, old.token_max);
}

/// Two of three machines are gone for good.
#[test]
fn what_is_left_of_a_cell_is_enough_to_go_on_above_every_acknowledged_token() {
    let mut cluster = small(3);
    let load = Load::start(&cluster.endpoints(), "load");
    go_around(&cluster, cluster.leader(CELL));
    let old = worker(&cluster, 40);
    load.finish();
    let leading = cluster.leader(CELL);
    let survivor = (leading + 1) % 3;
    let data = cluster.places[survivor].data.clone();
    let file = cluster.directory.path().join("left.backup");
    let (path, from) = (file.display(), data.display());
    let (code, _, complained) = done(&[&"snapshot", &"save", &"--data", &from, &path]);
    assert!(code == FAILED && complained.contains("in use by another process"), "{complained}");
    let durable = until("the survivor is up to date", PATIENCE, || {
        let committed = cluster.known(leading, CELL)?.committed;
        cluster.known(survivor, CELL).filter(|known| known.applied >= committed)
    });
    for at in 0..3 {
        cluster.kill(at);
        if at != survivor {
            std::fs::remove_dir_all(&cluster.places[at].data).expect("a directory can be removed");
        }
    }

    let before = contents(&data);
    let inside = data.join("left.backup");
    let (code, _, complained) = done(&[&"snapshot", &"save", &"--data", &from, &inside.display()]);
    assert!(
        code == FAILED && complained.contains("nothing is written into a data directory"),
        "{complained}"
    );
    let saved = json(&[&"snapshot", &"save", &"--json", &"--data", &from, &path]);
    assert!(number(&saved["index"]) >= durable.applied, "{saved}, applied before: {durable:?}");
    assert_eq!(saved["holds"], old.holds.len());
    assert!(contents(&data) == before, "the directory was changed");
    let (code, _, complained) =
        done(&[&"snapshot", &"save", &"--data", &from, &"--cell", &5, &path, &"--force"]);
    assert!(code == FAILED && complained.contains("there is nothing of cell 5"), "{complained}");
    let (code, _, complained) = done(&[&"restore", &"--data", &from, &"--epoch", &1, &path]);
    assert!(code == FAILED && complained.contains("has records here already"), "{complained}");
    assert!(contents(&data) == before, "the directory was changed");

    let mut new = Cluster::format(3, 1, "");
    for at in 0..3 {
        restore(&new, at, &file, &[&"--above-token", &old.token_max]);
    }
    new.start_all();
    new.leader(CELL);
    is_quiet_and_above(&new, &old, old.token_max);
}

#[test]
fn members_that_were_restored_differently_or_not_at_all_make_no_cell() {
    let mut cluster = Cluster::start(3);
    let old = worker(&cluster, 5);
    let file = cluster.directory.path().join("cell-0.backup");
    json(&[&"snapshot", &"save", &"--json", &"--endpoints", &endpoints(&cluster), &file.display()]);
    for at in 0..3 {
        cluster.kill(at);
    }
    let mut new = Cluster::format(3, 1, "");
    restore(&new, 0, &file, &[&"--epoch", &3]);
    restore(&new, 1, &file, &[&"--epoch", &3]);
    restore(&new, 2, &file, &[&"--epoch", &4]);
    for is_restored in [true, false] {
        new.start_all();
        until("the odd one is named", PATIENCE, || {
            let complained = new.process(0).complained();
            complained.contains("node 3 begins with another state").then_some(())
        });
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            assert_eq!(new.leader_among(&[0, 1, 2], CELL), None, "the odd one was restored: {is_restored}");
            std::thread::sleep(Duration::from_millis(50));
        }
        for at in 0..3 {
            new.kill(at);
        }
        format_again(&new, 2);
    }
    restore(&new, 2, &file, &[&"--epoch", &3]);
    new.start_all();
    new.leader(CELL);
    is_quiet_and_above(&new, &old, FencingToken(3 << 48));
}

/// Two logs in one directory, and a cell whose backup comes from a node that does not run.
#[test]
fn every_cell_of_a_node_is_restored_for_itself() {
    let mut cluster = Cluster::format(1, 2, "cells = 2");
    cluster.start_all();
    let old = [0, 1].map(|cell| worker_of(&cluster, CellId(cell), 5 + usize::from(cell)));
    let files = ["cell-0.backup", "cell-1.backup"].map(|name| cluster.directory.path().join(name));
    let from = endpoints(&cluster);
    json(&[&"snapshot", &"save", &"--json", &"--endpoints", &from, &"--cell", &0, &files[0].display()]);
    cluster.kill(0);
    let data = cluster.places[0].data.display();
    json(&[&"snapshot", &"save", &"--json", &"--data", &data, &"--cell", &1, &files[1].display()]);
    let mut new = Cluster::format(1, 2, "cells = 2");
    for (file, cell) in files.iter().zip([0, 1]) {
        let said = restore(&new, 0, file, &[&"--cell", &cell, &"--epoch", &(1 + cell)]);
        assert_eq!(said["void_holds"], old[cell].holds.len());
    }
    new.start_all();
    for old in &old {
        is_quiet_and_above(&new, old, old.token_max);
    }
}

#[test]
fn what_cannot_be_restored_is_refused_and_changes_nothing() {
    let mut cluster = Cluster::start(1);
    worker(&cluster, 5);
    let file = cluster.directory.path().join("cell-0.backup");
    let path = file.display();
    json(&[&"snapshot", &"save", &"--json", &"--endpoints", &endpoints(&cluster), &path]);
    let new = Cluster::format(1, 1, "");
    let data = new.places[0].data.display();
    let before = contents(&new.places[0].data);
    let refused = |arguments: &[&dyn Display], code: Option<i32>, words: &str| {
        let all: Vec<&dyn Display> = [&"restore" as &dyn Display].iter().chain(arguments).copied().collect();
        let (found, said, complained) = done(&all);
        assert_eq!((found, said.as_str()), (code, ""), "{complained}");
        assert!(complained.contains(words), "{complained}");
    };
    refused(&[&"--data", &data, &path], Some(2), "--epoch");
    refused(&[&"--data", &data, &"--epoch", &1, &"--above-token", &1, &path], Some(2), "cannot be used with");
    refused(&[&"--data", &data, &"--epoch", &0, &path], Some(2), "0 is not in 1..32768");
    refused(&[&"--data", &data, &"--above-token", &u64::MAX, &path], FAILED, "no epoch is above");
    refused(&[&"--data", &data, &"--above-token", &(u64::MAX >> 1), &path], FAILED, "no epoch is above");
    refused(&[&"--data", &data, &"--cell", &1, &"--epoch", &1, &path], FAILED, "a backup of cell 0");
    let used = cluster.places[0].data.display();
    refused(&[&"--data", &used, &"--epoch", &1, &path], FAILED, "in use by another process");
    let nowhere = new.directory.path().join("nowhere");
    refused(&[&"--data", &nowhere.display(), &"--epoch", &1, &path], FAILED, "no such directory");
    let elsewhere = new.directory.path().display();
    refused(&[&"--data", &elsewhere, &"--epoch", &1, &path], FAILED, "not formatted");
    let config = new.places[0].config.display();
    refused(&[&"--data", &data, &"--epoch", &1, &config], DAMAGED, "does not begin as a snapshot does");
    refused(&[&"--data", &data, &"--epoch", &1, &nowhere.display()], FAILED, "No such file");
    flip(&file, 100);
    let damaged = format!("lockstep: {path} is damaged at offset 0");
    refused(&[&"--data", &data, &"--epoch", &1, &path], DAMAGED, &damaged);
    let (code, said, _) = done(&[&"snapshot", &"verify", &"--json", &path]);
    assert_eq!(code, DAMAGED);
    assert!(said.contains(&format!("\"file\":\"{path}\"")) && !said.contains("snapshot-"), "{said}");
    flip(&file, 100);
    let after: Vec<(PathBuf, Vec<u8>)> = contents(&new.places[0].data).into_iter().collect();
    assert!(after == before.into_iter().collect::<Vec<_>>(), "a refusal has changed the directory");

    let nowhere = nowhere.join("x");
    let (code, _, complained) =
        done(&[&"snapshot", &"save", &"--endpoints", &endpoints(&cluster), &nowhere.display()]);
    let said = format!("{}: there is no such directory; nothing was saved", nowhere.display());
    assert!(code == FAILED && complained.contains(&said) && !complained.contains("partial"), "{complained}");

    cluster.kill(0);
    let other = cluster.directory.path().join("other.backup");
    let from = endpoints(&cluster);
    let nobody: [&dyn Display; 7] =
        [&"snapshot", &"save", &"--timeout", &"500ms", &"--endpoints", &from, &other.display()];
    let (code, _, complained) = done(&nobody);
    assert!(code == NO_CLUSTER && !other.exists(), "{complained}");
    restore(&new, 0, &file, &[&"--epoch", &1]);
}

/// A file is whole or not there.
#[test]
fn a_save_goes_on_with_the_next_leader_or_leaves_nothing() {
    let mut cluster = small(3);
    let load = Load::start(&cluster.endpoints(), "load");
    load.await_successes(200);
    let from = endpoints(&cluster);
    let mut saved = 0;
    for round in 0..8_u64 {
        let leading = cluster.leader(CELL);
        let file = cluster.directory.path().join(format!("{round}.backup"));
        let path = file.display().to_string();
        let mut save = Process::start(["snapshot", "save", "--endpoints", &from, &path]);
        std::thread::sleep(Duration::from_millis(4 * round));
        cluster.kill(leading);
        let status = save.wait(PATIENCE).expect("it ends");
        assert_eq!(status.success(), file.exists(), "{}", save.complained());
        if status.success() {
            saved += 1;
            assert_eq!(done(&[&"snapshot", &"verify", &path]).0, Some(0));
        } else {
            println!("round {round}: {}", save.complained());
        }
        cluster.start_node(leading);
        cluster.await_caught_up(leading, CELL);
    }
    println!("{saved} of 8 were saved");
    let left: Vec<_> = std::fs::read_dir(cluster.directory.path())
        .expect("it can be listed")
        .filter_map(|entry| entry.expect("an entry").file_name().into_string().ok())
        .filter(|name| name.contains("partial"))
        .collect();
    assert_eq!(left, [""; 0], "half of something was left");
    assert!(saved > 0, "none was saved");
    load.finish();
    assert!(Connection::open(cluster.places[0].client, CELL).is_ok());
}
