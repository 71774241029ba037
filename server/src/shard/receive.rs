//! What comes of sockets: bytes into frames into inputs, and connections that come and go.
//!
//! Invariant: bytes that are no frame of this connection close it, leave one rate-limited line, and
//! disturb nothing else. Deliberately absent: what a message means.

use lockstep_core::hello::recognize;
use lockstep_core::{ConnectionId, Input, Lane};
use lockstep_ring::net::outgoing;
use lockstep_ring::{Completion, Ring};
use lockstep_wire::frame::Frame;
use lockstep_wire::hello::HelloReply;
use lockstep_wire::peer::{PeerMessage, decode_beats, kind as peer_kind};
use lockstep_wire::request::{Request, kind};
use lockstep_wire::{CellId, NodeId};

use super::connection::{SocketOp, Stage, parse, token};
use super::greeting::is_refusal;
use super::link::{Wire, socket_options};
use super::{Shard, ShardError};

/// What a connection is for, as far as its bytes are concerned.
#[derive(Clone, Copy)]
enum Speaker {
    Client(CellId),
    Peer(NodeId),
    /// A member that we send to; what it may still say is whether we are welcome.
    Link {
        node: NodeId,
        lane: Lane,
        is_welcome: bool,
    },
}

impl Shard {
    pub(super) fn on_socket(&mut self, ring: &Ring, completion: Completion<'_>) -> Result<(), ShardError> {
        let Some(operation) = completion.token() else { return Ok(()) };
        let (id, _) = parse(operation);
        match completion {
            Completion::Received { bytes, is_armed, .. } => {
                // Whoever reads a Hello arms what comes after it.
                let is_greeting = self.connections.is_greeting(id);
                self.on_bytes(ring, id, &bytes)?;
                drop(bytes);
                if !is_armed && !is_greeting {
                    self.listen(ring, id);
                }
            }
            Completion::ReceiveStarved { .. } => self.listen(ring, id),
            Completion::EndOfStream { .. } | Completion::ReceiveFailed { .. } => {
                self.close_connection(ring, id, false)?;
            }
            Completion::Sent { buffer, result, .. } => {
                let is_over = self.connections.on_sent(ring, id, buffer);
                if is_over || result.is_err() {
                    self.close_connection(ring, id, false)?;
                }
            }
            Completion::Connected { result, .. } => self.on_connected(ring, id, result)?,
            Completion::Closed { .. } => {
                self.connections.remove(id);
            }
            other => unreachable!("a connection does not ask for {other:?}"),
        }
        Ok(())
    }

    /// Arms the receive of a connection again.
    fn listen(&mut self, ring: &Ring, id: ConnectionId) {
        let Some(connection) = self.connections.get(id) else { return };
        let group = match connection.stage {
            Stage::Client { .. } => self.groups.client,
            Stage::Peer { .. } | Stage::Link { .. } => self.groups.peer,
            Stage::Greeting { .. } | Stage::Closing => return,
        };
        ring.receive_multishot(connection.socket, group, token(id, SocketOp::Receive));
    }

    /// Cuts bytes into frames and gives each to whom it concerns.
    pub(super) fn on_bytes(&mut self, ring: &Ring, id: ConnectionId, bytes: &[u8]) -> Result<(), ShardError> {
        let Some(connection) = self.connections.get(id).filter(|connection| !connection.is_ending()) else {
            return Ok(());
        };
        let socket = connection.socket;
        let speaker = match connection.stage {
            Stage::Client { cell } => Speaker::Client(cell),
            Stage::Peer { node, .. } => Speaker::Peer(node),
            Stage::Link { node, lane, incarnation } => {
                Speaker::Link { node, lane, is_welcome: incarnation.is_some() }
            }
            Stage::Greeting { .. } => return self.on_greeting(ring, id, bytes),
            Stage::Closing => return Ok(()),
        };
        // The assembler is taken out while its frames are looked at, and put back if the connection lives.
        let mut assembler = std::mem::take(&mut connection.assembler);
        let limit = Self::frame_bytes_max(!matches!(speaker, Speaker::Client(_)));
        let mut rest = bytes;
        loop {
            let outcome = match assembler.next(&mut rest, limit) {
                Ok(Some(frame)) => self.on_frame(ring, id, speaker, &frame)?,
                Ok(None) => break,
                Err(error) => Err(error.to_string()),
            };
            if let Err(reason) = outcome {
                self.reporter.bad_bytes(ring, socket, &reason);
                return self.close_connection(ring, id, false);
            }
            // What a frame brought about may have ended the connection; nothing behind it counts then.
            if self.connections.get(id).is_none_or(|connection| connection.is_ending()) {
                return Ok(());
            }
        }
        if let Some(connection) = self.connections.get(id) {
            connection.assembler = assembler;
        }
        Ok(())
    }

