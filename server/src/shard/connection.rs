//! The connections of one shard: what each is for, what has come in, what waits to go out.
//!
//! Invariants: an id names one connection for as long as the process lives; at most one send is in flight
//! on a connection, and what gathers meanwhile goes out with the next. Deliberately absent: what the
//! bytes mean.

use lockstep_core::hello::Port;
use lockstep_core::{ConnectionId, Lane};
use lockstep_ring::{Ring, Socket, Token};
use lockstep_wire::frame::Assembler;
use lockstep_wire::{CellId, Incarnation, NodeId};
use rustix::net::{Shutdown, shutdown};

/// Bits of an id that say where the connection stands; the rest tell the connections there apart.
const INDEX_BITS: u32 = 20;
/// Bytes of a spare buffer that is kept for the next send.
const SPARE_BYTES_MAX: usize = 256 * 1024;

/// What an operation on a connection was; the low bits of its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketOp {
    Receive = 0,
    Send = 1,
    Connect = 2,
    Close = 3,
}

/// Bits of a token below the id of its connection.
const OP_BITS: u32 = 2;

/// The token of an operation on a connection.
pub(super) fn token(id: ConnectionId, op: SocketOp) -> Token {
    Token(id.0 << OP_BITS | op as u64)
}

/// The connection and the operation of a token.
pub(super) fn parse(token: Token) -> (ConnectionId, SocketOp) {
    let op = match token.0 & ((1 << OP_BITS) - 1) {
        0 => SocketOp::Receive,
        1 => SocketOp::Send,
        2 => SocketOp::Connect,
        _ => SocketOp::Close,
    };
    (ConnectionId(token.0 >> OP_BITS), op)
}

/// What a connection is for, and how far it has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// Somebody connected and has not said a valid Hello; these bytes have come.
    Greeting { port: Port, bytes: Vec<u8> },
    /// A client of a cell.
    Client { cell: CellId },
    /// A member that sends to us, and the incarnation of its directory.
    Peer { node: NodeId, incarnation: Incarnation },
    /// A member that we send to; not before it has welcomed us and said which incarnation its directory is.
    Link { node: NodeId, lane: Lane, incarnation: Option<Incarnation> },
    /// Being closed; whatever still comes of it is dropped.
    Closing,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Socket,
    pub(super) stage: Stage,
    pub(super) assembler: Assembler,
    /// What waits to go out.
    pub(super) out: Vec<u8>,
    spare: Vec<u8>,
    is_sending: bool,
    is_dirty: bool,
    /// Closed once what waits has gone out.
    closes_after_send: bool,
}

/// The connections of one shard.
#[derive(Debug, Default)]
pub(super) struct Connections {
    slots: Vec<Slot>,
    free: Vec<usize>,
    dirty: Vec<ConnectionId>,
    len: usize,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u64,
    connection: Option<Connection>,
}

