//! The leader of the ceiling: it writes what clients send, forwards it, and replies once a majority has it.
//!
//! Invariant: replies leave in the order of the writes, each after three confirmations. Deliberately absent:
//! sessions and locks; what a client needs to be told about them is made up.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail, ensure};
use lockstep_ring::net::{SocketOptions, outgoing};
use lockstep_ring::{Completion, GroupId, Ring, Token};
use lockstep_wire::frame::{self, Frame, Head, LEVEL};
use lockstep_wire::hello::{HelloReply, PROTOCOL};
use lockstep_wire::limit::{CLIENT_FRAME_BYTES_MAX, PEER_FRAME_BYTES_MAX, TTL_MS_MAX, TTL_MS_MIN};
use lockstep_wire::peer::{Append, AppendOutcome, EntryRow, PeerMessage};
use lockstep_wire::reply::{Grant, KeptAlive, Reply};
use lockstep_wire::request::{Request, kind};
use lockstep_wire::{
    CellId, ClusterId, Correlation, FencingToken, Incarnation, LogIndex, NodeId, RequestId, Rows, SessionId,
    Status, Term,
};

use super::disk::Disk;
use super::{CLIENT_BUFFERS, MAJORITY, NODES, PEER_BUFFERS, RING, TURN_MAX};
use crate::stream::Stream;

const CELL: CellId = CellId(0);
const ACCEPT: Token = Token(u64::MAX);
const WRITE: Token = Token(u64::MAX - 1);
const OP_RECEIVE: u64 = 0;
const OP_SEND: u64 = 1;
const OP_CONNECT: u64 = 2;

fn token(at: usize, op: u64) -> Token {
    Token(at as u64 * 4 + op)
}

/// A write that no majority has yet.
struct Pending {
    client: usize,
    kind: u16,
    correlation: Correlation,
}

struct Leader<'r> {
    ring: &'r Ring,
    address: SocketAddr,
    client_group: GroupId,
    peer_group: GroupId,
    disk: Disk,
    /// The followers first, then the clients.
    streams: Vec<Stream>,
    dirty: Vec<usize>,
    /// What each follower has confirmed.
    confirmed: [u64; NODES - 1],
    appended: u64,
    replied: u64,
    pending: VecDeque<Pending>,
    /// The payloads that came in this turn, back to back, and where each ends.
    payloads: Vec<u8>,
    ends: Vec<usize>,
    frame: Vec<u8>,
    sessions: u64,
    is_over: bool,
}

/// Runs until it is to stop.
pub(super) fn run(
    ring: &Ring,
    stop: &AtomicBool,
    file: OwnedFd,
    listener: OwnedFd,
    address: SocketAddr,
    followers: &[SocketAddr],
) -> anyhow::Result<()> {
    let client_group = ring.add_buffer_group(CLIENT_BUFFERS.0, CLIENT_BUFFERS.1)?;
    let peer_group = ring.add_buffer_group(PEER_BUFFERS.0, PEER_BUFFERS.1)?;
    let mut streams = Vec::new();
    for (at, follower) in followers.iter().enumerate() {
        let socket = ring.adopt_socket(outgoing(*follower, None, &SocketOptions::default())?);
        ring.connect(socket, *follower, token(at, OP_CONNECT));
        streams.push(Stream::new(socket));
    }
    ring.accept_multishot(ring.adopt_socket(listener), ACCEPT);
    let mut leader = Leader {
        ring,
        address,
        client_group,
        peer_group,
        disk: Disk::new(ring, file),
        streams,
        dirty: Vec::new(),
        confirmed: [0; NODES - 1],
        appended: 0,
        replied: 0,
        pending: VecDeque::new(),
        payloads: Vec::new(),
        ends: Vec::new(),
        frame: Vec::new(),
        sessions: 0,
        is_over: false,
    };
    while !stop.load(Ordering::Acquire) && !leader.is_over {
        leader.turn()?;
    }
    Ok(())
}

