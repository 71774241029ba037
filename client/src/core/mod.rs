//! The session core: everything a client of one cell has to know, without any I/O (ARCHITECTURE section 5).
//!
//! Whoever drives it says what happened and what time it is, carries out the actions that it pulls, comes
//! back at [`ClientCore::deadline`], and hands the events to the user. The async front end, the simulator and
//! the load generator drive the same core.
//!
//! Invariant: what a session may believe comes from acknowledgements alone, counted from when the
//! acknowledged request was sent; [`ClientCore::is_held`] is never true past that, however late or odd the
//! driver's calls are. The same inputs and the same seed give the same outputs. Everything has a bound.
//! Deliberately absent: clocks, sockets, threads, tasks, and any choice of a nonce.

mod beat;
mod call;
mod chance;
mod command;
mod end;
mod link;
mod outcome;
mod reply;
mod send;
mod session;
#[cfg(test)]
mod tests;
mod time;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lockstep_wire::frame::Assembler;
use lockstep_wire::limit::REPLY_FRAME_BYTES_MAX;
use lockstep_wire::{CellId, ClusterId, SessionId};

pub use call::{AcquireOptions, MemberWish};
pub use outcome::{Action, CallId, Condition, ConnectionId, Event, Failure, Loss, Outcome, SessionKey};
pub use time::Time;
pub use view::{
    Claim, Holder, LockInfo, MemberInfo, MemberState, MembersInfo, PieceInfo, RouteInfo, SessionInfo,
    StatusInfo, Waiter,
};

use self::call::{Body, Call, Errand, Flight};
pub(crate) use self::link::shorten;

use self::chance::Chance;
use self::link::{Link, Phase};
use self::session::Session;
use self::time::Timers;

/// Sessions in one core.
pub const SESSIONS_MAX: usize = 65_536;
/// Calls without a session that are under way or wait.
pub const READS_MAX: usize = 65_536;

/// How a core is to behave.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The cell that it talks to.
    pub cell: CellId,
    /// The cluster it belongs to; all zero takes the first one that answers, and from then on no other.
    pub cluster: ClusterId,
    /// The members, as `host:port`, at least one.
    pub endpoints: Vec<String>,
    /// What people see of the client.
    pub client_id: String,
    /// What jitter is drawn from; different for each client.
    pub seed: u64,
    /// How long one member may take to answer one request, in ms; kept below a quarter of the shortest TTL.
    pub try_timeout_ms: u64,
    /// How long a call may go without being carried out, the wait of an acquire aside, in ms.
    pub call_timeout_ms: u64,
    /// How long a session may be in jeopardy before it is given up, in ms.
    pub grace_ms: u64,
    /// Stay at whichever member answers, leader or not, and take its word if it refuses: for `status` and `routes`, which
    /// every member answers.
    pub is_pinned: bool,
    /// The endpoint that is tried first, by its place; drawn at random without one.
    pub first: Option<usize>,
}

impl ClientConfig {
    /// The defaults of the field, for one cell.
    pub fn new(cell: CellId, endpoints: Vec<String>, client_id: &str, seed: u64) -> ClientConfig {
        ClientConfig {
            cell,
            cluster: ClusterId::default(),
            endpoints,
            client_id: client_id.to_owned(),
            seed,
            try_timeout_ms: 1_000,
            call_timeout_ms: 10_000,
            grace_ms: 45_000,
            is_pinned: false,
            first: None,
        }
    }
}

/// What the core's timers are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A call is to be sent again or given up.
    Call(CallId),
    /// A request has got no answer.
    Flight(u64),
}

/// A client of one cell.
#[derive(Debug)]
pub struct ClientCore {
    config: ClientConfig,
    now: Time,
    chance: Chance,
    link: Link,
    try_timeout_ms: u64,
    assembler: Assembler,
    /// Frames for the connection that is there now.
    out: Vec<u8>,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    correlations: u64,
    /// When the member proved last, by an answer that needs a round, that it leads.
    led_at: Option<Time>,
    flights: BTreeMap<u64, Flight>,
    calls: BTreeMap<CallId, Call>,
    /// Calls without a session that are to be sent.
    unsent: BTreeSet<CallId>,
    sessions: BTreeMap<SessionKey, Session>,
    by_id: BTreeMap<SessionId, SessionKey>,
    /// Whose hold an acquire's call has made.
    holds: BTreeMap<CallId, SessionKey>,
    grants: u64,
    /// Sessions that may have something to send.
    dirty: BTreeSet<SessionKey>,
    timers: Timers<Due>,
    /// When each session's deadline or grace period is over.
    leases: Timers<SessionKey>,
    /// When each open session attaches or beats next, unless it is at it.
    beats: Timers<SessionKey>,
    next_key: u64,
}

