//! A client that speaks the protocol by hand and sends what the client library never would: the same request again, on the
//! connection of then or of now; another request under an id that was used; ids out of order and with gaps; what must be
//! refused; and what only the owner of a session may do.
//!
//! Invariant: every frame is one of the protocol, and whatever comes back is judged: by the tap, like every word to a client,
//! and here by what the contract demands of this very request. Deliberately absent: bytes that are no frames (those are
//! for fuzzing), and a lease: nothing is believed here.

use std::collections::BTreeMap;

use lockstep_wire::frame::{self, Assembler, Frame, Head};
use lockstep_wire::hello::{Hello, HelloReply, PROTOCOL, Role};
use lockstep_wire::limit::REPLY_FRAME_BYTES_MAX;
use lockstep_wire::reply::Reply;
use lockstep_wire::request::{Request, SessionProof, kind};
use lockstep_wire::{CellId, ClusterId, Correlation, Nonce, RequestId, Retry, Rows, SessionId, Status};

use super::client::{ClientArrival, ClientSurroundings};
use super::forgery::{Deed, Forgery};
use super::network::{Door, End, Site, WireId};
use super::plan::Plan;
use super::schedule::{MS, Moment};
use crate::oracle::violated;
use crate::random::{Concern, Stream};

/// How long a connection may go without a word to a question.
const PATIENCE: Moment = 2_000 * MS;
/// How forgers call themselves.
const CLIENT_ID: &str = "forger";

/// A connection, perhaps an old one.
#[derive(Debug)]
struct Line {
    wire: WireId,
    node: usize,
    assembler: Assembler,
    is_welcome: bool,
    /// The session is attached to it, as far as it was told.
    is_attached: bool,
}

/// What came back must be one of these, or tell that nothing was executed for a reason that has nothing to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Whatever the tap lets pass.
    Anything,
    /// A refusal with one of these two statuses.
    Refusal(Status, Status),
}

#[derive(Clone, Debug)]
enum Errand {
    /// With the nonce of then.
    Open(Nonce),
    Attach,
    Beat,
    Close,
    Deed {
        session: SessionId,
        request_id: RequestId,
        due: Due,
    },
    Look {
        due: Due,
    },
    /// Something about somebody else's session.
    Steal,
    /// Its own session, asked for under another name.
    Thief,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Forger {
    place: usize,
    pub(super) cell: CellId,
    cluster: ClusterId,
    nodes: usize,
    stream: Stream,
    forgery: Forgery,
    nonce: Nonce,
    pub(super) session: Option<SessionId>,
    /// The shortest and the longest TTL that it asks for, and the one that it has asked for.
    ttls_ms: (u32, u32),
    ttl_ms: u32,
    line: Option<Line>,
    old: Option<Line>,
    next_node: usize,
    asked: BTreeMap<u64, (Errand, WireId)>,
    correlations: u64,
    /// Since when something was asked and nothing has been heard.
    silent_since: Option<Moment>,
    beat_at: Moment,
    act_at: Moment,
    is_winding_down: bool,
    is_done: bool,
    pub(super) next_wake: Option<Moment>,
}

impl Forger {
    /// A forger at a place among the clients. What it does depends on its number alone.
    pub(super) fn new(plan: &Plan, number: usize, place: usize) -> Forger {
        let mut stream = Stream::new(plan.seed, Concern::Forgery, number as u64);
        let cell = plan.cell_of(number);
        Forger {
            place,
            cell,
            cluster: plan.cluster(),
            nodes: plan.places(),
            forgery: Forgery::new(plan),
            nonce: Nonce(stream.bytes_16()),
            stream,
            session: None,
            ttls_ms: plan.workload.ttl_ms,
            ttl_ms: plan.workload.ttl_ms.1,
            line: None,
            old: None,
            next_node: number % plan.nodes,
            asked: BTreeMap::new(),
            correlations: 0,
            silent_since: None,
            beat_at: 0,
            act_at: 0,
            is_winding_down: false,
            is_done: false,
            next_wake: None,
        }
    }

    /// Nothing new is begun, and the session is closed.
    pub(super) fn wind_down(&mut self) {
        self.is_winding_down = true;
    }

    /// Whether it has said all that it wants.
    pub(super) fn is_settled(&self) -> bool {
        self.is_done
    }

