//! The `lockstep` command.

mod command;

use std::process::ExitCode;

use clap::Parser;

/// A distributed lock and leader-election service.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version)]
struct Arguments {
    #[command(subcommand)]
    command: command::ClientCommand,
}

fn main() -> ExitCode {
    Arguments::parse().command.run()
}
