//! Sessions as users have them, and the acquires that they make.
//!
//! Invariant: a session is closed when its last handle is gone; a guard is such a handle. An acquire whose future is dropped
//! is withdrawn.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lockstep_wire::limit::WAIT_MS_MAX;
use lockstep_wire::request::Mode;
use lockstep_wire::{CellId, FencingToken, Name, Owner, SessionId};
use tokio::sync::watch;

use crate::client::serving;
use crate::clock;
use crate::core::{AcquireOptions, Condition, Failure, Loss, Outcome, SessionInfo, SessionKey, Time};
use crate::driver::{Command, Handle, Read};
use crate::error::Error;
use crate::guard::Guard;

/// Owners that the library chooses have this bit; whoever chooses his own leaves it clear.
const OWN_OWNER: u64 = 1 << 63;

/// Numbers acquires, so that one can be withdrawn before the driver has seen it.
static TICKETS: AtomicU64 = AtomicU64::new(1);

/// What the driver knows of a session, where guards can see it.
#[derive(Debug)]
pub(crate) struct SessionState {
    key: SessionKey,
    cell: CellId,
    id: AtomicU64,
    ttl_ms: AtomicU32,
    /// Until when it may be believed in, in ns of the clock; 0 when it may not be.
    safe_until: AtomicU64,
    owners: AtomicU64,
    condition: watch::Sender<Condition>,
}

impl SessionState {
    pub(crate) fn new(key: SessionKey, cell: CellId) -> SessionState {
        SessionState {
            key,
            cell,
            id: AtomicU64::new(0),
            ttl_ms: AtomicU32::new(0),
            safe_until: AtomicU64::new(0),
            owners: AtomicU64::new(0),
            condition: watch::Sender::new(Condition::Opening),
        }
    }

    /// Stores what the core says now.
    pub(crate) fn believe(&self, safe_until: Option<Time>, id: Option<SessionId>) {
        self.safe_until.store(safe_until.unwrap_or_default().0, Ordering::Release);
        if let Some(id) = id {
            self.id.store(id.0, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_ttl(&self, ttl_ms: u32) {
        self.ttl_ms.store(ttl_ms, Ordering::Relaxed);
    }

    pub(crate) fn change(&self, condition: Condition) {
        if matches!(condition, Condition::Ended(_)) {
            self.safe_until.store(0, Ordering::Release);
        }
        self.condition.send_replace(condition);
    }

    pub(crate) fn key(&self) -> SessionKey {
        self.key
    }
}

/// The last one closes the session.
#[derive(Debug)]
struct Inner {
    state: Arc<SessionState>,
    handle: Handle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.handle.tell(Command::Close { session: self.state.key, answer: None });
    }
}

/// A session: what holds locks, and lives as long as its client is heard of. Clones are the same session; it is closed
/// when the last of them and the last guard are dropped.
#[derive(Clone, Debug)]
pub struct Session(Arc<Inner>);

/// What became of a session that was closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// How many holds it had.
    pub released_total: u32,
    /// The names of some of them.
    pub released: Vec<String>,
}

/// What a cell knows of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Whether it names a live hold.
    pub is_current: bool,
    /// The newest token of the name; 0 when nobody holds it.
    pub latest_token: FencingToken,
    /// What every token granted so far is at most, and every later one is above; 0 while somebody holds it.
    pub fence_floor: FencingToken,
}

impl Session {
    pub(crate) fn new(state: Arc<SessionState>, handle: Handle) -> Session {
        Session(Arc::new(Inner { state, handle }))
    }

    pub(crate) fn key(&self) -> SessionKey {
        self.0.state.key
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.0.handle
    }

    /// How the cell names it.
    pub fn id(&self) -> SessionId {
        SessionId(self.0.state.id.load(Ordering::Relaxed))
    }

    /// The cell that has it.
    pub fn cell(&self) -> CellId {
        self.0.state.cell
    }