    /// When it has to look around next.
    pub(super) fn due(&self, now: Moment) -> Option<Moment> {
        let patience = self.silent_since.map_or(Moment::MAX, |since| since + PATIENCE);
        (!self.is_done).then(|| self.act_at.min(self.beat_at).min(patience).max(now + MS))
    }

    /// Something has come for it.
    pub(super) fn on_arrival(&mut self, arrival: ClientArrival, around: &mut ClientSurroundings<'_>) {
        match arrival {
            ClientArrival::Connected(wire) => self.greet(wire, around),
            ClientArrival::Refused(wire) | ClientArrival::Closed(wire) => {
                around.judges.on_hung_up(wire);
                self.forget(wire, around.fabric.now());
            }
            ClientArrival::Bytes(wire, bytes) => {
                around.judges.on_told(wire, &bytes);
                self.on_bytes(wire, &bytes, around);
            }
        }
        self.look_around(around);
    }

    /// Does what is due.
    pub(super) fn look_around(&mut self, around: &mut ClientSurroundings<'_>) {
        let now = around.fabric.now();
        if self.is_done {
            return;
        }
        if self.line.is_none() {
            if now >= self.act_at {
                self.dial(around);
            }
            return;
        }
        if self.silent_since.is_some_and(|since| now >= since + PATIENCE) {
            return self.move_on(None, around);
        }
        if !self.line.as_ref().is_some_and(|line| line.is_welcome) {
            return;
        }
        if now >= self.beat_at {
            self.beat_at = now + u64::from(self.ttl_ms) * MS / 3;
            self.keep_alive(around);
        }
        if now >= self.act_at {
            self.act_at = now + self.stream.around(150 * MS) + MS;
            if self.is_winding_down { self.close(around) } else { self.act(around) }
        }
    }

    fn dial(&mut self, around: &mut ClientSurroundings<'_>) {
        let node = self.next_node;
        self.next_node = (node + 1) % self.nodes;
        let wire = around.fabric.dial(Site::Client(self.place), node, Door::Client);
        let assembler = Assembler::default();
        self.line = Some(Line { wire, node, assembler, is_welcome: false, is_attached: false });
        self.silent_since = Some(around.fabric.now());
        self.act_at = around.fabric.now();
    }

    fn greet(&mut self, wire: WireId, around: &mut ClientSurroundings<'_>) {
        if self.line.as_ref().is_none_or(|line| line.wire != wire) {
            return;
        }
        let hello = Hello {
            protocol_min: PROTOCOL.0,
            protocol_max: PROTOCOL.1,
            cluster: self.cluster,
            role: Role::Client,
            peer_address: "",
            credentials: b"",
        };
        let mut bytes = Vec::new();
        let head = Head { kind: kind::HELLO, cell: self.cell, correlation: Correlation(0) };
        frame::encode(&mut bytes, head, |out| hello.put(out));
        around.fabric.write(wire, End::Dialer, bytes);
    }

    /// A wire is gone.
    fn forget(&mut self, wire: WireId, now: Moment) {
        self.asked.retain(|_, (_, on)| *on != wire);
        if self.old.as_ref().is_some_and(|line| line.wire == wire) {
            self.old = None;
        }
        if self.line.as_ref().is_some_and(|line| line.wire == wire) {
            self.line = None;
            self.act_at = now + self.stream.around(100 * MS);
        }
    }

    /// Goes to another node, or to the same on another connection, and keeps the old one for what comes late.
    fn move_on(&mut self, to: Option<usize>, around: &mut ClientSurroundings<'_>) {
        if let Some(node) = to {
            self.next_node = node;
        }
        if let Some(line) = self.line.take() {
            let former = if line.is_attached { self.old.replace(line) } else { Some(line) };
            if let Some(former) = former {
                self.asked.retain(|_, (_, on)| *on != former.wire);
                around.judges.on_hung_up(former.wire);
                around.fabric.close(former.wire, End::Dialer);
            }
        }
        self.act_at = around.fabric.now() + self.stream.around(50 * MS);
    }

    fn on_bytes(&mut self, wire: WireId, bytes: &[u8], around: &mut ClientSurroundings<'_>) {
        let mut rest = bytes;
        loop {
            let line = [&mut self.line, &mut self.old].into_iter().flatten().find(|line| line.wire == wire);
            let Some(line) = line else { return };
            let mut assembler = std::mem::take(&mut line.assembler);
            let is_more = match assembler.next(&mut rest, REPLY_FRAME_BYTES_MAX) {
                Ok(Some(frame)) => {
                    self.on_frame(wire, &frame, around);
                    true
                }
                Ok(None) => false,
                Err(error) => panic!("a server sends what is no frame: {error}"),
            };
            let line = [&mut self.line, &mut self.old].into_iter().flatten().find(|line| line.wire == wire);
            if let Some(line) = line {
                line.assembler = assembler;
            }
            if !is_more {
                return;
            }
        }
    }

