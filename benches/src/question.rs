//! Single questions to a member, each on a connection of its own.
//!
//! Invariant: an answer comes within a bounded time, or is an error. Deliberately absent: retries and hints.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use lockstep_wire::frame::{self, Assembler, Frame, Head};
use lockstep_wire::hello::{Hello, HelloReply, PROTOCOL, Role};
use lockstep_wire::limit::{REPLY_FRAME_BYTES_MAX, TTL_MS_MAX};
use lockstep_wire::reply::Reply;
use lockstep_wire::request::{Request, kind};
use lockstep_wire::{CellId, ClusterId, Correlation, LogIndex, Nonce, Status, Term};

/// The cell that is asked.
pub(crate) const CELL: CellId = CellId(0);
/// Correlation ids from here on belong to sessions.
pub(crate) const SESSION_CORRELATION: u64 = 1 << 32;
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Finds the member that serves: the one that opens a session.
///
/// # Errors
/// When there is none in time; the last member's reason.
pub fn find_leader(members: &[SocketAddr], patience: Duration) -> anyhow::Result<SocketAddr> {
    let deadline = Instant::now() + patience;
    loop {
        let mut last = None;
        for member in members {
            match open_and_close(*member) {
                Ok(()) => return Ok(*member),
                Err(error) => last = Some(error),
            }
        }
        if Instant::now() > deadline {
            return Err(last.unwrap_or_else(|| anyhow::anyhow!("there is no member"))).context("no leader");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn open_and_close(member: SocketAddr) -> anyhow::Result<()> {
    let mut asking = Asking::begin(member)?;
    let mut open = Vec::new();
    put_open(u64::MAX, &mut open);
    let session = asking.ask(&open, |frame| match Reply::decode(frame)? {
        Reply::Opened { session, .. } => Ok(session),
        other => bail!("{other:?}"),
    })?;
    asking.call(&Request::CloseSession { session }, |_| Ok(()))
}

/// How a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Whether it leads.
    pub is_leader: bool,
    /// Its term.
    pub term: Term,
    /// What it knows to be committed.
    pub committed: LogIndex,
    /// What it has applied.
    pub applied: LogIndex,
    /// The digest of its state.
    pub digest: u64,
    /// Locks in it.
    pub locks: u64,
    /// Sessions in it.
    pub sessions: u64,
}

/// Asks a member how it is.
///
/// # Errors
/// When it does not answer, or not with that.
pub fn status(member: SocketAddr) -> anyhow::Result<MemberStatus> {
    Asking::begin(member)?.call(&Request::Status, |frame| match Reply::decode(frame)? {
        Reply::Status(status) => Ok(MemberStatus {
            is_leader: status.role == "leader",
            term: status.term,
            committed: status.committed,
            applied: status.applied,
            digest: status.digest,
            locks: status.locks,
            sessions: status.sessions,
        }),
        other => bail!("{other:?}"),
    })
}

/// A welcomed connection.
struct Asking {
    member: SocketAddr,
    stream: TcpStream,
    assembler: Assembler,
}

impl Asking {
    fn begin(member: SocketAddr) -> anyhow::Result<Asking> {
        let stream = TcpStream::connect_timeout(&member, ANSWER_MAX)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let mut asking = Asking { member, stream, assembler: Assembler::default() };
        let mut hello = Vec::new();
        put_hello(&mut hello);
        asking.ask(&hello, check_welcome)?;
        Ok(asking)
    }

    fn call<T>(
        &mut self,
        request: &Request<'_>,
        read: impl FnOnce(&Frame<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let mut bytes = Vec::new();
        request.encode(CELL, Correlation(SESSION_CORRELATION), &mut bytes);
        self.ask(&bytes, read)
    }

    fn ask<T>(
        &mut self,
        bytes: &[u8],
        read: impl FnOnce(&Frame<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.stream.write_all(bytes)?;
        self.hear(read)
    }

    fn hear<T>(&mut self, read: impl FnOnce(&Frame<'_>) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let mut chunk = [0; 4096];
        loop {
            let count = self.stream.read(&mut chunk)?;
            ensure!(count > 0, "{} has closed the connection", self.member);
            let mut rest = &chunk[..count];
            if let Some(frame) = self.assembler.next(&mut rest, REPLY_FRAME_BYTES_MAX)? {
                return read(&frame);
            }
        }
    }
}

pub(crate) fn put_hello(out: &mut Vec<u8>) {
    let hello = Hello {
        protocol_min: PROTOCOL.0,
        protocol_max: PROTOCOL.1,
        cluster: ClusterId([0; 16]),
        role: Role::Client,
        peer_address: "",
        credentials: b"",
    };
    let head = Head { kind: kind::HELLO, cell: CELL, correlation: Correlation(SESSION_CORRELATION) };
    frame::encode(out, head, |out| hello.put(out));
}

pub(crate) fn check_welcome(frame: &Frame<'_>) -> anyhow::Result<()> {
    ensure!(frame.head.kind == kind::HELLO | kind::REPLY, "the first answer is no welcome");
    let reply = HelloReply::decode(frame.body)?;
    ensure!(reply.status == Status::Ok, "{}: {}", reply.status.name(), reply.detail);
    Ok(())
}

/// Opens a session; a cell takes the connection's number and the moment for a nonce that nobody else has.
pub(crate) fn put_open(number: u64, out: &mut Vec<u8>) {
    let mut nonce = [0; 16];
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    nonce[8..].copy_from_slice(&now.as_nanos().to_le_bytes()[..8]);
    let request = Request::OpenSession { client_id: "quick/bench", ttl_ms: TTL_MS_MAX, nonce: Nonce(nonce) };
    request.encode(CELL, Correlation(SESSION_CORRELATION), out);
}
