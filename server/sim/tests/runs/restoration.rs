//! Clusters that are lost and restored from a backup. The judges look on in all of them: no token comes again, nobody
//! believes in what somebody else holds, nothing is granted while the cell is quiet, and no old session is acknowledged.
//! What a test asserts comes on top.

use lockstep_sim::mark::Mark;
use lockstep_sim::world::World;
use lockstep_sim::world::fault::Fault;
use lockstep_sim::world::plan::Plan;
use lockstep_sim::world::schedule::MS;

use crate::scenarios::{CELL, at_work, leader, pass, rest};

const QUIET_MS: u64 = 60_000;

fn count(world: &World, mark: Mark) -> u64 {
    world.summary().marks.count(mark)
}

/// Clients that are at their locks most of the time, with TTLs that outlast what a restore takes.
fn holding(plan: &mut Plan) {
    plan.workload.clients = 5;
    plan.workload.ttl_ms = (15_000, 20_000);
    plan.workload.think_mean = 30 * MS;
    plan.workload.hold_mean = 300 * MS;
}

/// Has a node take a snapshot, and lets the cell go past it.
fn back_up(world: &mut World, node: usize) {
    world.act(&Fault::Snapshot(node));
    pass(world, 2_000);
}

#[test]
fn clients_of_a_cell_that_went_back_find_out_at_once_and_go_on_when_it_grants_again() {
    for seed in 1..=6 {
        let mut world = at_work(seed, holding);
        let node = leader(&mut world);
        back_up(&mut world, node);
        let entries = world.applied(node, CELL);
        assert!(world.act(&Fault::Restore { node, is_older: false }), "seed {seed}: there is a backup");
        let new = leader(&mut world);
        assert!(world.applied(new, CELL) < entries, "seed {seed}: what came after the backup is gone");
        pass(&mut world, 5_000);
        assert!(world.is_quiet(CELL), "seed {seed}");
        assert_eq!(
            world.live_sessions(CELL),
            5,
            "seed {seed}: everybody has found out, and has another session"
        );
        // Nobody gets anything, however long he asks, and who believed in the old cell has stopped.
        pass(&mut world, 25_000);
        assert_eq!((world.held(), world.is_quiet(CELL)), (Vec::new(), true), "seed {seed}");
        let writes = world.summary().writes;
        pass(&mut world, QUIET_MS - 31_000);
        assert_eq!(world.summary().writes, writes, "seed {seed}: nothing is granted");
        pass(&mut world, 5_000);
        assert!(!world.is_quiet(CELL) && world.summary().writes > writes + 10, "seed {seed}: it goes on");
        assert_eq!((count(&world, Mark::CellRestored), count(&world, Mark::GrantedAfterQuiet)), (1, 1));
        rest(world);
    }
}

#[test]
fn a_quiet_time_that_a_change_of_leader_interrupts_begins_anew() {
    let mut world = at_work(7, holding);
    let node = leader(&mut world);
    back_up(&mut world, node);
    assert!(world.act(&Fault::Restore { node, is_older: false }));
    pass(&mut world, QUIET_MS - 5_000);
    let old = leader(&mut world);
    world.act(&Fault::Kill(old));
    pass(&mut world, 1_000);
    world.act(&Fault::Start(old));
    pass(&mut world, QUIET_MS - 5_000);
    assert!(world.is_quiet(CELL), "the next leader knows of no time but its own");
    pass(&mut world, 10_000);
    assert!(!world.is_quiet(CELL));
    rest(world);
}

#[test]
fn a_cell_is_restored_twice_and_from_the_backup_before_the_last() {
    for seed in 1..=3 {
        let mut world = at_work(seed, holding);
        let node = leader(&mut world);
        back_up(&mut world, node);
        back_up(&mut world, node);
        assert!(world.act(&Fault::Restore { node, is_older: true }), "seed {seed}");
        pass(&mut world, 70_000);
        let node = leader(&mut world);
        back_up(&mut world, node);
        assert!(world.act(&Fault::Restore { node, is_older: false }), "seed {seed}");
        // Again before it was born, and while it is quiet.
        assert!(world.act(&Fault::Restore { node, is_older: false }), "seed {seed}");
        pass(&mut world, 5_000);
        assert!(world.act(&Fault::Restore { node, is_older: true }), "seed {seed}");
        pass(&mut world, 1_000);
        assert_eq!(count(&world, Mark::CellRestored), 4, "seed {seed}");
        rest(world);
    }
}
