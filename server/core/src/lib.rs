//! The pure core: Raft, the lock table, sessions and read rounds, one [`Cell`] per Raft group.
//!
//! Invariant: `step(now, input, effects)` is a function of what came in before and nothing else.
//! Deliberately absent: clocks, sockets, files, threads, randomness and unordered iteration.

mod authorization;
mod cell;
mod effect;
pub mod hello;
mod input;
mod members;
pub mod raft;
pub mod table;
mod time;

pub use cell::{
    APPLY_PER_TURN, CACHE_BYTES_MAX, Cell, CellConfig, LoadedSnapshot, Member, Restore, SNAPSHOT_SLICE_BYTES,
};
pub use effect::{AppendId, ConnectionId, DrainId, Effect, Effects, Halt, Lane, RecordHead, Report};
pub use input::{Input, LogRead, SnapshotRead};
pub use lockstep_wire::RecordKind;
pub use members::{Listed, MemberObjection, Membership};
pub use time::{Span, Time};
