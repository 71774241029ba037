//! Bytes to messages and back: the frame, the requests, the peer messages and the log entries.
//!
//! Invariant: decoding any bytes never panics, never allocates by a length it has not checked, borrows
//! instead of copying, and refuses what is left over. Deliberately absent: I/O, clocks, and any meaning
//! of what is carried.

mod id;

pub use id::*;
