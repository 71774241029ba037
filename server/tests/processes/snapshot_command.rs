//! `lockstep snapshot`: looking into a node's snapshots.

use std::path::{Path, PathBuf};

use lockstep_wal::disk::FileName;
use lockstep_wal::layout::BLOCK_BYTES;
use lockstep_wire::CellId;
use rustix::process::Signal;
use serde_json::Value;

use crate::PATIENCE;
use crate::cluster::Cluster;
use crate::damage::{contents, flip};
use crate::directory;
use crate::load::Load;
use crate::process::run;
use crate::snapshot::{go_around, small};

const CELL: CellId = CellId(0);
const DAMAGED: Option<i32> = Some(65);
const FAILED: Option<i32> = Some(70);

/// `lockstep snapshot` on a data directory: exit code, stdout, stderr.
#[track_caller]
fn snapshot(what: &str, data: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let data = data.display().to_string();
    let (status, said, complained) = run(["snapshot", what, &data].iter().chain(more));
    (status.code(), said, complained)
}

#[track_caller]
fn snapshot_json(what: &str, data: &Path, wanted: Option<i32>) -> Value {
    let (code, said, complained) = snapshot(what, data, &["--json"]);
    assert_eq!(code, wanted, "{complained}");
    serde_json::from_str(&said).expect("JSON")
}

/// The snapshots of a data directory, the oldest first, with the index that each has by its name.
fn snapshot_files(data: &Path) -> Vec<(PathBuf, u64)> {
    let files = contents(data).into_iter().filter_map(|(path, _)| {
        match path.file_name().and_then(|name| name.to_str()).and_then(FileName::parse) {
            Some(FileName::Snapshot { index, .. }) => Some((path, index.0)),
            _ => None,
        }
    });
    files.collect()
}

/// A stopped node whose log has gone around, so that it has two snapshots.
fn worked() -> (Cluster, PathBuf) {
    let mut cluster = small(1);
    let load = Load::start(&cluster.endpoints(), "load");
    go_around(&cluster, 0);
    load.finish();
    cluster.process(0).signal(Signal::TERM);
    cluster.wait(0, PATIENCE);
    let data = cluster.places[0].data.clone();
    (cluster, data)
}

#[test]
fn the_snapshots_of_a_stopped_node_are_shown_and_verified_and_not_changed() {
    let (mut cluster, data) = worked();
    let before = contents(&data);
    let files = snapshot_files(&data);
    assert!(!files.is_empty());

    let (code, said, complained) = snapshot("verify", &data, &[]);
    assert_eq!(code, Some(0), "{complained}");
    assert!(said.starts_with(&format!("ok: {} snapshot", files.len())), "{said}");
    assert_eq!(snapshot_json("verify", &data, Some(0))["snapshots"], files.len());

    let json = snapshot_json("inspect", &data, Some(0));
    let shown = json["snapshots"].as_array().expect("snapshots");
    assert_eq!(shown.len(), files.len());
    for (shown, (path, index)) in shown.iter().zip(&files) {
        let bytes = std::fs::metadata(path).expect("a file").len();
        assert_eq!((&shown["cell"], &shown["index"]), (&0.into(), &index.to_string().into()));
        assert_eq!((&shown["bytes"], &shown["epoch"]), (&bytes.to_string().into(), &0.into()));
        // The load has eight sessions, and keeps locks from its first turns on.
        assert_eq!(shown["sessions"], 8, "{shown}");
        assert!(shown["locks"].as_u64().is_some_and(|locks| locks > 0), "{shown}");
        assert!(shown["holds"].as_u64() <= shown["locks"].as_u64(), "every hold is exclusive: {shown}");
        assert_eq!(shown["digest"].as_str().map(str::len), Some(16));
    }

    let (_, newest) = files.last().expect("a snapshot");
    let one = ["--cell", "0", "--index", &newest.to_string()];
    let (code, said, complained) = snapshot("inspect", &data, &one);
    assert_eq!(code, Some(0), "{complained}");
    assert!(said.starts_with(&format!("cell 0: snapshot through entry {newest} (term ")), "{said}");
    assert!(said.contains("  sessions 8, locks ") && said.lines().count() == 2, "{said}");
    for what in ["inspect", "verify"] {
        let (code, said, complained) = snapshot(what, &data, &["--cell", "3"]);
        assert_eq!((code, said.as_str()), (FAILED, ""));
        assert!(complained.contains("there is no cell 3; the log has records of these: 0"), "{complained}");
    }
    let (code, _, complained) = snapshot("verify", &data, &["--cell", "0", "--index", "1"]);
    assert_eq!(code, FAILED);
    assert!(complained.contains("is missing"), "{complained}");
    assert!(contents(&data) == before, "looking has changed the directory");

    // It is the state that the node goes on from.
    cluster.start_all();
    cluster.leader(CELL);
}