impl Leader<'_> {
    fn turn(&mut self) -> anyhow::Result<()> {
        self.ring.submit_and_wait(Some(TURN_MAX)).context("the ring refused to go on")?;
        for completion in self.ring.completions() {
            self.on_completion(completion)?;
        }
        self.forward();
        self.reply();
        for at in self.dirty.drain(..) {
            self.streams[at].flush(self.ring, token(at, OP_SEND));
        }
        self.disk.submit(self.ring, WRITE);
        Ok(())
    }

    fn on_completion(&mut self, completion: Completion<'_>) -> anyhow::Result<()> {
        let at = completion.token().map_or(0, |token| usize::try_from(token.0 / 4).unwrap_or(usize::MAX));
        match completion {
            Completion::Accepted { fd, is_armed, .. } => {
                ensure!(is_armed, "the listener has stopped");
                self.streams.push(Stream::new(self.ring.adopt_socket(fd)));
                self.listen(self.streams.len() - 1);
            }
            Completion::Connected { result, .. } => {
                result.context("a follower cannot be reached")?;
                self.listen(at);
            }
            Completion::Received { bytes, is_armed, .. } => {
                self.on_bytes(at, &bytes)?;
                drop(bytes);
                if !is_armed {
                    self.listen(at);
                }
            }
            Completion::ReceiveStarved { .. } => self.listen(at),
            Completion::Sent { buffer, result, .. } => {
                result.context("a send failed")?;
                self.streams[at].on_sent(self.ring, buffer, token(at, OP_SEND));
            }
            written @ Completion::Written { .. } => self.disk.on_completion(written)?,
            // A client that has gone; its socket stays until the end of the program.
            Completion::EndOfStream { .. } | Completion::ReceiveFailed { .. } if at >= NODES - 1 => {}
            // A follower that has ended knows why; without it there is nothing to measure.
            Completion::EndOfStream { .. } | Completion::ReceiveFailed { .. } => self.is_over = true,
            other => bail!("{other:?}"),
        }
        Ok(())
    }

    fn listen(&self, at: usize) {
        let group = if at < NODES - 1 { self.peer_group } else { self.client_group };
        self.ring.receive_multishot(self.streams[at].socket(), group, token(at, OP_RECEIVE));
    }

    fn on_bytes(&mut self, at: usize, bytes: &[u8]) -> anyhow::Result<()> {
        let is_follower = at < NODES - 1;
        let limit = if is_follower { PEER_FRAME_BYTES_MAX } else { CLIENT_FRAME_BYTES_MAX };
        let mut assembler = std::mem::take(&mut self.streams[at].assembler);
        let mut rest = bytes;
        while let Some(frame) = assembler.next(&mut rest, limit)? {
            if is_follower { self.on_confirmation(at, &frame)? } else { self.on_request(at, &frame)? }
        }
        self.streams[at].assembler = assembler;
        Ok(())
    }

    fn on_confirmation(&mut self, follower: usize, frame: &Frame<'_>) -> anyhow::Result<()> {
        match PeerMessage::decode(frame)? {
            PeerMessage::AppendReply { outcome: AppendOutcome::Durable { through }, .. } => {
                self.confirmed[follower] = through.0;
                Ok(())
            }
            other => bail!("{other:?}"),
        }
    }

    fn on_request(&mut self, client: usize, frame: &Frame<'_>) -> anyhow::Result<()> {
        let Head { kind, correlation, .. } = frame.head;
        if kind != kind::ACQUIRE && kind != kind::RELEASE {
            return self.on_session_request(client, frame);
        }
        self.appended += 1;
        self.payloads.extend_from_slice(&LEVEL.0.to_le_bytes());
        self.payloads.extend_from_slice(&kind.to_le_bytes());
        self.payloads.extend_from_slice(frame.body);
        self.ends.push(self.payloads.len());
        self.pending.push_back(Pending { client, kind, correlation });
        Ok(())
    }

    /// Answers at once what is not measured.
    fn on_session_request(&mut self, client: usize, frame: &Frame<'_>) -> anyhow::Result<()> {
        let correlation = frame.head.correlation;
        let asked = frame.head.kind;
        let out = &mut self.streams[client].out;
        self.dirty.push(client);
        if asked == kind::HELLO {
            let address = self.address.to_string();
            let reply = HelloReply {
                status: Status::Ok,
                detail: "",
                protocol: PROTOCOL.1,
                node: NodeId(1),
                cluster: ClusterId([0; 16]),
                incarnation: Incarnation([0; 16]),
                ttl_ms_min: TTL_MS_MIN,
                ttl_ms_max: TTL_MS_MAX,
                leader: NodeId(1),
                leader_address: &address,
            };
            let head = Head { kind: kind::HELLO | kind::REPLY, cell: CELL, correlation };
            frame::encode(out, head, |out| reply.put(out));
            return Ok(());
        }
        match Request::decode(frame)? {
            Request::OpenSession { ttl_ms, .. } => {
                self.sessions += 1;
                let session = SessionId(self.sessions);
                Reply::Opened { session, ttl_ms, next_request_id: RequestId(1) }.encode(
                    asked,
                    CELL,
                    correlation,
                    out,
                );
            }
            Request::KeepAlive(sessions) => {
                let kept = |session| KeptAlive { session, status: Status::Ok, ttl_ms: TTL_MS_MAX };
                let rows: Vec<KeptAlive> = sessions.iter().map(kept).collect();
                Reply::KeptAlive(Rows::Slice(&rows)).encode(asked, CELL, correlation, out);
            }
            Request::CloseSession { .. } => {
                Reply::Closed { released_total: 0, released: Rows::Slice(&[]) }.encode(
                    asked,
                    CELL,
                    correlation,
                    out,
                );
            }
            other => bail!("{other:?}"),
        }
        Ok(())
    }

    /// Stages what came in this turn for the own disk and sends it to every follower.
    fn forward(&mut self) {
        if self.ends.is_empty() {
            return;
        }
        let first = self.appended - self.ends.len() as u64 + 1;
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let rows: Vec<EntryRow<'_>> = starts
            .zip(&self.ends)
            .map(|(start, end)| EntryRow { term: Term(1), payload: &self.payloads[start..*end] })
            .collect();
        for (index, row) in (first..).zip(&rows) {
            self.disk.append(index, row.payload);
        }
        self.frame.clear();
        let message = PeerMessage::Append(Append {
            term: Term(1),
            prev_index: LogIndex(first - 1),
            prev_term: Term(1),
            committed: LogIndex(self.replied),
            entries: Rows::Slice(&rows),
        });
        message.encode(CELL, &mut self.frame);
        for at in 0..NODES - 1 {
            self.streams[at].out.extend_from_slice(&self.frame);
            self.dirty.push(at);
        }
        self.payloads.clear();
        self.ends.clear();
    }

    /// Replies to the writes that a majority of disks has.
    fn reply(&mut self) {
        let mut durable = [self.disk.durable(); NODES];
        durable[1..].copy_from_slice(&self.confirmed);
        durable.sort_unstable();
        let committed = durable[NODES - MAJORITY];
        while self.replied < committed {
            let Some(Pending { client, kind, correlation }) = self.pending.pop_front() else { break };
            self.replied += 1;
            let token = FencingToken(self.replied);
            let reply = if kind == kind::ACQUIRE {
                Reply::Granted(Grant { token, fence: token, slot: 0, hold_left_ms: 0, holders: 1 })
            } else {
                Reply::Done
            };
            reply.encode(kind, CELL, correlation, &mut self.streams[client].out);
            self.dirty.push(client);
        }
    }
}

// The ring's queue takes a turn of any load here without a further system call.
const _: () = assert!(RING.submission_entries >= 256);
