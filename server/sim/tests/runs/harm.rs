//! Machines that cannot be mended, disks that are full or fail, and minorities that stay away. The judges look on in all
//! of them; what a test asserts comes on top.

use lockstep_sim::mark::Mark;
use lockstep_sim::world::World;
use lockstep_sim::world::fault::Fault;
use lockstep_sim::world::network::Site;
use lockstep_sim::world::plan::Plan;
use lockstep_sim::world::schedule::MS;
use lockstep_sim::world::trace::Trace;

use crate::scenarios::{CELL, at_work, at_work_with, leader, links, pass, rest};

/// Clients that keep the log growing.
fn busy(plan: &mut Plan) {
    plan.workload.think_mean = 5 * MS;
    plan.workload.hold_mean = 5 * MS;
    plan.workload.shared_percent = 0;
}

fn count(world: &World, words: &str) -> usize {
    world.lines().iter().filter(|line| line.contains(words)).count()
}

#[test]
fn a_rotten_member_refuses_and_the_others_go_on() {
    let mut refused = 0;
    for seed in 1..=6 {
        let mut world = at_work_with(seed, Trace::kept(), busy);
        let rotten = (leader(&mut world) + 1) % 3;
        world.act(&Fault::Rot(rotten));
        world.act(&Fault::Kill(rotten));
        for _ in 0..3 {
            world.act(&Fault::Start(rotten));
            pass(&mut world, 500);
        }
        if !world.is_running(rotten) {
            refused += 1;
            let refusals: Vec<&String> =
                world.lines().iter().filter(|line| line.contains("does not start: ")).collect();
            assert_eq!(refusals.len(), 3, "seed {seed}: it refuses every time");
            let is_named = |words: &[&str]| words.iter().all(|word| refusals[0].contains(word));
            assert!(
                is_named(&["the log is damaged: ", " at offset ", " cell 0 index "])
                    || is_named(&["the header of shard-00000."]),
                "seed {seed}: {}",
                refusals[0]
            );
        }
        let before = world.summary().writes;
        pass(&mut world, 2_000);
        assert!(world.summary().writes > before + 20, "seed {seed}");
        rest(world);
    }
    assert!(refused >= 3, "{refused} of 6");
}

#[test]
fn a_leader_that_reads_rot_for_a_follower_halts_and_another_one_leads() {
    let mut halted = 0;
    for seed in 1..=12 {
        let mut world = at_work_with(seed, Trace::kept(), |plan| {
            busy(plan);
            plan.nodes = 5;
            plan.cache_bytes_max = 0;
        });
        let old = leader(&mut world);
        let late = (old + 1) % 5;
        world.act(&Fault::Kill(late));
        // Longer than its leader remembers, and not so long that the log has gone around.
        pass(&mut world, 500);
        world.act(&Fault::Rot(old));
        world.act(&Fault::Start(late));
        pass(&mut world, 3_000);
        if count(&world, &format!("node {old} ends: the log is damaged: ")) > 0 {
            halted += 1;
            assert!(!world.is_running(old), "seed {seed}: nor does it start");
            assert_ne!(leader(&mut world), old, "seed {seed}");
        }
        rest(world);
    }
    assert!(halted >= 2, "{halted} of 12");
}

#[test]
fn a_wiped_member_never_votes_again() {
    for seed in 1..=4 {
        let mut world = at_work_with(seed, Trace::kept(), |_| {});
        let old = leader(&mut world);
        let (wiped, other) = ((old + 1) % 3, (old + 2) % 3);
        world.act(&Fault::Wipe(wiped));
        world.act(&Fault::Start(wiped));
        pass(&mut world, 3_000);
        assert!(world.leader(CELL).is_some(), "seed {seed}: two of three go on");
        assert!(count(&world, "another directory than the member's runs under the id of") > 0, "seed {seed}");
        let leading = leader(&mut world);
        let follower = old + other - leading;
        world.act(&Fault::Kill(follower));
        let elections = world.elections();
        let writes = world.summary().writes;
        pass(&mut world, 10_000);
        assert_eq!(world.elections(), elections, "seed {seed}: there is no majority without it");
        assert!(!world.claims_to_lead(leading, CELL), "seed {seed}");
        assert_eq!(world.term(wiped, CELL), Some(0), "seed {seed}");
        // What was held before may still be written under; nobody is granted anything.
        pass(&mut world, 10_000);
        assert!(world.held().is_empty(), "seed {seed}: {writes} writes before");
        world.act(&Fault::Start(follower));
        rest(world);
    }
}

