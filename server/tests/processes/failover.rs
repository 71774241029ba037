//! Leaders that die, and leaders that go in order, under load.

use std::time::{Duration, Instant};

use lockstep_wire::CellId;
use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::load::Load;

const CELL: CellId = CellId(0);
/// The longest time without a success that a user has to bear when a leader dies.
const GAP_MAX: Duration = Duration::from_secs(1);

/// How the leader goes.
#[derive(Clone, Copy, Debug)]
enum Exit {
    Killed,
    InOrder,
}

/// Sends the leader away under load, again and again; what was acknowledged stays, and the pause is short.
fn leaders_go(nodes: u16, rounds: usize, exit: Exit) {
    let mut cluster = Cluster::start(nodes);
    let load = Load::start(&cluster.endpoints(), "load");
    let mut gaps = Vec::new();
    for _ in 0..rounds {
        load.await_successes(100);
        let leader = cluster.leader(CELL);
        let began = Instant::now();
        match exit {
            Exit::Killed => drop(cluster.kill(leader)),
            Exit::InOrder => {
                cluster.process(leader).signal(Signal::TERM);
                let (status, complained) = cluster.wait(leader, Duration::from_secs(5));
                assert!(status.success(), "an orderly stop ends with {status}: {complained}");
            }
        }
        load.await_successes(100);
        // Long enough that a gap of a whole second would be seen whole.
        std::thread::sleep((began + GAP_MAX + GAP_MAX / 4).saturating_duration_since(Instant::now()));
        gaps.push(load.longest_gap(began, began + GAP_MAX + GAP_MAX / 4));
        load.verify_kept();
        cluster.start_node(leader);
        cluster.await_caught_up(leader, CELL);
    }
    let kept = load.verify_kept();
    println!("{exit:?}, {nodes} nodes: gaps {gaps:.0?}, {} successes, {kept} kept", load.successes());
    assert!(kept > 0, "the load keeps some locks");
    assert!(gaps.iter().all(|gap| *gap < GAP_MAX), "gaps {gaps:?}");
    load.finish();
    cluster.agree(CELL);
}

#[test]
fn a_leader_of_three_that_is_killed_is_replaced_at_once_and_nothing_is_lost() {
    leaders_go(3, 4, Exit::Killed);
}

#[test]
fn a_leader_of_five_that_is_killed_is_replaced_at_once_and_nothing_is_lost() {
    leaders_go(5, 3, Exit::Killed);
}

#[test]
fn a_leader_that_is_told_to_stop_hands_over_and_no_call_fails() {
    leaders_go(3, 3, Exit::InOrder);
}
