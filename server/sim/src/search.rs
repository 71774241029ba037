//! One run by its seed, and the search over many.
//!
//! Invariant: a failing run is run again with its trace kept, so that a search pays for no lines and a failure has
//! them all. Deliberately absent: a clock; whoever searches brings one.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use crate::knob::Setting;
use crate::mark::{Mark, Marks, SEARCH_RUNS_MIN};
use crate::oracle::{Verdict, Violation};
use crate::world::plan::Plan;
use crate::world::trace::Trace;
use crate::world::{Summary, World};

/// Lines of the trace that a failure shows.
const LAST_LINES: usize = 60;
/// Lines before those, which name whom the violation is about.
const NAMED_LINES: usize = 20;
/// What a seed promises.
const DETERMINISM: &str = "one seed gives one run";

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
    let first = attempt(plan, trace);
    let Err(violation) = &first.verdict else { return Ok(first.summary) };
    // Once more, for the lines.
    let again = attempt(plan, Trace::kept());
    let is_same = first.verdict == again.verdict && first.summary.hash == again.summary.hash;
    let violation = if is_same { violation.clone() } else { undetermined(&first.verdict, &again.verdict) };
    Err(again.failure(plan, violation))
}

/// Runs a plan twice and keeps all lines of both.
///
/// # Errors
/// What the runs differ in first, or the rule that both broke.
pub fn run_twice(plan: &Plan) -> Result<Summary, Failure> {
    let (first, second) = (attempt(plan, Trace::kept()), attempt(plan, Trace::kept()));
    if let Some(difference) = difference(&first.lines, &second.lines) {
        return Err(first.failure(plan, Violation { rule: DETERMINISM, detail: difference }));
    }
    if (&first.verdict, first.summary.hash) != (&second.verdict, second.summary.hash) {
        let violation = undetermined(&first.verdict, &second.verdict);
        return Err(first.failure(plan, violation));
    }
    match first.verdict.clone() {
        Ok(()) => Ok(first.summary),
        Err(violation) => Err(first.failure(plan, violation)),
    }
}

struct Attempt {
    verdict: Verdict,
    summary: Summary,
    lines: Vec<String>,
}

impl Attempt {
    fn failure(&self, plan: &Plan, violation: Violation) -> Failure {
        let lines = last_that_matter(&self.lines, &violation.detail);
        Failure { seed: plan.seed, settings: Vec::new(), violation, lines }
    }
}

fn attempt(plan: &Plan, trace: Trace) -> Attempt {
    let (world, verdict) = World::run(plan.clone(), trace);
    Attempt { verdict, summary: world.summary(), lines: world.lines().to_vec() }
}

fn undetermined(first: &Verdict, second: &Verdict) -> Violation {
    let words = |verdict: &Verdict| match verdict {
        Ok(()) => "breaks no rule".to_owned(),
        Err(violation) => format!("breaks a rule: {violation}"),
    };
    let detail = format!("not deterministic: one run {}; the same once more {}", words(first), words(second));
    Violation { rule: DETERMINISM, detail }
}

fn difference(first: &[String], second: &[String]) -> Option<String> {
    let (mut one, mut other) = (first.iter(), second.iter());
    for number in 1.. {
        match (one.next(), other.next()) {
            (None, None) => return None,
            (line, same) if line == same => {}
            (line, another) => {
                let shown = |line: Option<&String>| line.map_or("nothing", String::as_str).to_owned();
                return Some(format!("line {number}: {} - {}", shown(line), shown(another)));
            }
        }
    }
    None
}

/// The last events without the plain traffic of wires and disks, and before them some that name whom a violation is about.
fn last_that_matter(lines: &[String], detail: &str) -> Vec<String> {
    let matters: Vec<&String> = lines.iter().filter(|line| !is_traffic(line)).collect();
    let (earlier, last) = matters.split_at(matters.len().saturating_sub(LAST_LINES));
    let subjects = subjects_of(detail);
    let names_one = |line: &&&String| subjects.iter().any(|subject| line.contains(subject.as_str()));
    let mut named: Vec<&String> = earlier.iter().rev().filter(names_one).take(NAMED_LINES).copied().collect();
    named.reverse();
    named.into_iter().chain(last.iter().copied()).cloned().collect()
}

/// Whether a line tells of bytes and no more.
fn is_traffic(line: &str) -> bool {
    let event = line.trim_start().split_once(' ').map_or("", |(_, event)| event);
    event.starts_with("wire ") || event.starts_with("disk ")
}

/// Words that name somebody: long numbers, and clients and nodes with theirs.
fn subjects_of(detail: &str) -> BTreeSet<String> {
    let words: Vec<&str> =
        detail.split(|c: char| !c.is_ascii_alphanumeric()).filter(|it| !it.is_empty()).collect();
    let is_id = |word: &&&str| word.len() >= 6 && word.contains(|c: char| c.is_ascii_digit());
    let ids = words.iter().filter(is_id).map(|word| (*word).to_owned());
    let places = words
        .windows(2)
        .filter(|pair| matches!(pair[0], "client" | "node" | "forger") && pair[1].parse::<u64>().is_ok());
    ids.chain(places.map(|pair| format!("{} {}", pair[0], pair[1]))).collect()
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
    fn a_run_that_panics_has_its_events_to_show() {
        let mut plan = Plan::quiet(3);
        // Whoever looks for a name to acquire finds none to draw from.
        plan.workload.names = 0;
        let failure = run_plan(&plan, Trace::silent()).expect_err("it panics");
        assert_eq!(failure.violation.rule, "no assertion fails");
        assert!(failure.lines.iter().any(|line| line.contains("Leading")), "{failure}");
    }

    #[test]
    fn the_events_of_a_failure_are_those_that_matter() {
        let mut lines: Vec<String> = vec!["   0.1 client 7: opened 123456789".to_owned()];
        lines.extend((0..100).map(|number| format!("   0.2 client 3: event {number}")));
        lines.push("   0.3 wire 5 Dialer sends 9 bytes".to_owned());
        lines.push("   0.4 disk 1 op 8 done: Ok(0)".to_owned());
        let shown = last_that_matter(&lines, "session 123456789 is gone");
        assert_eq!((shown.len(), &shown[0]), (LAST_LINES + 1, &lines[0]));
        assert_eq!(shown.last(), Some(&lines[100]));
    }

    #[test]
    fn two_traces_differ_where_one_has_another_line_or_none() {
        let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(difference(&lines("a b"), &lines("a b")), None);
        assert!(difference(&lines("a b"), &lines("a c")).is_some_and(|it| it.contains("line 2: b - c")));
        assert!(difference(&lines("a b"), &lines("a")).is_some_and(|it| it.contains("line 2: b - nothing")));
    }

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
