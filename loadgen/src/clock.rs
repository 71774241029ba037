//! The clock that the client core is driven with.
//!
//! Invariant: it goes on while the machine is suspended and never follows the wall clock (ARCHITECTURE section 5).

use lockstep_client::core::Time;
use rustix::time::{ClockId, clock_gettime};

/// What CLOCK_BOOTTIME shows.
pub(crate) fn now() -> Time {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("time since boot is not negative");
    let ns = u64::try_from(time.tv_nsec).expect("nanoseconds are not negative");
    Time(seconds * 1_000_000_000 + ns)
}
