//! A cell of real replicas over a network without latency, disks that confirm at once, and a clock that is
//! moved by hand.
//!
//! Invariant: every answer goes to the connection that asked, under a number that is still open there, and
//! a cell that wants to be woken does something when it is. Deliberately absent: chance; the simulator has it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lockstep_wire::entry::Command;
use lockstep_wire::frame::{Assembler, Head};
use lockstep_wire::limit::{PEER_FRAME_BYTES_MAX, REPLY_FRAME_BYTES_MAX};
use lockstep_wire::peer::{Beat, PeerMessage};
use lockstep_wire::reply::{Event, Reply};
use lockstep_wire::request::{Request, kind};
use lockstep_wire::{
    BirthId, CellId, Correlation, DecodeError, Epoch, Incarnation, LogIndex, NodeId, SessionId, SnapshotId,
    Status,
};

use self::snapshots::SnapshotDisk;
use super::text;
use crate::table::Limits;
use crate::{
    AppendId, Cell, CellConfig, ConnectionId, DrainId, Effect, Effects, Halt, Input, Lane, LoadedSnapshot,
    Member, RecordHead, RecordKind, Report, Restore, Span, Time,
};

mod snapshots;

pub(super) const CELL: CellId = CellId(3);
/// Ticks in a row at one moment from which on a cell counts as spinning.
const TICKS_AT_ONCE_MAX: usize = 1_000;

enum Happening {
    Frame { from: NodeId, to: NodeId, bytes: Vec<u8> },
    Beat { from: NodeId, to: NodeId, beat: Beat },
    Durable { node: NodeId, append: AppendId, records: usize },
    Drained { node: NodeId, drain: DrainId },
    LogRead { node: NodeId, first: LogIndex, bytes_max: usize },
    Staged { node: NodeId, snapshot: SnapshotId, piece: u32, is_last: bool },
    SnapshotRead { node: NodeId, snapshot: SnapshotId, piece: u32 },
}

/// One member, its disk, and what it has told its operator.
struct Node {
    cell: Option<Cell>,
    records: Vec<(RecordHead, Vec<u8>)>,
    records_durable: usize,
    last_append: AppendId,
    is_disk_held: bool,
    snapshots: SnapshotDisk,
    /// It was given something since its last end of turn.
    is_stepped: bool,
    halted: Option<String>,
    /// Why it will not talk to another member, or another not to it.
    reports: Vec<Report>,
    has_stopped: bool,
    lives: u64,
}

pub(super) struct Rig {
    pub(super) now: Time,
    pub(super) limits: Limits,
    cache_bytes_max: usize,
    /// What a member applies in a turn at most.
    pub(super) apply_per_turn: usize,
    /// The logs always need their snapshots at once.
    pub(super) hurries_snapshots: bool,
    /// How often a cell was woken by its own deadline.
    pub(super) ticks: usize,
    /// Entries do not arrive; everything else does.
    pub(super) is_bulk_cut: bool,
    pub(super) are_drains_held: bool,
    nodes: Vec<Node>,
    queue: VecDeque<Happening>,
    drains_held: Vec<(NodeId, DrainId)>,
    drains: usize,
    pieces_sent: usize,
    cut: BTreeSet<(NodeId, NodeId)>,
    connections: BTreeMap<ConnectionId, NodeId>,
    connections_made: u64,
    correlations: u64,
    open: BTreeSet<(ConnectionId, Correlation)>,
    told: BTreeMap<ConnectionId, Vec<String>>,
}

impl Rig {
    /// Members 1 to `count`, born, with a leader that serves.
    pub(super) fn serving(count: u16) -> Rig {
        Rig::limited(count, Limits::default())
    }

    /// Likewise with limits of one's own.
    pub(super) fn limited(count: u16, limits: Limits) -> Rig {
        Rig::configured(count, limits, crate::CACHE_BYTES_MAX)
    }

    /// Likewise, with as little of the log in memory as may be.
    pub(super) fn uncached(count: u16) -> Rig {
        Rig::configured(count, Limits::default(), 0)
    }

