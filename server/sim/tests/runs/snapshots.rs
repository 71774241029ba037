//! Snapshots: members that need them, disks that lose them or have no room for them, and the logs that they keep short.
//! The judges look on in all of them; what a test asserts comes on top.

use lockstep_sim::mark::Mark;
use lockstep_sim::world::World;
use lockstep_sim::world::fault::{Cuts, Fault};
use lockstep_sim::world::network::Site;
use lockstep_sim::world::plan::Plan;
use lockstep_sim::world::schedule::MS;
use lockstep_sim::world::trace::Trace;
use lockstep_wal::disk::SegmentSequence;
use lockstep_wal::layout::LIVE_SEGMENTS_MAX;

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
    let refusals = |world: &World| count(world, "is damaged, and this node knows of no other member");
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

/// How often a request came again whose outcome was known: acquires, releases.
fn came_again(world: &World) -> (u64, u64) {
    let marks = world.summary().marks;
    (marks.count(Mark::AcquireCameAgain), marks.count(Mark::ReleaseCameAgain))
}

#[test]
fn retries_have_one_outcome_at_a_leader_that_was_installed_and_at_one_that_was_restarted() {
    const CLIENTS: usize = 20;
    let mut releases = 0;
    for seed in 1..=4 {
        let mut world = at_work(seed, |plan| {
            busy(plan);
            plan.workload.clients = CLIENTS;
            plan.workload.names = 20;
            plan.workload.ttl_ms = (10_000, 10_000);
        });
        let old = leader(&mut world);
        let (next, other) = ((old + 1) % 3, (old + 2) % 3);
        world.act(&Fault::Kill(next));
        pass(&mut world, 8_000);
        // From now on no client hears what becomes of its requests; and that is in the snapshots.
        let unheard: Cuts = (0..CLIENTS).map(|client| (Site::Node(old), Site::Client(client))).collect();
        world.act(&Fault::Cut(unheard.clone()));
        pass(&mut world, 60);
        world.act(&Fault::Snapshot(old));
        world.act(&Fault::Snapshot(other));
        pass(&mut world, 60);
        let (before, is_installed) = (came_again(&world), seed % 2 == 0);
        if is_installed {
            let installed = installs(&world);
            world.act(&Fault::Start(next));
            for _ in 0..30 {
                if installs(&world) == installed {
                    pass(&mut world, 50);
                }
            }
            assert_eq!(installs(&world), installed + 1, "seed {seed}");
            world.act(&Fault::Transfer(old, Some(next)));
            pass(&mut world, 300);
            assert_eq!(leader(&mut world), next, "seed {seed}");
        } else {
            let started = world.summary().marks.count(Mark::StartedFromSnapshot);
            for node in [old, other] {
                world.act(&Fault::PowerLoss(node));
                world.act(&Fault::Start(node));
            }
            assert_eq!(world.summary().marks.count(Mark::StartedFromSnapshot), started + 2, "seed {seed}");
        }
        world.act(&Fault::Mend(unheard));
        pass(&mut world, 6_000);
        let after = came_again(&world);
        assert!(after.0 > before.0, "seed {seed}: acquires come again");
        releases += after.1 - before.1;
        world.act(&Fault::Start(old));
        world.act(&Fault::Start(next));
        rest(world);
    }
    assert!(releases > 0, "releases come again, at those that were restarted");
}

/// As many as the log's own arithmetic allows, one that is being prepared included.
const SEGMENTS_MAX: u64 = LIVE_SEGMENTS_MAX + 1;

#[test]
fn an_idle_cell_beside_busy_ones_pins_no_segment() {
    for seed in 1..=3 {
        // Clients go to the cells by turns, so that the last cell has none.
        let mut world = at_work(seed, |plan| {
            busy(plan);
            plan.cells = 3;
            plan.workload.clients = 2;
            plan.workload.tasks = 4;
        });
        let mut most = 0;
        for _ in 0..40 {
            pass(&mut world, 500);
            most = (0..3).map(|node| world.segments(node).len() as u64).max().unwrap_or(0).max(most);
        }
        assert!(most <= SEGMENTS_MAX, "seed {seed}: {most}");
        let newest = (0..3).filter_map(|node| world.segments(node).into_iter().max()).min();
        assert!(newest > Some(SegmentSequence(2 * LIVE_SEGMENTS_MAX)), "seed {seed}: {newest:?} were filled");
        rest(world);
    }
}

#[test]
fn a_snapshot_for_which_a_full_disk_has_no_room_is_taken_once_there_is_room_again() {
    for seed in 1..=4 {
        let mut world = at_work(seed, busy);
        let full = (leader(&mut world) + usize::try_from(seed % 2).unwrap()) % 3;
        let without_room = |world: &World| world.summary().marks.count(Mark::SnapshotWithoutRoom);
        let before = without_room(&world);
        world.act(&Fault::FullDisk(full, 0));
        for _ in 0..6 {
            pass(&mut world, 500);
            world.act(&Fault::Snapshot(full));
        }
        pass(&mut world, 1_000);
        assert!(without_room(&world) > before, "seed {seed}");
        // What it has is enough to start from.
        world.act(&Fault::Kill(full));
        world.act(&Fault::Start(full));
        pass(&mut world, 2_000);
        assert!(world.is_running(full), "seed {seed}");
        world.act(&Fault::Room(full));
        pass(&mut world, 3_000);
        let (after, taken) = (without_room(&world), world.summary().marks.count(Mark::SnapshotTaken));
        pass(&mut world, 5_000);
        assert_eq!(without_room(&world), after, "seed {seed}");
        assert!(world.summary().marks.count(Mark::SnapshotTaken) > taken + 3, "seed {seed}");
        let segments = world.segments(full);
        assert!(segments.len() as u64 <= SEGMENTS_MAX, "seed {seed}: {segments:?}");
        rest(world);
    }
}
