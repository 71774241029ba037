//! One cell's replica: Raft and the lock table, and between them what a leader keeps in memory.
//!
//! Invariants: the table changes by committed entries only; whatever is said about a session or a lock is
//! said by a leader under a read round or at the commit of an entry of its own term; losing office answers
//! everything outstanding. Deliberately absent: sockets, files and clocks; whoever drives the cell has them.

mod apply;
mod backup;
mod calls;
mod digest;
mod handover;
mod last_state;
mod lease;
mod loading;
mod members;
mod question;
mod remains;
mod request;
mod snapshot;
mod tenure;
mod view;
mod waits;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use lockstep_wire::entry::Command;
use lockstep_wire::peer::PeerMessage;
use lockstep_wire::reply::KeptAlive;
use lockstep_wire::{BirthId, CellId, Epoch, Incarnation, LogIndex, NodeId, SessionId, SnapshotId};

use crate::effect::{DrainId, Effect, Effects, Halt, RecordHead};
use crate::input::Input;
use crate::raft::{Raft, RaftConfig, Restored};
use crate::table::{Limits, Outcomes, SessionSlot, Table};
use crate::time::{Span, Time};

use backup::Saves;
use calls::{Attachments, Calls};
use digest::DigestBook;
use handover::Handover;
use lease::Leases;
use question::Questions;
use remains::Remains;
use snapshot::Snapshots;
use tenure::Tenure;
use waits::WaitTimers;

pub use loading::LoadedSnapshot;
pub use snapshot::SNAPSHOT_SLICE_BYTES;

/// Bytes of entries that a cell keeps in memory for its followers, unless it is told otherwise.
pub const CACHE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// What the cells of a shard apply in one turn at most, in entries, the sessions that they name and what comes of them,
/// unless they are told otherwise: some ten milliseconds, so that beats go out while much is to be applied.
pub const APPLY_PER_TURN: usize = 16_384;
/// Bytes of entries on their way to one follower.
const INFLIGHT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A member of the cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its node.
    pub node: NodeId,
    /// Where it serves clients, `host:port`.
    pub client_address: String,
    /// Where it serves members, likewise.
    pub peer_address: String,
}

/// What a replica is told at its start.
#[derive(Clone, Debug)]
pub struct CellConfig {
    /// The cell.
    pub cell: CellId,
    /// How many cells the cluster has.
    pub cells: u16,
    /// How many shards this node's data directory was formatted with; for whoever asks.
    pub shards: u16,
    /// This node.
    pub node: NodeId,
    /// The nodes by id: those that the cell is born with, this one included; of a node that joins, those that it looks for.
    pub members: Vec<Member>,
    /// This node was not there at the birth and waits to be added.
    pub is_joining: bool,
    /// The life of this node's data directory.
    pub incarnation: Incarnation,
    /// Random; names the birth of the cell if it is this node that gives it.
    pub birth_id: BirthId,
    /// What the cell's numbers start above.
    pub epoch: Epoch,
    /// How much of everything it takes.
    pub limits: Limits,
    /// Between two heartbeats of a leader.
    pub heartbeat: Span,
    /// The shortest silence after which a member campaigns.
    pub election_min: Span,
    /// The longest one.
    pub election_max: Span,
    /// Between two rounds that carry keep-alives only.
    pub round_pace: Span,
    /// How long the member that should lead must have been well before it is given the office; 0 for never.
    pub preference: Span,
    /// Bytes of entries kept in memory for followers, beyond those not applied yet; what is older is read from disk.
    pub cache_bytes_max: usize,
    /// What is applied in one turn at most, counted as for [`APPLY_PER_TURN`]; what is left is for the next turn.
    pub apply_per_turn: usize,
    /// What is made of a snapshot in one go, in bytes; 1 at least.
    pub snapshot_slice_bytes: usize,
    /// What the jitter of elections is drawn from.
    pub seed: u64,
    /// Which cell serves which namespace; an empty one stands for all the others.
    pub routes: Vec<(String, CellId)>,
}

/// One cell's replica.
#[derive(Debug)]
pub struct Cell {
    config: CellConfig,
    raft: Raft,
    table: Table,
    tenure: Tenure,
    leases: Leases,
    waits: WaitTimers,
    calls: Calls,
    attachments: Attachments,
    questions: Questions,
    digests: DigestBook,
    handover: Option<Handover>,
    outcomes: Outcomes,
    /// What may still be applied in this turn.
    apply_left: usize,
    /// The last entry that the log had at the start.
    replay_through: LogIndex,
    /// What the entries through this one need has been asked for.
    looked_ahead_through: LogIndex,
    /// The sessions that the entry that is being applied ends, in its order.
    ending: VecDeque<(SessionId, SessionSlot)>,
    snapshots: Snapshots,
    saves: Saves,
    remains: Remains,
    /// Room for the rows of one acknowledgement.
    kept_alive: Vec<KeptAlive>,
    drains: u64,
    /// How many requests have come.
    arrivals: u64,
    is_stopping: bool,
    is_halted: bool,
}

