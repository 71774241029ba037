//! What clients do and are told, over whole runs.

use lockstep_sim::search::run_plan;
use lockstep_sim::world::plan::{FaultPlan, Plan};
use lockstep_sim::world::schedule::MS;
use lockstep_sim::world::trace::Trace;
use lockstep_sim::world::{World, defect::Defect};

#[test]
fn forged_requests_are_answered_as_the_contract_says_and_in_every_way() {
    let mut lines = Vec::new();
    for seed in 1..=4 {
        let mut plan = Plan::quiet(seed);
        plan.forgers = 2;
        plan.safety = 40_000 * MS;
        plan.faults =
            FaultPlan { gap_mean: Some(4_000 * MS), kills: true, resets: true, ..FaultPlan::default() };
        let (world, verdict) = World::run(plan, Trace::kept());
        assert_eq!(verdict, Ok(()), "seed {seed}");
        lines.extend(world.lines().iter().filter(|line| line.contains("forger ")).cloned());
    }
    for answer in [
        "Granted",
        "Queued",
        "TimedOut",
        "Cancelled",
        "AlreadyHeld",
        "Lost",
        "Done",
        "StaleToken",
        "Opened",
        "Attached",
        "KeptAlive",
        "Closed",
        "Checked",
        "Lock(",
        "Session(",
        "status: StaleRequest",
        "status: Invalid",
        "status: Unsupported",
        "status: NotAttached",
        "status: Denied",
    ] {
        assert!(lines.iter().any(|line| line.contains(answer)), "no forger was ever answered {answer}");
    }
}

#[test]
fn owners_acquire_again_and_drop_their_holds_and_nothing_is_left_behind() {
    for seed in 1..=4 {
        let mut plan = Plan::quiet(seed);
        plan.workload.tasks = 4;
        plan.workload.again_percent = 60;
        plan.workload.drop_percent = 60;
        plan.workload.cancel_percent = 60;
        plan.workload.odd_percent = 30;
        plan.workload.has_odd_names = true;
        plan.faults = FaultPlan {
            gap_mean: Some(1_000 * MS),
            kills: true,
            resets: true,
            client_crashes: true,
            ..FaultPlan::default()
        };
        let summary = run_plan(&plan, Trace::silent()).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(summary.writes > 100, "seed {seed}: {summary:?}");
    }
}

#[test]
fn what_is_committed_before_a_majority_of_disks_has_it_is_seen_without_any_crash() {
    let mut plan = Plan::quiet(1);
    plan.disk_latency_mean = 5 * MS;
    plan.defect = Some(Defect::DurableBeforeWritten);
    let failure = run_plan(&plan, Trace::silent()).expect_err("entries are applied that no disk has");
    assert_eq!(failure.violation.rule, "what is committed is on a majority of disks (contract 1)");
}
