//! The leases of a leader's sessions: deadlines in memory, one slot a session (ARCHITECTURE sections 4.3 and 4.4).
//!
//! Invariants: a session is named as due only when its leader has acknowledged nothing from it for a whole
//! TTL, stalls of this process aside; a beat touches its slot and nothing else; taking office touches no
//! slot at all. Deliberately absent: what an expiry does, and how a beat is confirmed.

use std::collections::{BTreeMap, VecDeque};

use crate::table::SessionSlot;
use crate::time::{Span, Time};

/// A gap between two steps from which on the loop counts as stalled.
const STALL: Span = Span::from_ms(100);
/// The width of a wheel's bucket; a deadline is noticed at most this late.
const BUCKET: Span = Span::from_ms(16);
/// Slots that are looked at in one turn: all sessions of a new leader may stand in the same bucket.
const LOOKS_PER_TURN: usize = 1_024;
/// In place of a bucket: the slot stands among those that are due.
const DUE: u64 = u64::MAX;

/// A moment on the clock that stands still while this process is stalled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct LeaseTime(u64);

/// What the leader keeps of one session in its present tenure.
#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    /// Which tenure the rest belongs to; of an older one it means nothing.
    tenure: u64,
    deadline: LeaseTime,
    /// The bucket in which the slot is looked at again, or [`DUE`]; an entry anywhere else is out of date.
    /// 0 for none.
    bucket: u64,
    is_doomed: bool,
    /// A beat has arrived that is not answered yet.
    is_beating: bool,
    /// An attach or an open that found the session has arrived and is not answered yet.
    is_returning: bool,
}

/// The leases of one leader; made anew in each tenure without a scan.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    tenure: u64,
    slots: Vec<Lease>,
    /// Slots by the bucket in which to look at them again.
    wheel: BTreeMap<u64, Vec<SessionSlot>>,
    due: VecDeque<SessionSlot>,
    stalled: Span,
    stepped: Time,
    office_began: LeaseTime,
}

impl Leases {
    /// Notices how long ago the last step was; a stall moves every deadline.
    pub(crate) fn on_step(&mut self, now: Time) {
        let gap = now.since(self.stepped);
        if gap > STALL && self.stepped != Time::default() {
            self.stalled.0 += gap.0 - STALL.0;
        }
        self.stepped = self.stepped.max(now);
    }

    /// The office is lost: whatever was known of any session is forgotten, dooms too. What is told from here on
    /// is of the next tenure, from its election on.
    pub(crate) fn forget(&mut self) {
        self.tenure += 1;
        self.wheel.clear();
        self.due.clear();
    }

    /// The leader serves from now on: this is when the TTL of every session that it finds begins.
    pub(crate) fn take_office(&mut self) {
        self.office_began = self.lease_now();
    }

    /// When the last step was.
    pub(crate) fn stepped(&self) -> Time {
        self.stepped
    }

    fn lease_now(&self) -> LeaseTime {
        LeaseTime(self.stepped.0 - self.stalled.0)
    }

    fn lease(&mut self, slot: SessionSlot) -> &mut Lease {
        let at = slot.index();
        if at >= self.slots.len() {
            self.slots.resize(at + 1, Lease::default());
        }
        let lease = &mut self.slots[at];
        if lease.tenure != self.tenure {
            *lease = Lease { tenure: self.tenure, ..Lease::default() };
        }
        lease
    }

    /// Starts the lease of a session that has just been opened; whoever had the slot before is forgotten.
    pub(crate) fn open(&mut self, slot: SessionSlot, ttl: Span) {
        *self.lease(slot) = Lease { tenure: self.tenure, ..Lease::default() };
        self.renew(slot, ttl);
    }

    /// Forgets a session that has ended. Nobody looks at its slot again before another one has it.
    pub(crate) fn close(&mut self, slot: SessionSlot) {
        *self.lease(slot) = Lease { tenure: self.tenure, ..Lease::default() };
    }

    /// Gives a session a whole TTL from the beginning of the tenure, unless it has been given one already.
    pub(crate) fn arm(&mut self, slot: SessionSlot, ttl: Span) {
        let lease = *self.lease(slot);
        if lease.bucket == 0 && !lease.is_doomed {
            let deadline = LeaseTime(self.office_began.0 + ttl.0);
            self.lease(slot).deadline = deadline;
            self.watch(slot, deadline);
        }
    }