    fn configured(count: u16, limits: Limits, cache_bytes_max: usize) -> Rig {
        let mut rig = Rig::unstarted(count, limits, cache_bytes_max);
        for node in 1..=count {
            rig.start(node);
        }
        rig.advance_until(5_000, Rig::has_leader);
        rig
    }

    /// Members 1 to `count`, not started.
    pub(super) fn unstarted(count: u16, limits: Limits, cache_bytes_max: usize) -> Rig {
        let node = || Node {
            cell: None,
            records: Vec::new(),
            records_durable: 0,
            last_append: AppendId(0),
            is_disk_held: false,
            snapshots: SnapshotDisk::default(),
            is_stepped: false,
            halted: None,
            reports: Vec::new(),
            has_stopped: false,
            lives: 0,
        };
        Rig {
            now: Time(1_000_000_000),
            limits,
            cache_bytes_max,
            apply_per_turn: crate::APPLY_PER_TURN,
            hurries_snapshots: true,
            ticks: 0,
            is_bulk_cut: false,
            are_drains_held: false,
            nodes: (0..count).map(|_| node()).collect(),
            queue: VecDeque::new(),
            drains_held: Vec::new(),
            drains: 0,
            pieces_sent: 0,
            cut: BTreeSet::new(),
            connections: BTreeMap::new(),
            connections_made: 0,
            correlations: 0,
            open: BTreeSet::new(),
            told: BTreeMap::new(),
        }
    }

    fn node(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[usize::from(node.0) - 1]
    }

    pub(super) fn cell(&self, node: u16) -> &Cell {
        self.nodes[usize::from(node) - 1].cell.as_ref().expect("the member runs")
    }

    /// What a member said when it stopped for good.
    pub(super) fn halted(&self, node: u16) -> Option<&str> {
        self.nodes[usize::from(node) - 1].halted.as_deref()
    }

    /// Why members would not talk to each other.
    pub(super) fn refusals(&self) -> Vec<String> {
        let reasons = self.nodes.iter().flat_map(|node| &node.reports).filter_map(|report| match report {
            Report::Refused { reason, .. } => Some(reason.clone()),
            _ => None,
        });
        reasons.collect()
    }

    /// What a member has told its operator.
    pub(super) fn reports(&self, node: u16) -> &[Report] {
        &self.nodes[usize::from(node) - 1].reports
    }

    pub(super) fn has_stopped(&self, node: u16) -> bool {
        self.nodes[usize::from(node) - 1].has_stopped
    }

    pub(super) fn has_leader(&self) -> bool {
        self.serving_leader().is_some()
    }

    fn serving_leader(&self) -> Option<u16> {
        let running = (1..).zip(&self.nodes).filter_map(|(at, node)| Some((at, node.cell.as_ref()?)));
        let serving = running.filter(|(_, cell)| cell.raft().is_serving());
        serving.max_by_key(|(_, cell)| cell.raft().term()).map(|(at, _)| at)
    }

    /// The serving leader of the newest term.
    pub(super) fn leader(&self) -> u16 {
        self.serving_leader().expect("somebody serves")
    }

    /// Some member that does not lead.
    pub(super) fn follower(&self) -> u16 {
        let leader = self.leader();
        let count = u16::try_from(self.nodes.len()).unwrap();
        (1..=count).find(|node| *node != leader).expect("there is another member")
    }

