//! Members that come and go, as an operator plays it. The judges look on in all of it; what a test asserts comes on top.

use lockstep_sim::mark::Mark;
use lockstep_sim::world::World;
use lockstep_sim::world::fault::Fault;
use lockstep_sim::world::operator::Change;
use lockstep_sim::world::plan::Plan;
use lockstep_sim::world::schedule::MS;

use crate::scenarios::{CELL, at_work, leader, links, pass, rest};

/// An operator of whom a test has all he does.
fn with_spares(plan: &mut Plan, spares: usize) {
    plan.spares = spares;
    plan.operator_gap_mean = u64::MAX / 4;
    plan.workload.clients = 6;
    plan.workload.think_mean = 5 * MS;
    plan.workload.hold_mean = 5 * MS;
    plan.disk_latency_mean = 2 * MS;
    plan.cache_bytes_max = 0;
}

fn count(world: &World, mark: Mark) -> u64 {
    world.summary().marks.count(mark)
}

/// Asks until it is so.
fn must_change(world: &mut World, change: &Change, is_so: impl Fn(&(Vec<usize>, Vec<usize>)) -> bool) {
    for _ in 0..100 {
        if is_so(&world.roster(CELL)) {
            return;
        }
        world.change_members(CELL, change);
        pass(world, 100);
    }
    panic!("{change:?} is not done: {:?}", world.roster(CELL));
}

fn must_add(world: &mut World, spare: usize) {
    world.join(spare);
    let addition = world.addition(spare);
    must_change(world, &addition, |(_, learners)| learners.contains(&spare));
    let promotion = Change::Promote(Plan::node_id(spare));
    must_change(world, &promotion, |(voters, _)| voters.contains(&spare));
}

fn must_remove(world: &mut World, node: usize) {
    if leader(world) == node {
        world.act(&Fault::Transfer(node, None));
        pass(world, 500);
    }
    must_change(world, &Change::Remove(Plan::node_id(node)), |(voters, _)| !voters.contains(&node));
}

#[test]
fn a_member_that_gets_a_snapshot_over_its_uncommitted_change_has_the_members_of_the_snapshot() {
    for seed in 1..=3 {
        let mut world = at_work(seed, |plan| with_spares(plan, 2));
        let old = leader(&mut world);
        let (one, other) = ((old + 1) % 3, (old + 2) % 3);
        let cuts = links(&[(old, one), (old, other), (old, 3), (old, 4)]);
        world.act(&Fault::Cut(cuts.clone()));
        // Two of three would be enough, if anybody else heard of it.
        assert!(world.ask_for(old, CELL, &Change::Remove(Plan::node_id(one))), "seed {seed}");
        pass(&mut world, 3_000);
        assert_ne!(leader(&mut world), old, "seed {seed}");
        must_add(&mut world, 3);
        must_add(&mut world, 4);
        pass(&mut world, 6_000);
        let before = (count(&world, Mark::ChangeTakenBack), count(&world, Mark::InstallBroughtList));
        world.act(&Fault::Mend(cuts));
        pass(&mut world, 4_000);
        let after = (count(&world, Mark::ChangeTakenBack), count(&world, Mark::InstallBroughtList));
        assert_eq!(after, (before.0 + 1, before.1 + 1), "seed {seed}");
        // It leads by the votes of three of five.
        for _ in 0..20 {
            let now = leader(&mut world);
            if now == old {
                break;
            }
            world.act(&Fault::Transfer(now, Some(old)));
            pass(&mut world, 500);
        }
        assert_eq!(leader(&mut world), old, "seed {seed}");
        let mut voters = world.roster(CELL).0;
        voters.sort_unstable();
        assert_eq!(voters, [0, 1, 2, 3, 4], "seed {seed}: nobody was removed");
        rest(world);
    }
}

#[test]
fn every_node_of_three_is_replaced_one_after_the_other_under_load_and_crashes() {
    for seed in 1..=3 {
        let mut world = at_work(seed, |plan| with_spares(plan, 3));
        let writes = world.summary().writes;
        for node in 0..3 {
            let spare = node + 3;
            let replaced = count(&world, Mark::DeadNodeReplaced);
            world.act(&if seed % 2 == 0 { Fault::Kill(node) } else { Fault::PowerLoss(node) });
            pass(&mut world, 2_000);
            must_add(&mut world, spare);
            // The newcomer falls over and the leader, too, before the dead one is out.
            world.act(&Fault::Kill(spare));
            pass(&mut world, 300);
            world.act(&Fault::Start(spare));
            pass(&mut world, 1_500);
            let leads = leader(&mut world);
            world.act(&Fault::Kill(leads));
            pass(&mut world, 300);
            world.act(&Fault::Start(leads));
            pass(&mut world, 1_500);
            must_remove(&mut world, node);
            assert_eq!(count(&world, Mark::DeadNodeReplaced), replaced + 1, "seed {seed}");
            // It comes back, is told and ends.
            world.act(&Fault::Start(node));
            pass(&mut world, 2_000);
            assert!(!world.is_running(node), "seed {seed}: node {node} was removed");
        }
        assert_eq!(world.roster(CELL), (vec![3, 4, 5], vec![]), "seed {seed}");
        assert!(world.summary().writes > writes + 500, "seed {seed}: {}", world.summary().writes - writes);
        rest(world);
    }
}

#[test]
fn a_node_that_waits_to_be_added_is_told_and_ends_when_its_id_is_left_out() {
    for seed in 1..=3 {
        let mut world = at_work(seed, |plan| with_spares(plan, 2));
        world.join(3);
        pass(&mut world, 2_000);
        assert!(world.is_running(3), "seed {seed}: it may yet be added");
        must_add(&mut world, 4);
        pass(&mut world, 2_000);
        assert!(!world.is_running(3), "seed {seed}");
        assert_eq!(count(&world, Mark::IdLeftOut), 1, "seed {seed}");
        assert!(count(&world, Mark::LeftOutNodeEnded) > 0, "seed {seed}");
        rest(world);
    }
}
