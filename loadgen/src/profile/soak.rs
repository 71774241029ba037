//! A soak: many locks that are held for the whole run, and under them millions of writes over ever new names.
//!
//! Each client has a session. It takes its share of the lasting locks first, then acquires and releases others, one after
//! the other: in turns one of a few names of its own, under a greater token each time, and one that nobody has ever used. When
//! there were writes enough, or the time is over, it gives the lasting locks back, each of which must still be its own.
//!
//! Invariant: a client has one request under way at most. The first call that fails ends the run. Deliberately absent:
//! contention, and faults; whoever wants them makes them while it runs.

mod plan;
mod report;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::ensure;
use lockstep_client::core::{
    AcquireOptions, CallId, ClientCore, Condition, Event, Outcome, SessionKey, Time,
};
use lockstep_wire::request::Mode;
use lockstep_wire::{FencingToken, Owner};

use self::plan::{Course, Plan};
use self::report::{Gauges, Line};
use super::{Crowd, Leaving, failure, leave};
use crate::chance::Chance;
use crate::fleet::{self, Fleet};
use crate::tally::{Pulse, Step, Tally};

pub use report::Report;

/// How long an acquire stands in line, in ms: nobody is in the way.
const WAIT_MS: u32 = 10_000;
/// Lasting locks of one client: a cell lets a session have 1,024 locks.
const LASTING_PER_CLIENT_MAX: u32 = 1_000;
/// How long giving the lasting locks back may take, in seconds, once the time is over.
const RETURN_S: u32 = 60;

/// The options of the profile.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Whom to load, and with how many.
    #[command(flatten)]
    pub fleet: fleet::Options,
    /// Locks that are held for the whole run; the clients share them out.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub live: u32,
    /// How many acquires and releases are enough; the run ends earlier when the time is over.
    #[arg(long, default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub writes: u64,
    /// Names that come again and again; every other acquire is of a name that is new.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub names: u32,
    /// Processes of nodes on this machine, whose memory is shown.
    #[arg(long, value_delimiter = ',', value_name = "PID,...")]
    pub pids: Vec<u32>,
    /// Data directories of nodes on this machine, whose size is shown.
    #[arg(long, value_delimiter = ',', value_name = "DIR,...")]
    pub data: Vec<PathBuf>,
    /// How often a line is printed, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub every: u32,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Seconds since all sessions were open.
    pub second: u32,
    /// Acquires and releases that have succeeded.
    pub writes: u64,
    /// Lasting locks that are held.
    pub held: u64,
    /// Whether lasting locks are being given back.
    pub is_enough: bool,
}

/// Runs the profile, to its end.
///
/// # Errors
/// When it could not be run at all; calls that fail are in the report.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    run_watched(options, |_| ControlFlow::Continue(()))
}

