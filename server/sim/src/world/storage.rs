//! The log of a server process and the disk under it: what cells append, what becomes durable, snapshots and reads.
//!
//! Invariant: it does what `disk` of the server's shards does, in the same order, and shows the judges what goes into the
//! log and what the disk has confirmed. Deliberately absent: how a disk fails; that is the machine's.

use std::collections::BTreeSet;

use lockstep_core::{
    AppendId, CellConfig, Input, LogRead, RecordHead, RecordKind, Restore, SnapshotRead, Span,
};
use lockstep_wal::disk::{Action, DiskDone, DiskOp, Lane};
use lockstep_wal::memory::MemoryDisk;
use lockstep_wal::{
    Log, Lsn, ReadDone, ReadsFull, SnapshotDone, SnapshotOutcome, SnapshotRefusal, load_snapshot,
};
use lockstep_wire::{CellId, LogIndex, SnapshotId, Term};

use super::defect::Defect;
use super::judge::{Judges, Mirror};
use super::process::{Process, Surroundings};
use super::schedule::Event;
use crate::mark::Mark;
use crate::oracle::majority::Ballot;

/// How often a disk that was full is tried again.
const SPACE_PAUSE: Span = Span::from_ms(1_000);
/// Uncovered entries of a shard that make a snapshot due: few, so that runs have often so many.
const UNCOVERED_ENTRIES_MAX: u64 = 2_048;

/// A read that a cell wants.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wish {
    Entries { cell: CellId, first: LogIndex, last: LogIndex, bytes_max: usize },
    Piece { cell: CellId, snapshot: SnapshotId, piece: u32 },
}

/// What a start has found wrong with a snapshot that counts.
#[derive(Clone, Debug)]
pub(super) struct Complaint {
    pub(super) cell: CellId,
    /// What is wrong with its file, if that is it.
    pub(super) refusal: Option<SnapshotRefusal>,
    pub(super) words: String,
}

/// What is on its way to the disk and what the judges make of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landing {
    lsn: Lsn,
    cell: CellId,
    index: LogIndex,
    term: Term,
    /// It stands for all entries through there.
    is_mark: bool,
}

impl Process {
    pub(super) fn append(
        &mut self,
        cell: CellId,
        append: AppendId,
        head: RecordHead,
        payload: &[u8],
        around: &mut Surroundings<'_>,
    ) {
        if head.kind == RecordKind::Entry {
            self.note_endings(cell, payload, around);
        }
        if self.is_over {
            return;
        }
        // To be bound to a cell is no promise: whoever joins, may be so by one that knows nothing of its earlier life.
        let is_binding = matches!(head.kind, RecordKind::Manifest | RecordKind::Born);
        if self.lost_cells.contains(&cell) && !(self.is_joining && is_binding) {
            around.judges.on_forgotten_promise(cell, self.identity.node, head);
        }
        if head.kind == RecordKind::Manifest {
            self.manifests.insert(cell, payload.to_vec());
        }
        match self.log.append(cell, head.kind, head.term, head.index, payload) {
            Ok(lsn) => {
                self.appended.push_back((lsn, cell, append));
                self.note_appended(lsn, cell, head, payload, around);
                reflect(self.mirrors.entry(cell).or_default(), (cell, head, payload), around.judges);
            }
            // The disk has failed; the end comes at the end of the turn.
            Err(_) => self.is_over = true,
        }
    }

    /// Shows the judges what goes into the log.
    fn note_appended(
        &mut self,
        lsn: Lsn,
        cell: CellId,
        head: RecordHead,
        payload: &[u8],
        around: &mut Surroundings<'_>,
    ) {
        let node = self.identity.node;
        match head.kind {
            RecordKind::Entry => {
                self.land(lsn, cell, head, false);
                let mirror = self.mirrors.entry(cell).or_default();
                around.judges.on_appended(cell, node, mirror, head.term, payload);
            }
            RecordKind::Truncate => {
                around.judges.set(Mark::SuffixTruncated);
                let mirror = self.mirrors.entry(cell).or_default();
                around.judges.cell(cell).memberships.on_truncated(mirror, head.index);
                self.landing.retain(|landing| landing.cell != cell || landing.index < head.index);
                around.judges.cell(cell).disks.on_truncated(node, head.index);
            }
            RecordKind::HardState => {
                let ballot = ballot_of(head, payload);
                self.voting.push_back((lsn, cell, ballot));
                around.judges.cell(cell).memberships.on_vote(node, ballot.term, ballot.vote);
            }
            RecordKind::SnapshotMark => {
                self.land(lsn, cell, head, true);
                let mirror = self.mirrors.entry(cell).or_default();
                around.judges.on_marked(cell, mirror, head.index);
            }
            RecordKind::Manifest => self.binding.push_back((lsn, cell)),
            RecordKind::Born => {}
        }
    }