    /// Starts a member from what its disk has.
    pub(super) fn start(&mut self, node: u16) {
        let (now, limits) = (self.now, self.limits);
        let (cache_bytes_max, apply_per_turn) = (self.cache_bytes_max, self.apply_per_turn);
        let members = (1..=u16::try_from(self.nodes.len()).unwrap())
            .map(|node| Member {
                node: NodeId(node),
                client_address: format!("node{node}:4600"),
                peer_address: format!("node{node}:4700"),
            })
            .collect();
        assert!(self.node(NodeId(node)).cell.is_none());
        let restore = self.restored(node);
        let this = self.node(NodeId(node));
        this.lives += 1;
        this.last_append = AppendId(0);
        let config = CellConfig {
            cell: CELL,
            cells: CELL.0 + 1,
            shards: 1,
            node: NodeId(node),
            members,
            is_joining: false,
            incarnation: Incarnation([u8::try_from(node).unwrap(); 16]),
            birth_id: BirthId([9; 16]),
            epoch: Epoch::default(),
            limits,
            heartbeat: Span::from_ms(50),
            election_min: Span::from_ms(500),
            election_max: Span::from_ms(1_000),
            round_pace: Span::from_ms(3),
            preference: Span(0),
            cache_bytes_max,
            apply_per_turn,
            snapshot_slice_bytes: crate::SNAPSHOT_SLICE_BYTES,
            seed: u64::from(node) * 1_000 + this.lives,
            routes: vec![(String::new(), CELL)],
        };
        this.cell = Some(Cell::new(config, restore, now));
        for peer in (1..=u16::try_from(self.nodes.len()).unwrap()).filter(|peer| *peer != node) {
            if self.node(NodeId(peer)).cell.is_some() {
                self.step(peer, Input::LinkUp { peer: NodeId(node) });
                self.step(node, Input::LinkUp { peer: NodeId(peer) });
            }
        }
        self.settle();
    }

    /// What a member's disk has, as a start would find it: with a guess at the newest snapshot, and without when it is wrong.
    pub(super) fn restored(&mut self, node: u16) -> Restore {
        let limits = self.limits;
        let this = self.node(NodeId(node));
        let (stored, counting) = (&this.snapshots.stored, this.snapshots.counting(&this.records));
        let take = |mut restore: Restore| {
            this.records.iter().for_each(|(head, payload)| restore.on_record(*head, payload));
            restore
        };
        let newest = stored.newest();
        let load = |id| LoadedSnapshot::load(limits, |visit| stored.read(id, visit).map(|()| id)).ok();
        let mut restore = take(newest.map_or_else(Restore::new, |id| Restore::behind(id.index)));
        let is_loaded =
            newest.and_then(load).is_some_and(|loaded| restore.go_on_from(loaded, counting.first().copied()));
        if is_loaded {
            this.snapshots.complaints.clear();
        } else {
            restore = take(Restore::new());
            this.snapshots.complaints = restore.load(limits, counting, |id, visit| stored.read(id, visit));
        }
        restore
    }

    /// Kills a member: what its disk has not confirmed is lost.
    pub(super) fn crash(&mut self, node: u16) {
        let this = self.node(NodeId(node));
        this.cell = None;
        this.records.truncate(this.records_durable);
        this.snapshots.forget_staging();
        self.connections.retain(|_, at| at.0 != node);
        let connections = &self.connections;
        self.open.retain(|(connection, _)| connections.contains_key(connection));
        for peer in 1..=u16::try_from(self.nodes.len()).unwrap() {
            if self.node(NodeId(peer)).cell.is_some() {
                self.step(peer, Input::LinkDown { peer: NodeId(node), is_refused: true });
            }
        }
        self.settle();
    }

    /// Lets everything vanish between a member and all others, while the links stay up.
    pub(super) fn isolate(&mut self, node: u16) {
        for peer in 1..=u16::try_from(self.nodes.len()).unwrap() {
            self.cut.insert((NodeId(node), NodeId(peer)));
            self.cut.insert((NodeId(peer), NodeId(node)));
        }
    }

    pub(super) fn heal(&mut self) {
        self.cut.clear();
    }

    /// Isolates the leader, and waits until another one serves. Gives both.
    pub(super) fn depose(&mut self) -> (u16, u16) {
        let old = self.leader();
        self.isolate(old);
        self.advance_until(5_000, |rig| rig.has_leader() && rig.leader() != old);
        let new = self.leader();
        (old, new)
    }

