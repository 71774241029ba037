//! `lockstep wal`: looking into a node's log.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_wal::layout::BLOCK_BYTES;
use lockstep_wire::CellId;
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::connection::leader;
use crate::damage::{contents, flip, segments};
use crate::process::run;
use crate::worker::Worker;
use crate::{PATIENCE, directory};

const CELL: CellId = CellId(0);
const DAMAGED: Option<i32> = Some(65);
const FAILED: Option<i32> = Some(70);

/// `lockstep wal` on a data directory: exit code, stdout, stderr.
#[track_caller]
fn wal(what: &str, data: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let data = data.display().to_string();
    let (status, said, complained) = run(["wal", what, &data].iter().chain(more));
    (status.code(), said, complained)
}

#[track_caller]
fn wal_json(what: &str, data: &Path, wanted: Option<i32>) -> Value {
    let (code, said, complained) = wal(what, data, &["--json"]);
    assert_eq!(code, wanted, "{complained}");
    serde_json::from_str(&said).expect("JSON")
}

/// A node that has acknowledged some requests.
fn worked(requests: u64) -> (Cluster, Worker) {
    let mut cluster = Cluster::format(1, 1, "");
    cluster.start_all();
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    let mut worker = Worker::new(CELL, "/ls/wal/worker");
    worker.begin(&mut connection).expect("a session");
    while worker.acknowledged() < requests {
        worker.one(&mut connection).expect("the cell grants");
    }
    (cluster, worker)
}

#[test]
fn the_log_of_a_stopped_node_is_shown_and_verified_and_not_changed() {
    let (mut cluster, _) = worked(400);
    let known = cluster.known(0, CELL).expect("the node answers");
    cluster.process(0).signal(Signal::TERM);
    cluster.wait(0, PATIENCE);
    let data = cluster.places[0].data.clone();
    let before = contents(&data);

    let (code, said, complained) = wal("verify", &data, &[]);
    assert_eq!(code, Some(0), "{complained}");
    assert!(said.starts_with("ok: 1 shard, "), "{said}");
    let (code, said, complained) = wal("inspect", &data, &[]);
    assert_eq!(code, Some(0), "{complained}");
    for part in [
        &format!("cluster {}  node 1  incarnation ", cluster.id),
        "segment 1  sealed  ",
        "  tail  ",
        "  spare\n",
        "voted for node 1; entries 1 to ",
        "acquire ",
        ", born\n",
        "member    node 1  incarnation ",
    ] {
        assert!(said.contains(part), "`{part}` is not in:\n{said}");
    }

    let json = wal_json("inspect", &data, Some(0));
    let shard = &json["shards"][0];
    let cell = &shard["cells"][0];
    let number = |value: &Value| value.as_str().expect("a string").parse::<u64>().expect("a number");
    assert_eq!(json["node"], 1);
    assert_eq!(number(&cell["term"]), known.term);
    assert!(number(&cell["last_index"]) >= known.applied);
    assert_eq!((&cell["born"], &cell["vote"], &shard["torn"]), (&true.into(), &1.into(), &false.into()));
    let total = |counted: &Value| {
        counted.as_object().expect("counts").values().filter_map(Value::as_u64).sum::<u64>()
    };
    assert_eq!(total(&cell["commands"]), number(&cell["last_index"]), "every entry is counted once");
    assert_eq!(total(&cell["records"]), number(&shard["last_lsn"]), "every record is counted once");

    let (code, said, complained) = wal("inspect", &data, &["--entries", "--cell", "0", "--from", "2"]);
    assert_eq!(code, Some(0), "{complained}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len() as u64, number(&cell["last_index"]) - 1);
    assert!(
        lines[0].starts_with("cell 0  2  term ") && lines[0].contains("  open-session  client_id "),
        "{}",
        lines[0]
    );
    let (_, said, _) = wal("inspect", &data, &["--entries", "--json"]);
    let opened = said.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON on every line"));
    let opened: Vec<Value> = opened.filter(|entry| entry["command"] == "open-session").collect();
    assert!(!opened.is_empty());
    for entry in opened {
        let fields = entry["fields"].as_object().expect("fields");
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["client_id", "ttl_ms"], "and no nonce");
    }
    let (code, said, complained) = wal("inspect", &data, &["--entries", "--cell", "3"]);
    assert_eq!((code, said.as_str()), (FAILED, ""));
    assert!(complained.contains("there is no cell 3; the log has records of these: 0"), "{complained}");
    assert!(contents(&data) == before, "looking has changed the directory");
}