    fn land(&mut self, lsn: Lsn, cell: CellId, head: RecordHead, is_mark: bool) {
        self.landing.push_back(Landing { lsn, cell, index: head.index, term: head.term, is_mark });
    }

    pub(super) fn deliver_durable(&mut self, around: &mut Surroundings<'_>) {
        if self.log.failure().is_some() {
            self.is_over = true;
            return;
        }
        let is_short = self.log.is_short_of_space();
        if std::mem::replace(&mut self.is_short_of_space, is_short) != is_short {
            around.judges.on_space(self.identity.node, is_short);
            self.step_all(around, |_| Input::Space { is_short });
        }
        while let Some(Landing { lsn, cell, index, term, is_mark }) = self.landing.front().copied()
            && lsn <= self.log.durable()
        {
            self.landing.pop_front();
            let (judges, node) = (around.judges.cell(cell), self.identity.node);
            if is_mark {
                judges.disks.on_snapshot(node, judges.commitment.terms_through(index));
            } else {
                judges.disks.on_durable(node, index, term);
            }
        }
        while let Some((lsn, cell, ballot)) = self.voting.front().copied()
            && lsn <= self.log.durable()
        {
            self.voting.pop_front();
            around.judges.cell(cell).disks.on_ballot_durable(self.identity.node, ballot);
        }
        while let Some((lsn, cell)) = self.binding.front().copied()
            && lsn <= self.log.durable()
        {
            self.binding.pop_front();
            around.judges.on_bound(cell, self.identity.node, &self.manifests[&cell]);
        }
        let durable = match self.defect {
            // The birth is not what is tried.
            Some(Defect::DurableBeforeWritten) if self.binding.is_empty() => self.log.appended(),
            _ => self.log.durable(),
        };
        while let Some((lsn, cell, append)) = self.appended.front().copied()
            && lsn <= durable
        {
            self.appended.pop_front();
            self.step(cell, Input::Durable(append), around);
        }
        while let Some(done) = self.log.poll_read() {
            self.deliver_read(done, around);
        }
        while let Some(SnapshotDone { cell, id: snapshot, outcome }) = self.log.poll_snapshot() {
            let input = match outcome {
                SnapshotOutcome::Written { piece } => Input::SnapshotStaged { snapshot, piece },
                SnapshotOutcome::Complete => Input::SnapshotStored { snapshot },
                SnapshotOutcome::NoSpace => {
                    around.judges.set(Mark::SnapshotWithoutRoom);
                    Input::SnapshotDropped { snapshot }
                }
            };
            self.step(cell, input, around);
        }
        let written: Vec<(CellId, u64)> = self.log.snapshots_written(UNCOVERED_ENTRIES_MAX).collect();
        for (cell, millionths) in written {
            self.step(cell, Input::RoomUsed { millionths }, around);
        }
        let due: BTreeSet<CellId> = self.log.snapshots_due(UNCOVERED_ENTRIES_MAX).collect();
        for cell in due {
            self.step(cell, Input::SnapshotDue, around);
        }
    }

    fn deliver_read(&mut self, done: ReadDone, around: &mut Surroundings<'_>) {
        let wish = self.reads.remove(&done.id).expect("every read was asked for");
        if let Some(wish) = self.refused_reads.pop_front() {
            self.read(wish);
        }
        match wish {
            Wish::Entries { cell, first, .. } => {
                let entries = done.outcome.into_entries();
                let entries: Option<Vec<(Term, &[u8])>> = entries
                    .as_ref()
                    .map(|entries| entries.iter().map(|entry| (entry.term, &entry.payload[..])).collect());
                self.step(cell, Input::LogRead(LogRead { first, entries: entries.as_deref() }), around);
            }
            Wish::Piece { cell, snapshot, piece } => {
                let found = done.outcome.into_piece();
                let found = found.as_ref().map(|(bytes, is_last)| (&bytes[..], *is_last));
                self.step(cell, Input::SnapshotRead(SnapshotRead { snapshot, piece, found }), around);
            }
        }
    }

    pub(super) fn read(&mut self, wish: Wish) {
        let asked = match wish {
            Wish::Entries { cell, first, last, bytes_max } => self.log.read(cell, first, last, bytes_max),
            Wish::Piece { cell, snapshot, piece } => self.log.read_snapshot(cell, snapshot, piece),
        };
        match asked {
            Ok(id) => {
                self.reads.insert(id, wish);
            }
            Err(ReadsFull) => self.refused_reads.push_back(wish),
        }
    }