/// The records of one cell as they come out of its shard's log, in order; then the state of a snapshot.
#[derive(Debug, Default)]
pub struct Restore {
    restored: Restored,
    table: Option<Table>,
}

impl Restore {
    /// Nothing yet.
    pub fn new() -> Restore {
        Restore::default()
    }

    /// Takes the next record.
    ///
    /// # Panics
    /// When a payload is not what its kind says. The log has verified its bytes, so that is a defect, and
    /// going on would be a lie.
    pub fn on_record(&mut self, head: RecordHead, payload: &[u8]) {
        self.restored.on_record(head, payload);
    }

    /// Loads the first snapshot that is whole, after the last record; `snapshots` are those that count, the newest first.
    /// `read` reads a snapshot and hands out its bytes in order, or says why it cannot. Returns what is wrong with each
    /// one that is not whole: the replica goes on from an older one, or without any it asks its leader.
    pub fn load(
        &mut self,
        limits: Limits,
        snapshots: impl IntoIterator<Item = SnapshotId>,
        mut read: impl FnMut(SnapshotId, &mut dyn FnMut(&[u8])) -> Result<(), String>,
    ) -> Vec<String> {
        let mut complaints = Vec::new();
        for snapshot in snapshots {
            match LoadedSnapshot::load(limits, |visit| read(snapshot, visit).map(|()| snapshot)) {
                Ok(loaded) => {
                    self.adopt(loaded);
                    break;
                }
                Err(reason) => complaints.push(format!("snapshot {snapshot}: {reason}")),
            }
        }
        complaints
    }

    fn adopt(&mut self, LoadedSnapshot { snapshot, table }: LoadedSnapshot) {
        self.restored.on_loaded(snapshot, table.epoch(), table.members().cloned());
        self.table = Some(table);
    }
}

impl Cell {
    /// A replica as its log left it.
    ///
    /// # Panics
    /// When the config contradicts itself; whoever read it has checked.
    pub fn new(config: CellConfig, restore: Restore, now: Time) -> Cell {
        let mut blank = Vec::new();
        Command::Blank.encode(&mut blank);
        let raft = Raft::new(
            RaftConfig {
                cell: config.cell,
                node: config.node,
                members: config.members.iter().map(|member| member.node).collect(),
                is_joining: config.is_joining,
                incarnation: config.incarnation,
                birth_id: config.birth_id,
                heartbeat: config.heartbeat,
                election_min: config.election_min,
                election_max: config.election_max,
                seed: config.seed,
                blank,
                cache_bytes_max: config.cache_bytes_max,
                inflight_bytes_max: INFLIGHT_BYTES_MAX,
                round_pace: config.round_pace,
                preference: config.preference,
            },
            restore.restored,
            now,
        );
        let replay_through = raft.last_index();
        let table = restore.table.unwrap_or_else(|| Table::new(config.epoch, config.limits));
        Cell {
            apply_left: config.apply_per_turn,
            config,
            raft,
            table,
            tenure: Tenure::default(),
            leases: Leases::default(),
            waits: WaitTimers::default(),
            calls: Calls::default(),
            attachments: Attachments::default(),
            questions: Questions::default(),
            digests: DigestBook::default(),
            handover: None,
            outcomes: Outcomes::new(),
            replay_through,
            looked_ahead_through: LogIndex(0),
            ending: VecDeque::new(),
            snapshots: Snapshots::default(),
            saves: Saves::default(),
            remains: Remains::default(),
            kept_alive: Vec::new(),
            drains: 0,
            arrivals: 0,
            is_stopping: false,
            is_halted: false,
        }
    }

