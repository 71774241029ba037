//! Which member should lead, if all are well: the leaders of many cells are spread over the nodes (ARCHITECTURE section
//! 4.1, "Leaving on purpose").
//!
//! Invariant: leadership goes to the preferred member only when that has been well for a while, as an ordinary hand-over;
//! where an operator has put it, it stays for as long as that leader leads. Deliberately absent: load; a cell counts as one.

use lockstep_wire::NodeId;

use super::membership::LAG_MAX;
use super::{Raft, Role};
use crate::{Effect, Effects, Report, Span, Time};

impl Raft {
    /// The voter that should lead this cell: the cells go around the voters.
    pub fn preferred(&self) -> Option<NodeId> {
        let voters = self.membership().voters().count();
        self.membership().voters().nth(usize::from(self.config.cell.0) % voters.max(1))
    }

    /// Whether leadership stays where it is, whoever should have it: the leader of a restored cell counts the quiet time, which
    /// would begin anew.
    pub fn settle_down(&mut self, is_settled: bool) {
        self.is_settled = is_settled;
    }

    /// Hands over to the preferred member once it has been well for as long as the configuration says.
    pub(super) fn give_way(&mut self, now: Time, fx: &mut Effects) {
        let Some(to) = self.preferred().filter(|to| self.is_well(*to, now)) else {
            self.leading.preferred_well_since = now;
            return;
        };
        let patience = self.config.preference;
        if patience > Span(0) && now.since(self.leading.preferred_well_since) >= patience {
            // The next attempt, if this one fails, comes as late.
            self.leading.preferred_well_since = now;
            if self.hand_over(to, false, now, fx) {
                fx.push(Effect::Report(Report::GivingWay { to }));
            }
        }
    }

    /// Whether another member could lead now as well as this one.
    fn is_well(&self, node: NodeId, now: Time) -> bool {
        let is_free = self.role == Role::Leader
            && self.leading.is_serving
            && !self.leading.is_wished
            && !self.is_settled
            && !self.is_transferring()
            && !self.is_membership_changing()
            && self.stop.is_none();
        let Some(at) = self.peer_at(node).filter(|at| is_free && self.is_followed_by(*at)) else {
            return false;
        };
        let progress = &self.peers[at].progress;
        now.since(progress.heard_at) <= self.config.election_min
            && progress.matched.0 + LAG_MAX >= self.log.last_index().0
            // Beats wait for no disk: one that hangs shows in what is not acknowledged.
            && !progress.is_probing()
            && !progress.waits_for_snapshot()
            && !progress.is_short_of_space
    }
}
