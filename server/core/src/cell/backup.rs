//! Snapshots on their way to whoever makes a backup (ARCHITECTURE section 4.5).
//!
//! Invariants: a save begins with a snapshot that has all that was applied when a round had confirmed that this replica
//! leads; a connection has one save under way, with one piece at a time, and a cell a bounded number of them; what the
//! disk has read goes to whoever wished for it, a save or a follower's install; no snapshot is taken for a save's sake that
//! would take away one on its way. Deliberately absent: how long a snapshot is kept for the log's sake; one that goes away is
//! begun with anew by whoever saves it.

use std::collections::{BTreeMap, VecDeque};

use lockstep_wire::reply::{Refusal, Reply};
use lockstep_wire::{LogIndex, SavedPiece, SnapshotId, Status};

use super::Cell;
use super::calls::Call;
use super::question::Question;
use crate::effect::{ConnectionId, Effect, Effects};
use crate::input::SnapshotRead;
use crate::time::{Span, Time};

/// Saves under way in a cell.
const SAVES_MAX: usize = 4;
/// How long a save may rest before its place goes to another one.
const REST_MAX: Span = Span::from_ms(10_000);
/// When to come back if there are as many saves as may be, in ms.
const RETRY_AFTER_MS: u32 = 1_000;

/// The saves under way at one leader.
#[derive(Debug, Default)]
pub(super) struct Saves {
    by_connection: BTreeMap<ConnectionId, Save>,
    /// Pieces that the disk reads for saves, in the order in which they were wished for. Whoever wished may be gone.
    reads: VecDeque<PieceRead>,
}

#[derive(Clone, Copy, Debug)]
struct PieceRead {
    call: Call,
    snapshot: SnapshotId,
    piece: u32,
}

#[derive(Clone, Copy, Debug)]
struct Save {
    phase: Phase,
    /// When a question of it was last heard.
    heard_at: Time,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// A round is to confirm that this replica leads.
    Confirming,
    /// A snapshot through this entry, or further, is to be taken.
    Waiting { call: Call, least: LogIndex },
    /// The disk reads a piece.
    Reading { call: Call },
    /// Whoever saves has the pieces before this one.
    Resting { snapshot: SnapshotId, next: u32 },
}

impl Saves {
    /// The save's connection is gone.
    pub(super) fn on_disconnected(&mut self, connection: ConnectionId) {
        self.by_connection.remove(&connection);
    }

    /// Takes out every call that has no answer yet, and forgets every save.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Call> + use<> {
        let saves = std::mem::take(&mut self.by_connection).into_values();
        saves.filter_map(|save| match save.phase {
            Phase::Waiting { call, .. } | Phase::Reading { call } => Some(call),
            // The first one's call is among the questions.
            Phase::Confirming | Phase::Resting { .. } => None,
        })
    }

    /// Whether there is room for another save; the one that has rested for too long makes room.
    fn make_room(&mut self, now: Time) -> bool {
        if self.by_connection.len() >= SAVES_MAX {
            let resting = self.by_connection.iter().filter(|(_, save)| save.resting().is_some());
            let oldest = resting.min_by_key(|(_, save)| save.heard_at);
            let oldest = oldest.filter(|(_, save)| now.since(save.heard_at) > REST_MAX);
            let Some(connection) = oldest.map(|(connection, _)| *connection) else { return false };
            self.by_connection.remove(&connection);
        }
        self.reads.len() < SAVES_MAX
    }

    fn take_read(&mut self, snapshot: SnapshotId, piece: u32) -> Option<PieceRead> {
        let at = self.reads.iter().position(|read| (read.snapshot, read.piece) == (snapshot, piece))?;
        self.reads.remove(at)
    }

    /// Takes out the calls of saves that wait for a snapshot, and forgets them.
    fn take_waiting(&mut self) -> Vec<Call> {
        let mut waiting = Vec::new();
        self.by_connection.retain(|_, save| match save.phase {
            Phase::Waiting { call, .. } => {
                waiting.push(call);
                false
            }
            Phase::Confirming | Phase::Reading { .. } | Phase::Resting { .. } => true,
        });
        waiting
    }

    /// Whether a save goes on with this snapshot, and has not rested for too long.
    fn is_saving(&self, snapshot: SnapshotId, now: Time) -> bool {
        let is_read = self.reads.iter().any(|read| read.snapshot == snapshot);
        is_read
            || self.by_connection.values().any(|save| {
                let is_fresh = now.since(save.heard_at) <= REST_MAX;
                is_fresh && save.resting().is_some_and(|(resting, _)| resting == snapshot)
            })
    }

    /// Takes out the calls of saves whose snapshot is there, and says whether others wait for theirs.
    fn take_ready(&mut self, newest: Option<SnapshotId>) -> (Vec<Call>, bool) {
        let (mut ready, mut is_any_waiting) = (Vec::new(), false);
        for save in self.by_connection.values_mut() {
            if let Phase::Waiting { call, least } = save.phase {
                if newest.is_some_and(|newest| newest.index >= least) {
                    save.phase = Phase::Reading { call };
                    ready.push(call);
                } else {
                    is_any_waiting = true;
                }
            }
        }
        (ready, is_any_waiting)
    }
}

impl Save {
    /// What it goes on with, if it has no question under way.
    fn resting(&self) -> Option<(SnapshotId, u32)> {
        match self.phase {
            Phase::Resting { snapshot, next } => Some((snapshot, next)),
            Phase::Confirming | Phase::Waiting { .. } | Phase::Reading { .. } => None,
        }
    }
}

