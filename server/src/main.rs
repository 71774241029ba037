//! The `lockstep` command.

mod command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A distributed lock and leader-election service.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version, arg_required_else_help = true, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a whole cluster in this process, to develop against or to try things out
    Dev(command::dev::DevArguments),
    /// Prepare a data directory for a node; once, before its first `serve`
    Format(command::format::FormatArguments),
    /// Run one node of a cluster
    Serve(command::serve::ServeArguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Dev(arguments) => command::dev::run(&arguments),
        Command::Format(arguments) => command::format::run(&arguments),
        Command::Serve(arguments) => command::serve::run(&arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lockstep: {error:#}");
            ExitCode::FAILURE
        }
    }
}
