//! The door: connections come in, say who they are, and go to the shard that serves what they name.
//!
//! Invariants: before a valid Hello only small frames are read, one receive at a time, because the
//! connection may move to another shard; whoever is silent for five seconds is closed; there is a cap on
//! those who have not said anything for a moment. Deliberately absent: whether a Hello is welcome; that is `core::hello`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use lockstep_core::hello::{Port, Unwelcome, Welcome, shard_of, welcome};
use lockstep_core::{ConnectionId, Lane};
use lockstep_ring::{Completion, Ring, Socket};
use lockstep_wire::frame::{self, Assembler, Head};
use lockstep_wire::hello::{Hello, HelloReply, PROTOCOL, Role};
use lockstep_wire::limit::{FIRST_FRAME_BYTES_MAX, TTL_MS_MAX, TTL_MS_MIN};
use lockstep_wire::request::kind;
use lockstep_wire::{CellId, Correlation, NodeId, Status};
use rustix::net::{Shutdown, shutdown};

use super::connection::{SocketOp, Stage, token};
use super::handoff::Handoff;
use super::{ACCEPT_CLIENTS, ACCEPT_PEERS, Listeners, Shard, ShardError};

/// How long a connection may take to say a valid Hello.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// Connections that have not said a valid Hello; beyond them the oldest is closed, once it has had its moment.
const GREETING_MAX: usize = 1_024;
/// The moment that everybody has, whoever else comes: a client on a busy machine does not say its Hello at once.
const GREETING_MIN: Duration = Duration::from_millis(250);
/// Connections on the port for members beyond those that clients may have; the node keeps descriptors for them.
const PEERS_RESERVED: usize = 64;
/// The pause after the kernel refused to accept, for want of descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes that may wait for somebody who is being refused.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// Who has come in and said nothing yet.
pub(super) struct Door {
    listeners: Option<(Socket, Socket)>,
    /// In the order in which they came; those who have said their Hello are still among them.
    greeting: VecDeque<(Instant, ConnectionId)>,
    /// Listeners to be armed again, and when.
    paused: Vec<(Instant, Port)>,
    connections_max: usize,
}

impl Door {
    /// Opens the door, if this shard has it.
    pub(super) fn new(ring: &Ring, listeners: Option<Listeners>, connections_max: usize) -> Door {
        let listeners = listeners
            .map(|listeners| (ring.adopt_socket(listeners.client), ring.adopt_socket(listeners.peer)));
        let door = Door { listeners, greeting: VecDeque::new(), paused: Vec::new(), connections_max };
        door.accept(ring, Port::Client);
        door.accept(ring, Port::Peer);
        door
    }

    fn accept(&self, ring: &Ring, port: Port) {
        if let Some((client, peer)) = self.listeners {
            match port {
                Port::Client => ring.accept_multishot(client, ACCEPT_CLIENTS),
                Port::Peer => ring.accept_multishot(peer, ACCEPT_PEERS),
            };
        }
    }

    /// Stops listening. Whoever connects from now on is refused at once and goes elsewhere, instead of waiting for
    /// an answer that will not come.
    pub(super) fn shut(&self, ring: &Ring) {
        for socket in self.listeners.into_iter().flat_map(|(client, peer)| [client, peer]) {
            // A listener that cannot be shut goes with the process a moment later.
            let _ = ring.with_socket(socket, |fd| shutdown(fd, Shutdown::Both));
        }
    }

    /// When somebody's patience ends.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let silent = self.greeting.front().map(|(since, _)| *since + HELLO_MAX);
        silent.into_iter().chain(self.paused.iter().map(|(due, _)| *due)).min()
    }
}

impl Shard {
    pub(super) fn on_accepted(&mut self, ring: &Ring, port: Port, completion: Completion<'_>) {
        match completion {
            Completion::Accepted { fd, is_armed, .. } => {
                if !is_armed {
                    self.door.accept(ring, port);
                }
                if self.has_room(port) {
                    self.greet(ring, port, fd);
                }
            }
            Completion::AcceptFailed { error, .. } => {
                self.reporter.accept_failed(&error);
                self.door.paused.push((self.now + ACCEPT_PAUSE, port));
            }
            other => unreachable!("an accept does not end in {other:?}"),
        }
    }

