//! One run by its seed, and the search over many.
//!
//! Invariant: a failing run is run again with its trace kept, so that a search pays for no lines and a failure has
//! them all. Deliberately absent: a clock; whoever searches brings one.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use crate::knob::Setting;
use crate::mark::{Mark, Marks, SEARCH_RUNS_MIN};
use crate::oracle::Violation;
use crate::world::plan::Plan;
use crate::world::trace::Trace;
use crate::world::{Summary, World};

/// Lines of the trace that a failure shows.
const LAST_LINES: usize = 60;

/// A run that broke a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// What was turned on the plan of that seed.
    pub settings: Vec<Setting>,
    /// The rule.
    pub violation: Violation,
    /// What happened last.
    pub lines: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the last events of seed {}:", self.seed)?;
        for line in &self.lines {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "seed {} breaks a rule: {}", self.seed, self.violation)?;
        write!(f, "replay: cargo run --release -p lockstep-sim -- --seed {}", self.seed)?;
        self.settings.iter().try_for_each(|setting| write!(f, " --set {setting}"))?;
        f.write_str(" --trace")?;
        if self.settings.is_empty() {
            f.write_str("\nfor a smaller run, --shrink in place of --trace")?;
        }
        Ok(())
    }
}

/// Runs the plan of a seed.
///
/// # Errors
/// The rule that it broke.
pub fn run(seed: u64, trace: Trace) -> Result<Summary, Failure> {
    run_plan(&Plan::drawn(seed), trace)
}

/// Runs a plan.
///
/// # Errors
/// The rule that it broke.
pub fn run_plan(plan: &Plan, trace: Trace) -> Result<Summary, Failure> {
    match attempt(plan, trace) {
        (Ok(()), summary, _) => Ok(summary),
        (Err(violation), _, _) => {
            // Once more, for the lines.
            let (_, _, mut lines) = attempt(plan, Trace::kept());
            let lines = lines.split_off(lines.len().saturating_sub(LAST_LINES));
            Err(Failure { seed: plan.seed, settings: Vec::new(), violation, lines })
        }
    }
}

/// An assertion that fails inside the real parts is a broken rule as well.
fn attempt(plan: &Plan, trace: Trace) -> (Result<(), Violation>, Summary, Vec<String>) {
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let (world, verdict) = World::run(plan.clone(), trace);
        (verdict, world.summary(), world.lines().to_vec())
    }));
    ran.unwrap_or_else(|panic| {
        let detail = words_of_panic(panic.as_ref());
        (Err(Violation { rule: "no assertion fails", detail }), Summary::default(), Vec::new())
    })
}

pub(crate) fn words_of_panic(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}

/// How much to search.
#[derive(Clone, Debug)]
pub struct Budget {
    /// The first seed.
    pub first: u64,
    /// How many seeds at most.
    pub seeds: Option<u64>,
    /// For how long at most.
    pub wall: Option<Duration>,
    /// How much simulated time at least, unless another bound comes first.
    pub simulated: Option<Duration>,
    /// On how many threads.
    pub threads: usize,
}

/// What a search has amounted to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    runs: u64,
    sum: Summary,
    wall: Duration,
}

impl Total {
    fn add(&mut self, summary: &Summary) {
        self.runs += 1;
        self.sum.span += summary.span;
        self.sum.faults += summary.faults;
        self.sum.events += summary.events;
        self.sum.entries += summary.entries;
        self.sum.elections += summary.elections;
        self.sum.writes += summary.writes;
        self.sum.stale_writes += summary.stale_writes;
        self.sum.endings += summary.endings;
        self.sum.marks.add(&summary.marks);
    }

    fn simulated(&self) -> Duration {
        Duration::from_nanos(self.sum.span)
    }

    /// How often each mark was set.
    pub fn marks(&self) -> &Marks {
        &self.sum.marks
    }

