//! More faults that users of other systems have met: members that live and are of no use, and more work than a cell
//! can do. The judges look on in all of them; what a test asserts comes on top.

use lockstep_sim::mark::Mark;
use lockstep_sim::world::World;
use lockstep_sim::world::fault::{Cuts, Fault, cut_both};
use lockstep_sim::world::network::Site;
use lockstep_sim::world::plan::Plan;
use lockstep_sim::world::schedule::MS;

use super::scenarios::{CELL, at_work, leader, pass, rest};

/// Links between a node and all others; its clients reach it.
fn alone_among_nodes(node: usize, nodes: usize) -> Cuts {
    let mut cuts = Cuts::new();
    for other in (0..nodes).filter(|other| *other != node) {
        cut_both(&mut cuts, Site::Node(node), Site::Node(other));
    }
    cuts
}

/// As many clients as make a slow disk fall behind.
fn many_clients(plan: &mut Plan) {
    plan.workload.clients = 10;
    plan.workload.tasks = 2;
    plan.workload.ttl_ms = (3_000, 3_000);
    plan.workload.names = 20;
    plan.workload.think_mean = 10 * MS;
    plan.workload.hold_mean = 10 * MS;
}

fn writes_within(world: &mut World, ms: u64) -> u64 {
    let before = world.summary().writes;
    pass(world, ms);
    world.summary().writes - before
}

#[test]
fn clients_leave_a_member_that_lives_and_has_lost_its_cell_and_keep_their_sessions() {
    for seed in 1..=4 {
        let mut world = at_work(seed, |plan| plan.workload.ttl_ms = (5_000, 5_000));
        let sessions = world.live_sessions(CELL);
        // All clients are with the leader. It lives, answers them, and can do nothing for them any more.
        let old = leader(&mut world);
        let cuts = alone_among_nodes(old, 3);
        world.act(&Fault::Cut(cuts.clone()));
        pass(&mut world, 3_000);
        assert_ne!(leader(&mut world), old, "seed {seed}");
        assert!(writes_within(&mut world, 1_000) > 0, "seed {seed}: they have moved within 3 s");
        pass(&mut world, 6_000);
        assert!(!world.claims_to_lead(old, CELL), "seed {seed}: it has stepped down");
        assert_eq!((world.summary().endings, world.live_sessions(CELL)), (0, sessions), "seed {seed}");
        world.act(&Fault::Mend(cuts));
        rest(world);
    }
}

#[test]
fn more_work_than_slow_disks_can_do_ends_no_session_and_is_over_with_its_cause() {
    for seed in 1..=2 {
        let mut world = at_work(seed, many_clients);
        let sessions = world.live_sessions(CELL);
        let before = writes_within(&mut world, 1_000);
        for node in 0..3 {
            world.act(&Fault::SlowDisk(node, 5_000 * MS, 250 * MS));
        }
        let meanwhile = writes_within(&mut world, 5_000) / 5;
        assert!(meanwhile < before, "seed {seed}: {meanwhile} a second on slow disks, {before} on good ones");
        // Beats have their own lane: nobody is lost, although every call takes long.
        assert_eq!((world.summary().endings, world.live_sessions(CELL)), (0, sessions), "seed {seed}");
        pass(&mut world, 1_000);
        let after = writes_within(&mut world, 1_000);
        assert!(after * 2 > before, "seed {seed}: {after} a second afterwards, {before} before");
        rest(world);
    }
}

#[test]
fn a_follower_that_cannot_keep_up_costs_nobody_the_leader() {
    for seed in 1..=2 {
        let mut world = at_work(seed, many_clients);
        let first = leader(&mut world);
        let term = world.term(first, CELL);
        let slow = (first + 1) % 3;
        world.act(&Fault::SlowDisk(slow, 5_000 * MS, 400 * MS));
        let elections = world.elections();
        pass(&mut world, 5_000);
        assert_eq!(world.elections(), elections, "seed {seed}");
        assert_eq!((world.leader(CELL), world.term(first, CELL)), (Some(first), term), "seed {seed}");
        assert_eq!(world.summary().endings, 0, "seed {seed}");
        rest(world);
    }
}

/// Reads and keep-alives go on meanwhile, so nothing but the clock ends the attempt.
#[test]
fn a_transfer_to_a_member_that_hears_nothing_is_given_up_and_writes_resume() {
    for seed in 1..=10 {
        let mut world = at_work(seed, |plan| plan.workload.read_percent = 30);
        let old = leader(&mut world);
        let (to, term) = ((old + 1) % 3, world.term(old, CELL));
        let deaf = vec![(Site::Node(old), Site::Node(to))];
        world.act(&Fault::Cut(deaf.clone()));
        let aborted = world.summary().marks.count(Mark::TransferAborted);
        assert!(world.act(&Fault::Transfer(old, Some(to))), "seed {seed}: it begins");
        pass(&mut world, 1_050);
        assert_eq!(world.summary().marks.count(Mark::TransferAborted), aborted + 1, "seed {seed}");
        assert_eq!((world.leader(CELL), world.term(old, CELL)), (Some(old), term), "seed {seed}");
        let written = world.summary().entries;
        pass(&mut world, 500);
        assert!(world.summary().entries > written, "seed {seed}: writes resume");
        assert_eq!(world.summary().endings, 0, "seed {seed}: every client beats");
        world.act(&Fault::Mend(deaf));
        pass(&mut world, 2_000);
        let from = leader(&mut world);
        let to = (from + 1) % 3;
        assert!(world.act(&Fault::Transfer(from, Some(to))), "seed {seed}: it begins");
        pass(&mut world, 500);
        assert_eq!(world.leader(CELL), Some(to), "seed {seed}: a later one works");
        assert!(world.summary().marks.count(Mark::TransferSucceeded) > 0);
        rest(world);
    }
}