    pub(super) fn stage(
        &mut self,
        cell: CellId,
        snapshot: SnapshotId,
        piece: u32,
        is_last: bool,
        bytes: &[u8],
    ) {
        if piece == 0 {
            self.log.begin_snapshot(cell, snapshot);
        }
        self.log.write_snapshot(cell, piece, is_last, bytes);
    }

    /// Gives the disk what the log wants done.
    pub(super) fn submit(&mut self, around: &mut Surroundings<'_>) {
        let mark = self.arrived();
        self.marked_drains.extend(self.drains.drain(..).map(|(cell, drain)| (cell, drain, mark)));
        self.look_for_space(around);
        while let Some(op) = self.log.poll_op() {
            if op.action == Action::SyncDirectory && self.defect == Some(Defect::DirectorySyncSkipped) {
                self.log.on_disk_done(DiskDone { op: op.id, result: Ok(&[]) });
                continue;
            }
            self.start_op(op, around);
        }
        if self.log.failure().is_some() {
            self.is_over = true;
        }
    }

    /// Lets the log try a disk that was full once more every now and then.
    fn look_for_space(&mut self, around: &mut Surroundings<'_>) {
        if !self.log.is_short_of_space() {
            self.space_due = None;
            return;
        }
        if *self.space_due.get_or_insert(self.now + SPACE_PAUSE) <= self.now {
            self.log.retry_space();
            let durable = self.log.durable();
            if durable < self.log.appended() && std::mem::replace(&mut self.durable_then, durable) == durable
            {
                around.judges.set(Mark::SpaceWaitedFor);
            }
            self.space_due = Some(self.now + SPACE_PAUSE);
        }
    }

    fn start_op(&mut self, op: DiskOp, around: &mut Surroundings<'_>) {
        self.under_way.insert(op.id, matches!(op.action, Action::Read { .. }));
        let is_unhurried = match op.lane {
            Lane::Background => self.log.spare_segments() > 0,
            Lane::Snapshot => true,
            Lane::Commit | Lane::Read => false,
        };
        let now = around.fabric.now();
        let delay = around.machine.disk_delay(now, is_unhurried);
        let disk: &mut MemoryDisk = &mut around.machine.disk;
        let ticket = disk.submit(&mut self.log, op);
        let event = Event::DiskDone { node: self.place, life: self.life, ticket };
        around.fabric.schedule.after(delay, event);
    }
}

/// The term and the vote of a record.
pub(super) fn ballot_of(head: RecordHead, payload: &[u8]) -> Ballot {
    let vote = payload.try_into().expect("a hard state names a node in two bytes");
    Ballot { term: head.term, vote: u16::from_le_bytes(vote) }
}

/// Keeps a mirror of a log in step with its records. What a log has recycled, or never had, stands in a snapshot that its
/// mark makes count, and is what was committed.
pub(super) fn reflect(mirror: &mut Mirror, record: (CellId, RecordHead, &[u8]), judges: &Judges) {
    let (cell, head, payload) = record;
    let mut cover = |through: LogIndex| {
        let covered = judges.committed(cell, through);
        let from = mirror.len().min(covered.len());
        mirror.extend_from_slice(&covered[from..]);
    };
    match head.kind {
        RecordKind::Entry => {
            cover(head.index.prev());
            mirror.push((head.term, payload.to_vec()));
        }
        RecordKind::Truncate => {
            mirror.truncate(usize::try_from(head.index.prev().0).expect("a run is short"));
        }
        RecordKind::SnapshotMark => cover(head.index),
        RecordKind::HardState | RecordKind::Manifest | RecordKind::Born => {}
    }
}

/// Loads what a replica goes on from; says what is wrong with each snapshot that counts and is not used.
pub(super) fn load(
    restore: &mut Restore,
    config: &CellConfig,
    log: &Log,
    disk: &mut MemoryDisk,
) -> impl Iterator<Item = Complaint> + use<> {
    let cell = config.cell;
    let mut refusals = Vec::new();
    let complaints = restore.load(config.limits, log.snapshots(cell), |snapshot, visit| {
        let loaded = load_snapshot(disk, cell, snapshot, visit);
        refusals.push(loaded.err());
        loaded.map_err(|refusal| refusal.to_string())
    });
    // One that is used is the last one that was read.
    complaints.into_iter().zip(refusals).map(move |(words, refusal)| Complaint { cell, refusal, words })
}
