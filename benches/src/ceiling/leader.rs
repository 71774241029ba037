//! The leader of the ceiling: it writes what clients send, forwards it, and replies once a majority has it.
//!
//! Invariant: replies leave in the order of the writes, each after three confirmations. Deliberately absent:
//! sessions and locks; what a client needs to be told about them is made up.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{bail, ensure};
use lockstep_ring::{Completion, Ring};
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
use super::{ACCEPT, CLIENT_BUFFERS, MAJORITY, NODES, PEER_BUFFERS, RING, TURN_MAX, WRITE};
use crate::connections::{Connections, Hearing, Party};

const CELL: CellId = CellId(0);
/// A write that no majority has yet.
struct Pending {
    client: usize,
    kind: u16,
    correlation: Correlation,
}

struct Leader<'r> {
    address: SocketAddr,
    clients: Hearing,
    disk: Disk,
    /// The followers first, then the clients.
    connections: Connections<'r>,
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
    let group = ring.add_buffer_group(CLIENT_BUFFERS.0, CLIENT_BUFFERS.1)?;
    let clients = Hearing { group, frame_bytes_max: CLIENT_FRAME_BYTES_MAX };
    let group = ring.add_buffer_group(PEER_BUFFERS.0, PEER_BUFFERS.1)?;
    let peers = Hearing { group, frame_bytes_max: PEER_FRAME_BYTES_MAX };
    let mut connections = Connections::new(ring);
    followers.iter().try_for_each(|follower| connections.dial(*follower, peers))?;
    ring.accept_multishot(ring.adopt_socket(listener), ACCEPT);
    let mut leader = Leader {
        address,
        clients,
        disk: Disk::new(ring, file),
        connections,
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
        leader.turn(TURN_MAX)?;
        leader.forward();
        leader.reply();
        leader.connections.flush();
        leader.disk.submit(ring, WRITE);
    }
    Ok(())
}

impl Leader<'_> {
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
        let out = self.connections.out(client);
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
            self.connections.out(at).extend_from_slice(&self.frame);
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
            reply.encode(kind, CELL, correlation, self.connections.out(client));
        }
    }
}

impl<'r> Party<'r> for Leader<'r> {
    fn connections(&mut self) -> &mut Connections<'r> {
        &mut self.connections
    }

    fn on_connected(&mut self, _at: usize) {}

    fn on_frame(&mut self, at: usize, frame: &Frame<'_>, _now: Instant) -> anyhow::Result<()> {
        if at < NODES - 1 { self.on_confirmation(at, frame) } else { self.on_request(at, frame) }
    }

    fn on_other(&mut self, at: usize, completion: Completion<'_>) -> anyhow::Result<()> {
        match completion {
            Completion::Accepted { fd, is_armed, .. } => {
                ensure!(is_armed, "the listener has stopped");
                self.connections.adopt(fd, self.clients);
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
}

// The ring's queue takes a turn of any load here without a further system call.
const _: () = assert!(RING.submission_entries >= 256);
