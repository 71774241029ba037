//! What a leader knows of one follower: how far its log matches, and what is on its way to it.
//!
//! Invariant: `matched` never falls within a term, `next` is always behind it, and what is in flight is
//! bounded. Deliberately absent: the messages and the log.

use std::collections::VecDeque;

use lockstep_wire::{LogIndex, RoundId, SnapshotId};

use crate::{Span, Time};

/// One follower, as its leader sees it.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The follower's disk has the leader's log through here.
    pub(super) matched: LogIndex,
    /// The index that is sent next.
    pub(super) next: LogIndex,
    /// The newest round that it has answered.
    pub(super) answered: RoundId,
    /// When it was last heard in this term; a new leader counts from its first moment.
    pub(super) heard_at: Time,
    /// It was heard in this term.
    pub(super) is_heard: bool,
    /// Its disk has no room for the next segment of its log, as it last said in this term.
    pub(super) is_short_of_space: bool,
    /// When a snapshot may be tried (again), if it needs one.
    pub(super) snapshot_at: Time,
    /// The least index that the snapshot must reach.
    pub(super) snapshot_least: LogIndex,
    /// The snapshot that it was sent pieces of last.
    pub(super) snapshot_tried: Option<SnapshotId>,
    /// The entries that it lacks are gone.
    needs_snapshot: bool,
    /// It has entries, and no state to apply them to.
    lacks_state: bool,
    /// Where the logs match is being looked for: one message at a time, until it is known.
    is_probing: bool,
    /// Since when an acknowledgement is waited for.
    waiting_since: Option<Time>,
    in_flight: VecDeque<(LogIndex, usize)>,
    in_flight_bytes: usize,
}

impl Progress {
    /// A leader of a new term knows nothing and tries the end of its own log, `last`.
    pub(super) fn restart(&mut self, last: LogIndex, now: Time) {
        self.matched = LogIndex(0);
        self.next = last.next();
        self.answered = RoundId(0);
        self.heard_at = now;
        self.is_heard = false;
        self.is_short_of_space = false;
        self.snapshot_at = now;
        self.snapshot_least = LogIndex(0);
        self.snapshot_tried = None;
        self.needs_snapshot = false;
        self.lacks_state = false;
        self.probe();
    }

    /// It has answered something of this term.
    pub(super) fn on_heard(&mut self, now: Time) {
        self.heard_at = now;
        self.is_heard = true;
    }

    /// The entries that it lacks are gone: it gets a snapshot, and no entries until it has it.
    pub(super) fn need_snapshot(&mut self) {
        self.needs_snapshot = true;
        self.probe();
    }

    /// It has no state to apply its entries to: it gets a snapshot through `least` or further, and entries meanwhile,
    /// because they are as good as anybody's for a majority.
    pub(super) fn lack_state(&mut self, least: LogIndex) {
        self.lacks_state = true;
        self.snapshot_least = self.snapshot_least.max(least);
    }

    /// Whether it waits for a snapshot.
    pub(super) fn waits_for_snapshot(&self) -> bool {
        self.needs_snapshot || self.lacks_state
    }

    /// It has all that is in a snapshot through here: the entries behind that are what it gets next.
    pub(super) fn on_installed(&mut self, index: LogIndex) {
        if index < self.snapshot_least {
            return;
        }
        self.lacks_state = false;
        self.snapshot_least = LogIndex(0);
        self.snapshot_tried = None;
        if std::mem::take(&mut self.needs_snapshot) {
            self.probe();
            self.next = self.next.max(index.next());
        }
    }

    /// What was on its way is lost, or may be: looks again where the logs match.
    pub(super) fn probe(&mut self) {
        self.is_probing = true;
        self.waiting_since = None;
        self.in_flight.clear();
        self.in_flight_bytes = 0;
        if self.matched > LogIndex(0) {
            self.next = self.matched.next();
        }
    }

    /// Looks again when an acknowledgement has been waited for longer than `patience`.
    pub(super) fn probe_if_overdue(&mut self, now: Time, patience: Span) {
        if self.waiting_since.is_some_and(|since| now.since(since) > patience) {
            self.probe();
        }
    }

    /// Whether it is looked for where the logs match.
    pub(super) fn is_probing(&self) -> bool {
        self.is_probing
    }

    /// Whether a message may be sent now.
    pub(super) fn has_room(&self, bytes_max: usize) -> bool {
        match (self.needs_snapshot, self.is_probing) {
            (true, _) => false,
            (false, true) => self.waiting_since.is_none(),
            (false, false) => self.in_flight_bytes < bytes_max,
        }
    }

    /// A message with the entries from `next` through `through` went out; `through` is before `next` when
    /// it carried none.
    pub(super) fn on_sent(&mut self, through: LogIndex, bytes: usize, now: Time) {
        self.waiting_since.get_or_insert(now);
        if self.is_probing {
            return;
        }
        self.in_flight.push_back((through, bytes));
        self.in_flight_bytes += bytes;
        self.next = through.next();
    }

