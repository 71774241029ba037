//! Whether a connection is welcome: the first word of whoever connects, held against who we are (ARCHITECTURE
//! sections 3 and 4.1).
//!
//! Invariant: a wrong cluster, node, port or cell is refused with a sentence that names both sides, before
//! anything else is read; and so is another directory under a member's id, on both ends of a link, because frames say
//! the id alone. Deliberately absent: which incarnation of its directory a member has; that is the cells' to know.

use lockstep_wire::hello::{Hello, HelloReply, PROTOCOL, Role};
use lockstep_wire::{CellId, ClusterId, Incarnation, NodeId, Status};

use crate::authorization;
use crate::cell::Cell;

/// Which port the connection came in on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The one for clients.
    Client,
    /// The one for members.
    Peer,
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// How many cells it serves, from 0 on.
    pub cells: u16,
    /// How many shards its cells are spread over.
    pub shards: u16,
}

/// What a welcome connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Welcome {
    /// Requests of clients of this cell.
    Client(CellId),
    /// Frames from this node to the cells of a shard.
    Peer {
        /// The node.
        node: NodeId,
        /// The incarnation of its directory.
        incarnation: Incarnation,
        /// The shard.
        shard: u16,
    },
}

/// Why a connection is not welcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwelcome {
    /// The status of the answer.
    pub status: Status,
    /// What does not fit, and what to do next.
    pub detail: String,
}

/// The shard that serves a cell, by the layout that formatting fixed.
pub fn shard_of(cell: CellId, shards: u16) -> u16 {
    cell.0 % shards
}

/// Why the node that says it has this incarnation of its directory is not the member of that id, if one of these cells
/// knows another incarnation for certain. One objection is enough, because ids are the cluster's; but only those who are
/// asked object: for a connection the cells of the shard that accepts it and those of the shard that it is for.
pub fn objection<'c>(
    cells: impl IntoIterator<Item = &'c Cell>,
    node: NodeId,
    incarnation: Incarnation,
) -> Option<String> {
    cells.into_iter().find_map(|cell| cell.objection_to(node, incarnation))
}

/// Decides whether whoever was dialed as `node` is that, and lets us in, as far as these cells know.
///
/// # Errors
/// Why not.
pub fn recognize<'c>(
    cells: impl IntoIterator<Item = &'c Cell>,
    node: NodeId,
    reply: &HelloReply<'_>,
) -> Result<(), String> {
    if reply.status != Status::Ok {
        return Err(reply.detail.to_owned());
    }
    if reply.node != node {
        return Err(format!("node {} answers there, not node {node}; check the addresses", reply.node));
    }
    objection(cells, node, reply.incarnation).map_or(Ok(()), Err)
}

