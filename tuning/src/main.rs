//! `lockstep-tuning`: looks at a host before Lockstep runs on it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use lockstep_tuning::{Observation, Plan, Standing, examine, is_sufficient};

#[derive(Parser)]
#[command(version, about = "What a host must have to run Lockstep well")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Look at this host and a data directory: what was seen, why it matters, what to do.
    ///
    /// Exits with 1 if something is missing without which no server starts.
    Check {
        /// The directory in which the server will keep its data.
        directory: PathBuf,
        /// Shards that the server will have, each on its own core.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
        shards: u32,
        /// Client connections that the server will carry at a time.
        #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        connections: u64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let Command::Check { directory, shards, connections, json } = Arguments::parse().command;
    let observations = examine(&directory, Plan { shards, connections });
    if json {
        println!("{}", serde_json::to_string_pretty(&observations).context("JSON")?);
    } else {
        observations.iter().for_each(print);
    }
    if is_sufficient(&observations) {
        return Ok(ExitCode::SUCCESS);
    }
    if !json {
        println!("A server will not start here: see what is MISSING.");
    }
    Ok(ExitCode::FAILURE)
}

fn print(observation: &Observation) {
    let standing = match observation.standing {
        Standing::Fine => "ok",
        Standing::WorthALook => "worth a look",
        Standing::Missing => "MISSING",
        Standing::Unknown => "not seen",
    };
    println!("{} [{standing}]", observation.subject);
    println!("  seen: {}", observation.seen);
    println!("  why:  {}", observation.why);
    if let Some(advice) = &observation.advice {
        println!("  do:   {advice}");
    }
    println!();
}