#[test]
fn the_snapshots_of_a_running_node_are_verified_while_they_are_replaced() {
    let cluster = small(3);
    let load = Load::start(&cluster.endpoints(), "load");
    let leader = cluster.leader(CELL);
    go_around(&cluster, leader);
    let data = cluster.places[leader].data.clone();
    let (mut last, mut replaced) = (0, 0);
    crate::until("snapshots are replaced while they are looked at", PATIENCE * 3, || {
        assert_eq!(snapshot_json("verify", &data, Some(0))["ok"], true);
        let json = snapshot_json("inspect", &data, Some(0));
        let shown = json["snapshots"].as_array().expect("snapshots");
        let indexes = shown.iter().map(|shown| shown["index"].as_str().and_then(|index| index.parse().ok()));
        let newest: u64 = indexes.flatten().max().expect("a node whose log has gone around has some");
        assert!(newest >= last, "{newest} after {last}");
        replaced += u32::from(newest > last);
        last = newest;
        (replaced >= 4).then_some(())
    });
    load.finish();
    cluster.agree(CELL);
}

#[test]
fn a_damaged_snapshot_is_named_with_its_place_by_an_exit_code_of_its_own() {
    let (_cluster, data) = worked();
    let files = snapshot_files(&data);
    let (file, index) = files.last().expect("a snapshot");
    let index = index.to_string();
    let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
    flip(file, 100);
    for what in ["inspect", "verify"] {
        let (code, _, complained) = snapshot(what, &data, &[]);
        assert_eq!(code, DAMAGED, "{complained}");
        assert!(complained.contains(&format!("{name} is damaged at offset 0")), "{complained}");
    }
    // The log's mark names it, so that its log is not whole either.
    let wal_verify = || run(["wal", "verify", &data.display().to_string()]);
    let (status, said, complained) = wal_verify();
    assert_eq!((status.code(), said.as_str()), (DAMAGED, ""));
    assert!(complained.contains(&format!("{name} is damaged at offset 0")), "{complained}");
    let json = snapshot_json("verify", &data, DAMAGED);
    assert_eq!((&json["ok"], &json["file"], &json["offset"]), (&false.into(), &name.into(), &"0".into()));
    let json = snapshot_json("inspect", &data, DAMAGED);
    let shown = json["snapshots"].as_array().expect("snapshots");
    assert_eq!(shown.len(), files.len(), "the others are shown, too");
    let refused = shown.iter().find(|shown| shown["index"] == index).expect("it is shown");
    assert!(refused["refusal"].is_string() && refused["sessions"].is_null(), "{refused}");
    flip(file, 100);
    assert_eq!(snapshot("verify", &data, &[]).0, Some(0), "mended, it is whole");
    assert_eq!(wal_verify().0.code(), Some(0));
    std::fs::rename(file, data.join("elsewhere")).expect("it can be moved");
    let (status, _, complained) = wal_verify();
    assert_eq!(status.code(), DAMAGED);
    assert!(complained.contains(&format!("{name} is missing")), "{complained}");
    std::fs::rename(data.join("elsewhere"), file).expect("it can be moved back");

    let whole = std::fs::read(file).expect("a snapshot");
    std::fs::write(file, &whole[..whole.len() - BLOCK_BYTES]).expect("a snapshot can be written");
    let (code, _, complained) = snapshot("verify", &data, &[]);
    assert_eq!(code, DAMAGED);
    assert!(complained.contains(name) && complained.contains("cut short"), "{complained}");
    let (older, older_index) = files.first().expect("a snapshot");
    assert!(*older_index < index.parse().expect("a number"), "there are two");
    flip(older, 100);
    let (code, _, complained) = snapshot("verify", &data, &[]);
    assert_eq!((code, complained.lines().count()), (DAMAGED, 2), "both are named: {complained}");
}

#[test]
fn what_is_no_data_directory_has_no_snapshots() {
    let empty = directory();
    let (code, said, complained) = snapshot("inspect", empty.path(), &[]);
    assert_eq!((code, said.as_str()), (FAILED, ""));
    assert!(complained.contains("not formatted"), "{complained}");
    assert_eq!(snapshot_json("verify", empty.path(), FAILED)["ok"], false);
}