    fn on_frame(&mut self, wire: WireId, frame: &Frame<'_>, around: &mut ClientSurroundings<'_>) {
        let now = around.fabric.now();
        if self.line.as_ref().is_some_and(|line| line.wire == wire) {
            self.silent_since = None;
        }
        if frame.head.kind == kind::HELLO | kind::REPLY {
            return self.on_welcome(frame, around);
        }
        if frame.head.kind == kind::EVENT {
            return;
        }
        let reply = Reply::decode(frame).expect("a reply of the real parts is one");
        let words = [33, self.place as u64, frame.head.correlation.0];
        around.fabric.trace.note(now, &words, || format!("forger {}: {reply:?}", self.place));
        let correlation = frame.head.correlation.0;
        let is_last = !matches!(reply, Reply::Queued { .. });
        let errand = match is_last {
            true => self.asked.remove(&correlation),
            false => self.asked.get(&correlation).cloned(),
        };
        let Some((errand, _)) = errand else { return };
        self.on_reply(wire, &errand, &reply, around);
    }

    fn on_welcome(&mut self, frame: &Frame<'_>, around: &mut ClientSurroundings<'_>) {
        let hello = HelloReply::decode(frame.body).expect("a welcome of the real parts is one");
        let Some(line) = &mut self.line else { return };
        if hello.status != Status::Ok || hello.leader != Plan::node_id(line.node) {
            let leader = usize::from(hello.leader.0).checked_sub(1);
            return self.move_on(leader, around);
        }
        line.is_welcome = true;
        let (session, nonce) = (self.session, self.nonce);
        match session {
            None => {
                let ttl_ms = self.ttl_ms;
                let request = Request::OpenSession { client_id: CLIENT_ID, ttl_ms, nonce };
                self.ask(Errand::Open(nonce), &request, around);
            }
            Some(session) => {
                let proofs = [SessionProof { session, nonce }];
                self.ask(Errand::Attach, &Request::AttachSessions(Rows::Slice(&proofs)), around);
            }
        }
    }

    fn on_reply(
        &mut self,
        wire: WireId,
        errand: &Errand,
        reply: &Reply<'_>,
        around: &mut ClientSurroundings<'_>,
    ) {
        let is_current = self.line.as_ref().is_some_and(|line| line.wire == wire);
        let refused = match reply {
            Reply::Refused(refusal) => Some(refusal.status),
            _ => None,
        };
        match (errand, reply) {
            // A nonce of a session that had ended by then has opened one that nobody wants.
            (Errand::Open(nonce), Reply::Opened { .. }) if *nonce != self.nonce => {}
            (Errand::Open(_), Reply::Opened { session, .. }) => self.on_opened(wire, *session, around),
            (Errand::Attach, Reply::Attached(rows)) => match rows.iter().next().map(|row| row.status) {
                Some(Status::Ok) => self.note_attached(wire),
                Some(Status::SessionExpired | Status::SessionUnknown) => self.begin_anew(),
                _ if is_current => self.move_on(None, around),
                _ => {}
            },
            (Errand::Beat, Reply::KeptAlive(rows)) => {
                if rows.iter().any(|row| row.status == Status::SessionExpired) {
                    self.begin_anew();
                }
            }
            (Errand::Close, Reply::Closed { .. }) => self.begin_anew(),
            (Errand::Deed { session, request_id, due }, _) => {
                self.check(*due, reply, around);
                // The next session gives the same ids to other requests.
                if self.session == Some(*session) {
                    self.forgery.on_reply(*request_id, reply);
                }
            }
            (Errand::Look { due }, _) => self.check(*due, reply, around),
            (Errand::Steal, Reply::Attached(rows)) => {
                self.check_denied(rows.iter().any(|row| row.status == Status::Ok), around);
            }
            (Errand::Thief, Reply::Opened { session, .. }) => {
                self.check_denied(Some(*session) == self.session, around);
            }
            (Errand::Steal, Reply::KeptAlive(rows)) => {
                self.check_denied(rows.iter().any(|row| row.status == Status::Ok), around);
            }
            (_, _) => {}
        }
        match refused {
            Some(Status::SessionExpired | Status::SessionUnknown) => self.begin_anew(),
            Some(status) if is_current && is_about_the_node(status) => self.move_on(None, around),
            _ => {}
        }
    }

