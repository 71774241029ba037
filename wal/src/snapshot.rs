//! Writing snapshots, and removing those that no longer count.
//!
//! Invariant: a file has its snapshot's name only when all of it is durable, and the owner is told that it is complete
//! only when that name is, too. What a durable mark names is removed only after the mark that replaces it is durable, and
//! never while a piece of it is being read. One operation is in flight; cells take turns, and removals go first.
//! Deliberately absent: what a snapshot says, and when one is taken; [`Log::snapshots_due`] tells the owner when.
//!
//! Written: create staging, pieces, sync, rename, sync directory; then the owner appends the mark.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use lockstep_wire::{CellId, LogIndex, SnapshotId};

use crate::disk::{Action, DiskError, DiskOp, FileName, Lane, OpId};
use crate::log::{Failure, Log};
use crate::piece::{PiecePlace, extent_bytes, snapshot_file};
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::mutant::{self, Mutant};

/// What became of a step of writing a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotOutcome {
    /// The piece is written and the next one is wanted. It is not told of the last piece.
    Written {
        /// Which.
        piece: u32,
    },
    /// The last piece is written, and everything is durable. It counts when its mark is, too.
    Complete,
    /// The disk had no room. What was written is removed; the owner may begin again.
    NoSpace,
}

/// Tells the owner how writing a snapshot goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotDone {
    /// Of which cell.
    pub cell: CellId,
    /// Which snapshot.
    pub id: SnapshotId,
    /// What became of it.
    pub outcome: SnapshotOutcome,
}

/// A whole snapshot on the disk, marked or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) index: LogIndex,
    pub(crate) bytes: u64,
}

/// The next thing to do for a snapshot that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    /// The owner's piece, as soon as there is one.
    Write,
    Sync,
    Rename,
    SyncDirectory,
    /// The disk is full: give back what was written.
    RemoveStaging,
}

#[derive(Debug)]
struct Writing {
    /// Never used twice, so that an answer that comes too late is told from one to a later snapshot's operation.
    number: u64,
    id: SnapshotId,
    step: Step,
    piece: u32,
    is_last: bool,
    /// The owner has sent the piece, and it is not written yet.
    has_piece: bool,
    /// The piece until its turn comes.
    payload: Option<Vec<u8>>,
    /// What the whole file takes.
    bytes: u64,
}

impl Writing {
    fn has_work(&self) -> bool {
        self.step != Step::Write || self.payload.is_some()
    }
}

#[derive(Debug)]
struct Piece {
    place: PiecePlace,
    is_last: bool,
    payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Job {
    Step { cell: CellId, number: u64, step: Step, id: SnapshotId, bytes: u64 },
    Remove(FileName),
    SyncRemovals,
}

/// What the snapshot lane is doing.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    writings: BTreeMap<CellId, Writing>,
    numbers: u64,
    /// Whose turn it was.
    turn: CellId,
    stored: BTreeMap<CellId, Vec<Stored>>,
    /// A mark became durable or a snapshot stopped counting: look for files that may go.
    is_to_sweep: bool,
    removals: VecDeque<FileName>,
    has_unsynced_removals: bool,
    in_flight: Option<(OpId, Job)>,
    /// The piece that is written, kept here whatever becomes of its snapshot meanwhile.
    filling: Option<Piece>,
    /// For the next piece: memory that was touched before costs a turn less than new memory.
    spare: Vec<u8>,
    finished: VecDeque<SnapshotDone>,
}

impl Snapshots {
    pub(crate) fn with_stored(stored: BTreeMap<CellId, Vec<Stored>>) -> Snapshots {
        Snapshots { stored, ..Snapshots::default() }
    }

    pub(crate) fn awaits(&self, op: OpId) -> bool {
        self.in_flight.is_some_and(|(id, _)| id == op)
    }

    pub(crate) fn sweep_later(&mut self) {
        self.is_to_sweep = true;
    }

