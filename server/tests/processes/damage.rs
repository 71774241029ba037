//! Bytes inside the log that are not what was written there.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lockstep_wal::layout::{BATCH_MAGIC, BLOCK_BYTES};
use lockstep_wire::CellId;

use crate::PATIENCE;
use crate::cluster::Cluster;
use crate::connection::leader;
use crate::process::Process;
use crate::worker::Worker;

const CELL: CellId = CellId(0);

/// The segments of a data directory that hold batches, the oldest first, and where the batches begin.
pub(crate) fn segments(data: &Path) -> Vec<(PathBuf, Vec<u64>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(data)
        .expect("a data directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    let with_batches = files.into_iter().map(|path| {
        let bytes = fs::read(&path).expect("a file");
        let blocks = bytes.chunks_exact(BLOCK_BYTES).zip(0_u64..);
        let batches = blocks
            .filter(|(block, _)| block[..8] == BATCH_MAGIC.to_le_bytes())
            .map(|(_, at)| at * BLOCK_BYTES as u64)
            .collect();
        (path, batches)
    });
    with_batches.filter(|(_, batches): &(_, Vec<u64>)| !batches.is_empty()).collect()
}

pub(crate) fn contents(data: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all: Vec<_> = fs::read_dir(data)
        .expect("a data directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), fs::read(&path).expect("a file")))
        .collect();
    all.sort();
    all
}

pub(crate) fn flip(file: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(file).expect("a segment");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("a byte of the segment");
    byte[0] ^= 0x04;
    file.write_all_at(&byte, at).expect("a byte of the segment");
}

#[test]
fn a_flipped_bit_inside_the_log_is_refused_with_its_place_and_nothing_is_cut() {
    let mut cluster = Cluster::format(1, 1, "");
    cluster.start_all();
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    let mut worker = Worker::new(CELL, "/ls/damage/worker");
    worker.begin(&mut connection).expect("a session");
    // Each acknowledged request is a batch, a block at least; a segment here has 256 blocks.
    while worker.acknowledged() < 700 {
        worker.one(&mut connection).expect("the cell grants");
    }
    drop(connection);
    cluster.kill(0);
    let data = cluster.places[0].data.clone();
    let segments = segments(&data);
    assert!(segments.len() >= 3, "{} segments", segments.len());
    let middle = segments.len() / 2;
    let newest = segments.len() - 1;
    // Inside a batch's header, its records, and its checksum.
    let cases = [(0, 48), (0, 8), (middle, 100), (middle, 4), (newest, 110)];
    for (segment, within) in cases {
        let (file, batches) = &segments[segment];
        let batch = batches[if segment == newest { batches.len() - 3 } else { batches.len() / 2 }];
        flip(file, batch + within);
        let before = contents(&data);
        let config = cluster.places[0].config.display().to_string();
        let mut process = Process::start(["serve", "--config", &config]);
        let status = process.wait(Duration::from_secs(5)).expect("a damaged log is refused");
        let complained = process.complained();
        assert!(!status.success(), "a damaged log was taken: {complained}");
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        for part in [name, &format!("offset {batch}"), "cell 0 index ", "mend the disk"] {
            assert!(complained.contains(part), "`{part}` is not in: {complained}");
        }
        assert!(contents(&data) == before, "a refusal has changed the directory");
        flip(file, batch + within);
    }
    // Mended, it has everything.
    cluster.start_all();
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    worker.verify(&mut connection);
    worker.one(&mut connection).expect("the cell grants");
}

#[test]
fn a_damaged_copy_of_the_superblock_is_named_with_what_mends_it() {
    let mut cluster = Cluster::format(1, 1, "");
    let superblock = cluster.places[0].data.join("superblock");
    let whole = fs::read(&superblock).expect("a superblock");
    for offset in [0, BLOCK_BYTES as u64] {
        flip(&superblock, offset + 20);
        cluster.start_all();
        cluster.leader(CELL);
        let complained = cluster.kill(0);
        let line = complained.lines().find(|line| line.contains(&superblock.display().to_string()));
        let line = line.unwrap_or_else(|| panic!("nothing about the superblock in: {complained}"));
        assert!(line.contains("WARN") && line.contains(&format!("at offset {offset})")), "{line}");
        let (_, command) = line.split_once("over it: ").expect("it says what to do");
        let mended = Command::new("sh").args(["-c", command]).stderr(Stdio::null()).status();
        assert!(mended.expect("a shell runs").success(), "{command}");
        assert!(fs::read(&superblock).expect("a superblock") == whole, "the command has mended it");
    }
    cluster.start_all();
    cluster.leader(CELL);
    assert!(!cluster.kill(0).contains("superblock"));
}

/// A replica whose log is damaged is lost, and the others go on.
#[test]
fn a_majority_goes_on_without_the_replica_whose_log_is_damaged() {
    let mut cluster = Cluster::start(3);
    let mut worker = Worker::new(CELL, "/ls/damage/worker");
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    worker.begin(&mut connection).expect("a session");
    while worker.acknowledged() < 60 {
        worker.one(&mut connection).expect("the cell grants");
    }
    let damaged = (cluster.leader(CELL) + 1) % 3;
    cluster.kill(damaged);
    let segments = segments(&cluster.places[damaged].data);
    let (file, batches) = &segments[0];
    flip(file, batches[batches.len() / 2] + 60);
    cluster.start_node(damaged);
    let (status, complained) = cluster.wait(damaged, Duration::from_secs(5));
    assert!(!status.success() && complained.contains("the log is damaged"), "{complained}");
    worker.verify(&mut connection);
    worker.one(&mut connection).expect("the others grant");
}
