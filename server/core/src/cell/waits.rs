//! The timers of acquires that wait for a limited time.
//!
//! Invariant: a timer names its wait, so that one that fires late changes nothing; it lives in the
//! leader's memory and starts again with each leader (ARCHITECTURE section 2, "Timer entries name their object").

use std::collections::{BTreeMap, BTreeSet};

use lockstep_wire::{RequestId, SessionId};

use crate::time::Time;

type Wait = (SessionId, RequestId);

/// The timers of one leader.
#[derive(Debug, Default)]
pub(crate) struct WaitTimers {
    deadlines: BTreeMap<Wait, Time>,
    queue: BTreeSet<(Time, Wait)>,
}

impl WaitTimers {
    /// Starts a timer; one that runs already keeps the earlier of its deadlines.
    pub(crate) fn start(&mut self, session: SessionId, acquire_id: RequestId, deadline: Time) {
        let wait = (session, acquire_id);
        if self.deadlines.get(&wait).is_some_and(|running| *running <= deadline) {
            return;
        }
        self.stop(session, acquire_id);
        self.deadlines.insert(wait, deadline);
        self.queue.insert((deadline, wait));
    }

    /// Stops a timer.
    pub(crate) fn stop(&mut self, session: SessionId, acquire_id: RequestId) {
        let wait = (session, acquire_id);
        if let Some(deadline) = self.deadlines.remove(&wait) {
            self.queue.remove(&(deadline, wait));
        }
    }

    /// The first wait whose time is over; it goes on being that until it is stopped.
    pub(crate) fn first_due(&self, now: Time) -> Option<Wait> {
        let (deadline, wait) = *self.queue.first()?;
        (deadline <= now).then_some(wait)
    }

    /// When the next one fires.
    pub(crate) fn deadline(&self) -> Time {
        self.queue.first().map_or(Time::NEVER, |(deadline, _)| *deadline)
    }

    /// Stops them all.
    pub(crate) fn clear(&mut self) {
        *self = WaitTimers::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_sent_again_keeps_the_earlier_deadline_until_it_is_stopped() {
        let mut timers = WaitTimers::default();
        let (session, acquire) = (SessionId(1), RequestId(2));
        timers.start(session, acquire, Time(50));
        timers.start(session, acquire, Time(70));
        assert_eq!(timers.deadline(), Time(50));
        timers.start(session, acquire, Time(40));
        assert_eq!(timers.first_due(Time(39)), None);
        assert_eq!(timers.first_due(Time(40)), Some((session, acquire)));
        timers.stop(session, acquire);
        assert_eq!(timers.first_due(Time(100)), None);
        assert_eq!(timers.deadline(), Time::NEVER);
    }
}