/// Decides whether a connection is welcome, to a node that serves these cells.
///
/// # Errors
/// Why not, and with which status to say so.
pub fn welcome<'c>(
    us: &Identity,
    cells: impl IntoIterator<Item = &'c Cell>,
    port: Port,
    cell: CellId,
    hello: &Hello<'_>,
) -> Result<Welcome, Unwelcome> {
    let refuse = |status, detail| Err(Unwelcome { status, detail });
    let (first, last) = PROTOCOL;
    if hello.protocol_min > last || hello.protocol_max < first {
        return refuse(
            Status::Unsupported,
            format!(
                "this node speaks protocol {first} to {last}, the other side {} to {}; upgrade the older one",
                hello.protocol_min, hello.protocol_max
            ),
        );
    }
    let knows_no_cluster = hello.cluster == ClusterId::default() && hello.role == Role::Client;
    if hello.cluster != us.cluster && !knows_no_cluster {
        return refuse(
            Status::Denied,
            format!(
                "this is node {} of cluster {}, not of cluster {}; check the addresses in the configuration",
                us.node, us.cluster, hello.cluster
            ),
        );
    }
    if !authorization::admits(hello.credentials) {
        return refuse(Status::Denied, "these credentials prove no identity that may connect".to_owned());
    }
    match (hello.role, port) {
        (Role::Client, Port::Client) if cell.0 < us.cells => Ok(Welcome::Client(cell)),
        (Role::Client, Port::Client) => refuse(
            Status::WrongCell,
            match us.cells {
                1 => format!("there is no cell {cell}: node {} serves cell 0 alone", us.node),
                cells => {
                    format!(
                        "there is no cell {cell}: node {} serves {cells} cells, 0 to {}",
                        us.node,
                        cells - 1
                    )
                }
            },
        ),
        (Role::Client, Port::Peer) => refuse(
            Status::Denied,
            "this is the port for members of the cluster; clients have another one".to_owned(),
        ),
        (Role::PeerControl(_) | Role::PeerBulk(_), Port::Client) => refuse(
            Status::Denied,
            "this is the port for clients; members of the cluster have another one".to_owned(),
        ),
        (Role::PeerControl(peer) | Role::PeerBulk(peer), Port::Peer) => {
            if peer.to != us.node {
                return refuse(
                    Status::Denied,
                    format!(
                        "this is node {}, not node {}; check the addresses in the configuration",
                        us.node, peer.to
                    ),
                );
            }
            if peer.node == us.node || peer.node == NodeId(0) {
                return refuse(
                    Status::Denied,
                    format!("two nodes have the id {}; every id is used once", us.node),
                );
            }
            if peer.shard >= us.shards {
                return refuse(
                    Status::Denied,
                    format!(
                        "node {} was formatted with {} shards and has no shard {}; format all nodes alike",
                        us.node, us.shards, peer.shard
                    ),
                );
            }
            match objection(cells, peer.node, peer.incarnation) {
                Some(detail) => refuse(Status::Denied, detail),
                None => {
                    Ok(Welcome::Peer { node: peer.node, incarnation: peer.incarnation, shard: peer.shard })
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_wire::Incarnation;
    use lockstep_wire::hello::PeerIdentity;

    use super::*;

    const INCARNATION: Incarnation = Incarnation([1; 16]);

    fn us() -> Identity {
        Identity { cluster: ClusterId([7; 16]), node: NodeId(2), cells: 2, shards: 2 }
    }

    fn hello(role: Role) -> Hello<'static> {
        Hello {
            protocol_min: 1,
            protocol_max: 1,
            cluster: us().cluster,
            role,
            peer_address: "",
            credentials: b"",
        }
    }

    fn peer(node: u16, to: u16, shard: u16) -> Role {
        Role::PeerControl(PeerIdentity {
            node: NodeId(node),
            to: NodeId(to),
            shard,
            incarnation: INCARNATION,
        })
    }

    fn status(port: Port, cell: u16, hello: &Hello<'_>) -> Result<Welcome, Status> {
        welcome(&us(), [], port, CellId(cell), hello).map_err(|unwelcome| unwelcome.status)
    }

    #[test]
    fn clients_and_members_are_welcome_on_their_own_ports() {
        let client = hello(Role::Client);
        assert_eq!(status(Port::Client, 1, &client), Ok(Welcome::Client(CellId(1))));
        assert_eq!(status(Port::Peer, 1, &client), Err(Status::Denied));
        let member = hello(peer(1, 2, 1));
        let welcomed = Welcome::Peer { node: NodeId(1), incarnation: INCARNATION, shard: 1 };
        assert_eq!(status(Port::Peer, 0, &member), Ok(welcomed));
        assert_eq!(status(Port::Client, 0, &member), Err(Status::Denied));
    }

    #[test]
    fn another_cluster_node_cell_shard_or_protocol_is_refused() {
        let mut foreign = hello(peer(1, 2, 0));
        foreign.cluster = ClusterId([8; 16]);
        assert_eq!(status(Port::Peer, 0, &foreign), Err(Status::Denied));
        foreign.cluster = ClusterId::default();
        assert_eq!(status(Port::Peer, 0, &foreign), Err(Status::Denied), "a member knows its cluster");
        for role in [peer(1, 3, 0), peer(2, 2, 0), peer(0, 2, 0), peer(1, 2, 2)] {
            assert_eq!(status(Port::Peer, 0, &hello(role)), Err(Status::Denied), "{role:?}");
        }
        assert_eq!(status(Port::Client, 2, &hello(Role::Client)), Err(Status::WrongCell));
        for (cells, wanted) in
            [(1, "there is no cell 2: node 2 serves cell 0 alone"), (2, "serves 2 cells, 0 to 1")]
        {
            let us = Identity { cells, ..us() };
            let refused =
                welcome(&us, [], Port::Client, CellId(2), &hello(Role::Client)).expect_err("no such cell");
            assert!(refused.detail.ends_with(wanted), "{}", refused.detail);
        }
        let mut newer = hello(Role::Client);
        (newer.protocol_min, newer.protocol_max) = (2, 3);
        assert_eq!(status(Port::Client, 0, &newer), Err(Status::Unsupported));
    }

    #[test]
    fn a_client_need_not_know_its_cluster() {
        let mut newcomer = hello(Role::Client);
        newcomer.cluster = ClusterId::default();
        assert_eq!(status(Port::Client, 0, &newcomer), Ok(Welcome::Client(CellId(0))));
    }
}
