//! Closed-loop pairs: each client acquires a lock, releases it, and begins again.
//!
//! Every client has a session and a lock of its own; some acquires, as many as is asked for, go to locks that all clients
//! share, and wait in line there.
//!
//! Invariant: a client has one request under way at most. After a failure it rests, so that a cell that refuses
//! everything is not hammered.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lockstep_client::core::{
    AcquireOptions, CallId, ClientCore, Condition, Event, Outcome, SessionKey, Time,
};
use lockstep_wire::reply::Grant;
use lockstep_wire::request::Mode;
use lockstep_wire::{FencingToken, Owner};

use super::{Crowd, Leaving, failure, leave};
use crate::chance::Chance;
use crate::fleet::{self, Fleet};
use crate::ledger::{Belief, ClientIndex, Ledger, NameIndex};
use crate::report::Report;
use crate::tally::{Pulse, Step, Tally};

/// How long an acquire stands in line, in ms.
const WAIT_MS: u32 = 10_000;
/// How long a client rests after a failure, in ms; up to as much again by chance.
const REST_MS: u64 = 10;

/// The options of the profile.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Whom to load, and with how many.
    #[command(flatten)]
    pub fleet: fleet::Options,
    /// Locks that all clients share; contended acquires go to one of them.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub names: u32,
    /// The part of the acquires that go to a shared lock, from 0 to 1; the others go to a lock of the client's own.
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub contended: f64,
    /// How long a client keeps a lock before it releases it, in ms [default: 0, with --check 1, so that holds could overlap]
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub hold_ms: Option<u32>,
    /// Verify while it runs that the tokens of a name only grow and that no two clients hold one name at once.
    #[arg(long)]
    pub check: bool,
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(format!("{text} is not between 0 and 1")) }
}

impl Options {
    fn hold_ms(&self) -> u32 {
        self.hold_ms.unwrap_or(u32::from(self.check))
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and 1")]
    fn contended_of_million(&self) -> u32 {
        (self.contended * 1e6).round() as u32
    }
}

/// Runs the profile, to its end.
///
/// # Errors
/// When it could not be run at all; a cluster that does not answer is a report without successes.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let fleet = Fleet::new(&options.fleet)?;
    let ledger = options.check.then(|| Arc::new(Ledger::new(options.names + options.fleet.clients)));
    let plan = Arc::new(Plan {
        run: fleet.seed,
        ttl_ms: options.fleet.ttl_ms,
        names: options.names,
        contended_of_million: options.contended_of_million(),
        hold_ms: options.hold_ms(),
        ledger: ledger.clone(),
    });
    let sum = fleet.run(move |clients, tally, pulse| Pairs::new(&plan, clients, tally, pulse))?;
    Ok(Report::new("pairs", &options.fleet, &sum, ledger.as_deref()))
}

/// What all clients of the run have in common.
#[derive(Debug)]
struct Plan {
    /// Tells the names of this run from those of any other.
    run: u64,
    ttl_ms: u32,
    names: u32,
    contended_of_million: u32,
    hold_ms: u32,
    ledger: Option<Arc<Ledger>>,
}

impl Plan {
    /// The shared names come first, then one for each client.
    fn name(&self, index: NameIndex) -> String {
        match index.0.checked_sub(self.names) {
            None => format!("/ls/loadgen/{:016x}/shared-{}", self.run, index.0),
            Some(client) => format!("/ls/loadgen/{:016x}/own-{client}", self.run),
        }
    }

    fn own(&self, client: ClientIndex) -> NameIndex {
        NameIndex(self.names + client.0)
    }
}

/// What a client is at.
#[derive(Clone, Copy, Debug)]
enum Standing {
    /// It has no session; it is due to open one.
    Outside,
    Opening {
        call: CallId,
    },
    /// It has a session and is due to acquire.
    Ready,
    Acquiring {
        call: CallId,
        name: NameIndex,
        since: Time,
    },
    /// It is due to release.
    Holding {
        acquire: CallId,
        name: NameIndex,
        token: FencingToken,
    },
    Releasing {
        call: CallId,
        since: Time,
    },
}

impl Standing {
    fn call(&self) -> Option<CallId> {
        match self {
            Standing::Outside | Standing::Ready | Standing::Holding { .. } => None,
            Standing::Opening { call }
            | Standing::Acquiring { call, .. }
            | Standing::Releasing { call, .. } => Some(*call),
        }
    }

    /// Since when it waits for an answer about a lock.
    fn since(&self) -> Option<Time> {
        match self {
            Standing::Outside | Standing::Opening { .. } | Standing::Ready | Standing::Holding { .. } => None,
            Standing::Acquiring { since, .. } | Standing::Releasing { since, .. } => Some(*since),
        }
    }
}

