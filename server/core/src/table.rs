//! The replicated lock table: sessions, locks and lines of waiters, exactly as docs/SEMANTICS.md says.
//!
//! Invariant: `apply` is a function of the state and the entry alone, so that every replica that applied the
//! same entries has the same state, told the same outcomes and shows the same digest. Deliberately absent:
//! clocks and deadlines, connections, Raft, and any memory of what was not replicated.

mod acquire;
mod apply;
mod cell;
mod chain;
mod departure;
mod digest;
mod freeing;
mod limits;
mod lookahead;
mod mutants;
mod names;
mod outcome;
mod promotion;
mod reaping;
mod record;
mod restoration;
mod slab;
mod snapshot;
mod view;
mod walk;
mod window;

#[cfg(test)]
mod tests;

pub use cell::Table;
pub use limits::{LimitKind, Limits};
pub use lookahead::ENTRIES_AHEAD;
pub use outcome::{Answer, Outcome, Outcomes};
pub use record::SessionSlot;
pub use restoration::RestoreError;
pub use snapshot::{SnapshotError, TableLoader};
pub use view::{Checked, LockReading, SessionReading};
pub use walk::{SessionStep, WaitStep};
