//! The configuration of `lockstep serve`: TOML in, a checked [`NodeConfig`] out.
//!
//! Invariant: a configuration that comes out of here contradicts itself nowhere; every refusal names the
//! key, what it says, and what it should say. Deliberately absent: defaults that depend on the host.

use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use lockstep_wire::limit::{CELLS_MAX, MEMBERS_MAX};
use lockstep_wire::{CellId, Name, NodeId};
use serde::Deserialize;

use crate::node::{NodeAddress, NodeConfig, Timing};

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path} cannot be read", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The file is not TOML of this shape; the message has the line and the key.
    #[error("{path}: {message}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and what.
        message: String,
    },
    /// A value cannot be, or contradicts another.
    #[error("{path}: `{key}`: {reason}", path = path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Why, and what it should say.
        reason: String,
    },
}

/// A configuration, and where to listen.
#[derive(Clone, Debug)]
pub struct Served {
    /// What the node is told.
    pub node: NodeConfig,
    /// Where it listens for clients.
    pub client: SocketAddr,
    /// Where it listens for members.
    pub peer: SocketAddr,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    data: PathBuf,
    node: u16,
    #[serde(default)]
    join: bool,
    #[serde(default = "one")]
    cells: u16,
    #[serde(default)]
    listen: Listen,
    #[serde(default)]
    timing: TimingTable,
    nodes: Vec<NodeTable>,
    #[serde(default)]
    routes: Vec<RouteTable>,
}

