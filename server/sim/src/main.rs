//! `lockstep-sim`: replays one run, or searches for one that breaks a rule.
//!
//! Invariant: what is printed about a run depends on its seed alone; only the progress of a search looks at the wall
//! clock. Deliberately absent: everything else; see the library.

mod fuzzing;
mod variants;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use lockstep_sim::knob::Setting;
use lockstep_sim::search::{self, Budget, Failure};
use lockstep_sim::shrink::shrink;
use lockstep_sim::world::plan::Plan;
use lockstep_sim::world::trace::Trace;

/// What makes it a search, which knows nothing of a single run.
const SEARCH: [&str; 3] = ["seeds", "minutes", "hours"];

/// Lockstep's deterministic simulator.
#[derive(Debug, Parser)]
#[command(version, about, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    /// Replays the run of this seed, or begins a search with it.
    #[arg(long)]
    seed: Option<u64>,
    /// Prints one line for every event of the run.
    #[arg(long, requires = "seed", conflicts_with_all = SEARCH)]
    trace: bool,
    /// Runs the seed twice and compares the traces line by line.
    #[arg(long, requires = "seed", conflicts_with_all = SEARCH, conflicts_with = "trace")]
    twice: bool,
    /// Looks for a smaller run that breaks the same rule.
    #[arg(long, requires = "seed", conflicts_with_all = ["trace", "twice", "seeds", "minutes", "hours"])]
    shrink: bool,
    /// Turns a knob of the run, as in `clients=2`; may be given several times.
    #[arg(long, requires = "seed", value_name = "NAME=NUMBER", conflicts_with_all = SEARCH)]
    set: Vec<Setting>,
    /// Searches so many seeds.
    #[arg(long)]
    seeds: Option<u64>,
    /// Searches for so many minutes.
    #[arg(long)]
    minutes: Option<u64>,
    /// Searches until so many hours were simulated.
    #[arg(long)]
    hours: Option<u64>,
    /// Threads; as many as there are cores unless said otherwise.
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Debug, Subcommand)]
enum Other {
    /// Bends frames, messages, entries, logs and superblocks until a reader does not bear it.
    Fuzz(fuzzing::Options),
    /// Runs every known-bad variant until a rule is broken, and prints the table.
    Mutants(variants::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match &arguments.other {
        Some(Other::Fuzz(options)) => return fuzzing::run(options),
        Some(Other::Mutants(options)) => return variants::run(options),
        None => {}
    }
    let is_search = arguments.seeds.is_some() || arguments.minutes.is_some() || arguments.hours.is_some();
    match arguments.seed {
        Some(seed) if !is_search => replay(seed, &arguments),
        first => hunt(first.unwrap_or(1), &arguments),
    }
}

fn replay(seed: u64, arguments: &Arguments) -> ExitCode {
    let trace = if arguments.trace { Trace::printed() } else { Trace::silent() };
    let mut plan = Plan::drawn(seed);
    arguments.set.iter().for_each(|setting| setting.apply(&mut plan));
    let outcome = match arguments.twice {
        true => search::run_twice(&plan),
        false => search::run_plan(&plan, trace),
    };
    match outcome {
        Ok(summary) => {
            println!("seed {seed}: {}", search::describe(&summary));
            if arguments.twice {
                println!("seed {seed}: the second run is the same");
            }
            if arguments.shrink {
                println!("seed {seed}: no rule is broken; there is nothing to shrink");
            }
            ExitCode::SUCCESS
        }
        Err(failure) => {
            let failure = Failure { settings: arguments.set.clone(), ..failure };
            report(&if arguments.shrink { make_small(&plan, failure) } else { failure })
        }
    }
}

fn make_small(plan: &Plan, failure: Failure) -> Failure {
    let settings = failure.settings.clone();
    shrink(plan, &settings, failure, &mut |settings| {
        let settings: Vec<String> = settings.iter().map(Setting::to_string).collect();
        eprintln!("still fails with {}", settings.join(" "));
    })
}

fn hunt(first: u64, arguments: &Arguments) -> ExitCode {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let budget = Budget {
        first,
        seeds: arguments.seeds,
        wall: arguments.minutes.map(|minutes| Duration::from_secs(60 * minutes)),
        simulated: arguments.hours.map(|hours| Duration::from_secs(3_600 * hours)),
        threads: arguments.threads.unwrap_or(cores),
    };
    let elapsed = stopwatch();
    let run = |seed| search::run(seed, Trace::silent());
    let outcome = search::search(&budget, &run, &elapsed, &mut |progress| eprintln!("{progress}"));
    match outcome {
        Ok(total) => {
            print!("{}", total.marks());
            let missed = total.missed();
            for mark in &missed {
                println!("never seen: {}", mark.words());
            }
            println!("no violation: {total}");
            if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(failure) => report(&failure),
    }
}

/// The one look at the wall clock: how long a search has lasted, for its bound and its progress line.
#[allow(clippy::disallowed_methods, clippy::disallowed_types)]
fn stopwatch() -> impl Fn() -> Duration {
    let began = std::time::Instant::now();
    move || began.elapsed()
}

fn report(failure: &Failure) -> ExitCode {
    println!("{failure}");
    ExitCode::FAILURE
}
