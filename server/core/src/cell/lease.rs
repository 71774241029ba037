//! The leases of a leader's sessions: deadlines in memory, one slot a session (ARCHITECTURE sections 4.3 and 4.4).
//!
//! Invariants: a session is named as due only when leaders have acknowledged nothing from it for a whole
//! TTL, stalls of this process and what no entry tells of earlier leaders aside; no moment counts twice in the silence
//! of a session, nor does one before its last acknowledgement or before this leader served; a session whose silence is
//! in the log is not acknowledged; a beat touches its slot and nothing else; taking office touches no slot at all.
//! Deliberately absent: what an expiry does, how silence is logged, and how a beat is confirmed.

#[cfg(test)]
mod tests;

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
/// In place of a bucket: the slot stands among those that are silent.
const SILENT: u64 = u64::MAX - 1;
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
    silence_due: LeaseTime,
    /// The newest entry that logs its silence; 0 for none.
    silent_at: LogIndex,
    /// The newest entry that logs its return; 0 for none.
    returned_at: LogIndex,
    /// The bucket in which the slot is looked at again, [`DUE`] or [`SILENT`]; an entry anywhere else is out of date.
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
fn silence_due(heard: LeaseTime, span: Span) -> LeaseTime {
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
    silent: VecDeque<SessionSlot>,
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
        self.silent.clear();
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
            lease.silence_due = silence_due(began, silence_step(ttl));
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
        lease.silence_due = silence_due(now, Span(ttl.0 / 2));
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

    /// Has a slot looked at when its session may be silent or due.
    fn watch(&mut self, slot: SessionSlot) {
        self.watch_from(slot, LeaseTime(0));
    }

    /// Likewise, and not before this.
    fn watch_from(&mut self, slot: SessionSlot, from: LeaseTime) {
        let lease = self.lease(slot);
        let bucket = lease.deadline.min(lease.silence_due).max(from).0 / BUCKET.0 + 1;
        lease.bucket = bucket;
        self.wheel.entry(bucket).or_default().push(slot);
    }

    /// Looks at some of those that may be due or silent, unless earlier ones are not dealt with. True when
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
            } else if lease.silence_due < now {
                self.put_back_silent(slot);
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

    /// The next session that has been silent for long enough to log it, now that the input has been drained, and for
    /// how many ms. One of which something has arrived meanwhile is watched again instead.
    pub(crate) fn poll_silent(&mut self) -> Option<(SessionSlot, u32)> {
        let now = self.lease_now();
        while let Some(slot) = self.silent.pop_front() {
            let lease = *self.lease(slot);
            if lease.bucket != SILENT {
                continue;
            }
            if lease.deadline < now && !lease.is_doomed {
                self.put_back(slot);
            } else if lease.is_beating || lease.is_returning {
                self.watch_from(slot, LeaseTime(now.0 + ARRIVAL.0));
            } else if lease.silence_due >= now {
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
        lease.silence_due = LeaseTime(counted.0 + silence_step(ttl).0);
        if !mutant::is(Mutant::SilenceAddedTwice) {
            lease.counted = counted;
        }
        lease.silent_at = index;
        self.watch(slot);
    }

    /// Takes back a session whose silence could not be logged now.
    pub(crate) fn put_back_silent(&mut self, slot: SessionSlot) {
        self.lease(slot).bucket = SILENT;
        self.silent.push_back(slot);
    }

    /// Takes back a session that was named as due and could not be ended now.
    pub(crate) fn put_back(&mut self, slot: SessionSlot) {
        self.lease(slot).bucket = DUE;
        self.due.push_back(slot);
    }

    /// Whether some are due or silent, and nothing has come of it yet.
    pub(crate) fn has_noticed(&self) -> bool {
        !self.due.is_empty() || !self.silent.is_empty()
    }

    /// When to look again.
    pub(crate) fn deadline(&self) -> Time {
        match self.wheel.first_key_value() {
            Some((bucket, _)) => Time(bucket * BUCKET.0 + self.stalled.0),
            None => Time::NEVER,
        }
    }
}