impl ClientCore {
    /// A client that has not connected yet; it does once there is something to ask.
    ///
    /// # Panics
    /// Without an endpoint.
    pub fn new(config: ClientConfig, now: Time) -> ClientCore {
        let mut chance = Chance::new(config.seed);
        ClientCore {
            link: Link::new(config.endpoints.clone(), config.first, &mut chance),
            try_timeout_ms: config.try_timeout_ms.max(1),
            chance,
            config,
            now,
            assembler: Assembler::default(),
            out: Vec::new(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            correlations: 0,
            led_at: None,
            flights: BTreeMap::new(),
            calls: BTreeMap::new(),
            unsent: BTreeSet::new(),
            sessions: BTreeMap::new(),
            by_id: BTreeMap::new(),
            holds: BTreeMap::new(),
            grants: 0,
            dirty: BTreeSet::new(),
            timers: Timers::new(),
            leases: Timers::new(),
            beats: Timers::new(),
            next_key: 0,
        }
    }

    /// The driver has connected.
    pub fn on_connected(&mut self, connection: ConnectionId, now: Time) {
        self.begin(now);
        if matches!(self.link.phase, Phase::Connecting(expected, _) if expected == connection) {
            self.greet(connection);
        }
        self.flush();
    }

    /// The driver could not connect; `trouble` says why, for people.
    pub fn on_connect_failed(&mut self, connection: ConnectionId, trouble: &str, now: Time) {
        self.on_disconnected(connection, trouble, now);
    }

    /// The connection is gone; `trouble` says why, for people.
    pub fn on_disconnected(&mut self, connection: ConnectionId, trouble: &str, now: Time) {
        self.begin(now);
        if self.link.connection() == Some(connection) {
            self.drop_connection();
            self.link.leave(self.now, trouble, "", &mut self.chance);
        }
        self.flush();
    }

    /// Bytes have come.
    pub fn on_bytes(&mut self, connection: ConnectionId, bytes: &[u8], now: Time) {
        self.begin(now);
        let is_awaited = match self.link.phase {
            Phase::Greeting(expected, _) | Phase::Ready(expected) => expected == connection,
            Phase::Idle | Phase::Pausing(_) | Phase::Connecting(..) => false,
        };
        if is_awaited {
            self.read_frames(connection, bytes);
        }
        self.flush();
    }

    /// Time has passed. To be called at the latest at [`ClientCore::deadline`].
    pub fn on_tick(&mut self, now: Time) {
        self.begin(now);
        while let Some(due) = self.timers.take_due(self.now) {
            match due {
                Due::Call(call) => self.on_call_due(call),
                Due::Flight(correlation) => self.on_flight_due(correlation),
            }
        }
        if self.link.deadline() <= self.now {
            match self.link.phase {
                Phase::Connecting(..) => self.leave_silent("did not accept the connection in time"),
                Phase::Greeting(..) => self.leave_silent("did not answer Hello in time"),
                Phase::Idle | Phase::Pausing(_) | Phase::Ready(_) => {}
            }
        }
        self.flush();
    }

    /// When [`ClientCore::on_tick`] is to be called next, if nothing else happens.
    pub fn deadline(&self) -> Option<Time> {
        let beat = self.link.ready().and_then(|_| self.beats.first());
        let link = self.link.deadline();
        let link = (link < Time::NEVER).then_some(link);
        [self.timers.first(), self.leases.first(), beat, link].into_iter().flatten().min()
    }

    /// What the driver is to do next; to be asked after every call until there is nothing.
    pub fn poll_action(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if self.out.is_empty() {
            return None;
        }
        let connection = self.link.connection().expect("frames are made for a connection that exists");
        Some(Action::Send { connection, bytes: std::mem::take(&mut self.out) })
    }

    /// What the user is to know next; to be asked after every call until there is nothing.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether an acquire's hold may be believed in at this moment.
    pub fn is_held(&self, acquire: CallId, now: Time) -> bool {
        self.safe_until(acquire).is_some_and(|until| now < until)
    }

    /// Until when an acquire's hold may be believed in, if nothing else is heard; none when it is gone.
    pub fn safe_until(&self, acquire: CallId) -> Option<Time> {
        let session = self.sessions.get(self.holds.get(&acquire)?)?;
        let hold = session.holds.get(&acquire)?;
        (session.is_live() && !hold.is_withheld).then_some(session.safe_until)
    }

    /// The deadline of a session that is open; none otherwise.
    pub fn session_safe_until(&self, session: SessionKey) -> Option<Time> {
        let session = self.sessions.get(&session)?;
        session.is_live().then_some(session.safe_until)
    }

    /// How the cell names a session; none before it is open and after it has ended.
    pub fn session_id(&self, session: SessionKey) -> Option<SessionId> {
        self.sessions.get(&session)?.id
    }

    /// The number of the acquire within its session, which names its hold at the cell.
    pub fn acquire_id(&self, acquire: CallId) -> Option<lockstep_wire::RequestId> {
        let session = self.sessions.get(self.holds.get(&acquire)?)?;
        session.holds.get(&acquire).map(|hold| hold.acquire_id)
    }

    /// The last thing that went wrong, for people.
    pub fn trouble(&self) -> &str {
        &self.link.trouble
    }

    /// Calls without an outcome, withdrawn ones that the cell still has to answer among them.
    pub fn outstanding_total(&self) -> usize {
        self.calls.len()
    }

    /// Whether nothing is open, under way or waiting.
    pub fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.calls.is_empty()
    }

