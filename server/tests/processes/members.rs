//! Members that come and go while the cell serves, by the commands and in the order of docs/OPERATIONS.md.

use std::process::Command;
use std::time::{Duration, Instant};

use lockstep_wire::CellId;
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Cluster, Place, SEGMENT_MIB, config, free_port};
use crate::load::Load;
use crate::process::{PROGRAM, format, run};
use crate::snapshot::{await_said, go_around};
use crate::{PATIENCE, until};

const CELL: CellId = CellId(0);

impl Cluster {
    /// Formats one more node and starts it as one that waits to be added.
    fn add_place(&mut self, more: &str) -> usize {
        let id = self.places.last().expect("a cluster has nodes").id + 1;
        let place = Place {
            id,
            data: self.directory.path().join(format!("data-{id}")),
            config: self.directory.path().join(format!("node-{id}.toml")),
            client: free_port(),
            peer: free_port(),
        };
        format(&place.data, id, Some(&self.id), self.shards, SEGMENT_MIB);
        self.places.push(place);
        self.processes.push(None);
        let place = self.places.last().expect("it was just added");
        std::fs::write(&place.config, config(place, &self.places, &format!("join = true\n{more}")))
            .expect("a file can be written");
        self.start_node(self.places.len() - 1);
        self.places.len() - 1
    }

    /// Runs `lockstep members` against the nodes that run.
    pub(crate) fn members(&self, arguments: &[&str]) -> (bool, String, String) {
        let running = (0..self.places.len()).filter(|at| self.processes[*at].is_some());
        let endpoints: Vec<String> = running.map(|at| self.places[at].client.to_string()).collect();
        let output = Command::new(PROGRAM)
            .args(["members", "--endpoints", &endpoints.join(",")])
            .args(arguments)
            .output()
            .expect("the program runs");
        let text = |bytes| String::from_utf8(bytes).expect("it speaks text");
        (output.status.success(), text(output.stdout), text(output.stderr))
    }

    #[track_caller]
    fn must(&self, arguments: &[&str]) -> String {
        let (is_done, out, err) = self.members(arguments);
        assert!(is_done, "{arguments:?}: {out}{err}");
        out
    }

    /// What the command says of the members of a cell, once there is somebody who leads.
    fn listed(&self, cell: usize) -> Vec<Value> {
        let text = until("every cell has a leader", PATIENCE, || {
            let (is_led, out, _) = self.members(&["--json"]);
            is_led.then_some(out)
        });
        let json: Value = serde_json::from_str(&text).expect("it is JSON");
        json["cells"][cell]["members"].as_array().expect("a list").clone()
    }

    fn voters(&self, cell: usize) -> Vec<u64> {
        let listed = self.listed(cell);
        let voters = listed.iter().filter(|member| member["voter"] == true);
        voters.map(|member| member["node"].as_u64().expect("a number")).collect()
    }
}

#[test]
fn every_node_of_three_is_replaced_under_load_and_nothing_is_lost() {
    let mut cluster = Cluster::start(3);
    let load = Load::start(&cluster.endpoints(), "load");
    load.await_successes(100);
    go_around(&cluster, cluster.leader(CELL));
    for old in 0..3 {
        let new = cluster.add_place("");
        let address = cluster.places[new].client.to_string();
        let id = cluster.places[new].id.to_string();
        let added = until("the new node is there", PATIENCE, || {
            let (is_done, out, _) = cluster.members(&["add", &address]);
            is_done.then_some(out)
        });
        assert!(added.contains(&format!("cell 0: node {id} is a learner")), "{added}");
        cluster.must(&["promote", &id]);
        let removed = cluster.places[old].id.to_string();
        if old == 0 {
            // One that is dead; the others are alive, and one of them leads.
            cluster.kill(old);
        }
        cluster.must(&["remove", &removed]);
        if old > 0 {
            let (status, said) = cluster.wait(old, PATIENCE);
            assert_eq!(status.code(), Some(70), "{said}");
            assert!(said.contains("was removed from every cell of the cluster, for ever"), "{said}");
        }
        load.await_successes(50);
    }
    assert_eq!(cluster.voters(0), [4, 5, 6]);
    load.verify_kept();
    load.finish();
    cluster.agree(CELL);
    // Also when it is started again: it is told at once.
    cluster.start_node(1);
    let (status, said) = cluster.wait(1, PATIENCE);
    assert_eq!(status.code(), Some(70), "{said}");
    let (is_done, _, err) = cluster.members(&["promote", "2"]);
    assert!(!is_done && err.contains("node 2 is no member of this cell"), "{err}");
    let out = cluster.must(&["remove", "2"]);
    assert_eq!(out, "cell 0: node 2 is no member, and cannot become one; nothing was to do\n");
    let peer = cluster.places[3].peer.to_string();
    for command in [&["members"][..], &["transfer-leader"], &["members", "remove", "4", "--timeout", "1s"]] {
        let (status, _, err) = run(command.iter().chain(&["--endpoints", &peer]));
        assert_eq!(status.code(), Some(69), "{err}");
        assert!(err.contains(&format!("{peer}: ")) && err.contains("this is the port for members"), "{err}");
    }
}

