//! The pure core: Raft, the lock table, sessions and read rounds, one cell per Raft group.
//!
//! Invariant: `step(now, input, effects)` is a function of what came in before and nothing else.
//! Deliberately absent: clocks, sockets, files, threads, randomness and unordered iteration.

mod effect;
mod input;
pub mod table;
mod time;

pub use effect::{
    AppendId, ConnectionId, DrainId, Effect, Effects, Halt, Lane, RecordHead, RecordKind, Report,
};
pub use input::{Input, LogRead};
pub use time::{Span, Time};