    /// Keeps a disk from confirming anything.
    pub(super) fn hold_disk(&mut self, node: u16) {
        self.node(NodeId(node)).is_disk_held = true;
    }

    pub(super) fn release_disk(&mut self, node: u16) {
        let this = self.node(NodeId(node));
        this.is_disk_held = false;
        let (append, records) = (this.last_append, this.records.len());
        if append.0 > 0 {
            self.queue.push_back(Happening::Durable { node: NodeId(node), append, records });
        }
        self.settle();
    }

    /// Lets a disk that is held confirm all but the newest records.
    pub(super) fn confirm_all_but(&mut self, node: u16, count: u64) {
        let this = self.node(NodeId(node));
        let append = AppendId(this.last_append.0 - count);
        let records = this.records.len() - usize::try_from(count).unwrap();
        self.queue.push_back(Happening::Durable { node: NodeId(node), append, records });
        self.settle();
    }

    pub(super) fn release_drains(&mut self) {
        self.are_drains_held = false;
        for (node, drain) in std::mem::take(&mut self.drains_held) {
            self.queue.push_back(Happening::Drained { node, drain });
        }
        self.settle();
    }

    /// How often a drain was asked for.
    pub(super) fn drains(&self) -> usize {
        self.drains
    }

    pub(super) fn drains_held(&self) -> usize {
        self.drains_held.len()
    }

    /// The commands in a member's log, in short.
    pub(super) fn log(&self, node: u16) -> Vec<String> {
        let mut log = Vec::new();
        for (head, payload) in &self.nodes[usize::from(node) - 1].records {
            match head.kind {
                RecordKind::Entry => {
                    log.push(text::command(&Command::decode(payload).unwrap()));
                }
                RecordKind::Truncate => log.truncate(usize::try_from(head.index.0 - 1).unwrap()),
                RecordKind::HardState
                | RecordKind::SnapshotMark
                | RecordKind::Manifest
                | RecordKind::Born => {}
            }
        }
        log
    }

    /// How many commands of this kind a member's log has.
    pub(super) fn count(&self, node: u16, what: &str) -> usize {
        self.log(node).iter().filter(|command| command.starts_with(what)).count()
    }

    pub(super) fn connect(&mut self, node: u16) -> ConnectionId {
        self.connections_made += 1;
        let connection = ConnectionId(self.connections_made);
        self.connections.insert(connection, NodeId(node));
        connection
    }

    pub(super) fn disconnect(&mut self, connection: ConnectionId) {
        let node = self.connections.remove(&connection).expect("it is connected");
        self.open.retain(|(other, _)| *other != connection);
        self.step(node.0, Input::Disconnected { connection });
        self.settle();
    }

    /// Asks something, and lets everything that follows from it happen.
    pub(super) fn ask(&mut self, connection: ConnectionId, request: Request<'_>) {
        self.say(connection, request);
        self.settle();
    }

    /// Asks something in a turn that goes on.
    pub(super) fn say(&mut self, connection: ConnectionId, request: Request<'_>) {
        self.correlations += 1;
        let correlation = Correlation(self.correlations);
        self.open.insert((connection, correlation));
        let node = self.connections[&connection];
        self.step(node.0, Input::Request { connection, correlation, request });
    }

    /// Asks, and gives what came on the connection since it was last looked at.
    pub(super) fn call(&mut self, connection: ConnectionId, request: Request<'_>) -> Vec<String> {
        self.ask(connection, request);
        self.told(connection)
    }

    /// Lets a frame come that is no request of this cell.
    pub(super) fn hear_malformed(
        &mut self,
        connection: ConnectionId,
        head: Head,
        error: Option<DecodeError>,
    ) {
        self.open.insert((connection, head.correlation));
        let node = self.connections[&connection];
        self.step(node.0, Input::Malformed { connection, head, error });
        self.settle();
    }

    /// What came on a connection since it was last looked at.
    pub(super) fn told(&mut self, connection: ConnectionId) -> Vec<String> {
        self.told.remove(&connection).unwrap_or_default()
    }

