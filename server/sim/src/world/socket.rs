//! A process's connections: whoever has come in, and the links that it has dialed.
//!
//! Invariant: the same as in the real shell: nothing is understood before a valid Hello, a link is up when both its
//! lanes were welcomed and down when either breaks, and a break is followed by a dial at once. Deliberately absent:
//! bytes that are no frames; here every other end speaks the protocol, though not always sensibly.

use std::collections::BTreeSet;

use lockstep_core::hello::{self, Port, Welcome};
use lockstep_core::{ConnectionId, Input, Lane, Span, Time};
use lockstep_wire::frame::{self, Assembler, Frame, Head};
use lockstep_wire::hello::{Hello, HelloReply, PROTOCOL, PeerIdentity, Role};
use lockstep_wire::limit::{CLIENT_FRAME_BYTES_MAX, PEER_FRAME_BYTES_MAX, TTL_MS_MAX, TTL_MS_MIN};
use lockstep_wire::peer::{Beat, PeerMessage, decode_beats, encode_beats, kind as peer_kind};
use lockstep_wire::request::{Request, kind};
use lockstep_wire::{CellId, Correlation, Incarnation, NodeId, Status};

use super::network::{Door, End, Site, WireId};
use super::process::{Process, Surroundings};
use crate::mark::Mark;

/// The first and the longest pause between two attempts, and the longest attempt.
const RETRY_MIN: Span = Span::from_ms(20);
const RETRY_MAX: Span = Span::from_ms(500);
const ATTEMPT_MAX: Span = Span::from_ms(2_000);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting(Door),
    Client(CellId),
    Peer(NodeId, Incarnation),
    /// The incarnation of who has answered.
    Link(NodeId, Lane, Option<Incarnation>),
}

/// One connection of a process.
#[derive(Debug)]
pub(super) struct Connection {
    stage: Stage,
    end: End,
    assembler: Assembler,
    out: Vec<u8>,
}

/// One of the two connections of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkWire {
    Down,
    Dialing(WireId),
    Up(WireId),
}

impl LinkWire {
    pub(super) fn up(self) -> Option<WireId> {
        match self {
            LinkWire::Up(wire) => Some(wire),
            LinkWire::Down | LinkWire::Dialing(_) => None,
        }
    }

    fn any(self) -> Option<WireId> {
        match self {
            LinkWire::Up(wire) | LinkWire::Dialing(wire) => Some(wire),
            LinkWire::Down => None,
        }
    }
}

/// The link to one member.
#[derive(Debug)]
pub(super) struct Link {
    control: LinkWire,
    bulk: LinkWire,
    pub(super) is_up: bool,
    pub(super) beats: Vec<Beat>,
    /// When to try next while it is down, and how long the attempt under way may take.
    pub(super) due: Time,
    pause: Span,
}

impl Link {
    pub(super) fn new(now: Time) -> Link {
        Link {
            control: LinkWire::Down,
            bulk: LinkWire::Down,
            is_up: false,
            beats: Vec::new(),
            due: now,
            pause: RETRY_MIN,
        }
    }

    pub(super) fn wire(&self, lane: Lane) -> LinkWire {
        match lane {
            Lane::Control => self.control,
            Lane::Bulk => self.bulk,
        }
    }

    fn set(&mut self, lane: Lane, wire: LinkWire) {
        match lane {
            Lane::Control => self.control = wire,
            Lane::Bulk => self.bulk = wire,
        }
    }

    fn is_idle(&self) -> bool {
        self.control == LinkWire::Down && self.bulk == LinkWire::Down
    }
}

impl Process {
    /// Puts bytes where the end of the turn finds them; without a connection they are gone.
    pub(super) fn write(&mut self, wire: Option<WireId>, bytes: &[u8]) {
        if let Some(connection) = wire.and_then(|wire| self.connections.get_mut(&wire)) {
            connection.out.extend_from_slice(bytes);
        }
    }

    /// Everything that was gathered goes out.
    pub(super) fn flush(&mut self, around: &mut Surroundings<'_>) {
        let mut beats = Vec::new();
        let ready: Vec<NodeId> =
            self.links.iter().filter(|(_, link)| !link.beats.is_empty()).map(|(node, _)| *node).collect();
        for node in ready {
            let Some(link) = self.links.get_mut(&node) else { continue };
            beats.clear();
            encode_beats(&link.beats, &mut beats);
            link.beats.clear();
            let wire = link.control.up();
            self.write(wire, &beats);
        }
        for (wire, connection) in &mut self.connections {
            if !connection.out.is_empty() {
                around.fabric.write(*wire, connection.end, std::mem::take(&mut connection.out));
            }
        }
    }

