//! Runs whose faults come at moments that are waited for: what chance would show too seldom.
//!
//! Invariant: a play that misses its moment breaks no rule and comes to rest. Deliberately absent: judgement; the judges
//! of the world look on.

use lockstep_wire::CellId;

use crate::oracle::Verdict;
use crate::world::World;
use crate::world::fault::{Cuts, Fault, cut_both};
use crate::world::network::Site;
use crate::world::operator::Change;
use crate::world::plan::Plan;
use crate::world::schedule::MS;
use crate::world::trace::Trace;

const CELL: CellId = CellId(0);
/// Between two looks at a world whose moment is waited for.
const LOOK: u64 = MS / 10;
/// How many looks at most.
const LOOKS_MAX: u32 = 60_000;

fn links(pairs: &[(usize, usize)]) -> Cuts {
    let mut cuts = Cuts::new();
    for (one, other) in pairs {
        cut_both(&mut cuts, Site::Node(*one), Site::Node(*other));
    }
    cuts
}

/// Lets time pass until something is so; says whether it came to that.
fn wait_for(world: &mut World, is_so: impl Fn(&World) -> bool) -> Result<bool, crate::oracle::Violation> {
    for _ in 0..LOOKS_MAX {
        if is_so(world) {
            return Ok(true);
        }
        world.run_for(LOOK)?;
    }
    Ok(false)
}

/// A voter crashes right after its vote has made a leader, before it has heard of that leader, and the only member
/// that can be elected next asks it in the same term.
pub(super) fn crash_between_vote_and_leader(mut plan: Plan) -> Verdict {
    plan.workload.clients = 0;
    plan.latency_mean = 2 * MS;
    plan.disk_latency_mean = 10 * MS;
    let mut world = World::new(plan, Trace::silent());
    world.run_for(4_000 * MS)?;
    let Some(old) = world.leader(CELL) else { return world.come_to_rest() };
    let (voter, late) = ((old + 1) % 3, (old + 2) % 3);
    world.act(&Fault::Cut(links(&[(late, old), (late, voter)])));
    world.act(&Fault::Kill(old));
    world.act(&Fault::Start(old));
    wait_for(&mut world, |world| world.claims_to_lead(old, CELL) || world.claims_to_lead(voter, CELL))?;
    let (winner, other) = if world.claims_to_lead(old, CELL) { (old, voter) } else { (voter, old) };
    world.act(&Fault::Kill(other));
    world.act(&Fault::Cut(links(&[(winner, other)])));
    world.act(&Fault::Mend(links(&[(late, other)])));
    // It never lives for long enough to try for itself.
    let before = world.elections();
    for _ in 0..60 {
        world.act(&Fault::Start(other));
        world.run_for(110 * MS)?;
        if world.elections() > before {
            break;
        }
        world.act(&Fault::Kill(other));
    }
    world.act(&Fault::Start(other));
    world.run_for(2_000 * MS)?;
    world.come_to_rest()
}

/// An entry of an old leader comes to a majority by a newer one, whose own first entry does not; and a member that led
/// between them has another one in its place (Raft, figure 8).
pub(super) fn older_term_on_a_majority(mut plan: Plan) -> Verdict {
    plan.workload.clients = 6;
    plan.workload.think_mean = 10 * MS;
    plan.workload.ttl_ms = (20_000, 20_000);
    plan.disk_latency_mean = 20 * MS;
    let mut world = World::new(plan, Trace::silent());
    world.run_for(4_000 * MS)?;
    let Some(first) = world.leader(CELL) else { return world.come_to_rest() };
    let (one, other) = ((first + 1) % 3, (first + 2) % 3);
    // It takes entries that nobody else gets.
    world.act(&Fault::Cut(links(&[(first, one), (first, other)])));
    world.run_for(300 * MS)?;
    world.act(&Fault::Kill(first));
    wait_for(&mut world, |world| world.claims_to_lead(one, CELL) || world.claims_to_lead(other, CELL))?;
    let (second, voter) = if world.claims_to_lead(one, CELL) { (one, other) } else { (other, one) };
    // So does its successor, before whose first entry its voter has died.
    world.act(&Fault::Kill(voter));
    world.act(&Fault::Cut(links(&[(second, voter)])));
    world.run_for(100 * MS)?;
    world.act(&Fault::Mend(links(&[(first, voter)])));
    world.act(&Fault::Start(first));
    world.act(&Fault::Start(voter));
    wait_for(&mut world, |world| world.claims_to_lead(first, CELL))?;
    // The voter's disk may be the faster one. What is known to be committed now is lost with the power.
    let before = world.summary().entries;
    wait_for(&mut world, |world| world.summary().entries > before || world.leader(CELL) == Some(first))?;
    world.act(&Fault::PowerLoss(first));
    world.act(&Fault::Kill(voter));
    world.act(&Fault::Mend(links(&[(first, second)])));
    world.act(&Fault::Start(first));
    world.run_for(3_000 * MS)?;
    world.come_to_rest()
}

