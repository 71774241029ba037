//! Carrying out what the cells wish for.
//!
//! Invariant: an effect is carried out in the order in which it was wished for, and nothing that follows a
//! halt is. What cannot be delivered (a link that is down, a client that is gone) is dropped: the core
//! counts on nothing that it has not been told.

use std::sync::atomic::Ordering;

use lockstep_core::{Effect, Halt, Lane, Report};
use lockstep_wire::CellId;
use lockstep_wire::peer::encode_beats;

use super::{Shard, ShardError};

/// Bytes that may wait for a client that does not read.
const CLIENT_BACKLOG_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes that may wait for a member that does not read; its own flow control keeps well below.
const PEER_BACKLOG_BYTES_MAX: usize = 64 * 1024 * 1024;

impl Shard {
    /// Carries out the effects of one step of a cell.
    pub(super) fn carry_out(&mut self, cell: CellId) -> Result<(), ShardError> {
        let fx = std::mem::take(&mut self.fx);
        let result = fx.list().iter().try_for_each(|effect| self.carry_out_one(cell, effect, fx.bytes()));
        self.fx = fx;
        result
    }

    fn carry_out_one(&mut self, cell: CellId, effect: &Effect, bytes: &[u8]) -> Result<(), ShardError> {
        match effect {
            Effect::Append { append, head, payload } => {
                self.disk.append(cell, *append, *head, &bytes[payload.clone()])?;
            }
            Effect::Send { to, lane, frame } => {
                if let Some(id) = self.links.get(to).and_then(|link| link.connection(*lane))
                    && !self.connections.write(id, &bytes[frame.clone()], PEER_BACKLOG_BYTES_MAX)
                {
                    self.reporter.link_overflows(*to);
                    self.broken.push(id);
                }
            }
            Effect::Beat { to, beat } => {
                if let Some(link) = self.links.get_mut(to)
                    && link.is_up
                {
                    link.beats.push(*beat);
                }
            }
            Effect::Reply { connection, frame } => {
                if !self.connections.write(*connection, &bytes[frame.clone()], CLIENT_BACKLOG_BYTES_MAX) {
                    self.reporter.client_overflows();
                    self.broken.push(*connection);
                }
            }
            Effect::ReadLog { first, last, bytes_max } => self.disk.read(cell, *first, *last, *bytes_max),
            Effect::StageSnapshot { snapshot, piece, is_last, bytes: range } => {
                self.disk.stage(cell, *snapshot, *piece, *is_last, &bytes[range.clone()]);
            }
            Effect::DropSnapshot => self.disk.drop_snapshot(cell),
            Effect::ReadSnapshot { snapshot, piece } => self.disk.read_snapshot(cell, *snapshot, *piece),
            Effect::Drain(drain) => self.drains.push((cell, *drain)),
            Effect::PeersChanged => self.are_links_stale = true,
            Effect::Removed => return self.on_removed(cell),
            Effect::Report(report) => self.report(cell, report),
            Effect::Stopped => self.stopped += 1,
            Effect::Halt(Halt { reason }) => return Err(ShardError::Halted(reason.clone())),
        }
        Ok(())
    }

    /// The node is a member of this cell no more. When that is so for all of its cells there is nothing left to serve.
    fn on_removed(&self, cell: CellId) -> Result<(), ShardError> {
        let node = self.plan.identity.node;
        tracing::warn!(%node, %cell, "this node was removed from the cell, for ever");
        let removed = self.plan.removed.fetch_add(1, Ordering::AcqRel) + 1;
        match removed >= self.plan.identity.cells {
            true => Err(ShardError::Removed { node }),
            false => Ok(()),
        }
    }

    fn report(&mut self, cell: CellId, report: &Report) {
        let node = self.plan.identity.node;
        match report {
            Report::Born => tracing::info!(%node, %cell, "the cell is born"),
            Report::WaitsToBeAdded { client_address, peer_address } => tracing::info!(
                %node, %cell, peer_address,
                "this node waits to be added: run `lockstep members add {client_address}` with the members as --endpoints"
            ),
            Report::Leading { term } => tracing::info!(%node, %cell, %term, "leading"),
            Report::Quiet { left } => {
                let left_ms = left.ms();
                tracing::info!(
                    %node, %cell, left_ms,
                    "the cell was restored: it grants nothing yet, and requests wait"
                );
            }
            Report::QuietEnded => {
                tracing::info!(%node, %cell, "the restored cell grants from now on");
            }
            Report::Deposed { term, reason, is_planned: true } => {
                tracing::info!(%node, %cell, %term, reason, "not leading any more, as planned");
            }
            Report::Deposed { term, reason, is_planned: false } => {
                tracing::warn!(%node, %cell, %term, reason, "not leading any more")
            }
            Report::GivingWay { to } => {
                tracing::info!(%node, %cell, %to, "handing over to the node that should lead this cell");
            }
            Report::Following { term, leader } => tracing::info!(%node, %cell, %term, %leader, "following"),
            Report::SnapshotTaken { snapshot } => tracing::debug!(%node, %cell, %snapshot, "snapshot"),
            Report::SnapshotInstalled { snapshot } => {
                tracing::info!(%node, %cell, %snapshot, "the leader's snapshot was installed");
            }
            Report::Refused { peer, reason } => self.reporter.member_refused(node, cell, *peer, reason),
        }
    }

    /// Puts the beats of all cells between two nodes into one frame each.
    pub(super) fn flush_beats(&mut self) {
        for link in self.links.values_mut().filter(|link| !link.beats.is_empty()) {
            if let Some(id) = link.connection(Lane::Control) {
                self.scratch.clear();
                encode_beats(&link.beats, &mut self.scratch);
                if !self.connections.write(id, &self.scratch, PEER_BACKLOG_BYTES_MAX) {
                    self.broken.push(id);
                }
            }
            link.beats.clear();
        }
    }
}
