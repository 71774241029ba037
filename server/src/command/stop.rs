//! Waiting for the end of nodes: by a signal, in order, or because one of them cannot go on.

use anyhow::{Context, Result};
use lockstep_server::{Node, NodeError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// The signals that stop nodes in order.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Listens from here on; what comes before [`wait`] is not lost. Comes before any node starts, so that none is ever
    /// killed by a signal that asks it to stop. To be called within a runtime.
    pub(crate) fn listen() -> Result<Signals> {
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for INT")?;
        let terminate = signal(SignalKind::terminate()).context("cannot listen for TERM")?;
        Ok(Signals { interrupt, terminate })
    }
}

/// Waits until every node has ended. INT and TERM stop them in order; the first failure ends the process.
pub(crate) async fn wait(mut signals: Signals, nodes: Vec<Node>) -> Result<()> {
    let stoppers: Vec<_> = nodes.iter().map(Node::stopper).collect();
    let mut left = nodes.len();
    let (ended, mut endings) = mpsc::unbounded_channel::<Result<(), NodeError>>();
    for node in nodes {
        let ended = ended.clone();
        std::thread::spawn(move || ended.send(node.wait()).unwrap_or_default());
    }
    while left > 0 {
        tokio::select! {
            _ = signals.interrupt.recv() => stoppers.iter().for_each(lockstep_server::Stopper::stop),
            _ = signals.terminate.recv() => stoppers.iter().for_each(lockstep_server::Stopper::stop),
            ending = endings.recv() => {
                ending.context("a node ended without a word")??;
                left -= 1;
            }
        }
    }
    Ok(())
}