    /// The TTL that the cell gave it.
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(u64::from(self.0.state.ttl_ms.load(Ordering::Relaxed)))
    }

    /// Until when it may be believed in if nothing else is heard, on [`clock::now`]'s clock; 0 when it is over.
    pub fn safe_until(&self) -> Time {
        Time(self.0.state.safe_until.load(Ordering::Acquire))
    }

    /// Whether the cell's promise covers this moment. Asks the clock itself.
    pub fn is_safe(&self) -> bool {
        !self.0.handle.is_forked() && clock::now() < self.safe_until()
    }

    /// What may be believed of it.
    pub fn condition(&self) -> Condition {
        *self.0.state.condition.borrow()
    }

    /// A stream of its conditions: safe, in jeopardy, safe again, ended.
    pub fn conditions(&self) -> watch::Receiver<Condition> {
        self.0.state.condition.subscribe()
    }

    /// Asks for a lock; to be awaited. Waits in line for a day at most unless told otherwise.
    pub fn acquire(&self, name: &str) -> Acquire {
        let number = self.0.state.owners.fetch_add(1, Ordering::Relaxed);
        let options = AcquireOptions {
            name: name.to_owned(),
            owner: Owner(OWN_OWNER | number),
            mode: Mode::Exclusive,
            is_reentrant: false,
            wait_ms: WAIT_MS_MAX,
            data: Vec::new(),
        };
        Acquire { source: Source::Session(self.clone()), options }
    }

    /// What the cell says that it holds and waits for.
    pub async fn view(&self) -> Result<SessionInfo, Error> {
        let what = "looking at the session";
        let read = Read::Session { session: self.key() };
        let asked = self.0.handle.ask(what, |answer| Command::Read { read, answer, what: what.to_owned() });
        match asked.await? {
            Outcome::Session(view) => Ok(view),
            other => Err(odd(what, &other)),
        }
    }

    /// Ends it, and frees all that it holds.
    pub async fn close(self) -> Result<Closed, Error> {
        let (what, session) = ("closing the session", self.key());
        let answer =
            self.0.handle.ask(what, |answer| Command::Close { session, answer: Some(answer) }).await?;
        match answer {
            Outcome::Closed { released_total, released } => Ok(Closed { released_total, released }),
            other => Err(odd(what, &other)),
        }
    }
}

/// The core never gives such an outcome; if it did, nothing would be known.
pub(crate) fn odd(what: &str, outcome: &Outcome) -> Error {
    let trouble = format!("an answer of the wrong shape: {outcome:?}");
    Error::from_failure(what, Failure::OutcomeUnknown { trouble })
}

/// Which session is to hold.
pub(crate) enum Source {
    Session(Session),
    /// The client's shared session of the name's cell, opened when needed.
    Client(crate::Client),
}

/// An acquire that is being put together; awaiting it gives the [`Guard`].
#[must_use = "an acquire does nothing until it is awaited"]
pub struct Acquire {
    pub(crate) source: Source,
    pub(crate) options: AcquireOptions,
}

impl Acquire {
    pub(crate) fn of_client(client: crate::Client, name: &str) -> Acquire {
        let number = TICKETS.fetch_add(1, Ordering::Relaxed);
        let options = AcquireOptions {
            name: name.to_owned(),
            // A shared session hands out its own owners; the upper half of these keeps them apart.
            owner: Owner(OWN_OWNER | 1 << 62 | number),
            mode: Mode::Exclusive,
            is_reentrant: false,
            wait_ms: WAIT_MS_MAX,
            data: Vec::new(),
        };
        Acquire { source: Source::Client(client), options }
    }

    /// Holds it together with others who hold it shared.
    pub fn shared(mut self) -> Acquire {
        self.options.mode = Mode::Shared;
        self
    }

    /// Stands in line for so long, a day at most.
    pub fn wait(mut self, wait: Duration) -> Acquire {
        self.options.wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).min(WAIT_MS_MAX);
        self
    }

    /// Does not stand in line: [`Error::Held`] when it is not free.
    pub fn try_once(mut self) -> Acquire {
        self.options.wait_ms = 0;
        self
    }

    /// Holds as this owner; by default each acquire is an owner of its own and contends with all others.
    pub fn owner(mut self, owner: u64) -> Acquire {
        self.options.owner = Owner(owner);
        self
    }

    /// Shows this to whoever looks at the lock; 1 KiB at most.
    pub fn data(mut self, data: impl Into<Vec<u8>>) -> Acquire {
        self.options.data = data.into();
        self
    }

    /// Is granted again, under the same token, when the owner holds the name in this mode already.
    pub fn reentrant(mut self) -> Acquire {
        self.options.is_reentrant = true;
        self
    }

    async fn run(self) -> Result<Guard, Error> {
        let session = match self.source {
            Source::Client(client) => client.session(&self.options.name).await?,
            Source::Session(session) => session,
        };
        let name = &self.options.name;
        let what = format!("acquiring {name}");
        let cell =
            Name::parse(name).ok().and_then(|name| serving(&session.handle().routes, name.namespace()));
        if cell.is_some_and(|cell| cell != session.cell()) {
            return Err(Error::OtherCell { name: name.clone() });
        }
        if let Condition::Ended(reason) = session.condition() {
            return Err(Error::SessionEnded { what, reason });
        }
        let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
        let handle = session.handle().clone();
        let mut withdrawal = Withdrawal { handle: handle.clone(), ticket: Some(ticket) };
        let options = self.options;
        let guard = handle.ask(&what, |answer| Command::Acquire { session, options, ticket, answer }).await;
        withdrawal.ticket = None;
        guard
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Guard, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// Withdraws the acquire when its future is dropped.
struct Withdrawal {
    handle: Handle,
    ticket: Option<u64>,
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.handle.tell(Command::Withdraw { ticket });
        }
    }
}

/// Why a hold of a session is over when nothing more was said than that the session is.
pub(crate) fn loss_of(condition: Condition) -> Option<Loss> {
    match condition {
        Condition::Ended(loss) => Some(loss),
        Condition::Opening | Condition::Safe | Condition::Jeopardy => None,
    }
}
