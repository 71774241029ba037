//! The task that drives one cell's core: it carries bytes, time and commands in, and outcomes out.
//!
//! It runs on a thread of the library's own, so that user code can neither stall nor flood the beats. Invariant: what a
//! session may believe is stored where guards look before anything that rests on it is delivered. Deliberately absent:
//! decisions; those are the core's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockstep_wire::{FencingToken, NodeId, Nonce, SessionId, SnapshotId};
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock;
use crate::core::{
    AcquireOptions, Action, CallId, ClientConfig, ClientCore, Condition, ConnectionId, Event, Failure, Loss,
    MemberWish, Outcome, RouteInfo, SessionKey,
};
use crate::error::Error;
use crate::guard::Guard;
use crate::session::{Session, SessionState};
use crate::socket::{NEWS_MAX, News, Socket};

/// The longest sleep: timers stand still while the machine is suspended, the deadlines do not.
const SLEEP_MAX: Duration = Duration::from_millis(500);
/// How long a driver that nobody needs any more goes on with its last releases.
const LINGER: Duration = Duration::from_secs(2);

/// How an answer gets back.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, Error>>;

/// What the front end asks for. The channel has no bound of its own: each command stands for a future or a guard of the
/// user's, and the core refuses more than it can keep.
pub(crate) enum Command {
    Open {
        ttl_ms: u32,
        nonce: Nonce,
        answer: Answer<Session>,
    },
    Acquire {
        session: Session,
        options: AcquireOptions,
        ticket: u64,
        answer: Answer<Guard>,
    },
    /// The future of the acquire with this ticket was dropped.
    Withdraw {
        ticket: u64,
    },
    Release {
        call: CallId,
        answer: Option<Answer<Outcome>>,
        what: String,
    },
    Close {
        session: SessionKey,
        answer: Option<Answer<Outcome>>,
    },
    ChangeMembers {
        wish: MemberWish,
        answer: Answer<Outcome>,
        what: String,
    },
    TransferLeader {
        to: NodeId,
        answer: Answer<Outcome>,
        what: String,
    },
    Read {
        read: Read,
        answer: Answer<Outcome>,
        what: String,
    },
}

/// Something to look at.
pub(crate) enum Read {
    Check { name: String, token: FencingToken, of: SessionId },
    Lock { name: String },
    Session { session: SessionKey },
    Status,
    Members,
    Routes,
    Piece { snapshot: SnapshotId, piece: u32 },
}

/// How commands get to a driver.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    /// The process that connected; a fork of it has no session.
    pub(crate) pid: u32,
    /// Which cell serves which namespace; empty before that is known.
    pub(crate) routes: Arc<[RouteInfo]>,
}

impl Handle {
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    /// Sends a command and waits for its answer.
    pub(crate) async fn ask<T>(
        &self,
        what: &str,
        command: impl FnOnce(Answer<T>) -> Command,
    ) -> Result<T, Error> {
        if self.is_forked() {
            return Err(Error::Forked { what: what.to_owned() });
        }
        let stopped = || Error::Stopped { what: what.to_owned() };
        let (answer, reply) = oneshot::channel();
        self.commands.send(command(answer)).map_err(|_| stopped())?;
        reply.await.map_err(|_| stopped())?
    }

    /// Sends a command that nobody waits for.
    pub(crate) fn tell(&self, command: Command) {
        if !self.is_forked() {
            // A driver that is gone has no sessions left to do it in.
            let _ = self.commands.send(command);
        }
    }
}

/// Starts one thread that drives a core for each configuration, until their handles are gone.
pub(crate) fn start(configs: Vec<ClientConfig>, routes: &Arc<[RouteInfo]>) -> Result<Vec<Handle>, Error> {
    let stopped = |error: std::io::Error| Error::Stopped { what: format!("starting the client ({error})") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(stopped)?;
    let pid = std::process::id();
    let (handles, drivers): (Vec<Handle>, Vec<Driver>) = configs
        .into_iter()
        .map(|config| {
            let (commands, inbox) = mpsc::unbounded_channel();
            let handle = Handle { commands: commands.clone(), pid, routes: Arc::clone(routes) };
            (handle, Driver::new(config, inbox, commands.downgrade(), pid, Arc::clone(routes)))
        })
        .unzip();
    let run = move || {
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for driver in drivers {
                tasks.spawn(driver.run());
            }
            while tasks.join_next().await.is_some() {}
        });
    };
    std::thread::Builder::new().name("lockstep-client".to_owned()).spawn(run).map_err(stopped)?;
    Ok(handles)
}

/// Whoever waits for a call.
enum Waiting {
    Open { state: Arc<SessionState>, answer: Answer<Session> },
    Acquire { session: Session, name: String, wait_ms: u32, ticket: u64, answer: Answer<Guard> },
    Plain { answer: Answer<Outcome>, what: String },
}