    /// The newest snapshot of the cell that is being written or is whole.
    pub(crate) fn newest_written(&self, cell: CellId) -> Option<LogIndex> {
        let stored = self.stored.get(&cell).into_iter().flatten().map(|stored| stored.index).max();
        stored.max(self.writings.get(&cell).map(|writing| writing.id.index))
    }

    /// The cells that snapshots are being written of.
    pub(crate) fn being_written(&self) -> impl Iterator<Item = CellId> + '_ {
        self.writings.keys().copied()
    }

    /// How long the file of a whole snapshot is.
    pub(crate) fn bytes_of(&self, cell: CellId, index: LogIndex) -> Option<u64> {
        let stored = self.stored.get(&cell)?.iter().find(|stored| stored.index == index);
        stored.map(|stored| stored.bytes)
    }

    fn store(&mut self, cell: CellId, stored: Stored) {
        let of_cell = self.stored.entry(cell).or_default();
        of_cell.retain(|other| other.index != stored.index);
        of_cell.push(stored);
    }

    fn remove_later(&mut self, file: FileName) {
        if let FileName::Snapshot { cell, index } = file
            && let Some(stored) = self.stored.get_mut(&cell)
        {
            stored.retain(|stored| stored.index != index);
        }
        if !self.removals.contains(&file) {
            self.removals.push_back(file);
        }
    }

    fn keep(&mut self, file: FileName) {
        self.removals.retain(|other| *other != file);
    }

    /// The cell whose turn it is, if any has something to do.
    fn next_in_turn(&self) -> Option<CellId> {
        let later = self.writings.range((Bound::Excluded(self.turn), Bound::Unbounded));
        let mut round = later.chain(self.writings.range(..=self.turn));
        round.find(|(_, writing)| writing.has_work()).map(|(cell, _)| *cell)
    }
}

impl Log {
    /// Begins to write a snapshot of the cell. One that was being written is abandoned.
    pub fn begin_snapshot(&mut self, cell: CellId, id: SnapshotId) {
        self.abandon_snapshot(cell);
        self.snapshots.numbers += 1;
        let writing = Writing {
            number: self.snapshots.numbers,
            id,
            step: Step::Create,
            piece: 0,
            is_last: false,
            has_piece: false,
            payload: None,
            bytes: 0,
        };
        self.snapshots.writings.insert(cell, writing);
    }

    /// Takes a copy of the snapshot's next piece. The next is due when [`Log::poll_snapshot`] has told that this one is
    /// written. Does nothing if no snapshot of the cell is being written, as after `NoSpace` that is not yet polled.
    ///
    /// # Panics
    /// When it is not the piece that is due, or one that is not the last is not `SNAPSHOT_PIECE_BYTES_MAX` long, or
    /// the last one is longer: a defect of the caller.
    pub fn write_snapshot(&mut self, cell: CellId, piece: u32, is_last: bool, bytes: &[u8]) {
        let Some(writing) = self.snapshots.writings.get_mut(&cell) else {
            return;
        };
        match writing.step {
            Step::Create | Step::Write => {}
            Step::RemoveStaging => return,
            Step::Sync | Step::Rename | Step::SyncDirectory => {
                panic!("nothing follows the last piece of a snapshot of cell {cell}")
            }
        }
        let is_due = piece == writing.piece && !writing.has_piece;
        assert!(is_due, "piece {piece} of a snapshot of cell {cell} is not due");
        let is_full = bytes.len() == SNAPSHOT_PIECE_BYTES_MAX;
        assert!(
            is_full || (is_last && bytes.len() < SNAPSHOT_PIECE_BYTES_MAX),
            "a piece of {} bytes",
            bytes.len()
        );
        writing.is_last = is_last;
        writing.has_piece = true;
        let mut payload = std::mem::take(&mut self.snapshots.spare);
        payload.clear();
        payload.extend_from_slice(bytes);
        writing.payload = Some(payload);
    }

