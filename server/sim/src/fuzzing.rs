//! `lockstep-sim fuzz`: bends what comes from outside until a reader does not bear it.
//!
//! Invariant: a failure names the command that replays it. Deliberately absent: the cases; see the library.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use lockstep_sim::fuzz::{self, Target};

/// Cases of the cheapest targets between two lines of progress.
const ROUND: u64 = 100_000;

/// Which cases.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What is fuzzed; everything unless said otherwise.
    #[arg(long)]
    target: Option<Kind>,
    /// How many cases of the cheapest targets, of the others in proportion (of one target alone, exactly so many); without it, until something breaks.
    #[arg(long)]
    cases: Option<u64>,
    /// The number of the first case.
    #[arg(long, default_value_t = 0)]
    first: u64,
}

/// A target, as it is named on the command line.
#[derive(Clone, Copy, Debug)]
struct Kind(Target);

impl ValueEnum for Kind {
    fn value_variants<'a>() -> &'a [Kind] {
        const KINDS: [Kind; Target::ALL.len()] = {
            let mut kinds = [Kind(Target::Frames); Target::ALL.len()];
            let mut at = 0;
            while at < kinds.len() {
                kinds[at] = Kind(Target::ALL[at]);
                at += 1;
            }
            kinds
        };
        &KINDS
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(self.0.name().into())
    }
}

/// Runs the cases.
pub(crate) fn run(options: &Options) -> ExitCode {
    let outcome = match (options.target, options.cases) {
        (Some(Kind(target)), Some(cases)) => cases_of(target, options.first, cases),
        (target, cases) => rounds(target.map(|kind| kind.0), options.first, cases),
    };
    match outcome {
        Ok(count) => {
            println!("{count} cases were borne");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn cases_of(target: Target, first: u64, cases: u64) -> Result<u64, fuzz::Failure> {
    for case in first..first.saturating_add(cases) {
        fuzz::run(target, case)?;
    }
    Ok(cases)
}

/// Goes through the targets in rounds, so that each has had its share whenever somebody stops it.
fn rounds(only: Option<Target>, first: u64, cases: Option<u64>) -> Result<u64, fuzz::Failure> {
    let targets: Vec<Target> =
        Target::ALL.into_iter().filter(|target| only.is_none_or(|only| only == *target)).collect();
    let (mut done, mut count) = (0, 0);
    while cases.is_none_or(|cases| done < cases) {
        let round = cases.map_or(ROUND, |cases| ROUND.min(cases - done));
        for target in &targets {
            let share = target.share(round);
            count += cases_of(*target, first + done / ROUND * target.share(ROUND), share)?;
        }
        done += round;
        eprintln!("{count} cases");
    }
    Ok(count)
}