    /// How many calls have no final answer yet.
    pub(super) fn unanswered(&self) -> usize {
        self.open.len()
    }

    /// Gives a member an input, in a turn that goes on.
    pub(super) fn step(&mut self, node: u16, input: Input<'_>) {
        let now = self.now;
        let this = self.node(NodeId(node));
        let Some(cell) = &mut this.cell else { return };
        let mut fx = Effects::new();
        cell.step(now, input, &mut fx);
        this.is_stepped = true;
        for effect in fx.list() {
            self.carry_out(NodeId(node), effect, fx.bytes());
        }
    }

    /// Gives what is on its way until nothing is, lets pieces of snapshots become whole unless their pace is looked at, and
    /// gives every member its end of turn.
    pub(super) fn settle(&mut self) {
        loop {
            while let Some(happening) = self.queue.pop_front() {
                self.happen(happening);
            }
            let is_making =
                |node: &Node| node.cell.as_ref().is_some_and(|cell| cell.slice_deadline() < Time::NEVER);
            let making = (1..).zip(&self.nodes).find(|(_, node)| is_making(node)).map(|(at, _)| at);
            if let Some(node) = making.filter(|_| self.hurries_snapshots) {
                self.step(node, Input::RoomUsed { millionths: 1_000_000 });
                self.step(node, Input::Tick);
                continue;
            }
            let stepped = (1..).zip(&self.nodes).find(|(_, node)| node.is_stepped).map(|(at, _)| at);
            let Some(node) = stepped else { return };
            self.step(node, Input::EndOfTurn);
            self.node(NodeId(node)).is_stepped = false;
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Frame { from, to, bytes } => {
                let mut assembler = Assembler::default();
                let mut input = &bytes[..];
                let frame = assembler.next(&mut input, PEER_FRAME_BYTES_MAX).unwrap().unwrap();
                let message = PeerMessage::decode(&frame).unwrap();
                self.step(to.0, Input::Peer { from, message });
            }
            Happening::Beat { from, to, beat } => self.step(to.0, Input::Beat { from, beat }),
            Happening::Durable { node, append, records } => {
                let this = self.node(node);
                // Those that were recycled meanwhile are counted no more.
                let records = records.min(this.records.len());
                this.records_durable = this.records_durable.max(records);
                self.step(node.0, Input::Durable(append));
            }
            Happening::Drained { node, drain } => self.step(node.0, Input::Drained(drain)),
            Happening::LogRead { node, first, bytes_max } => self.read_log(node, first, bytes_max),
            Happening::Staged { node, snapshot, piece, is_last } => {
                self.on_staged(node, snapshot, piece, is_last);
            }
            Happening::SnapshotRead { node, snapshot, piece } => self.read_snapshot(node, snapshot, piece),
        }
    }