#[derive(Debug)]
struct Client {
    index: ClientIndex,
    session: Option<SessionKey>,
    standing: Standing,
    /// When it goes on, if that is up to itself.
    due: Option<Time>,
}

/// The clients of one connection.
pub(crate) struct Pairs {
    plan: Arc<Plan>,
    clients: Vec<Client>,
    due: BTreeSet<(Time, usize)>,
    by_call: HashMap<CallId, usize>,
    by_session: HashMap<SessionKey, usize>,
    owners: u64,
    chance: Chance,
    is_closing: bool,
    tally: Rc<RefCell<Tally>>,
    pulse: Arc<Pulse>,
}

impl Pairs {
    fn new(plan: &Arc<Plan>, clients: Range<u32>, tally: Rc<RefCell<Tally>>, pulse: Arc<Pulse>) -> Pairs {
        let seed = plan.run ^ (u64::from(clients.start) << 32);
        let outside = |index| Client {
            index: ClientIndex(index),
            session: None,
            standing: Standing::Outside,
            due: Some(Time(0)),
        };
        let clients: Vec<Client> = clients.map(outside).collect();
        Pairs {
            plan: Arc::clone(plan),
            due: (0..clients.len()).map(|at| (Time(0), at)).collect(),
            clients,
            by_call: HashMap::new(),
            by_session: HashMap::new(),
            owners: 0,
            chance: Chance::new(seed),
            is_closing: false,
            tally,
            pulse,
        }
    }

    fn open(&mut self, at: usize, core: &mut ClientCore, now: Time) {
        let nonce = self.chance.nonce();
        let (session, call) = core.open_session(self.plan.ttl_ms, nonce, now);
        self.clients[at].session = Some(session);
        self.by_session.insert(session, at);
        self.by_call.insert(call, at);
        self.stand(at, Standing::Opening { call }, None);
    }

    fn acquire(&mut self, at: usize, core: &mut ClientCore, now: Time) {
        let Some(session) = self.clients[at].session else { return };
        let name = if self.chance.is_one_of_million(self.plan.contended_of_million) {
            NameIndex(self.chance.below(self.plan.names))
        } else {
            self.plan.own(self.clients[at].index)
        };
        self.owners += 1;
        let options = AcquireOptions {
            name: self.plan.name(name),
            owner: Owner(self.owners),
            mode: Mode::Exclusive,
            is_reentrant: false,
            wait_ms: WAIT_MS,
            data: Vec::new(),
        };
        let call = core.acquire(session, options, now);
        self.by_call.insert(call, at);
        self.stand(at, Standing::Acquiring { call, name, since: now }, None);
    }

    fn release(&mut self, at: usize, acquire: CallId, core: &mut ClientCore, now: Time) {
        self.give_up(at);
        let call = core.release(acquire, now);
        self.by_call.insert(call, at);
        self.stand(at, Standing::Releasing { call, since: now }, None);
    }

    fn on_finished(&mut self, at: usize, outcome: Outcome, core: &mut ClientCore, now: Time) {
        match (self.clients[at].standing, outcome) {
            (Standing::Opening { .. }, Outcome::Opened { .. }) => {
                self.pulse.sessions.fetch_add(1, Ordering::Relaxed);
                self.acquire(at, core, now);
            }
            (Standing::Opening { .. }, outcome) => {
                self.pulse.opens_failed.fetch_add(1, Ordering::Relaxed);
                self.on_error(&outcome, now);
                self.leave(at, now);
            }
            (Standing::Acquiring { call, name, since }, Outcome::Granted(grant)) => {
                self.on_granted(at, call, name, grant, core, now);
                self.tally.borrow_mut().on_success(Step::Acquire, since, now, &self.pulse);
                if self.plan.hold_ms == 0 {
                    self.release(at, call, core, now);
                }
            }
            (Standing::Releasing { since, .. }, Outcome::Released) => {
                self.tally.borrow_mut().on_success(Step::Release, since, now, &self.pulse);
                self.acquire(at, core, now);
            }
            (Standing::Acquiring { .. } | Standing::Releasing { .. }, outcome) => {
                self.on_error(&outcome, now);
                self.rest(at, now);
            }
            (Standing::Outside | Standing::Ready | Standing::Holding { .. }, _) => {
                unreachable!("a call is on the books only while its client waits for it")
            }
        }
    }

    fn on_granted(
        &mut self,
        at: usize,
        acquire: CallId,
        name: NameIndex,
        grant: Grant,
        core: &ClientCore,
        now: Time,
    ) {
        let token = grant.token;
        if let Some(ledger) = &self.plan.ledger {
            // Without a deadline the hold is gone already: there is nothing to believe, but the token has been seen.
            let until = core.safe_until(acquire).unwrap_or(Time(0));
            ledger.on_granted(name, Belief { client: self.clients[at].index, token, until }, now);
        }
        let due = now.plus_ms(u64::from(self.plan.hold_ms));
        self.stand(at, Standing::Holding { acquire, name, token }, Some(due));
    }

