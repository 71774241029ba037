//! Snapshots of a cell: its own, written piece by piece between other inputs, and its leader's, taken in the same way
//! (ARCHITECTURE section 4.5).
//!
//! Invariants: one piece is on its way to the disk at a time, and made in slices, one a tick, so that whatever comes waits for
//! a slice at most; one snapshot is taken at a time, its mark included; a snapshot counts only by its mark, which is appended when
//! all of it is durable; the leader's state replaces this replica's as a whole or not at all. Deliberately absent: the
//! bytes, which are the table's, and the log's part, which is Raft's.

use std::collections::VecDeque;

use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::{NodeId, SnapshotAnswer, SnapshotId, SnapshotPiece};

use super::Cell;
use crate::effect::{Effect, Effects, Report};
use crate::table::{Limits, Table, TableLoader};
use crate::time::{Span, Time};

/// What is made of a snapshot in one go, unless the cell is told otherwise: half a millisecond. A few that are felt cost the
/// median less than many that are hardly felt, each by whatever waits for that turn.
pub const SNAPSHOT_SLICE_BYTES: usize = 64 * 1024;
/// The first slices of a snapshot, a piece of the usual ones, come without a pause: the snapshot of a small state has no more.
const SLICES_AT_ONCE: usize = 2;
/// Between two later ones, as long as the log is in no hurry.
const PAUSE: Span = Span::from_ms(16);
/// The part of the log's room that a snapshot is written in. The rest is for what follows: it is synced, named and marked.
const WRITING_MILLIONTHS: u64 = 750_000;
/// How long a replica whose disk had no room for a snapshot waits before it tries again.
const RETRY: Span = Span::from_ms(1_000);
/// Pieces of a leader that may wait for the disk; it sends fewer.
const WAITING_MAX: usize = 16;

/// The snapshots that a replica works on.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// This replica's own.
    taking: Option<SnapshotId>,
    /// The piece of it that is being made.
    making: Option<u32>,
    /// When its next slice is to be made, unless it is behind.
    slice_due: Time,
    /// How many there were.
    slices_made: usize,
    /// How much of the log's room for it is used.
    room_used_millionths: u64,
    /// Its mark is on its way to the disk.
    is_marking: bool,
    retry_at: Time,
    /// The leader's.
    receiving: Option<Receiving>,
    /// A piece is on its way to the disk.
    is_staging: bool,
    /// As much of the piece that is being made as there is.
    piece: Vec<u8>,
}

/// A snapshot that comes from the leader.
#[derive(Debug)]
struct Receiving {
    snapshot: SnapshotId,
    /// The piece that is expected next.
    next: u32,
    /// The disk has the pieces before this one.
    staged: u32,
    /// What has come so far, as long as there is more to come.
    loader: Option<TableLoader>,
    /// The state, once all of it has come.
    table: Option<Table>,
    /// Pieces that wait for the disk.
    waiting: VecDeque<Vec<u8>>,
}

impl Snapshots {
    /// So much of the log's room for the snapshot is used.
    pub(super) fn on_room_used(&mut self, millionths: u64) {
        self.room_used_millionths = millionths;
    }
}

impl Cell {
    /// Begins a snapshot of this replica's state, which ticks go on with, unless one is under way or would have nothing new.
    pub(super) fn take_snapshot(&mut self, now: Time, fx: &mut Effects) {
        let applied = self.table.applied();
        // Whoever sent it leads no more, and the next leader had the entries.
        if self.snapshots.receiving.as_ref().is_some_and(|receiving| receiving.snapshot.index <= applied) {
            self.give_up_snapshot(fx);
        }
        let snapshots = &self.snapshots;
        if self.is_taking_snapshot()
            // Each change would be copied first, for a state that is old at once. It is asked for again.
            || self.is_replaying()
            || snapshots.receiving.is_some()
            || snapshots.is_staging
            || now < snapshots.retry_at
            || self.table.has_remains()
        {
            return;
        }
        let Some(snapshot) = self.raft.next_snapshot() else { return };
        assert!(snapshot.index == applied, "what was handed out has been applied");
        let snapshot = match mutant::is(Mutant::SnapshotNamedAhead) {
            true => SnapshotId { index: self.raft.last_index(), ..snapshot },
            false => snapshot,
        };
        self.table.begin_snapshot();
        self.snapshots.taking = Some(snapshot);
        (self.snapshots.slice_due, self.snapshots.slices_made) = (now, 0);
        self.snapshots.room_used_millionths = 0;
        self.make_piece(0);
    }

    /// Whether this replica takes a snapshot, its mark included.
    pub(super) fn is_taking_snapshot(&self) -> bool {
        self.snapshots.taking.is_some() || self.snapshots.is_marking
    }