/// A member that led alone has its entries replaced by those of its successor, which has nobody else to count on; it
/// loses power before its disk has the new ones, and is asked for its vote by the third.
pub(super) fn crash_after_truncation(mut plan: Plan) -> Verdict {
    plan.workload.clients = 6;
    plan.workload.think_mean = 10 * MS;
    plan.workload.hold_mean = 10 * MS;
    plan.workload.ttl_ms = (20_000, 20_000);
    plan.disk_latency_mean = 20 * MS;
    let mut world = World::new(plan, Trace::silent());
    world.run_for(4_000 * MS)?;
    let Some(first) = world.leader(CELL) else { return world.come_to_rest() };
    let (one, other) = ((first + 1) % 3, (first + 2) % 3);
    world.act(&Fault::Cut(links(&[(first, one), (first, other)])));
    world.run_for(400 * MS)?;
    wait_for(&mut world, |world| world.leader(CELL).is_some_and(|leader| leader != first))?;
    let Some(second) = world.leader(CELL) else { return world.come_to_rest() };
    let third = 3 - first - second;
    // From here on the successor can count on nobody but its predecessor.
    world.act(&Fault::Kill(third));
    world.act(&Fault::Cut(links(&[(second, third)])));
    world.run_for(100 * MS)?;
    let before = world.summary().entries;
    world.act(&Fault::Mend(links(&[(first, second)])));
    wait_for(&mut world, |world| world.summary().entries > before)?;
    world.act(&Fault::PowerLoss(first));
    world.act(&Fault::Kill(second));
    world.act(&Fault::Mend(links(&[(first, third)])));
    world.act(&Fault::Start(first));
    world.act(&Fault::Start(third));
    world.run_for(3_000 * MS)?;
    world.come_to_rest()
}

/// Clients that were suspended beat in the last moment, while a lone member stands in a turn that it has begun before,
/// and reads little at a time when it goes on.
pub(super) fn beats_behind_a_late_turn(mut plan: Plan) -> Verdict {
    plan.nodes = 1;
    plan.workload.clients = 8;
    plan.workload.ttl_ms = (1_000, 1_000);
    plan.workload.close_percent = 0;
    plan.arrivals_max = 1;
    let clients = plan.workload.clients;
    let mut world = World::new(plan, Trace::silent());
    world.run_for(2_000 * MS)?;
    for round in 0..60 {
        let client = round % clients;
        world.act(&Fault::ClientPause(client));
        // Its last beat is up to a third of a TTL old.
        world.run_for((690 + 11 * (round as u64 % 29)) * MS)?;
        world.act(&Fault::LateTurn(0, 90 * MS));
        world.run_for(MS)?;
        world.act(&Fault::ClientResume(client));
        world.run_for(300 * MS)?;
    }
    world.come_to_rest()
}