    /// The session is over, without the client having closed it.
    fn on_session_ended(&mut self, session: SessionKey, now: Time) {
        let Some(at) = self.by_session.get(&session).copied() else { return };
        match self.clients[at].standing {
            Standing::Opening { .. } => {
                self.pulse.opens_failed.fetch_add(1, Ordering::Relaxed);
            }
            Standing::Outside
            | Standing::Ready
            | Standing::Acquiring { .. }
            | Standing::Holding { .. }
            | Standing::Releasing { .. } => {
                self.pulse.sessions.fetch_sub(1, Ordering::Relaxed);
                self.tally.borrow_mut().sessions_lost += 1;
            }
        }
        self.give_up(at);
        self.leave(at, now);
    }

    fn on_hold_lost(&mut self, session: SessionKey, lost: CallId, now: Time) {
        let Some(at) = self.by_session.get(&session).copied() else { return };
        if matches!(self.clients[at].standing, Standing::Holding { acquire, .. } if acquire == lost) {
            self.give_up(at);
            self.tally.borrow_mut().on_error("HOLD_LOST", "", now, &self.pulse);
            self.rest(at, now);
        }
    }

    fn on_error(&mut self, outcome: &Outcome, now: Time) {
        let (status, trouble) = failure::describe(outcome);
        self.tally.borrow_mut().on_error(status, &trouble, now, &self.pulse);
    }

    /// The client does not believe in its hold any more.
    fn give_up(&self, at: usize) {
        let client = &self.clients[at];
        if let (Some(ledger), Standing::Holding { name, token, .. }) = (&self.plan.ledger, client.standing) {
            ledger.on_given_up(name, client.index, token);
        }
    }

    /// The client has no session any more, and opens another one after a rest.
    fn leave(&mut self, at: usize, now: Time) {
        if let Some(session) = self.clients[at].session.take() {
            self.by_session.remove(&session);
        }
        let due = self.after_rest(now);
        self.stand(at, Standing::Outside, Some(due));
    }

    /// The client begins its next pair after a rest.
    fn rest(&mut self, at: usize, now: Time) {
        let due = self.after_rest(now);
        self.stand(at, Standing::Ready, Some(due));
    }

    fn after_rest(&mut self, now: Time) -> Time {
        now.plus_ms(REST_MS + u64::from(self.chance.below(10)) * REST_MS / 10)
    }

    fn stand(&mut self, at: usize, standing: Standing, due: Option<Time>) {
        let client = &mut self.clients[at];
        if let Some(old) = client.standing.call().filter(|old| standing.call() != Some(*old)) {
            self.by_call.remove(&old);
        }
        if let Some(old) = client.due {
            self.due.remove(&(old, at));
        }
        client.standing = standing;
        client.due = due;
        if let Some(due) = due {
            self.due.insert((due, at));
        }
    }
}

impl Crowd for Pairs {
    fn on_event(&mut self, event: Event, core: &mut ClientCore, now: Time) {
        if self.is_closing {
            return;
        }
        match event {
            Event::Queued { .. } => {}
            Event::Finished { call, outcome } => {
                if let Some(at) = self.by_call.get(&call).copied() {
                    self.on_finished(at, outcome, core, now);
                }
            }
            Event::SessionChanged { session, condition } => match condition {
                Condition::Ended(_) => self.on_session_ended(session, now),
                Condition::Opening | Condition::Safe | Condition::Jeopardy => {}
            },
            Event::HoldLost { session, acquire, reason: _ } => self.on_hold_lost(session, acquire, now),
        }
    }

    fn on_tick(&mut self, core: &mut ClientCore, now: Time) {
        while let Some((due, at)) = self.due.first().copied()
            && due <= now
        {
            match self.clients[at].standing {
                Standing::Outside => self.open(at, core, now),
                Standing::Ready => self.acquire(at, core, now),
                Standing::Holding { acquire, .. } => self.release(at, acquire, core, now),
                Standing::Opening { .. } | Standing::Acquiring { .. } | Standing::Releasing { .. } => {
                    unreachable!("whoever waits for an answer is not due")
                }
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.due.first().map(|(due, _)| *due)
    }

    fn close(&mut self, core: &mut ClientCore, now: Time) {
        self.is_closing = true;
        self.due.clear();
        (0..self.clients.len()).for_each(|at| self.give_up(at));
        let leaving = self
            .clients
            .iter_mut()
            .map(|client| Leaving { session: client.session.take(), since: client.standing.since() });
        leave(leaving, &mut self.tally.borrow_mut(), core, now);
    }
}

#[cfg(test)]
mod tests;
