//! The shard loop: one thread, one ring, the cells of one shard, and their log (ARCHITECTURE section 6).
//!
//! A turn: one system call submits all that the last turn wished for and waits; completions become inputs;
//! inputs step the cells; their effects go into buffers; the ends of buffers and the next batch are queued
//! for the next call. Invariant: only this loop closes the circle from effects back to inputs, and it
//! understands none of them. Deliberately absent: protocol; that is the core's.

mod connection;
mod disk;
mod effects;
mod greeting;
pub(crate) mod handoff;
mod link;
mod peers;
mod receive;
mod recovery;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use lockstep_core::hello::{Identity, Port};
use lockstep_core::{Cell, ConnectionId, DrainId, Effects, Input, LogRead, SnapshotRead, Time};
use lockstep_ring::{Completion, DoorbellId, GroupId, Ring, RingConfig, Token};
use lockstep_wal::{SnapshotDone, SnapshotOutcome};
use lockstep_wire::limit::{CLIENT_FRAME_BYTES_MAX, PEER_FRAME_BYTES_MAX};
use lockstep_wire::{CellId, Incarnation, NodeId, Term};

use crate::report::Reporter;
use connection::Connections;
use disk::{Read, ShardDisk};
use greeting::Door;
use handoff::Mailboxes;
use link::Link;

/// Receive buffers for clients and for members: how many, and of how many bytes.
pub(crate) const CLIENT_BUFFERS: (u16, u32) = (256, 16 * 1024);
/// See [`CLIENT_BUFFERS`].
pub(crate) const PEER_BUFFERS: (u16, u32) = (64, 64 * 1024);
/// The sizes of a shard's ring.
pub(crate) const RING: RingConfig =
    RingConfig { submission_entries: 1_024, completion_entries: 8_192, registered_files: 1_024 };

/// The longest turn; a shard looks around at least this often.
const TURN_MAX: Duration = Duration::from_millis(50);
/// How long an orderly stop waits for the cells to hand over.
const STOP_MAX: Duration = Duration::from_secs(3);
/// How long the last answers may take to go out.
const FAREWELL: Duration = Duration::from_millis(100);

/// Tokens that belong to no connection, far above all that do.
const FIRST_OWN_TOKEN: u64 = u64::MAX - 64;
const ACCEPT_CLIENTS: Token = Token(FIRST_OWN_TOKEN);
const ACCEPT_PEERS: Token = Token(FIRST_OWN_TOKEN + 1);
const DISK: Token = Token(FIRST_OWN_TOKEN + 8);

/// What a shard is made of; sent to its thread, which makes the rest.
pub(crate) struct ShardPlan {
    pub(crate) shard: u16,
    pub(crate) identity: Identity,
    pub(crate) incarnation: Incarnation,
    pub(crate) data: PathBuf,
    pub(crate) superblock: lockstep_wal::Superblock,
    /// Distinguishes the batches of this life from those of earlier ones.
    pub(crate) salt: u64,
    /// What each cell of this shard is told.
    pub(crate) cells: Vec<lockstep_core::CellConfig>,
    /// Where this node serves members, as it tells others.
    pub(crate) peer_address: String,
    /// The listeners, for the one shard that has them.
    pub(crate) listeners: Option<Listeners>,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) stop: Arc<AtomicBool>,
    /// How many cells this node was removed from.
    pub(crate) removed: Arc<AtomicU16>,
    pub(crate) connections_max: usize,
    /// Where moments are counted from.
    pub(crate) origin: Instant,
}

/// The sockets on which a node listens.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) client: OwnedFd,
    pub(crate) peer: OwnedFd,
}