    /// Takes what happened and says what to do. `now` is not before the input's arrival, and never moves back.
    /// Whatever comes after a halt is ignored.
    pub fn step(&mut self, now: Time, input: Input<'_>, fx: &mut Effects) {
        if self.is_halted {
            return;
        }
        self.leases.on_step(now);
        let is_end_of_turn = matches!(input, Input::EndOfTurn);
        let before = fx.list().len();
        match input {
            Input::Tick => self.on_tick(now, fx),
            Input::EndOfTurn => {
                self.keep_office(now, fx);
                self.raft.on_end_of_turn(now, fx);
            }
            Input::Drained(drain) => self.on_drained(drain, now, fx),
            Input::Durable(append) => self.raft.on_durable(append, now, fx),
            Input::LogRead(read) => self.raft.on_log_read(&read, now, fx),
            Input::SnapshotDue => self.take_snapshot(now, fx),
            Input::RoomUsed { millionths } => self.snapshots.on_room_used(millionths),
            Input::SnapshotStaged { snapshot, piece } => self.on_snapshot_staged(snapshot, piece, fx),
            Input::SnapshotStored { snapshot } => self.on_snapshot_stored(snapshot, now, fx),
            Input::SnapshotDropped { snapshot } => self.on_snapshot_dropped(snapshot, now, fx),
            Input::SnapshotRead(read) => self.on_snapshot_read(&read, now, fx),
            Input::LinkUp { peer } => self.raft.on_link_up(peer, now, fx),
            Input::LinkDown { peer, is_refused } => self.raft.on_link_down(peer, is_refused, now),
            Input::Peer { from, message } => self.on_peer(from, &message, now, fx),
            Input::Beat { from, beat } => self.raft.on_beat(from, beat, now, fx),
            Input::Request { connection, correlation, request } => {
                self.on_request(connection, correlation, &request, now, fx);
            }
            Input::Malformed { connection, head, error } => self.on_malformed(connection, head, error, fx),
            Input::Disconnected { connection } => {
                self.attachments.on_disconnected(connection);
                self.saves.on_disconnected(connection);
            }
            Input::Space { is_short } => self.raft.on_space(is_short),
            Input::Stop => self.on_stop(now, fx),
        }
        self.is_halted |= fx.list()[before..].iter().any(|effect| matches!(effect, Effect::Halt(_)));
        self.settle(now, fx);
        if is_end_of_turn {
            self.apply_left = self.config.apply_per_turn;
        }
        self.follow_handover(now, fx);
    }

    /// When the cell wants a tick at the latest; one that has passed while there is more to do than a turn may.
    pub fn deadline(&self) -> Time {
        if self.is_halted {
            return Time::NEVER;
        }
        if self.raft.has_more_to_apply() {
            return Time(0);
        }
        let core = self.raft.deadline().min(self.office_deadline()).min(self.handover_deadline());
        core.min(self.slice_deadline()).min(self.remains_deadline())
    }

    /// Whether entries of the log as the start found it are about to be applied.
    fn is_replaying(&self) -> bool {
        self.table.applied() < self.replay_through && self.raft.has_more_to_apply()
    }

    /// The leader that this replica knows, 0 for none, and where it serves clients.
    pub fn leader(&self) -> (NodeId, &str) {
        let leader = self.raft.leader().unwrap_or_default();
        (leader, self.client_address(leader))
    }

    /// The replicated state, for whoever compares or measures it.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The Raft node, for whoever watches it.
    pub fn raft(&self) -> &Raft {
        &self.raft
    }

    /// How far the table has applied the log.
    pub fn applied(&self) -> LogIndex {
        self.table.applied()
    }

    fn on_tick(&mut self, now: Time, fx: &mut Effects) {
        self.raft.settle_down(self.table.is_quiet());
        self.raft.on_tick(now, fx);
        self.keep_office(now, fx);
        self.make_slice(now, fx);
        self.free_remains(now);
    }

    fn on_peer(&mut self, from: NodeId, message: &PeerMessage<'_>, now: Time, fx: &mut Effects) {
        match message {
            PeerMessage::Digest { index, digest } => {
                if self.raft.accepts(from) && self.raft.is_leader() {
                    self.on_digest(from, *index, *digest, fx);
                }
            }
            PeerMessage::DigestDisagrees { index, digest } => {
                if self.raft.accepts(from) && self.digests.own(*index).is_some_and(|own| own != *digest) {
                    self.halt(fx, disagreement(self.config.cell, *index));
                }
            }
            PeerMessage::CellHello(_)
            | PeerMessage::Refused { .. }
            | PeerMessage::Manifest(_)
            | PeerMessage::ManifestStored { .. }
            | PeerMessage::Born { .. }
            | PeerMessage::Vote { .. }
            | PeerMessage::VoteReply { .. }
            | PeerMessage::TakeOver { .. }
            | PeerMessage::Append(_)
            | PeerMessage::AppendReply { .. }
            | PeerMessage::SnapshotReply(_) => self.raft.on_message(from, message, now, fx),
            PeerMessage::SnapshotPiece(piece) => self.on_snapshot_piece(from, piece, now, fx),
        }
    }

    fn drain(&mut self, fx: &mut Effects) -> DrainId {
        self.drains += 1;
        fx.push(Effect::Drain(DrainId(self.drains)));
        DrainId(self.drains)
    }

    fn halt(&mut self, fx: &mut Effects, reason: String) {
        self.is_halted = true;
        fx.push(Effect::Halt(Halt { reason }));
    }
}

fn disagreement(cell: CellId, index: LogIndex) -> String {
    format!(
        "the state of cell {cell} after entry {index} differs from that of a majority of its members; this \
         replica must not go on: keep its data directory for an inquiry, and do not start it again"
    )
}