    /// Every input starts here: no answer is read before the deadlines that passed before it have counted.
    fn begin(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some(session) = self.leases.take_due(self.now) {
            self.on_lease_over(session);
        }
    }

    /// Every input ends here: whatever can be sent is sent.
    fn flush(&mut self) {
        if let Phase::Pausing(at) = self.link.phase
            && at <= self.now
        {
            self.link.phase = Phase::Idle;
        }
        if self.link.phase == Phase::Idle && !self.is_idle() {
            let until = self.now.plus_ms(self.try_timeout_ms);
            let (connection, endpoint) = self.link.connect(self.now, until);
            self.actions.push_back(Action::Connect { connection, endpoint });
        }
        if self.link.ready().is_some() {
            self.send_due();
        }
    }

    fn read_frames(&mut self, connection: ConnectionId, mut bytes: &[u8]) {
        let mut assembler = std::mem::take(&mut self.assembler);
        loop {
            match assembler.next(&mut bytes, REPLY_FRAME_BYTES_MAX) {
                Ok(Some(frame)) => self.on_frame(&frame),
                Ok(None) => break,
                Err(error) => self.leave(&error.to_string(), ""),
            }
            if self.link.connection() != Some(connection) {
                return;
            }
        }
        self.assembler = assembler;
    }

    /// Closes the connection to a member that is silent, and does not come back to it for two tries.
    fn leave_silent(&mut self, trouble: &str) {
        self.link.distrust(self.now.plus_ms(self.try_timeout_ms.saturating_mul(2)));
        self.leave(trouble, "");
    }

    /// Closes the connection and goes to another member.
    fn leave(&mut self, trouble: &str, hint: &str) {
        if let Some(connection) = self.link.connection() {
            self.actions.push_back(Action::Disconnect { connection });
            self.drop_connection();
            self.link.leave(self.now, trouble, hint, &mut self.chance);
        }
    }

    /// What was under way on the connection is in doubt, and is sent again on the next one.
    fn drop_connection(&mut self) {
        self.out.clear();
        self.led_at = None;
        self.assembler = Assembler::default();
        for (correlation, flight) in std::mem::take(&mut self.flights) {
            self.timers.clear(Due::Flight(correlation));
            if let Errand::Call(call) = flight.what
                && let Some(state) = self.calls.get_mut(&call)
            {
                state.flight = None;
                state.is_in_doubt = true;
                if matches!(state.body, Body::Reconcile { .. } | Body::Verify { .. }) {
                    // The next attach asks anew.
                    self.remove_call(call);
                } else {
                    self.requeue(call);
                }
            }
        }
        for (key, session) in &mut self.sessions {
            session.is_attached = false;
            session.is_beating = false;
            if session.id.is_some() {
                self.beats.set(*key, Time(0));
            }
        }
    }
}
