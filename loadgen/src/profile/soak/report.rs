//! What a soak shows while it runs, and at its end.
//!
//! Invariant: memory at the first is that with all lasting locks held, so that what it grows by is the writes' doing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::{Course, Options};
use crate::fleet::Sum;
use crate::gauge::Gauge;
use crate::output::progress;
use crate::report::{Latency, rate};

/// What the nodes take.
#[derive(Clone, Debug)]
pub(super) struct Gauges {
    memory: Vec<Gauge>,
    disk: Vec<Gauge>,
    /// All lasting locks have been held.
    has_begun: bool,
}

impl Gauges {
    pub(super) fn new(options: &Options) -> anyhow::Result<Gauges> {
        let memory: anyhow::Result<_> = options.pids.iter().map(|id| Gauge::of_process(*id)).collect();
        let disk: anyhow::Result<_> = options.data.iter().map(|path| Gauge::of_directory(path)).collect();
        Ok(Gauges { memory: memory?, disk: disk?, has_begun: false })
    }

    pub(super) fn look(&mut self, is_all_held: bool) {
        let begins = is_all_held && !self.has_begun;
        self.has_begun |= begins;
        for gauge in self.memory.iter_mut().chain(&mut self.disk) {
            if begins {
                gauge.begin();
            } else {
                gauge.look();
            }
        }
    }
}

/// A line now and then.
#[derive(Debug)]
pub(super) struct Line {
    wanted: u64,
    second: u32,
    writes: u64,
}

impl Line {
    pub(super) fn new(options: &Options) -> Line {
        Line { wanted: options.writes, second: 0, writes: 0 }
    }

    pub(super) fn print(&mut self, second: u32, course: &Course, gauges: &Gauges) {
        let writes = course.writes.load(Ordering::Relaxed);
        let per_second = rate(writes - self.writes, second - self.second);
        let mut line = format!(
            "{second:>5} s: {per_second:.0} writes/s, {writes} of {}, {} lasting locks",
            self.wanted,
            course.held.load(Ordering::Relaxed)
        );
        for (what, all) in [("memory", &gauges.memory), ("disk", &gauges.disk)] {
            let now: Vec<String> = all.iter().map(|gauge| mib(gauge.last)).collect();
            if !now.is_empty() {
                line += &format!(", {what} {} MiB", now.join(" "));
            }
        }
        progress(&line);
        (self.second, self.writes) = (second, writes);
    }
}

fn mib(bytes: u64) -> String {
    (bytes >> 20).to_string()
}

/// The end of a soak.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Which profile ran.
    pub profile: &'static str,
    /// Simulated clients.
    pub clients: u32,
    /// How long was measured, in seconds; 0 when no session could be opened.
    pub measured_s: u32,
    /// Acquires and releases that succeeded, those of lasting locks included.
    pub writes: u64,
    /// The same each second.
    pub writes_per_second: f64,
    /// Names that nobody had used before, acquired once each; lasting ones are not counted.
    pub names_new: u64,
    /// Acquires of names that had been used before, each under a greater token.
    pub names_again: u64,
    /// Whether there were as many as was asked for, or all that the time allowed, and every lasting lock was given back.
    pub is_complete: bool,
    /// Calls that failed, holds and sessions that were lost.
    pub failures: u64,
    /// The same by status.
    pub errors: BTreeMap<&'static str, u64>,
    /// The last explanation of something that went wrong; empty without one.
    pub trouble: String,
    /// From asking to the grant.
    pub acquire: Latency,
    /// From asking to the answer.
    pub release: Latency,
    /// The longest time in which no client had any success, in ms.
    pub gap_ms_max: u64,
    /// Resident memory of the processes that were named, in bytes.
    memory: Vec<Gauge>,
    /// What the data directories that were named took on their disks, in bytes.
    disk: Vec<Gauge>,
}

impl Report {
    pub(super) fn new(options: &Options, sum: &Sum, course: &Course, gauges: Gauges) -> Report {
        let writes = course.writes.load(Ordering::Relaxed);
        Report {
            profile: "soak",
            clients: options.fleet.clients,
            measured_s: sum.measured_s,
            writes,
            writes_per_second: rate(writes, sum.measured_s),
            names_new: course.names_new.load(Ordering::Relaxed),
            names_again: course.names_again.load(Ordering::Relaxed),
            is_complete: sum.measured_s > 0 && course.is_returned(),
            failures: course.failures.load(Ordering::Relaxed),
            errors: sum.tally.errors.clone(),
            trouble: sum.tally.trouble.clone(),
            acquire: Latency::new(&sum.tally.acquire_us),
            release: Latency::new(&sum.tally.release_us),
            gap_ms_max: sum.gap_ms_max,
            memory: gauges.memory,
            disk: gauges.disk,
        }
    }

    /// Whether nothing has failed and everything was done.
    pub fn is_success(&self) -> bool {
        self.is_complete && self.failures == 0 && self.writes > 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.is_complete { "every lasting lock given back" } else { "not complete" };
        writeln!(f, "{}: {} clients, {} s, {end}", self.profile, self.clients, self.measured_s)?;
        writeln!(f, "  writes/s   {:.0} ({} writes)", self.writes_per_second, self.writes)?;
        writeln!(
            f,
            "  names      {} new, {} acquired again, each under a greater token",
            self.names_new, self.names_again
        )?;
        writeln!(f, "  acquire    {}", self.acquire)?;
        writeln!(f, "  release    {}", self.release)?;
        writeln!(f, "  gap        {} ms at most without a success", self.gap_ms_max)?;
        for (what, all) in [("memory", &self.memory), ("disk", &self.disk)] {
            for Gauge { of, first, max, last, .. } in all {
                let (first, max, last) = (mib(*first), mib(*max), mib(*last));
                writeln!(f, "  {what:<10} {first} MiB at first, {max} at most, {last} at the end: {of}")?;
            }
        }
        let errors: Vec<String> =
            self.errors.iter().map(|(status, count)| format!("{status} {count}")).collect();
        let errors = if errors.is_empty() { "none".to_owned() } else { errors.join(", ") };
        writeln!(f, "  failures   {} ({errors})", self.failures)?;
        if !self.trouble.is_empty() {
            writeln!(f, "  last       {}", self.trouble)?;
        }
        Ok(())
    }
}