impl Cell {
    /// Somebody asks for a piece of a snapshot, the first one of a new save if the snapshot is not named.
    pub(super) fn on_save(
        &mut self,
        call: Call,
        snapshot: SnapshotId,
        piece: u32,
        now: Time,
        fx: &mut Effects,
    ) {
        let save = self.saves.by_connection.get(&call.connection).copied();
        if save.is_some_and(|save| save.resting().is_none()) {
            return self.refuse_save(call, "a save is under way on this connection", fx);
        }
        if snapshot == SnapshotId::default() && piece == 0 {
            self.saves.by_connection.remove(&call.connection);
            return self.begin_save(call, now, fx);
        }
        let resting = save.and_then(|save| save.resting()).filter(|(saved, _)| *saved == snapshot);
        let Some((_, next)) = resting else {
            return self.answer(call, &Reply::SnapshotGone, fx);
        };
        if piece != next {
            return self.refuse(call, Status::Invalid, &format!("piece: {next} is next"), fx);
        }
        self.read_piece(call, snapshot, piece, now, fx);
    }

    fn begin_save(&mut self, call: Call, now: Time, fx: &mut Effects) {
        if !self.saves.make_room(now) {
            return self.refuse_save(call, "as many saves are under way as this cell takes", fx);
        }
        let Some(round) = self.admit_question(call, self.questions.reads_len(), fx) else { return };
        self.questions.ask(round, call, Question::Snapshot);
        self.saves.by_connection.insert(call.connection, Save { phase: Phase::Confirming, heard_at: now });
    }

    fn refuse_save(&self, call: Call, detail: &str, fx: &mut Effects) {
        let refusal = Refusal { retry_after_ms: RETRY_AFTER_MS, ..Refusal::new(Status::Overloaded, detail) };
        self.answer(call, &Reply::Refused(refusal), fx);
    }

    /// A round has confirmed that this replica led when the save was asked for.
    pub(super) fn on_save_confirmed(&mut self, call: Call, now: Time, fx: &mut Effects) {
        let least = self.table.applied();
        if let Some(save) = self.saves.by_connection.get_mut(&call.connection) {
            save.phase = Phase::Waiting { call, least };
            self.follow_saves(now, fx);
        }
    }

    /// Looks whether saves have the snapshot that they wait for, and has one taken if not.
    pub(super) fn follow_saves(&mut self, now: Time, fx: &mut Effects) {
        if self.saves.by_connection.is_empty() {
            return;
        }
        let newest = self.raft.newest_snapshot();
        let (ready, is_any_waiting) = self.saves.take_ready(newest);
        for call in ready {
            let snapshot = newest.expect("it is what they waited for");
            self.read_piece(call, snapshot, 0, now, fx);
        }
        if !is_any_waiting {
            return;
        }
        // One that is being taken takes the older one away, whoever waits for it.
        let older = self.raft.older_snapshot().filter(|_| !self.is_taking_snapshot());
        if older.is_some_and(|(older, is_sent)| is_sent || self.saves.is_saving(older, now)) {
            for call in self.saves.take_waiting() {
                self.refuse_save(
                    call,
                    "the next snapshot would take away one that is being saved or sent",
                    fx,
                );
            }
            return;
        }
        self.take_snapshot(now, fx);
    }

    fn read_piece(&mut self, call: Call, snapshot: SnapshotId, piece: u32, now: Time, fx: &mut Effects) {
        let save = Save { phase: Phase::Reading { call }, heard_at: now };
        self.saves.by_connection.insert(call.connection, save);
        self.saves.reads.push_back(PieceRead { call, snapshot, piece });
        fx.push(Effect::ReadSnapshot { snapshot, piece });
    }

    /// The disk had no room for a snapshot: whoever waits for one is told.
    pub(super) fn refuse_saves_for_space(&mut self, fx: &mut Effects) {
        for call in self.saves.take_waiting() {
            let refusal = Refusal {
                retry_after_ms: RETRY_AFTER_MS,
                ..Refusal::new(Status::NoSpace, "the leader's disk has no room for a snapshot")
            };
            self.answer(call, &Reply::Refused(refusal), fx);
        }
    }

    /// A piece of a snapshot came back from the disk.
    pub(super) fn on_snapshot_read(&mut self, read: &SnapshotRead<'_>, now: Time, fx: &mut Effects) {
        let SnapshotRead { snapshot, piece, found } = *read;
        let Some(PieceRead { call, .. }) = self.saves.take_read(snapshot, piece) else {
            return self.raft.on_snapshot_read(read, now, fx);
        };
        if found.is_none() {
            self.raft.forget_snapshot(snapshot);
        }
        let save = self.saves.by_connection.get_mut(&call.connection);
        // Its connection or this replica's office may be gone.
        let Some(save) = save.filter(|save| matches!(save.phase, Phase::Reading { call: of } if of == call))
        else {
            return;
        };
        match found {
            Some((_, false)) => save.phase = Phase::Resting { snapshot, next: piece + 1 },
            Some((_, true)) | None => {
                self.saves.by_connection.remove(&call.connection);
            }
        }
        match found {
            Some((bytes, is_last)) => {
                let piece = SavedPiece { snapshot, piece, is_last, bytes };
                self.answer(call, &Reply::SavedPiece(piece), fx);
            }
            None => self.answer(call, &Reply::SnapshotGone, fx),
        }
    }
}
