//! The protocol by hand: one connection that says exactly what it is told and hides nothing of the answers.
//!
//! Invariant: every frame that is read has a right checksum. Deliberately absent: retries, hints that are followed, and
//! anything that a client library would do.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use lockstep_wire::frame::{self, Assembler, Frame, Head};
use lockstep_wire::hello::{Hello, HelloReply, PROTOCOL, Role};
use lockstep_wire::limit::REPLY_FRAME_BYTES_MAX;
use lockstep_wire::reply::Reply;
use lockstep_wire::request::{Request, kind};
use lockstep_wire::{CellId, ClusterId, Correlation, NodeId, Status};

/// How long an answer may take before the connection counts as dead.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A welcomed connection of a client.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    cell: CellId,
    correlation: u64,
    /// Who answered.
    pub(crate) node: NodeId,
    /// The leader that the node knew when it answered.
    pub(crate) leader: NodeId,
    /// Where that leader is; none when not known.
    pub(crate) leader_address: Option<SocketAddr>,
}

/// What came back.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Its head.
    pub(crate) head: Head,
    /// Its body.
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// As a reply.
    pub(crate) fn reply(&self) -> Reply<'_> {
        let frame = Frame { head: self.head, body: &self.body };
        Reply::decode(&frame).expect("a reply is what the protocol says")
    }
}

impl Connection {
    /// Connects and says Hello as a client of the cell.
    pub(crate) fn open(address: SocketAddr, cell: CellId) -> io::Result<Connection> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        stream.write_all(&hello(cell, ClusterId::default(), Role::Client))?;
        let answer = read_frame(&mut stream)?;
        let reply = HelloReply::decode(&answer.body).map_err(io::Error::other)?;
        if reply.status != Status::Ok {
            return Err(io::Error::other(format!("{}: {}", reply.status.name(), reply.detail)));
        }
        let (node, leader) = (reply.node, reply.leader);
        let leader_address = reply.leader_address.parse().ok();
        Ok(Connection { stream, cell, correlation: 0, node, leader, leader_address })
    }

    /// Sends a request and does not wait.
    pub(crate) fn send(&mut self, request: &Request<'_>) -> io::Result<Correlation> {
        self.correlation += 1;
        let correlation = Correlation(self.correlation);
        let mut bytes = Vec::new();
        request.encode(self.cell, correlation, &mut bytes);
        self.stream.write_all(&bytes)?;
        Ok(correlation)
    }

    /// The next answer; events that nobody asked for are passed over.
    pub(crate) fn receive(&mut self) -> io::Result<Answer> {
        loop {
            let answer = read_frame(&mut self.stream)?;
            if answer.head.kind != kind::EVENT {
                return Ok(answer);
            }
        }
    }

    /// The final answer to this request; others are passed over.
    pub(crate) fn receive_final(&mut self, correlation: Correlation) -> io::Result<Answer> {
        let deadline = Instant::now() + ANSWER_MAX;
        while Instant::now() < deadline {
            let answer = self.receive()?;
            if answer.head.correlation == correlation && answer.reply().status() != Status::Queued {
                return Ok(answer);
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Sends a request and waits for its final answer.
    pub(crate) fn call(&mut self, request: &Request<'_>) -> io::Result<Answer> {
        let correlation = self.send(request)?;
        self.receive_final(correlation)
    }
}

/// The bytes of a Hello.
pub(crate) fn hello(cell: CellId, cluster: ClusterId, role: Role) -> Vec<u8> {
    let hello = Hello {
        protocol_min: PROTOCOL.0,
        protocol_max: PROTOCOL.1,
        cluster,
        role,
        peer_address: "",
        credentials: b"",
    };
    let mut bytes = Vec::new();
    let head = Head { kind: kind::HELLO, cell, correlation: Correlation(0) };
    frame::encode(&mut bytes, head, |out| hello.put(out));
    bytes
}

/// Reads one frame, and no byte more.
pub(crate) fn read_frame(stream: &mut impl Read) -> io::Result<Answer> {
    let mut bytes = vec![0; 8];
    stream.read_exact(&mut bytes)?;
    let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
    if length > REPLY_FRAME_BYTES_MAX {
        return Err(io::Error::other(format!("a reply of {length} bytes is over the limit")));
    }
    bytes.resize(8 + length, 0);
    stream.read_exact(&mut bytes[8..])?;
    let mut assembler = Assembler::default();
    let mut rest = bytes.as_slice();
    match assembler.next(&mut rest, REPLY_FRAME_BYTES_MAX) {
        Ok(Some(frame)) => Ok(Answer { head: frame.head, body: frame.body.to_vec() }),
        Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) => Err(io::Error::other(error.to_string())),
    }
}

/// A connection to the leader of the cell, once there is one that answers a linearizable read.
#[track_caller]
pub(crate) fn leader(endpoints: &[SocketAddr], cell: CellId, patience: Duration) -> Connection {
    crate::until("a leader serves the cell", patience, || {
        endpoints.iter().find_map(|endpoint| try_leader(*endpoint, cell).ok().flatten())
    })
}

/// A connection to the leader if this member is it or knows it.
pub(crate) fn try_leader(endpoint: SocketAddr, cell: CellId) -> io::Result<Option<Connection>> {
    let mut connection = Connection::open(endpoint, cell)?;
    if connection.leader != connection.node {
        let Some(address) = connection.leader_address else { return Ok(None) };
        connection = Connection::open(address, cell)?;
    }
    let answer = connection.call(&Request::GetLock { name: "/ls/probe/leader" })?;
    Ok(matches!(answer.reply(), Reply::Lock(_)).then_some(connection))
}
