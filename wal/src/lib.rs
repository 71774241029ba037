//! The sans-io write-ahead log: append, group commit, segments, recovery (DESIGN section 6.1).
//!
//! Invariant: a record reported durable is in every later recovery, in its place, and nothing else is.
//! Deliberately absent: I/O, clocks, threads, randomness, and any meaning of a payload. What a disk must do
//! for the log is in [`disk`]; where every byte lies is in [`layout`].

pub mod disk;
pub mod layout;
