//! `lockstep-loadgen`: loads a Lockstep cluster with simulated clients and says what came of it.

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use lockstep_loadgen::output::{self, progress};
use lockstep_loadgen::profile::{pairs, soak};
use serde::Serialize;

/// The exit code when `--check` has found something.
const VIOLATION: u8 = 3;

#[derive(Debug, Parser)]
#[command(version, about = "Loads a Lockstep cluster with simulated clients and says what came of it")]
#[command(
    after_help = "Exits with 0 after a run with successes, 1 without any or when it could not be run, \
                        2 for bad arguments, 3 when --check has found a violation. A soak exits with 1 when any call has failed."
)]
struct Arguments {
    #[command(subcommand)]
    profile: Profile,
}

#[derive(Debug, Subcommand)]
enum Profile {
    /// Closed loop: each client acquires a lock, releases it, and begins again.
    Pairs {
        #[command(flatten)]
        options: pairs::Options,
        /// Print the report as JSON.
        #[arg(long)]
        json: bool,
    },
    /// A soak: locks that are held for the whole run, and millions of acquires and releases of others.
    #[command(mut_arg("clients", |arg| arg.default_value("200")), mut_arg("seconds", |arg| arg.default_value("3600")))]
    Soak {
        #[command(flatten)]
        options: soak::Options,
        /// Print the report as JSON.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().profile {
        Profile::Pairs { options, json } => run_pairs(&options, json),
        Profile::Soak { options, json } => run_soak(&options, json),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            progress(&format!("lockstep-loadgen: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn print(report: &(impl Serialize + Display), as_json: bool) -> anyhow::Result<()> {
    let text = match as_json {
        true => serde_json::to_string_pretty(report).context("JSON")? + "\n",
        false => report.to_string(),
    };
    output::print(&text).context("standard output cannot be written")
}

fn run_soak(options: &soak::Options, json: bool) -> anyhow::Result<ExitCode> {
    let report = soak::run(options)?;
    print(&report, json)?;
    Ok(if report.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_pairs(options: &pairs::Options, json: bool) -> anyhow::Result<ExitCode> {
    let report = pairs::run(options)?;
    print(&report, json)?;
    if report.has_violation() {
        return Ok(ExitCode::from(VIOLATION));
    }
    if !report.has_success() {
        progress("Nothing has succeeded.");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<pairs::Options, String> {
        let words = ["lockstep-loadgen", "pairs"].into_iter().chain(line.split_whitespace());
        match Arguments::try_parse_from(words) {
            Ok(Arguments { profile: Profile::Pairs { options, json: _ } }) => Ok(options),
            Ok(other) => panic!("{other:?} from {line:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn endpoints_are_separated_by_commas() {
        let options = parse("--endpoints a:1,b:2,c:3").expect("good arguments");
        assert_eq!(options.fleet.endpoints, ["a:1", "b:2", "c:3"]);
        assert_eq!((options.fleet.clients, options.fleet.connections(), options.fleet.cores), (64, 4, 1));
    }

    #[test]
    fn values_out_of_their_bounds_are_refused_by_the_name_of_their_option() {
        for (option, value) in [
            ("--clients", "0"),
            ("--clients", "1000001"),
            ("--sessions-per-connection", "0"),
            ("--sessions-per-connection", "4097"),
            ("--seconds", "0"),
            ("--seconds", "86401"),
            ("--names", "0"),
            ("--cores", "0"),
            ("--ttl-ms", "999"),
            ("--ttl-ms", "60001"),
            ("--hold-ms", "10001"),
            ("--contended", "1.01"),
            ("--contended=-0.1", ""),
            ("--contended", "NaN"),
            ("--contended", "half"),
            ("--endpoints", "a:1,,b:2"),
        ] {
            let endpoints = if option == "--endpoints" { "" } else { "--endpoints a:1" };
            let refusal = parse(&format!("{endpoints} {option} {value}")).expect_err(option);
            let name = option.split('=').next().unwrap_or(option);
            assert!(refusal.contains(name), "{option} {value}: {refusal}");
        }
    }

    #[test]
    fn a_soak_is_longer_and_has_more_clients_unless_it_is_told_otherwise() {
        let soak = |line: &str| {
            let words = ["lockstep-loadgen", "soak", "--endpoints", "a:1"].into_iter();
            match Arguments::try_parse_from(words.chain(line.split_whitespace())).map(|all| all.profile) {
                Ok(Profile::Soak { options, json: _ }) => options,
                other => panic!("{other:?}"),
            }
        };
        let options = soak("");
        assert_eq!((options.live, options.writes), (100_000, 20_000_000));
        assert_eq!((options.fleet.clients, options.fleet.seconds), (200, 3_600));
        let options = soak("--clients 7 --seconds 8 --live 0 --writes 9 --pids 1,2 --data /a,/b");
        assert_eq!((options.fleet.clients, options.fleet.seconds, options.writes), (7, 8, 9));
        assert_eq!((options.pids.len(), options.data.len()), (2, 2));
    }

    #[test]
    fn values_at_their_bounds_are_taken() {
        let line = "--endpoints a:1 --clients 1000000 --sessions-per-connection 4096 --seconds 86400 --names 1000000 \
                    --cores 256 --ttl-ms 60000 --hold-ms 10000 --contended 1 --check";
        let options = parse(line).expect("good arguments");
        assert!(options.check);
        assert_eq!(options.fleet.connections(), 245);
    }
}
