//! Several cells in one process and several shards in one node: one log for all of a shard, and the right one for everybody.

use std::time::Duration;

use lockstep_client::Client;
use lockstep_wire::reply::Reply;
use lockstep_wire::request::Request;
use lockstep_wire::{CellId, NodeId};

use crate::cluster::{Cluster, SEGMENT_MIB};
use crate::connection::{Connection, leader};
use crate::load::client_config;
use crate::restart::{kill_and_verify, start_dev};
use crate::worker::Worker;
use crate::{PATIENCE, directory};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made")
}

/// One worker for each of these cells.
fn workers(cells: u16) -> Vec<Worker> {
    (0..cells).map(|cell| Worker::new(CellId(cell), &format!("/ls/cell-{cell}/worker"))).collect()
}

#[test]
fn every_cell_of_a_shared_log_comes_back_after_a_kill() {
    kill_and_verify(6, &["--replicas", "3", "--cells", "3"], 3, 2);
}

#[test]
fn clients_find_the_cell_of_a_name_by_the_routes() {
    let directory = directory();
    let (_process, endpoints) =
        start_dev(&directory.path().join("cluster"), &["--replicas", "3", "--cells", "3"]);
    for cell in 0..3 {
        leader(&endpoints, CellId(cell), PATIENCE);
    }
    runtime().block_on(async {
        let client = Client::connect(client_config(&endpoints)).await.expect("a client");
        let names = [("/ls/cell-0/x", 0), ("/ls/cell-1/x", 1), ("/ls/cell-2/x", 2), ("/ls/demo/x", 0)];
        for (name, cell) in names {
            assert_eq!(client.cell(name).expect("a name"), CellId(cell));
            let guard = client.acquire(name).await.expect("the lock");
            assert_eq!(guard.session().cell(), CellId(cell), "{name}");
            assert_eq!(client.get(name).await.expect("a look").holders_total, 1);
            guard.release().await.expect("it is released");
        }
    });
}

/// With two shards, half of the connections come in at a shard that must pass them on.
#[test]
fn connections_reach_the_shard_of_their_cell_and_its_log_recovers() {
    const CELLS: u16 = 4;
    let more = "cells = 4\nroutes = [{ namespace = \"cell-0\", cell = 0 }, { namespace = \"cell-1\", cell = 1 }, \
                { namespace = \"cell-2\", cell = 2 }, { namespace = \"cell-3\", cell = 3 }]\n";
    let mut cluster = Cluster::format(3, 2, more);
    cluster.start_all();
    let endpoints = cluster.endpoints();
    let mut workers = workers(CELLS);
    for (worker, cell) in workers.iter_mut().zip(0..) {
        let mut connection = leader(&endpoints, CellId(cell), PATIENCE);
        worker.begin(&mut connection).expect("a session");
        for _ in 0..20 {
            worker.one(&mut connection).expect("the cell grants");
        }
    }
    // Every node passes on, leader or not, and a Hello may bring requests along.
    for (endpoint, id) in endpoints.iter().zip(1..) {
        for cell in (0..CELLS).map(CellId) {
            for _ in 0..20 {
                let mut connection = Connection::open(*endpoint, cell).expect("it is welcome");
                let answer = connection.call(&Request::Status).expect("it is answered");
                assert!(matches!(answer.reply(), Reply::Status(status) if status.node == NodeId(id)));
            }
        }
        assert!(Connection::open(*endpoint, CellId(CELLS)).is_err(), "there is no such cell");
    }
    runtime().block_on(async {
        let client = Client::connect(client_config(&endpoints)).await.expect("a client");
        for cell in 0..CELLS {
            let guard = client.acquire(&format!("/ls/cell-{cell}/by-route")).await.expect("the lock");
            assert_eq!(guard.session().cell(), CellId(cell));
            guard.release().await.expect("it is released");
        }
    });
    // One node dies: its cells find other leaders; then all of them.
    let leading = cluster.leader(CellId(1));
    cluster.kill(leading);
    for (worker, cell) in workers.iter_mut().zip(0..) {
        worker.verify(&mut leader(&endpoints, CellId(cell), PATIENCE));
    }
    for at in (0..3).filter(|at| *at != leading) {
        cluster.kill(at);
    }
    cluster.start_all();
    for (worker, cell) in workers.iter_mut().zip(0..) {
        let mut connection = leader(&endpoints, CellId(cell), PATIENCE);
        worker.verify(&mut connection);
        worker.one(&mut connection).expect("the cell grants");
    }
    for cell in 0..CELLS {
        cluster.agree(CellId(cell));
    }
}

#[test]
fn a_node_with_another_number_of_shards_is_refused() {
    let mut cluster = Cluster::format(3, 2, "cells = 2");
    let place = cluster.places[2].clone();
    std::fs::remove_dir_all(&place.data).expect("a directory can be removed");
    crate::process::format(&place.data, 3, Some(&cluster.id), 1, SEGMENT_MIB);
    cluster.start_all();
    crate::until("the others say so", Duration::from_secs(10), || {
        let complained = cluster.process(0).complained();
        complained.contains("format all nodes alike").then_some(())
    });
}
