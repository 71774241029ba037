//! What reads show, as replies: at most so many rows, and totals beside them.

use lockstep_wire::limit::VIEW_ROWS_MAX;
use lockstep_wire::reply::{
    ClaimView, HolderView, LockView, MemberView, Reply, Route, SessionView, StatusView, WaiterView,
};
use lockstep_wire::request::Mode;
use lockstep_wire::{Rows, SessionId};

use super::Cell;
use super::calls::Call;
use crate::effect::Effects;
use crate::time::Time;

/// Answers who holds a lock and who waits.
pub(crate) fn lock(cell: &Cell, call: Call, name: &str, fx: &mut Effects) {
    let reading = cell.table.lock(name);
    let holders: Vec<HolderView<'_>> = reading.holders().take(VIEW_ROWS_MAX).collect();
    let waiters: Vec<WaiterView<'_>> = reading.waiters().take(VIEW_ROWS_MAX).collect();
    let reply = Reply::Lock(LockView {
        revision: cell.table.revision(),
        exists: reading.exists(),
        mode: reading.mode().unwrap_or(Mode::Exclusive),
        fence_floor: reading.fence_floor(),
        is_quiet: cell.table.is_quiet(),
        holders_total: reading.holders_total(),
        waiters_total: reading.waiters_total(),
        holders: Rows::Slice(&holders),
        waiters: Rows::Slice(&waiters),
    });
    cell.answer(call, &reply, fx);
}

/// Answers what a session holds and waits for.
pub(crate) fn session(cell: &Cell, call: Call, session: SessionId, fx: &mut Effects) {
    let reading = match cell.table.session(session) {
        Ok(reading) => reading,
        Err(answer) => return cell.refuse(call, answer.status(), "", fx),
    };
    let claims: Vec<ClaimView<'_>> = reading.claims().take(VIEW_ROWS_MAX).collect();
    let reply = Reply::Session(SessionView {
        revision: cell.table.revision(),
        ttl_ms: reading.ttl_ms(),
        client_id: reading.client_id(),
        claims_total: u32::try_from(reading.claims_total()).unwrap_or(u32::MAX),
        claims: Rows::Slice(&claims),
    });
    cell.answer(call, &reply, fx);
}

/// Answers how the cell is, as this replica knows it; no round confirms it.
pub(crate) fn status(cell: &Cell, call: Call, now: Time, fx: &mut Effects) {
    let members: Vec<MemberView<'_>> = cell
        .raft
        .membership()
        .members()
        .iter()
        .map(|member| {
            let is_self = member.node == cell.config.node;
            let progress = cell.raft.progress(member.node).unwrap_or_default();
            MemberView {
                node: member.node,
                is_heard: cell.raft.is_heard(member.node, now),
                matched: if is_self { cell.raft.durable() } else { progress },
                address: cell.client_address(member.node),
            }
        })
        .collect();
    let (leader, leader_address) = cell.leader();
    let reply = Reply::Status(StatusView {
        node: cell.config.node,
        role: cell.raft.role_name(),
        term: cell.raft.term(),
        leader,
        leader_address,
        committed: cell.raft.committed(),
        applied: cell.applied(),
        durable: cell.raft.durable(),
        sessions: cell.table.sessions_len() as u64,
        locks: cell.table.locks_len() as u64,
        digest: cell.table.digest(),
        is_short_of_space: cell.raft.is_short_of_space(),
        is_quiet: cell.table.is_quiet(),
        quiet_left_ms: cell.quiet_left_ms(now),
        members: Rows::Slice(&members),
    });
    cell.answer(call, &reply, fx);
}

/// Answers which cell serves which namespace.
pub(crate) fn routes(cell: &Cell, call: Call, fx: &mut Effects) {
    let routes: Vec<Route<'_>> =
        cell.config.routes.iter().map(|(namespace, cell)| Route { namespace, cell: *cell }).collect();
    cell.answer(call, &Reply::Routes(Rows::Slice(&routes)), fx);
}
