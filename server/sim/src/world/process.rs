//! A server process: real cells over one real log, and around them as little as the real shard loop has.
//!
//! Invariant: a turn does what the shard loop of `server` does, in its order: input, what became durable, drains, what
//! the clock says, the end of the turn, then everything goes out. The driver decodes frames and copies bytes and
//! understands none of it. Deliberately absent: sockets (see `socket`), and faults, which come from outside.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lockstep_core::hello::Identity;
use lockstep_core::{
    AppendId, Cell, ConnectionId, DrainId, Effect, Effects, Input, RecordHead, RecordKind, Report, Restore,
    Time,
};
use lockstep_wal::disk::{DiskDone, DiskError, OpId, ShardId};
use lockstep_wal::memory::Completion;
use lockstep_wal::{Failure, Inspection, Log, Lsn, ReadId, Refusal, claim};
use lockstep_wire::frame::Assembler;
use lockstep_wire::limit::REPLY_FRAME_BYTES_MAX;
use lockstep_wire::reply::Reply;
use lockstep_wire::request::Request;
use lockstep_wire::{CellId, Correlation, LogIndex, NodeId, Retry, Term};

use super::defect::Defect;
use super::judge::{Judges, Mirror};
use super::machine::Machine;
use super::network::{Door, Fabric, WireId};
use super::node::TurnStart;
use super::operator::{Changes, REGISTRAR};
use super::plan::Plan;
use super::socket::{Connection, Link};
use super::storage::{Complaint, Landing, Wish, ballot_of, load, reflect};
use super::trace::number_of_shown;
use crate::mark::Mark;
use crate::oracle::majority::Ballot;

/// The connection that an operator asks on; no wire has this number.
const OPERATOR: ConnectionId = ConnectionId(u64::MAX);

/// Something that waits to be handed to the process.
#[derive(Debug)]
pub(super) enum Arrival {
    Accepted { wire: WireId, door: Door },
    Connected { wire: WireId },
    Refused { wire: WireId },
    Closed { wire: WireId },
    Bytes { wire: WireId, bytes: Vec<u8> },
    Disk(Completion),
}

/// What a process needs of the world during a turn.
pub(super) struct Surroundings<'a> {
    pub(super) fabric: &'a mut Fabric,
    pub(super) judges: &'a mut Judges,
    pub(super) machine: &'a mut Machine,
}