    /// The nonce finds the session that it has opened for as long as that lives.
    fn on_opened(&mut self, wire: WireId, session: SessionId, around: &mut ClientSurroundings<'_>) {
        if let Some(known) = self.session.filter(|known| *known != session) {
            if around.judges.cell(self.cell).orphans.live_sessions().any(|live| live == known) {
                around.judges.take(violated(
                    "a nonce opens one session (contract 5)",
                    format!("forger {} has session {known}, and its nonce opened {session}", self.place),
                ));
            }
            self.forgery.begin_anew();
        }
        self.session = Some(session);
        self.note_attached(wire);
    }

    fn note_attached(&mut self, wire: WireId) {
        if let Some(line) = self.line.as_mut().filter(|line| line.wire == wire) {
            line.is_attached = true;
        }
    }

    /// The session is over; another one is opened on the next connection.
    fn begin_anew(&mut self) {
        if self.session.take().is_some() {
            self.nonce = Nonce(self.stream.bytes_16());
            let (low, high) = self.ttls_ms;
            self.ttl_ms = if self.stream.percent(50) { low } else { high };
            self.forgery.begin_anew();
            for line in [&mut self.line, &mut self.old].into_iter().flatten() {
                line.is_attached = false;
            }
        }
    }

    fn check(&self, due: Due, reply: &Reply<'_>, around: &mut ClientSurroundings<'_>) {
        let is_due = match (due, reply) {
            (Due::Anything, _) => true,
            (Due::Refusal(one, other), Reply::Refused(refusal)) => {
                let status = refusal.status;
                status == one
                    || status == other
                    || status.retry() == Retry::Anywhere
                    || is_about_the_session(status)
            }
            (Due::Refusal(..), _) => false,
        };
        if !is_due {
            around.judges.take(violated(
                "what must be refused is refused (contract 6)",
                format!("forger {} is answered {reply:?}, and {due:?} is due", self.place),
            ));
        }
    }

    fn check_denied(&self, is_served: bool, around: &mut ClientSurroundings<'_>) {
        if is_served {
            around.judges.take(violated(
                "only its owner acts for a session (contract 5)",
                format!("forger {} acts for a session of somebody else", self.place),
            ));
        }
    }

    fn ask(&mut self, errand: Errand, request: &Request<'_>, around: &mut ClientSurroundings<'_>) {
        if let Some(wire) = self.line.as_ref().map(|line| line.wire) {
            self.send(wire, errand, request, around);
        }
    }

    fn send(
        &mut self,
        wire: WireId,
        errand: Errand,
        request: &Request<'_>,
        around: &mut ClientSurroundings<'_>,
    ) {
        self.correlations += 1;
        let mut bytes = Vec::new();
        request.encode(self.cell, Correlation(self.correlations), &mut bytes);
        self.silent_since.get_or_insert(around.fabric.now());
        self.asked.insert(self.correlations, (errand, wire));
        around.judges.on_sent(wire, &bytes);
        around.fabric.write(wire, End::Dialer, bytes);
    }

    fn keep_alive(&mut self, around: &mut ClientSurroundings<'_>) {
        if let Some(session) = self.session {
            self.ask(Errand::Beat, &Request::KeepAlive(Rows::Slice(&[session])), around);
        } else if !self.is_winding_down {
            self.move_on(None, around);
        }
    }

    fn close(&mut self, around: &mut ClientSurroundings<'_>) {
        match self.session {
            Some(session) => self.ask(Errand::Close, &Request::CloseSession { session }, around),
            None => {
                self.is_done = true;
                self.hang_up(around);
            }
        }
    }

    fn hang_up(&mut self, around: &mut ClientSurroundings<'_>) {
        for line in [self.line.take(), self.old.take()].into_iter().flatten() {
            around.judges.on_hung_up(line.wire);
            around.fabric.close(line.wire, End::Dialer);
        }
    }

