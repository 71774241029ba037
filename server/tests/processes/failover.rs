//! Leaders that die, and leaders that go in order, under load.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_wire::CellId;
use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::load::Load;
use crate::process::run;
use crate::{PATIENCE, directory, number_in, until};

const CELL: CellId = CellId(0);
/// Longer than a majority takes to elect a leader, and shorter than a command waits for one.
const WITHOUT_LEADER: Duration = Duration::from_secs(4);
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
fn leaders_go(nodes: u16, rounds: u64, exit: Exit) {
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
    gaps.sort_unstable();
    let (half, worst) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    println!(
        "{exit:?}, {nodes} nodes, {rounds} times: the longest gap is {half:.0?} at p50, {worst:.0?} at worst"
    );
    println!("  all of them: {gaps:.0?}; {} successes, {kept} kept", load.successes());
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
    leaders_go(5, number_in("LOCKSTEP_KILLS").unwrap_or(3), Exit::Killed);
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

/// Every node is told to stop and started again, one after the other and the leader first, as an upgrade may do it.
#[test]
fn a_rolling_restart_of_five_under_load_fails_no_call_and_loses_no_session() {
    let mut cluster = Cluster::start(5);
    let load = Load::start(&cluster.endpoints(), "rolling");
    let first = cluster.leader(CELL);
    for at in (0..5).map(|number| (first + number) % 5) {
        load.await_successes(100);
        cluster.process(at).signal(Signal::TERM);
        let (status, complained) = cluster.wait(at, Duration::from_secs(5));
        assert!(status.success(), "an orderly stop ends with {status}: {complained}");
        load.await_successes(100);
        cluster.start_node(at);
        cluster.await_caught_up(at, CELL);
    }
    let kept = load.verify_kept();
    assert!(kept > 0, "the load keeps some locks");
    load.finish();
    cluster.agree(CELL);
}

/// `lockstep transfer-leader`: exit code, stdout, stderr.
fn transfer(cluster: &Cluster, more: &[&str]) -> (Option<i32>, String, String) {
    let endpoints: Vec<String> = cluster.endpoints().iter().map(ToString::to_string).collect();
    let (status, said, complained) =
        run(["transfer-leader", "--endpoints", &endpoints.join(",")].iter().chain(more));
    (status.code(), said, complained)
}

#[test]
fn leadership_goes_where_the_operator_wants_it_and_no_call_fails() {
    let mut cluster = Cluster::start(3);
    let load = Load::start(&cluster.endpoints(), "moved");
    for _ in 0..4 {
        load.await_successes(100);
        let (from, to) = (cluster.leader(CELL), (cluster.leader(CELL) + 1) % 3);
        let (code, said, complained) = transfer(&cluster, &["--to", &(to + 1).to_string()]);
        assert_eq!(code, Some(0), "{said}{complained}");
        assert!(said.starts_with(&format!("cell 0: node {} leads in term ", to + 1)), "{said}");
        assert!(said.ends_with(&format!(", in place of node {}\n", from + 1)), "{said}");
        assert_eq!(cluster.leader(CELL), to);
    }
    let from = cluster.leader(CELL);
    let said = cluster.process(from).complained();
    assert!(
        said.contains("INFO not leading any more, as planned") && !said.contains("WARN not leading"),
        "{said}"
    );
    let (code, said, _) = transfer(&cluster, &["--to", &(from + 1).to_string()]);
    assert_eq!((code, said.contains("leads already")), (Some(0), true), "{said}");
    let (code, said, complained) = transfer(&cluster, &["--json"]);
    assert_eq!(code, Some(0), "{complained}");
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(json["from"], from + 1);
    assert_ne!(json["leader"], json["from"]);

    // A member that stands still is linked and takes nothing over.
    let leading = cluster.leader(CELL);
    let still = (leading + 1) % 3;
    cluster.process(still).stand_still();
    let (code, _, complained) = transfer(&cluster, &["--to", &(still + 1).to_string()]);
    assert_eq!(code, Some(70), "{complained}");
    assert!(complained.contains(&format!("node {} ", still + 1)), "{complained}");
    // Nor does it keep anybody waiting who looks for the leader.
    let (code, said, complained) =
        transfer(&cluster, &["--to", &(leading + 1).to_string(), "--timeout", "1s"]);
    assert_eq!((code, said.contains("leads already")), (Some(0), true), "{said}{complained}");
    load.await_successes(100);
    let row = format!("  node {} ", still + 1);
    until("who stands still is not heard", PATIENCE, || {
        let (_, out, _) = cluster.members(&[]);
        out.lines().any(|line| line.starts_with(&row) && line.ends_with("  not heard")).then_some(())
    });
    let (code, _, complained) = transfer(&cluster, &["--to", &(still + 1).to_string()]);
    let wanted = format!("node {} is not heard by node {}; start it first", still + 1, leading + 1);
    assert_eq!((code, complained.contains(&wanted)), (Some(70), true), "{complained}");
    cluster.process(still).signal(Signal::CONT);
    let (code, _, complained) = transfer(&cluster, &["--to", "9"]);
    assert_eq!((code, complained.contains("no member of this cell")), (Some(70), true), "{complained}");
    let (code, _, complained) = transfer(&cluster, &["--cell", "9"]);
    assert_eq!((code, complained.contains("there is no cell 9")), (Some(2), true), "{complained}");
    load.verify_kept();
    load.finish();
    cluster.agree(CELL);
}

#[test]
fn who_asks_for_a_leader_waits_for_one() {
    let mut cluster = Cluster::start(3);
    let leading = cluster.leader(CELL);
    // The leader goes last: who is asked is never one of a majority.
    let (asked, gone) = ((leading + 1) % 3, [(leading + 2) % 3, leading]);
    for at in gone {
        cluster.kill(at);
    }
    let directory = directory();
    let backup = directory.path().join("backup");
    let endpoints = cluster.endpoints()[asked].to_string();
    let asking = |command: &[&str]| {
        let command: Vec<String> = command
            .iter()
            .chain(&["--timeout", "30s", "--endpoints", &endpoints])
            .map(ToString::to_string)
            .collect();
        thread::spawn(move || run(&command))
    };
    let saving = asking(&["snapshot", "save", backup.to_str().expect("a path of this test is UTF-8")]);
    let moving = asking(&["transfer-leader"]);
    thread::sleep(WITHOUT_LEADER);
    assert!(!saving.is_finished() && !moving.is_finished(), "one node of three has no leader");
    for at in gone {
        cluster.start_node(at);
    }
    let (status, said, complained) = saving.join().expect("it was run");
    assert_eq!(status.code(), Some(0), "{said}{complained}");
    // The new leader may find nobody yet who could take over.
    let (_, said, complained) = moving.join().expect("it was run");
    assert!(!complained.contains("nobody who was asked leads it"), "{said}{complained}");
}
