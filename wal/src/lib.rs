//! The sans-io write-ahead log: append, group commit, segments, recovery (ARCHITECTURE section 6.1).
//!
//! Invariant: a record reported durable is in every later recovery, in its place, and nothing else is.
//! Deliberately absent: I/O, clocks, threads, randomness, and any meaning of a payload. What a disk must do
//! for the log is in [`disk`]; where every byte lies is in [`layout`].
//!
//! Life of a directory: [`format()`] once; at each start [`claim`], then [`Log::open`] per shard; then the shard
//! loop appends, drives [`Log::poll_op`] and [`Log::on_disk_done`], and reads [`Log::durable`]. Now and then
//! [`Log::snapshots_due`] asks for a snapshot: [`Log::begin_snapshot`], [`Log::write_snapshot`] as
//! [`Log::poll_snapshot`] says, then its mark is appended. [`load_snapshot`] reads it at the next start. [`Log::restore`] has
//! a cell begin with one, before the first start.

mod batch;
mod bytes;
mod catalog;
mod catch_up;
mod cell_use;
mod decision;
pub mod disk;
mod format;
pub mod layout;
mod log;
pub mod memory;
mod piece;
mod preparation;
mod record;
mod recovery;
mod refusal;
mod restore;
mod retention;
mod scan;
mod snapshot;
mod snapshot_reading;
mod superblock;
mod survivors;

pub use catch_up::{ReadDone, ReadId, ReadOutcome, ReadsFull};
pub use format::format;
pub use lockstep_wire::{RecordKind, SnapshotId};
pub use log::{AppendRefusal, Failure, Log};
pub use piece::{
    SnapshotInspection, SnapshotRefusal, claimed_snapshot, encode_snapshot_piece, inspect_snapshot,
    load_snapshot,
};
pub use record::{CARRIED_KINDS, LoggedRecord, Lsn, Record};
pub use recovery::{Inspection, SegmentInspection, SegmentState, claim, inspect, sealed_segments};
pub use refusal::{Damage, RecordPlace, Refusal};
pub use scan::Visitor;
pub use snapshot::{SnapshotDone, SnapshotOutcome};
pub use superblock::Superblock;
pub use survivors::{CellSurvivors, Survivors};
