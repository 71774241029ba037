//! The clock of one machine: its own origin, a rate that is a little off and may change, and at times a standstill.
//!
//! Invariant: a clock never goes back. Deliberately absent: wall clocks; nothing in the system reads one.

use super::schedule::Moment;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// What it showed at `since`.
    shown: u64,
    since: Moment,
    /// How much too fast it goes, in millionths.
    drift_ppm: i64,
    is_standing: bool,
}

impl Clock {
    /// A clock that shows `origin` when the run begins.
    pub(super) fn new(origin: u64, drift_ppm: i64) -> Clock {
        Clock { shown: origin, since: 0, drift_ppm, is_standing: false }
    }

    /// What it shows at a moment, in ns.
    pub(super) fn read(&self, now: Moment) -> u64 {
        if self.is_standing {
            return self.shown;
        }
        let passed = i128::from(now - self.since);
        let local = passed + passed * i128::from(self.drift_ppm) / 1_000_000;
        self.shown + u64::try_from(local).expect("a clock goes forward")
    }

    /// The first moment at which it shows at least `shown`; never when it stands.
    pub(super) fn moment_of(&self, shown: u64) -> Option<Moment> {
        if shown <= self.shown {
            return Some(self.since);
        }
        if self.is_standing || shown == u64::MAX {
            return None;
        }
        let local = i128::from(shown - self.shown);
        let passed = local * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm)) + 1;
        let mut at = self.since.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX));
        while at > self.since && self.read(at - 1) >= shown {
            at -= 1;
        }
        Some(at)
    }

    /// From now on it goes at another rate.
    pub(super) fn set_drift(&mut self, now: Moment, drift_ppm: i64) {
        self.shown = self.read(now);
        self.since = now;
        self.drift_ppm = drift_ppm;
    }

    /// It stands still, as the clock of a machine that is suspended.
    pub(super) fn stop(&mut self, now: Moment) {
        self.shown = self.read(now);
        self.since = now;
        self.is_standing = true;
    }

    /// It goes on.
    pub(super) fn go_on(&mut self, now: Moment) {
        self.shown = self.read(now);
        self.since = now;
        self.is_standing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_and_its_moment_agree_at_any_rate() {
        for drift_ppm in [-500, -3, 0, 1, 500] {
            let clock = Clock::new(77, drift_ppm);
            for shown in [77, 78, 1_000, 123_456_789, 100_000_000_007] {
                let at = clock.moment_of(shown).unwrap();
                assert!(clock.read(at) >= shown, "{drift_ppm} {shown}");
                assert!(at == 0 || clock.read(at - 1) < shown, "{drift_ppm} {shown}");
            }
        }
    }

    #[test]
    fn a_clock_whose_rate_changes_goes_on_from_where_it_was() {
        let mut clock = Clock::new(0, 500);
        clock.set_drift(1_000_000, -500);
        assert_eq!((clock.read(1_000_000), clock.read(2_000_000)), (1_000_500, 2_000_000));
    }

    #[test]
    fn a_clock_that_stood_goes_on_from_where_it_was() {
        let mut clock = Clock::new(0, 0);
        clock.stop(10);
        assert_eq!((clock.read(50), clock.moment_of(11)), (10, None));
        clock.go_on(50);
        assert_eq!((clock.read(55), clock.moment_of(15)), (15, Some(55)));
    }
}
