//! Nodes that are not who the others think they are.

use std::time::{Duration, Instant};

use lockstep_wire::request::Request;
use lockstep_wire::{CellId, Incarnation, MemberChange, NodeId, Status};

use crate::cluster::{Cluster, Place, SEGMENT_MIB, config, free_port};
use crate::connection::{Connection, leader};
use crate::process::{Process, format};
use crate::worker::Worker;
use crate::{PATIENCE, until};

const CELL: CellId = CellId(0);

/// Lets a worker be granted some locks.
fn some_grants(cluster: &Cluster, count: usize) -> Worker {
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    let mut worker = Worker::new(CELL, "/ls/identity/worker");
    worker.begin(&mut connection).expect("a session");
    for _ in 0..count {
        worker.one(&mut connection).expect("the cell grants");
    }
    worker
}

/// Asserts that nobody among these nodes leads, or grants or answers anything, for a while.
#[track_caller]
fn nobody_leads(cluster: &Cluster, nodes: &[usize], how_long: Duration) {
    let deadline = Instant::now() + how_long;
    while Instant::now() < deadline {
        assert_eq!(cluster.leader_among(nodes, CELL), None, "a wiped member has given its vote");
        for at in nodes {
            if let Ok(mut connection) = Connection::open(cluster.places[*at].client, CELL) {
                let answer = connection.call(&Request::GetLock { name: "/ls/identity/x" });
                let status = answer.expect("a node answers").reply().status();
                assert_ne!(status, Status::Ok, "node {} has answered a read", at + 1);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_stray_process_under_a_members_id_takes_nothing_from_it() {
    let mut cluster = Cluster::start(3);
    let mut worker = some_grants(&cluster, 20);
    let leading = cluster.leader(CELL);
    let healthy = (leading + 1) % 3;
    let before = cluster.known(healthy, CELL).expect("it answers");
    // Of the same cluster, under the same id, with a life of its own: a node of a cell that was given up, for example.
    let stray = Place {
        data: cluster.directory.path().join("stray"),
        config: cluster.directory.path().join("stray.toml"),
        client: free_port(),
        peer: free_port(),
        ..cluster.places[healthy].clone()
    };
    format(&stray.data, stray.id, Some(&cluster.id), cluster.shards, SEGMENT_MIB);
    let mut places = cluster.places.clone();
    places[healthy] = stray.clone();
    std::fs::write(&stray.config, config(&stray, &places, "")).expect("a file can be written");
    let strayed = Process::start(["serve", "--config", &stray.config.display().to_string()]);
    until("the stray is told who it is not", PATIENCE, || {
        strayed.complained().contains("formatted again").then_some(())
    });
    // Also when the links are made anew: they go to the one that is listed.
    cluster.kill(healthy);
    std::thread::sleep(Duration::from_millis(500));
    cluster.start_node(healthy);
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    worker.begin(&mut connection).expect("the session is attached");
    let deadline = Instant::now() + Duration::from_secs(3);
    while Instant::now() < deadline {
        worker.one(&mut connection).expect("the cell grants");
        std::thread::sleep(Duration::from_millis(20));
    }
    cluster.await_caught_up(healthy, CELL);
    let after = cluster.known(healthy, CELL).expect("it answers");
    assert_eq!((after.role.as_str(), after.term), ("follower", before.term), "it was disturbed");
    cluster.agree(CELL);
}

/// A member was moved without a word, and a stray answers under its id where it was.
#[test]
fn a_node_that_looks_for_a_member_does_not_take_a_stray_for_it() {
    let mut cluster = Cluster::start(3);
    let mut worker = some_grants(&cluster, 5);
    let third = cluster.leader(CELL);
    let (moved, again) = ((third + 1) % 3, (third + 2) % 3);
    cluster.kill(moved);
    cluster.kill(again);
    let stray = Place {
        data: cluster.directory.path().join("stray"),
        config: cluster.directory.path().join("stray.toml"),
        client: free_port(),
        ..cluster.places[moved].clone()
    };
    format(&stray.data, stray.id, Some(&cluster.id), cluster.shards, SEGMENT_MIB);
    let mut places = cluster.places.clone();
    places[moved] = stray.clone();
    std::fs::write(&stray.config, config(&stray, &places, "")).expect("a file can be written");
    let _stray = Process::start(["serve", "--config", &stray.config.display().to_string()]);
    until("the stray serves", PATIENCE, || Connection::open(stray.client, CELL).ok());
    cluster.start_node(again);
    until("the stray is not taken for the member", PATIENCE, || {
        cluster.process(again).complained().contains("another directory than the member's").then_some(())
    });
    cluster.places[moved].peer = free_port();
    let place = &cluster.places[moved];
    std::fs::write(&place.config, config(place, &cluster.places, "")).expect("a file can be written");
    cluster.start_node(moved);
    // The two are a majority only if each of them finds the other.
    cluster.kill(third);
    until("the two agree on a leader", PATIENCE, || cluster.leader_among(&[moved, again], CELL));
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    worker.begin(&mut connection).expect("the session is attached");
    worker.one(&mut connection).expect("the cell grants");
}

/// A node that waits to be added is connected already when another directory is added under its id.
#[test]
fn a_node_whose_id_is_given_to_another_directory_is_let_in_no_longer() {
    let cluster = Cluster::start(3);
    let stray = Place {
        id: 4,
        data: cluster.directory.path().join("stray"),
        config: cluster.directory.path().join("stray.toml"),
        client: free_port(),
        peer: free_port(),
    };
    format(&stray.data, stray.id, Some(&cluster.id), cluster.shards, SEGMENT_MIB);
    let mut places = cluster.places.clone();
    places.push(stray.clone());
    std::fs::write(&stray.config, config(&stray, &places, "join = true")).expect("a file can be written");
    let strayed = Process::start(["serve", "--config", &stray.config.display().to_string()]);
    until("the node has met the cell", PATIENCE, || {
        strayed.complained().contains("the cell is born").then_some(())
    });
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    let add = MemberChange::AddLearner {
        node: NodeId(4),
        incarnation: Incarnation([99; 16]),
        peer_address: "127.0.0.1:1",
        client_address: "127.0.0.1:2",
    };
    let answer = connection.call(&Request::ChangeMembers(add)).expect("the leader answers");
    assert_eq!(answer.reply().status(), Status::Ok);
    until("the node is told that it is not the member", PATIENCE, || {
        strayed.complained().contains("another directory than the member's").then_some(())
    });
}

#[test]
fn a_wiped_and_formatted_member_does_not_vote() {
    let mut cluster = Cluster::start(3);
    let mut worker = some_grants(&cluster, 20);
    let leading = cluster.leader(CELL);
    let wiped = (leading + 1) % 3;
    let other = (leading + 2) % 3;
    cluster.kill(wiped);
    let place = cluster.places[wiped].clone();
    std::fs::remove_dir_all(&place.data).expect("a directory can be removed");
    format(&place.data, place.id, Some(&cluster.id), cluster.shards, SEGMENT_MIB);
    cluster.start_node(wiped);
    until("the wiped node serves", PATIENCE, || Connection::open(place.client, CELL).ok());
    // Those that are left go on: they are a majority without it.
    leader(&cluster.endpoints(), CELL, PATIENCE);
    worker.verify(&mut leader(&cluster.endpoints(), CELL, PATIENCE));

    until("the leader says why", PATIENCE, || {
        cluster.process(leading).complained().contains("formatted again").then_some(())
    });
    cluster.kill(leading);
    nobody_leads(&cluster, &[wiped, other], Duration::from_secs(4));
    for at in [wiped, other] {
        let complained = cluster.process(at).complained();
        assert!(complained.contains("formatted again"), "node {} does not say why:\n{complained}", at + 1);
    }

    cluster.start_node(leading);
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    worker.verify(&mut connection);
    worker.one(&mut connection).expect("the cell grants");
}

/// An address that a cluster lists leads to a node of another one.
#[test]
fn a_node_of_another_cluster_is_refused_and_changes_nothing() {
    let mut cluster = Cluster::start(3);
    let mut worker = some_grants(&cluster, 5);
    let leading = cluster.leader(CELL);
    let replaced = (leading + 1) % 3;
    cluster.kill(replaced);
    let before = until("the leader answers", PATIENCE, || cluster.known(leading, CELL));

    // The same addresses and the same id; another cluster.
    let mut place = cluster.places[replaced].clone();
    place.data = cluster.directory.path().join("foreign");
    let foreign = format(&place.data, place.id, None, 1, SEGMENT_MIB);
    assert_ne!(foreign, cluster.id);
    let own = cluster.places[replaced].config.clone();
    std::fs::write(&own, config(&place, &cluster.places, "")).expect("a file can be written");
    cluster.start_node(replaced);
    for at in [leading, replaced] {
        until("both sides say so", PATIENCE, || {
            let complained = cluster.processes[at].as_ref()?.complained();
            (complained.contains(&cluster.id) && complained.contains(&foreign)).then_some(())
        });
    }
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(cluster.known(leading, CELL), Some(before), "a node of another cluster has changed something");
    let unborn = cluster.known(replaced, CELL).expect("it answers");
    assert_eq!((unborn.term, unborn.leader, unborn.committed), (0, 0, 0), "{unborn:?}");

    // The right one comes back, and is welcome.
    cluster.kill(replaced);
    let place = cluster.places[replaced].clone();
    std::fs::write(&own, config(&place, &cluster.places, "")).expect("a file can be written");
    cluster.start_node(replaced);
    cluster.await_caught_up(replaced, CELL);
    worker.verify(&mut leader(&cluster.endpoints(), CELL, PATIENCE));
    cluster.agree(CELL);
}

/// Two nodes were given each other's configurations.
#[test]
fn swapped_configurations_are_refused() {
    let cluster = Cluster::format(3, 1, "");
    let mut place = cluster.places[0].clone();
    place.data = cluster.places[1].data.clone();
    std::fs::write(&place.config, config(&place, &cluster.places, "")).expect("a file can be written");
    let mut process = Process::start(["serve", "--config", &place.config.display().to_string()]);
    let status = process.wait(Duration::from_secs(2)).expect("it ends at once");
    let complained = process.complained();
    assert!(!status.success());
    assert!(complained.contains("belongs to node 2") && complained.contains("node 1"), "{complained}");
}

/// Two clusters that list each other's addresses in part: each goes on alone.
#[test]
fn two_clusters_with_swapped_addresses_stay_apart() {
    let mut one = Cluster::start(3);
    let mut two = Cluster::start(3);
    let mut workers = [some_grants(&one, 5), some_grants(&two, 5)];
    // Node 3 of the first is configured with the peers of the second.
    one.kill(2);
    two.kill(2);
    let mut mixed = two.places.clone();
    mixed[2] = one.places[2].clone();
    let text = config(&one.places[2], &mixed, "");
    std::fs::write(&one.places[2].config, text).expect("a file can be written");
    let before: Vec<_> = [&one, &two].map(|cluster| cluster.known(cluster.leader(CELL), CELL)).into();
    one.start_node(2);
    until("the stray node says why nobody talks to it", PATIENCE, || {
        let complained = one.process(2).complained();
        (complained.contains(&one.id) && complained.contains(&two.id)).then_some(())
    });
    std::thread::sleep(Duration::from_millis(1_500));
    let after: Vec<_> = [&one, &two].map(|cluster| cluster.known(cluster.leader(CELL), CELL)).into();
    assert_eq!(after, before, "a stray node has changed something");
    for (cluster, worker) in [&one, &two].into_iter().zip(&mut workers) {
        worker.verify(&mut leader(&cluster.endpoints()[..2], CELL, PATIENCE));
    }
}
