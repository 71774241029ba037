//! A server process: real cells over one real log, and around them as little as the real shard loop has.
//!
//! Invariant: a turn does what the shard loop of `server` does, in its order: input, what became durable, drains, what
//! the clock says, the end of the turn, then everything goes out. The driver decodes frames and copies bytes and
//! understands none of it. Deliberately absent: sockets (see `socket`), and faults, which come from outside.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lockstep_core::hello::Identity;
use lockstep_core::{
    AppendId, Cell, ConnectionId, DrainId, Effect, Effects, Input, RecordHead, RecordKind, Report, Restore,
    Span, Time,
};
use lockstep_wal::disk::{Action, DiskDone, DiskError, DiskOp, Lane, OpId, ShardId};
use lockstep_wal::memory::{Completion, MemoryDisk};
use lockstep_wal::{Failure, Inspection, Log, Lsn, ReadId, ReadOutcome, Refusal, claim};
use lockstep_wire::{CellId, LogIndex, NodeId, Term};

use super::defect::Defect;
use super::judge::{Judges, Mirror};
use super::machine::Machine;
use super::network::{Door, Fabric, WireId};
use super::node::TurnStart;
use super::plan::Plan;
use super::schedule::Event;
use super::socket::{Connection, Link};
use super::trace::number_of_shown;
use crate::mark::Mark;
use crate::oracle::majority::Ballot;

