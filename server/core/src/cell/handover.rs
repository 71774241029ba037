//! A hand-over that an operator asked for: begun, followed, and answered by what became of it.
//!
//! Invariant: whoever asked is told once: who leads now, that leadership has not moved, or that this is not known.
//! Deliberately absent: the hand-over itself, which is Raft's.

use lockstep_wire::reply::Reply;
use lockstep_wire::{NodeId, Status};

use super::Cell;
use super::calls::Call;
use crate::effect::Effects;
use crate::time::Time;

/// A hand-over under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handover {
    call: Call,
    to: NodeId,
    /// The member has been told to take over, and may do so whatever this node thinks of it.
    is_told: bool,
    /// How long a node that leads no more waits to hear who does.
    until: Time,
}

impl Cell {
    /// The leader is asked to hand over; to the one that [`Raft::successor`](crate::raft::Raft::successor) names when `to` is 0.
    pub(crate) fn on_transfer(&mut self, call: Call, to: NodeId, now: Time, fx: &mut Effects) {
        if self.is_stopping {
            return self.refuse(
                call,
                Status::ShuttingDown,
                "this node is stopping, and hands over by itself",
                fx,
            );
        }
        if to == self.config.node {
            return self.refuse(call, Status::Invalid, &format!("node {to} leads already"), fx);
        }
        if to != NodeId(0) && !self.raft.membership().is_voter(to) {
            let what = match self.raft.membership().get(to) {
                Some(_) => "a learner; promote it first",
                None => "no member of this cell",
            };
            let detail = format!("node {to} is {what}");
            return self.refuse(call, Status::Invalid, &detail, fx);
        }
        if self.raft.is_transferring() {
            return self.refuse(call, Status::NoQuorum, "leadership is moving to another member", fx);
        }
        let to = if to == NodeId(0) { self.raft.successor(now) } else { Some(to) };
        let Some(to) = to else {
            let detail =
                "no other member is heard that has caught up and whose disk has room; name one to try it";
            return self.refuse(call, Status::NoQuorum, detail, fx);
        };
        if self.raft.is_peer_short_of_space(to) && !self.raft.is_short_of_space() {
            let detail = format!(
                "the disk of node {to} is full: it could not grant, and would not stay; make room there first"
            );
            return self.refuse(call, Status::NoQuorum, &detail, fx);
        }
        if !self.raft.transfer(to, now, fx) {
            let detail = format!("node {to} is not heard by node {}; start it first", self.config.node);
            return self.refuse(call, Status::NoQuorum, &detail, fx);
        }
        let until = now + self.config.election_max + self.config.election_max;
        self.handover = Some(Handover { call, to, is_told: self.raft.has_told_successor(), until });
    }

    /// Looks whether a hand-over has come about, or will not.
    pub(crate) fn follow_handover(&mut self, now: Time, fx: &mut Effects) {
        let Some(handover) = &mut self.handover else { return };
        if self.raft.is_transferring() {
            handover.is_told |= self.raft.has_told_successor();
            return;
        }
        let Handover { call, to, is_told, until } = *handover;
        let leader = self.raft.leader().filter(|_| !self.raft.is_leader());
        if leader.is_none() && !self.raft.is_leader() && now < until {
            return;
        }
        self.handover = None;
        match leader {
            Some(leader) => self.answer(call, &Reply::Transferred { leader, term: self.raft.term() }, fx),
            None if is_told => {
                let detail = format!("node {to} was told to take over and is not known to lead yet");
                self.refuse(call, Status::OutcomeUnknown, &detail, fx);
            }
            None if self.raft.is_leader() => {
                let detail = format!("node {to} did not catch up within an election timeout");
                self.refuse(call, Status::NoQuorum, &detail, fx);
            }
            None => {
                let detail = format!("this node lost its office before node {to} was told to take over");
                self.refuse(call, Status::NoQuorum, &detail, fx);
            }
        }
    }

    /// When somebody who asked for a hand-over is to be answered at the latest.
    pub(crate) fn handover_deadline(&self) -> Time {
        let handover = self.handover.filter(|_| !self.raft.is_leader());
        handover.map_or(Time::NEVER, |handover| handover.until)
    }
}
