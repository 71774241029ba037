//! A deterministic simulator over the real core, log, wire and client core.
//!
//! Invariant: one seed decides everything; the same seed gives the same trace, byte for byte. Nothing of the
//! system is built a second time here but the disk, the network and the clock, and the reference model of the
//! lock table that the real one is held against. Deliberately absent: the wall clock, files and sockets.

pub mod fuzz;
pub mod knob;
pub mod mark;
pub mod mutants;
pub mod oracle;
pub mod random;
pub mod reference;
pub mod search;
pub mod shrink;
pub mod world;
