//! One record of the log and its bytes.
//!
//! Invariant: a record is bounded by `PAYLOAD_BYTES_MAX`, and what was encoded decodes to the same record.
//! Deliberately absent: checksums (the batch has one) and any meaning of a payload.

use std::fmt;

use lockstep_wire::{CellId, LogIndex, RecordKind, Term};

use crate::bytes::{get_u16, get_u32, get_u64, length_u32};
use crate::layout::{PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES};

/// A position in a shard's log: its records counted from 1, over all cells and restarts. 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Carried kinds: the newest of each per cell is written again before the segment that holds it is recycled.
pub const CARRIED_KINDS: [RecordKind; 4] =
    [RecordKind::HardState, RecordKind::SnapshotMark, RecordKind::Manifest, RecordKind::Born];

/// The position in [`CARRIED_KINDS`] of a kind that is carried.
pub(crate) fn carried_slot(kind: RecordKind) -> Option<usize> {
    match kind {
        RecordKind::Entry | RecordKind::Truncate => None,
        RecordKind::HardState => Some(0),
        RecordKind::SnapshotMark => Some(1),
        RecordKind::Manifest => Some(2),
        RecordKind::Born => Some(3),
    }
}

/// One record, its payload borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Whose it is.
    pub cell: CellId,
    /// What it is about.
    pub kind: RecordKind,
    /// The entry's or mark's term; free for the owner's use in other kinds.
    pub term: Term,
    /// The entry's or mark's index, the first index truncated; free for the owner's use in other kinds.
    pub index: LogIndex,
    /// Bytes that only the owner understands; at most `PAYLOAD_BYTES_MAX`.
    pub payload: &'a [u8],
}

/// Where a record's kind stands in its header.
pub(crate) const KIND_AT: usize = 6;

impl Record<'_> {
    /// How many bytes the record takes in a batch.
    pub(crate) fn encoded_bytes(&self) -> usize {
        RECORD_HEADER_BYTES + self.payload.len()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.payload.len() <= PAYLOAD_BYTES_MAX, "the payload's length was checked when appended");
        out.extend_from_slice(&length_u32(self.payload.len()).to_le_bytes());
        out.extend_from_slice(&self.cell.0.to_le_bytes());
        out.extend_from_slice(&[self.kind.code(), 0]);
        out.extend_from_slice(&self.term.0.to_le_bytes());
        out.extend_from_slice(&self.index.0.to_le_bytes());
        out.extend_from_slice(self.payload);
    }

    /// The first record of `bytes` and what follows it; `None` if there is no whole, well-formed one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
        let (header, rest) = bytes.split_at_checked(RECORD_HEADER_BYTES)?;
        let len = get_u32(header, 0) as usize;
        if len > PAYLOAD_BYTES_MAX || header[7] != 0 {
            return None;
        }
        let (payload, rest) = rest.split_at_checked(len)?;
        let record = Record {
            cell: CellId(get_u16(header, 4)),
            kind: RecordKind::from_code(header[KIND_AT])?,
            term: Term(get_u64(header, 8)),
            index: LogIndex(get_u64(header, 16)),
            payload,
        };
        Some((record, rest))
    }
}

/// A record taken out of the log, with a payload of its own. Cell and kind are known from where it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedRecord {
    /// Its position in the shard's log.
    pub lsn: Lsn,
    /// Its term.
    pub term: Term,
    /// Its index.
    pub index: LogIndex,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl LoggedRecord {
    pub(crate) fn of(lsn: Lsn, record: &Record<'_>) -> LoggedRecord {
        LoggedRecord { lsn, term: record.term, index: record.index, payload: record.payload.to_vec() }
    }
}