/// How a turn ended.
#[derive(Debug)]
pub(super) struct TurnEnd {
    /// When the next one is due on the node's clock.
    pub(super) due: Time,
    /// Another one is wanted at once.
    pub(super) is_unfinished: bool,
    /// The process has ended.
    pub(super) is_over: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Process {
    /// Its place among the nodes.
    pub(super) place: usize,
    pub(super) life: u64,
    pub(super) identity: Identity,
    pub(super) incarnation: lockstep_wire::Incarnation,
    /// The log as the start has found it.
    pub(super) found: Inspection,
    /// The log held a term and a vote of an earlier life.
    pub(super) has_hard_state: bool,
    pub(super) defect: Option<Defect>,
    pub(super) cells: BTreeMap<CellId, Cell>,
    /// What was wrong with snapshots that count.
    pub(super) complaints: Vec<Complaint>,
    pub(super) log: Log,
    pub(super) appended: VecDeque<(Lsn, CellId, AppendId)>,
    /// Entries and marks of snapshots on their way to the disk.
    pub(super) landing: VecDeque<Landing>,
    /// Terms and votes likewise.
    pub(super) voting: VecDeque<(Lsn, CellId, Ballot)>,
    /// Manifests likewise.
    pub(super) binding: VecDeque<(Lsn, CellId)>,
    /// Terms and votes as the start has found them.
    pub(super) ballots: BTreeMap<CellId, Ballot>,
    pub(super) reads: BTreeMap<ReadId, Wish>,
    pub(super) refused_reads: VecDeque<Wish>,
    pub(super) mirrors: BTreeMap<CellId, Mirror>,
    /// The members of each cell, as this node has stored them at its birth.
    pub(super) manifests: BTreeMap<CellId, Vec<u8>>,
    /// Cells that it must promise nothing to.
    pub(super) lost_cells: BTreeSet<CellId>,
    /// When to look again whether a disk that was full has room.
    pub(super) space_due: Option<Time>,
    /// What the cells were last told of it.
    pub(super) is_short_of_space: bool,
    /// What the disk is at, and whether that only reads.
    pub(super) under_way: BTreeMap<OpId, bool>,
    /// The disk has failed to do something.
    has_met_error: bool,
    /// The disk has failed to keep something.
    has_lost_write: bool,
    /// What was durable when it was looked last.
    pub(super) durable_then: Lsn,
    /// The newest term in which it has led each cell.
    led: BTreeMap<CellId, Term>,
    /// What has come, and what the clock showed then.
    inbox: VecDeque<(Arrival, Time)>,
    /// Arrivals handed out so far; those in the inbox are numbered from here on.
    handed_out: u64,
    /// The most arrivals that one turn hands out.
    arrivals_max: u64,
    /// How many had arrived when a cell last asked for a drain.
    noticed: BTreeMap<CellId, u64>,
    pub(super) connections: BTreeMap<WireId, Connection>,
    pub(super) links: BTreeMap<NodeId, Link>,
    /// The cells talk to other nodes than before, or one has hung up.
    pub(super) are_links_stale: bool,
    /// What an operator has asked for about the members and has no answer to.
    pub(super) changes: Changes,
    /// It was not there when the cells were born.
    pub(super) is_joining: bool,
    /// Cells that it was removed from.
    pub(super) removed: BTreeSet<CellId>,
    pub(super) drains: Vec<(CellId, DrainId)>,
    /// Drains, and how many arrivals have to be handed out before each is answered.
    pub(super) marked_drains: Vec<(CellId, DrainId, u64)>,
    fx: Effects,
    pub(super) now: Time,
    stopped: usize,
    is_stopping: bool,
    /// Cells that hand over because an operator has asked for it.
    moving: BTreeSet<CellId>,
    /// It led a cell when its stop began.
    led_when_stopped: bool,
    pub(super) is_over: bool,
}

impl Process {
    /// Starts over what the disk holds.
    ///
    /// # Errors
    /// Why the disk or its log cannot be used.
    pub(super) fn start(
        plan: &Plan,
        place: usize,
        life: u64,
        now: Time,
        machine: &mut Machine,
        judges: &Judges,
    ) -> Result<Process, Refusal> {
        let superblock = claim(&mut machine.disk)?;
        let mut configs = plan.cell_configs(place, life, superblock.incarnation);
        configs.iter_mut().for_each(|config| judges.direct(plan, place, config));
        let mut restores: BTreeMap<CellId, Restore> =
            configs.iter().map(|config| (config.cell, Restore::new())).collect();
        let mut mirrors: BTreeMap<CellId, Mirror> =
            configs.iter().map(|config| (config.cell, Mirror::new())).collect();
        let mut manifests = BTreeMap::new();
        let mut has_hard_state = false;
        let mut ballots = BTreeMap::new();
        let salt = machine.identity.next_u64();
        let opened = Log::open(&mut machine.disk, &superblock, ShardId(0), salt, &mut |_, record| {
            let head = RecordHead { kind: record.kind, term: record.term, index: record.index };
            let mirror = mirrors.entry(record.cell).or_default();
            reflect(mirror, (record.cell, head, record.payload), judges);
            if head.kind == RecordKind::Manifest {
                manifests.insert(record.cell, record.payload.to_vec());
            }
            has_hard_state |= head.kind == RecordKind::HardState;
            if head.kind == RecordKind::HardState {
                ballots.insert(record.cell, ballot_of(head, record.payload));
            }
            let is_forgotten =
                plan.defect == Some(Defect::HardStateForgotten) && head.kind == RecordKind::HardState;
            if let Some(restore) = restores.get_mut(&record.cell).filter(|_| !is_forgotten) {
                restore.on_record(head, record.payload);
            }
        });
        if plan.defect == Some(Defect::HardStateForgotten) {
            forget_hard_state(&mut restores, &mirrors);
        }
        let (log, found) = opened?;
        let mut complaints = Vec::new();
        let cells = configs
            .into_iter()
            .map(|config| {
                let cell = config.cell;
                let mut restore = restores.remove(&cell).unwrap_or_default();
                complaints.extend(load(&mut restore, &config, &log, &mut machine.disk));
                (cell, Cell::new(config, restore, now))
            })
            .collect();
        Ok(Process {
            place,
            life,
            identity: Identity {
                cluster: plan.cluster(),
                node: Plan::node_id(place),
                cells: plan.cells,
                shards: 1,
            },
            incarnation: superblock.incarnation,
            found,
            has_hard_state,
            defect: plan.defect,
            cells,
            complaints,
            log,
            appended: VecDeque::new(),
            landing: VecDeque::new(),
            voting: VecDeque::new(),
            binding: VecDeque::new(),
            ballots,
            reads: BTreeMap::new(),
            refused_reads: VecDeque::new(),
            mirrors,
            manifests,
            lost_cells: BTreeSet::new(),
            space_due: None,
            is_short_of_space: false,
            under_way: BTreeMap::new(),
            has_met_error: false,
            has_lost_write: false,
            durable_then: Lsn(0),
            led: BTreeMap::new(),
            inbox: VecDeque::new(),
            handed_out: 0,
            arrivals_max: plan.arrivals_max,
            noticed: BTreeMap::new(),
            connections: BTreeMap::new(),
            links: BTreeMap::new(),
            are_links_stale: true,
            changes: Changes::default(),
            is_joining: place >= plan.nodes,
            removed: BTreeSet::new(),
            drains: Vec::new(),
            marked_drains: Vec::new(),
            fx: Effects::new(),
            now,
            stopped: 0,
            is_stopping: false,
            moving: BTreeSet::new(),
            led_when_stopped: false,
            is_over: false,
        })
    }

