//! Room on the members' disks: whether a majority has any for what is new, and who should lead if not everybody has
//! (ARCHITECTURE section 6.1, "No space").
//!
//! Invariant: what is said here stops nothing that is on its way, and nothing that the leader must append. Deliberately
//! absent: which requests are refused for it; that is the cell's.

use lockstep_wire::NodeId;

use super::{Peer, Raft};
use crate::{Effects, Span, Time};

/// Election timeouts between two attempts of a leader without space to leave its office.
const ATTEMPT_EVERY: u64 = 4;

impl Raft {
    /// The disk of this node has no room for the next segment of its log, or has room again.
    pub fn on_space(&mut self, is_short: bool) {
        self.is_short_of_space = is_short;
    }

    /// Whether the disk of this node has no room for the next segment of its log.
    pub fn is_short_of_space(&self) -> bool {
        self.is_short_of_space
    }

    /// Whether another member has said that its disk has none.
    pub fn is_peer_short_of_space(&self, node: NodeId) -> bool {
        self.peer_at(node).is_some_and(|at| self.peers[at].progress.is_short_of_space)
    }

    /// Whether there is space for what is new: on the disk of this leader, and on so many others that they are a majority
    /// with it. Only a full disk makes the difference; members that are merely silent are not its business.
    pub fn has_space(&self, now: Time) -> bool {
        let is_any_short = self.voters().any(|peer| peer.progress.is_short_of_space);
        !self.is_short_of_space
            && (!is_any_short || self.peers_with_space(now).count() + 1 >= self.majority())
    }

    /// The followers that were heard of late, and have space.
    fn peers_with_space(&self, now: Time) -> impl Iterator<Item = &Peer> {
        self.voters().filter(move |peer| !self.is_silent(peer, now) && !peer.progress.is_short_of_space)
    }

    /// A new leader waits with leaving until every follower has had time to say whether it has space.
    pub(super) fn begin_to_watch_space(&mut self, now: Time) {
        self.leading.may_leave_at = now + self.config.election_max;
    }

    /// A leader without space hands over to a follower that has some, if there is a majority of those: the cell need not
    /// stand still for one full disk, whosever it is. Of a cell that is to be quiet nothing new is asked.
    pub(super) fn leave_if_short_of_space(&mut self, now: Time, fx: &mut Effects) {
        let is_time = self.leading.is_serving && now >= self.leading.may_leave_at && self.stop.is_none();
        let is_in_need = self.is_short_of_space && !self.is_settled;
        if !is_in_need || !is_time || self.peers_with_space(now).count() < self.majority() {
            return;
        }
        let able = self.peers_with_space(now).filter(|peer| !peer.progress.waits_for_snapshot());
        let successor = able.max_by_key(|peer| peer.progress.matched);
        if let Some(node) = successor.map(|peer| peer.node) {
            let patience = Span(self.config.election_max.0 * ATTEMPT_EVERY);
            self.leading.may_leave_at = now + patience;
            self.hand_over(node, false, now, fx);
        }
    }
}
