//! Known-bad drivers: the judges must see each of them. A vote that a restart forgets needs its moment and is played
//! in `scenarios`.

use lockstep_sim::search::run_plan;
use lockstep_sim::world::defect::Defect;
use lockstep_sim::world::plan::{FaultPlan, Plan};
use lockstep_sim::world::schedule::MS;
use lockstep_sim::world::trace::Trace;

/// Searches until a rule is broken; says which, and at which seed.
fn hunt(defect: Defect, seeds: u64, shape: impl Fn(&mut Plan)) -> (u64, &'static str) {
    for seed in 1..=seeds {
        let mut plan = Plan::quiet(seed);
        plan.safety = 15_000 * MS;
        shape(&mut plan);
        // The same run must be good without the defect.
        if run_plan(&plan, Trace::silent()).is_err() {
            panic!("seed {seed} breaks a rule without any defect");
        }
        plan.defect = Some(defect);
        if let Err(failure) = run_plan(&plan, Trace::silent()) {
            return (seed, failure.violation.rule);
        }
    }
    panic!("{defect:?} was not seen in {seeds} seeds");
}

#[test]
fn an_acknowledgement_before_the_disk_has_the_entry_is_seen() {
    hunt(Defect::DurableBeforeWritten, 60, |plan| {
        plan.nodes = 1;
        plan.disk_latency_mean = 5 * MS;
        plan.faults = FaultPlan { gap_mean: Some(700 * MS), power_losses: true, ..FaultPlan::default() };
    });
}

#[test]
fn a_drain_that_hands_out_nothing_is_seen() {
    hunt(Defect::DrainWithoutInput, 300, |plan| {
        plan.workload.clients = 8;
        plan.workload.ttl_ms = (1_000, 1_000);
        plan.arrivals_max = 1;
        plan.faults = FaultPlan {
            gap_mean: Some(60 * MS),
            client_pauses: true,
            late_turns: true,
            ..FaultPlan::default()
        };
    });
}

#[test]
fn a_clock_that_is_older_than_what_is_handed_out_with_it_is_seen() {
    hunt(Defect::ClockBeforeArrivals, 300, |plan| {
        plan.nodes = 1;
        plan.workload.clients = 8;
        plan.workload.ttl_ms = (1_000, 1_000);
        plan.faults = FaultPlan {
            gap_mean: Some(100 * MS),
            client_pauses: true,
            late_turns: true,
            ..FaultPlan::default()
        };
    });
}

#[test]
fn a_directory_that_is_not_synced_is_seen() {
    hunt(Defect::DirectorySyncSkipped, 60, |plan| {
        plan.workload.think_mean = 5 * MS;
        plan.workload.hold_mean = 5 * MS;
        plan.faults = FaultPlan { gap_mean: Some(1_000 * MS), power_losses: true, ..FaultPlan::default() };
    });
}

#[test]
fn a_client_clock_that_stands_while_its_machine_is_suspended_is_seen() {
    hunt(Defect::ClientClockStands, 60, |plan| {
        plan.workload.ttl_ms = (1_000, 1_500);
        plan.workload.hold_mean = 1_000 * MS;
        plan.faults = FaultPlan { gap_mean: Some(300 * MS), client_pauses: true, ..FaultPlan::default() };
    });
}
