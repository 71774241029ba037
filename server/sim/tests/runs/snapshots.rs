//! Snapshots: members that need them, disks that lose them or have no room for them, and the logs that they keep short.
//! The judges look on in all of them; what a test asserts comes on top.

use lockstep_sim::mark::Mark;
use lockstep_sim::world::World;
use lockstep_sim::world::fault::{Cuts, Fault};
use lockstep_sim::world::network::Site;
use lockstep_sim::world::plan::Plan;
use lockstep_sim::world::schedule::MS;
use lockstep_sim::world::trace::Trace;

use crate::scenarios::{CELL, at_work, at_work_with, leader, links, pass, rest};

/// Clients that fill segment after segment, of a cell whose leaders have nothing but their disks for whoever was away.
fn busy(plan: &mut Plan) {
    plan.workload.clients = 6;
    plan.workload.think_mean = 5 * MS;
    plan.workload.hold_mean = 5 * MS;
    plan.disk_latency_mean = 2 * MS;
    plan.cache_bytes_max = 0;
}

fn installs(world: &World) -> u64 {
    world.summary().marks.count(Mark::SnapshotInstalled)
}

#[test]
fn a_follower_that_was_away_past_the_log_gets_one_snapshot_over_a_slow_link_and_nobody_campaigns() {
    for seed in 1..=4 {
        let mut world = at_work(seed, busy);
        let old = leader(&mut world);
        let away = (old + 1) % 3;
        world.act(&Fault::Kill(away));
        pass(&mut world, 6_000);
        let (term, elections, before) = (world.term(old, CELL), world.elections(), installs(&world));
        let slow: Cuts = links(&[(old, away)]);
        world.act(&Fault::Lag(slow, 20_000 * MS, 60 * MS));
        world.act(&Fault::Start(away));
        pass(&mut world, 10_000);
        assert_eq!(installs(&world), before + 1, "seed {seed}");
        assert_eq!((world.term(old, CELL), world.elections()), (term, elections), "seed {seed}");
        assert_eq!(world.summary().endings, 0, "seed {seed}: every client beats");
        rest(world);
    }
}

/// Rots the snapshots of a node, all of them as good as surely.
fn rot_snapshots(world: &mut World, node: usize) {
    for _ in 0..12 {
        world.act(&Fault::RotSnapshot(node));
    }
}

fn count(world: &World, words: &str) -> usize {
    world.lines().iter().filter(|line| line.contains(words)).count()
}

fn met(world: &World) -> u64 {
    world.summary().marks.count(Mark::RottenSnapshotMet)
}

#[test]
fn a_member_whose_snapshots_are_rotten_does_not_campaign_and_gets_that_of_its_leader() {
    for seed in 1..=4 {
        let mut world = at_work(seed, busy);
        pass(&mut world, 4_000);
        let old = leader(&mut world);
        let (rotten, late, term) = ((old + 1) % 3, (old + 2) % 3, world.term(old, CELL));
        // What is committed now the third member lacks, and cannot be elected; the rotten one could.
        world.act(&Fault::Kill(late));
        pass(&mut world, 300);
        world.act(&Fault::Kill(old));
        world.act(&Fault::Kill(rotten));
        rot_snapshots(&mut world, rotten);
        world.act(&Fault::Start(late));
        world.act(&Fault::Start(rotten));
        let (elections, before) = (world.elections(), installs(&world));
        pass(&mut world, 4_000);
        assert_eq!(met(&world), 2, "seed {seed}: neither of its two snapshots can be used");
        assert_eq!((world.term(rotten, CELL), world.elections()), (term, elections), "seed {seed}");
        world.act(&Fault::Start(old));
        pass(&mut world, 4_000);
        assert_eq!(leader(&mut world), old, "seed {seed}");
        assert_eq!(installs(&world), before + 1, "seed {seed}");
        rest(world);
    }
}

#[test]
fn a_member_alone_goes_on_from_the_older_snapshot_and_refuses_when_both_are_rotten() {
    let refusals = |world: &World| count(world, "is damaged and no other member has it");
    let mut went_on = 0;
    for seed in 1..=4 {
        let mut world = at_work_with(seed, Trace::kept(), |plan| {
            busy(plan);
            plan.nodes = 1;
        });
        assert!(world.act(&Fault::RotSnapshot(0)), "seed {seed}: there are snapshots");
        world.act(&Fault::Kill(0));
        world.act(&Fault::Start(0));
        let writes = world.summary().writes;
        pass(&mut world, 6_000);
        assert!(world.summary().writes > writes + 20, "seed {seed}: nothing was lost");
        went_on += met(&world);
        assert_eq!(refusals(&world), 0, "seed {seed}");
        rot_snapshots(&mut world, 0);
        world.act(&Fault::Kill(0));
        world.act(&Fault::Start(0));
        pass(&mut world, 3_000);
        assert!(refusals(&world) > 2, "seed {seed}: it says why, every time");
        assert!(world.leader(CELL).is_none(), "seed {seed}: there is nothing to lead from");
    }
    assert!(went_on > 0, "some newest snapshot was the rotten one");
}

#[test]
fn retries_have_one_outcome_at_a_leader_that_was_installed_and_at_one_that_was_restarted() {
    for seed in 1..=6 {
        let mut world = at_work(seed, |plan| {
            busy(plan);
            plan.workload.clients = 12;
            plan.workload.names = 12;
            plan.workload.ttl_ms = (10_000, 10_000);
        });
        let old = leader(&mut world);
        let next = (old + 1) % 3;
        world.act(&Fault::Kill(next));
        pass(&mut world, 9_000);
        // From now on no client hears what becomes of its requests.
        let unheard: Cuts = (0..12).map(|client| (Site::Node(old), Site::Client(client))).collect();
        let came_again = |world: &World| {
            let marks = world.summary().marks;
            (marks.count(Mark::AcquireCameAgain), marks.count(Mark::ReleaseCameAgain))
        };
        let before = installs(&world);
        world.act(&Fault::Cut(unheard.clone()));
        pass(&mut world, 100);
        let known = came_again(&world);
        // Their outcomes are in the snapshot that one member is given, or in those that all start from.
        if seed % 2 == 0 {
            world.act(&Fault::Start(next));
            pass(&mut world, 600);
            assert_eq!(installs(&world), before + 1, "seed {seed}");
            world.act(&Fault::Kill(old));
        } else {
            world.act(&Fault::Snapshot(old));
            world.act(&Fault::Snapshot(3 - old - next));
            pass(&mut world, 200);
            let started = world.summary().marks.count(Mark::StartedFromSnapshot);
            for node in [old, 3 - old - next] {
                world.act(&Fault::PowerLoss(node));
                world.act(&Fault::Start(node));
            }
            assert_eq!(world.summary().marks.count(Mark::StartedFromSnapshot), started + 2, "seed {seed}");
        }
        world.act(&Fault::Mend(unheard));
        pass(&mut world, 6_000);
        let again = came_again(&world);
        eprintln!("{seed} {known:?} {again:?}");
        world.act(&Fault::Start(old));
        world.act(&Fault::Start(next));
        rest(world);
    }
}
