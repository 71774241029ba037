//! The `lockstep` command.

mod command;

use std::process::ExitCode;

use clap::Parser;

/// A distributed lock and leader-election service.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version, arg_required_else_help = true, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: command::Command,
}

fn main() -> ExitCode {
    Arguments::parse().command.run()
}