impl Connections {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The other ends that are members, as far as they were let in, and the incarnations of their directories.
    pub(super) fn members(&self) -> impl Iterator<Item = (ConnectionId, NodeId, Incarnation)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let (node, incarnation) = match slot.connection.as_ref()?.stage {
                Stage::Peer { node, incarnation }
                | Stage::Link { node, incarnation: Some(incarnation), .. } => (node, incarnation),
                Stage::Link { .. } | Stage::Client { .. } | Stage::Greeting { .. } | Stage::Closing => {
                    return None;
                }
            };
            Some((Self::id(slot, index), node, incarnation))
        })
    }

    /// Adds a connection.
    pub(super) fn insert(&mut self, socket: Socket, stage: Stage) -> ConnectionId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        assert!(index < 1 << INDEX_BITS, "the limit of open files is far below");
        let slot = &mut self.slots[index];
        slot.generation += 1;
        slot.connection = Some(Connection {
            socket,
            stage,
            assembler: Assembler::default(),
            out: Vec::new(),
            spare: Vec::new(),
            is_sending: false,
            is_dirty: false,
            closes_after_send: false,
        });
        self.len += 1;
        Self::id(&self.slots[index], index)
    }

    fn id(slot: &Slot, index: usize) -> ConnectionId {
        ConnectionId(slot.generation << INDEX_BITS | index as u64)
    }

    fn index(id: ConnectionId) -> usize {
        usize::try_from(id.0 & ((1 << INDEX_BITS) - 1)).expect("an index has few bits")
    }

    /// The connection with this id, unless it is gone.
    pub(super) fn get(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(Self::index(id))?;
        if slot.generation == id.0 >> INDEX_BITS { slot.connection.as_mut() } else { None }
    }

    /// Whether it has not said a valid Hello.
    pub(super) fn is_greeting(&mut self, id: ConnectionId) -> bool {
        matches!(self.get(id).map(|connection| &connection.stage), Some(Stage::Greeting { .. }))
    }

    /// Forgets a connection whose socket is closed or has been given away.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        self.get(id)?;
        let index = Self::index(id);
        self.free.push(index);
        self.len -= 1;
        self.slots[index].connection.take()
    }

    /// Adds bytes to what goes out at the end of the turn. False when more waits than `bytes_max`.
    pub(super) fn write(&mut self, id: ConnectionId, bytes: &[u8], bytes_max: usize) -> bool {
        let Some(connection) = self.get(id) else { return true };
        if matches!(connection.stage, Stage::Closing) {
            return true;
        }
        if connection.out.len() + bytes.len() > bytes_max {
            return false;
        }
        connection.out.extend_from_slice(bytes);
        if !std::mem::replace(&mut connection.is_dirty, true) {
            self.dirty.push(id);
        }
        true
    }

    /// Starts a send on every connection that has something to say and is not saying anything.
    pub(super) fn flush(&mut self, ring: &Ring) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            if let Some(connection) = self.get(id) {
                connection.is_dirty = false;
                connection.send(ring, id);
            }
        }
        self.dirty = dirty;
    }

    /// Takes a send's buffer back and goes on with what has gathered. True when the connection was to be
    /// closed after it.
    pub(super) fn on_sent(&mut self, ring: &Ring, id: ConnectionId, buffer: Vec<u8>) -> bool {
        let Some(connection) = self.get(id) else { return false };
        connection.is_sending = false;
        if buffer.capacity() <= SPARE_BYTES_MAX {
            connection.spare = buffer;
            connection.spare.clear();
        }
        connection.send(ring, id);
        connection.closes_after_send && !connection.is_sending
    }

    /// Ends the sending half of every connection on which nothing waits to go out, so that whoever is at its other end
    /// reads what was sent last, then learns at once that nobody will answer any more.
    pub(super) fn end(&mut self, ring: &Ring) {
        for connection in self.slots.iter_mut().filter_map(|slot| slot.connection.as_mut()) {
            let is_quiet = !connection.is_sending && connection.out.is_empty();
            if is_quiet && !matches!(connection.stage, Stage::Closing) {
                connection.stage = Stage::Closing;
                // What cannot be ended in order ends with the process a moment later.
                let _ = ring.with_socket(connection.socket, |fd| shutdown(fd, Shutdown::Write));
            }
        }
    }

    /// Closes a connection at once, or after what waits has gone out.
    pub(super) fn close(&mut self, ring: &Ring, id: ConnectionId, after_send: bool) {
        let Some(connection) = self.get(id) else { return };
        connection.send(ring, id);
        if after_send && connection.is_sending {
            connection.closes_after_send = true;
        } else if !matches!(connection.stage, Stage::Closing) {
            connection.stage = Stage::Closing;
            connection.out.clear();
            ring.close(connection.socket, token(id, SocketOp::Close));
        }
    }
}

impl Connection {
    fn send(&mut self, ring: &Ring, id: ConnectionId) {
        let is_connected = !matches!(self.stage, Stage::Closing);
        if self.is_sending || self.out.is_empty() || !is_connected {
            return;
        }
        self.is_sending = true;
        let buffer = std::mem::replace(&mut self.out, std::mem::take(&mut self.spare));
        ring.send(self.socket, buffer, token(id, SocketOp::Send));
    }

    /// Whether it is about to be closed: nothing more is read from it.
    pub(super) fn is_ending(&self) -> bool {
        self.closes_after_send || matches!(self.stage, Stage::Closing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_connection_and_operation() {
        for op in [SocketOp::Receive, SocketOp::Send, SocketOp::Connect, SocketOp::Close] {
            let id = ConnectionId(77 << INDEX_BITS | 5);
            assert_eq!(parse(token(id, op)), (id, op));
        }
    }
}
