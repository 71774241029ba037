//! What happened, counted: by each executor for itself, and for all of them while it runs.
//!
//! Invariant: only what ends inside the measured window counts, sessions lost apart, which count always. Latencies
//! are those of a closed loop: while an answer is late its client asks nothing, so that a stall shows in the greatest
//! latency and in the gap rather than in the quantiles.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hdrhistogram::Histogram;
use lockstep_client::core::Time;

/// The longest latency that is told apart, in us; longer ones count as this.
const LATENCY_US_MAX: u64 = 3_600_000_000;
/// What is kept of the last trouble in words, in bytes.
const TROUBLE_BYTES_MAX: usize = 300;

/// The kinds of success, each with latencies of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Acquire,
    Release,
}

/// The counts of one executor.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) acquire_us: Histogram<u64>,
    pub(crate) release_us: Histogram<u64>,
    /// By the name of the status or failure; there are few of those.
    pub(crate) errors: BTreeMap<&'static str, u64>,
    /// The last explanation of a failure.
    pub(crate) trouble: String,
    pub(crate) sessions_lost: u64,
    /// The age of the oldest request without an answer at the end of the window, in ms.
    pub(crate) unanswered_ms_max: u64,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally {
            acquire_us: latencies(),
            release_us: latencies(),
            errors: BTreeMap::new(),
            trouble: String::new(),
            sessions_lost: 0,
            unanswered_ms_max: 0,
        }
    }

    pub(crate) fn on_success(&mut self, step: Step, since: Time, now: Time, pulse: &Pulse) {
        if !pulse.is_measuring(now) {
            return;
        }
        let latency_us = now.0.saturating_sub(since.0) / 1_000;
        match step {
            Step::Acquire => self.acquire_us.saturating_record(latency_us),
            Step::Release => {
                self.release_us.saturating_record(latency_us);
                pulse.pairs.fetch_add(1, Ordering::Relaxed);
            }
        }
        pulse.on_success(now);
    }

    pub(crate) fn on_error(&mut self, status: &'static str, trouble: &str, now: Time, pulse: &Pulse) {
        if !trouble.is_empty() {
            trouble.clone_into(&mut self.trouble);
            let whole =
                (0..=TROUBLE_BYTES_MAX.min(trouble.len())).rev().find(|at| trouble.is_char_boundary(*at));
            self.trouble.truncate(whole.unwrap_or(0));
        }
        if pulse.is_measuring(now) {
            *self.errors.entry(status).or_default() += 1;
            pulse.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds the counts of another executor.
    pub(crate) fn add(&mut self, other: &Tally) {
        let same = "all histograms have the same bounds";
        self.acquire_us.add(&other.acquire_us).expect(same);
        self.release_us.add(&other.release_us).expect(same);
        for (status, count) in &other.errors {
            *self.errors.entry(status).or_default() += count;
        }
        if !other.trouble.is_empty() {
            self.trouble.clone_from(&other.trouble);
        }
        self.sessions_lost += other.sessions_lost;
        self.unanswered_ms_max = self.unanswered_ms_max.max(other.unanswered_ms_max);
    }
}

fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are good")
}

/// What all executors share: the window, and the counts that are shown while it runs.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// When measuring begins; `Time::NEVER` while that is not known.
    begin: AtomicU64,
    end: AtomicU64,
    /// When somebody had success last, within the window.
    last_success: AtomicU64,
    gap_ns_max: AtomicU64,
    pub(crate) pairs: AtomicU64,
    pub(crate) errors: AtomicU64,
    /// Sessions that are open now.
    pub(crate) sessions: AtomicU64,
    /// Opens that have failed, whenever that was.
    pub(crate) opens_failed: AtomicU64,
    is_stopped: AtomicBool,
}

