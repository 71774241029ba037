//! A closed-loop client on one ring: it drives whatever speaks the protocol, a cell or the ceiling.
//!
//! Each connection opens a session and keeps `depth` pairs going, each an acquire and then its release on a
//! name of its own, so that nothing is contended. Invariant: every reply is the one that was hoped for, or the
//! run fails; a figure never counts refusals. Deliberately absent: retries, hints and deadlines, which belong to
//! the real client; whoever drives finds the leader first.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use lockstep_ring::{Ring, RingConfig};
use lockstep_wire::frame::Frame;
use lockstep_wire::limit::{REPLY_FRAME_BYTES_MAX, TTL_MS_MAX};
use lockstep_wire::reply::Reply;
use lockstep_wire::request::{Acquire, Mode, Mutation, Request, kind};
use lockstep_wire::{Correlation, FencingToken, Owner, RequestId, Rows, SessionId, Status};

use crate::connections::{Connections, Hearing, Party};
use crate::question::{CELL, SESSION_CORRELATION, check_welcome, put_hello, put_open};

pub(crate) const TURN_MAX: Duration = Duration::from_millis(100);
/// How long a run may take to open its sessions, and to close them.
const SET_UP_MAX: Duration = Duration::from_secs(10);
/// The longest latency that is told apart, in ns.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
pub(crate) const RING: RingConfig =
    RingConfig { submission_entries: 1_024, completion_entries: 8_192, registered_files: 0 };

/// What load to drive.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many connections, each with a session.
    pub connections: usize,
    /// How many pairs each connection keeps going.
    pub depth: usize,
    /// How long before anything is counted.
    pub warm_up: Duration,
    /// How long is counted.
    pub measured: Duration,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Acquires and releases that were answered within the measured time: each is one durable write.
    pub writes: u64,
    /// The measured time.
    pub elapsed: Duration,
    /// From the encoding of an acquire to its grant, in ns.
    pub acquire: Histogram<u64>,
}

impl Figures {
    /// Durable writes in a second.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub fn writes_per_second(&self) -> f64 {
        self.writes as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency of an acquire at this quantile, in us.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub fn acquire_us(&self, quantile: f64) -> f64 {
        self.acquire.value_at_quantile(quantile) as f64 / 1_000.0
    }
}

/// Drives a load and says what came of it. The calling thread is the client.
pub fn drive(server: SocketAddr, load: &Load) -> anyhow::Result<Figures> {
    assert!(load.connections > 0 && load.depth > 0, "a load has connections and pairs");
    let ring = Ring::new(RING).context("io_uring could not be set up")?;
    let group = ring.add_buffer_group(256, 16 * 1024).context("receive buffers could not be registered")?;
    let hearing = Hearing { group, frame_bytes_max: REPLY_FRAME_BYTES_MAX };
    Driver::new(&ring, hearing, server, load)?.run()
}

/// One acquire and its release, over and over.
struct Pair {
    name: String,
    owner: Owner,
    /// The acquire that holds the lock, or is on its way.
    acquire_id: RequestId,
    sent_at: Instant,
    state: PairState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PairState {
    Idle,
    Acquiring,
    Releasing,
}

/// What a connection is for.
struct Client {
    session: SessionId,
    last_request: RequestId,
    /// Outcomes that came since the last request and that the next one says it has seen.
    seen: Vec<RequestId>,
    pairs: Vec<Pair>,
}

/// Where a run stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening,
    Running,
    /// Pairs are finished, none begins.
    Draining,
    Closing,
}

struct Driver<'r> {
    connections: Connections<'r>,
    load: Load,
    clients: Vec<Client>,
    phase: Phase,
    /// Sessions to be opened, pairs to be finished, sessions to be closed.
    awaited: usize,
    counted_from: Instant,
    counted_until: Instant,
    next_beat: Instant,
    figures: Figures,
}

