//! Read rounds: how a leader proves that it still leads (ARCHITECTURE section 4.2).
//!
//! Invariant: a round is confirmed only by answers to messages sent after it began, and what is asked
//! for joins a round that begins later. Deliberately absent: who answers (progress keeps that), and the disk.

use lockstep_wire::RoundId;

use crate::{Span, Time};

/// How soon a round has to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Keep-alives: at most one round in each [`super::RaftConfig::round_pace`].
    Paced,
    /// Reads: as soon as none is in flight.
    Now,
}

/// The rounds of one leader in one term.
#[derive(Debug)]
pub(super) struct Rounds {
    pace: Span,
    begun: RoundId,
    began_at: Time,
    confirmed: RoundId,
    announced: RoundId,
    wanted: Option<Urgency>,
}

impl Rounds {
    /// None yet.
    pub(super) fn new(pace: Span) -> Rounds {
        Rounds {
            pace,
            begun: RoundId(0),
            began_at: Time(0),
            confirmed: RoundId(0),
            announced: RoundId(0),
            wanted: None,
        }
    }

    /// The newest round that has begun.
    pub(super) fn begun(&self) -> RoundId {
        self.begun
    }

    /// The newest round that a majority has answered.
    pub(super) fn confirmed(&self) -> RoundId {
        self.confirmed
    }

    /// Joins the next round that begins.
    pub(super) fn ask(&mut self, urgency: Urgency) -> RoundId {
        self.wanted = self.wanted.max(Some(urgency));
        RoundId(self.begun.0 + 1)
    }

    /// When the next round may begin; never while one is in flight or none is wanted.
    pub(super) fn due_at(&self) -> Time {
        match self.wanted {
            Some(_) if self.confirmed < self.begun => Time::NEVER,
            Some(Urgency::Now) => Time(0),
            Some(Urgency::Paced) if self.begun == RoundId(0) => Time(0),
            Some(Urgency::Paced) => self.began_at + self.pace,
            None => Time::NEVER,
        }
    }

    /// Begins a round.
    pub(super) fn begin(&mut self, now: Time) {
        assert!(self.confirmed == self.begun, "one round is in flight at a time");
        self.begun = RoundId(self.begun.0 + 1);
        self.began_at = now;
        self.wanted = None;
    }

    /// A majority has answered the rounds through this one.
    pub(super) fn on_answered(&mut self, through: RoundId) {
        self.confirmed = self.confirmed.max(through);
    }

    /// The newest confirmed round, if that has not been said yet.
    pub(super) fn announce(&mut self) -> Option<RoundId> {
        (self.announced < self.confirmed).then(|| {
            self.announced = self.confirmed;
            self.confirmed
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_during_a_round_joins_the_next() {
        let mut rounds = Rounds::new(Span(5));
        assert_eq!(rounds.ask(Urgency::Now), RoundId(1));
        rounds.begin(Time(10));
        assert_eq!(rounds.ask(Urgency::Now), RoundId(2));
        assert_eq!(rounds.due_at(), Time::NEVER);
        rounds.on_answered(RoundId(1));
        assert_eq!(rounds.announce(), Some(RoundId(1)));
        assert_eq!(rounds.announce(), None);
        assert_eq!(rounds.due_at(), Time(0));
    }

    #[test]
    fn keep_alives_alone_are_paced_and_a_read_is_not() {
        let mut rounds = Rounds::new(Span(5));
        rounds.ask(Urgency::Paced);
        rounds.begin(Time(10));
        rounds.on_answered(RoundId(1));
        rounds.ask(Urgency::Paced);
        assert_eq!(rounds.due_at(), Time(15));
        rounds.ask(Urgency::Now);
        rounds.ask(Urgency::Paced);
        assert_eq!(rounds.due_at(), Time(0));
    }
}