    /// The marks that a search of this length should have set and has not.
    pub fn missed(&self) -> Vec<Mark> {
        if self.runs < SEARCH_RUNS_MIN { Vec::new() } else { self.sum.marks.missed().collect() }
    }
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated().as_secs_f64() / 3_600.0;
        let wall = self.wall.as_secs_f64().max(0.001);
        write!(
            f,
            "{} runs, {hours:.2} simulated hours in {wall:.0} s ({:.0} an hour); {}; {} of {} marks",
            self.runs,
            hours / wall * 3_600.0,
            counts(&self.sum),
            self.sum.marks.reached(),
            Mark::ALL.len()
        )
    }
}

/// A run in words.
pub fn describe(summary: &Summary) -> String {
    format!("{}, trace {:016x}", counts(summary), summary.hash)
}

fn counts(sum: &Summary) -> String {
    format!(
        "{} faults, {} elections, {} entries, {} sessions ended, {} writes and {} stale ones, {} events",
        sum.faults, sum.elections, sum.entries, sum.endings, sum.writes, sum.stale_writes, sum.events
    )
}

/// Searches seed after seed on several threads, each by `run`. `elapsed` tells how much time has passed; `show` is
/// given a line of progress about every second.
///
/// # Errors
/// The first failure that was found.
pub fn search(
    budget: &Budget,
    run: &(dyn Fn(u64) -> Result<Summary, Failure> + Sync),
    elapsed: &(dyn Fn() -> Duration + Sync),
    show: &mut dyn FnMut(&Total),
) -> Result<Total, Failure> {
    let next = AtomicU64::new(budget.first);
    let has_failed = AtomicBool::new(false);
    let total = Mutex::new(Total::default());
    let (sender, failures) = mpsc::channel();
    let is_spent = || {
        let total = *total.lock().expect("no thread panics while it adds");
        let seeds = next.load(Ordering::Relaxed) - budget.first;
        has_failed.load(Ordering::Relaxed)
            || budget.seeds.is_some_and(|most| seeds >= most)
            || budget.wall.is_some_and(|most| elapsed() >= most)
            || budget.simulated.is_some_and(|least| total.simulated() >= least)
    };
    std::thread::scope(|scope| {
        for _ in 0..budget.threads.max(1) {
            let sender = sender.clone();
            let (next, total, is_spent, has_failed) = (&next, &total, &is_spent, &has_failed);
            scope.spawn(move || {
                while !is_spent() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    match run(seed) {
                        Ok(summary) => total.lock().expect("no thread panics while it adds").add(&summary),
                        Err(failure) => {
                            // Nobody begins another run.
                            has_failed.store(true, Ordering::Relaxed);
                            let _ = sender.send(failure);
                            return;
                        }
                    }
                }
            });
        }
        drop(sender);
        loop {
            let failure = failures.recv_timeout(Duration::from_secs(1));
            let mut so_far = *total.lock().expect("no thread panics while it adds");
            so_far.wall = elapsed();
            match failure {
                Ok(failure) => return Err(failure),
                Err(mpsc::RecvTimeoutError::Timeout) => show(&so_far),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(so_far),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_ends_a_search_of_any_budget() {
        let bounds = [
            (Some(u64::MAX), None, None),
            (None, Some(Duration::MAX), None),
            (None, None, Some(Duration::MAX)),
        ];
        for (seeds, wall, simulated) in bounds {
            let budget = Budget { first: 7, seeds, wall, simulated, threads: 2 };
            let violation = Violation { rule: "a rule", detail: String::new() };
            let run = |seed| match seed {
                9 => Err(Failure {
                    seed,
                    settings: Vec::new(),
                    violation: violation.clone(),
                    lines: Vec::new(),
                }),
                _ => Ok(Summary::default()),
            };
            let outcome = search(&budget, &run, &|| Duration::ZERO, &mut |_| {});
            assert_eq!(outcome.map(|total| total.runs).map_err(|failure| failure.seed), Err(9));
        }
    }
}