#[test]
fn a_member_that_is_wiped_during_the_birth_leaves_it_unborn_and_nothing_was_acknowledged() {
    let (mut unborn, mut born) = (0, 0);
    for step in 0..40 {
        let mut world = World::new(Plan::quiet(1), Trace::kept());
        if let Err(violation) = world.run_for(2 * MS + step * MS / 10) {
            panic!("{violation}");
        }
        world.act(&Fault::Wipe(2));
        world.act(&Fault::Start(2));
        pass(&mut world, 12_000);
        if world.leader(CELL).is_some() {
            born += 1;
        } else {
            unborn += 1;
            let said = count(&world, "nothing was ever acknowledged, so format all members again");
            assert!(said > 0, "step {step}");
            assert_eq!(world.summary().entries, 0, "step {step}");
        }
        rest(world);
    }
    assert!(unborn > 0 && born > 0, "{unborn} unborn, {born} born");
}

#[test]
fn a_disk_error_ends_the_process_with_a_word_and_the_next_one_starts_over_what_is_there() {
    for seed in 1..=3 {
        let mut world = at_work_with(seed, Trace::kept(), |plan| {
            busy(plan);
            plan.disk_error_ppm = 300;
        });
        pass(&mut world, 15_000);
        assert!(count(&world, "input/output error (errno 5); the log has stopped") > 0, "seed {seed}");
        assert_eq!(count(&world, "does not start"), 0, "seed {seed}");
        rest(world);
    }
}

#[test]
fn a_majority_comes_to_rest_without_the_others() {
    for seed in 1..=10 {
        let mut plan = Plan::quiet(seed);
        plan.nodes = 5;
        plan.outcasts_max = 2;
        plan.safety = 5_000 * MS;
        let (world, verdict) = World::run(plan, Trace::silent());
        if let Err(violation) = verdict {
            panic!("seed {seed}: {violation}");
        }
        assert!(world.summary().marks.count(Mark::MinorityMissed) > 0, "seed {seed}");
    }
}

#[test]
fn a_link_that_only_one_end_has_given_up_comes_up_again() {
    for seed in 1..=4 {
        let mut world = at_work(seed, |_| {});
        let old = leader(&mut world);
        let cuts = links(&[(old, (old + 1) % 3)]);
        // One way only: what the leader sends is lost, and it alone notices.
        let one_way = cuts[..1].to_vec();
        world.act(&Fault::Cut(one_way.clone()));
        pass(&mut world, 8_000);
        assert!(world.summary().marks.count(Mark::HalfOpen) > 0, "seed {seed}");
        world.act(&Fault::Mend(one_way));
        pass(&mut world, 3_000);
        let follower = (old + 1) % 3;
        assert!(world.is_running(follower), "seed {seed}");
        rest(world);
    }
}

#[test]
fn a_fault_says_whether_it_changed_anything() {
    let mut world = World::new(Plan::quiet(1), Trace::silent());
    let cuts = vec![(Site::Node(0), Site::Client(0))];
    let twice = |world: &mut World, fault: &Fault| [world.act(fault), world.act(fault)];
    assert!(world.act(&Fault::Start(0)));
    for fault in [Fault::Pause { node: 0, stops_clock: true }, Fault::Resume(0), Fault::Stop(0)] {
        assert_eq!(twice(&mut world, &fault), [true, false], "{fault:?}");
    }
    for fault in [Fault::Kill(0), Fault::PowerLoss(0), Fault::ClientPause(0), Fault::ClientResume(0)] {
        assert_eq!(twice(&mut world, &fault), [true, false], "{fault:?}");
    }
    assert_eq!(twice(&mut world, &Fault::Cut(cuts.clone())), [true, false]);
    assert_eq!(twice(&mut world, &Fault::Mend(cuts)), [true, false]);
    assert!(!world.act(&Fault::Reset(Site::Node(0), Site::Node(0))));
    assert_eq!(twice(&mut world, &Fault::ClientCrash(0)), [true, false]);
}