impl<'r> Driver<'r> {
    fn new(ring: &'r Ring, hearing: Hearing, server: SocketAddr, load: &Load) -> anyhow::Result<Driver<'r>> {
        let now = Instant::now();
        let mut connections = Connections::new(ring);
        let mut clients = Vec::new();
        for at in 0..load.connections {
            connections.dial(server, hearing)?;
            let pair = |number| Pair {
                name: format!("/ls/quick/job-{at:04}-{number:03}"),
                owner: Owner(number as u64 + 1),
                acquire_id: RequestId(0),
                sent_at: now,
                state: PairState::Idle,
            };
            clients.push(Client {
                session: SessionId(0),
                last_request: RequestId(0),
                seen: Vec::new(),
                pairs: (0..load.depth).map(pair).collect(),
            });
        }
        let acquire = Histogram::new_with_max(LATENCY_NS_MAX, 3)?;
        Ok(Driver {
            connections,
            load: *load,
            awaited: clients.len(),
            clients,
            phase: Phase::Opening,
            counted_from: now,
            counted_until: now,
            next_beat: now + Duration::from_millis(u64::from(TTL_MS_MAX) / 3),
            figures: Figures { writes: 0, elapsed: load.measured, acquire },
        })
    }

    fn run(mut self) -> anyhow::Result<Figures> {
        let mut phase_began = Instant::now();
        loop {
            let now = self.turn(TURN_MAX)?;
            let before = self.phase;
            match self.phase {
                Phase::Opening if self.awaited == 0 => self.begin(now),
                Phase::Running if now >= self.counted_until => self.phase = Phase::Draining,
                Phase::Draining if self.awaited == 0 => self.close_sessions(),
                Phase::Closing if self.awaited == 0 => return Ok(self.figures),
                Phase::Opening | Phase::Running | Phase::Draining | Phase::Closing => {}
            }
            if self.phase != before {
                phase_began = now;
            }
            let is_stuck = self.phase != Phase::Running && now > phase_began + SET_UP_MAX;
            ensure!(!is_stuck, "{} answers are missing after {SET_UP_MAX:?}", self.awaited);
            if now >= self.next_beat {
                self.keep_alive(now);
            }
            self.connections.flush();
        }
    }

    fn begin(&mut self, now: Instant) {
        self.phase = Phase::Running;
        self.counted_from = now + self.load.warm_up;
        self.counted_until = self.counted_from + self.load.measured;
        self.awaited = self.load.connections * self.load.depth;
        for at in 0..self.clients.len() {
            (0..self.load.depth).for_each(|pair| self.acquire(at, pair));
        }
    }

    fn acquire(&mut self, at: usize, number: usize) {
        let client = &mut self.clients[at];
        let mutation = next_mutation(client.session, &mut client.last_request, &client.seen);
        let pair = &mut client.pairs[number];
        pair.acquire_id = mutation.request_id;
        pair.sent_at = Instant::now();
        pair.state = PairState::Acquiring;
        let request = Request::Acquire(Acquire {
            mutation,
            owner: pair.owner,
            mode: Mode::Exclusive,
            is_reentrant: false,
            permits: 0,
            wait_ms: 0,
            lock_delay_ms: 0,
            max_hold_ms: 0,
            names: Rows::Slice(&[&pair.name]),
            data: b"",
        });
        request.encode(CELL, Correlation(number as u64), self.connections.out(at));
        client.seen.clear();
    }

    fn release(&mut self, at: usize, number: usize, token: FencingToken) {
        let client = &mut self.clients[at];
        let pair = &mut client.pairs[number];
        assert!(pair.state == PairState::Acquiring, "only what was asked for is granted");
        pair.state = PairState::Releasing;
        client.seen.push(pair.acquire_id);
        let mutation = next_mutation(client.session, &mut client.last_request, &client.seen);
        let request = Request::Release { mutation, acquire_id: pair.acquire_id, name: &pair.name, token };
        // Until it is answered, the pair remembers its release: that is what the next request has seen.
        pair.acquire_id = mutation.request_id;
        request.encode(CELL, Correlation(number as u64), self.connections.out(at));
        client.seen.clear();
    }

    fn on_released(&mut self, at: usize, number: usize) {
        let client = &mut self.clients[at];
        let pair = &mut client.pairs[number];
        assert!(pair.state == PairState::Releasing, "only what was released is done");
        pair.state = PairState::Idle;
        client.seen.push(pair.acquire_id);
        if self.phase == Phase::Running {
            self.acquire(at, number);
        } else {
            self.awaited -= 1;
        }
    }

    fn keep_alive(&mut self, now: Instant) {
        self.next_beat = now + Duration::from_millis(u64::from(TTL_MS_MAX) / 3);
        for at in 0..self.clients.len() {
            let sessions = [self.clients[at].session];
            let request = Request::KeepAlive(Rows::Slice(&sessions));
            request.encode(CELL, Correlation(SESSION_CORRELATION), self.connections.out(at));
        }
    }

    fn close_sessions(&mut self) {
        self.phase = Phase::Closing;
        self.awaited = self.clients.len();
        for at in 0..self.clients.len() {
            let request = Request::CloseSession { session: self.clients[at].session };
            request.encode(CELL, Correlation(SESSION_CORRELATION), self.connections.out(at));
        }
    }
}

impl<'r> Party<'r> for Driver<'r> {
    fn connections(&mut self) -> &mut Connections<'r> {
        &mut self.connections
    }

    fn on_connected(&mut self, at: usize) {
        put_hello(self.connections.out(at));
    }

    fn on_frame(&mut self, at: usize, frame: &Frame<'_>, now: Instant) -> anyhow::Result<()> {
        if frame.head.kind == kind::HELLO | kind::REPLY {
            check_welcome(frame)?;
            put_open(at as u64, self.connections.out(at));
            return Ok(());
        }
        let correlation = frame.head.correlation.0;
        match Reply::decode(frame)? {
            Reply::Opened { session, next_request_id, .. } => {
                self.clients[at].session = session;
                self.clients[at].last_request = RequestId(next_request_id.0 - 1);
                self.awaited -= 1;
            }
            Reply::Granted(grant) => {
                if now >= self.counted_from && now < self.counted_until {
                    let pair = usize::try_from(correlation)?;
                    let latency = now.duration_since(self.clients[at].pairs[pair].sent_at);
                    self.figures.acquire.saturating_record(u64::try_from(latency.as_nanos())?);
                    self.figures.writes += 1;
                }
                self.release(at, usize::try_from(correlation)?, grant.token);
            }
            Reply::Done => {
                self.figures.writes += u64::from(now >= self.counted_from && now < self.counted_until);
                self.on_released(at, usize::try_from(correlation)?);
            }
            Reply::KeptAlive(rows) => {
                ensure!(rows.iter().all(|row| row.status == Status::Ok), "a session has ended: {rows:?}");
            }
            Reply::Closed { .. } => self.awaited -= 1,
            other => bail!("the answer to {correlation} is {other:?}"),
        }
        Ok(())
    }
}

pub(crate) fn next_mutation<'s>(
    session: SessionId,
    last_request: &mut RequestId,
    seen: &'s [RequestId],
) -> Mutation<'s> {
    *last_request = RequestId(last_request.0 + 1);
    Mutation { session, request_id: *last_request, seen: Rows::Slice(seen) }
}
