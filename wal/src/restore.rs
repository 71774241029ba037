//! A cell that begins with a snapshot, written into the log of a node that does not run.
//!
//! Invariant: the cell begins with the whole snapshot, and nothing else, or has no record; what was interrupted can be
//! done again from its beginning, with the same snapshot or another one. Deliberately absent: where the state comes from,
//! and preparing segments ahead, which is left to the node's first start unless there is no room without it.

use lockstep_wire::{CellId, LogIndex, RecordKind, SnapshotId};

use crate::disk::{Action, DiskDone, DiskError, DiskOp, FileName, Lane, Storage};
use crate::log::{AppendRefusal, Failure, Log};
use crate::snapshot::SnapshotOutcome;

/// Carries out a log's operations one by one.
struct BlockingDisk<'a> {
    storage: &'a mut dyn Storage,
    /// Work on segments ahead, which nobody waits for yet.
    ahead: Option<DiskOp>,
}

impl Log {
    /// Writes a snapshot of a cell that has no record, and has the cell begin with it. `next_piece` appends the next
    /// piece, as long as [`Log::write_snapshot`] wants it, and says whether it was the last. When this succeeds, all of it
    /// is durable.
    ///
    /// # Errors
    /// When the disk fails or is full; it can be tried again after the log was opened anew.
    ///
    /// # Panics
    /// When the cell has entries or a mark: a defect of the caller, who has seen its records.
    pub fn restore(
        &mut self,
        storage: &mut dyn Storage,
        cell: CellId,
        id: SnapshotId,
        next_piece: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<(), Failure> {
        let has_state = self.entries(cell).is_some() || self.snapshots(cell).next().is_some();
        assert!(!has_state, "cell {cell} has a state already");
        let no_space = |file| Failure::Disk { file, error: DiskError::NoSpace };
        let mut disk = BlockingDisk { storage, ahead: None };
        self.begin_snapshot(cell, id);
        let mut bytes = Vec::new();
        for piece in 0.. {
            bytes.clear();
            let is_last = next_piece(&mut bytes);
            self.write_snapshot(cell, piece, is_last, &bytes);
            disk.run(self)?;
            match self.poll_snapshot().expect("a piece that was carried out has its outcome").outcome {
                SnapshotOutcome::Written { .. } => {}
                SnapshotOutcome::Complete => break,
                SnapshotOutcome::NoSpace => return Err(no_space(Some(FileName::SnapshotStaging { cell }))),
            }
        }
        let fits = |refusal: AppendRefusal| unreachable!("two records: {refusal}");
        self.append(cell, RecordKind::Truncate, id.term, LogIndex(1), b"").unwrap_or_else(fits);
        self.append(cell, RecordKind::SnapshotMark, id.term, id.index, b"").unwrap_or_else(fits);
        disk.run(self)?;
        if self.durable() < self.appended() { Err(no_space(None)) } else { Ok(()) }
    }
}

impl BlockingDisk<'_> {
    /// Carries out what the log wants, until everything that was appended is durable.
    fn run(&mut self, log: &mut Log) -> Result<(), Failure> {
        loop {
            let op = match log.poll_op() {
                Some(op) if op.lane == Lane::Background => {
                    self.ahead = Some(op);
                    continue;
                }
                Some(op) => op,
                None => match self.ahead.take_if(|_| log.durable() < log.appended()) {
                    Some(op) => op,
                    None => break,
                },
            };
            let result = self.carry_out(log, op);
            log.on_disk_done(DiskDone { op: op.id, result: result.as_deref().map_err(|error| *error) });
        }
        log.failure().map_or(Ok(()), Err)
    }

    fn carry_out(&mut self, log: &mut Log, op: DiskOp) -> Result<Vec<u8>, DiskError> {
        let storage = &mut *self.storage;
        match op.action {
            Action::Write { file, offset, len } | Action::Extend { file, offset, len } => {
                let mut bytes = vec![0; len];
                log.fill(op.id, &mut bytes);
                storage.write_durable(file, offset, &bytes)?;
            }
            Action::WriteZeros { file, offset, len } => storage.write_durable(file, offset, &vec![0; len])?,
            Action::Create { file } => match storage.create(file) {
                Err(DiskError::AlreadyExists) => {
                    storage.remove(file)?;
                    storage.create(file)?;
                }
                created => created?,
            },
            Action::Sync { file } => storage.sync(file)?,
            Action::Rename { from, to } => storage.rename(from, to)?,
            Action::Remove { file } => storage.remove(file)?,
            Action::SyncDirectory => storage.sync_directory()?,
            Action::Read { file, offset, len } => {
                let mut bytes = vec![0; len];
                storage.read(file, offset, &mut bytes)?;
                return Ok(bytes);
            }
        }
        Ok(Vec::new())
    }
}
