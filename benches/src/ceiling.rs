//! The ceiling: what five nodes reach that move the bytes of a cell and make its durable writes, without
//! consensus and without locks (ARCHITECTURE section 8).
//!
//! A client's frame comes to the leader, which writes it and forwards it; the followers write it and answer;
//! once a majority of the disks has it, the leader replies. Threads, rings, sockets, frames, record sizes and
//! batches are a cell's: one ring a node, frames with their checksum, one O_DIRECT write with RWF_DSYNC in
//! flight a node into space that was filled with zeros. Invariant: a reply leaves only when three disks of five
//! have confirmed what it is about. Deliberately absent: everything that a log could be replayed by, terms,
//! sessions and locks, and any use after a restart.

mod disk;
mod follower;
mod leader;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, anyhow};
use lockstep_ring::net::{self, SocketOptions};
use lockstep_ring::{Ring, RingConfig, Token};

/// How many nodes there are.
pub const NODES: usize = 5;
/// Disks that must have confirmed a write, the leader's included or not.
const MAJORITY: usize = NODES / 2 + 1;
/// A shard's ring and receive buffers.
const RING: RingConfig =
    RingConfig { submission_entries: 1_024, completion_entries: 8_192, registered_files: 1_024 };
const CLIENT_BUFFERS: (u16, u32) = (256, 16 * 1024);
const PEER_BUFFERS: (u16, u32) = (64, 64 * 1024);
/// A node looks at least this often whether it is to stop.
const TURN_MAX: Duration = Duration::from_millis(50);

/// What is no connection's.
const ACCEPT: Token = Token(u64::MAX);
const WRITE: Token = Token(u64::MAX - 1);

/// The running program.
#[derive(Debug)]
pub struct Ceiling {
    /// Where clients connect.
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    nodes: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Ceiling {
    /// Starts it with its files in `data`, an existing directory. They are filled with zeros first.
    pub fn start(data: &Path) -> anyhow::Result<Ceiling> {
        let stop = Arc::new(AtomicBool::new(false));
        let (client, address) = listen()?;
        let mut nodes = Vec::new();
        let mut followers = Vec::new();
        for number in 1..NODES {
            let (listener, address) = listen()?;
            followers.push(address);
            let (file, stop) = (disk::prepare(&data.join(format!("ceiling-{number}")))?, Arc::clone(&stop));
            nodes.push(spawn(number, stop, move |ring, stop| follower::run(ring, stop, file, listener))?);
        }
        let (file, leader_stop) = (disk::prepare(&data.join("ceiling-0"))?, Arc::clone(&stop));
        nodes.push(spawn(0, leader_stop, move |ring, stop| {
            leader::run(ring, stop, file, client, address, &followers)
        })?);
        Ok(Ceiling { address, stop, nodes })
    }

    /// Stops it, and says what went wrong in any of its nodes.
    pub fn stop(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Release);
        let mut outcome = Ok(());
        for node in self.nodes {
            let ended = node.join().unwrap_or_else(|_| Err(anyhow!("a node of the ceiling has panicked")));
            outcome = outcome.and(ended);
        }
        outcome
    }
}

fn listen() -> anyhow::Result<(OwnedFd, SocketAddr)> {
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = net::listen(anywhere, 1_024, &SocketOptions::default()).context("cannot listen")?;
    let address = net::local_address(&listener)?;
    Ok((listener, address))
}

fn spawn(
    number: usize,
    stop: Arc<AtomicBool>,
    body: impl FnOnce(&Ring, &AtomicBool) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<JoinHandle<anyhow::Result<()>>> {
    let thread = std::thread::Builder::new().name(format!("ceiling-{number}")).spawn(move || {
        let ring = Ring::new(RING).context("io_uring could not be set up")?;
        body(&ring, &stop).with_context(|| format!("node {number} of the ceiling"))
    });
    thread.context("no thread for a node")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Load, drive};
    use crate::question::find_leader;

    #[test]
    fn the_ceiling_answers_the_client_that_also_drives_cells() {
        let data = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory");
        let ceiling = Ceiling::start(data.path()).expect("it starts");
        let leader = find_leader(&[ceiling.address], Duration::from_secs(5)).expect("it serves");
        let load = Load {
            connections: 3,
            depth: 2,
            warm_up: Duration::from_millis(10),
            measured: Duration::from_millis(200),
        };
        let figures = drive(leader, &load).expect("every answer is the one hoped for");
        ceiling.stop().expect("no node has failed");
        assert!(figures.writes > 0 && figures.acquire.len() <= figures.writes);
    }
}