#[test]
fn the_log_of_a_running_node_is_verified_while_it_is_written() {
    let (cluster, worker) = worked(10);
    let data = cluster.places[0].data.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let working = std::thread::spawn({
        let (stop, endpoints) = (Arc::clone(&stop), cluster.endpoints());
        let mut worker = worker;
        move || {
            worker.run(leader(&endpoints, CELL, PATIENCE), &stop);
            worker.acknowledged()
        }
    });
    let mut last = 0;
    for _ in 0..20 {
        let json = wal_json("verify", &data, Some(0));
        assert_eq!(json["ok"], true);
        let records = json["records"].as_str().and_then(|records| records.parse().ok()).expect("a number");
        assert!(records >= last, "{records} records after {last}");
        last = records;
    }
    stop.store(true, Ordering::Relaxed);
    let acknowledged = working.join().expect("the worker works");
    let json = wal_json("verify", &data, Some(0));
    let records: u64 = json["records"].as_str().and_then(|records| records.parse().ok()).expect("a number");
    assert!(records > last.max(acknowledged), "{records} records, {acknowledged} acknowledged");
}

#[test]
fn damage_is_named_with_its_place_by_an_exit_code_of_its_own() {
    let (mut cluster, _) = worked(400);
    cluster.kill(0);
    let data = cluster.places[0].data.clone();
    let all = segments(&data);
    assert!(all.len() >= 2, "{} segments", all.len());
    // In a sealed segment, which is mapped, and in the tail, which is not.
    for (file, batches) in [&all[0], &all[all.len() - 1]] {
        let batch = batches[batches.len() / 2];
        flip(file, batch + 100);
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        for what in ["inspect", "verify"] {
            let (code, said, complained) = wal(what, &data, &[]);
            assert_eq!(code, DAMAGED, "{complained}");
            let shown =
                "what can be read before the damage\n  cell 0: term 1, voted for node 1; entries 1 to ";
            assert_eq!(said.contains(shown), what == "inspect", "{said}");
            for part in ["the log is damaged", name, &format!("offset {batch}"), "cell 0 index "] {
                assert!(complained.contains(part), "`{part}` is not in: {complained}");
            }
        }
        let json = wal_json("verify", &data, DAMAGED);
        assert_eq!(json["ok"], false);
        assert_eq!((&json["file"], &json["offset"]), (&name.into(), &batch.to_string().into()));
        assert_eq!(json["after"]["cell"], 0);
        assert!(json["before"]["index"].as_str().is_some_and(|index| index != "0"), "{json}");
        let shard = &wal_json("inspect", &data, DAMAGED)["shards"][0];
        assert!(shard["refusal"].is_string());
        assert_eq!(shard["cells"][0]["last_index"], json["after"]["index"], "{shard}");
        flip(file, batch + 100);
    }
    let (code, _, complained) = wal("verify", &data, &[]);
    assert_eq!((code, complained.as_str()), (Some(0), ""), "mended, it is whole");
    flip(&data.join("superblock"), BLOCK_BYTES as u64 + 20);
    let (code, _, complained) = wal("verify", &data, &[]);
    assert_eq!(code, Some(0), "nothing is lost yet");
    for part in ["superblock: one of its two copies is damaged (at offset 4096)", "the other one is used"] {
        assert!(complained.contains(part), "{complained}");
    }
    assert_eq!(wal_json("verify", &data, Some(0))["damaged_superblock_copy"], 1);
}

#[test]
fn what_is_no_data_directory_is_said_to_be_none() {
    let empty = directory();
    let (code, said, complained) = wal("inspect", empty.path(), &[]);
    assert_eq!((code, said.as_str()), (FAILED, ""));
    assert!(complained.contains("not formatted"), "{complained}");
    assert_eq!(wal_json("verify", empty.path(), FAILED)["ok"], false);
    let (code, _, complained) = wal("verify", &empty.path().join("nowhere"), &[]);
    assert_eq!(code, FAILED);
    assert!(complained.contains("nowhere"), "{complained}");
    assert_eq!(std::fs::read_dir(empty.path()).expect("a directory").count(), 0, "nothing was made");
}
