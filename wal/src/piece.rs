//! The pieces of a snapshot's file, and reading a whole one at start.
//!
//! Invariant: a piece verifies alone. Its checksum covers every byte of its extent, and among these are the cell, the
//! snapshot and its own number, so that no other piece passes for it; only the last one says that it is, so that a
//! missing tail shows. Deliberately absent: what the bytes of a snapshot mean.

use std::fmt;

use lockstep_wire::{CellId, LogIndex, SnapshotId, Term};

use crate::bytes::{blocks_up, checksum_around, get_u16, get_u32, get_u64, length_u32, put};
use crate::disk::{DiskError, FileName, StorageRead};
use crate::layout::{BLOCK_BYTES, SNAPSHOT_HEADER_BYTES, SNAPSHOT_MAGIC, SNAPSHOT_STRIDE_BYTES};
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;

/// Where the checksum stands.
const CHECKSUM_AT: usize = 8;

/// Where the term stands.
const TERM_AT: usize = 32;

/// The file of a whole snapshot.
pub(crate) fn snapshot_file(cell: CellId, id: SnapshotId) -> FileName {
    FileName::Snapshot { cell, index: id.index }
}

/// Why a snapshot, or a piece of one, is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotRefusal {
    /// There is no such file.
    Missing {
        /// Its name.
        file: FileName,
    },
    /// A piece is not what was written there.
    Damaged {
        /// The file.
        file: FileName,
        /// Where the piece begins, in bytes.
        offset: u64,
    },
    /// The file ends before its last piece does.
    CutShort {
        /// The file.
        file: FileName,
        /// Where it ends, in bytes.
        bytes: u64,
    },
    /// The file is intact and holds a snapshot of another cell, index or term.
    Foreign {
        /// The file.
        file: FileName,
        /// Of which cell.
        cell: CellId,
        /// Which one.
        id: SnapshotId,
    },
    /// The disk failed.
    Disk {
        /// On which file; `None` for the directory.
        file: Option<FileName>,
        /// How.
        error: DiskError,
    },
}

impl fmt::Display for SnapshotRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotRefusal::Missing { file } => write!(f, "{file} is missing"),
            SnapshotRefusal::Damaged { file, offset } => write!(f, "{file} is damaged at offset {offset}"),
            SnapshotRefusal::CutShort { file, bytes } => {
                write!(f, "{file} is cut short: it ends at {bytes} bytes, before its last piece does")
            }
            SnapshotRefusal::Foreign { file, cell, id } => write!(
                f,
                "{file} holds a snapshot of cell {cell} through index {} of term {}, which is another one",
                id.index, id.term
            ),
            SnapshotRefusal::Disk { file: Some(file), error } => write!(f, "{file}: {error}"),
            SnapshotRefusal::Disk { file: None, error } => write!(f, "data directory: {error}"),
        }
    }
}

impl std::error::Error for SnapshotRefusal {}

/// Which piece of which snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PiecePlace {
    pub(crate) cell: CellId,
    pub(crate) id: SnapshotId,
    pub(crate) piece: u32,
}

impl PiecePlace {
    pub(crate) fn file(self) -> FileName {
        snapshot_file(self.cell, self.id)
    }

    /// Where the piece begins in its file.
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.piece) * SNAPSHOT_STRIDE_BYTES as u64
    }

    /// How much to read for the piece of a file of this length, in whole blocks; nothing if it ends before.
    pub(crate) fn extent_in(self, file_bytes: u64) -> Option<usize> {
        let left = file_bytes.checked_sub(self.offset())?;
        let left =
            usize::try_from(left).map_or(SNAPSHOT_STRIDE_BYTES, |left| left.min(SNAPSHOT_STRIDE_BYTES));
        let whole = left - left % BLOCK_BYTES;
        (whole > 0).then_some(whole)
    }

    /// Writes the piece into `extent`, which is as long as [`extent_bytes`] says.
    pub(crate) fn encode(self, is_last: bool, payload: &[u8], extent: &mut [u8]) {
        assert_eq!(extent.len(), extent_bytes(payload.len()), "a piece takes what its payload needs");
        let (header, rest) = extent.split_at_mut(SNAPSHOT_HEADER_BYTES);
        header.fill(0);
        rest[..payload.len()].copy_from_slice(payload);
        rest[payload.len()..].fill(0);
        put(extent, 0, &SNAPSHOT_MAGIC.to_le_bytes());
        put(extent, 12, &length_u32(payload.len()).to_le_bytes());
        put(extent, 16, &self.cell.0.to_le_bytes());
        put(extent, 18, &[u8::from(is_last)]);
        put(extent, 20, &self.piece.to_le_bytes());
        put(extent, 24, &self.id.index.0.to_le_bytes());
        put(extent, TERM_AT, &self.id.term.0.to_le_bytes());
        let checksum = checksum_around(extent, CHECKSUM_AT);
        put(extent, CHECKSUM_AT, &checksum.to_le_bytes());
    }

    /// The piece's payload, and whether it is the last, if `bytes`, all that the file has of it in a file of
    /// `file_bytes`, are that piece.
    pub(crate) fn verify(self, bytes: &[u8], file_bytes: u64) -> Result<(&[u8], bool), SnapshotRefusal> {
        let file = self.file();
        let damaged = SnapshotRefusal::Damaged { file, offset: self.offset() };
        let payload_bytes = get_u32(bytes, 12) as usize;
        let is_last = bytes[18] == 1;
        let is_plausible = get_u64(bytes, 0) == SNAPSHOT_MAGIC
            && bytes[18] <= 1
            && payload_bytes <= SNAPSHOT_PIECE_BYTES_MAX
            && (is_last || payload_bytes == SNAPSHOT_PIECE_BYTES_MAX);
        if !is_plausible {
            return Err(damaged);
        }
        let Some(extent) = bytes.get(..extent_bytes(payload_bytes)) else {
            return Err(SnapshotRefusal::CutShort { file, bytes: file_bytes });
        };
        if checksum_around(extent, CHECKSUM_AT) != get_u32(extent, CHECKSUM_AT) {
            return Err(damaged);
        }
        let cell = CellId(get_u16(extent, 16));
        let id = SnapshotId { index: LogIndex(get_u64(extent, 24)), term: recorded_term(extent) };
        if (cell, id) != (self.cell, self.id) {
            return Err(SnapshotRefusal::Foreign { file, cell, id });
        }
        // A whole piece in another one's place, or one that calls itself the last before the file ends.
        let end = self.offset() + extent.len() as u64;
        if get_u32(extent, 20) != self.piece || (is_last && end != file_bytes) {
            return Err(damaged);
        }
        Ok((&extent[SNAPSHOT_HEADER_BYTES..SNAPSHOT_HEADER_BYTES + payload_bytes], is_last))
    }
}

