//! A whole cluster in one process: every replica with real sockets and real log files.
//!
//! Invariant: a directory keeps the shape (replicas, cells) that it was made with. Deliberately absent: any
//! shortcut; each replica is a node like those of `lockstep serve`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use lockstep_wire::limit::CELLS_MAX;
use lockstep_wire::{CellId, NodeId};
use serde::{Deserialize, Serialize};

use crate::format::{Format, format, random_cluster};
use crate::node::{Claim, Node, NodeAddress, NodeConfig, NodeError, Ports, Timing};

/// Small segments: a development cluster writes little, and five of them should not fill a laptop's disk.
const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;
/// The file that keeps the shape of the cluster.
const SHAPE_FILE: &str = "dev.toml";

/// What cluster is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// How many replicas each cell has: an odd number up to seven.
    pub replicas: u16,
    /// How many cells there are.
    pub cells: u16,
}

/// A running cluster.
#[derive(Debug)]
pub struct DevCluster {
    /// The nodes, by id.
    pub nodes: Vec<Node>,
    /// Where clients connect, by node.
    pub endpoints: Vec<SocketAddr>,
    /// Which cell serves which namespace.
    pub routes: Vec<(String, CellId)>,
}

impl DevCluster {
    /// Starts every node over `data`, which is formatted if it is new. The first node listens for clients at
    /// `listen`, the others on the ports that follow it; with port 0 everything is wherever there is room.
    pub fn start(data: &Path, shape: Shape, listen: SocketAddr) -> Result<DevCluster, NodeError> {
        let refuse = |reason: String| NodeError::Data { path: data.to_owned(), reason };
        if !(1..=7).contains(&shape.replicas) || shape.replicas.is_multiple_of(2) {
            return Err(refuse(format!("a cell has 1, 3, 5 or 7 replicas, not {}", shape.replicas)));
        }
        if shape.cells == 0 || usize::from(shape.cells) > CELLS_MAX {
            return Err(refuse(format!("a cluster has 1 to {CELLS_MAX} cells, not {}", shape.cells)));
        }
        prepare(data, shape)?;
        let claims: Result<Vec<Claim>, NodeError> =
            (1..=shape.replicas).map(NodeId).map(|node| Claim::take(&node_data(data, node), node)).collect();
        let claims = claims?;
        let ports = bind(shape, listen)?;
        let nodes: Vec<NodeAddress> = ports
            .iter()
            .zip(1..)
            .map(|(ports, id)| NodeAddress {
                node: NodeId(id),
                client: ports.client.to_string(),
                peer: ports.peer,
            })
            .collect();
        let routes = routes(shape.cells);
        let endpoints = ports.iter().map(|ports| ports.client).collect();
        let config = |node: NodeId| NodeConfig {
            data: node_data(data, node),
            node,
            nodes: nodes.clone(),
            is_joining: false,
            cells: shape.cells,
            routes: routes.clone(),
            timing: Timing::default(),
        };
        // Side by side: each of them reads its whole log first.
        let running: Result<Vec<Node>, NodeError> = std::thread::scope(|scope| {
            let starting: Vec<_> = ports
                .into_iter()
                .zip(claims)
                .zip(&nodes)
                .map(|((ports, claim), node)| (config(node.node), claim, ports))
                .map(|(config, claim, ports)| scope.spawn(move || Node::start(config, claim, ports)))
                .collect();
            starting
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or_else(|_| Err(refuse("a node has panicked; see above".to_owned())))
                })
                .collect()
        });
        let running = running?;
        Ok(DevCluster { nodes: running, endpoints, routes })
    }
}

fn bind(shape: Shape, listen: SocketAddr) -> Result<Vec<Ports>, NodeError> {
    let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    (0..shape.replicas)
        .map(|at| {
            let port = if listen.port() == 0 { 0 } else { listen.port().saturating_add(at) };
            Ports::bind(SocketAddr::new(listen.ip(), port), peer)
        })
        .collect()
}

fn node_data(data: &Path, node: NodeId) -> PathBuf {
    data.join(format!("node-{node}"))
}

/// Formats what is new, and checks that what is not has the shape that is wanted.
fn prepare(data: &Path, shape: Shape) -> Result<(), NodeError> {
    let refuse = |reason: String| NodeError::Data { path: data.to_owned(), reason };
    let file = data.join(SHAPE_FILE);
    match std::fs::read_to_string(&file) {
        Ok(text) => {
            let kept: Shape =
                toml::from_str(&text).map_err(|error| refuse(format!("{SHAPE_FILE}: {error}")))?;
            if kept != shape {
                return Err(refuse(format!(
                    "this cluster was made with --replicas {} --cells {}; say the same, or choose another directory",
                    kept.replicas, kept.cells
                )));
            }
            return Ok(());
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(refuse(format!("{SHAPE_FILE}: {error}"))),
    }
    std::fs::create_dir_all(data).map_err(|error| refuse(error.to_string()))?;
    if std::fs::read_dir(data).map_err(|error| refuse(error.to_string()))?.next().is_some() {
        return Err(refuse(format!(
            "the directory is not empty and has no {SHAPE_FILE}; choose an empty or a new one"
        )));
    }
    let cluster = random_cluster()?;
    std::thread::scope(|scope| {
        let formatting: Vec<_> = (1..=shape.replicas)
            .map(|id| {
                scope.spawn(move || {
                    let plan = Format { cluster, node: NodeId(id), shards: 1, segment_bytes: SEGMENT_BYTES };
                    format(&node_data(data, NodeId(id)), &plan)
                })
            })
            .collect();
        formatting.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(refuse("formatting has panicked; see above".to_owned())))
        })
    })?;
    // Last, so that a directory with this file is whole.
    let text = toml::to_string(&shape).map_err(|error| refuse(error.to_string()))?;
    std::fs::write(&file, text).map_err(|error| refuse(format!("{SHAPE_FILE}: {error}")))
}

/// With several cells the namespaces `cell-0`, `cell-1`, ... have one each; all the others share cell 0.
fn routes(cells: u16) -> Vec<(String, CellId)> {
    let named = (0..cells).filter(|_| cells > 1).map(|cell| (format!("cell-{cell}"), CellId(cell)));
    named.chain([(String::new(), CellId(0))]).collect()
}
