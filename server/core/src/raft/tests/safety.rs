//! Random runs: loss, duplication, reordering, partitions, crashes and slow disks, then a healed network
//! that has to make progress. The oracles of [`super::cluster`] watch every step.

use lockstep_wire::NodeId;

use super::super::Urgency;
use super::cluster::{Cluster, Faults};
use crate::Span;

#[test]
fn no_run_breaks_an_invariant_and_every_healed_cell_makes_progress() {
    let mut reached = Reached::default();
    for seed in 0..900 {
        reached.add(&run(3, seed));
    }
    for seed in 900..1_200 {
        reached.add(&run(5, seed));
    }
    println!("{reached:?}");
    let Reached { committed, leaders, rounds, truncations, conflicts, deposed, handed_over, log_reads } =
        reached;
    let least = committed.min(leaders).min(rounds).min(truncations).min(conflicts);
    let least = least.min(deposed).min(handed_over).min(log_reads);
    assert!(least > 100, "a rare branch was not reached: {reached:?}");
}

/// Marks that prove that the runs got to the rare branches.
#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    committed: usize,
    leaders: usize,
    rounds: usize,
    truncations: usize,
    conflicts: usize,
    deposed: usize,
    handed_over: usize,
    log_reads: usize,
}

impl Reached {
    fn add(&mut self, cluster: &Cluster) {
        let oracle = cluster.oracle();
        self.committed += oracle.committed.len();
        self.leaders += oracle.leaders.len();
        self.rounds += oracle.rounds_confirmed;
        self.truncations += oracle.truncations;
        self.conflicts += oracle.conflicts;
        self.deposed += oracle.deposed;
        self.handed_over += oracle.handed_over;
        self.log_reads += cluster.members.iter().map(|member| member.log_reads).sum::<usize>();
    }
}

fn run(count: u16, seed: u64) -> Cluster {
    let mut cluster = Cluster::new(count, seed);
    // Now and then so little memory that followers are served from the disk.
    let has_small_cache = seed.is_multiple_of(3);
    cluster.cache_bytes_max = if has_small_cache { 0 } else { 1 << 20 };
    cluster.start_all();
    cluster.run_until_serving(Span::from_ms(5_000));
    let percent = |cluster: &mut Cluster| cluster.random.below(12);
    cluster.faults = Faults {
        drop: 1 + percent(&mut cluster),
        duplicate: percent(&mut cluster),
        delay: percent(&mut cluster),
    };
    for member in 0..usize::from(count) {
        let slow = if cluster.random.is_percent(20) { 50_000_000 } else { 500_000 };
        cluster.members[member].disk_delay = Span(50_000 + cluster.random.below(slow));
    }
    for turn in 0..120 {
        disturb(&mut cluster, count);
        for node in cluster.nodes() {
            if cluster.is_paused(node) {
                continue;
            }
            if cluster.random.is_percent(70) {
                let mut payload = format!("{seed}.{turn}.{node}").into_bytes();
                payload.resize(if has_small_cache { 9_000 } else { payload.len() }, b' ');
                cluster.propose(node, &payload);
            }
            if cluster.random.is_percent(40) {
                let urgency = if cluster.random.is_percent(50) { Urgency::Now } else { Urgency::Paced };
                cluster.ask_round(node, urgency);
            }
        }
        let span = Span(cluster.random.below(120_000_000));
        cluster.run_for(span);
    }
    cluster.check_logs_match();
    heal_and_demand_progress(&mut cluster, seed);
    cluster
}

fn disturb(cluster: &mut Cluster, count: u16) {
    let pick = |cluster: &mut Cluster| NodeId(1 + u16::try_from(cluster.random.below(count.into())).unwrap());
    let (a, b) = (pick(cluster), pick(cluster));
    match cluster.random.below(27) {
        0 | 1 if cluster.member(a.0).raft.is_some() => cluster.crash(a),
        2..=5 if cluster.member(a.0).raft.is_none() => cluster.start(a),
        6 => cluster.isolate(a),
        7 => drop(cluster.cut.insert((a, b))),
        8..=10 => cluster.cut.clear(),
        11 if a != b => cluster.disconnect(a, b, false),
        12 if a != b => cluster.disconnect(a, b, true),
        13..=15 if a != b && cluster.member(a.0).raft.is_some() && cluster.member(b.0).raft.is_some() => {
            cluster.connect(a, b);
        }
        16 if !cluster.is_paused(a) => {
            cluster.step(a, |raft, now, fx| raft.transfer(b, now, fx));
        }
        17 => cluster.member(a.0).is_disk_stuck = true,
        18 | 19 => cluster.unstick_disk(a.0),
        20 | 21 => {
            let pause = Span(cluster.random.below(3_000_000_000));
            cluster.member(a.0).paused_until = cluster.now + pause;
        }
        _ => {}
    }
}

fn heal_and_demand_progress(cluster: &mut Cluster, seed: u64) {
    cluster.faults = Faults::default();
    cluster.cut.clear();
    for node in cluster.nodes() {
        if cluster.member(node.0).raft.is_none() {
            cluster.start(node);
        }
        cluster.member(node.0).paused_until = cluster.now;
        cluster.unstick_disk(node.0);
        cluster.member(node.0).disk_delay = Span(100_000);
    }
    for a in cluster.nodes() {
        for b in cluster.nodes() {
            if a < b {
                cluster.connect(a, b);
            }
        }
    }
    cluster.run_for(Span::from_ms(10_000));
    let leader = cluster.serving_leader().unwrap_or_else(|| panic!("seed {seed}: nobody serves"));
    let index = cluster.propose(leader, b"last").unwrap_or_else(|| panic!("seed {seed}: no proposal"));
    cluster.run_for(Span::from_ms(1_000));
    for node in cluster.nodes() {
        assert_eq!(cluster.raft(node.0).durable(), index, "seed {seed}: node {node} has everything");
        assert_eq!(cluster.member(node.0).applied, index.0, "seed {seed}: node {node} applied everything");
    }
    cluster.check_logs_match();
}