    fn make_piece(&mut self, piece: u32) {
        self.snapshots.making = Some(piece);
        self.snapshots.piece.clear();
    }

    /// Makes the next slice of the piece that is being made, if it is time, and hands the piece to the disk when it is whole.
    pub(super) fn make_slice(&mut self, now: Time, fx: &mut Effects) {
        let is_due = now >= self.slice_deadline();
        let Snapshots { taking: Some(snapshot), making: Some(piece), .. } = self.snapshots else { return };
        if !is_due {
            return;
        }
        let bytes = &mut self.snapshots.piece;
        let room = SNAPSHOT_PIECE_BYTES_MAX - bytes.len();
        let is_last = self.table.write_snapshot(bytes, room.min(self.config.snapshot_slice_bytes));
        if is_last || bytes.len() == SNAPSHOT_PIECE_BYTES_MAX {
            fx.stage(snapshot, piece, is_last, bytes);
            self.snapshots.making = None;
            self.snapshots.is_staging = true;
        }
        self.snapshots.slices_made += 1;
        let is_at_once = self.snapshots.slices_made < SLICES_AT_ONCE;
        self.snapshots.slice_due = if is_at_once { now } else { now + PAUSE };
    }

    /// When the next slice is to be made: at once if the log has gone on further than the snapshot.
    pub(super) fn slice_deadline(&self) -> Time {
        if self.snapshots.making.is_none() {
            return Time::NEVER;
        }
        if self.is_snapshot_behind() { Time(0) } else { self.snapshots.slice_due }
    }

    /// Whether a smaller part of the snapshot is written than is used of the log's room. Records are not equally long, so
    /// once it ought to be whole it is behind until it is.
    fn is_snapshot_behind(&self) -> bool {
        let Some((written, records)) = self.table.snapshot_progress() else { return false };
        let (written, records) = (written as u64, records as u64);
        let used = self.snapshots.room_used_millionths;
        used >= WRITING_MILLIONTHS || written * WRITING_MILLIONTHS < records * used
    }

    /// The mark of this replica's own snapshot is durable.
    pub(super) fn on_snapshot_marked(&mut self) {
        self.snapshots.is_marking = false;
    }

    /// The disk has taken a piece: the next one may go.
    pub(super) fn on_snapshot_staged(&mut self, snapshot: SnapshotId, piece: u32, fx: &mut Effects) {
        self.snapshots.is_staging = false;
        if self.snapshots.taking == Some(snapshot) {
            return self.make_piece(piece + 1);
        }
        let Some(receiving) = &mut self.snapshots.receiving else { return };
        if receiving.snapshot == snapshot {
            receiving.staged = piece + 1;
            if receiving.is_loading() {
                self.raft.reply_about(snapshot, SnapshotAnswer::Wanted { piece: piece + 1 }, fx);
            }
        }
        self.stage_received(fx);
    }

    fn stage_received(&mut self, fx: &mut Effects) {
        let snapshots = &mut self.snapshots;
        let Some(receiving) = snapshots.receiving.as_mut().filter(|_| !snapshots.is_staging) else {
            return;
        };
        if let Some(bytes) = receiving.waiting.pop_front() {
            let is_last = receiving.waiting.is_empty() && !receiving.is_loading();
            fx.stage(receiving.snapshot, receiving.staged, is_last, &bytes);
            snapshots.is_staging = true;
        }
    }

    /// A snapshot is durable under its name: now its mark may make it count.
    pub(super) fn on_snapshot_stored(&mut self, snapshot: SnapshotId, now: Time, fx: &mut Effects) {
        self.snapshots.is_staging = false;
        if self.snapshots.taking == Some(snapshot) {
            self.snapshots.taking = None;
            self.snapshots.is_marking = true;
            self.raft.mark(snapshot, now, fx);
        }
        let is_received = |receiving: &mut Receiving| receiving.snapshot == snapshot;
        if let Some(receiving) = self.snapshots.receiving.take_if(is_received)
            && let Some(table) = receiving.table
        {
            if snapshot.index <= self.table.applied() {
                // Another leader had the entries.
                self.remains.add(table);
                return fx.push(Effect::DropSnapshot);
            }
            let members = table.members().cloned();
            if !mutant::is(Mutant::InstallKeepsTable) {
                self.remains.add(std::mem::replace(&mut self.table, table));
            }
            self.raft.install(snapshot, members, now, fx);
        }
    }

