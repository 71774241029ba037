//! `lockstep dev --data` is killed in the middle of traffic and started again.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockstep_wire::CellId;
use rustix::process::Signal;

use crate::connection::leader;
use crate::process::Process;
use crate::worker::Worker;
use crate::{PATIENCE, directory, until};

const CELL: CellId = CellId(0);

/// Starts a development cluster over a directory and gives its endpoints.
#[track_caller]
pub(crate) fn start_dev(data: &Path, options: &[&str]) -> (Process, Vec<SocketAddr>) {
    let data = data.display().to_string();
    let mut arguments = vec!["dev", "--data", &data, "--listen", "127.0.0.1:0"];
    arguments.extend(options);
    let mut process = Process::start(arguments);
    let endpoints = until("the cluster says where it is", PATIENCE, || {
        assert!(process.is_running(), "dev has ended: {}", process.complained());
        endpoints_of(&process.said())
    });
    (process, endpoints)
}

fn endpoints_of(said: &str) -> Option<Vec<SocketAddr>> {
    // The line is whole once another one follows.
    let (_, rest) = said.split_once("endpoints: ")?;
    let (line, _) = rest.split_once('\n')?;
    Some(line.split(',').map(|endpoint| endpoint.parse().expect("an endpoint is an address")).collect())
}

/// Lets every worker run at once for a while, then ends the process in the middle of it.
fn traffic_until_killed(
    workers: &mut [Worker],
    endpoints: &[SocketAddr],
    process: &mut Process,
    how_long: Duration,
) {
    let books: Vec<_> = workers.iter().map(|worker| Arc::clone(&worker.answers)).collect();
    let acknowledged = || books.iter().map(|book| book.load(Ordering::Relaxed)).sum::<u64>();
    let (before, stop) = (acknowledged(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for worker in workers.iter_mut() {
            let connection = leader(endpoints, worker.cell, PATIENCE);
            scope.spawn(|| worker.run(connection, &stop));
        }
        let began = Instant::now();
        while began.elapsed() < how_long || acknowledged() == before && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        process.kill();
        stop.store(true, Ordering::Relaxed);
    });
    assert!(acknowledged() > before, "nothing was acknowledged");
}

/// Holds the books of every worker against what came back, and sees each cell grant above all that it had granted.
fn verify_all(workers: &mut [Worker], endpoints: &[SocketAddr], cells: u16) {
    for cell in (0..cells).map(CellId) {
        let mut connection = leader(endpoints, cell, PATIENCE);
        let mut workers: Vec<&mut Worker> = workers.iter_mut().filter(|worker| worker.cell == cell).collect();
        let token_max = workers.iter().map(|worker| worker.token_max).max();
        for worker in &mut workers {
            worker.verify(&mut connection);
        }
        workers[0].one(&mut connection).expect("the cell grants");
        assert!(workers[0].token_max > token_max.unwrap_or_default());
    }
}

/// Kills a development cluster in the middle of traffic, so many times in a row; each cell has so many workers.
pub(crate) fn kill_and_verify(rounds: u64, options: &[&str], cells: u16, workers: u16) {
    let directory = directory();
    let data = directory.path().join("cluster");
    let mut workers: Vec<Worker> = (0..cells)
        .flat_map(|cell| (0..workers).map(move |number| (cell, number)))
        .map(|(cell, number)| Worker::new(CellId(cell), &format!("/ls/cell-{cell}/worker-{number}")))
        .collect();
    let (mut restart_max, began) = (Duration::ZERO, Instant::now());
    let (mut process, mut endpoints) = start_dev(&data, options);
    for round in 0..rounds {
        for cell in (0..cells).map(CellId) {
            drop(leader(&endpoints, cell, PATIENCE));
        }
        let how_long = Duration::from_millis(60 + round * 37 % 140);
        traffic_until_killed(&mut workers, &endpoints, &mut process, how_long);
        let killed = Instant::now();
        (process, endpoints) = start_dev(&data, options);
        drop(leader(&endpoints, CELL, PATIENCE));
        restart_max = restart_max.max(killed.elapsed());
        verify_all(&mut workers, &endpoints, cells);
    }
    let acknowledged: u64 = workers.iter().map(|worker| worker.acknowledged()).sum();
    println!(
        "{rounds} kills in {:.1?}: {acknowledged} acknowledged, served again after at most {restart_max:.0?}",
        began.elapsed()
    );
}

#[test]
fn acknowledged_grants_survive_kill_nine() {
    kill_and_verify(50, &[], 1, 4);
}

/// With nobody to replicate to, nothing but the disk stands behind an acknowledgement.
#[test]
fn a_single_replica_keeps_what_it_acknowledged() {
    kill_and_verify(10, &["--replicas", "1"], 1, 2);
}

/// The process dies the moment the acknowledgement has arrived.
#[test]
fn a_grant_survives_a_kill_right_after_its_acknowledgement() {
    let directory = directory();
    let data = directory.path().join("cluster");
    let mut worker = Worker::new(CELL, "/ls/kill/alone");
    for _ in 0..8 {
        let (mut process, endpoints) = start_dev(&data, &["--replicas", "1"]);
        let mut connection = leader(&endpoints, CELL, PATIENCE);
        worker.begin(&mut connection).expect("the session is there");
        worker.verify(&mut connection);
        worker.one(&mut connection).expect("the cell grants");
        process.kill();
    }
}

#[test]
fn a_cluster_that_is_told_to_stop_ends_well_and_comes_back() {
    let directory = directory();
    let data = directory.path().join("cluster");
    let mut worker = Worker::new(CELL, "/ls/stop/worker");
    for signal in [Signal::TERM, Signal::INT] {
        let (mut process, endpoints) = start_dev(&data, &["--replicas", "3"]);
        let mut connection = leader(&endpoints, CELL, PATIENCE);
        worker.begin(&mut connection).expect("the session is there");
        worker.verify(&mut connection);
        for _ in 0..10 {
            worker.one(&mut connection).expect("the cell grants");
        }
        process.signal(signal);
        let status = process.wait(Duration::from_secs(5)).expect("it ends");
        assert!(status.success(), "{status}: {}", process.complained());
    }
    let (_process, endpoints) = start_dev(&data, &["--replicas", "3"]);
    worker.verify(&mut leader(&endpoints, CELL, PATIENCE));
}