fn one() -> u16 {
    1
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listen {
    client: Option<String>,
    peer: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TimingTable {
    heartbeat_ms: u64,
    election_ms_min: u64,
    election_ms_max: u64,
    round_pace_ms: u64,
    preference_ms: u64,
}

impl Default for TimingTable {
    fn default() -> TimingTable {
        let Timing { heartbeat_ms, election_ms_min, election_ms_max, round_pace_ms, preference_ms } =
            Timing::default();
        TimingTable { heartbeat_ms, election_ms_min, election_ms_max, round_pace_ms, preference_ms }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeTable {
    id: u16,
    client: String,
    peer: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteTable {
    namespace: String,
    cell: u16,
}

type Refusal = (String, String);

/// Reads and checks a configuration file.
pub fn load(path: &Path) -> Result<Served, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<Served, ConfigError> {
    let file: File = toml::from_str(text)
        .map_err(|error| ConfigError::Malformed { path: path.to_owned(), message: error.to_string() })?;
    check(file).map_err(|(key, reason)| ConfigError::Refused { path: path.to_owned(), key, reason })
}

fn refuse<T>(key: impl Into<String>, reason: impl Into<String>) -> Result<T, Refusal> {
    Err((key.into(), reason.into()))
}

fn check(file: File) -> Result<Served, Refusal> {
    let timing = check_timing(&file.timing)?;
    let nodes = check_nodes(&file.nodes)?;
    let Some(own) = nodes.iter().find(|node| node.node.0 == file.node) else {
        return refuse(
            "node",
            format!("node {} is not among `nodes`; add it there or correct the number", file.node),
        );
    };
    if file.cells == 0 || usize::from(file.cells) > CELLS_MAX {
        return refuse("cells", format!("a cluster has 1 to {CELLS_MAX} cells, not {}", file.cells));
    }
    let routes = check_routes(&file.routes, file.cells)?;
    let listen = |key: &str, wish: Option<&String>, default: &str| match wish {
        Some(address) => resolve(key, address),
        None => resolve(key, default),
    };
    let client = listen("listen.client", file.listen.client.as_ref(), &own.client)?;
    let peer = listen("listen.peer", file.listen.peer.as_ref(), &own.peer.to_string())?;
    if client == peer && client.port() != 0 {
        return refuse(
            "listen",
            format!("clients and members cannot share {client}; give each a port of its own"),
        );
    }
    let node = NodeConfig {
        data: file.data,
        node: own.node,
        nodes: nodes.clone(),
        is_joining: file.join,
        cells: file.cells,
        routes,
        timing,
    };
    Ok(Served { node, client, peer })
}

fn check_timing(table: &TimingTable) -> Result<Timing, Refusal> {
    let TimingTable { heartbeat_ms, election_ms_min, election_ms_max, round_pace_ms, preference_ms } = *table;
    if heartbeat_ms == 0 {
        return refuse("timing.heartbeat_ms", "must be at least 1");
    }
    if heartbeat_ms * 2 > election_ms_min {
        return refuse(
            "timing.heartbeat_ms",
            format!(
                "{heartbeat_ms} ms is more than half of `timing.election_ms_min` ({election_ms_min} ms): one late \
                 heartbeat would depose a healthy leader; use a tenth of it"
            ),
        );
    }
    if election_ms_max < election_ms_min {
        return refuse(
            "timing.election_ms_max",
            format!("{election_ms_max} ms is below `timing.election_ms_min` ({election_ms_min} ms)"),
        );
    }
    if election_ms_max > 60_000 {
        return refuse("timing.election_ms_max", "must be at most 60000: nobody waits a minute for a leader");
    }
    if round_pace_ms == 0 || round_pace_ms > heartbeat_ms {
        return refuse(
            "timing.round_pace_ms",
            format!("must lie between 1 and `timing.heartbeat_ms` ({heartbeat_ms})"),
        );
    }
    if preference_ms != 0 && preference_ms < election_ms_max {
        return refuse(
            "timing.preference_ms",
            format!("must be 0, for never, or at least `timing.election_ms_max` ({election_ms_max})"),
        );
    }
    if preference_ms > 86_400_000 {
        return refuse("timing.preference_ms", "must be at most 86400000, a day; 0 is never");
    }
    Ok(Timing { heartbeat_ms, election_ms_min, election_ms_max, round_pace_ms, preference_ms })
}

fn check_nodes(tables: &[NodeTable]) -> Result<Vec<NodeAddress>, Refusal> {
    if tables.is_empty() || tables.len() > MEMBERS_MAX {
        return refuse(
            "nodes",
            format!("a cluster has 1 to {MEMBERS_MAX} nodes (five is usual), not {}", tables.len()),
        );
    }
    let mut nodes: Vec<NodeAddress> = Vec::new();
    let mut addresses = BTreeSet::new();
    for (at, table) in tables.iter().enumerate() {
        let key = |field: &str| format!("nodes[{at}].{field}");
        if table.id == 0 {
            return refuse(key("id"), "0 is nobody; ids begin with 1");
        }
        if nodes.iter().any(|node| node.node.0 == table.id) {
            return refuse(key("id"), format!("node {} is listed twice; every id is used once", table.id));
        }
        let peer = resolve(&key("peer"), &table.peer)?;
        let client = resolve(&key("client"), &table.client)?;
        for (field, address) in [("client", client), ("peer", peer)] {
            if address.port() == 0 || address.ip().is_unspecified() {
                return refuse(
                    key(field),
                    format!(
                        "nobody can connect to {address}; say where others reach it, and where to bind in `listen`"
                    ),
                );
            }
            if !addresses.insert(address) {
                return refuse(
                    key(field),
                    format!("{address} is given twice; every port serves one purpose"),
                );
            }
        }
        nodes.push(NodeAddress { node: NodeId(table.id), client: table.client.clone(), peer });
    }
    nodes.sort_by_key(|node| node.node);
    Ok(nodes)
}

fn check_routes(tables: &[RouteTable], cells: u16) -> Result<Vec<(String, CellId)>, Refusal> {
    let mut routes: Vec<(String, CellId)> = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        let key = |field: &str| format!("routes[{at}].{field}");
        if table.cell >= cells {
            return refuse(
                key("cell"),
                format!("there are `cells` = {cells} cells, numbered from 0; {} is none", table.cell),
            );
        }
        let namespace = &table.namespace;
        if !namespace.is_empty()
            && Name::parse(&format!("/ls/{namespace}/x")).map(|name| name.namespace()) != Ok(namespace)
        {
            return refuse(key("namespace"), format!("`{namespace}` is not one segment of a name"));
        }
        if routes.iter().any(|(other, _)| other == namespace) {
            return refuse(key("namespace"), format!("`{namespace}` is routed twice"));
        }
        routes.push((namespace.clone(), CellId(table.cell)));
    }
    if !routes.iter().any(|(namespace, _)| namespace.is_empty()) {
        routes.push((String::new(), CellId(0)));
    }
    Ok(routes)
}

fn resolve(key: &str, address: &str) -> Result<SocketAddr, Refusal> {
    match address.to_socket_addrs() {
        Ok(mut addresses) => match addresses.next() {
            Some(address) => Ok(address),
            None => refuse(key, format!("`{address}` has no address")),
        },
        Err(error) => refuse(key, format!("`{address}` is not an address of the form host:port ({error})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        data = "/var/lib/lockstep"
        node = 2
        cells = 2
        [[nodes]]
        id = 1
        client = "127.0.0.1:7400"
        peer = "127.0.0.1:7500"
        [[nodes]]
        id = 2
        client = "127.0.0.2:7400"
        peer = "127.0.0.2:7500"
        [[routes]]
        namespace = "pay"
        cell = 1
    "#;

    fn refusal(text: &str) -> String {
        parse(Path::new("lockstep.toml"), text).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn a_whole_configuration_is_taken() {
        let served = parse(Path::new("lockstep.toml"), GOOD).unwrap();
        assert_eq!(served.node.node, NodeId(2));
        assert_eq!(served.client, "127.0.0.2:7400".parse().unwrap());
        assert_eq!(served.peer, "127.0.0.2:7500".parse().unwrap());
        assert_eq!(served.node.routes, [("pay".to_owned(), CellId(1)), (String::new(), CellId(0))]);
    }

    #[test]
    fn contradictions_are_refused_by_the_name_of_the_key() {
        for (from, to, key) in [
            ("node = 2", "node = 3", "`node`"),
            ("id = 2", "id = 1", "`nodes[1].id`"),
            ("id = 2", "id = 0", "`nodes[1].id`"),
            ("cells = 2", "cells = 1", "`routes[0].cell`"),
            ("cells = 2", "cells = 0", "`cells`"),
            ("127.0.0.2:7500", "127.0.0.2:7400", "`nodes[1].peer`"),
            ("127.0.0.2:7500", "nowhere", "`nodes[1].peer`"),
            ("127.0.0.2:7500", "127.0.0.2:0", "`nodes[1].peer`"),
            ("127.0.0.2:7400", "0.0.0.0:7400", "`nodes[1].client`"),
            ("\"pay\"", "\"pay/x\"", "`routes[0].namespace`"),
            ("cells = 2", "cells = 2\ntiming.heartbeat_ms = 600", "`timing.heartbeat_ms`"),
            ("cells = 2", "cells = 2\ntiming.election_ms_max = 100", "`timing.election_ms_max`"),
            ("cells = 2", "cells = 2\ntiming.round_pace_ms = 0", "`timing.round_pace_ms`"),
            ("cells = 2", "cells = 2\ntiming.preference_ms = 500", "`timing.preference_ms`"),
            ("cells = 2", "cells = 2\nelection = 5", "election"),
            ("id = 1", "id = 1\nport = 5", "port"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD);
            let message = refusal(&text);
            assert!(message.contains(key), "{key} is not named in: {message}");
        }
    }
}