#[test]
fn an_addition_that_one_cell_alone_has_made_is_not_made_final_and_can_be_undone() {
    let mut cluster = Cluster::format(3, 2, "cells = 2");
    cluster.start_all();
    for cell in 0..2 {
        cluster.leader(CellId(cell));
    }
    let added = |cluster: &Cluster, at: usize, more: &[&str], wanted: &str| {
        let address = cluster.places[at].client.to_string();
        until(wanted, PATIENCE, || {
            let (_, out, err) = cluster.members(&[&["add", &address], more].concat());
            (out + &err).contains(wanted).then_some(())
        });
    };
    let four = cluster.add_place("cells = 2");
    added(&cluster, four, &["--cell", "0"], "cell 0: node 4 is a learner");
    let five = cluster.add_place("cells = 2");
    for more in [&[][..], &["--cell", "1"]] {
        added(&cluster, five, more, "node 4 is a member of cell 0 and not of cell 1");
    }
    let out = cluster.must(&["remove", "4"]);
    assert!(out.contains("cell 0: node 4 is removed, for ever"), "{out}");
    assert!(out.contains("cell 1: node 4 has never been a member; passed over"), "{out}");
    assert!(out.contains("does not end by itself: stop it"), "{out}");
    cluster.kill(four);
    added(&cluster, five, &[], "cell 1: node 5 is a learner");
    // Also of the one that has left the id out.
    let out = cluster.must(&["remove", "4"]);
    assert_eq!(out.matches("node 4 is no member, and cannot become one").count(), 2, "{out}");
    let (is_done, _, err) = cluster.members(&["remove", "9"]);
    assert!(!is_done && err.contains("node 9 is no member of this cell; nothing was changed"), "{err}");
}

#[test]
fn a_cell_without_a_leader_is_not_passed_over_by_the_word_of_one_that_knows_less() {
    let mut cluster = Cluster::format(3, 2, "cells = 2");
    cluster.start_all();
    let four = cluster.add_place("cells = 2");
    let address = cluster.places[four].client.to_string();
    until("the new node is there", PATIENCE, || cluster.members(&["add", &address]).0.then_some(()));
    let waits = cluster.add_place("cells = 2");
    cluster.kill(cluster.leader(CellId(1)));
    let endpoints = format!("{},{address}", cluster.places[waits].client);
    let (status, out, err) = run(["members", "remove", "4", "--endpoints", &endpoints]);
    assert!(status.success(), "{err}");
    for cell in 0..2 {
        assert!(out.contains(&format!("cell {cell}: node 4 is removed, for ever")), "{out}");
    }
    let (status, said) = cluster.wait(four, PATIENCE);
    assert_eq!(status.code(), Some(70), "{said}");
}

/// It has met one cell, and is configured as if it had been there at the birth of the other one.
#[test]
fn a_node_that_waits_to_join_one_cell_alone_is_not_added() {
    let mut cluster = Cluster::format(3, 1, "cells = 2");
    cluster.start_all();
    for cell in 0..2 {
        cluster.leader(CellId(cell));
    }
    let new = cluster.add_place("cells = 1");
    await_said(&mut cluster, new, "this node waits to be added");
    cluster.kill(new);
    let place = &cluster.places[new];
    std::fs::write(&place.config, config(place, &cluster.places, "cells = 2"))
        .expect("a file can be written");
    let address = place.client.to_string();
    cluster.start_node(new);
    let refused = until("it is refused", PATIENCE, || {
        let (is_done, _, err) = cluster.members(&["add", &address]);
        assert!(!is_done, "{err}");
        err.contains("does not wait to join").then_some(err)
    });
    assert!(refused.contains("nothing was changed"), "{refused}");
    for cell in 0..2 {
        assert_eq!(cluster.voters(cell), [1, 2, 3]);
    }
}

