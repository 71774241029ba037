//! Full disks: of one member, and of all. The judges look on in all of them; what a test asserts comes on top.

use lockstep_sim::mark::Mark;
use lockstep_sim::world::World;
use lockstep_sim::world::fault::Fault;
use lockstep_sim::world::plan::Plan;
use lockstep_sim::world::schedule::MS;

use crate::scenarios::{CELL, at_work, leader, pass, rest};

/// Clients that keep the log growing.
fn busy(plan: &mut Plan) {
    plan.workload.clients = 8;
    plan.workload.think_mean = 5 * MS;
    plan.workload.hold_mean = 5 * MS;
    plan.workload.shared_percent = 0;
    plan.workload.ttl_ms = (2_000, 2_000);
}

fn on_all(world: &mut World, fault: impl Fn(usize) -> Fault) {
    for node in 0..3 {
        world.act(&fault(node));
    }
}

fn refusals(world: &World) -> u64 {
    world.summary().marks.count(Mark::NoSpaceTold)
}

#[test]
fn full_disks_end_no_session_refuse_what_is_new_and_need_no_repair() {
    for seed in 1..=5 {
        let mut world = at_work(seed, busy);
        // Whatever a log gives back, an old snapshot above all, somebody else takes.
        for _ in 0..100 {
            on_all(&mut world, |node| Fault::FullDisk(node, 0));
            pass(&mut world, 100);
        }
        let full = world.summary();
        assert!(refusals(&world) > 20, "seed {seed}");
        assert_eq!(full.endings, 0, "seed {seed}: beats are answered all the time");
        assert_eq!(world.held().len(), 0, "seed {seed}: what was held is given back, and nothing is granted");
        on_all(&mut world, Fault::Room);
        pass(&mut world, 2_500);
        assert!(world.summary().writes > full.writes + 20, "seed {seed}: it goes on once there is room");
        let over = refusals(&world);
        pass(&mut world, 5_000);
        assert_eq!((refusals(&world), world.summary().endings), (over, 0), "seed {seed}");
        rest(world);
    }
}

#[test]
fn one_full_disk_stops_nobody_whosever_it_is() {
    for seed in 1..=6 {
        let mut world = at_work(seed, busy);
        let full = (leader(&mut world) + usize::try_from(seed % 2).unwrap()) % 3;
        world.act(&Fault::FullDisk(full, 0));
        pass(&mut world, 6_000);
        assert_ne!(leader(&mut world), full, "seed {seed}: the office is with a member that has space");
        let (before, refused) = (world.summary(), refusals(&world));
        pass(&mut world, 5_000);
        assert!(world.summary().writes > before.writes + 100, "seed {seed}");
        assert!(world.summary().marks.count(Mark::GrantedBesideFullDisk) > 0, "seed {seed}");
        assert_eq!((refusals(&world), world.summary().endings), (refused, 0), "seed {seed}");
        rest(world);
    }
}

#[test]
fn full_disks_cost_nothing_that_was_acknowledged_and_a_start_needs_no_room() {
    for seed in 1..=3 {
        let mut world = at_work(seed, |plan| {
            busy(plan);
            plan.workload.ttl_ms = (20_000, 20_000);
        });
        on_all(&mut world, |node| Fault::FullDisk(node, 0));
        pass(&mut world, 10_000);
        let full = world.summary();
        world.act(&Fault::Kill(0));
        world.act(&Fault::Start(0));
        pass(&mut world, 3_000);
        assert!(world.is_running(0), "seed {seed}");
        assert!(world.summary().marks.count(Mark::StartedFull) > 0, "seed {seed}");
        let refused = refusals(&world);
        pass(&mut world, 3_000);
        assert!(world.leader(CELL).is_some() && refusals(&world) > refused, "seed {seed}: it knows soon");
        on_all(&mut world, Fault::Room);
        pass(&mut world, 8_000);
        assert!(world.summary().writes > full.writes + 20, "seed {seed}: it goes on once there is room");
        rest(world);
    }
}