    /// Whether this shard takes one more connection; says so if not.
    fn has_room(&mut self, port: Port) -> bool {
        let connections_max = match port {
            Port::Client => self.door.connections_max,
            // Clients that fill a node must not keep members out: it would fall out of its own cells.
            Port::Peer => self.door.connections_max + PEERS_RESERVED,
        };
        let has_room = self.connections.len() < connections_max;
        if !has_room {
            self.reporter.full(connections_max);
        }
        has_room
    }

    /// Waits for the Hello of a connection that came in.
    fn greet(&mut self, ring: &Ring, port: Port, fd: OwnedFd) {
        let socket = ring.adopt_socket(fd);
        let id = self.connections.insert(socket, Stage::Greeting { port, bytes: Vec::new() });
        self.door.greeting.push_back((self.now, id));
        self.listen_for_hello(ring, id, socket);
    }

    fn listen_for_hello(&self, ring: &Ring, id: ConnectionId, socket: Socket) {
        let bytes_max = u32::try_from(FIRST_FRAME_BYTES_MAX).expect("a first frame is small");
        ring.receive(socket, self.groups.client, bytes_max, token(id, SocketOp::Receive));
    }

    /// Takes what the other shards have left.
    pub(super) fn take_in(&mut self, ring: &Ring, handoffs: VecDeque<Handoff>) -> Result<(), ShardError> {
        for Handoff { fd, port, bytes } in handoffs {
            if !self.has_room(port) {
                continue;
            }
            let socket = ring.adopt_socket(fd);
            let id = self.connections.insert(socket, Stage::Greeting { port, bytes: Vec::new() });
            self.on_greeting(ring, id, &bytes)?;
        }
        Ok(())
    }

    /// Reads what somebody who has not been welcomed has said.
    pub(super) fn on_greeting(
        &mut self,
        ring: &Ring,
        id: ConnectionId,
        more: &[u8],
    ) -> Result<(), ShardError> {
        let Some(connection) = self.connections.get(id) else { return Ok(()) };
        let socket = connection.socket;
        let Stage::Greeting { port, bytes } = &mut connection.stage else { return Ok(()) };
        bytes.extend_from_slice(more);
        let (port, bytes) = (*port, std::mem::take(bytes));
        let mut assembler = Assembler::default();
        let mut rest = bytes.as_slice();
        let hello = match assembler.next(&mut rest, FIRST_FRAME_BYTES_MAX) {
            Ok(Some(frame)) if frame.head.kind == kind::HELLO => {
                Hello::decode(frame.body).map(|hello| (frame.head, hello)).map_err(|error| error.to_string())
            }
            Ok(Some(frame)) => Err(format!("a frame of kind {:#06x} came before any Hello", frame.head.kind)),
            Ok(None) => {
                if let Some(Stage::Greeting { bytes: kept, .. }) =
                    self.connections.get(id).map(|connection| &mut connection.stage)
                {
                    *kept = bytes;
                }
                self.listen_for_hello(ring, id, socket);
                return Ok(());
            }
            Err(error) => Err(error.to_string()),
        };
        match hello {
            Ok((head, hello)) => self.on_hello(ring, id, port, (head, &hello), &bytes, rest),
            Err(reason) => {
                self.reporter.bad_bytes(ring, socket, &reason);
                self.close_connection(ring, id, false)
            }
        }
    }

