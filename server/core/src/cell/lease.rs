//! The leases of a leader's sessions: deadlines in memory, one slot a session (ARCHITECTURE sections 4.3 and 4.4).
//!
//! Invariants: a session is named as due only when leaders have acknowledged nothing from it for a whole
//! TTL, stalls of this process and what no entry tells of earlier leaders aside; no moment counts twice in the silence
//! of a session, nor does one before its last acknowledgement or before this leader served; a session whose silence is
//! in the log is not acknowledged; a beat touches its slot and nothing else; taking office touches no slot at all.
//! Deliberately absent: what an expiry does, how silence is logged, and how a beat is confirmed.

use std::collections::{BTreeMap, VecDeque};

use lockstep_wire::LogIndex;
use lockstep_wire::mutant::{self, Mutant};

use crate::table::SessionSlot;
use crate::time::{Span, Time};

/// A gap between two steps from which on the loop counts as stalled.
const STALL: Span = Span::from_ms(100);
/// How long somebody of whom something has arrived that is not answered yet is let alone.
const ARRIVAL: Span = Span::from_ms(100);
/// The width of a wheel's bucket; a deadline is noticed at most this late.
const BUCKET: Span = Span::from_ms(16);
/// Slots that are looked at in one turn: all sessions of a new leader may stand in the same bucket.
const LOOKS_PER_TURN: usize = 1_024;
/// In place of a bucket: the slot stands among those that are due.
const DUE: u64 = u64::MAX;
/// In place of a bucket: the slot stands among those that are quiet.
const QUIET: u64 = u64::MAX - 1;
/// The longest silence that a change of leader loses once some of it was logged.
const SILENCE_STEP_MAX: Span = Span::from_ms(2_000);

/// A moment on the clock that stands still while this process is stalled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct LeaseTime(u64);

/// What the leader keeps of one session in its present tenure.
#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    /// Which tenure the rest belongs to; of an older one it means nothing.
    tenure: u64,
    deadline: LeaseTime,
    /// Up to here it was heard, or its silence was logged.
    counted: LeaseTime,
    /// When its silence is to be logged.
    quiet_at: LeaseTime,
    /// The newest entry that logs its silence; 0 for none.
    silent_at: LogIndex,
    /// The newest entry that logs its return; 0 for none.
    returned_at: LogIndex,
    /// The bucket in which the slot is looked at again, [`DUE`] or [`QUIET`]; an entry anywhere else is out of date.
    /// 0 for none.
    bucket: u64,
    is_doomed: bool,
    /// A beat has arrived that is not answered yet.
    is_beating: bool,
    /// An attach or an open that found the session has arrived and is not answered yet.
    is_returning: bool,
}

/// Whether a session may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// Its TTL has begun anew.
    Renewed,
    /// Not any more: its end is on its way.
    Doomed,
    /// Not yet: its silence is in the log, and its successor would count it.
    Silent,
}

/// How long a session stays silent, once it is, before more of it is logged: X in ARCHITECTURE section 4.4.
pub(crate) fn silence_step(ttl: Span) -> Span {
    Span(ttl.0 / 4).min(SILENCE_STEP_MAX)
}

/// When the silence of a session is to be logged that was heard, or found, then.
fn quiet_at(heard: LeaseTime, span: Span) -> LeaseTime {
    LeaseTime(if mutant::is(Mutant::SilenceNeverLogged) { u64::MAX } else { heard.0 + span.0 })
}

