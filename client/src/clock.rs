//! The clock that local deadlines are counted on.
//!
//! Invariant: it goes on while the machine is suspended and never follows the wall clock (ARCHITECTURE section 5).

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::core::Time;

/// What CLOCK_BOOTTIME shows.
pub fn now() -> Time {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("time since boot is not negative");
    let ns = u64::try_from(time.tv_nsec).expect("nanoseconds are not negative");
    Time(seconds * 1_000_000_000 + ns)
}

/// How long it is until a moment; nothing when it has passed.
pub fn until(moment: Time) -> Duration {
    Duration::from_nanos(moment.0.saturating_sub(now().0))
}