impl Pulse {
    pub(crate) fn new() -> Pulse {
        Pulse {
            begin: AtomicU64::new(Time::NEVER.0),
            end: AtomicU64::new(Time::NEVER.0),
            last_success: AtomicU64::new(0),
            gap_ns_max: AtomicU64::new(0),
            pairs: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            sessions: AtomicU64::new(0),
            opens_failed: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Measuring begins now and ends at `end`.
    pub(crate) fn begin(&self, now: Time, end: Time) {
        self.last_success.store(now.0, Ordering::Relaxed);
        self.end.store(end.0, Ordering::Relaxed);
        // Last, so that whoever sees the window begun sees its end too.
        self.begin.store(now.0, Ordering::Release);
    }

    /// The load ends, whether it was measured or not.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_measuring(&self, now: Time) -> bool {
        self.begin.load(Ordering::Acquire) <= now.0 && now.0 < self.end.load(Ordering::Relaxed)
    }

    pub(crate) fn is_over(&self, now: Time) -> bool {
        self.is_stopped.load(Ordering::Relaxed) || self.end.load(Ordering::Relaxed) <= now.0
    }

    pub(crate) fn end(&self) -> Time {
        Time(self.end.load(Ordering::Relaxed))
    }

    fn on_success(&self, now: Time) {
        let before = self.last_success.fetch_max(now.0, Ordering::Relaxed);
        self.gap_ns_max.fetch_max(now.0.saturating_sub(before), Ordering::Relaxed);
    }

    /// The longest time without a success, up to `now`, in ms.
    pub(crate) fn gap_ms_max(&self, now: Time) -> u64 {
        let open = now.0.saturating_sub(self.last_success.load(Ordering::Relaxed));
        open.max(self.gap_ns_max.load(Ordering::Relaxed)) / 1_000_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn pulse() -> Pulse {
        let pulse = Pulse::new();
        pulse.begin(Time(100 * MS), Time(1_100 * MS));
        pulse
    }

    #[test]
    fn what_ends_outside_the_window_is_not_counted() {
        let (pulse, mut tally) = (pulse(), Tally::new());
        for now in [99, 100, 1_099, 1_100] {
            tally.on_success(Step::Release, Time(90 * MS), Time(now * MS), &pulse);
            tally.on_error("TIMED_OUT", "", Time(now * MS), &pulse);
        }
        assert_eq!(tally.release_us.len(), 2);
        assert_eq!(tally.acquire_us.len(), 0);
        assert_eq!(tally.errors["TIMED_OUT"], 2);
        assert_eq!(pulse.pairs.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn nothing_is_counted_before_the_window_is_known() {
        let (pulse, mut tally) = (Pulse::new(), Tally::new());
        tally.on_success(Step::Release, Time(0), Time(MS), &pulse);
        assert_eq!(tally.release_us.len(), 0);
        assert!(!pulse.is_over(Time(MS)));
        pulse.stop();
        assert!(pulse.is_over(Time(MS)));
    }

    #[test]
    fn the_gap_counts_from_the_begin_between_successes_and_to_the_end() {
        let mut tally = Tally::new();
        let pulse = pulse();
        assert_eq!(pulse.gap_ms_max(Time(400 * MS)), 300, "nothing has succeeded");
        tally.on_success(Step::Acquire, Time(100 * MS), Time(150 * MS), &pulse);
        tally.on_success(Step::Release, Time(100 * MS), Time(550 * MS), &pulse);
        assert_eq!(pulse.gap_ms_max(Time(600 * MS)), 400, "between two successes");
        assert_eq!(pulse.gap_ms_max(Time(1_100 * MS)), 550, "from the last one on");
    }

    #[test]
    fn a_success_reported_late_by_another_executor_opens_no_gap() {
        let mut tally = Tally::new();
        let pulse = pulse();
        tally.on_success(Step::Acquire, Time(100 * MS), Time(110 * MS), &pulse);
        tally.on_success(Step::Acquire, Time(100 * MS), Time(105 * MS), &pulse);
        assert_eq!(pulse.gap_ms_max(Time(112 * MS)), 10);
    }

    #[test]
    fn the_counts_of_two_executors_add_up() {
        let (pulse, mut one, mut two) = (pulse(), Tally::new(), Tally::new());
        one.on_success(Step::Acquire, Time(100 * MS), Time(101 * MS), &pulse);
        two.on_success(Step::Acquire, Time(100 * MS), Time(104 * MS), &pulse);
        two.on_error("LIMIT", "too many locks", Time(104 * MS), &pulse);
        two.sessions_lost = 3;
        one.add(&two);
        assert_eq!((one.acquire_us.len(), one.sessions_lost, one.errors["LIMIT"]), (2, 3, 1));
        assert!(one.acquire_us.max().abs_diff(4_000) < 10);
        assert_eq!(one.trouble, "too many locks");
    }
}