    /// Gives a session a whole TTL from now on. False when it is doomed: it must not be acknowledged.
    pub(crate) fn renew(&mut self, slot: SessionSlot, ttl: Span) -> bool {
        let deadline = LeaseTime(self.lease_now().0 + ttl.0);
        let lease = self.lease(slot);
        lease.is_beating = false;
        lease.is_returning = false;
        if lease.is_doomed {
            return false;
        }
        lease.deadline = deadline;
        if lease.bucket == 0 {
            self.watch(slot, deadline);
        }
        true
    }

    /// Notes that a beat has arrived. False when one was waiting for its answer already.
    pub(crate) fn on_beat(&mut self, slot: SessionSlot) -> bool {
        !std::mem::replace(&mut self.lease(slot).is_beating, true)
    }

    /// Notes that an attach or an open of a session has arrived, which counts as a beat when it is answered.
    pub(crate) fn on_return(&mut self, slot: SessionSlot) {
        self.lease(slot).is_returning = true;
    }

    /// Forgets a beat that will not be answered.
    pub(crate) fn forget_beat(&mut self, slot: SessionSlot) {
        self.lease(slot).is_beating = false;
    }

    /// Marks a session whose end has been proposed.
    pub(crate) fn doom(&mut self, slot: SessionSlot) {
        self.lease(slot).is_doomed = true;
    }

    /// Whether the end of a session has been proposed.
    pub(crate) fn is_doomed(&mut self, slot: SessionSlot) -> bool {
        self.lease(slot).is_doomed
    }

    fn watch(&mut self, slot: SessionSlot, deadline: LeaseTime) {
        let bucket = deadline.0 / BUCKET.0 + 1;
        self.lease(slot).bucket = bucket;
        self.wheel.entry(bucket).or_default().push(slot);
    }

    /// Looks at some of the deadlines that may have passed, unless earlier ones are not dealt with. True when
    /// some are due: the input that was waiting when this was noticed must be drained before any is ended.
    pub(crate) fn notice_due(&mut self) -> bool {
        if !self.due.is_empty() {
            return true;
        }
        let now = self.lease_now();
        for _ in 0..LOOKS_PER_TURN {
            let passed = self.wheel.first_entry().filter(|bucket| *bucket.key() * BUCKET.0 <= now.0);
            let Some(mut bucket) = passed else { break };
            let number = *bucket.key();
            let Some(slot) = bucket.get_mut().pop() else {
                bucket.remove();
                continue;
            };
            let lease = *self.lease(slot);
            if lease.bucket != number {
                continue;
            }
            if lease.deadline < now {
                self.put_back(slot);
            } else {
                self.watch(slot, lease.deadline);
            }
        }
        !self.due.is_empty()
    }

    /// The next session whose deadline has passed, now that the input has been drained. One of which something
    /// has arrived meanwhile is watched again instead.
    pub(crate) fn poll_due(&mut self) -> Option<SessionSlot> {
        let now = self.lease_now();
        while let Some(slot) = self.due.pop_front() {
            let lease = *self.lease(slot);
            if lease.bucket != DUE {
                continue;
            }
            if lease.is_beating || lease.is_returning || lease.deadline >= now {
                self.watch(slot, lease.deadline.max(now));
            } else {
                self.lease(slot).bucket = 0;
                return Some(slot);
            }
        }
        None
    }

    /// Takes back a session that was named as due and could not be ended now.
    pub(crate) fn put_back(&mut self, slot: SessionSlot) {
        self.lease(slot).bucket = DUE;
        self.due.push_back(slot);
    }

    /// Whether deadlines have passed whose sessions are not ended yet.
    pub(crate) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// When to look again.
    pub(crate) fn deadline(&self) -> Time {
        match self.wheel.first_key_value() {
            Some((bucket, _)) => Time(bucket * BUCKET.0 + self.stalled.0),
            None => Time::NEVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Span = Span::from_ms(1_000);
    fn slot() -> SessionSlot {
        SessionSlot::from_index(3)
    }

    fn at(leases: &mut Leases, ms: u64) -> bool {
        // Steps come every 50 ms, as a leader's heartbeats make them come.
        while leases.stepped < Time(ms * 1_000_000) {
            let next = (leases.stepped + Span::from_ms(50)).min(Time(ms * 1_000_000));
            leases.on_step(next);
        }
        leases.notice_due()
    }

    fn leading() -> Leases {
        let mut leases = Leases::default();
        leases.on_step(Time(1));
        leases.forget();
        leases.take_office();
        leases
    }

    #[test]
    fn a_session_is_due_after_its_ttl_and_not_before() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        assert!(!at(&mut leases, 1_000));
        assert!(at(&mut leases, 1_000 + 2 * BUCKET.ms()));
        assert_eq!(leases.poll_due(), Some(slot()));
        assert_eq!(leases.poll_due(), None);
    }

    #[test]
    fn a_confirmed_beat_moves_the_deadline() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        at(&mut leases, 900);
        assert!(leases.on_beat(slot()));
        assert!(!leases.on_beat(slot()), "one beat a session waits for its answer");
        assert!(leases.renew(slot(), TTL));
        assert!(!at(&mut leases, 1_900));
        assert!(at(&mut leases, 1_950));
    }

