//! Benchmarks: codec, apply and snapshots under criterion, the ceiling program, and the quick comparison.
//!
//! Invariant: a cell and the ceiling are driven by the same client with the same frames, so that their ratio
//! is about the servers. Deliberately absent: absolute targets; times mean something within one run only.

pub mod ceiling;
pub mod client;
mod stream;
pub mod table;