    /// The disk had no room.
    pub(super) fn on_snapshot_dropped(&mut self, snapshot: SnapshotId, now: Time, fx: &mut Effects) {
        self.snapshots.is_staging = false;
        if self.snapshots.taking.take().is_some() {
            self.snapshots.making = None;
            self.table.abandon_snapshot();
            self.snapshots.retry_at = now + RETRY;
            self.refuse_saves_for_space(fx);
        }
        if self.stop_receiving() {
            self.raft.reply_about(snapshot, SnapshotAnswer::Refused, fx);
        }
    }

    /// Gives up the snapshot that is under way, be it this replica's own or its leader's: nothing more is heard of it.
    pub(super) fn give_up_snapshot(&mut self, fx: &mut Effects) {
        let was_taking = self.snapshots.taking.take().is_some();
        // The disk knows nothing of one whose first piece is not whole.
        let is_on_disk = was_taking && self.snapshots.making.take() != Some(0);
        if was_taking {
            self.table.abandon_snapshot();
        }
        if self.stop_receiving() || is_on_disk {
            self.snapshots.is_staging = false;
            fx.push(Effect::DropSnapshot);
        }
    }

    /// Tells whether a snapshot was being received.
    fn stop_receiving(&mut self) -> bool {
        let Some(Receiving { loader, table, .. }) = self.snapshots.receiving.take() else { return false };
        table.into_iter().for_each(|table| self.remains.add(table));
        loader.into_iter().for_each(|loader| self.remains.add_loader(loader));
        true
    }

    /// A piece of a snapshot came from a member.
    pub(super) fn on_snapshot_piece(
        &mut self,
        from: NodeId,
        piece: &SnapshotPiece<'_>,
        now: Time,
        fx: &mut Effects,
    ) {
        if !self.raft.wants_piece(from, piece, now, fx) {
            return;
        }
        let snapshot = piece.snapshot;
        match &self.snapshots.receiving {
            // It will count in a moment, and then this one may not be needed.
            Some(other) if other.snapshot != snapshot && !other.is_loading() => {
                return self.raft.reply_about(snapshot, SnapshotAnswer::Refused, fx);
            }
            Some(same) if same.snapshot == snapshot => {}
            Some(_) | None if piece.piece > 0 => {
                return self.raft.reply_about(snapshot, SnapshotAnswer::Wanted { piece: 0 }, fx);
            }
            Some(_) | None => {
                self.give_up_snapshot(fx);
                self.snapshots.receiving = Some(Receiving::begin(snapshot, self.config.limits));
            }
        }
        let Some(receiving) = self.snapshots.receiving.as_mut().filter(|receiving| receiving.is_loading())
        else {
            return;
        };
        if piece.piece != receiving.next || receiving.waiting.len() >= WAITING_MAX {
            // Sent again, by another leader perhaps, which does not know what is here.
            let wanted = SnapshotAnswer::Wanted { piece: receiving.staged };
            return self.raft.reply_about(snapshot, wanted, fx);
        }
        match receiving.take_in(piece) {
            Ok(()) => self.stage_received(fx),
            Err(reason) => {
                let cell = self.config.cell;
                let reason =
                    format!("cell {cell}: the snapshot {snapshot} of node {from} cannot be taken: {reason}");
                fx.push(Effect::Report(Report::Refused { peer: from, reason }));
                self.give_up_snapshot(fx);
                self.raft.reply_about(snapshot, SnapshotAnswer::Refused, fx);
            }
        }
    }
}

/// The state of a snapshot whose bytes have all come.
///
/// # Errors
/// Why it is none, or not the one that it is said to be.
pub(super) fn finish_loading(loader: &mut TableLoader, snapshot: SnapshotId) -> Result<Table, String> {
    let table = loader.finish().map_err(|error| error.to_string())?;
    if table.applied() != snapshot.index {
        return Err(format!("it holds the state after entry {}", table.applied()));
    }
    Ok(table)
}

impl Receiving {
    fn begin(snapshot: SnapshotId, limits: Limits) -> Receiving {
        let loader = Some(TableLoader::new(limits));
        Receiving { snapshot, next: 0, staged: 0, loader, table: None, waiting: VecDeque::new() }
    }

    /// Whether the leader has pieces that are not here.
    fn is_loading(&self) -> bool {
        self.loader.is_some()
    }

    fn take_in(&mut self, piece: &SnapshotPiece<'_>) -> Result<(), String> {
        let loader = self.loader.as_mut().expect("pieces are taken in while some are missing");
        loader.push(piece.bytes).map_err(|error| error.to_string())?;
        if piece.is_last {
            self.table = Some(finish_loading(loader, self.snapshot)?);
            self.loader = None;
        }
        self.next += 1;
        self.waiting.push_back(piece.bytes.to_vec());
        Ok(())
    }
}