    /// Gives up the snapshot of the cell that is being written or was completed and has no mark. Nothing more is told
    /// of it.
    pub fn abandon_snapshot(&mut self, cell: CellId) {
        self.snapshots.finished.retain(|done| done.cell != cell);
        if let Some(writing) = self.snapshots.writings.remove(&cell) {
            match writing.step {
                Step::SyncDirectory => self.remove_unmarked(cell, writing.id.index),
                Step::Create | Step::Write | Step::Sync | Step::Rename | Step::RemoveStaging => {
                    self.snapshots.remove_later(FileName::SnapshotStaging { cell })
                }
            }
        }
        let stored: Vec<Stored> = self.snapshots.stored.get(&cell).cloned().unwrap_or_default();
        for Stored { index, .. } in stored {
            self.remove_unmarked(cell, index);
        }
    }

    /// What became of snapshots that are being written, in order.
    pub fn poll_snapshot(&mut self) -> Option<SnapshotDone> {
        self.snapshots.finished.pop_front()
    }

    /// Removes a whole snapshot's file if it is newer than any mark.
    fn remove_unmarked(&mut self, cell: CellId, index: LogIndex) {
        if self.catalog.newest_mark(cell).is_none_or(|mark| mark.id.index < index) {
            self.snapshots.remove_later(FileName::Snapshot { cell, index });
        }
    }

    /// Finds the files that no longer count.
    fn sweep_snapshots(&mut self) {
        if !std::mem::take(&mut self.snapshots.is_to_sweep) {
            return;
        }
        let mut obsolete = Vec::new();
        for (&cell, stored) in &self.snapshots.stored {
            let kept = self.catalog.kept(cell);
            let older = stored.iter().filter(|stored| kept.newest.is_some_and(|id| stored.index < id.index));
            let older = older.filter(|stored| !kept.is_kept(stored.index));
            obsolete.extend(older.map(|stored| FileName::Snapshot { cell, index: stored.index }));
        }
        for file in obsolete {
            self.snapshots.remove_later(file);
        }
    }

    pub(crate) fn poll_snapshot_op(&mut self) -> Option<DiskOp> {
        if self.snapshots.in_flight.is_some() {
            return None;
        }
        self.sweep_snapshots();
        let (job, action) = self.removal().or_else(|| self.writing_step())?;
        let op = self.next_op(Lane::Snapshot, action);
        self.snapshots.in_flight = Some((op.id, job));
        Some(op)
    }

    fn removal(&mut self) -> Option<(Job, Action)> {
        let read = self.catch_up.snapshot_being_read();
        if let Some(at) = self.snapshots.removals.iter().position(|file| Some(*file) != read) {
            let file = self.snapshots.removals.remove(at).expect("the position was just found");
            return Some((Job::Remove(file), Action::Remove { file }));
        }
        self.snapshots.has_unsynced_removals.then_some((Job::SyncRemovals, Action::SyncDirectory))
    }

    fn writing_step(&mut self) -> Option<(Job, Action)> {
        let cell = self.snapshots.next_in_turn()?;
        self.snapshots.turn = cell;
        let writing = self.snapshots.writings.get_mut(&cell).expect("it is among those whose turn comes");
        let staging = FileName::SnapshotStaging { cell };
        let mut bytes = 0;
        let action = match writing.step {
            Step::Create => Action::Create { file: staging },
            Step::Write => {
                let payload = writing.payload.take().expect("a cell has its turn when a piece waits");
                let len = extent_bytes(payload.len());
                let place = PiecePlace { cell, id: writing.id, piece: writing.piece };
                self.snapshots.filling = Some(Piece { place, is_last: writing.is_last, payload });
                bytes = place.offset() + len as u64;
                Action::Extend { file: staging, offset: place.offset(), len }
            }
            Step::Sync => Action::Sync { file: staging },
            Step::Rename => Action::Rename { from: staging, to: snapshot_file(cell, writing.id) },
            Step::SyncDirectory => Action::SyncDirectory,
            Step::RemoveStaging => Action::Remove { file: staging },
        };
        let Writing { number, id, step, .. } = *writing;
        Some((Job::Step { cell, number, step, id, bytes }, action))
    }

