//! A snapshot's name, and its pieces on their way from a leader to a follower whose entries are gone, or to whoever makes
//! a backup (ARCHITECTURE section 4.5).
//!
//! Invariant: a snapshot of the same index and term has the same bytes, whoever took it, so that its pieces may come
//! from one member and then another. Deliberately absent: what the bytes say, and how a disk keeps them.

use std::fmt;

use crate::cursor::{DecodeError, Decoded, Reader, Writer};
use crate::limit::SNAPSHOT_PIECE_BYTES_MAX;
use crate::{LogIndex, Term};

/// A snapshot of a cell: the state after the entry at `index`, which was made in `term`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId {
    /// The last entry that is in it.
    pub index: LogIndex,
    /// That entry's term.
    pub term: Term,
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (term {})", self.index, self.term)
    }
}

impl SnapshotId {
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        out.put_u64(self.index.0);
        out.put_u64(self.term.0);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Decoded<SnapshotId> {
        Ok(SnapshotId {
            index: LogIndex(reader.u64("snapshot.index")?),
            term: Term(reader.u64("snapshot.term")?),
        })
    }
}

/// One piece of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPiece<'a> {
    /// The leader's term.
    pub term: Term,
    /// Of which snapshot.
    pub snapshot: SnapshotId,
    /// Its number, from 0 on.
    pub piece: u32,
    /// Whether the snapshot ends with it.
    pub is_last: bool,
    /// Its bytes; as many as fit, unless it is the last.
    pub bytes: &'a [u8],
}

impl<'a> SnapshotPiece<'a> {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.term.0);
        let SnapshotPiece { snapshot, piece, is_last, bytes, .. } = *self;
        SavedPiece { snapshot, piece, is_last, bytes }.put(out);
    }

    pub(crate) fn read(reader: &mut Reader<'a>) -> Decoded<SnapshotPiece<'a>> {
        let term = Term(reader.u64("term")?);
        let SavedPiece { snapshot, piece, is_last, bytes } = SavedPiece::read(reader)?;
        Ok(SnapshotPiece { term, snapshot, piece, is_last, bytes })
    }
}

/// One piece of a snapshot on its way to whoever saves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedPiece<'a> {
    /// Of which snapshot.
    pub snapshot: SnapshotId,
    /// Its number, from 0 on.
    pub piece: u32,
    /// Whether the snapshot ends with it.
    pub is_last: bool,
    /// Its bytes; as many as fit, unless it is the last.
    pub bytes: &'a [u8],
}

impl<'a> SavedPiece<'a> {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        self.snapshot.put(out);
        out.put_u32(self.piece);
        out.put_bool(self.is_last);
        out.put_u32(u32::try_from(self.bytes.len()).expect("a piece is within its limit"));
        out.put(self.bytes);
    }

    pub(crate) fn read(reader: &mut Reader<'a>) -> Decoded<SavedPiece<'a>> {
        let snapshot = SnapshotId::read(reader)?;
        let piece = reader.u32("piece")?;
        let is_last = reader.bool("is_last")?;
        // More than a length in two bytes can say.
        let count = reader.u32("bytes")? as usize;
        if count > SNAPSHOT_PIECE_BYTES_MAX {
            return Err(DecodeError::TooLarge("bytes"));
        }
        if !is_last && count < SNAPSHOT_PIECE_BYTES_MAX {
            return Err(DecodeError::Invalid("bytes"));
        }
        Ok(SavedPiece { snapshot, piece, is_last, bytes: reader.take(count, "bytes")? })
    }
}

/// What a follower says about a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotAnswer {
    /// Its disk has the pieces before this one: go on here.
    Wanted {
        /// The number of the next piece.
        piece: u32,
    },
    /// It has all that is in it, or knows all of it to be committed.
    Installed,
    /// It cannot take it now: its disk is full, or the bytes are none that it understands. Try again later.
    Refused,
    /// Its own copy of this snapshot is damaged: send this one or a newer one.
    Missing,
}

/// A follower's word about a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotReply {
    /// The follower's term.
    pub term: Term,
    /// About which snapshot.
    pub snapshot: SnapshotId,
    /// What it says.
    pub answer: SnapshotAnswer,
}

impl SnapshotReply {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.term.0);
        self.snapshot.put(out);
        match self.answer {
            SnapshotAnswer::Wanted { piece } => {
                out.put_u8(0);
                out.put_u32(piece);
            }
            SnapshotAnswer::Installed => out.put_u8(1),
            SnapshotAnswer::Refused => out.put_u8(2),
            SnapshotAnswer::Missing => out.put_u8(3),
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Decoded<SnapshotReply> {
        Ok(SnapshotReply {
            term: Term(reader.u64("term")?),
            snapshot: SnapshotId::read(reader)?,
            answer: match reader.u8("answer")? {
                0 => SnapshotAnswer::Wanted { piece: reader.u32("piece")? },
                1 => SnapshotAnswer::Installed,
                2 => SnapshotAnswer::Refused,
                3 => SnapshotAnswer::Missing,
                _ => return Err(DecodeError::Invalid("answer")),
            },
        })
    }
}