/// The leases of one leader; made anew in each tenure without a scan.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    tenure: u64,
    slots: Vec<Lease>,
    /// Slots by the bucket in which to look at them again.
    wheel: BTreeMap<u64, Vec<SessionSlot>>,
    due: VecDeque<SessionSlot>,
    quiet: VecDeque<SessionSlot>,
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
        self.quiet.clear();
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
        self.extend(slot, ttl);
    }

    /// Forgets a session that has ended. Nobody looks at its slot again before another one has it.
    pub(crate) fn close(&mut self, slot: SessionSlot) {
        *self.lease(slot) = Lease { tenure: self.tenure, ..Lease::default() };
    }

    /// Gives a session from the beginning of the tenure what its logged silence has left of its TTL, unless it has
    /// been given a whole one already.
    pub(crate) fn arm(&mut self, slot: SessionSlot, ttl: Span, silence: Span) {
        let began = self.office_began;
        let lease = self.lease(slot);
        if lease.bucket == 0 && !lease.is_doomed {
            let silence = if mutant::is(Mutant::SuccessorIgnoresSilence) { Span(0) } else { silence };
            let doubled = if mutant::is(Mutant::DeadlineDoubledAtFailover) { ttl } else { Span(0) };
            lease.deadline = LeaseTime(began.0 + doubled.0 + ttl.0.saturating_sub(silence.0));
            lease.counted = began;
            lease.quiet_at = quiet_at(began, silence_step(ttl));
            self.watch(slot);
        }
    }

    /// Whether silence of a session is in the log, of which the table has `silence_ms` and has applied so much.
    pub(crate) fn is_silent(&mut self, slot: SessionSlot, silence_ms: u32, applied: LogIndex) -> bool {
        let is_logged = silence_ms > 0 || self.lease(slot).silent_at > applied;
        is_logged && !mutant::is(Mutant::AcknowledgeSilent)
    }

    /// Gives a session a whole TTL from now on, if it may be acknowledged; the others as for [`Leases::is_silent`].
    pub(crate) fn renew(
        &mut self,
        slot: SessionSlot,
        ttl: Span,
        silence_ms: u32,
        applied: LogIndex,
    ) -> Renewal {
        let lease = self.lease(slot);
        if lease.is_doomed && !mutant::is(Mutant::AcknowledgeDoomed) {
            self.forget_arrivals(slot);
            return Renewal::Doomed;
        }
        if self.is_silent(slot, silence_ms, applied) {
            return Renewal::Silent;
        }
        self.extend(slot, ttl);
        Renewal::Renewed
    }

    /// Whether an entry that logs the return of a session is on its way.
    pub(crate) fn is_return_under_way(&mut self, slot: SessionSlot, applied: LogIndex) -> bool {
        self.lease(slot).returned_at > applied
    }

    /// The entry at `index` logs that a session has returned.
    pub(crate) fn on_returning(&mut self, slot: SessionSlot, index: LogIndex) {
        self.lease(slot).returned_at = index;
    }

    /// Gives a session a whole TTL from now on, without that anybody is told.
    pub(crate) fn extend(&mut self, slot: SessionSlot, ttl: Span) {
        let now = self.lease_now();
        let lease = self.lease(slot);
        lease.is_beating = false;
        lease.is_returning = false;
        lease.deadline = LeaseTime(now.0 + ttl.0);
        lease.counted = now;
        lease.quiet_at = quiet_at(now, Span(ttl.0 / 2));
        if lease.bucket == 0 && !lease.is_doomed {
            self.watch(slot);
        }
    }

    /// Notes that a beat has arrived. False when one was waiting for its answer already.
    pub(crate) fn on_beat(&mut self, slot: SessionSlot) -> bool {
        !std::mem::replace(&mut self.lease(slot).is_beating, true)
    }

    /// Notes that an attach or an open of a session has arrived, which counts as a beat when it is answered.
    pub(crate) fn on_return(&mut self, slot: SessionSlot) {
        self.lease(slot).is_returning = true;
    }

    /// Forgets a beat that will not be answered: the session has been attached elsewhere.
    pub(crate) fn forget_beat(&mut self, slot: SessionSlot) {
        self.lease(slot).is_beating = false;
    }

    /// Forgets whatever has arrived of a session and will not be answered.
    fn forget_arrivals(&mut self, slot: SessionSlot) {
        let lease = self.lease(slot);
        lease.is_beating = false;
        lease.is_returning = false;
    }

    /// Marks a session whose end has been proposed.
    pub(crate) fn doom(&mut self, slot: SessionSlot) {
        self.lease(slot).is_doomed = true;
    }

    /// Whether the end of a session has been proposed.
    pub(crate) fn is_doomed(&mut self, slot: SessionSlot) -> bool {
        self.lease(slot).is_doomed
    }

    /// Has a slot looked at when its session may be quiet or due.
    fn watch(&mut self, slot: SessionSlot) {
        self.watch_from(slot, LeaseTime(0));
    }

    /// Likewise, and not before this.
    fn watch_from(&mut self, slot: SessionSlot, from: LeaseTime) {
        let lease = self.lease(slot);
        let bucket = lease.deadline.min(lease.quiet_at).max(from).0 / BUCKET.0 + 1;
        lease.bucket = bucket;
        self.wheel.entry(bucket).or_default().push(slot);
    }

    /// Looks at some of those that may be due or quiet, unless earlier ones are not dealt with. True when
    /// some are: the input that was waiting when this was noticed must be drained before anything comes of it.
    pub(crate) fn notice(&mut self) -> bool {
        if self.has_noticed() {
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
            if lease.is_doomed {
                self.lease(slot).bucket = 0;
            } else if lease.deadline < now {
                self.put_back(slot);
            } else if lease.quiet_at < now {
                self.put_back_quiet(slot);
            } else {
                self.watch(slot);
            }
        }
        self.has_noticed()
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
            if lease.is_beating || lease.is_returning {
                self.watch_from(slot, LeaseTime(now.0 + ARRIVAL.0));
            } else if lease.deadline >= now {
                self.watch(slot);
            } else {
                self.lease(slot).bucket = 0;
                return Some(slot);
            }
        }
        None
    }

    /// The next session that has been quiet for long enough to log it, now that the input has been drained, and for
    /// how many ms. One of which something has arrived meanwhile is watched again instead.
    pub(crate) fn poll_quiet(&mut self) -> Option<(SessionSlot, u32)> {
        let now = self.lease_now();
        while let Some(slot) = self.quiet.pop_front() {
            let lease = *self.lease(slot);
            if lease.bucket != QUIET {
                continue;
            }
            if lease.deadline < now && !lease.is_doomed {
                self.put_back(slot);
            } else if lease.is_beating || lease.is_returning {
                self.watch_from(slot, LeaseTime(now.0 + ARRIVAL.0));
            } else if lease.quiet_at >= now {
                self.watch(slot);
            } else {
                self.lease(slot).bucket = 0;
                if !lease.is_doomed {
                    let ms = Span(now.0 - lease.counted.0).ms();
                    return Some((slot, u32::try_from(ms).unwrap_or(u32::MAX)));
                }
            }
        }
        None
    }

    /// The entry at `index` logs that a session was silent for so many ms more.
    pub(crate) fn on_silence(&mut self, slot: SessionSlot, ms: u32, ttl: Span, index: LogIndex) {
        let lease = self.lease(slot);
        let counted = LeaseTime(lease.counted.0 + Span::from_ms(u64::from(ms)).0);
        lease.quiet_at = LeaseTime(counted.0 + silence_step(ttl).0);
        if !mutant::is(Mutant::SilenceAddedTwice) {
            lease.counted = counted;
        }
        lease.silent_at = index;
        self.watch(slot);
    }

    /// Takes back a session whose silence could not be logged now.
    pub(crate) fn put_back_quiet(&mut self, slot: SessionSlot) {
        self.lease(slot).bucket = QUIET;
        self.quiet.push_back(slot);
    }

    /// Takes back a session that was named as due and could not be ended now.
    pub(crate) fn put_back(&mut self, slot: SessionSlot) {
        self.lease(slot).bucket = DUE;
        self.due.push_back(slot);
    }

    /// Whether some are due or quiet, and nothing has come of it yet.
    pub(crate) fn has_noticed(&self) -> bool {
        !self.due.is_empty() || !self.quiet.is_empty()
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
            drained(leases);
        }
        drained(leases)
    }

    /// Logs the silence of whoever is quiet; whether somebody is due.
    fn drained(leases: &mut Leases) -> bool {
        while leases.notice() && !leases.quiet.is_empty() {
            while let Some((slot, ms)) = leases.poll_quiet() {
                leases.on_silence(slot, ms, TTL, LogIndex(1));
            }
        }
        !leases.due.is_empty()
    }

    /// As if all that was logged of its silence had been ended by another entry.
    fn renew(leases: &mut Leases) -> bool {
        leases.renew(slot(), TTL, 0, LogIndex(9)) == Renewal::Renewed
    }

    /// The silence that is to be logged of the slot by then.
    fn quiet_at(leases: &mut Leases, ms: u64) -> Option<u32> {
        while leases.stepped < Time(ms * 1_000_000) {
            let next = (leases.stepped + Span::from_ms(50)).min(Time(ms * 1_000_000));
            leases.on_step(next);
        }
        leases.notice();
        leases.poll_quiet().map(|(_, ms)| ms)
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
        assert!(renew(&mut leases));
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
        assert!(renew(&mut leases));
        assert!(!at(&mut leases, 2_000));
        assert!(at(&mut leases, 2_200), "it is still watched");
    }

    #[test]
    fn a_doomed_session_is_not_renewed() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        leases.doom(slot());
        assert!(!renew(&mut leases));
        leases.forget();
        assert!(renew(&mut leases), "a new tenure knows no doom");
    }

    #[test]
    fn a_stalled_loop_ends_nobody_early() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        at(&mut leases, 500);
        leases.on_step(Time(5_500 * 1_000_000));
        assert!(!drained(&mut leases), "4,900 ms of the 5,000 do not count");
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
        renew(&mut leases);
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
        assert!(renew(&mut leases));
        assert!(!at(&mut leases, 2_000));
        assert!(at(&mut leases, 2_200));
        assert_eq!(leases.poll_due(), Some(slot()));
    }

    #[test]
    fn many_deadlines_at_one_moment_are_looked_at_in_slices() {
        let mut leases = leading();
        for index in 0..3 * LOOKS_PER_TURN {
            leases.arm(SessionSlot::from_index(index), TTL, Span(0));
        }
        let mut named = 0;
        let mut turns = 0;
        assert!(at(&mut leases, 1_100));
        while drained(&mut leases) {
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

    #[test]
    fn silence_is_told_after_half_a_ttl_and_then_in_steps_that_add_up() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        assert_eq!(quiet_at(&mut leases, 500), None);
        let first = quiet_at(&mut leases, 520).expect("half a TTL is over");
        assert!((500..=520).contains(&first));
        leases.on_silence(slot(), first, TTL, LogIndex(5));
        assert_eq!(quiet_at(&mut leases, 740), None, "the next step is a quarter of a TTL");
        let second = quiet_at(&mut leases, 800).expect("a step is over");
        assert!((795..=800).contains(&(first + second)), "{first} + {second}");
        leases.on_silence(slot(), second, TTL, LogIndex(6));
        assert!(at(&mut leases, 1_050), "and the TTL ends when it would have ended");
        assert_eq!(leases.poll_due(), Some(slot()));
    }

    #[test]
    fn a_session_of_the_tenure_before_is_silent_after_a_step_and_due_when_its_ttl_has_been_used_up() {
        let mut leases = leading();
        leases.arm(slot(), TTL, Span::from_ms(600));
        assert_eq!(quiet_at(&mut leases, 250), None);
        let first = quiet_at(&mut leases, 270).expect("a quarter of a TTL is over");
        assert!((250..=270).contains(&first), "what was logged before is not logged again: {first}");
        leases.on_silence(slot(), first, TTL, LogIndex(5));
        assert!(!at(&mut leases, 400));
        assert!(at(&mut leases, 450));
        assert_eq!(leases.poll_due(), Some(slot()));
    }

    #[test]
    fn a_session_that_was_silent_for_its_whole_ttl_is_due_once_its_leader_serves_and_has_drained() {
        let mut leases = leading();
        leases.arm(slot(), TTL, Span::from_ms(60_000));
        assert!(at(&mut leases, 50));
        leases.on_return(slot());
        assert_eq!(leases.poll_due(), None, "what came meanwhile counts");
    }

    #[test]
    fn a_stall_counts_as_silence_of_nobody() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        at(&mut leases, 400);
        leases.on_step(Time(3_400 * 1_000_000));
        assert!(!leases.notice(), "400 + 100 ms have counted");
        let told = quiet_at(&mut leases, 3_450).expect("half a TTL is over");
        assert!((500..=550).contains(&told), "{told}");
    }

    #[test]
    fn a_beat_that_was_waiting_when_the_quiet_was_noticed_is_no_silence() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        for ms in (0..=550).step_by(50) {
            leases.on_step(Time(ms * 1_000_000 + 1));
        }
        assert!(leases.notice());
        leases.on_beat(slot());
        assert_eq!(leases.poll_quiet(), None);
        assert!(renew(&mut leases));
        assert_eq!(quiet_at(&mut leases, 1_040), None);
        assert!(quiet_at(&mut leases, 1_100).is_some(), "it is still watched");
    }

    #[test]
    fn whoever_is_silent_in_the_log_is_not_renewed() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        let told = quiet_at(&mut leases, 600).unwrap();
        leases.on_silence(slot(), told, TTL, LogIndex(5));
        let (before, after) = (LogIndex(4), LogIndex(5));
        assert_eq!(leases.renew(slot(), TTL, 0, before), Renewal::Silent, "it is appended");
        assert_eq!(leases.renew(slot(), TTL, 1, after), Renewal::Silent, "it has applied");
        assert_eq!(leases.renew(slot(), TTL, 0, after), Renewal::Renewed, "it was ended");
        leases.doom(slot());
        assert_eq!(leases.renew(slot(), TTL, 1, after), Renewal::Doomed);
    }

    #[test]
    fn silence_that_could_not_be_logged_is_told_again_and_whole() {
        let mut leases = leading();
        leases.open(slot(), TTL);
        let first = quiet_at(&mut leases, 550).unwrap();
        leases.put_back_quiet(slot());
        assert!(leases.has_noticed());
        let again = quiet_at(&mut leases, 600).unwrap();
        assert!(again >= first + 50);
    }
}
