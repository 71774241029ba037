//! Faults that users of other lock services and Raft libraries have met, played on purpose. The judges look on in
//! all of them; what a test asserts comes on top.

use lockstep_sim::mark::Mark;
use lockstep_sim::world::World;
use lockstep_sim::world::fault::{Cuts, Fault, cut_both};
use lockstep_sim::world::network::Site;
use lockstep_sim::world::plan::Plan;
use lockstep_sim::world::schedule::MS;
use lockstep_sim::world::trace::Trace;
use lockstep_wire::CellId;

pub(crate) const CELL: CellId = CellId(0);

/// A world whose cell serves and whose clients are at work.
pub(crate) fn at_work(seed: u64, shape: impl Fn(&mut Plan)) -> World {
    at_work_with(seed, Trace::silent(), shape)
}

/// The same, with a trace of one's own.
pub(crate) fn at_work_with(seed: u64, trace: Trace, shape: impl Fn(&mut Plan)) -> World {
    let mut plan = Plan::quiet(seed);
    plan.workload.close_percent = 0;
    shape(&mut plan);
    let mut world = World::new(plan, trace);
    pass(&mut world, 4_000);
    assert!(world.leader(CELL).is_some(), "seed {seed} has no leader after 4 s");
    world
}

pub(crate) fn pass(world: &mut World, ms: u64) {
    if let Err(violation) = world.run_for(ms * MS) {
        panic!("{violation}");
    }
}

pub(crate) fn rest(mut world: World) {
    if let Err(violation) = world.come_to_rest() {
        panic!("{violation}");
    }
}

pub(crate) fn leader(world: &mut World) -> usize {
    for _ in 0..100 {
        if let Some(leader) = world.leader(CELL) {
            return leader;
        }
        pass(world, 50);
    }
    panic!("no leader within 5 s");
}

pub(crate) fn links(pairs: &[(usize, usize)]) -> Cuts {
    let mut cuts = Cuts::new();
    for (one, other) in pairs {
        cut_both(&mut cuts, Site::Node(*one), Site::Node(*other));
    }
    cuts
}

#[test]
fn a_stalled_leader_ends_no_session_when_it_goes_on() {
    for seed in 1..=10 {
        let mut world = at_work(seed, |plan| plan.workload.ttl_ms = (5_000, 5_000));
        let old = leader(&mut world);
        // Stopped between two turns, and within one that has read its clock.
        match seed % 2 {
            0 => {
                world.act(&Fault::Pause { node: old, stops_clock: false });
                pass(&mut world, 3_500);
                assert_ne!(leader(&mut world), old, "seed {seed}");
                world.act(&Fault::Resume(old));
            }
            _ => {
                world.act(&Fault::LateTurn(old, 3_500 * MS));
            }
        }
        pass(&mut world, 8_000);
        assert_eq!(world.summary().endings, 0, "seed {seed}: every client beats");
        rest(world);
    }
}

#[test]
fn a_dead_holder_is_freed_within_a_bound_however_often_the_leader_changes_and_never_early() {
    const TTL_MS: u32 = 8_000;
    let ttl_ms = u64::from(TTL_MS);
    for seed in 1..=6 {
        let mut world = at_work(seed, |plan| {
            plan.workload.clients = 3;
            plan.workload.ttl_ms = (TTL_MS, TTL_MS);
        });
        world.act(&Fault::ClientCrash(0));
        let died = world.now();
        pass(&mut world, ttl_ms / 2);
        let mut changes = 0;
        for _ in 0..10 {
            let lived_ms = (world.now() - died) / MS;
            if lived_ms < ttl_ms * 2 / 3 {
                assert_eq!(
                    world.summary().endings,
                    0,
                    "seed {seed}: it was acknowledged a third of a TTL ago"
                );
            }
            if world.summary().endings > 0 {
                break;
            }
            let old = leader(&mut world);
            world.act(&Fault::Kill(old));
            changes += 1;
            pass(&mut world, 200);
            world.act(&Fault::Start(old));
            pass(&mut world, ttl_ms / 2 - 200);
        }
        // The judge of lateness knows the bound. Half a TTL is logged before the first change, and a step at least in each
        // tenure after it.
        assert_eq!(world.summary().endings, 1, "seed {seed}: it outlived {changes} changes of leader");
        assert!((1..=3).contains(&changes), "seed {seed}: {changes}");
        rest(world);
    }
}

#[test]
fn clients_that_live_are_never_called_silent_while_nothing_goes_wrong() {
    for seed in 1..=3 {
        let mut world = at_work(seed, |plan| plan.workload.ttl_ms = (1_000, 10_000));
        pass(&mut world, 60_000);
        assert_eq!(world.summary().marks.count(Mark::SilenceLogged), 0, "seed {seed}");
        rest(world);
    }
}

