//! Plans in which a certain fault has its chance.
//!
//! Invariant: no plan breaks a rule as long as nothing is done wrong. Deliberately absent: plans for faults that the
//! drawn ones show soon enough.

use crate::world::plan::{FaultPlan, Plan};
use crate::world::schedule::MS;

fn short(seed: u64) -> Plan {
    Plan { safety: 15_000 * MS, ..Plan::quiet(seed) }
}

fn faults(gap_ms: u64) -> FaultPlan {
    FaultPlan { gap_mean: Some(gap_ms * MS), ..FaultPlan::default() }
}

/// A member alone, on a slow disk, that loses power again and again.
pub(super) fn lone_member_without_power(seed: u64) -> Plan {
    let mut plan = short(seed);
    plan.nodes = 1;
    plan.disk_latency_mean = 5 * MS;
    plan.faults = FaultPlan { power_losses: true, ..faults(700) };
    plan
}

/// Clients that beat at the last moment, and servers that read little at a time.
pub(super) fn beats_at_the_last_moment(seed: u64) -> Plan {
    let mut plan = short(seed);
    plan.workload.clients = 8;
    plan.workload.ttl_ms = (1_000, 1_000);
    plan.arrivals_max = 1;
    plan.faults = FaultPlan { client_pauses: true, late_turns: true, ..faults(60) };
    plan
}

/// A member alone whose turns are late.
pub(super) fn late_turns(seed: u64) -> Plan {
    let mut plan = short(seed);
    plan.nodes = 1;
    plan.workload.clients = 8;
    plan.workload.ttl_ms = (1_000, 1_000);
    plan.faults = FaultPlan { client_pauses: true, late_turns: true, ..faults(100) };
    plan
}

/// Segment after segment while power is lost.
pub(super) fn many_segments(seed: u64) -> Plan {
    let mut plan = short(seed);
    plan.workload.think_mean = 5 * MS;
    plan.workload.hold_mean = 5 * MS;
    plan.faults = FaultPlan { power_losses: true, ..faults(1_000) };
    plan
}

/// Holders whose machines are suspended.
pub(super) fn suspended_clients(seed: u64) -> Plan {
    let mut plan = short(seed);
    plan.workload.ttl_ms = (1_000, 1_500);
    plan.workload.hold_mean = 1_000 * MS;
    plan.faults = FaultPlan { client_pauses: true, ..faults(300) };
    plan
}

/// A leader that is cut off goes on for longer than its successor needs to be elected and to end a session.
pub(super) fn two_leaders(seed: u64) -> Plan {
    let mut plan = short(seed);
    plan.nodes = 5;
    plan.timing_ms = (20, 100, 2_000);
    plan.workload.clients = 8;
    plan.workload.ttl_ms = (1_000, 1_000);
    plan.workload.hold_mean = 500 * MS;
    plan.workload.read_percent = 30;
    plan.faults = FaultPlan { cuts: true, ..faults(500) };
    plan
}

/// Clients that are not heard for most of a long TTL while leaders die.
pub(super) fn silence_and_failover(seed: u64) -> Plan {
    let mut plan = short(seed);
    plan.safety = 40_000 * MS;
    plan.workload.clients = 8;
    plan.workload.ttl_ms = (8_000, 8_000);
    plan.workload.close_percent = 0;
    plan.faults = FaultPlan { client_pauses: true, kills: true, ..faults(400) };
    plan
}

/// Clients that die and leave sessions with a long TTL, and leaders that die once or twice in it.
pub(super) fn silent_for_good(seed: u64) -> Plan {
    let mut plan = short(seed);
    plan.safety = 60_000 * MS;
    plan.workload.clients = 10;
    plan.workload.ttl_ms = (8_000, 8_000);
    plan.workload.close_percent = 0;
    plan.faults = FaultPlan { client_crashes: true, kills: true, ..faults(2_000) };
    plan
}

/// Ends of sessions that wait so long for the disk that beats come meanwhile, and that others are due before anything
/// tells of their silence.
pub(super) fn slow_endings(seed: u64) -> Plan {
    let mut plan = short(seed);
    plan.safety = 30_000 * MS;
    plan.disk_latency_mean = 100 * MS;
    plan.workload.clients = 10;
    plan.workload.ttl_ms = (1_000, 1_000);
    plan.workload.close_percent = 0;
    plan.faults = FaultPlan { client_pauses: true, slow_disks: true, ..faults(100) };
    plan
}

/// Disks that fail, and machines that lose power after it.
pub(super) fn failing_disks(seed: u64) -> Plan {
    let mut plan = short(seed);
    plan.disk_error_ppm = 1_000;
    plan.workload.think_mean = 10 * MS;
    plan.workload.hold_mean = 10 * MS;
    plan.faults = FaultPlan { power_losses: true, ..faults(1_000) };
    plan
}

/// Nodes that wait to join before the cells are born.
pub(super) fn early_spares(seed: u64) -> Plan {
    let mut plan = short(seed);
    (plan.spares, plan.early_spares) = (2, 2);
    plan.start_mean = 20 * MS;
    plan
}

/// Members that come and go all the time.
pub(super) fn changing_members(seed: u64) -> Plan {
    let mut plan = short(seed);
    plan.spares = 3;
    plan.operator_gap_mean = 300 * MS;
    plan.faults = FaultPlan { kills: true, transfers: true, ..faults(2_000) };
    plan
}
