//! Formatting a data directory: once per node, before it first serves.
//!
//! Invariant: a directory that belongs to a node is never formatted again. Deliberately absent: the bytes;
//! those are the log's.

use std::path::Path;

use lockstep_ring::probe;
use lockstep_ring::storage::DataDirectory;
use lockstep_wal::Superblock;
use lockstep_wire::{ClusterId, Incarnation, NodeId};

use crate::node::{NodeError, fill_random};

/// What is fixed by formatting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The cluster; drawn at random by whoever formats its first node.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// How many shards, each with a log and a thread of its own; the same on every node.
    pub shards: u16,
    /// The size of a segment of the log, in bytes.
    pub segment_bytes: u64,
}

/// Draws a cluster's id.
pub fn random_cluster() -> Result<ClusterId, NodeError> {
    let mut bytes = [0; 16];
    fill_random(&mut bytes)?;
    Ok(ClusterId(bytes))
}

/// Formats the directory, which is made if it is not there, and draws its incarnation.
pub fn format(path: &Path, format: &Format) -> Result<(), NodeError> {
    let data = |reason: String| NodeError::Data { path: path.to_owned(), reason };
    let mut incarnation = [0; 16];
    fill_random(&mut incarnation)?;
    let superblock = Superblock {
        cluster: format.cluster,
        node: format.node,
        incarnation: Incarnation(incarnation),
        shards: format.shards,
        segment_bytes: format.segment_bytes,
    };
    if let Some(objection) = superblock.objection() {
        return Err(data(objection.to_owned()));
    }
    let mut directory = DataDirectory::create(path).map_err(|error| data(error.to_string()))?;
    probe::direct_io(path)?;
    lockstep_wal::format(&mut directory, &superblock).map_err(|refusal| data(refusal.to_string()))
}