#[test]
fn leaders_that_change_and_change_again_keep_nobody_alive_who_is_dead_and_end_nobody_who_lives() {
    for seed in 1..=4 {
        let mut world = at_work(seed, |plan| {
            plan.nodes = 5;
            plan.workload.clients = 6;
            plan.workload.ttl_ms = (2_000, 10_000);
        });
        world.act(&Fault::ClientCrash(0));
        world.act(&Fault::ClientCrash(1));
        for round in 0..20 {
            let old = leader(&mut world);
            match round % 3 {
                0 => world.act(&Fault::Kill(old)),
                1 => world.act(&Fault::Pause { node: old, stops_clock: round % 2 == 0 }),
                _ => world.act(&Fault::LateTurn(old, 1_500 * MS)),
            };
            pass(&mut world, 1_700);
            world.act(&Fault::Start(old));
            world.act(&Fault::Resume(old));
            // Longer than a step of the longest TTL, or there would be nothing to log.
            pass(&mut world, 1_800);
        }
        assert_eq!(world.summary().endings, 2, "seed {seed}: the two that died, and nobody else");
        assert!(world.summary().marks.count(Mark::SilenceContinued) > 0, "seed {seed}");
        rest(world);
    }
}

#[test]
fn survivors_of_a_dead_leader_elect_one_in_bounded_time_for_every_seed() {
    for seed in 1..=60 {
        let mut world = at_work(seed, |plan| plan.workload.clients = 1);
        let old = leader(&mut world);
        // Half the time nobody is told: both survivors time out nearly together.
        world.act(&if seed % 2 == 0 { Fault::Kill(old) } else { Fault::PowerLoss(old) });
        pass(&mut world, 4_000);
        assert!(world.leader(CELL).is_some_and(|new| new != old), "seed {seed}");
    }
}

#[test]
fn a_member_whose_links_flap_deposes_nobody() {
    for seed in 1..=3 {
        let mut world = at_work(seed, |_| {});
        let first = leader(&mut world);
        let (flapping, term) = ((first + 1) % 3, world.term(first, CELL));
        let cuts = links(&[(flapping, first), (flapping, 3 - first - flapping)]);
        for _ in 0..60 {
            world.act(&Fault::Cut(cuts.clone()));
            pass(&mut world, 700);
            world.act(&Fault::Mend(cuts.clone()));
            pass(&mut world, 300);
        }
        assert_eq!(world.leader(CELL), Some(first), "seed {seed}");
        assert_eq!(world.term(first, CELL), term, "seed {seed}");
        assert_eq!(world.summary().endings, 0, "seed {seed}");
        rest(world);
    }
}

#[test]
fn a_new_leader_whose_first_commit_is_slow_shows_no_state_from_before_a_grant() {
    for seed in 1..=6 {
        let mut world = at_work(seed, |plan| {
            plan.workload.clients = 6;
            plan.workload.think_mean = 10 * MS;
            plan.workload.read_percent = 50;
        });
        for _ in 0..8 {
            let old = leader(&mut world);
            for other in (0..3).filter(|other| *other != old) {
                world.act(&Fault::SlowDisk(other, 1_500 * MS, 200 * MS));
            }
            world.act(&Fault::Kill(old));
            pass(&mut world, 1_000);
            world.act(&Fault::Start(old));
            pass(&mut world, 1_500);
        }
        rest(world);
    }
}

#[test]
fn a_lone_member_keeps_what_it_acknowledged_through_losses_of_power() {
    for seed in 1..=5 {
        let mut world = at_work(seed, |plan| {
            plan.nodes = 1;
            plan.workload.think_mean = 5 * MS;
            plan.workload.hold_mean = 5 * MS;
        });
        let mut span = 137;
        for _ in 0..20 {
            pass(&mut world, span % 400 + 20);
            world.act(&Fault::PowerLoss(0));
            pass(&mut world, 20);
            world.act(&Fault::Start(0));
            span = span * 31 % 1_009;
        }
        assert!(world.summary().writes > 100, "seed {seed}: {:?}", world.summary());
        rest(world);
    }
}

#[test]
fn a_holder_that_stood_still_past_its_ttl_knows_that_it_has_lost() {
    let mut stale_writes = 0;
    for seed in 1..=8 {
        let mut world = at_work(seed, |plan| {
            plan.workload.ttl_ms = (2_000, 2_000);
            plan.workload.hold_mean = 2_000 * MS;
            plan.workload.shared_percent = 0;
            plan.drift_ppm_max = 500;
        });
        for _ in 0..200 {
            if !world.held().is_empty() {
                break;
            }
            pass(&mut world, 10);
        }
        let (client, name) = world.held()[0].clone();
        world.act(&Fault::ClientPause(client));
        pass(&mut world, 5_000);
        assert!(world.held().iter().all(|(holder, _)| *holder != client), "seed {seed}: {name}");
        assert!(world.summary().endings >= 1, "seed {seed}");
        world.act(&Fault::ClientResume(client));
        pass(&mut world, 3_000);
        stale_writes += world.summary().stale_writes;
        rest(world);
    }
    assert!(stale_writes > 0, "some write was on its way when its holder stood still");
}
