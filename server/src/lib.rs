//! The Lockstep server: a thin shell of shard loops around the pure core.
//!
//! Invariant: bytes go in and out here, and nothing is decided here that the simulator does not decide too.
//! Deliberately absent: Raft, the lock table, sessions, and the format of the log.

pub mod backup;
pub mod config;
pub mod dev;
pub mod format;
pub mod node;
mod report;
pub mod restore;
mod shard;

pub use node::{Claim, Node, NodeAddress, NodeConfig, NodeError, Ports, Stopper, Timing};
pub use shard::ShardError;

const _: () = assert!(
    !lockstep_wire::mutant::ARE_BUILT_IN,
    "the known-bad variants are for the simulator: build the server without the feature `mutants`"
);
