//! Benchmarks: codec, apply and snapshots under criterion, the ceiling program, the quick comparison, restarts of a
//! node with a large state, and a soak of three nodes.
//!
//! Invariant: a cell and the ceiling are driven by the same client with the same frames, so that their ratio
//! is about the servers. Deliberately absent: absolute targets; times mean something within one run only.

pub mod ceiling;
pub mod client;
mod connections;
pub mod large;
pub mod nodes;
pub mod pace;
pub mod process;
pub mod question;
pub mod soak;
pub mod table;
pub mod windows;

use std::path::Path;

use lockstep_ring::probe;

/// What the figures were measured on.
pub fn machine(directory: &Path) -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = rustix::system::uname();
    let filesystem = probe::filesystem(directory).unwrap_or_else(|_| "unknown file system".to_owned());
    format!(
        "{cores} cores, {} {}, {filesystem}",
        kernel.sysname().to_string_lossy(),
        kernel.release().to_string_lossy()
    )
}
