//! A node: a formatted data directory, its listeners, and one thread for each of its shards.
//!
//! Invariant: a node listens on both ports or on none, and runs only over a directory that is its own, is
//! formatted, and is used by nobody else. Deliberately absent: where its settings come from.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use lockstep_core::hello::{Identity, shard_of};
use lockstep_core::table::Limits;
use lockstep_core::{APPLY_PER_TURN, CACHE_BYTES_MAX, CellConfig, Member, SNAPSHOT_SLICE_BYTES, Span};
use lockstep_ring::net::{self, SocketOptions};
use lockstep_ring::probe::{self, Needs};
use lockstep_ring::storage::DataDirectory;
use lockstep_wal::Superblock;
use lockstep_wal::disk::FileName;
use lockstep_wal::layout::BLOCK_BYTES;
use lockstep_wire::{BirthId, CellId, Epoch, NodeId};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::shard::handoff::{Mailbox, Mailboxes};
use crate::shard::{self, CLIENT_BUFFERS, Listeners, PEER_BUFFERS, RING, ShardError, ShardPlan};

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 4_096;
/// Descriptors of a node beside its connections: log files, rings, links and a margin.
const OWN_FILES: u64 = 256;
/// More than a node makes use of; limits of billions are common, and mean none.
const OPEN_FILES_MAX: u64 = 1_000_000;
/// Connections that a node needs room for at least.
const CONNECTIONS_MIN: u64 = 512;

/// How long a cell waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between two heartbeats of a leader, in ms.
    pub heartbeat_ms: u64,
    /// The shortest silence after which a member campaigns, in ms.
    pub election_ms_min: u64,
    /// The longest one, in ms.
    pub election_ms_max: u64,
    /// Between two read rounds that carry keep-alives only, in ms.
    pub round_pace_ms: u64,
    /// How long the node that should lead a cell must have been well before it is given the office, in ms; 0 for never.
    pub preference_ms: u64,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            heartbeat_ms: 50,
            election_ms_min: 500,
            election_ms_max: 1_000,
            round_pace_ms: 3,
            preference_ms: 30_000,
        }
    }
}

/// A node of the cluster as the others reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// Its id.
    pub node: NodeId,
    /// Where it serves clients, as clients are told.
    pub client: String,
    /// Where it serves members.
    pub peer: SocketAddr,
}

/// What a node is told at its start.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its data directory, formatted.
    pub data: PathBuf,
    /// Which node it is to be; the directory must say the same.
    pub node: NodeId,
    /// The nodes by id, this one included: those that the cluster is made of, or that a node which joins looks for.
    pub nodes: Vec<NodeAddress>,
    /// It was not there when the cluster was made, and waits to be added.
    pub is_joining: bool,
    /// How many cells the cluster has; every node has a replica of each.
    pub cells: u16,
    /// Which cell serves which namespace; an empty one stands for all the others.
    pub routes: Vec<(String, CellId)>,
    /// How long it waits for what.
    pub timing: Timing,
}

/// Why a node did not start, or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The host lacks something.
    #[error(transparent)]
    Host(#[from] probe::Shortage),
    /// A port cannot be had.
    #[error("cannot listen on {address}; choose another address or stop whoever has it")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The data directory cannot be used.
    #[error("{path}: {reason}", path = path.display())]
    Data {
        /// The directory.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// The kernel gave no randomness or no thread.
    #[error("{what}: {reason}")]
    Kernel {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        reason: String,
    },
    /// A shard has ended.
    #[error(transparent)]
    Shard(#[from] ShardError),
}

/// The two sockets of a node, bound before anything else is done.
#[derive(Debug)]
pub struct Ports {
    listeners: Listeners,
    /// Where clients connect.
    pub client: SocketAddr,
    /// Where members connect.
    pub peer: SocketAddr,
}

impl Ports {
    /// Binds both; on failure neither stays bound.
    pub fn bind(client: SocketAddr, peer: SocketAddr) -> Result<Ports, NodeError> {
        let listen = |address| {
            let listener = net::listen(address, BACKLOG, &SocketOptions::default());
            let bound = listener.and_then(|fd| net::local_address(&fd).map(|address| (fd, address)));
            bound.map_err(|source| NodeError::Listen { address, source })
        };
        let (client_fd, client) = listen(client)?;
        let (peer_fd, peer) = listen(peer)?;
        Ok(Ports { listeners: Listeners { client: client_fd, peer: peer_fd }, client, peer })
    }
}

/// Asks a node to stop, from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    mailboxes: Mailboxes,
    stop: Arc<AtomicBool>,
}

impl Stopper {
    /// Asks for an orderly stop: leadership is handed over, then every shard ends.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        for mailbox in self.mailboxes.iter() {
            mailbox.wake();
        }
    }
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    stopper: Stopper,
    shards: Vec<JoinHandle<()>>,
    ended: mpsc::Receiver<Result<(), ShardError>>,
    /// Keeps the directory locked for as long as the node lives.
    _directory: DataDirectory,
}