struct Driver {
    core: ClientCore,
    cell: lockstep_wire::CellId,
    pid: u32,
    routes: Arc<[RouteInfo]>,
    inbox: mpsc::UnboundedReceiver<Command>,
    /// Weak, so that the channel closes when the last handle, session and guard are gone.
    commands: mpsc::WeakUnboundedSender<Command>,
    socket: Option<Socket>,
    news: mpsc::Receiver<(ConnectionId, News)>,
    reporter: mpsc::Sender<(ConnectionId, News)>,
    waiting: BTreeMap<CallId, Waiting>,
    tickets: BTreeMap<u64, CallId>,
    sessions: BTreeMap<SessionKey, Arc<SessionState>>,
    holds: BTreeMap<CallId, watch::Sender<Option<Loss>>>,
}

impl Driver {
    fn new(
        config: ClientConfig,
        inbox: mpsc::UnboundedReceiver<Command>,
        commands: mpsc::WeakUnboundedSender<Command>,
        pid: u32,
        routes: Arc<[RouteInfo]>,
    ) -> Driver {
        let (reporter, news) = mpsc::channel(NEWS_MAX);
        Driver {
            cell: config.cell,
            core: ClientCore::new(config, clock::now()),
            pid,
            routes,
            inbox,
            commands,
            socket: None,
            news,
            reporter,
            waiting: BTreeMap::new(),
            tickets: BTreeMap::new(),
            sessions: BTreeMap::new(),
            holds: BTreeMap::new(),
        }
    }

    async fn run(mut self) {
        let mut ends_at = None;
        loop {
            self.settle();
            let deadline = self.core.deadline().map_or(SLEEP_MAX, clock::until);
            let sleep = tokio::time::sleep(deadline.min(SLEEP_MAX));
            tokio::select! {
                command = self.inbox.recv(), if ends_at.is_none() => match command {
                    Some(command) => self.on_command(command),
                    None => ends_at = Some(tokio::time::Instant::now() + LINGER),
                },
                Some((connection, news)) = self.news.recv() => self.on_news(connection, news),
                () = sleep => self.core.on_tick(clock::now()),
            }
            if ends_at.is_some_and(|at| self.core.is_idle() || tokio::time::Instant::now() >= at) {
                return self.settle();
            }
        }
    }

    fn on_news(&mut self, connection: ConnectionId, news: News) {
        let now = clock::now();
        match news {
            News::Connected => self.core.on_connected(connection, now),
            News::Bytes(bytes) => self.core.on_bytes(connection, &bytes, now),
            News::Gone(trouble) => self.core.on_disconnected(connection, &trouble, now),
        }
    }

    fn on_command(&mut self, command: Command) {
        let now = clock::now();
        match command {
            Command::Open { ttl_ms, nonce, answer } => {
                let (key, call) = self.core.open_session(ttl_ms, nonce, now);
                let state = Arc::new(SessionState::new(key, self.cell));
                self.sessions.insert(key, Arc::clone(&state));
                self.waiting.insert(call, Waiting::Open { state, answer });
            }
            Command::Acquire { session, options, ticket, answer } => {
                let (name, wait_ms) = (options.name.clone(), options.wait_ms);
                let call = self.core.acquire(session.key(), options, now);
                self.tickets.insert(ticket, call);
                self.waiting.insert(call, Waiting::Acquire { session, name, wait_ms, ticket, answer });
            }
            Command::Withdraw { ticket } => {
                if let Some(call) = self.tickets.remove(&ticket) {
                    self.waiting.remove(&call);
                    self.core.cancel(call, now);
                }
            }
            Command::Release { call, answer, what } => {
                self.holds.remove(&call);
                let release = self.core.release(call, now);
                self.wait_plain(release, answer, what);
            }
            Command::Close { session, answer } => {
                let call = self.core.close_session(session, now);
                self.wait_plain(call, answer, "closing the session".to_owned());
            }
            Command::ChangeMembers { wish, answer, what } => {
                let call = self.core.change_members(wish, now);
                self.wait_plain(call, Some(answer), what);
            }
            Command::TransferLeader { to, answer, what } => {
                let call = self.core.transfer_leader(to, now);
                self.wait_plain(call, Some(answer), what);
            }
            Command::Read { read, answer, what } => {
                let call = match read {
                    Read::Check { name, token, of } => self.core.check_token(&name, token, of, now),
                    Read::Lock { name } => self.core.get_lock(&name, now),
                    Read::Session { session } => self.core.get_session(session, now),
                    Read::Status => self.core.status(now),
                    Read::Members => self.core.members(now),
                    Read::Routes => self.core.routes(now),
                    Read::Piece { snapshot, piece } => self.core.save_snapshot(snapshot, piece, now),
                };
                self.wait_plain(call, Some(answer), what);
            }
        }
    }