/// One of the two that would have to agree stands still, and is not missed yet.
#[test]
fn a_removal_that_may_come_about_yet_is_not_said_to_be_not_executed() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader(CELL);
    let (still, removed) = ((leader + 1) % 3, (leader + 2) % 3);
    let id = cluster.places[removed].id.to_string();
    cluster.process(still).stand_still();
    let (is_done, out, err) = cluster.members(&["remove", &id, "--timeout", "3s"]);
    cluster.process(still).signal(Signal::CONT);
    assert!(!is_done, "{out}");
    assert!(err.contains("whether it was executed is not known"), "{err}");
    until("it has come about", PATIENCE, || (cluster.voters(0).len() == 2).then_some(()));
}

#[test]
fn a_member_that_moves_is_found_where_it_is() {
    let mut cluster = Cluster::start(3);
    let load = Load::start(&cluster.endpoints(), "load");
    load.await_successes(20);
    let moved = (cluster.leader(CELL) + 1) % 3;
    let (client, peer) = (free_port(), free_port());
    let id = cluster.places[moved].id.to_string();
    cluster.must(&["move", &id, "--peer", &peer.to_string(), "--client", &client.to_string()]);
    cluster.kill(moved);
    (cluster.places[moved].client, cluster.places[moved].peer) = (client, peer);
    let place = &cluster.places[moved];
    // The others keep their configurations, in which it is where it was.
    std::fs::write(&place.config, config(place, &cluster.places, "")).expect("a file can be written");
    cluster.start_node(moved);
    cluster.await_caught_up(moved, CELL);
    // Who starts again has only the log to know it by.
    let other = (moved + 1) % 3;
    let third = (moved + 2) % 3;
    cluster.kill(third);
    cluster.kill(other);
    cluster.start_node(other);
    until("the two agree on a leader", PATIENCE, || cluster.leader_among(&[moved, other], CELL));
    let listed = cluster.listed(0);
    assert_eq!(listed[moved]["client"], client.to_string());
    load.await_successes(20);
    cluster.start_node(third);
    cluster.await_caught_up(third, CELL);
    load.finish();
    cluster.agree(CELL);
}

#[test]
fn what_would_stop_the_cell_is_refused_with_the_reason() {
    let mut cluster = Cluster::format(3, 2, "cells = 3");
    cluster.start_all();
    for cell in 0..3 {
        cluster.leader(CellId(cell));
    }
    let new = cluster.add_place("cells = 3");
    let address = cluster.places[new].client.to_string();
    until("the new node is there", PATIENCE, || cluster.members(&["add", &address]).0.then_some(()));
    // In every cell, and asked for again it is no failure.
    let out = cluster.must(&["add", &address]);
    assert_eq!(out.lines().count(), 3, "{out}");
    assert!(out.lines().all(|line| line.contains("node 4 is a learner")), "{out}");
    // One that the cluster began with is listed without addresses.
    let first = cluster.places[0].client.to_string();
    let out = cluster.must(&["add", &first]);
    assert!(out.lines().all(|line| line.contains("node 1 is a member already, with a vote")), "{out}");
    let [peer, client] = [cluster.places[1].peer, cluster.places[1].client].map(|it| it.to_string());
    let (is_done, _, err) = cluster.members(&["move", "1", "--peer", &peer, "--client", &client]);
    assert!(!is_done && err.contains("node 2 serves at one of the addresses of node 1 already"), "{err}");
    assert!(err.contains("nothing was changed"), "{err}");
    cluster.kill(new);
    std::thread::sleep(Duration::from_millis(1_500));
    let begun = Instant::now();
    let (is_done, _, err) = cluster.members(&["promote", "4", "--wait", "3s"]);
    let said: Vec<&str> = err.lines().filter(|line| line.contains("node 4 is not heard")).collect();
    assert!(!is_done && said.len() == 2 && said[0].ends_with("; trying again for 2 s"), "{err}");
    let waited = begun.elapsed();
    assert!((Duration::from_secs(3)..Duration::from_secs(10)).contains(&waited), "{waited:?} of 3s");
    let victim = (cluster.leader(CELL) + 1) % 3;
    cluster.kill(victim);
    std::thread::sleep(Duration::from_millis(1_500));
    let other = (0..3).find(|at| *at != victim && *at != cluster.leader(CELL)).expect("there is a third");
    let id = cluster.places[other].id.to_string();
    let (is_done, _, err) = cluster.members(&["remove", &id, "--cell", "0"]);
    assert!(!is_done && err.contains("which is no majority"), "{err}");
    let (is_done, _, err) = cluster.members(&["--cell", "3"]);
    assert!(!is_done && err.contains("3 cells"), "{err}");
}
