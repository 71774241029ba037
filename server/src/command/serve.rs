//! `lockstep serve`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lockstep_server::{Claim, Node, Ports, config};

use super::{log_lines, stop};

/// Run one node of a cluster.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The configuration file; see docs/OPERATIONS.md
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the node until it is told to stop, or cannot go on.
pub(crate) fn run(arguments: &ServeArgs) -> Result<()> {
    let served = config::load(&arguments.config)?;
    log_lines::begin("info");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = runtime.block_on(async { stop::Signals::listen() })?;
    // The directory first: whoever starts a node twice is told that, not that its port is taken.
    let claim = Claim::take(&served.node.data, served.node.node)?;
    let ports = Ports::bind(served.client, served.peer)?;
    let (client, peer, node) = (ports.client, ports.peer, served.node.node);
    let running = Node::start(served.node, claim, ports)?;
    tracing::info!(%node, %client, %peer, "serving");
    runtime.block_on(stop::wait(signals, vec![running]))?;
    tracing::info!(%node, "stopped");
    Ok(())
}
