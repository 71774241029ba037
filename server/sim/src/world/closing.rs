//! The end of a run: faults cease, and then there has to be progress.
//!
//! Invariant: what is demanded follows from the contract and from which machines are whole: a leader, every request
//! answered, every replica the same. Deliberately absent: faults.

use super::World;
use super::fault::Fault;
use super::schedule::{MS, Moment};
use crate::oracle::{Verdict, violated};

/// How long a world without faults may take to come to rest.
const CALM_MAX: Moment = 120_000 * MS;

impl World {
    /// No more faults; everything is mended; and then all must come to an end: a leader, every request answered, every
    /// replica the same.
    ///
    /// # Errors
    /// The first rule that did not hold, progress among them.
    pub fn come_to_rest(&mut self) -> Verdict {
        self.calm_down();
        self.run_for(2_000 * MS)?;
        self.is_winding_down = true;
        for client in 0..self.clients.len() {
            self.clients[client].hands.wind_down();
        }
        let deadline = self.fabric.now() + CALM_MAX;
        while let Some(unrest) = self.unrest() {
            if self.fabric.now() >= deadline {
                return violated("without faults there is progress", unrest);
            }
            self.run_for(250 * MS)?;
        }
        Ok(())
    }

    /// Ends all faults.
    pub fn calm_down(&mut self) {
        self.is_calm = true;
        self.fabric.network.calm_down();
        self.fabric.mend_all();
        for node in 0..self.nodes.len() {
            self.nodes[node].machine.set_error_rate(0);
            self.act(&Fault::Resume(node));
            self.act(&Fault::Start(node));
        }
        for client in 0..self.clients.len() {
            self.act(&Fault::ClientResume(client));
        }
    }

    /// What keeps the world from being at rest.
    pub(super) fn unrest(&self) -> Option<String> {
        for client in &self.clients {
            if !client.is_settled() {
                let trouble = client.core.trouble();
                return Some(format!(
                    "client {} waits: {} ({trouble})",
                    client.place,
                    client.hands.occupation()
                ));
            }
        }
        for (cell, judges) in self.judges.each_cell() {
            if self.leader(cell).is_none() {
                return Some(format!("cell {cell} has no leader"));
            }
            let states: Vec<_> = self
                .nodes
                .iter()
                .map(|node| node.cell(cell).map(|cell| (cell.applied(), cell.table().digest())))
                .collect();
            if states.iter().any(|state| *state != states[0] || state.is_none()) {
                return Some(format!("the replicas of cell {cell} differ: {states:?}"));
            }
            if states[0].is_some_and(|(applied, _)| applied != judges.commitment.last()) {
                return Some(format!("cell {cell} has not applied through {}", judges.commitment.last()));
            }
        }
        None
    }
}
