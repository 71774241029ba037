//! `lockstep serve`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_server::{Node, Ports, config};

use super::{log_lines, stop};

/// What `lockstep serve` is told.
#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// The configuration file; see docs/OPERATIONS.md
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the node until it is told to stop, or cannot go on.
pub(crate) fn run(arguments: &ServeArguments) -> Result<ExitCode> {
    let served = config::load(&arguments.config)?;
    log_lines::begin("info");
    let ports = Ports::bind(served.client, served.peer)?;
    let (client, peer, node) = (ports.client, ports.peer, served.node.node);
    let running = Node::start(served.node, ports)?;
    tracing::info!(%node, %client, %peer, "serving");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(stop::wait(vec![running]))?;
    tracing::info!(%node, "stopped");
    Ok(code)
}