/// The term that a piece claims, verified or not.
fn recorded_term(extent: &[u8]) -> Term {
    Term(get_u64(extent, TERM_AT))
}

/// What a piece with this much payload takes in the file.
pub(crate) fn extent_bytes(payload_bytes: usize) -> usize {
    blocks_up(SNAPSHOT_HEADER_BYTES + payload_bytes)
}

/// Appends a piece as it stands in a snapshot's file, for whoever writes such a file elsewhere. All but the last one have
/// `SNAPSHOT_PIECE_BYTES_MAX` bytes.
pub fn encode_snapshot_piece(
    cell: CellId,
    id: SnapshotId,
    piece: u32,
    is_last: bool,
    payload: &[u8],
    out: &mut Vec<u8>,
) {
    let start = out.len();
    out.resize(start + extent_bytes(payload.len()), 0);
    PiecePlace { cell, id, piece }.encode(is_last, payload, &mut out[start..]);
}

/// Which snapshot of which cell a file claims to hold that begins with these bytes, whole or not.
pub fn claimed_snapshot(bytes: &[u8]) -> Option<(CellId, SnapshotId)> {
    let header = bytes.get(..SNAPSHOT_HEADER_BYTES).filter(|header| get_u64(header, 0) == SNAPSHOT_MAGIC)?;
    let id = SnapshotId { index: LogIndex(get_u64(header, 24)), term: recorded_term(header) };
    Some((CellId(get_u16(header, 16)), id))
}

/// A snapshot that was read from the beginning of its file to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotInspection {
    /// Which one.
    pub id: SnapshotId,
    /// How long its file is.
    pub bytes: u64,
    /// How many pieces it has.
    pub pieces: u32,
}

/// Reads a cell's snapshot and shows its stream to `visit`, piece by piece, each verified before it is shown. When
/// this fails, what was shown does not count. [`Log::snapshots`](crate::Log::snapshots) says which there should be.
pub fn load_snapshot(
    storage: &mut dyn StorageRead,
    cell: CellId,
    id: SnapshotId,
    visit: &mut dyn FnMut(&[u8]),
) -> Result<(), SnapshotRefusal> {
    read_pieces(storage, cell, id.index, Some(id.term), visit).map(|_| ())
}

/// Like [`load_snapshot`], for whoever knows a snapshot by the name of its file alone: the first piece says its term.
pub fn inspect_snapshot(
    storage: &mut dyn StorageRead,
    cell: CellId,
    index: LogIndex,
    visit: &mut dyn FnMut(&[u8]),
) -> Result<SnapshotInspection, SnapshotRefusal> {
    read_pieces(storage, cell, index, None, visit)
}

fn read_pieces(
    storage: &mut dyn StorageRead,
    cell: CellId,
    index: LogIndex,
    mut term: Option<Term>,
    visit: &mut dyn FnMut(&[u8]),
) -> Result<SnapshotInspection, SnapshotRefusal> {
    let file = FileName::Snapshot { cell, index };
    let files = storage.list().map_err(|error| SnapshotRefusal::Disk { file: None, error })?;
    let Some(&(_, bytes)) = files.iter().find(|(found, _)| *found == file) else {
        return Err(SnapshotRefusal::Missing { file });
    };
    let mut extent = vec![0; SNAPSHOT_STRIDE_BYTES];
    for piece in 0.. {
        let id = SnapshotId { index, term: term.unwrap_or_default() };
        let mut place = PiecePlace { cell, id, piece };
        let Some(len) = place.extent_in(bytes) else {
            break;
        };
        let read = storage.read(file, place.offset(), &mut extent[..len]);
        read.map_err(|error| SnapshotRefusal::Disk { file: Some(file), error })?;
        place.id.term = *term.get_or_insert(recorded_term(&extent));
        let (payload, is_last) = place.verify(&extent[..len], bytes)?;
        visit(payload);
        if is_last {
            return Ok(SnapshotInspection { id: place.id, bytes, pieces: piece + 1 });
        }
    }
    Err(SnapshotRefusal::CutShort { file, bytes })
}