    fn on_frame(
        &mut self,
        ring: &Ring,
        id: ConnectionId,
        speaker: Speaker,
        frame: &Frame<'_>,
    ) -> Result<Result<(), String>, ShardError> {
        match speaker {
            Speaker::Client(_) if frame.head.kind == kind::HELLO => {
                Ok(Err("a second Hello, whose answer could not be told from the first".to_owned()))
            }
            Speaker::Client(cell) => {
                let input = match Request::decode(frame) {
                    _ if frame.head.cell != cell => {
                        Input::Malformed { connection: id, head: frame.head, error: None }
                    }
                    Ok(request) => {
                        Input::Request { connection: id, correlation: frame.head.correlation, request }
                    }
                    Err(error) => Input::Malformed { connection: id, head: frame.head, error: Some(error) },
                };
                self.step(cell, input)?;
                Ok(Ok(()))
            }
            Speaker::Peer(from) => self.on_peer_frame(from, frame),
            Speaker::Link { is_welcome: true, .. } => {
                Ok(Err("a member answered on a link that only carries what is sent from here".to_owned()))
            }
            Speaker::Link { node, lane, .. } => self.on_welcome(ring, id, node, lane, frame).map(Ok),
        }
    }

    fn on_peer_frame(&mut self, from: NodeId, frame: &Frame<'_>) -> Result<Result<(), String>, ShardError> {
        if frame.head.kind == peer_kind::BEATS {
            let beats = match decode_beats(frame) {
                Ok(beats) => beats,
                Err(error) => return Ok(Err(error.to_string())),
            };
            for beat in beats.iter() {
                self.step(beat.cell, Input::Beat { from, beat })?;
            }
            return Ok(Ok(()));
        }
        match PeerMessage::decode(frame) {
            Ok(message) => self.step(frame.head.cell, Input::Peer { from, message }).map(Ok),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    /// Closes a connection; a client's cell and a link's other half learn of it.
    pub(super) fn close_connection(
        &mut self,
        ring: &Ring,
        id: ConnectionId,
        after_send: bool,
    ) -> Result<(), ShardError> {
        let Some(connection) = self.connections.get(id) else { return Ok(()) };
        let (client, link, peer) = match connection.stage {
            Stage::Client { cell } => (Some(cell), None, None),
            Stage::Link { node, .. } => (None, Some(node), None),
            Stage::Peer { node, .. } => (None, None, Some(node)),
            Stage::Greeting { .. } | Stage::Closing => (None, None, None),
        };
        self.connections.close(ring, id, after_send);
        if let Some(node) = peer {
            self.on_peer_disconnected(node);
        }
        if let Some(cell) = client {
            self.step(cell, Input::Disconnected { connection: id })?;
        }
        if let Some(node) = link {
            self.break_link(ring, node, false)?;
        }
        Ok(())
    }

    /// Closes the connections over whose bounds effects have gone.
    pub(super) fn close_broken(&mut self, ring: &Ring) -> Result<(), ShardError> {
        while let Some(id) = self.broken.pop() {
            self.close_connection(ring, id, false)?;
        }
        Ok(())
    }

    /// Dials the links whose time has come, and gives up attempts that take too long.
    pub(super) fn dial_due(&mut self, ring: &Ring) -> Result<(), ShardError> {
        let now = self.now;
        let due: Vec<NodeId> =
            self.links.values().filter(|link| !link.is_up && link.due <= now).map(|link| link.node).collect();
        for node in due {
            if self.links.get(&node).is_some_and(|link| link.is_idle()) {
                self.dial(ring, node)?;
            } else {
                self.break_link(ring, node, false)?;
            }
        }
        Ok(())
    }

    fn dial(&mut self, ring: &Ring, node: NodeId) -> Result<(), ShardError> {
        for lane in [Lane::Control, Lane::Bulk] {
            let Some(link) = self.links.get_mut(&node) else { return Ok(()) };
            let Some(address) = link.address() else {
                link.on_no_socket(self.now);
                return Ok(());
            };
            let fd = match outgoing(address, None, &socket_options()) {
                Ok(fd) => fd,
                Err(error) => {
                    self.reporter.accept_failed(&error);
                    link.on_no_socket(self.now);
                    return self.break_link(ring, node, false);
                }
            };
            let socket = ring.adopt_socket(fd);
            let id = self.connections.insert(socket, Stage::Link { node, lane, incarnation: None });
            *link.wire(lane) = Wire::Dialing(id);
            link.on_dialed(self.now);
            ring.connect(socket, address, token(id, SocketOp::Connect));
        }
        Ok(())
    }

    fn on_connected(
        &mut self,
        ring: &Ring,
        id: ConnectionId,
        result: std::io::Result<()>,
    ) -> Result<(), ShardError> {
        let Some(connection) = self.connections.get(id) else { return Ok(()) };
        let Stage::Link { node, lane, .. } = connection.stage else { return Ok(()) };
        match result {
            Ok(()) => {
                self.introduce(id, node, lane);
                self.listen(ring, id);
                Ok(())
            }
            Err(error) => self.break_link(ring, node, is_refusal(&error)),
        }
    }

    /// The first and only frame that comes back on a link: whether we are welcome, and by whom.
    fn on_welcome(
        &mut self,
        ring: &Ring,
        id: ConnectionId,
        node: NodeId,
        lane: Lane,
        frame: &Frame<'_>,
    ) -> Result<(), ShardError> {
        let reply = match frame.head.kind {
            kind if kind == (kind::HELLO | kind::REPLY) => HelloReply::decode(frame.body).ok(),
            _ => None,
        };
        let recognized = match reply {
            Some(reply) => recognize(self.cells.values(), node, &reply).map(|()| reply.incarnation),
            None => Err("what answers there is not a Lockstep member".to_owned()),
        };
        let incarnation = match recognized {
            Ok(incarnation) => incarnation,
            Err(detail) => {
                self.reporter.not_welcome(node, &detail);
                return self.break_link(ring, node, false);
            }
        };
        if let Some(connection) = self.connections.get(id) {
            connection.stage = Stage::Link { node, lane, incarnation: Some(incarnation) };
        }
        let Some(link) = self.links.get_mut(&node) else { return Ok(()) };
        *link.wire(lane) = Wire::Up(id);
        if link.is_up || link.connection(Lane::Control).is_none() || link.connection(Lane::Bulk).is_none() {
            return Ok(());
        }
        link.on_up();
        self.step_all(|_| Input::LinkUp { peer: node })
    }

    /// A link broke, or could not be made.
    pub(super) fn break_link(
        &mut self,
        ring: &Ring,
        node: NodeId,
        is_refused: bool,
    ) -> Result<(), ShardError> {
        let Some(link) = self.links.get_mut(&node) else { return Ok(()) };
        if link.is_idle() {
            return Ok(());
        }
        let connections: Vec<ConnectionId> = link.connections().collect();
        let was_up = link.is_up;
        link.on_down(self.now);
        for id in connections {
            self.connections.close(ring, id, false);
        }
        if was_up || is_refused {
            self.step_all(|_| Input::LinkDown { peer: node, is_refused })?;
        }
        Ok(())
    }
}