    /// Sends something forged.
    fn act(&mut self, around: &mut ClientSurroundings<'_>) {
        let Some(session) = self.session else { return };
        match self.stream.below(60) {
            0..=2 => return self.move_on(None, around),
            3..=5 => {
                // The same again on a connection that the session has left.
                let Some(wire) = self.old.as_ref().map(|line| line.wire) else { return };
                let Some(deed) = self.forgery.earlier(&mut self.stream) else { return };
                return self.send_deed(wire, session, &deed, Due::Anything, around);
            }
            6..=8 => return self.trespass(around),
            9 => return self.close(around),
            10 | 11 => return self.open_again(around),
            12..=14 => {
                let name = self.forgery.name(&mut self.stream);
                let token = self.forgery.token(&mut self.stream);
                let request = match self.stream.below(3) {
                    0 => Request::GetLock { name: &name },
                    1 => Request::CheckToken { name: &name, token, session: SessionId(0) },
                    _ => Request::GetSession { session },
                };
                return self.ask(Errand::Look { due: Due::Anything }, &request, around);
            }
            _ => {}
        }
        let (deed, due) = self.forgery.draw(&mut self.stream);
        if let Some(wire) = self.line.as_ref().map(|line| line.wire) {
            self.send_deed(wire, session, &deed, due, around);
        }
    }

    fn send_deed(
        &mut self,
        wire: WireId,
        session: SessionId,
        deed: &Deed,
        due: Due,
        around: &mut ClientSurroundings<'_>,
    ) {
        let errand = Errand::Deed { session, request_id: deed.request_id(), due };
        deed.with_request(session, |request| self.send(wire, errand, request, around));
    }

    /// Opens with its own nonce: the same again, or as somebody else; or as nobody.
    fn open_again(&mut self, around: &mut ClientSurroundings<'_>) {
        let (nonce, ttl_ms) = (self.nonce, self.ttl_ms);
        let due = Due::Refusal(Status::Invalid, Status::Invalid);
        match self.stream.below(3) {
            0 => {
                let request = Request::OpenSession { client_id: CLIENT_ID, ttl_ms, nonce };
                self.ask(Errand::Open(nonce), &request, around);
            }
            1 => {
                // A session that has ended meanwhile no longer minds.
                let request = Request::OpenSession { client_id: "thief", ttl_ms, nonce };
                self.ask(Errand::Thief, &request, around);
            }
            _ => {
                let nonce = Nonce(self.stream.bytes_16());
                let request = Request::OpenSession { client_id: "", ttl_ms, nonce };
                self.ask(Errand::Look { due }, &request, around);
            }
        }
    }

    /// Tries what only the owner of a session may: ids are public, nonces are not.
    fn trespass(&mut self, around: &mut ClientSurroundings<'_>) {
        // What its nonce has opened is its own, whether it knows of it yet or not.
        let own = [self.session, around.judges.session_by_nonce(self.cell, &self.nonce)];
        let judges = around.judges.cell(self.cell);
        let others: Vec<SessionId> =
            judges.orphans.live_sessions().filter(|other| !own.contains(&Some(*other))).collect();
        if others.is_empty() {
            return;
        }
        let other = others[self.stream.place(others.len())];
        let due = Due::Refusal(Status::NotAttached, Status::NotAttached);
        match self.stream.below(4) {
            0 => self.ask(Errand::Look { due }, &Request::CloseSession { session: other }, around),
            1 => {
                // No nonce of anybody: the row says so, and the session stays where it is.
                let proofs = [SessionProof { session: other, nonce: self.nonce }];
                let request = Request::AttachSessions(Rows::Slice(&proofs));
                self.ask(Errand::Steal, &request, around);
            }
            2 => {
                let sessions = [other];
                let request = Request::KeepAlive(Rows::Slice(&sessions));
                self.ask(Errand::Steal, &request, around);
            }
            _ => {
                let (deed, _) = self.forgery.draw(&mut self.stream);
                let errand = Errand::Look { due: Due::Refusal(Status::NotAttached, Status::Invalid) };
                let Some(wire) = self.line.as_ref().map(|line| line.wire) else { return };
                deed.with_request(other, |request| self.send(wire, errand, request, around));
            }
        }
    }
}

/// The member cannot serve; another one may.
fn is_about_the_node(status: Status) -> bool {
    matches!(status, Status::NotLeader | Status::ShuttingDown | Status::NoQuorum | Status::NotAttached)
}

/// The session is over, which is looked at before anything else.
fn is_about_the_session(status: Status) -> bool {
    matches!(status, Status::SessionExpired | Status::SessionUnknown | Status::OutcomeUnknown)
}
