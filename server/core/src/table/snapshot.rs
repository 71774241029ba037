//! Snapshots of the table: its whole state as canonical bytes, written in slices while entries go on, and the table
//! that comes of them (ARCHITECTURE section 4.5).
//!
//! A snapshot is a sequence of items, each a length in four bytes and then so many bytes. Numbers are little-endian;
//! text and data stand behind a length in two bytes. The format is the core's own.
//!
//! | item | how many | fields |
//! |---|---|---|
//! | header | 1 | feature level u16, epoch u16, applied u64, digest u64, reap places u64, mark places u64, quiet u8, the twelve limits u32, sessions u32, locks u32, hash of the bytes before it u64 |
//! | members | 1 | nothing while they are those of the birth; else highest id ever u16, members u16 and each, by id: node u16, incarnation 16 bytes, voter u8, address for members, address for clients |
//! | session | as the header says, by id | id u64, client id, ttl_ms u32, nonce 16 bytes, silence_ms u32, highest u64, ended u8 (then reason u8, reap place u64), gaps u16 and each u64, outcomes u32 and each: id u64, content u64, kind u8 and its fields |
//! | lock | as the header says, by name | name, mark u64 (its place, or 0), holds u32, waits u32; its holds and waits follow |
//! | hold | in the order of granting | session u64, owner u64, mode u8, token u64, fence u64, data, acquires u32 and each, by id: id u64, content u64, seen u8 |
//! | wait | first in line first | session u64, owner u64, acquire id u64, content u64, mode u8, data, wait_ms u32, position u32, since u64 |
//!
//! Kinds of outcomes: 1 timed out; 2 cancelled; 3 already held, then acquire id u64 and token u64; 4 lost, then token u64 and
//! reason u8; 5 done; 6 stale token.
//!
//! What a session claims is said by its holds and waits, what is to be reaped and promoted by the places.
//!
//! Invariant: the bytes are a function of the replicated state alone, however it was reached, and the state is a
//! function of the bytes. Deliberately absent: files, their checksums, and the cell's state outside its table.

mod copies;
mod item;
mod loader;
mod lookahead;
mod writer;

use std::fmt;

use lockstep_wire::DecodeError;

pub use loader::TableLoader;
pub(crate) use writer::SnapshotWriter;

/// Why bytes are not the snapshot of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotError {
    /// An item does not have its layout.
    Layout(DecodeError),
    /// The snapshot was taken under other limits than the cell has.
    OtherLimits,
    /// The field contradicts what came before it.
    Contradiction(&'static str),
    /// Bytes follow the last item.
    Trailing,
    /// The bytes end before the last item does.
    Incomplete,
    /// The state that came of the bytes is not the one that they are said to be of.
    OtherDigest {
        /// As the header says.
        recorded: u64,
        /// Of what was loaded.
        loaded: u64,
    },
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Layout(error) => write!(f, "an item of the snapshot is damaged: {error}"),
            SnapshotError::OtherLimits => f.write_str("the snapshot was taken under other limits"),
            SnapshotError::Contradiction(field) => {
                write!(f, "`{field}` contradicts what the snapshot said before")
            }
            SnapshotError::Trailing => f.write_str("bytes follow the end of the snapshot"),
            SnapshotError::Incomplete => f.write_str("the snapshot ends too early"),
            SnapshotError::OtherDigest { recorded, loaded } => {
                write!(f, "the snapshot's state has digest {loaded:016x}, not {recorded:016x} as it says")
            }
        }
    }
}

impl std::error::Error for SnapshotError {}

impl From<DecodeError> for SnapshotError {
    fn from(error: DecodeError) -> SnapshotError {
        SnapshotError::Layout(error)
    }
}