    pub(crate) fn fill_snapshot(&mut self, bytes: &mut [u8]) {
        let piece = self.snapshots.filling.take().expect("only a write in flight is filled, once");
        piece.place.encode(piece.is_last, &piece.payload, bytes);
        self.snapshots.spare = piece.payload;
    }

    pub(crate) fn on_snapshot_done(&mut self, result: Result<(), DiskError>) {
        let (_, job) = self.snapshots.in_flight.take().expect("only operations in flight are answered");
        match (job, result) {
            (Job::Step { cell, number, step, id, .. }, Err(error)) => {
                self.on_snapshot_error(cell, number, step, id, error);
            }
            (Job::Step { cell, number, step, id, bytes }, Ok(())) => {
                self.on_step_done(cell, number, step, id, bytes);
            }
            // What was abandoned may not have been created yet.
            (Job::Remove(FileName::SnapshotStaging { .. }), Err(DiskError::NotFound)) => {}
            (Job::Remove(file), Err(error)) => self.fail(Failure::Disk { file: Some(file), error }),
            (Job::Remove(_), Ok(())) => self.snapshots.has_unsynced_removals = true,
            (Job::SyncRemovals, Err(error)) => self.fail(Failure::Disk { file: None, error }),
            (Job::SyncRemovals, Ok(())) => self.snapshots.has_unsynced_removals = false,
        }
    }

    fn on_step_done(&mut self, cell: CellId, number: u64, step: Step, id: SnapshotId, bytes: u64) {
        let snapshots = &mut self.snapshots;
        let Some(writing) = snapshots.writings.get_mut(&cell).filter(|writing| writing.number == number)
        else {
            // Abandoned meanwhile; nobody else knows that there is a file of that name now.
            if step == Step::Rename {
                self.remove_unmarked(cell, id.index);
            }
            return;
        };
        match step {
            Step::Create => writing.step = Step::Write,
            Step::Write if writing.is_last => {
                writing.bytes = bytes;
                writing.step = match mutant::is(Mutant::SnapshotMarkedUnsynced) {
                    true => Step::Rename,
                    false => Step::Sync,
                };
            }
            Step::Write => {
                writing.has_piece = false;
                let outcome = SnapshotOutcome::Written { piece: writing.piece };
                writing.piece += 1;
                snapshots.finished.push_back(SnapshotDone { cell, id, outcome });
            }
            Step::Sync => writing.step = Step::Rename,
            Step::Rename => {
                writing.step = Step::SyncDirectory;
                snapshots.keep(snapshot_file(cell, id));
            }
            Step::SyncDirectory => {
                let stored = Stored { index: id.index, bytes: writing.bytes };
                snapshots.writings.remove(&cell);
                snapshots.store(cell, stored);
                snapshots.finished.push_back(SnapshotDone { cell, id, outcome: SnapshotOutcome::Complete });
            }
            Step::RemoveStaging => {
                snapshots.writings.remove(&cell);
                snapshots.finished.push_back(SnapshotDone { cell, id, outcome: SnapshotOutcome::NoSpace });
            }
        }
    }

    /// A full disk is a state while a snapshot is being written. Everything else is final.
    fn on_snapshot_error(&mut self, cell: CellId, number: u64, step: Step, id: SnapshotId, error: DiskError) {
        let file = match step {
            // Late allocation shows at the sync, a directory that must grow at the rename; what was written is given up.
            Step::Create | Step::Write | Step::Sync | Step::Rename if error == DiskError::NoSpace => {
                let writing = self.snapshots.writings.get_mut(&cell);
                if let Some(writing) = writing.filter(|writing| writing.number == number) {
                    writing.step = Step::RemoveStaging;
                }
                return;
            }
            // Creating it may have failed for want of space, so that there is nothing to remove.
            Step::RemoveStaging if error == DiskError::NotFound => {
                self.on_step_done(cell, number, step, id, 0);
                return;
            }
            Step::Create | Step::Write | Step::Sync | Step::Rename | Step::RemoveStaging => {
                Some(FileName::SnapshotStaging { cell })
            }
            Step::SyncDirectory => None,
        };
        self.fail(Failure::Disk { file, error });
    }
}