impl Node {
    /// Starts every shard; comes back when each has recovered its log and serves.
    pub fn start(config: NodeConfig, claim: Claim, ports: Ports) -> Result<Node, NodeError> {
        let open_files = raise_open_files(&config)?;
        let Claim { directory, superblock } = claim;
        let mailboxes: Mailboxes = Arc::new((0..superblock.shards).map(|_| Mailbox::default()).collect());
        let stop = Arc::new(AtomicBool::new(false));
        let removed = Arc::new(AtomicU16::new(0));
        let own = config.nodes.iter().find(|other| other.node == config.node);
        let peer_address = own.map_or_else(String::new, |own| own.peer.to_string());
        let (end, ended) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        let mut listeners = Some(ports.listeners);
        let mut shards = Vec::new();
        let connections_max = usize::try_from((open_files - OWN_FILES) / u64::from(superblock.shards));
        for shard in 0..superblock.shards {
            let plan = ShardPlan {
                shard,
                identity: Identity {
                    cluster: superblock.cluster,
                    node: superblock.node,
                    cells: config.cells,
                    shards: superblock.shards,
                },
                incarnation: superblock.incarnation,
                data: config.data.clone(),
                superblock,
                salt: random()?,
                cells: cells_of(&config, &superblock, shard)?,
                peer_address: peer_address.clone(),
                listeners: listeners.take(),
                mailboxes: Arc::clone(&mailboxes),
                stop: Arc::clone(&stop),
                removed: Arc::clone(&removed),
                connections_max: connections_max.unwrap_or(usize::MAX),
                origin: Instant::now(),
            };
            let (end, ready) = (end.clone(), ready.clone());
            let thread = std::thread::Builder::new()
                .name(format!("shard-{}.{shard}", config.node))
                .spawn(move || {
                    // Nobody may be listening any more: the node has given up on another shard.
                    let outcome =
                        outcome_of(shard, || shard::run(plan, move || ready.send(()).unwrap_or_default()));
                    end.send(outcome).unwrap_or_default();
                })
                .map_err(|error| NodeError::Kernel {
                    what: "no thread for a shard",
                    reason: error.to_string(),
                })?;
            shards.push(thread);
        }
        drop((end, ready));
        let stopper = Stopper { mailboxes, stop };
        let node = Node { stopper, shards, ended, _directory: directory };
        for _ in 0..superblock.shards {
            // A shard that cannot start says why instead of being ready.
            if is_ready.recv().is_err() {
                return Err(node.wait().err().unwrap_or(NodeError::Kernel {
                    what: "a shard ended before it was ready",
                    reason: "it was told to stop".to_owned(),
                }));
            }
        }
        Ok(node)
    }

    /// What asks this node to stop.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits for the end of the node: of all shards after a stop, of the first that cannot go on otherwise.
    pub fn wait(self) -> Result<(), NodeError> {
        let mut outcome = Ok(());
        for _ in 0..self.shards.len() {
            match self.ended.recv() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    outcome = outcome.and(Err(error.into()));
                    self.stopper.stop();
                }
                Err(mpsc::RecvError) => unreachable!("every shard says how it ended"),
            }
        }
        for shard in self.shards {
            drop(shard.join());
        }
        outcome
    }
}

/// How a shard ended. One that panics ends the node like one that cannot go on: the others must not serve half of it.
fn outcome_of(shard: u16, run: impl FnOnce() -> Result<(), ShardError>) -> Result<(), ShardError> {
    // Nothing that the shard has touched is looked at again.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        Err(ShardError::Halted(format!(
            "shard {shard} has met a defect of the program; see the message above"
        )))
    })
}