    fn on_hello(
        &mut self,
        ring: &Ring,
        id: ConnectionId,
        port: Port,
        (head, hello): (Head, &Hello<'_>),
        bytes: &[u8],
        rest: &[u8],
    ) -> Result<(), ShardError> {
        let welcomed = match welcome(&self.plan.identity, self.cells.values(), port, head.cell, hello) {
            Ok(welcomed) => welcomed,
            Err(Unwelcome { status, detail }) => {
                self.reporter.unwelcome(&detail);
                self.answer_hello(id, head, status, &detail);
                return self.close_connection(ring, id, true);
            }
        };
        let shard = match welcomed {
            Welcome::Client(cell) => shard_of(cell, self.plan.identity.shards),
            Welcome::Peer { shard, .. } => shard,
        };
        if shard != self.plan.shard {
            self.hand_over(ring, id, shard, port, bytes);
            return Ok(());
        }
        self.answer_hello(id, head, Status::Ok, "");
        let Some(connection) = self.connections.get(id) else { return Ok(()) };
        let (stage, group) = match welcomed {
            Welcome::Client(cell) => (Stage::Client { cell }, self.groups.client),
            Welcome::Peer { node, incarnation, .. } => (Stage::Peer { node, incarnation }, self.groups.peer),
        };
        connection.stage = stage;
        let socket = connection.socket;
        if let Welcome::Peer { node, .. } = welcomed {
            self.on_peer_connected(node, hello.peer_address);
        }
        ring.receive_multishot(socket, group, token(id, SocketOp::Receive));
        self.on_bytes(ring, id, rest)
    }

    fn answer_hello(&mut self, id: ConnectionId, head: Head, status: Status, detail: &str) {
        let cell = self.cells.get(&head.cell).or_else(|| self.cells.values().next());
        let (leader, leader_address) = cell.map_or((NodeId(0), ""), |cell| cell.leader());
        let reply = HelloReply {
            status,
            detail,
            protocol: PROTOCOL.1,
            node: self.plan.identity.node,
            cluster: self.plan.identity.cluster,
            incarnation: self.plan.incarnation,
            ttl_ms_min: TTL_MS_MIN,
            ttl_ms_max: TTL_MS_MAX,
            leader,
            leader_address,
        };
        self.scratch.clear();
        let head = Head { kind: kind::HELLO | kind::REPLY, ..head };
        frame::encode(&mut self.scratch, head, |out| reply.put(out));
        self.connections.write(id, &self.scratch, REFUSAL_BYTES_MAX);
    }

    /// Gives a connection to the shard that serves what its Hello names.
    fn hand_over(&mut self, ring: &Ring, id: ConnectionId, shard: u16, port: Port, bytes: &[u8]) {
        let Some(connection) = self.connections.remove(id) else { return };
        let Some(fd) = ring.detach_socket(connection.socket) else {
            unreachable!("nothing is in flight on a connection between two receives")
        };
        let mailbox = &self.plan.mailboxes[usize::from(shard)];
        if mailbox.leave(Handoff { fd, port, bytes: bytes.to_vec() }).is_err() {
            return self.reporter.full(self.door.connections_max);
        }
        // A shard that does not run yet looks into its mailbox when it begins.
        if let Some(doorbell) = mailbox.doorbell() {
            let id = self.doorbells.entry(shard).or_insert_with(|| ring.connect_doorbell(doorbell));
            ring.ring_doorbell(*id, 0);
        }
    }

    /// Closes whoever has been silent for too long, or is the oldest of too many.
    pub(super) fn close_silent(&mut self, ring: &Ring) {
        let now = self.now;
        let is_excess = |since: Instant, len: usize| len > GREETING_MAX && now >= since + GREETING_MIN;
        if self.door.greeting.front().is_some_and(|(since, _)| is_excess(*since, self.door.greeting.len())) {
            // Those who have said their Hello meanwhile crowd nobody out.
            self.door.greeting.retain(|(_, id)| self.connections.is_greeting(*id));
        }
        while let Some((since, id)) = self.door.greeting.front().copied() {
            let is_greeting = self.connections.is_greeting(id);
            let is_over = now >= since + HELLO_MAX || is_excess(since, self.door.greeting.len());
            if is_greeting && !is_over {
                break;
            }
            self.door.greeting.pop_front();
            if let Some(connection) = self.connections.get(id).filter(|_| is_greeting) {
                self.reporter.silent(ring, connection.socket);
                self.connections.close(ring, id, false);
            }
        }
        let due: Vec<Port> =
            self.door.paused.extract_if(.., |(due, _)| *due <= now).map(|(_, port)| port).collect();
        for port in due {
            self.door.accept(ring, port);
        }
    }

    /// Says who we are to a member that we have connected to.
    pub(super) fn introduce(&mut self, id: ConnectionId, node: NodeId, lane: Lane) {
        let peer = lockstep_wire::hello::PeerIdentity {
            node: self.plan.identity.node,
            to: node,
            shard: self.plan.shard,
            incarnation: self.plan.incarnation,
        };
        let hello = Hello {
            protocol_min: PROTOCOL.0,
            protocol_max: PROTOCOL.1,
            cluster: self.plan.identity.cluster,
            role: match lane {
                Lane::Control => Role::PeerControl(peer),
                Lane::Bulk => Role::PeerBulk(peer),
            },
            peer_address: &self.plan.peer_address,
            credentials: b"",
        };
        self.scratch.clear();
        let head = Head { kind: kind::HELLO, cell: CellId(0), correlation: Correlation(0) };
        frame::encode(&mut self.scratch, head, |out| hello.put(out));
        self.connections.write(id, &self.scratch, REFUSAL_BYTES_MAX);
    }
}

/// Whether a connection could not be made because nobody listens there: the process is gone.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}