    pub(super) fn on_accepted(&mut self, wire: WireId, door: Door) {
        let connection = Connection {
            stage: Stage::Greeting(door),
            end: End::Acceptor,
            assembler: Assembler::default(),
            out: Vec::new(),
        };
        self.connections.insert(wire, connection);
    }

    /// Links come and go with the nodes that the cells talk to; whoever is connected here is looked for as well.
    pub(super) fn renew_links(&mut self, around: &mut Surroundings<'_>) {
        if !std::mem::take(&mut self.are_links_stale) {
            return;
        }
        self.close_strays(around);
        let wanted: BTreeSet<NodeId> =
            self.cells.values().flat_map(|cell| cell.peers().map(|(node, _)| node)).collect();
        let is_connected = |node: &NodeId| {
            let is_its = |stage| matches!(stage, Stage::Peer(connected, _) if connected == *node);
            self.connections.values().any(|connection| is_its(connection.stage))
        };
        let gone: Vec<NodeId> =
            self.links.keys().filter(|node| !wanted.contains(node) && !is_connected(node)).copied().collect();
        for node in gone {
            self.break_link(node, false, around);
            self.links.remove(&node);
        }
        for node in wanted {
            self.links.entry(node).or_insert_with(|| Link::new(self.now));
        }
    }

    /// Who was let in before a list came that names another directory is let in no longer, and the link to the member is
    /// made anew, as in the shell.
    fn close_strays(&mut self, around: &mut Surroundings<'_>) {
        let incarnation_of = |stage| match stage {
            Stage::Peer(node, incarnation) | Stage::Link(node, _, Some(incarnation)) => {
                Some((node, incarnation))
            }
            Stage::Link(_, _, None) | Stage::Client(_) | Stage::Greeting(_) => None,
        };
        let strays: Vec<(WireId, NodeId, String)> = self
            .connections
            .iter()
            .filter_map(|(wire, connection)| {
                let (node, incarnation) = incarnation_of(connection.stage)?;
                Some((*wire, node, hello::objection(self.cells.values(), node, incarnation)?))
            })
            .collect();
        for (wire, node, detail) in strays {
            self.note_unwelcome(&detail, around);
            self.on_wire_closed(wire, around);
            self.break_link(node, false, around);
        }
    }

    /// What the operator reads of a connection that is not to be.
    fn note_unwelcome(&self, detail: &str, around: &mut Surroundings<'_>) {
        if detail.contains("formatted again") {
            around.judges.set(Mark::MemberReplaced);
        }
        let node = self.identity.node;
        let now = around.fabric.now();
        around
            .fabric
            .trace
            .note(now, &[26, u64::from(node.0)], || format!("node {node}: no connection: {detail}"));
    }

    /// Dials the links whose time has come, and gives up attempts that take too long.
    pub(super) fn dial_due(&mut self, around: &mut Surroundings<'_>) {
        let now = self.now;
        let due: Vec<NodeId> = self
            .links
            .iter()
            .filter(|(_, link)| !link.is_up && link.due <= now)
            .map(|(node, _)| *node)
            .collect();
        for node in due {
            if self.links.get(&node).is_some_and(Link::is_idle) {
                self.dial(node, around);
            } else {
                self.break_link(node, false, around);
            }
        }
    }

    fn dial(&mut self, node: NodeId, around: &mut Surroundings<'_>) {
        let to = usize::from(node.0) - 1;
        for lane in [Lane::Control, Lane::Bulk] {
            let wire = around.fabric.dial(Site::Node(self.place), to, Door::Peer);
            let connection = Connection {
                stage: Stage::Link(node, lane, None),
                end: End::Dialer,
                assembler: Assembler::default(),
                out: Vec::new(),
            };
            self.connections.insert(wire, connection);
            if let Some(link) = self.links.get_mut(&node) {
                link.set(lane, LinkWire::Dialing(wire));
                link.due = self.now + ATTEMPT_MAX;
            }
        }
    }