/// Checks that the host has what a node needs, raises the limit of open files as far as it may, and says what it is.
fn raise_open_files(config: &NodeConfig) -> Result<u64, NodeError> {
    probe::require(&Needs {
        directory: config.data.clone(),
        rings: 1,
        ring: RING,
        buffer_groups: vec![CLIENT_BUFFERS, PEER_BUFFERS],
        open_files: OWN_FILES + CONNECTIONS_MIN,
    })?;
    let limit = getrlimit(Resource::Nofile);
    // The soft limit protects programs that use select; whoever may have more is meant by the hard one. A refusal shows
    // in the limit, which is read again.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    Ok(getrlimit(Resource::Nofile).current.unwrap_or(OPEN_FILES_MAX).min(OPEN_FILES_MAX))
}

/// A data directory that this process has taken for itself.
#[derive(Debug)]
pub struct Claim {
    directory: DataDirectory,
    superblock: Superblock,
}

impl Claim {
    /// Takes the directory of a node; refuses one that is not formatted, somebody else's, or in use.
    pub fn take(data: &Path, node: NodeId) -> Result<Claim, NodeError> {
        let refuse = |reason: String| NodeError::Data { path: data.to_owned(), reason };
        let mut directory = DataDirectory::open(data).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                refuse("there is no such directory; mount its disk, or format it first".to_owned())
            }
            _ => refuse(error.to_string()),
        })?;
        let superblock =
            lockstep_wal::claim(&mut directory).map_err(|refusal| refuse(refusal.to_string()))?;
        if superblock.node != node {
            return Err(refuse(format!(
                "the directory belongs to node {}, the configuration says node {node}; correct one of them",
                superblock.node
            )));
        }
        let damaged =
            Superblock::damaged_copy(&mut directory).map_err(|refusal| refuse(refusal.to_string()))?;
        if let Some(copy) = damaged {
            let file = data.join(FileName::Superblock.to_string());
            tracing::warn!("{}", damaged_superblock(&file, copy));
        }
        Ok(Claim { directory, superblock })
    }
}

/// What an operator is told of a superblock of which one copy is good: the node can start, once more.
fn damaged_superblock(file: &Path, copy: usize) -> String {
    let (file, good) = (file.display(), 1 - copy);
    format!(
        "{file}: one of its two copies is damaged (at offset {}); the other one is used. Look after the disk, stop this node and \
         copy the good one over it: dd if={file} of={file} bs={BLOCK_BYTES} count=1 skip={good} seek={copy} conv=notrunc,fsync",
        copy * BLOCK_BYTES
    )
}

fn cells_of(config: &NodeConfig, superblock: &Superblock, shard: u16) -> Result<Vec<CellConfig>, NodeError> {
    let members: Vec<Member> = config
        .nodes
        .iter()
        .map(|node| Member {
            node: node.node,
            client_address: node.client.clone(),
            peer_address: node.peer.to_string(),
        })
        .collect();
    let cells: Vec<CellId> =
        (0..config.cells).map(CellId).filter(|cell| shard_of(*cell, superblock.shards) == shard).collect();
    // One turn is for all of them.
    let apply_per_turn = (APPLY_PER_TURN / cells.len().max(1)).max(1);
    cells
        .into_iter()
        .map(|cell| {
            let mut birth_id = [0; 16];
            fill_random(&mut birth_id)?;
            Ok(CellConfig {
                cell,
                cells: config.cells,
                shards: superblock.shards,
                node: config.node,
                members: members.clone(),
                is_joining: config.is_joining,
                incarnation: superblock.incarnation,
                birth_id: BirthId(birth_id),
                epoch: Epoch(0),
                limits: Limits::default(),
                heartbeat: Span::from_ms(config.timing.heartbeat_ms),
                election_min: Span::from_ms(config.timing.election_ms_min),
                election_max: Span::from_ms(config.timing.election_ms_max),
                round_pace: Span::from_ms(config.timing.round_pace_ms),
                preference: Span::from_ms(config.timing.preference_ms),
                cache_bytes_max: CACHE_BYTES_MAX,
                apply_per_turn,
                snapshot_slice_bytes: SNAPSHOT_SLICE_BYTES,
                seed: random()?,
                routes: config.routes.clone(),
            })
        })
        .collect()
}

pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), NodeError> {
    getrandom::fill(bytes)
        .map_err(|error| NodeError::Kernel { what: "no randomness", reason: error.to_string() })
}

pub(crate) fn random() -> Result<u64, NodeError> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_panics_has_ended_and_says_so() {
        let ended = outcome_of(1, || panic!("an assertion"));
        assert!(ended.is_err_and(|error| error.to_string().starts_with("shard 1 has met a defect")));
        assert!(outcome_of(1, || Ok(())).is_ok());
    }
}