/// Likewise; `watch` is called after each second, and may end the run.
///
/// # Errors
/// When it could not be run at all; calls that fail are in the report.
pub fn run_watched(
    options: &Options,
    mut watch: impl FnMut(Progress) -> ControlFlow<()>,
) -> anyhow::Result<Report> {
    let clients = options.fleet.clients;
    ensure!(
        options.live.div_ceil(clients) <= LASTING_PER_CLIENT_MAX,
        "{} lasting locks are more than {LASTING_PER_CLIENT_MAX} for each of {clients} clients: take more --clients",
        options.live
    );
    let mut gauges = Gauges::new(options)?;
    let seconds = options.fleet.seconds;
    let fleet = Fleet::new(&fleet::Options { seconds: seconds + RETURN_S, ..options.fleet.clone() })?;
    let plan = Arc::new(Plan {
        run: fleet.seed,
        ttl_ms: options.fleet.ttl_ms,
        clients,
        live: options.live,
        writes_enough: options.writes,
        names_each: (options.names / clients).max(1),
        course: Course::default(),
    });
    let (watched, mut line) = (Arc::clone(&plan), Line::new(options));
    let make = {
        let plan = Arc::clone(&plan);
        move |clients, tally, pulse| Soak::new(&plan, clients, tally, pulse)
    };
    let sum = fleet.run_watched(make, |second, _, _| {
        let course = &watched.course;
        let is_over = course.has_failed() || course.is_returned();
        if second >= seconds {
            course.is_enough.store(true, Ordering::Relaxed);
        }
        gauges.look(course.held.load(Ordering::Relaxed) == u64::from(options.live));
        if is_over || second.is_multiple_of(options.every) {
            line.print(second, course, &gauges);
        }
        let progress = Progress {
            second,
            writes: course.writes.load(Ordering::Relaxed),
            held: course.held.load(Ordering::Relaxed),
            is_enough: course.is_enough.load(Ordering::Relaxed),
        };
        if watch(progress).is_break() || is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(Report::new(options, &sum, &plan.course, gauges))
}

/// What a client is at.
#[derive(Clone, Copy, Debug)]
enum Standing {
    /// It has no session; it is due to open one.
    Outside,
    Opening,
    Acquiring {
        is_lasting: bool,
        since: Time,
    },
    Releasing {
        is_lasting: bool,
        since: Time,
    },
    /// It asks for nothing more: all is done, or something has failed.
    Resting,
}

impl Standing {
    /// Since when it waits for an answer about a lock.
    fn since(&self) -> Option<Time> {
        match self {
            Standing::Outside | Standing::Opening | Standing::Resting => None,
            Standing::Acquiring { since, .. } | Standing::Releasing { since, .. } => Some(*since),
        }
    }
}

#[derive(Debug)]
struct Client {
    number: u32,
    session: Option<SessionKey>,
    standing: Standing,
    /// The acquires of its lasting locks.
    lasting: Vec<CallId>,
    /// Pairs that it has begun.
    pairs: u64,
    /// The last token of each name that comes again.
    tokens: Vec<FencingToken>,
}

/// The clients of one connection.
struct Soak {
    plan: Arc<Plan>,
    clients: Vec<Client>,
    by_call: HashMap<CallId, usize>,
    by_session: HashMap<SessionKey, usize>,
    owners: u64,
    chance: Chance,
    /// The clients have begun to open their sessions.
    has_begun: bool,
    is_closing: bool,
    tally: Rc<RefCell<Tally>>,
    pulse: Arc<Pulse>,
}

impl Soak {
    fn new(plan: &Arc<Plan>, clients: Range<u32>, tally: Rc<RefCell<Tally>>, pulse: Arc<Pulse>) -> Soak {
        let seed = plan.run ^ (u64::from(clients.start) << 32);
        let (session, standing) = (None, Standing::Outside);
        let tokens = vec![FencingToken::default(); plan.names_each as usize];
        let outside = |number| {
            let (lasting, tokens) = (Vec::new(), tokens.clone());
            Client { number, session, standing, lasting, pairs: 0, tokens }
        };
        Soak {
            plan: Arc::clone(plan),
            clients: clients.map(outside).collect(),
            by_call: HashMap::new(),
            by_session: HashMap::new(),
            owners: 0,
            chance: Chance::new(seed),
            has_begun: false,
            is_closing: false,
            tally,
            pulse,
        }
    }

    fn open(&mut self, at: usize, core: &mut ClientCore, now: Time) {
        let nonce = self.chance.nonce();
        let (session, call) = core.open_session(self.plan.ttl_ms, nonce, now);
        self.clients[at].session = Some(session);
        self.clients[at].standing = Standing::Opening;
        self.by_session.insert(session, at);
        self.by_call.insert(call, at);
    }

    /// The client does what comes next.
    fn go_on(&mut self, at: usize, core: &mut ClientCore, now: Time) {
        let plan = Arc::clone(&self.plan);
        let client = &mut self.clients[at];
        let number = client.number;
        if plan.is_enough() {
            return match client.lasting.pop() {
                Some(acquire) => self.release(at, acquire, true, core, now),
                None => {
                    client.standing = Standing::Resting;
                    plan.course.clients_done.fetch_add(1, Ordering::Relaxed);
                }
            };
        }
        let held = client.lasting.len();
        if held < plan.share(number) {
            return self.acquire(at, plan.name(number, "lasting", held as u64), true, core, now);
        }
        let name = plan.passing_name(number, client.pairs);
        client.pairs += 1;
        self.acquire(at, name, false, core, now);
    }

    fn acquire(&mut self, at: usize, name: String, is_lasting: bool, core: &mut ClientCore, now: Time) {
        let Some(session) = self.clients[at].session else { return };
        self.owners += 1;
        let options = AcquireOptions {
            name,
            owner: Owner(self.owners),
            mode: Mode::Exclusive,
            is_reentrant: false,
            wait_ms: WAIT_MS,
            data: Vec::new(),
        };
        let call = core.acquire(session, options, now);
        self.by_call.insert(call, at);
        self.clients[at].standing = Standing::Acquiring { is_lasting, since: now };
    }

    fn release(&mut self, at: usize, acquire: CallId, is_lasting: bool, core: &mut ClientCore, now: Time) {
        let call = core.release(acquire, now);
        self.by_call.insert(call, at);
        self.clients[at].standing = Standing::Releasing { is_lasting, since: now };
    }

    fn on_finished(&mut self, call: CallId, outcome: &Outcome, core: &mut ClientCore, now: Time) {
        let Some(at) = self.by_call.remove(&call) else { return };
        match (self.clients[at].standing, outcome) {
            (Standing::Opening, Outcome::Opened { .. }) => {
                self.pulse.sessions.fetch_add(1, Ordering::Relaxed);
                self.go_on(at, core, now);
            }
            (Standing::Acquiring { is_lasting, since }, Outcome::Granted(grant)) => {
                self.on_write(Step::Acquire, since, now);
                if is_lasting {
                    self.clients[at].lasting.push(call);
                    self.plan.course.held.fetch_add(1, Ordering::Relaxed);
                    self.go_on(at, core, now);
                } else if let Err(trouble) = self.on_passing(at, grant.token) {
                    self.fail(at, "TOKEN_NOT_GREATER", &trouble, now);
                } else {
                    self.release(at, call, false, core, now);
                }
            }
            (Standing::Releasing { is_lasting, since }, Outcome::Released) => {
                self.on_write(Step::Release, since, now);
                if is_lasting {
                    self.plan.course.held.fetch_sub(1, Ordering::Relaxed);
                }
                self.go_on(at, core, now);
            }
            (standing, outcome) => {
                if matches!(standing, Standing::Opening) {
                    self.pulse.opens_failed.fetch_add(1, Ordering::Relaxed);
                }
                let (status, trouble) = failure::describe(outcome);
                self.fail(at, status, &trouble, now);
            }
        }
    }

    /// Holds the token of a name that comes again against the one before; the name's record is gone in between.
    fn on_passing(&mut self, at: usize, token: FencingToken) -> Result<(), String> {
        let client = &mut self.clients[at];
        let pair = client.pairs - 1;
        let Some(number) = self.plan.name_again(pair) else {
            self.plan.course.names_new.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let before = std::mem::replace(&mut client.tokens[number as usize], token);
        if token <= before {
            let name = self.plan.passing_name(client.number, pair);
            return Err(format!("{name} was granted under {before}, and then under {token}"));
        }
        let is_new = before == FencingToken::default();
        let course = &self.plan.course;
        let names = if is_new { &course.names_new } else { &course.names_again };
        names.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn on_write(&mut self, step: Step, since: Time, now: Time) {
        self.plan.on_write();
        self.tally.borrow_mut().on_success(step, since, now, &self.pulse);
    }

    fn fail(&mut self, at: usize, status: &'static str, trouble: &str, now: Time) {
        self.clients[at].standing = Standing::Resting;
        self.plan.course.failures.fetch_add(1, Ordering::Relaxed);
        self.tally.borrow_mut().on_error(status, trouble, now, &self.pulse);
    }

    /// The session is over, without the client having closed it.
    fn on_session_ended(&mut self, session: SessionKey, why: &str, now: Time) {
        let Some(at) = self.by_session.remove(&session) else { return };
        self.clients[at].session = None;
        self.pulse.sessions.fetch_sub(1, Ordering::Relaxed);
        self.tally.borrow_mut().sessions_lost += 1;
        self.fail(at, "SESSION_ENDED", why, now);
    }
}

impl Crowd for Soak {
    fn on_event(&mut self, event: Event, core: &mut ClientCore, now: Time) {
        if self.is_closing {
            return;
        }
        match event {
            Event::Queued { .. } => {}
            Event::Finished { call, outcome } => self.on_finished(call, &outcome, core, now),
            Event::SessionChanged { session, condition } => match condition {
                Condition::Ended(loss) => self.on_session_ended(session, &loss.to_string(), now),
                Condition::Opening | Condition::Safe | Condition::Jeopardy => {}
            },
            Event::HoldLost { session, reason, .. } => {
                if let Some(at) = self.by_session.get(&session).copied() {
                    self.fail(at, "HOLD_LOST", &reason.to_string(), now);
                }
            }
        }
    }

    fn on_tick(&mut self, core: &mut ClientCore, now: Time) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.plan.course.clients.fetch_add(self.clients.len() as u64, Ordering::Relaxed);
            for at in 0..self.clients.len() {
                self.open(at, core, now);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        (!self.has_begun).then_some(Time(0))
    }

    fn close(&mut self, core: &mut ClientCore, now: Time) {
        self.is_closing = true;
        let leaving = self
            .clients
            .iter_mut()
            .map(|client| Leaving { session: client.session.take(), since: client.standing.since() });
        leave(leaving, &mut self.tally.borrow_mut(), core, now);
    }
}

#[cfg(test)]
mod tests;
