//! An open-loop client: writes begin when they are due, however long those before them take.
//!
//! It goes on with sessions that exist: it attaches them, keeps them alive, and has one after the other release a lock and
//! take it again, so that the writes go through the whole state. Invariants: a write's latency counts from the moment when
//! it was due, also if it had to wait for its turn; every reply is the one that was hoped for, or the run fails. Deliberately
//! absent: retries, and what the latencies mean.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use lockstep_ring::Ring;
use lockstep_wire::frame::Frame;
use lockstep_wire::limit::{REPLY_FRAME_BYTES_MAX, SESSIONS_PER_BATCH_MAX, TTL_MS_MAX};
use lockstep_wire::reply::Reply;
use lockstep_wire::request::{Acquire, Mode, Request, SessionProof, kind};
use lockstep_wire::{Correlation, Owner, Rows, SessionId, Status};

use crate::client::{RING, TURN_MAX, next_mutation};
use crate::connections::{Connections, Hearing, Party};
use crate::question::{CELL, SESSION_CORRELATION, check_welcome, put_hello};
use crate::table::{Client, Hold, filling};

/// How long it may take until all sessions are attached.
const ATTACH_MAX: Duration = Duration::from_secs(30);
/// For how long a lock stays free before it is taken again, in seconds: most answers are there by then.
const FREE_S: f64 = 0.1;
/// How far behind its due time a write may begin.
const BEHIND_MAX: Duration = Duration::from_secs(5);
/// How long the last answers may take.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// How long it is measured what the node reaches, and with how many writes under way.
const CALIBRATION: Duration = Duration::from_secs(3);
const CALIBRATION_DEPTH: usize = 64;

/// What load to drive.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How many connections share the sessions.
    pub connections: usize,
    /// How fast.
    pub rate: Rate,
}

/// How many releases and acquires there are in a second.
#[derive(Clone, Copy, Debug)]
pub enum Rate {
    /// So many.
    PerSecond(f64),
    /// This part of what the node reaches, which is looked for first.
    Share(f64),
}

/// How far a load is, for those who look on from other threads.
#[derive(Debug, Default)]
pub struct Course {
    is_over: AtomicBool,
    /// Its pace in writes a second, as the bits of a float; 0 until it has begun.
    paced: AtomicU64,
}

impl Course {
    /// Lets it end.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// The pace in writes a second, once it has begun.
    pub fn pace(&self) -> Option<f64> {
        let bits = self.paced.load(Ordering::Acquire);
        (bits != 0).then(|| f64::from_bits(bits))
    }
}

/// A write that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When it was due.
    pub due: Instant,
    /// From then until its answer.
    pub latency: Duration,
}

/// Drives the load until it is told that it is over, and says how long each write took. The calling thread is the client.
///
/// # Errors
/// When a write is refused or not answered, or the node falls behind the pace.
pub fn drive(
    server: SocketAddr,
    holders: Vec<(Client, Vec<Hold>)>,
    pace: &Pace,
    course: &Course,
) -> anyhow::Result<Vec<Sample>> {
    let (Rate::PerSecond(rate) | Rate::Share(rate)) = pace.rate;
    assert!(pace.connections > 0 && rate > 0.0, "a pace has connections and writes");
    let ring = Ring::new(RING).context("io_uring could not be set up")?;
    let group = ring.add_buffer_group(512, 16 * 1024).context("receive buffers could not be registered")?;
    let hearing = Hearing { group, frame_bytes_max: REPLY_FRAME_BYTES_MAX };
    Driver::new(&ring, hearing, server, holders, pace)?.run(course)
}

/// What the session of a holder is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Holding,
    Releasing,
    Free,
    Acquiring,
}

struct Holder {
    client: Client,
    holds: Vec<Hold>,
    /// The lock whose turn it is.
    number: usize,
    standing: Standing,
    /// When the write under way was due.
    due: Instant,
}

/// The sessions of a connection, in batches, and which of them beats next.
struct Share {
    batches: Vec<Vec<SessionProof>>,
    next_batch: usize,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Attaching,
    /// As many writes as are answered.
    Calibrating {
        until: Instant,
    },
    /// The next write is due then.
    Paced {
        next_due: Instant,
        interval: Duration,
    },
}

struct Driver<'r> {
    connections: Connections<'r>,
    holders: Vec<Holder>,
    /// By connection.
    shares: Vec<Share>,
    /// Batches whose sessions are not attached yet.
    unattached: usize,
    rate: Rate,
    phase: Phase,
    /// Between two batches of sessions that are kept alive.
    beat_interval: Duration,
    next_beat: Instant,
    /// Writes that were due and have not begun.
    late: VecDeque<Instant>,
    /// The holder whose turn it is, and those that have released, in this order.
    turn: usize,
    released: VecDeque<usize>,
    released_max: usize,
    under_way: usize,
    samples: Vec<Sample>,
}