    pub(super) fn on_connected(&mut self, wire: WireId) {
        let Some(Stage::Link(node, lane, _)) = self.connections.get(&wire).map(|connection| connection.stage)
        else {
            return;
        };
        let peer =
            PeerIdentity { node: self.identity.node, to: node, shard: 0, incarnation: self.incarnation };
        let hello = Hello {
            protocol_min: PROTOCOL.0,
            protocol_max: PROTOCOL.1,
            cluster: self.identity.cluster,
            role: match lane {
                Lane::Control => Role::PeerControl(peer),
                Lane::Bulk => Role::PeerBulk(peer),
            },
            peer_address: "",
            credentials: b"",
        };
        let head = Head { kind: kind::HELLO, cell: CellId(0), correlation: Correlation(0) };
        let mut bytes = Vec::new();
        frame::encode(&mut bytes, head, |out| hello.put(out));
        self.write(Some(wire), &bytes);
    }

    pub(super) fn on_dial_failed(&mut self, wire: WireId, is_refused: bool, around: &mut Surroundings<'_>) {
        if let Some(Stage::Link(node, ..)) = self.connections.get(&wire).map(|connection| connection.stage) {
            self.break_link(node, is_refused, around);
        }
    }

    /// A connection is gone, or is closed from here.
    pub(super) fn on_wire_closed(&mut self, wire: WireId, around: &mut Surroundings<'_>) {
        let Some(connection) = self.connections.remove(&wire) else { return };
        around.fabric.close(wire, connection.end);
        match connection.stage {
            Stage::Client(cell) => {
                self.step(cell, Input::Disconnected { connection: ConnectionId(wire.0) }, around);
            }
            Stage::Link(node, ..) => self.break_link(node, false, around),
            Stage::Peer(..) => self.are_links_stale = true,
            Stage::Greeting(_) => {}
        }
    }

    fn break_link(&mut self, node: NodeId, is_refused: bool, around: &mut Surroundings<'_>) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&node) else { return };
        if link.is_idle() {
            return;
        }
        let wires = [link.control.any(), link.bulk.any()];
        (link.control, link.bulk) = (LinkWire::Down, LinkWire::Down);
        link.beats.clear();
        let was_up = std::mem::take(&mut link.is_up);
        if was_up {
            link.due = now;
        } else {
            link.due = now + link.pause;
            link.pause = Span((link.pause.0 * 2).min(RETRY_MAX.0));
        }
        for wire in wires.into_iter().flatten() {
            self.connections.remove(&wire);
            around.fabric.close(wire, End::Dialer);
        }
        if was_up || is_refused {
            self.step_all(around, |_| Input::LinkDown { peer: node, is_refused });
        }
    }

    pub(super) fn on_bytes(&mut self, wire: WireId, bytes: &[u8], around: &mut Surroundings<'_>) {
        let mut rest = bytes;
        loop {
            let Some(connection) = self.connections.get_mut(&wire) else { return };
            let stage = connection.stage;
            let limit = match stage {
                Stage::Greeting(_) | Stage::Client(_) => CLIENT_FRAME_BYTES_MAX,
                Stage::Peer(..) | Stage::Link(..) => PEER_FRAME_BYTES_MAX,
            };
            let mut assembler = std::mem::take(&mut connection.assembler);
            let is_more = match assembler.next(&mut rest, limit) {
                Ok(Some(frame)) => {
                    self.on_frame(wire, stage, &frame, around);
                    true
                }
                Ok(None) => false,
                Err(error) => panic!("bytes of the simulator's own making are no frame: {error}"),
            };
            if let Some(connection) = self.connections.get_mut(&wire) {
                connection.assembler = assembler;
            }
            if !is_more {
                return;
            }
        }
    }

    fn on_frame(&mut self, wire: WireId, stage: Stage, frame: &Frame<'_>, around: &mut Surroundings<'_>) {
        match stage {
            Stage::Greeting(door) => self.on_hello(wire, door, frame, around),
            Stage::Client(cell) => {
                let connection = ConnectionId(wire.0);
                let input = match Request::decode(frame) {
                    Ok(request) if frame.head.cell == cell => {
                        Input::Request { connection, correlation: frame.head.correlation, request }
                    }
                    Ok(_) => Input::Malformed { connection, head: frame.head, error: None },
                    Err(error) => Input::Malformed { connection, head: frame.head, error: Some(error) },
                };
                if let Input::Request { request, .. } = &input
                    && self.cells.get(&cell).is_some_and(|cell| cell.raft().is_leader())
                {
                    around.judges.on_asked(cell, wire, request);
                }
                self.step(cell, input, around);
            }
            Stage::Peer(from, _) => self.on_peer_frame(from, frame, around),
            Stage::Link(node, lane, _) => self.on_welcome(wire, node, lane, frame, around),
        }
    }

