//! Leaders that die, and leaders that go in order, under load.

use std::time::{Duration, Instant};

use lockstep_wire::CellId;
use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::load::Load;

const CELL: CellId = CellId(0);
/// The longest time without a success that a user has to bear when a leader dies.
const GAP_MAX: Duration = Duration::from_secs(1);

/// How long it may take to notice that a leader is silent, and to replace it.
const STANDSTILL_GAP_MAX: Duration = Duration::from_secs(2);

/// How the leader goes.
#[derive(Clone, Copy, Debug)]
enum Exit {
    /// Its process dies.
    Killed,
    /// Its process and that of another member die at once.
    KilledWithAnother,
    /// It is told to stop.
    InOrder,
    /// It stands still, and goes on once it has been replaced.
    StandsStill,
}

impl Exit {
    /// The longest time without a success that it may cost.
    fn gap_max(self) -> Duration {
        match self {
            Exit::Killed | Exit::KilledWithAnother | Exit::InOrder => GAP_MAX,
            Exit::StandsStill => STANDSTILL_GAP_MAX,
        }
    }
}

/// Sends the leader away under load, again and again; what was acknowledged stays, and the pause is short.
fn leaders_go(nodes: u16, rounds: usize, exit: Exit) {
    let mut cluster = Cluster::start(nodes);
    let load = Load::start(&cluster.endpoints(), "load");
    let mut gaps = Vec::new();
    for _ in 0..rounds {
        load.await_successes(100);
        let leader = cluster.leader(CELL);
        let another = (leader + 1) % usize::from(nodes);
        let began = Instant::now();
        match exit {
            Exit::Killed => drop(cluster.kill(leader)),
            Exit::KilledWithAnother => {
                cluster.process(another).signal(Signal::KILL);
                drop((cluster.kill(leader), cluster.kill(another)));
            }
            Exit::InOrder => {
                cluster.process(leader).signal(Signal::TERM);
                let (status, complained) = cluster.wait(leader, Duration::from_secs(5));
                assert!(status.success(), "an orderly stop ends with {status}: {complained}");
            }
            Exit::StandsStill => cluster.process(leader).stand_still(),
        }
        load.await_successes(100);
        // Long enough that a gap of the greatest length would be seen whole.
        let watched = exit.gap_max() + exit.gap_max() / 4;
        std::thread::sleep((began + watched).saturating_duration_since(Instant::now()));
        gaps.push(load.longest_gap(began, began + watched));
        load.verify_kept();
        match exit {
            Exit::StandsStill => cluster.process(leader).signal(Signal::CONT),
            Exit::Killed | Exit::KilledWithAnother | Exit::InOrder => cluster.start_all(),
        }
        cluster.await_caught_up(leader, CELL);
        cluster.await_caught_up(another, CELL);
        load.verify_kept();
    }
    let kept = load.verify_kept();
    println!("{exit:?}, {nodes} nodes: gaps {gaps:.0?}, {} successes, {kept} kept", load.successes());
    assert!(kept > 0, "the load keeps some locks");
    assert!(gaps.iter().all(|gap| *gap < exit.gap_max()), "gaps {gaps:?}");
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
fn two_of_five_that_are_killed_at_once_are_not_missed() {
    leaders_go(5, 2, Exit::KilledWithAnother);
}

#[test]
fn a_leader_that_stands_still_under_load_is_replaced_and_nothing_is_lost() {
    leaders_go(3, 2, Exit::StandsStill);
}

#[test]
fn a_leader_that_is_told_to_stop_hands_over_and_no_call_fails() {
    leaders_go(3, 3, Exit::InOrder);
}