impl<'r> Driver<'r> {
    fn new(
        ring: &'r Ring,
        hearing: Hearing,
        server: SocketAddr,
        holders: Vec<(Client, Vec<Hold>)>,
        pace: &Pace,
    ) -> anyhow::Result<Driver<'r>> {
        let now = Instant::now();
        let mut connections = Connections::new(ring);
        let mut shares = Vec::new();
        for at in 0..pace.connections {
            connections.dial(server, hearing)?;
            let own = holders.iter().skip(at).step_by(pace.connections);
            let proofs: Vec<SessionProof> = own
                .map(|(client, _)| SessionProof { session: client.session, nonce: client.nonce })
                .collect();
            let batches = proofs.chunks(SESSIONS_PER_BATCH_MAX).map(<[_]>::to_vec).collect();
            shares.push(Share { batches, next_batch: 0 });
        }
        let unattached = shares.iter().map(|share| share.batches.len()).sum();
        let per_connection = shares.iter().map(|share| share.batches.len()).max().unwrap_or(1);
        let batches = u32::try_from(per_connection * pace.connections)?;
        let beat_interval = Duration::from_millis(u64::from(TTL_MS_MAX) / 4) / batches;
        let holder =
            |(client, holds)| Holder { client, holds, number: 0, standing: Standing::Holding, due: now };
        Ok(Driver {
            connections,
            holders: holders.into_iter().map(holder).collect(),
            shares,
            unattached,
            rate: pace.rate,
            phase: Phase::Attaching,
            beat_interval,
            next_beat: now,
            late: VecDeque::new(),
            turn: 0,
            released: VecDeque::new(),
            released_max: CALIBRATION_DEPTH,
            under_way: 0,
            samples: Vec::new(),
        })
    }

    fn run(mut self, course: &Course) -> anyhow::Result<Vec<Sample>> {
        let begun = Instant::now();
        let mut over_since = None;
        loop {
            let patience = self.patience(over_since.is_some());
            let now = self.turn(patience)?;
            if over_since.is_none() && course.is_over.load(Ordering::Acquire) {
                over_since = Some(now);
            }
            match over_since {
                None => self.go_on(now, begun, course)?,
                Some(_) if self.under_way == 0 => return Ok(self.samples),
                Some(since) => ensure!(
                    now < since + DRAIN_MAX,
                    "{} answers are missing after {DRAIN_MAX:?}",
                    self.under_way
                ),
            }
            self.connections.flush();
        }
    }

    fn patience(&self, is_over: bool) -> Duration {
        match self.phase {
            Phase::Paced { next_due, .. } if !is_over => {
                next_due.min(self.next_beat).saturating_duration_since(Instant::now()).min(TURN_MAX)
            }
            Phase::Attaching | Phase::Calibrating { .. } | Phase::Paced { .. } => TURN_MAX,
        }
    }

    fn go_on(&mut self, now: Instant, begun: Instant, course: &Course) -> anyhow::Result<()> {
        match self.phase {
            Phase::Attaching if self.unattached > 0 => ensure!(
                now < begun + ATTACH_MAX,
                "{} batches of sessions are not attached after {ATTACH_MAX:?}: fewer --sessions",
                self.unattached
            ),
            Phase::Attaching => {
                self.next_beat = now + self.beat_interval;
                match self.rate {
                    Rate::PerSecond(rate) => self.begin_pace(rate, now, course),
                    Rate::Share(_) => self.phase = Phase::Calibrating { until: now + CALIBRATION },
                }
            }
            Phase::Calibrating { until } => {
                while self.under_way < CALIBRATION_DEPTH && self.begin(now) {}
                if let Rate::Share(share) = self.rate
                    && now >= until
                {
                    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
                    let reached = self.samples.len() as f64 / CALIBRATION.as_secs_f64();
                    ensure!(reached > 0.0, "the node has answered nothing for {CALIBRATION:?}");
                    self.begin_pace(share * reached, now, course);
                }
                self.beat(now);
            }
            Phase::Paced { mut next_due, interval } => {
                while next_due <= now {
                    self.late.push_back(next_due);
                    next_due += interval;
                }
                self.phase = Phase::Paced { next_due, interval };
                self.begin_late(now)?;
                self.beat(now);
            }
        }
        Ok(())
    }

    fn begin_pace(&mut self, rate: f64, now: Instant, course: &Course) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "far below 2^52")]
        let released = (rate / 2.0 * FREE_S) as usize;
        self.released_max = released.min(self.holders.len() / 4).max(1);
        self.phase = Phase::Paced { next_due: now, interval: Duration::from_secs_f64(1.0 / rate) };
        course.paced.store(rate.to_bits(), Ordering::Release);
    }

    fn on_written(&mut self, holder: u64, from: Standing, to: Standing, now: Instant) -> anyhow::Result<()> {
        let holder = &mut self.holders[usize::try_from(holder)?];
        assert!(holder.standing == from, "only what was asked for is answered");
        holder.standing = to;
        self.under_way -= 1;
        self.samples.push(Sample { due: holder.due, latency: now.saturating_duration_since(holder.due) });
        Ok(())
    }

    fn attach(&mut self, at: usize) {
        let out = self.connections.out(at);
        for batch in &self.shares[at].batches {
            let request = Request::AttachSessions(Rows::Slice(batch));
            request.encode(CELL, Correlation(SESSION_CORRELATION), out);
        }
    }

    /// Keeps batches of sessions alive, one after the other, so that no moment has all of them.
    fn beat(&mut self, now: Instant) {
        while self.next_beat <= now {
            self.next_beat += self.beat_interval;
            let least = (0..self.shares.len()).min_by_key(|at| self.shares[*at].next_batch);
            let at = least.expect("there are connections");
            let share = &mut self.shares[at];
            let count = share.batches.len();
            share.next_batch += 1;
            let Some(batch) = share.batches.get((share.next_batch - 1) % count.max(1)) else {
                continue;
            };
            let sessions: Vec<SessionId> = batch.iter().map(|proof| proof.session).collect();
            let request = Request::KeepAlive(Rows::Slice(&sessions));
            request.encode(CELL, Correlation(SESSION_CORRELATION), self.connections.out(at));
        }
    }

    /// Begins every write that is due. Whatever cannot begin waits, with those behind it, and is late.
    fn begin_late(&mut self, now: Instant) -> anyhow::Result<()> {
        while let Some(due) = self.late.front().copied() {
            if !self.begin(due) {
                break;
            }
            self.late.pop_front();
        }
        let behind = self.late.front().map_or(Duration::ZERO, |due| now.duration_since(*due));
        ensure!(
            behind < BEHIND_MAX,
            "the node is {behind:?} behind the load: a lower --rate, or a smaller --share"
        );
        Ok(())
    }

    /// The next write: a release until there are so many that an acquire has its turn. Tells whether it could begin.
    fn begin(&mut self, due: Instant) -> bool {
        let is_release = self.released.len() < self.released_max;
        let (at, from) = match is_release {
            true => (self.turn, Standing::Holding),
            false => (*self.released.front().expect("there are as many as may be"), Standing::Free),
        };
        if self.holders[at].standing != from {
            return false;
        }
        match is_release {
            true => {
                self.turn = (self.turn + 1) % self.holders.len();
                self.released.push_back(at);
                self.release(at, due);
            }
            false => {
                self.released.pop_front();
                self.acquire(at, due);
            }
        }
        self.under_way += 1;
        true
    }

    fn release(&mut self, at: usize, due: Instant) {
        let connection = at % self.connections.len();
        let holder = &mut self.holders[at];
        (holder.standing, holder.due) = (Standing::Releasing, due);
        let seen = [holder.client.last];
        let mutation = next_mutation(holder.client.session, &mut holder.client.last, &seen);
        let Hold { acquire_id, token } = holder.holds[holder.number];
        let name = filling(holder.client.session, holder.number as u64);
        let request = Request::Release { mutation, acquire_id, name: &name, token };
        request.encode(CELL, Correlation(at as u64), self.connections.out(connection));
    }

    fn acquire(&mut self, at: usize, due: Instant) {
        let connection = at % self.connections.len();
        let holder = &mut self.holders[at];
        (holder.standing, holder.due) = (Standing::Acquiring, due);
        let seen = [holder.client.last];
        let mutation = next_mutation(holder.client.session, &mut holder.client.last, &seen);
        let name = filling(holder.client.session, holder.number as u64);
        let request = Request::Acquire(Acquire {
            mutation,
            owner: Owner(mutation.request_id.0),
            mode: Mode::Exclusive,
            is_reentrant: false,
            permits: 0,
            wait_ms: 0,
            lock_delay_ms: 0,
            max_hold_ms: 0,
            names: Rows::Slice(&[&name]),
            data: b"",
        });
        request.encode(CELL, Correlation(at as u64), self.connections.out(connection));
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
            self.attach(at);
            return Ok(());
        }
        let correlation = frame.head.correlation.0;
        match Reply::decode(frame)? {
            Reply::Attached(rows) => {
                let refused = rows.iter().find(|row| row.status != Status::Ok);
                ensure!(refused.is_none(), "a session cannot be attached: {refused:?}");
                self.unattached -= 1;
            }
            Reply::KeptAlive(rows) => {
                let refused = rows.iter().find(|row| row.status != Status::Ok);
                ensure!(refused.is_none(), "a session has ended: {refused:?}");
            }
            Reply::Done => self.on_written(correlation, Standing::Releasing, Standing::Free, now)?,
            Reply::Granted(grant) => {
                self.on_written(correlation, Standing::Acquiring, Standing::Holding, now)?;
                let holder = &mut self.holders[usize::try_from(correlation)?];
                holder.holds[holder.number] = Hold { acquire_id: holder.client.last, token: grant.token };
                holder.number = (holder.number + 1) % holder.holds.len();
            }
            other => bail!("the answer to {correlation} is {other:?}"),
        }
        Ok(())
    }
}