    /// Something has come; the next turns hand it out.
    pub(super) fn take_in(&mut self, arrival: Arrival, clock: Time) {
        self.inbox.push_back((arrival, clock));
    }

    /// What has come so far, handed out or not.
    pub(super) fn arrived(&self) -> u64 {
        self.handed_out + self.inbox.len() as u64
    }

    /// What had arrived when the cell last asked for a drain and has not been handed out.
    pub(super) fn unread(&self, cell: CellId) -> impl Iterator<Item = &Arrival> {
        let noticed = self.noticed.get(&cell).copied().unwrap_or_default();
        let count = usize::try_from(noticed.saturating_sub(self.handed_out)).expect("an inbox is short");
        self.inbox.iter().take(count).map(|(arrival, _)| arrival)
    }

    /// What has come and was not handed out, each with what the clock showed then.
    pub(super) fn inbox(&self) -> impl Iterator<Item = &(Arrival, Time)> {
        self.inbox.iter()
    }

    /// Whether an orderly stop has begun.
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// One turn of the loop: it hands out what had come when its clock was read.
    pub(super) fn turn(&mut self, start: TurnStart, around: &mut Surroundings<'_>) -> TurnEnd {
        self.now = start.clock;
        let end = match self.defect {
            Some(Defect::ClockBeforeArrivals) => self.arrived(),
            _ => start.arrived,
        };
        let end = end.min(self.handed_out.saturating_add(self.arrivals_max));
        while self.handed_out < end
            && let Some((arrival, _)) = self.inbox.pop_front()
        {
            self.handed_out += 1;
            self.on_arrival(arrival, around);
        }
        self.deliver_durable(around);
        self.deliver_drained(around);
        self.keep_time(around);
        self.step_all(around, |_| Input::EndOfTurn);
        self.renew_links(around);
        self.flush(around);
        self.submit(around);
        if self.has_lost_write && !self.is_over {
            around.judges.on_failure_ignored(self.identity.node);
        }
        if self.is_stopping && self.stopped >= self.cells.len() {
            self.is_over = true;
            let has_handed_over =
                |cell: &Cell| cell.raft().leader().is_some_and(|leader| leader != self.identity.node);
            if self.led_when_stopped && self.cells.values().all(has_handed_over) {
                around.judges.set(Mark::OfficeHandedOver);
            }
        }
        let cells = self.cells.values().map(Cell::deadline).min().unwrap_or(Time::NEVER);
        let links = self.links.values().filter(|link| !link.is_up).map(|link| link.due).min();
        TurnEnd {
            due: cells.min(links.unwrap_or(Time::NEVER)).min(self.space_due.unwrap_or(Time::NEVER)),
            is_unfinished: !self.marked_drains.is_empty() || !self.inbox.is_empty(),
            is_over: self.is_over,
        }
    }

    /// Whether its disk has failed to do anything that it was asked for.
    pub(super) fn has_met_error(&self) -> bool {
        self.has_met_error
    }

    /// Why its log has stopped, if it has.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.log.failure()
    }

    fn on_arrival(&mut self, arrival: Arrival, around: &mut Surroundings<'_>) {
        match arrival {
            Arrival::Disk(completion) => {
                let DiskDone { op, result } = completion.done();
                let only_reads = self.under_way.remove(&op).unwrap_or_default();
                if matches!(result, Err(DiskError::Io(_))) {
                    self.has_met_error = true;
                    self.has_lost_write |= !only_reads;
                }
                self.log.on_disk_done(DiskDone { op, result });
            }
            Arrival::Accepted { wire, door } => self.on_accepted(wire, door),
            Arrival::Connected { wire } => self.on_connected(wire),
            Arrival::Refused { wire } => self.on_dial_failed(wire, true, around),
            Arrival::Closed { wire } => self.on_wire_closed(wire, around),
            Arrival::Bytes { wire, bytes } => self.on_bytes(wire, &bytes, around),
        }
    }

