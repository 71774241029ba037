//! A log that recycles its segments, and nodes that come back when what they need is gone.
//!
//! Invariant: segments are as small as a user can have them, so that a log goes around within seconds.

use std::path::Path;
use std::time::{Duration, Instant};

use lockstep_wal::disk::FileName;
use lockstep_wal::layout::{LIVE_SEGMENTS_MAX, SNAPSHOT_FILES_MAX, SPARE_SEGMENTS};
use lockstep_wire::CellId;
use rustix::process::Signal;

use crate::cluster::{Cluster, SEGMENT_MIB};
use crate::load::Load;
use crate::{PATIENCE, until};

const CELL: CellId = CellId(0);
/// The size of a segment in bytes.
const SEGMENT_BYTES: u64 = SEGMENT_MIB * 1024 * 1024;
/// How long a log may take to go around on a busy machine.
const ROUND_MAX: Duration = Duration::from_secs(90);

/// What a data directory holds.
#[derive(Debug, Default)]
struct Contents {
    /// The lowest number of a segment.
    oldest: u64,
    segment_bytes: u64,
    snapshots: usize,
}

fn contents(data: &Path) -> Contents {
    let mut contents = Contents { oldest: u64::MAX, ..Contents::default() };
    for entry in std::fs::read_dir(data).expect("a data directory can be listed") {
        let entry = entry.expect("an entry can be read");
        let name = entry.file_name();
        // What goes while it is looked at takes nothing.
        let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
        match name.to_str().and_then(FileName::parse) {
            Some(FileName::Segment { sequence, .. }) => {
                contents.oldest = contents.oldest.min(sequence.0);
                contents.segment_bytes += bytes;
            }
            Some(FileName::Staging { .. }) => contents.segment_bytes += bytes,
            Some(FileName::Snapshot { .. } | FileName::SnapshotStaging { .. }) => contents.snapshots += 1,
            Some(
                FileName::Superblock | FileName::SuperblockStaging | FileName::Lock | FileName::FormatMark,
            )
            | None => {}
        }
    }
    contents
}

pub(crate) fn small(nodes: u16) -> Cluster {
    let mut cluster = Cluster::format(nodes, 1, "");
    cluster.start_all();
    cluster.leader(CELL);
    cluster
}

/// Waits until a node's log has recycled all that it has now.
#[track_caller]
pub(crate) fn go_around(cluster: &Cluster, at: usize) {
    let data = &cluster.places[at].data;
    let newest = contents(data).oldest + LIVE_SEGMENTS_MAX + SPARE_SEGMENTS as u64;
    until("the log goes around", ROUND_MAX, || (contents(data).oldest > newest).then_some(()));
}

/// Waits until a node has said something to its operator.
#[track_caller]
pub(crate) fn await_said(cluster: &mut Cluster, at: usize, words: &str) {
    until(words, PATIENCE, || cluster.process(at).complained().contains(words).then_some(()));
}

#[test]
fn a_node_that_was_away_for_longer_than_the_log_reaches_comes_back_under_load() {
    let mut cluster = small(3);
    let load = Load::start(&cluster.endpoints(), "load");
    load.await_successes(100);
    let leader = cluster.leader(CELL);
    let away = (leader + 1) % 3;
    cluster.kill(away);
    go_around(&cluster, leader);
    // What a leader has in memory reaches further back than its log.
    for at in (0..3).filter(|at| *at != away) {
        cluster.kill(at);
        cluster.start_node(at);
        load.await_successes(20);
    }
    let leader = cluster.leader(CELL);
    let term = cluster.known(leader, CELL).expect("the leader answers").term;
    cluster.start_node(away);
    cluster.await_caught_up(away, CELL);
    await_said(&mut cluster, away, "the leader's snapshot was installed");
    assert_eq!(cluster.known(leader, CELL).map(|known| known.term), Some(term), "it has disturbed somebody");
    load.verify_kept();
    load.finish();
    cluster.agree(CELL);
    for place in &cluster.places {
        let contents = contents(&place.data);
        let segments = contents.segment_bytes.div_ceil(SEGMENT_BYTES);
        assert!(segments <= LIVE_SEGMENTS_MAX + SPARE_SEGMENTS as u64 + 1, "{contents:?}");
        assert!((1..=SNAPSHOT_FILES_MAX).contains(&contents.snapshots), "{contents:?}");
    }
}

#[test]
fn what_was_acknowledged_survives_kills_while_snapshots_are_taken_and_installed() {
    let mut cluster = small(3);
    let load = Load::start(&cluster.endpoints(), "load");
    for round in 0..12_u64 {
        load.await_successes(200);
        let victim = usize::try_from(round % 3).expect("a small number");
        cluster.kill(victim);
        if round % 4 == 1 {
            let other = cluster.leader_among(&[(victim + 1) % 3, (victim + 2) % 3], CELL);
            go_around(&cluster, other.unwrap_or((victim + 1) % 3));
        }
        cluster.start_node(victim);
        // Most of the time it is killed again before it has caught up.
        std::thread::sleep(Duration::from_millis(5 + 23 * round));
        cluster.kill(victim);
        cluster.start_node(victim);
        cluster.await_caught_up(victim, CELL);
        load.verify_kept();
    }
    load.finish();
    cluster.agree(CELL);
}

#[test]
fn a_cluster_whose_logs_have_gone_around_starts_from_its_snapshots() {
    let mut cluster = small(3);
    let load = Load::start(&cluster.endpoints(), "load");
    load.await_successes(500);
    let leader = cluster.leader(CELL);
    go_around(&cluster, leader);
    for at in 0..3 {
        cluster.kill(at);
    }
    let began = Instant::now();
    cluster.start_all();
    cluster.leader(CELL);
    println!("a leader after {:.0?}", began.elapsed());
    load.await_successes(100);
    assert!(load.verify_kept() > 0, "the load keeps some locks");
    load.finish();
    cluster.agree(CELL);
    for at in 0..3 {
        cluster.process(at).signal(Signal::TERM);
        let (status, complained) = cluster.wait(at, PATIENCE);
        assert!(status.success(), "{complained}");
    }
}

#[test]
fn a_node_whose_snapshots_are_damaged_asks_its_leader_for_one() {
    let mut cluster = small(3);
    let load = Load::start(&cluster.endpoints(), "load");
    load.await_successes(200);
    let leader = cluster.leader(CELL);
    let victim = (leader + 1) % 3;
    go_around(&cluster, victim);
    cluster.kill(victim);
    for entry in std::fs::read_dir(&cluster.places[victim].data).expect("it can be listed") {
        let path = entry.expect("an entry can be read").path();
        if path.extension().is_some_and(|extension| extension == "snapshot") {
            let mut bytes = std::fs::read(&path).expect("a snapshot can be read");
            bytes[100] ^= 1;
            std::fs::write(&path, bytes).expect("a snapshot can be written");
        }
    }
    cluster.start_node(victim);
    cluster.await_caught_up(victim, CELL);
    await_said(&mut cluster, victim, ".snapshot is damaged at offset 0");
    await_said(&mut cluster, victim, "the leader's snapshot was installed");
    load.finish();
    cluster.agree(CELL);
}
