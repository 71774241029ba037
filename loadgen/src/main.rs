//! `lockstep-loadgen`: loads a Lockstep cluster with simulated clients and says what came of it.

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use lockstep_loadgen::profile::pairs;

/// The exit code when `--check` has found something.
const VIOLATION: u8 = 3;

#[derive(Debug, Parser)]
#[command(version, about = "Loads a Lockstep cluster with simulated clients and says what came of it")]
#[command(
    after_help = "Exits with 0 after a run with successes, 1 without any or when it could not be run, \
                        2 for bad arguments, 3 when --check has found a violation."
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
}

fn main() -> ExitCode {
    let Profile::Pairs { options, json } = Arguments::parse().profile;
    match run(&options, json) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lockstep-loadgen: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &pairs::Options, json: bool) -> anyhow::Result<ExitCode> {
    let report = pairs::run(options)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report).context("JSON")?);
    } else {
        print!("{report}");
    }
    if report.has_violation() {
        return Ok(ExitCode::from(VIOLATION));
    }
    if !report.has_success() {
        eprintln!("Nothing has succeeded.");
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
    fn values_at_their_bounds_are_taken() {
        let line = "--endpoints a:1 --clients 1000000 --sessions-per-connection 4096 --seconds 86400 --names 1000000 \
                    --cores 256 --ttl-ms 60000 --hold-ms 10000 --contended 1 --check";
        let options = parse(line).expect("good arguments");
        assert!(options.check);
        assert_eq!(options.fleet.connections(), 245);
    }
}