    /// Steps one cell and carries its effects out.
    pub(super) fn step(&mut self, id: CellId, input: Input<'_>, around: &mut Surroundings<'_>) {
        let Some(cell) = self.cells.get_mut(&id).filter(|_| !self.is_over) else { return };
        let before = cell.applied();
        let mut fx = std::mem::take(&mut self.fx);
        fx.clear();
        cell.step(self.now, input, &mut fx);
        for effect in fx.list() {
            self.carry_out(id, effect, fx.bytes(), around);
        }
        self.fx = fx;
        if let (Some(cell), Some(mirror)) = (self.cells.get(&id), self.mirrors.get(&id)) {
            let node = self.identity.node;
            around.judges.on_stepped(id, node, before, cell, mirror);
            let term = cell.raft().term();
            if cell.raft().is_leader() && self.led.insert(id, term) != Some(term) {
                around.judges.on_leading(id, (node, self.life), cell, mirror);
            }
        }
        if self.defect == Some(Defect::DrainWithoutInput) {
            for (cell, drain) in std::mem::take(&mut self.drains) {
                self.step(cell, Input::Drained(drain), around);
            }
        }
    }

    pub(super) fn step_all<'a>(
        &mut self,
        around: &mut Surroundings<'_>,
        input: impl Fn(CellId) -> Input<'a>,
    ) {
        for cell in (0..self.identity.cells).map(CellId) {
            self.step(cell, input(cell), around);
        }
    }

    fn carry_out(&mut self, cell: CellId, effect: &Effect, bytes: &[u8], around: &mut Surroundings<'_>) {
        match effect {
            Effect::Append { append, head, payload } => {
                self.append(cell, *append, *head, &bytes[payload.clone()], around);
            }
            Effect::Send { to, lane, frame } => {
                let wire = self.links.get(to).and_then(|link| link.wire(*lane).up());
                self.write(wire, &bytes[frame.clone()]);
            }
            Effect::Beat { to, beat } => {
                if let Some(link) = self.links.get_mut(to)
                    && link.is_up
                {
                    link.beats.push(*beat);
                }
            }
            Effect::Reply { connection: OPERATOR, frame } => {
                self.on_operator_told(cell, &bytes[frame.clone()], around);
            }
            Effect::Reply { connection: REGISTRAR, frame } => {
                self.on_change_told(&bytes[frame.clone()], around);
            }
            Effect::Reply { connection: ConnectionId(wire), frame } => {
                around.judges.on_said(cell, WireId(*wire), &bytes[frame.clone()]);
                self.note_promises(cell, *wire, &bytes[frame.clone()], around);
                self.write(Some(WireId(*wire)), &bytes[frame.clone()]);
            }
            Effect::ReadLog { first, last, bytes_max } => {
                around.judges.set(Mark::EntriesReadBack);
                let (first, last, bytes_max) = (*first, *last, *bytes_max);
                self.read(Wish::Entries { cell, first, last, bytes_max });
            }
            Effect::StageSnapshot { snapshot, piece, is_last, bytes: range } => {
                if *piece == 0 && self.cells[&cell].applied() > snapshot.index {
                    around.judges.set(Mark::SnapshotOvertaken);
                }
                self.stage(cell, *snapshot, *piece, *is_last, &bytes[range.clone()]);
            }
            Effect::DropSnapshot => self.log.abandon_snapshot(cell),
            Effect::ReadSnapshot { snapshot, piece } => {
                self.read(Wish::Piece { cell, snapshot: *snapshot, piece: *piece });
            }
            Effect::Drain(drain) => {
                self.noticed.insert(cell, self.arrived());
                self.drains.push((cell, *drain));
            }
            Effect::PeersChanged => self.are_links_stale = true,
            Effect::Removed => self.on_removed(cell, around),
            Effect::Report(report) => self.on_report(cell, report, around),
            Effect::Stopped => self.stopped += 1,
            Effect::Halt(halt) => {
                let (node, words) = (self.identity.node, [23, u64::from(self.identity.node.0)]);
                let now = around.fabric.now();
                around.fabric.trace.note(now, &words, || format!("node {node} halts: {}", halt.reason));
                if !around.machine.explains_halt(&halt.reason) {
                    around.judges.on_halted(self.identity.node, &halt.reason);
                }
                self.is_over = true;
            }
        }
    }

    fn on_report(&mut self, cell: CellId, report: &Report, around: &mut Surroundings<'_>) {
        let node = self.identity.node;
        let now = around.fabric.now();
        if matches!(report, Report::Deposed { .. }) && !self.is_stopping {
            around.judges.set(Mark::LeaderDeposed);
        }
        let words = [20, u64::from(node.0), u64::from(cell.0), number_of_shown(report)];
        match report {
            Report::Born => {
                let manifest = self.manifests.get(&cell).map(Vec::as_slice).unwrap_or_default();
                around.judges.on_born(cell, node, manifest);
            }
            Report::Refused { reason, .. } if reason.contains("formatted again") => {
                around.judges.set(Mark::MemberReplaced);
            }
            Report::SnapshotTaken { .. } => around.judges.set(Mark::SnapshotTaken),
            Report::SnapshotInstalled { .. } => around.judges.set(Mark::SnapshotInstalled),
            Report::GivingWay { .. } => around.judges.set(Mark::GaveWay),
            Report::WaitsToBeAdded { .. }
            | Report::Leading { .. }
            | Report::Quiet { .. }
            | Report::QuietEnded
            | Report::Deposed { .. }
            | Report::Following { .. }
            | Report::Refused { .. } => {}
        }
        around.fabric.trace.note(now, &words, || format!("node {node} cell {cell}: {report:?}"));
    }

    /// Answers the drains whose arrivals have all been handed out.
    fn deliver_drained(&mut self, around: &mut Surroundings<'_>) {
        for (cell, drain, mark) in std::mem::take(&mut self.marked_drains) {
            if self.handed_out >= mark {
                self.step(cell, Input::Drained(drain), around);
            } else {
                self.marked_drains.push((cell, drain, mark));
            }
        }
    }

    fn keep_time(&mut self, around: &mut Surroundings<'_>) {
        let due: Vec<CellId> = self
            .cells
            .iter()
            .filter(|(_, cell)| cell.deadline() <= self.now)
            .map(|(cell, _)| *cell)
            .collect();
        for cell in due {
            self.step(cell, Input::Tick, around);
        }
        self.renew_links(around);
        self.dial_due(around);
    }

    /// A snapshot is due of every cell.
    pub(super) fn take_snapshots(&mut self, now: Time, around: &mut Surroundings<'_>) {
        self.now = now;
        self.step_all(around, |_| Input::SnapshotDue);
    }

    /// The orderly stop begins.
    pub(super) fn stop(&mut self, now: Time, around: &mut Surroundings<'_>) {
        self.now = now;
        self.is_stopping = true;
        self.led_when_stopped = self.cells.values().any(|cell| cell.raft().is_leader());
        self.step_all(around, |_| Input::Stop);
    }

    /// An operator asks for the leadership of every cell to move. Says whether any of it begins to.
    pub(super) fn transfer(&mut self, to: Option<NodeId>, now: Time, around: &mut Surroundings<'_>) -> bool {
        self.now = now;
        let request = Request::TransferLeader { to: to.unwrap_or_default() };
        let (connection, correlation) = (OPERATOR, Correlation(1));
        let was_moving = std::mem::take(&mut self.moving);
        self.step_all(around, |_| Input::Request { connection, correlation, request });
        let moving = self.cells.iter().filter(|(_, cell)| cell.raft().is_transferring());
        self.moving = moving.map(|(cell, _)| *cell).collect();
        self.moving != was_moving
    }

    /// What becomes of a transfer that had begun.
    fn on_operator_told(&mut self, cell: CellId, bytes: &[u8], around: &mut Surroundings<'_>) {
        if !self.moving.remove(&cell) {
            return;
        }
        let mut rest = bytes;
        let mut assembler = Assembler::default();
        let frame = assembler.next(&mut rest, REPLY_FRAME_BYTES_MAX);
        let frame = frame.expect("a reply is a frame").expect("a reply is whole");
        match Reply::decode(&frame).expect("a reply can be read") {
            Reply::Transferred { .. } => around.judges.set(Mark::TransferSucceeded),
            reply => {
                let leads_on = self.cells.get(&cell).is_some_and(|cell| cell.raft().is_leader());
                if reply.status().retry() != Retry::Done && leads_on {
                    around.judges.set(Mark::TransferAborted);
                }
            }
        }
    }
}

/// What is left of term and vote when only the entries are read back.
fn forget_hard_state(restores: &mut BTreeMap<CellId, Restore>, mirrors: &BTreeMap<CellId, Mirror>) {
    for (cell, restore) in restores {
        if let Some((term, _)) = mirrors.get(cell).and_then(|mirror| mirror.last()) {
            let head = RecordHead { kind: RecordKind::HardState, term: *term, index: LogIndex(0) };
            restore.on_record(head, &[0, 0]);
        }
    }
}