    /// The follower's disk has the leader's log through here. Says whether that is news.
    pub(super) fn on_durable(&mut self, through: LogIndex, now: Time) -> bool {
        let is_news = through > self.matched;
        self.matched = self.matched.max(through);
        if self.is_probing {
            // A late answer, or a disk that is behind: the match at `next` is not known before it comes up to it.
            if through < self.next.prev() {
                return is_news;
            }
            self.is_probing = false;
            self.waiting_since = None;
        }
        self.next = self.next.max(self.matched.next());
        while self.in_flight.front().is_some_and(|(last, _)| *last <= self.matched) {
            let (_, bytes) = self.in_flight.pop_front().expect("there is one");
            self.in_flight_bytes -= bytes;
        }
        if self.in_flight.is_empty() {
            self.waiting_since = None;
        } else if is_news {
            self.waiting_since = Some(now);
        }
        is_news
    }

    /// The follower's log does not match at `prev_index`; `next` is where to try then. Says false when
    /// the follower must have lost what it had confirmed, and ignores answers to older messages.
    pub(super) fn on_conflict(&mut self, prev_index: LogIndex, next: LogIndex) -> bool {
        if self.is_probing {
            if self.waiting_since.is_none() || prev_index != self.next.prev() {
                return true;
            }
            if prev_index <= self.matched {
                // Waits for the time-out: asking again at once would get the same answer for ever.
                return false;
            }
        } else if prev_index <= self.matched || prev_index >= self.next {
            return true;
        }
        self.probe();
        self.next = next.min(prev_index).max(self.matched.next());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piping(matched: u64) -> Progress {
        let mut progress = Progress::default();
        progress.restart(LogIndex(matched), Time(0));
        progress.on_sent(LogIndex(matched), 0, Time(0));
        progress.on_durable(LogIndex(matched), Time(0));
        progress
    }

    #[test]
    fn bytes_in_flight_are_bounded_and_freed_by_acknowledgements() {
        let mut progress = piping(5);
        progress.on_sent(LogIndex(6), 60, Time(1));
        assert!(progress.has_room(100));
        progress.on_sent(LogIndex(9), 60, Time(1));
        assert!(!progress.has_room(100));
        progress.on_durable(LogIndex(7), Time(2));
        assert!(progress.has_room(100));
        assert_eq!((progress.matched, progress.next), (LogIndex(7), LogIndex(10)));
    }

    #[test]
    fn silence_about_what_is_in_flight_leads_back_to_the_match() {
        let mut progress = piping(5);
        progress.on_sent(LogIndex(8), 60, Time(10));
        progress.probe_if_overdue(Time(20), Span(10));
        assert!(!progress.is_probing());
        progress.probe_if_overdue(Time(21), Span(10));
        assert!(progress.is_probing());
        assert_eq!(progress.next, LogIndex(6));
    }

    #[test]
    fn a_follower_with_a_snapshot_is_probed_behind_it() {
        let mut progress = piping(5);
        progress.need_snapshot();
        assert!(progress.waits_for_snapshot() && !progress.has_room(100));
        progress.on_installed(LogIndex(9));
        assert!(!progress.waits_for_snapshot() && progress.is_probing() && progress.has_room(100));
        assert_eq!((progress.matched, progress.next), (LogIndex(5), LogIndex(10)));
    }

    #[test]
    fn a_follower_without_a_state_gets_entries_while_it_waits_for_a_snapshot() {
        let mut progress = piping(5);
        progress.lack_state(LogIndex(7));
        assert!(progress.waits_for_snapshot() && progress.has_room(100));
        progress.on_installed(LogIndex(6));
        assert!(progress.waits_for_snapshot(), "an older one does not do");
        progress.on_installed(LogIndex(7));
        assert!(!progress.waits_for_snapshot());
        assert_eq!(progress.next, LogIndex(6), "nothing that it was sent is sent again");
    }

    #[test]
    fn stale_and_repeated_answers_change_nothing() {
        let mut progress = piping(5);
        progress.on_sent(LogIndex(8), 60, Time(10));
        assert!(!progress.on_durable(LogIndex(3), Time(11)));
        assert!(progress.on_conflict(LogIndex(5), LogIndex(2)));
        assert!(!progress.is_probing());
        assert_eq!((progress.matched, progress.next), (LogIndex(5), LogIndex(9)));
    }

    #[test]
    fn a_follower_that_denies_what_it_confirmed_is_noticed_and_not_asked_in_a_loop() {
        let mut progress = piping(5);
        progress.probe();
        progress.on_sent(LogIndex(5), 0, Time(10));
        assert!(!progress.on_conflict(LogIndex(5), LogIndex(2)));
        assert!(!progress.has_room(100));
        assert_eq!(progress.next, LogIndex(6));
    }
}