    fn carry_out(&mut self, node: NodeId, effect: &Effect, bytes: &[u8]) {
        match effect {
            Effect::Append { append, head, payload } => {
                self.check_mark(node, head);
                let this = self.node(node);
                this.records.push((*head, bytes[payload.clone()].to_vec()));
                this.last_append = *append;
                let records = this.records.len();
                if !this.is_disk_held {
                    self.queue.push_back(Happening::Durable { node, append: *append, records });
                }
            }
            Effect::Send { to, lane, frame } => {
                let is_lost = self.cut.contains(&(node, *to)) || (self.is_bulk_cut && *lane == Lane::Bulk);
                if !is_lost && self.node(*to).cell.is_some() {
                    let bytes = bytes[frame.clone()].to_vec();
                    self.count_piece(&bytes);
                    self.queue.push_back(Happening::Frame { from: node, to: *to, bytes });
                }
            }
            Effect::Beat { to, beat } => {
                if !self.cut.contains(&(node, *to)) && self.node(*to).cell.is_some() {
                    self.queue.push_back(Happening::Beat { from: node, to: *to, beat: *beat });
                }
            }
            Effect::PeersChanged => {}
            Effect::Removed => panic!("nobody is removed here"),
            Effect::Reply { connection, frame } => self.hear(*connection, &bytes[frame.clone()]),
            Effect::ReadLog { first, last: _, bytes_max } => {
                self.queue.push_back(Happening::LogRead { node, first: *first, bytes_max: *bytes_max });
            }
            Effect::StageSnapshot { snapshot, piece, is_last, bytes: range } => {
                self.stage(node, *snapshot, *piece, *is_last, &bytes[range.clone()]);
            }
            Effect::DropSnapshot => self.drop_snapshot(node),
            Effect::ReadSnapshot { snapshot, piece } => {
                self.queue.push_back(Happening::SnapshotRead { node, snapshot: *snapshot, piece: *piece });
            }
            Effect::Drain(drain) => {
                self.drains += 1;
                if self.are_drains_held {
                    self.drains_held.push((node, *drain));
                } else {
                    self.queue.push_back(Happening::Drained { node, drain: *drain });
                }
            }
            Effect::Report(report) => self.node(node).reports.push(report.clone()),
            Effect::Stopped => self.node(node).has_stopped = true,
            Effect::Halt(Halt { reason }) => self.node(node).halted = Some(reason.clone()),
        }
    }

    fn hear(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let mut assembler = Assembler::default();
        let mut input = bytes;
        let frame = assembler.next(&mut input, REPLY_FRAME_BYTES_MAX).unwrap().unwrap();
        assert_ne!(frame.head.kind, kind::HELLO | kind::REPLY, "that has another layout");
        let line = if frame.head.kind == kind::EVENT {
            text::event(&Event::decode(&frame).unwrap())
        } else {
            let reply = Reply::decode(&frame).unwrap();
            let call = (connection, frame.head.correlation);
            if self.connections.contains_key(&connection) {
                assert!(self.open.contains(&call), "{call:?} was answered before: {reply:?}");
            }
            if reply.status() != Status::Queued {
                self.open.remove(&call);
            }
            text::reply(&reply)
        };
        self.told.entry(connection).or_default().push(line);
    }

    /// Lets time pass: every member is woken when it wants to be.
    pub(super) fn advance(&mut self, ms: u64) {
        self.advance_to(self.now + Span::from_ms(ms), |_| false);
    }

    /// Lets time pass until something is so; fails when that takes longer than `ms`.
    pub(super) fn advance_until(&mut self, ms: u64, is_so: impl Fn(&Rig) -> bool) {
        let end = self.now + Span::from_ms(ms);
        assert!(self.advance_to(end, is_so), "nothing came of it within {ms} ms");
    }

    fn advance_to(&mut self, end: Time, is_so: impl Fn(&Rig) -> bool) -> bool {
        let mut at_once = 0;
        while !is_so(self) {
            let cells = self.nodes.iter().filter_map(|node| node.cell.as_ref());
            let due = cells.map(Cell::deadline).min().unwrap_or(Time::NEVER);
            if due > end {
                self.now = end;
                return false;
            }
            at_once = if due > self.now { 0 } else { at_once + 1 };
            assert!(at_once < TICKS_AT_ONCE_MAX, "a cell wants to be woken for ever");
            self.now = self.now.max(due);
            for node in 1..=u16::try_from(self.nodes.len()).unwrap() {
                let now = self.now;
                if self.node(NodeId(node)).cell.as_ref().is_some_and(|cell| cell.deadline() <= now) {
                    self.ticks += 1;
                    self.step(node, Input::Tick);
                }
            }
            self.settle();
        }
        true
    }

    /// Lets time pass while these sessions beat every so often.
    pub(super) fn advance_beating(&mut self, ms: u64, every_ms: u64, beats: &[(ConnectionId, SessionId)]) {
        let end = self.now + Span::from_ms(ms);
        while self.now < end {
            self.advance(every_ms.min(end.since(self.now).ms().max(1)));
            for (connection, session) in beats {
                self.beat(*connection, *session);
            }
        }
    }
}