/// How often a disk that was full is tried again.
const SPACE_PAUSE: Span = Span::from_ms(1_000);

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
    defect: Option<Defect>,
    pub(super) cells: BTreeMap<CellId, Cell>,
    log: Log,
    appended: VecDeque<(Lsn, CellId, AppendId)>,
    /// Entries on their way to the disk.
    landing: VecDeque<(Lsn, CellId, LogIndex, Term)>,
    /// Terms and votes likewise.
    voting: VecDeque<(Lsn, CellId, Ballot)>,
    /// Terms and votes as the start has found them.
    pub(super) ballots: BTreeMap<CellId, Ballot>,
    reads: BTreeMap<ReadId, LogIndex>,
    refused_reads: VecDeque<(CellId, LogIndex, LogIndex, usize)>,
    pub(super) mirrors: BTreeMap<CellId, Mirror>,
    /// The members of each cell, as this node has stored them at its birth.
    pub(super) manifests: BTreeMap<CellId, Vec<u8>>,
    /// Cells that it must promise nothing to.
    pub(super) lost_cells: BTreeSet<CellId>,
    /// When to look again whether a disk that was full has room.
    space_due: Option<Time>,
    /// What the cells were last told of it.
    is_short_of_space: bool,
    /// What the disk is at, and whether that only reads.
    under_way: BTreeMap<OpId, bool>,
    /// The disk has failed to do something.
    has_met_error: bool,
    /// The disk has failed to keep something.
    has_lost_write: bool,
    /// What was durable when it was looked last.
    durable_then: Lsn,
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
    drains: Vec<(CellId, DrainId)>,
    /// Drains, and how many arrivals have to be handed out before each is answered.
    marked_drains: Vec<(CellId, DrainId, u64)>,
    fx: Effects,
    pub(super) now: Time,
    stopped: usize,
    is_stopping: bool,
    /// It led a cell when its stop began.
    led_when_stopped: bool,
    is_over: bool,
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
    ) -> Result<Process, Refusal> {
        let superblock = claim(&mut machine.disk)?;
        let configs = plan.cell_configs(place, life, superblock.incarnation);
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
            reflect(mirrors.entry(record.cell).or_default(), head, record.payload);
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
        let cells = configs
            .into_iter()
            .map(|config| {
                let restore = restores.remove(&config.cell).unwrap_or_default();
                (config.cell, Cell::new(config, restore, now))
            })
            .collect();
        let peers = (0..plan.nodes).filter(|other| *other != place).map(Plan::node_id);
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
            log,
            appended: VecDeque::new(),
            landing: VecDeque::new(),
            voting: VecDeque::new(),
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
            links: peers.map(|node| (node, Link::new(now))).collect(),
            drains: Vec::new(),
            marked_drains: Vec::new(),
            fx: Effects::new(),
            now,
            stopped: 0,
            is_stopping: false,
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
                around.judges.on_leading(id, (node, self.life), term, mirror);
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
            Effect::Reply { connection: ConnectionId(wire), frame } => {
                around.judges.on_said(cell, WireId(*wire), &bytes[frame.clone()]);
                self.note_promises(cell, *wire, &bytes[frame.clone()], around);
                self.write(Some(WireId(*wire)), &bytes[frame.clone()]);
            }
            Effect::ReadLog { first, last, bytes_max } => {
                around.judges.set(Mark::EntriesReadBack);
                self.read(cell, *first, *last, *bytes_max);
            }
            Effect::Drain(drain) => {
                self.noticed.insert(cell, self.arrived());
                self.drains.push((cell, *drain));
            }
            Effect::Report(report) => self.on_report(cell, report, around),
            Effect::Stopped => self.stopped += 1,
            Effect::Halt(halt) => {
                around.judges.on_halted(self.identity.node, &halt.reason);
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
            Report::Born => around.judges.cell(cell).is_born = true,
            Report::Refused { reason, .. } if reason.contains("formatted again") => {
                around.judges.set(Mark::MemberReplaced);
            }
            Report::Leading { .. }
            | Report::Deposed { .. }
            | Report::Following { .. }
            | Report::Refused { .. } => {}
        }
        around.fabric.trace.note(now, &words, || format!("node {node} cell {cell}: {report:?}"));
    }

    fn append(
        &mut self,
        cell: CellId,
        append: AppendId,
        head: RecordHead,
        payload: &[u8],
        around: &mut Surroundings<'_>,
    ) {
        if head.kind == RecordKind::Truncate {
            around.judges.set(Mark::SuffixTruncated);
        }
        if head.kind == RecordKind::Entry {
            self.note_endings(cell, payload, around);
        }
        if self.is_over {
            return;
        }
        if self.lost_cells.contains(&cell) {
            around.judges.on_forgotten_promise(cell, self.identity.node, head);
        }
        if head.kind == RecordKind::Manifest {
            self.manifests.insert(cell, payload.to_vec());
        }
        match self.log.append(cell, head.kind, head.term, head.index, payload) {
            Ok(lsn) => {
                self.appended.push_back((lsn, cell, append));
                self.note_appended(lsn, cell, head, payload, around);
                reflect(self.mirrors.entry(cell).or_default(), head, payload);
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
                self.landing.push_back((lsn, cell, head.index, head.term));
                let mirror = self.mirrors.entry(cell).or_default();
                around.judges.on_appended(cell, node, mirror, head.term, payload);
            }
            RecordKind::Truncate => {
                self.landing.retain(|(_, of, index, _)| *of != cell || *index < head.index);
                around.judges.cell(cell).disks.on_truncated(node, head.index);
            }
            RecordKind::HardState => self.voting.push_back((lsn, cell, ballot_of(head, payload))),
            RecordKind::Manifest | RecordKind::Born | RecordKind::SnapshotMark => {}
        }
    }

    fn deliver_durable(&mut self, around: &mut Surroundings<'_>) {
        if self.log.failure().is_some() {
            self.is_over = true;
            return;
        }
        let is_short = self.log.is_short_of_space();
        if std::mem::replace(&mut self.is_short_of_space, is_short) != is_short {
            around.judges.on_space(self.identity.node, is_short);
            self.step_all(around, |_| Input::Space { is_short });
        }
        while let Some((lsn, cell, index, term)) = self.landing.front().copied()
            && lsn <= self.log.durable()
        {
            self.landing.pop_front();
            around.judges.cell(cell).disks.on_durable(self.identity.node, index, term);
        }
        while let Some((lsn, cell, ballot)) = self.voting.front().copied()
            && lsn <= self.log.durable()
        {
            self.voting.pop_front();
            around.judges.cell(cell).disks.on_ballot_durable(self.identity.node, ballot);
        }
        let durable = match self.defect {
            Some(Defect::DurableBeforeWritten) => self.log.appended(),
            _ => self.log.durable(),
        };
        while let Some((lsn, cell, append)) = self.appended.front().copied()
            && lsn <= durable
        {
            self.appended.pop_front();
            self.step(cell, Input::Durable(append), around);
        }
        while let Some(done) = self.log.poll_read() {
            let first = self.reads.remove(&done.id).expect("every read was asked for");
            if let Some((cell, first, last, bytes_max)) = self.refused_reads.pop_front() {
                self.read(cell, first, last, bytes_max);
            }
            let entries = match done.outcome {
                ReadOutcome::Entries(entries) => entries,
                ReadOutcome::NotInLog => Vec::new(),
                ReadOutcome::Piece { .. } | ReadOutcome::NotThere | ReadOutcome::BadPiece(_) => {
                    unreachable!("no snapshot is read")
                }
            };
            let entries: Vec<_> =
                entries.iter().map(|entry| (entry.term, entry.payload.as_slice())).collect();
            self.step(done.cell, Input::LogRead(lockstep_core::LogRead { first, entries: &entries }), around);
        }
    }

    fn read(&mut self, cell: CellId, first: LogIndex, last: LogIndex, bytes_max: usize) {
        match self.log.read(cell, first, last, bytes_max) {
            Ok(id) => {
                self.reads.insert(id, first);
            }
            Err(lockstep_wal::ReadsFull) => self.refused_reads.push_back((cell, first, last, bytes_max)),
        }
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
        self.dial_due(around);
    }

    /// The orderly stop begins.
    pub(super) fn stop(&mut self, now: Time, around: &mut Surroundings<'_>) {
        self.now = now;
        self.is_stopping = true;
        self.led_when_stopped = self.cells.values().any(|cell| cell.raft().is_leader());
        self.step_all(around, |_| Input::Stop);
    }

    /// Gives the disk what the log wants done.
    fn submit(&mut self, around: &mut Surroundings<'_>) {
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
        let is_unhurried = op.lane == Lane::Background && self.log.spare_segments() > 0;
        let now = around.fabric.now();
        let delay = around.machine.disk_delay(now, is_unhurried);
        let disk: &mut MemoryDisk = &mut around.machine.disk;
        let ticket = disk.submit(&mut self.log, op);
        let event = Event::DiskDone { node: self.place, life: self.life, ticket };
        around.fabric.schedule.after(delay, event);
    }
}

/// The term and the vote of a record.
fn ballot_of(head: RecordHead, payload: &[u8]) -> Ballot {
    let vote = payload.try_into().expect("a hard state names a node in two bytes");
    Ballot { term: head.term, vote: u16::from_le_bytes(vote) }
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

/// Keeps a mirror of a log in step with its records.
fn reflect(mirror: &mut Mirror, head: RecordHead, payload: &[u8]) {
    match head.kind {
        RecordKind::Entry => mirror.push((head.term, payload.to_vec())),
        RecordKind::Truncate => {
            mirror.truncate(usize::try_from(head.index.prev().0).expect("a run is short"));
        }
        RecordKind::HardState | RecordKind::SnapshotMark | RecordKind::Manifest | RecordKind::Born => {}
    }
}
