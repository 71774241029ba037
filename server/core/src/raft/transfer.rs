//! Leaving on purpose: handing leadership to another member (Raft dissertation, section 3.10), and the
//! orderly stop.
//!
//! Invariant: a transfer that does not come about ends after one election timeout, and proposals are
//! taken again. Deliberately absent: choosing when to leave.

use lockstep_wire::NodeId;
use lockstep_wire::peer::PeerMessage;

use super::membership::LAG_MAX;
use super::progress::Progress;
use super::{Peer, Raft, Role};
use crate::{Effect, Effects, Lane, Time};

/// A transfer under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    to: NodeId,
    is_wished: bool,
    until: Time,
    is_told: bool,
}

impl Transfer {
    pub(super) fn is_told(&self) -> bool {
        self.is_told
    }
}

/// An orderly stop under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    until: Time,
    is_done: bool,
}

impl Raft {
    /// Hands leadership to `to`, where an operator wishes it to stay. False, and nothing begun, when this node does not
    /// lead, is handing over already, or does not hear that member.
    pub fn transfer(&mut self, to: NodeId, now: Time, fx: &mut Effects) -> bool {
        self.hand_over(to, true, now, fx)
    }

    pub(super) fn hand_over(&mut self, to: NodeId, is_wished: bool, now: Time, fx: &mut Effects) -> bool {
        let is_possible = self.role == Role::Leader
            && self.leading.transfer.is_none()
            && self.peer_at(to).is_some_and(|at| self.may_take_over(at, now));
        if is_possible {
            let until = now + self.config.election_max;
            self.leading.transfer = Some(Transfer { to, is_wished, until, is_told: false });
            self.hand_over_if_caught_up(fx);
        }
        is_possible
    }

    /// The node is about to stop: hands over, then says [`Effect::Stopped`]. It campaigns no more.
    pub fn on_stop(&mut self, now: Time, fx: &mut Effects) {
        if self.stop.is_some() {
            return;
        }
        self.stop = Some(Stop { until: now + self.config.election_max, is_done: false });
        self.election_at = Time::NEVER;
        if self.role == Role::Leader {
            self.leading.transfer = None;
            match self.successor(now) {
                Some(node) => {
                    self.hand_over(node, false, now, fx);
                }
                None => self.step_down("this node stops", now),
            }
        }
        self.tick_stop(now, fx);
    }

    /// Whether this is a voter that would hear that it is to take over: one whose process stands still keeps its links.
    fn may_take_over(&self, at: usize, now: Time) -> bool {
        let peer = &self.peers[at];
        peer.is_voter && self.is_reachable(at) && !self.is_silent(peer, now)
    }

    /// The followers that would hear it and have a state to lead from.
    fn able(&self, now: Time) -> impl Iterator<Item = &Peer> {
        let is_able =
            move |at: &usize| self.may_take_over(*at, now) && !self.peers[*at].progress.waits_for_snapshot();
        (0..self.peers.len()).filter(is_able).map(|at| &self.peers[at])
    }

    /// The one of them whose disk has the most. It need not catch up first, for a disk that is behind may hang, and its disk
    /// has room; only to a leader that has to leave its office anyway others are better than none.
    pub fn successor(&self, now: Time) -> Option<NodeId> {
        let is_close = |progress: &Progress| {
            !progress.is_probing() && progress.matched.0 + LAG_MAX >= self.log.last_index().0
        };
        let must_leave = self.stop.is_some() || self.is_short_of_space;
        let rated = self.able(now).map(|peer| {
            let progress = &peer.progress;
            ((is_close(progress), !progress.is_short_of_space), progress.matched, peer.node)
        });
        let best = rated.max_by_key(|(fitness, matched, _)| (*fitness, *matched));
        best.filter(|(fitness, ..)| must_leave || *fitness == (true, true)).map(|(.., node)| node)
    }

    /// A leader that cannot go on names a successor, which need not wait for the others' patience.
    pub(super) fn abdicate(&mut self, reason: &'static str, now: Time, fx: &mut Effects) {
        // It will not get what it lacks any more.
        let key = |peer: &&Peer| (peer.progress.matched, !peer.progress.is_short_of_space);
        if let Some(node) = self.able(now).max_by_key(key).map(|peer| peer.node) {
            let message = PeerMessage::TakeOver { term: self.term, is_wished: false };
            fx.send(node, Lane::Control, self.config.cell, &message);
        }
        self.step_down(reason, now);
    }

    /// The target has the whole log: it may campaign.
    pub(super) fn hand_over_if_caught_up(&mut self, fx: &mut Effects) {
        let Some(transfer) = self.leading.transfer.filter(|transfer| !transfer.is_told) else { return };
        let Some(at) = self.peer_at(transfer.to) else { return };
        if self.peers[at].progress.matched == self.log.last_index() {
            let message = PeerMessage::TakeOver { term: self.term, is_wished: transfer.is_wished };
            fx.send(transfer.to, Lane::Control, self.config.cell, &message);
            self.leading.transfer = Some(Transfer { is_told: true, ..transfer });
        }
    }

    pub(super) fn tick_transfer(&mut self, now: Time) {
        if self.leading.transfer.is_some_and(|transfer| now >= transfer.until) {
            self.leading.transfer = None;
        }
    }

    pub(super) fn transfer_deadline(&self) -> Time {
        self.leading.transfer.map_or(Time::NEVER, |transfer| transfer.until)
    }

    /// Ends the orderly stop once this node neither leads nor owes a vote, or when that takes too long.
    pub(super) fn tick_stop(&mut self, now: Time, fx: &mut Effects) {
        let Some(stop) = self.stop.filter(|stop| !stop.is_done) else { return };
        if now >= stop.until {
            self.step_down("this node stops", now);
        } else if self.role == Role::Leader || self.durability.has_deferred() {
            return;
        }
        self.stop = Some(Stop { is_done: true, ..stop });
        fx.push(Effect::Stopped);
    }

    pub(super) fn stop_deadline(&self) -> Time {
        self.stop.filter(|stop| !stop.is_done).map_or(Time::NEVER, |stop| stop.until)
    }
}
