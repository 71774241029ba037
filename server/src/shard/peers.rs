//! Which nodes this shard has links to, and where it looks for them.
//!
//! Invariant: there is a link to every node that one of the cells talks to or that is connected here, and to no other; a
//! node is looked for at the address that it said itself, at those that the cells know, one after the other, until one
//! answers in its name and incarnation. Deliberately absent: who is a member; that is the cells'.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use lockstep_core::ConnectionId;
use lockstep_core::hello::objection;
use lockstep_ring::Ring;
use lockstep_wire::NodeId;

use super::link::Link;
use super::{Shard, ShardError};

/// Links at which a node that no cell knows gets none: whoever connects on the port for members cannot have more made. Those
/// that a cell knows, its members and its few guests, always get theirs.
const LINKS_MAX: usize = 64;

impl Shard {
    /// The cells talk to other nodes than before, or a node that nobody knows has gone: links come and go.
    pub(super) fn renew_links(&mut self, ring: &Ring) -> Result<(), ShardError> {
        if !std::mem::take(&mut self.are_links_stale) {
            return Ok(());
        }
        self.close_strays(ring)?;
        let mut wanted: BTreeMap<NodeId, Vec<SocketAddr>> = BTreeMap::new();
        for (node, address) in self.cells.values().flat_map(|cell| cell.peers()) {
            let addresses = wanted.entry(node).or_default();
            addresses.extend(address.parse::<SocketAddr>().ok().filter(|other| !addresses.contains(other)));
        }
        let gone: Vec<NodeId> = self
            .links
            .values()
            .filter(|link| !wanted.contains_key(&link.node) && link.incoming == 0)
            .map(|link| link.node)
            .collect();
        for node in gone {
            self.break_link(ring, node, false)?;
            self.links.remove(&node);
        }
        for (node, addresses) in wanted {
            if let Some(link) = self.links.get_mut(&node) {
                link.set_known(addresses);
            } else {
                self.links.insert(node, Link::new(node, addresses, self.now));
            }
        }
        Ok(())
    }

    /// Who was let in before a list came that names another directory is let in no longer. What it said may have been taken
    /// for the member's word, so the link to the member is made anew, too.
    fn close_strays(&mut self, ring: &Ring) -> Result<(), ShardError> {
        let strays: Vec<(ConnectionId, NodeId, String)> = self
            .connections
            .members()
            .filter_map(|(id, node, incarnation)| {
                Some((id, node, objection(self.cells.values(), node, incarnation)?))
            })
            .collect();
        for (id, node, detail) in strays {
            self.reporter.not_welcome(node, &detail);
            self.close_connection(ring, id, false)?;
            self.break_link(ring, node, false)?;
        }
        Ok(())
    }

    /// A node has connected here and said where it serves members.
    pub(super) fn on_peer_connected(&mut self, node: NodeId, address: &str) {
        if !self.links.contains_key(&node) {
            if self.links.len() >= LINKS_MAX {
                return;
            }
            self.links.insert(node, Link::new(node, Vec::new(), self.now));
        }
        if let Some(link) = self.links.get_mut(&node) {
            link.incoming += 1;
            link.set_announced(address.parse().ok());
            link.on_heard_of(self.now);
        }
    }

    /// A node's connection to here is gone.
    pub(super) fn on_peer_disconnected(&mut self, node: NodeId) {
        if let Some(link) = self.links.get_mut(&node) {
            link.incoming = link.incoming.saturating_sub(1);
            self.are_links_stale |= link.incoming == 0;
        }
    }
}