    fn on_hello(&mut self, wire: WireId, door: Door, frame: &Frame<'_>, around: &mut Surroundings<'_>) {
        let port = match door {
            Door::Client => Port::Client,
            Door::Peer => Port::Peer,
        };
        let hello = Hello::decode(frame.body).expect("a Hello of the real parts is one");
        let welcome = hello::welcome(&self.identity, self.cells.values(), port, frame.head.cell, &hello);
        let (status, detail) = match &welcome {
            Ok(_) => (Status::Ok, ""),
            Err(unwelcome) => (unwelcome.status, unwelcome.detail.as_str()),
        };
        let cell = self.cells.get(&frame.head.cell).or_else(|| self.cells.values().next());
        let (leader, leader_address) = cell.map_or((NodeId(0), ""), |cell| cell.leader());
        let reply = HelloReply {
            status,
            detail,
            protocol: PROTOCOL.1,
            node: self.identity.node,
            cluster: self.identity.cluster,
            incarnation: self.incarnation,
            ttl_ms_min: TTL_MS_MIN,
            ttl_ms_max: TTL_MS_MAX,
            leader,
            leader_address,
        };
        let mut bytes = Vec::new();
        let head = Head { kind: kind::HELLO | kind::REPLY, ..frame.head };
        frame::encode(&mut bytes, head, |out| reply.put(out));
        self.write(Some(wire), &bytes);
        match welcome {
            Ok(welcome) => {
                if let Welcome::Peer { node, .. } = &welcome {
                    self.links.entry(*node).or_insert_with(|| Link::new(self.now));
                }
                if let Some(connection) = self.connections.get_mut(&wire) {
                    connection.stage = match welcome {
                        Welcome::Client(cell) => Stage::Client(cell),
                        Welcome::Peer { node, incarnation, .. } => Stage::Peer(node, incarnation),
                    };
                }
            }
            Err(unwelcome) => {
                self.note_unwelcome(&unwelcome.detail, around);
                self.flush(around);
                self.on_wire_closed(wire, around);
            }
        }
    }

    fn on_peer_frame(&mut self, from: NodeId, frame: &Frame<'_>, around: &mut Surroundings<'_>) {
        if frame.head.kind == peer_kind::BEATS {
            let beats = decode_beats(frame).expect("beats of the real parts are beats");
            for beat in beats.iter() {
                self.step(beat.cell, Input::Beat { from, beat }, around);
            }
            return;
        }
        let message = PeerMessage::decode(frame).expect("messages of the real parts are messages");
        self.step(frame.head.cell, Input::Peer { from, message }, around);
    }

    fn on_welcome(
        &mut self,
        wire: WireId,
        node: NodeId,
        lane: Lane,
        frame: &Frame<'_>,
        around: &mut Surroundings<'_>,
    ) {
        let reply = HelloReply::decode(frame.body).expect("a welcome of the real parts is one");
        if let Err(detail) = hello::recognize(self.cells.values(), node, &reply) {
            self.note_unwelcome(&detail, around);
            return self.break_link(node, false, around);
        }
        if let Some(connection) = self.connections.get_mut(&wire) {
            connection.stage = Stage::Link(node, lane, Some(reply.incarnation));
        }
        let Some(link) = self.links.get_mut(&node) else { return };
        link.set(lane, LinkWire::Up(wire));
        if link.is_up || link.control.up().is_none() || link.bulk.up().is_none() {
            return;
        }
        link.is_up = true;
        link.pause = RETRY_MIN;
        self.step_all(around, |_| Input::LinkUp { peer: node });
    }

    /// Whether a wire is a client's of this cell.
    pub(super) fn serves_client(&self, wire: WireId, cell: CellId) -> bool {
        self.connections.get(&wire).is_some_and(|connection| connection.stage == Stage::Client(cell))
    }
}
