//! Bytes to messages and back: the frame, the requests, the peer messages and the log entries.
//!
//! Invariant: decoding any bytes never panics, never allocates by a length it has not checked, borrows
//! instead of copying, and refuses what is left over. Deliberately absent: I/O, clocks, and any meaning
//! of what is carried.

pub mod cursor;
pub mod entry;
pub mod frame;
pub mod hello;
mod id;
pub mod limit;
mod membership;
pub mod mutant;
mod name;
pub mod peer;
mod record;
pub mod reply;
pub mod request;
mod rows;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;

pub use cursor::{DecodeError, Decoded};
pub use id::*;
pub use membership::{MemberChange, MemberRow, Members};
pub use name::{Name, NameError};
pub use record::RecordKind;
pub use rows::{Row, Rows, RowsIter};
pub use snapshot::{SavedPiece, SnapshotAnswer, SnapshotId, SnapshotPiece, SnapshotReply};
pub use status::{Retry, Status};