    fn wait_plain(&mut self, call: CallId, answer: Option<Answer<Outcome>>, what: String) {
        if let Some(answer) = answer {
            self.waiting.insert(call, Waiting::Plain { answer, what });
        }
    }

    /// Carries out what the core wants and delivers what it says.
    fn settle(&mut self) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Connect { connection, endpoint } => {
                    tracing::debug!(%endpoint, "connecting");
                    self.socket = Some(Socket::connect(connection, endpoint, self.reporter.clone()));
                }
                Action::Send { connection, bytes } => {
                    if let Some(socket) = self.socket.as_ref().filter(|it| it.connection == connection) {
                        socket.send(bytes);
                    }
                }
                Action::Disconnect { connection } => {
                    tracing::debug!(trouble = self.core.trouble(), "leaving a member");
                    if self.socket.as_ref().is_some_and(|it| it.connection == connection) {
                        self.socket = None;
                    }
                }
            }
        }
        for (key, state) in &self.sessions {
            state.believe(self.core.session_safe_until(*key), self.core.session_id(*key));
        }
        while let Some(event) = self.core.poll_event() {
            self.deliver(event);
        }
    }

    fn deliver(&mut self, event: Event) {
        match event {
            Event::Queued { call, position } => tracing::debug!(call = call.0, position, "standing in line"),
            Event::SessionChanged { session, condition } => {
                tracing::debug!(session = session.0, ?condition, "session changed");
                if let Some(state) = self.sessions.get(&session) {
                    state.change(condition);
                }
                if matches!(condition, Condition::Ended(_)) {
                    self.sessions.remove(&session);
                }
            }
            Event::HoldLost { acquire, reason, .. } => {
                if let Some(lost) = self.holds.remove(&acquire) {
                    lost.send_replace(Some(reason));
                }
            }
            Event::Finished { call, outcome } => self.finish(call, outcome),
        }
    }

    fn finish(&mut self, call: CallId, outcome: Outcome) {
        // A user that does not wait any more has dropped the receiver, and then nobody is told. What was made for it is
        // dropped, and gives itself back.
        match self.waiting.remove(&call) {
            None => {}
            Some(Waiting::Plain { answer, what }) => {
                let _ = answer.send(match outcome {
                    Outcome::Failed(failure) => Err(Error::from_failure(&what, failure)),
                    outcome => Ok(outcome),
                });
            }
            Some(Waiting::Open { state, answer }) => {
                let key = state.key();
                let what = "opening a session";
                let opened = match (outcome, self.commands.upgrade()) {
                    (Outcome::Opened { ttl_ms }, Some(commands)) => {
                        state.set_ttl(ttl_ms);
                        let routes = Arc::clone(&self.routes);
                        Ok(Session::new(state, Handle { commands, pid: self.pid, routes }))
                    }
                    (Outcome::Failed(failure), _) => Err(Error::from_failure(what, failure)),
                    (_, _) => Err(Error::Stopped { what: what.to_owned() }),
                };
                if opened.is_err() {
                    self.sessions.remove(&key);
                }
                let _ = answer.send(opened);
            }
            Some(Waiting::Acquire { session, name, wait_ms, ticket, answer }) => {
                self.tickets.remove(&ticket);
                let _ = answer.send(self.acquired(call, session, name, wait_ms, outcome));
            }
        }
    }

    fn acquired(
        &mut self,
        call: CallId,
        session: Session,
        name: String,
        wait_ms: u32,
        outcome: Outcome,
    ) -> Result<Guard, Error> {
        match outcome {
            Outcome::Granted(grant) => {
                let (lost, watcher) = watch::channel(None);
                self.holds.insert(call, lost);
                Ok(Guard::new(session, call, name, grant, watcher))
            }
            Outcome::TimedOut if wait_ms == 0 => Err(Error::Held { name }),
            Outcome::TimedOut => {
                Err(Error::TimedOut { name, waited: Duration::from_millis(u64::from(wait_ms)) })
            }
            Outcome::AlreadyHeld { acquire_id, token } => Err(Error::AlreadyHeld { name, acquire_id, token }),
            Outcome::Lost { token, reason } => Err(Error::Lost { name, token, reason }),
            Outcome::Failed(failure) => Err(Error::from_acquire(&name, failure)),
            _ => {
                let trouble = "the cell gave an answer of the wrong shape".to_owned();
                Err(Error::from_acquire(&name, Failure::OutcomeUnknown { trouble }))
            }
        }
    }
}
