//! What a run came to, for people and for programs.
//!
//! Invariant: nothing is computed here that was not measured: rates are over the measured seconds, and what is absent
//! is said to be absent. Deliberately absent: judging a server; that takes a comparison.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::fleet::{Options, Sum};
use crate::ledger::Ledger;

/// The end of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Which profile ran.
    pub profile: &'static str,
    /// Simulated clients.
    pub clients: u32,
    /// Connections that they shared.
    pub connections: u32,
    /// Executors.
    pub cores: u32,
    /// Sessions that were open when measuring began.
    pub sessions: u64,
    /// How long was measured, in seconds; 0 when no session could be opened.
    pub measured_s: u32,
    /// Pairs that were completed.
    pub pairs: u64,
    /// The same each second.
    pub pairs_per_second: f64,
    /// From asking to the grant, standing in line included.
    pub acquire: Latency,
    /// From asking to the answer.
    pub release: Latency,
    /// How often what went wrong, by status.
    pub errors: BTreeMap<&'static str, u64>,
    /// The last explanation of something that went wrong; empty without one.
    pub trouble: String,
    /// Opens that failed, whenever that was.
    pub opens_failed: u64,
    /// Sessions that ended without having been closed, whenever that was.
    pub sessions_lost: u64,
    /// The longest time in which no client had any success, in ms.
    pub gap_ms_max: u64,
    /// The age of the oldest request without an answer at the end, in ms. It is in no latency above.
    pub unanswered_ms_max: u64,
    /// What `--check` found; nothing without it.
    pub check: Option<Check>,
}

/// Latencies of one kind, in us.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// How many there were.
    pub count: u64,
    /// Half of them were at most this.
    pub p50_us: u64,
    /// 99 of 100 were at most this.
    pub p99_us: u64,
    /// 999 of 1,000 were at most this.
    pub p999_us: u64,
    /// All of them were at most this.
    pub max_us: u64,
}

/// What was found to be wrong with grants.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// How much.
    pub violations_total: u64,
    /// The first of it.
    pub violations: Vec<String>,
}

impl Latency {
    pub(crate) fn new(us: &Histogram<u64>) -> Latency {
        Latency {
            count: us.len(),
            p50_us: us.value_at_quantile(0.5),
            p99_us: us.value_at_quantile(0.99),
            p999_us: us.value_at_quantile(0.999),
            max_us: us.max(),
        }
    }
}

impl Report {
    pub(crate) fn new(
        profile: &'static str,
        options: &Options,
        sum: &Sum,
        ledger: Option<&Ledger>,
    ) -> Report {
        let release = Latency::new(&sum.tally.release_us);
        let pairs = release.count;
        Report {
            profile,
            clients: options.clients,
            connections: options.connections(),
            cores: options.cores,
            sessions: sum.sessions,
            measured_s: sum.measured_s,
            pairs,
            pairs_per_second: rate(pairs, sum.measured_s),
            acquire: Latency::new(&sum.tally.acquire_us),
            release,
            errors: sum.tally.errors.clone(),
            trouble: sum.tally.trouble.clone(),
            opens_failed: sum.opens_failed,
            sessions_lost: sum.tally.sessions_lost,
            gap_ms_max: sum.gap_ms_max,
            unanswered_ms_max: sum.tally.unanswered_ms_max,
            check: ledger.map(|ledger| Check {
                violations_total: ledger.violations_total(),
                violations: ledger.violations().iter().map(ToString::to_string).collect(),
            }),
        }
    }

    /// Whether any pair was completed.
    pub fn has_success(&self) -> bool {
        self.pairs > 0
    }

    /// Whether something was seen that must never be.
    pub fn has_violation(&self) -> bool {
        self.check.as_ref().is_some_and(|check| check.violations_total > 0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "nobody reads the sixteenth digit of a rate")]
pub(crate) fn rate(count: u64, seconds: u32) -> f64 {
    if seconds == 0 { 0.0 } else { count as f64 / f64::from(seconds) }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} of {} clients on {} connections and {} cores, {} s",
            self.profile, self.sessions, self.clients, self.connections, self.cores, self.measured_s
        )?;
        writeln!(f, "  pairs/s    {:.0} ({} pairs)", self.pairs_per_second, self.pairs)?;
        writeln!(f, "  acquire    {}", self.acquire)?;
        writeln!(f, "  release    {}", self.release)?;
        writeln!(f, "  gap        {} ms at most without a success", self.gap_ms_max)?;
        writeln!(f, "  unanswered {} ms at most at the end", self.unanswered_ms_max)?;
        writeln!(f, "  sessions   {} lost, {} failed to open", self.sessions_lost, self.opens_failed)?;
        let errors: Vec<String> =
            self.errors.iter().map(|(status, count)| format!("{status} {count}")).collect();
        writeln!(
            f,
            "  errors     {}",
            if errors.is_empty() { "none".to_owned() } else { errors.join(", ") }
        )?;
        if !self.trouble.is_empty() {
            writeln!(f, "  last       {}", self.trouble)?;
        }
        if let Some(check) = &self.check {
            writeln!(f, "  check      {} violations", check.violations_total)?;
            for violation in &check.violations {
                writeln!(f, "    {violation}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latency { count: _, p50_us, p99_us, p999_us, max_us } = *self;
        write!(f, "p50 {}  p99 {}  p99.9 {}  max {} ms", Ms(p50_us), Ms(p99_us), Ms(p999_us), Ms(max_us))
    }
}

/// Microseconds, shown in ms.
struct Ms(u64);

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}
