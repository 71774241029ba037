//! Reading snapshots back, piece by piece, for followers that lag too far for the log.
//!
//! Invariant: what is returned verified as that piece of that snapshot, and only snapshots that count are read. A piece
//! that is not good any more is an answer and no failure: the log does not stand on it. Deliberately absent: which
//! piece is next; the owner asks.

use lockstep_wire::{CellId, SnapshotId};

use crate::catch_up::{ReadDone, ReadId, ReadOutcome, ReadsFull};
use crate::disk::{Action, DiskError, DiskOp, Lane, OpId};
use crate::log::Log;
use crate::piece::{PiecePlace, SnapshotRefusal};

/// A piece that is being read.
#[derive(Debug)]
pub(crate) struct PieceReading {
    pub(crate) id: ReadId,
    pub(crate) place: PiecePlace,
    pub(crate) op: OpId,
    file_bytes: u64,
}

impl Log {
    /// Asks for a piece of a snapshot that counts. The answer comes from [`Log::poll_read`].
    pub fn read_snapshot(&mut self, cell: CellId, id: SnapshotId, piece: u32) -> Result<ReadId, ReadsFull> {
        self.catch_up.admit_piece(PiecePlace { cell, id, piece })
    }

    /// The operation that reads the piece; none if the answer is known without.
    pub(crate) fn begin_piece(&mut self, id: ReadId, place: PiecePlace) -> Option<DiskOp> {
        let PiecePlace { cell, id: snapshot, .. } = place;
        let file = place.file();
        let stored = self.snapshots.bytes_of(cell, snapshot.index);
        let Some(bytes) = stored.filter(|_| self.snapshots(cell).any(|kept| kept == snapshot)) else {
            self.finish_piece(id, cell, ReadOutcome::NotThere);
            return None;
        };
        let Some(len) = place.extent_in(bytes) else {
            let outcome = ReadOutcome::BadPiece(SnapshotRefusal::CutShort { file, bytes });
            self.finish_piece(id, cell, outcome);
            return None;
        };
        let op = self.next_op(Lane::Read, Action::Read { file, offset: place.offset(), len });
        self.catch_up.piece = Some(PieceReading { id, place, op: op.id, file_bytes: bytes });
        Some(op)
    }

    pub(crate) fn on_piece_read(&mut self, piece: PieceReading, result: Result<&[u8], DiskError>) {
        let PieceReading { id, place, file_bytes, .. } = piece;
        let read = result.map_err(|error| SnapshotRefusal::Disk { file: Some(place.file()), error });
        let outcome = match read.and_then(|bytes| place.verify(bytes, file_bytes)) {
            Ok((payload, is_last)) => ReadOutcome::Piece { payload: payload.to_vec(), is_last },
            Err(refusal) => ReadOutcome::BadPiece(refusal),
        };
        self.finish_piece(id, place.cell, outcome);
    }

    fn finish_piece(&mut self, id: ReadId, cell: CellId, outcome: ReadOutcome) {
        self.catch_up.finished.push_back(ReadDone { id, cell, outcome });
    }
}