    #[test]
    fn a_beat_that_was_waiting_when_the_deadline_was_noticed_keeps_the_session() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        assert!(at(&mut leases, 1_100));
        leases.on_beat(slot());
        assert_eq!(leases.poll_due(), None);
        assert!(leases.renew(slot(), TTL));
        assert!(!at(&mut leases, 2_000));
        assert!(at(&mut leases, 2_200), "it is still watched");
    }

    #[test]
    fn a_doomed_session_is_not_renewed() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        leases.doom(slot());
        assert!(!leases.renew(slot(), TTL));
        leases.forget();
        assert!(leases.renew(slot(), TTL), "a new tenure knows no doom");
    }

    #[test]
    fn a_stalled_loop_ends_nobody_early() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        at(&mut leases, 500);
        leases.on_step(Time(5_500 * 1_000_000));
        assert!(!leases.notice_due(), "4,900 ms of the 5,000 do not count");
        assert!(!at(&mut leases, 5_850));
        assert!(at(&mut leases, 5_950));
    }

    #[test]
    fn a_reused_slot_knows_nothing_of_its_former_session() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        leases.on_beat(slot());
        leases.doom(slot());
        leases.open(slot(), TTL);
        assert!(!leases.is_doomed(slot()));
        assert!(leases.on_beat(slot()));
        leases.renew(slot(), TTL);
        assert!(at(&mut leases, 1_100));
        assert_eq!(leases.poll_due(), Some(slot()));
        assert_eq!(leases.poll_due(), None, "an entry of the former session counts for nothing");
    }

    #[test]
    fn an_ended_session_is_not_looked_at_again_though_a_beat_of_it_waits() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        leases.on_beat(slot());
        leases.doom(slot());
        leases.close(slot());
        assert!(!at(&mut leases, 1_100));
        assert_eq!(leases.deadline(), Time::NEVER);
    }

    #[test]
    fn a_slot_that_is_opened_anew_while_it_stands_among_the_due_is_watched_once() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        assert!(at(&mut leases, 1_100));
        leases.close(slot());
        leases.open(slot(), TTL);
        assert_eq!(leases.poll_due(), None);
        assert!(at(&mut leases, 2_200));
        assert_eq!(leases.poll_due(), Some(slot()));
        assert_eq!(leases.poll_due(), None);
    }

    #[test]
    fn an_attach_that_waits_for_its_answer_keeps_the_session() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        assert!(at(&mut leases, 1_100));
        leases.on_return(slot());
        assert_eq!(leases.poll_due(), None);
        assert!(leases.renew(slot(), TTL));
        assert!(!at(&mut leases, 2_000));
        assert!(at(&mut leases, 2_200));
        assert_eq!(leases.poll_due(), Some(slot()));
    }

    #[test]
    fn many_deadlines_at_one_moment_are_looked_at_in_slices() {
        let mut leases = leading();
        for index in 0..3 * LOOKS_PER_TURN {
            leases.arm(SessionSlot::from_index(index), TTL);
        }
        let mut named = 0;
        let mut turns = 0;
        assert!(at(&mut leases, 1_100));
        while leases.notice_due() {
            turns += 1;
            let before = named;
            while leases.poll_due().is_some() {
                named += 1;
            }
            assert!(named - before <= LOOKS_PER_TURN);
        }
        assert_eq!((named, turns), (3 * LOOKS_PER_TURN, 3));
    }

    #[test]
    fn a_reused_slot_with_a_shorter_ttl_is_due_in_time() {
        let mut leases = leading();
        leases.open(slot(), Span::from_ms(60_000));
        leases.open(slot(), TTL);
        assert!(at(&mut leases, 1_100));
        assert_eq!(leases.poll_due(), Some(slot()));
    }
}
