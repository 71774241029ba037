//! Connections on one ring: frames come in, and what is written goes out once a turn.
//!
//! Invariant: at most one send of a connection is in flight, and what gathers meanwhile goes out with the next.
//! Deliberately absent: what the bytes mean; that is the party's whose connections they are.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use lockstep_ring::net::{SocketOptions, outgoing};
use lockstep_ring::{Completion, GroupId, Ring, Socket, Token};
use lockstep_wire::frame::{Assembler, Frame};

const OP_RECEIVE: u64 = 0;
const OP_SEND: u64 = 1;
const OP_CONNECT: u64 = 2;

fn token(at: usize, op: u64) -> Token {
    Token(at as u64 * 4 + op)
}

/// How a connection is heard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hearing {
    /// Where its bytes are put.
    pub(crate) group: GroupId,
    /// The longest frame that it may send.
    pub(crate) frame_bytes_max: usize,
}

struct Connection {
    socket: Socket,
    hearing: Hearing,
    assembler: Assembler,
    /// What goes out with the next flush.
    out: Vec<u8>,
    spare: Vec<u8>,
    is_sending: bool,
    is_dirty: bool,
}

impl Connection {
    fn flush(&mut self, ring: &Ring, token: Token) {
        if !self.is_sending && !self.out.is_empty() {
            self.is_sending = true;
            let bytes = std::mem::replace(&mut self.out, std::mem::take(&mut self.spare));
            ring.send(self.socket, bytes, token);
        }
    }
}

/// The connections of one party, numbered as they come.
pub(crate) struct Connections<'r> {
    ring: &'r Ring,
    all: Vec<Connection>,
    /// Those that were written to since the last flush.
    dirty: Vec<usize>,
}

impl<'r> Connections<'r> {
    pub(crate) fn new(ring: &'r Ring) -> Connections<'r> {
        Connections { ring, all: Vec::new(), dirty: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Begins to connect; [`Party::on_connected`] says when that is done.
    pub(crate) fn dial(&mut self, to: SocketAddr, hearing: Hearing) -> anyhow::Result<()> {
        let socket = self.ring.adopt_socket(outgoing(to, None, &SocketOptions::default())?);
        self.ring.connect(socket, to, token(self.len(), OP_CONNECT));
        self.add(socket, hearing);
        Ok(())
    }

    /// Takes over a connection that somebody else has made.
    pub(crate) fn adopt(&mut self, fd: OwnedFd, hearing: Hearing) {
        self.add(self.ring.adopt_socket(fd), hearing);
        self.listen(self.len() - 1);
    }

    fn add(&mut self, socket: Socket, hearing: Hearing) {
        self.all.push(Connection {
            socket,
            hearing,
            assembler: Assembler::default(),
            out: Vec::new(),
            spare: Vec::new(),
            is_sending: false,
            is_dirty: false,
        });
    }

    fn listen(&self, at: usize) {
        let Connection { socket, hearing, .. } = &self.all[at];
        self.ring.receive_multishot(*socket, hearing.group, token(at, OP_RECEIVE));
    }

    /// What goes out with the next flush, for more to be put behind it.
    pub(crate) fn out(&mut self, at: usize) -> &mut Vec<u8> {
        let connection = &mut self.all[at];
        if !std::mem::replace(&mut connection.is_dirty, true) {
            self.dirty.push(at);
        }
        &mut connection.out
    }

    /// Sends what was written; where a send is in flight, once that is done.
    pub(crate) fn flush(&mut self) {
        for at in self.dirty.drain(..) {
            self.all[at].is_dirty = false;
            self.all[at].flush(self.ring, token(at, OP_SEND));
        }
    }
}

/// One end of all of its connections.
pub(crate) trait Party<'r> {
    fn connections(&mut self) -> &mut Connections<'r>;

    /// A connection stands that was dialed.
    fn on_connected(&mut self, at: usize);

    fn on_frame(&mut self, at: usize, frame: &Frame<'_>, now: Instant) -> anyhow::Result<()>;

    /// What is done and is no connection's, and the end of a connection, which nobody expects unless he says so here.
    fn on_other(&mut self, at: usize, completion: Completion<'_>) -> anyhow::Result<()> {
        bail!("connection {at} has ended: {completion:?}")
    }

    /// Waits until something is done, and takes all that is. Tells when that was.
    fn turn(&mut self, patience: Duration) -> anyhow::Result<Instant> {
        let ring = self.connections().ring;
        ring.submit_and_wait(Some(patience)).context("the ring refused to go on")?;
        let now = Instant::now();
        for completion in ring.completions() {
            self.on_completion(completion, now)?;
        }
        Ok(now)
    }

    fn on_completion(&mut self, completion: Completion<'_>, now: Instant) -> anyhow::Result<()> {
        let number = completion.token().map_or(0, |token| token.0 / 4);
        let at = usize::try_from(number).expect("numbers are small");
        match completion {
            Completion::Received { bytes, is_armed, .. } => {
                self.on_bytes(at, &bytes, now)?;
                drop(bytes);
                if !is_armed {
                    self.connections().listen(at);
                }
            }
            Completion::ReceiveStarved { .. } => self.connections().listen(at),
            Completion::Sent { mut buffer, result, .. } => {
                result.context("a send failed")?;
                buffer.clear();
                let connections = self.connections();
                let connection = &mut connections.all[at];
                (connection.spare, connection.is_sending) = (buffer, false);
                connection.flush(connections.ring, token(at, OP_SEND));
            }
            Completion::Connected { result, .. } => {
                result.context("the other end could not be reached")?;
                self.on_connected(at);
                self.connections().listen(at);
            }
            other => self.on_other(at, other)?,
        }
        Ok(())
    }

    fn on_bytes(&mut self, at: usize, bytes: &[u8], now: Instant) -> anyhow::Result<()> {
        let connection = &mut self.connections().all[at];
        let frame_bytes_max = connection.hearing.frame_bytes_max;
        let mut assembler = std::mem::take(&mut connection.assembler);
        let mut rest = bytes;
        while let Some(frame) = assembler.next(&mut rest, frame_bytes_max)? {
            self.on_frame(at, &frame, now)?;
        }
        self.connections().all[at].assembler = assembler;
        Ok(())
    }
}