/// The snapshots of a member are rotten when it starts. It has entries that the third member lacks, so that nobody can
/// be elected before their leader comes back: it has no state to lead from.
pub(super) fn election_beside_a_lost_snapshot(mut plan: Plan) -> Verdict {
    plan.workload.clients = 6;
    plan.workload.think_mean = 5 * MS;
    plan.workload.hold_mean = 5 * MS;
    plan.disk_latency_mean = 2 * MS;
    let mut world = World::new(plan, Trace::silent());
    world.run_for(8_000 * MS)?;
    let Some(old) = world.leader(CELL) else { return world.come_to_rest() };
    let (rotten, late) = ((old + 1) % 3, (old + 2) % 3);
    world.act(&Fault::Kill(late));
    world.run_for(300 * MS)?;
    world.act(&Fault::Kill(old));
    world.act(&Fault::Kill(rotten));
    for _ in 0..12 {
        world.act(&Fault::RotSnapshot(rotten));
    }
    world.act(&Fault::Start(late));
    world.act(&Fault::Start(rotten));
    world.run_for(4_000 * MS)?;
    world.act(&Fault::Start(old));
    world.come_to_rest()
}

/// A cluster is restored from a backup while a holder is suspended, who believes in what the old cell told him for a while
/// yet; others want the lock.
pub(super) fn restore_beside_a_holder(mut plan: Plan) -> Verdict {
    plan.workload.names = 1;
    plan.workload.shared_percent = 0;
    plan.workload.cancel_percent = 0;
    plan.workload.think_mean = 50 * MS;
    plan.workload.hold_mean = 1_000 * MS;
    plan.workload.ttl_ms = (20_000, 20_000);
    let mut world = World::new(plan, Trace::silent());
    world.run_for(4_000 * MS)?;
    let Some(leader) = world.leader(CELL) else { return world.come_to_rest() };
    world.act(&Fault::Snapshot(leader));
    world.run_for(1_000 * MS)?;
    wait_for(&mut world, |world| !world.held().is_empty())?;
    let Some((holder, _)) = world.held().pop() else { return world.come_to_rest() };
    world.act(&Fault::ClientPause(holder));
    world.act(&Fault::Restore { node: leader, is_older: false });
    world.run_for(15_000 * MS)?;
    world.act(&Fault::ClientResume(holder));
    world.come_to_rest()
}

/// A leader that is cut off appends a change of the members; the others make other changes and go on past their logs, so that
/// it gets a snapshot, and campaigns.
pub(super) fn install_over_an_uncommitted_list(mut plan: Plan) -> Verdict {
    plan.spares = 2;
    // Nothing but what the play asks for.
    plan.operator_gap_mean = u64::MAX / 4;
    plan.workload.clients = 6;
    plan.workload.think_mean = 5 * MS;
    plan.workload.hold_mean = 5 * MS;
    plan.disk_latency_mean = 2 * MS;
    plan.cache_bytes_max = 0;
    let mut world = World::new(plan, Trace::silent());
    world.run_for(4_000 * MS)?;
    let Some(old) = world.leader(CELL) else { return world.come_to_rest() };
    let (one, other) = ((old + 1) % 3, (old + 2) % 3);
    let cuts = links(&[(old, one), (old, other), (old, 3), (old, 4)]);
    world.act(&Fault::Cut(cuts.clone()));
    world.ask_for(old, CELL, &Change::Remove(Plan::node_id(one)));
    wait_for(&mut world, |world| world.leader(CELL).is_some_and(|leader| leader != old))?;
    world.run_for(500 * MS)?;
    for spare in [3, 4] {
        world.join(spare);
        let addition = world.addition(spare);
        world.change_members(CELL, &addition);
        world.run_for(1_500 * MS)?;
        world.change_members(CELL, &Change::Promote(Plan::node_id(spare)));
        world.run_for(500 * MS)?;
    }
    world.run_for(6_000 * MS)?;
    world.act(&Fault::Mend(cuts));
    world.run_for(4_000 * MS)?;
    if let Some(leader) = world.leader(CELL) {
        world.act(&Fault::Transfer(leader, Some(old)));
    }
    world.run_for(2_000 * MS)?;
    world.come_to_rest()
}