/// Why a shard ended otherwise than by an orderly stop.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// The log cannot be used.
    #[error("{0}")]
    Log(String),
    /// A replica must not go on.
    #[error("{0}")]
    Halted(String),
    /// Every cell has removed the node.
    #[error(
        "node {node} was removed from every cell of the cluster, for ever; delete its data directory. To use the machine \
         again, format it as a node with a new id and add that"
    )]
    Removed {
        /// The node.
        node: NodeId,
    },
    /// The kernel refused what the loop cannot do without.
    #[error("{what}")]
    Kernel {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// A running shard, beside its ring.
struct Shard {
    plan: ShardPlan,
    groups: Groups,
    cells: BTreeMap<CellId, Cell>,
    disk: ShardDisk,
    connections: Connections,
    door: Door,
    links: BTreeMap<NodeId, Link>,
    /// The cells talk to other nodes than there are links to, perhaps.
    are_links_stale: bool,
    fx: Effects,
    /// Room for one frame that is made here.
    scratch: Vec<u8>,
    /// Connections over whose bounds effects have gone.
    broken: Vec<ConnectionId>,
    doorbells: BTreeMap<u16, DoorbellId>,
    /// Drains that were asked for and not marked yet, and those that the mark covers.
    drains: Vec<(CellId, DrainId)>,
    marked_drains: Vec<(CellId, DrainId)>,
    stopped: usize,
    stop_deadline: Option<Instant>,
    now: Instant,
    reporter: Reporter,
}

/// The receive buffers of a shard.
#[derive(Clone, Copy, Debug)]
struct Groups {
    client: GroupId,
    peer: GroupId,
}

/// Recovers the shard's log, says so, and runs until the node stops.
pub(crate) fn run(mut plan: ShardPlan, ready: impl FnOnce()) -> Result<(), ShardError> {
    let ring = Ring::new(RING).map_err(kernel("io_uring could not be set up"))?;
    let group = |(count, bytes)| {
        ring.add_buffer_group(count, bytes).map_err(kernel("receive buffers could not be registered"))
    };
    let groups = Groups { client: group(CLIENT_BUFFERS)?, peer: group(PEER_BUFFERS)? };
    let now = Instant::now();
    let started = moment(plan.origin, now);
    let (disk, cells) = disk::open(&ring, &mut plan, started)?;
    plan.mailboxes[usize::from(plan.shard)].open(ring.doorbell(), ring.waker());
    let door = Door::new(&ring, plan.listeners.take(), plan.connections_max);
    let mut shard = Shard {
        plan,
        groups,
        cells,
        disk,
        connections: Connections::default(),
        door,
        links: BTreeMap::new(),
        are_links_stale: true,
        fx: Effects::new(),
        scratch: Vec::new(),
        broken: Vec::new(),
        doorbells: BTreeMap::new(),
        drains: Vec::new(),
        marked_drains: Vec::new(),
        stopped: 0,
        stop_deadline: None,
        now,
        reporter: Reporter::default(),
    };
    ready();
    shard.turns(&ring)
}

fn kernel(what: &'static str) -> impl FnOnce(io::Error) -> ShardError {
    move |source| ShardError::Kernel { what, source }
}

fn moment(origin: Instant, now: Instant) -> Time {
    Time(u64::try_from(now.duration_since(origin).as_nanos()).expect("a process lives less than 500 years"))
}

impl Shard {
    fn turns(&mut self, ring: &Ring) -> Result<(), ShardError> {
        loop {
            ring.submit_and_wait(Some(self.patience())).map_err(kernel("the ring refused to go on"))?;
            // A turn is what had come when its clock was read: no input is newer than the time it is given with. The bells
            // before the mailbox, so that none is heard without what it was about.
            let completions = ring.completions();
            let handoffs = self.plan.mailboxes[usize::from(self.plan.shard)].take_all();
            self.now = Instant::now();
            for completion in completions {
                self.on_completion(ring, completion)?;
            }
            self.take_in(ring, handoffs)?;
            self.deliver_durable()?;
            self.deliver_drained(ring)?;
            self.keep_time(ring)?;
            self.step_all(|_| Input::EndOfTurn)?;
            self.flush_beats();
            self.close_broken(ring)?;
            self.connections.flush(ring);
            self.disk.submit(ring, self.now)?;
            if self.is_done() {
                return self.say_farewell(ring);
            }
        }
    }

    fn time(&self) -> Time {
        moment(self.plan.origin, self.now)
    }

    /// How long there is nothing to do unless something happens.
    fn patience(&self) -> Duration {
        let origin = self.plan.origin;
        let at = |time: Time| match time {
            Time::NEVER => None,
            Time(ns) => Some(origin + Duration::from_nanos(ns)),
        };
        let cells = self.cells.values().filter_map(|cell| at(cell.deadline())).min();
        let links = self.links.values().filter(|link| !link.is_up).map(|link| link.due).min();
        let next = [cells, links, self.door.deadline(), self.disk.deadline(), self.stop_deadline];
        let next = next.into_iter().flatten().min();
        next.map_or(TURN_MAX, |next| next.saturating_duration_since(Instant::now()).min(TURN_MAX))
    }

    fn on_completion(&mut self, ring: &Ring, completion: Completion<'_>) -> Result<(), ShardError> {
        match completion.token() {
            Some(token) if self.disk.owns(token) => self.disk.on_completion(ring, completion),
            Some(ACCEPT_CLIENTS) => self.on_accepted(ring, Port::Client, completion),
            Some(ACCEPT_PEERS) => self.on_accepted(ring, Port::Peer, completion),
            Some(_) => self.on_socket(ring, completion)?,
            // Bells and wakers only end the wait; what they are about is looked for in every turn.
            None => {}
        }
        Ok(())
    }

    /// Steps one cell and carries its effects out.
    fn step(&mut self, cell: CellId, input: Input<'_>) -> Result<(), ShardError> {
        let now = self.time();
        let Some(running) = self.cells.get_mut(&cell) else { return Ok(()) };
        self.fx.clear();
        running.step(now, input, &mut self.fx);
        self.carry_out(cell)
    }

    fn step_all<'a>(&mut self, input: impl Fn(CellId) -> Input<'a>) -> Result<(), ShardError> {
        // Cells are numbered from the shard's own number on, in steps of the number of shards.
        let (first, step) = (self.plan.shard, usize::from(self.plan.identity.shards));
        for cell in (first..self.plan.identity.cells).step_by(step).map(CellId) {
            self.step(cell, input(cell))?;
        }
        Ok(())
    }

    fn deliver_durable(&mut self) -> Result<(), ShardError> {
        if let Some(failure) = self.disk.failure() {
            return Err(ShardError::Halted(failure));
        }
        if let Some(is_short) = self.disk.poll_space() {
            self.step_all(|_| Input::Space { is_short })?;
        }
        while let Some((cell, append)) = self.disk.poll_durable() {
            self.step(cell, Input::Durable(append))?;
        }
        while let Some(read) = self.disk.poll_read() {
            self.deliver_read(&read)?;
        }
        while let Some(SnapshotDone { cell, id: snapshot, outcome }) = self.disk.poll_snapshot() {
            let input = match outcome {
                SnapshotOutcome::Written { piece } => Input::SnapshotStaged { snapshot, piece },
                SnapshotOutcome::Complete => Input::SnapshotStored { snapshot },
                SnapshotOutcome::NoSpace => Input::SnapshotDropped { snapshot },
            };
            self.step(cell, input)?;
        }
        for (cell, millionths) in self.disk.snapshots_written() {
            self.step(cell, Input::RoomUsed { millionths })?;
        }
        for cell in self.disk.snapshots_due() {
            self.step(cell, Input::SnapshotDue)?;
        }
        Ok(())
    }

    fn deliver_read(&mut self, read: &Read) -> Result<(), ShardError> {
        match read {
            Read::Entries { cell, first, entries } => {
                let entries: Option<Vec<(Term, &[u8])>> = entries
                    .as_ref()
                    .map(|entries| entries.iter().map(|entry| (entry.term, &entry.payload[..])).collect());
                self.step(*cell, Input::LogRead(LogRead { first: *first, entries: entries.as_deref() }))
            }
            Read::Piece { cell, snapshot, piece, found } => {
                let found = found.as_ref().map(|(bytes, is_last)| (&bytes[..], *is_last));
                let read = SnapshotRead { snapshot: *snapshot, piece: *piece, found };
                self.step(*cell, Input::SnapshotRead(read))
            }
        }
    }

    /// Answers the drains whose mark has been handed out, and marks those that came meanwhile.
    fn deliver_drained(&mut self, ring: &Ring) -> Result<(), ShardError> {
        if !self.marked_drains.is_empty() && ring.marked_arrivals_are_handed_out() {
            for (cell, drain) in std::mem::take(&mut self.marked_drains) {
                self.step(cell, Input::Drained(drain))?;
            }
        }
        if self.marked_drains.is_empty() && !self.drains.is_empty() && ring.mark_arrivals() {
            std::mem::swap(&mut self.drains, &mut self.marked_drains);
        }
        Ok(())
    }

    /// Everything that is due by the clock.
    fn keep_time(&mut self, ring: &Ring) -> Result<(), ShardError> {
        let now = self.time();
        let due: Vec<CellId> =
            self.cells.iter().filter(|(_, cell)| cell.deadline() <= now).map(|(cell, _)| *cell).collect();
        for cell in due {
            self.step(cell, Input::Tick)?;
        }
        self.close_silent(ring);
        self.renew_links(ring)?;
        self.dial_due(ring)?;
        if self.stop_deadline.is_none() && self.plan.stop.load(Ordering::Acquire) {
            self.stop_deadline = Some(self.now + STOP_MAX);
            self.step_all(|_| Input::Stop)?;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.stop_deadline.is_some_and(|deadline| self.stopped >= self.cells.len() || self.now >= deadline)
    }

    /// Lets the last answers go out, and nobody in.
    fn say_farewell(&mut self, ring: &Ring) -> Result<(), ShardError> {
        self.door.shut(ring);
        self.connections.end(ring);
        let end = Instant::now() + FAREWELL;
        while Instant::now() < end {
            ring.submit_and_wait(Some(FAREWELL / 10)).map_err(kernel("the ring refused to go on"))?;
            for completion in ring.completions() {
                if let Completion::Sent { token, buffer, .. } = completion {
                    self.connections.on_sent(ring, connection::parse(token).0, buffer);
                }
            }
            self.connections.end(ring);
        }
        Ok(())
    }

    /// The longest frame that may come on a connection, once it was welcomed.
    fn frame_bytes_max(is_peer: bool) -> usize {
        if is_peer { PEER_FRAME_BYTES_MAX } else { CLIENT_FRAME_BYTES_MAX }
    }
}
