//! Known-bad drivers, to prove that the judges see (ARCHITECTURE section 7, "Mutation check").
//!
//! Invariant: each of them breaks what a driver owes the real parts, never the parts themselves; a run without a
//! defect does not look at this. Deliberately absent: defects inside the core, the log or the client.

/// What a driver does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Appends are reported durable before the disk has them.
    DurableBeforeWritten,
    /// A drain is answered before the input that was waiting.
    DrainWithoutInput,
    /// A turn hands out what came after it had read its clock.
    ClockBeforeArrivals,
    /// After a restart the term and the vote are not read back.
    HardStateForgotten,
    /// The directory is reported synced and is not.
    DirectorySyncSkipped,
    /// The clients' clock stands still while their machine is suspended, as a monotonic clock would.
    ClientClockStands,
}

impl Defect {
    /// All of them.
    pub const ALL: [Defect; 6] = [
        Defect::DurableBeforeWritten,
        Defect::DrainWithoutInput,
        Defect::ClockBeforeArrivals,
        Defect::HardStateForgotten,
        Defect::DirectorySyncSkipped,
        Defect::ClientClockStands,
    ];

    /// What it is called in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Defect::DurableBeforeWritten => "driver-durable-before-written",
            Defect::DrainWithoutInput => "driver-drain-without-input",
            Defect::ClockBeforeArrivals => "driver-clock-before-arrivals",
            Defect::HardStateForgotten => "driver-hard-state-forgotten",
            Defect::DirectorySyncSkipped => "driver-directory-sync-skipped",
            Defect::ClientClockStands => "driver-client-clock-stands",
        }
    }
}
