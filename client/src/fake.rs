//! A cell of one node in memory, for tests: it keeps what it must about sessions, exclusive locks and request ids,
//! answers at once, and can be told to misbehave.
//!
//! Invariant: a request id of a session runs once; the same id again gets the first answer.

use std::collections::{BTreeMap, VecDeque};

use lockstep_wire::frame::{self, Assembler, Head};
use lockstep_wire::hello::{Hello, HelloReply};
use lockstep_wire::limit::CLIENT_FRAME_BYTES_MAX;
use lockstep_wire::reply::{
    Attached, ClaimView, EndReason, Event, Grant, HolderView, KeptAlive, LockView, Refusal, Reply, Route,
    SessionView, StatusView,
};
use lockstep_wire::request::{Mode, Request, kind};
use lockstep_wire::{
    CellId, ClusterId, Correlation, FencingToken, Incarnation, LogIndex, NodeId, Nonce, Owner, RequestId,
    Revision, Rows, SavedPiece, SessionId, SnapshotId, Status, Term,
};

pub(crate) const CELL: CellId = CellId(3);
pub(crate) const CLUSTER: ClusterId = ClusterId([9; 16]);

/// The snapshot that it has.
pub(crate) const SNAPSHOT: SnapshotId = SnapshotId { index: LogIndex(5), term: Term(1) };

/// A connection to the fake, as its driver numbers it.
pub(crate) type Port = u64;

#[derive(Clone, Debug, PartialEq)]
enum Kept {
    Waiting,
    Granted(FencingToken),
    TimedOut,
    Cancelled,
    Done,
    StaleToken,
    /// A gap that a cancel has closed.
    Closed,
}

#[derive(Debug)]
struct Session {
    nonce: Nonce,
    ttl_ms: u32,
    port: Option<Port>,
    highest: u64,
    kept: BTreeMap<u64, Kept>,
    /// How each request id was asked last: the correlation and the kind.
    asked: BTreeMap<u64, (Correlation, u16)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) session: SessionId,
    pub(crate) acquire_id: RequestId,
    pub(crate) owner: Owner,
    pub(crate) token: FencingToken,
}

/// The cell.
#[derive(Debug, Default)]
pub(crate) struct FakeCell {
    index: u64,
    sessions: BTreeMap<SessionId, Session>,
    ended: Vec<SessionId>,
    /// The holder and whoever waits, by name.
    pub(crate) locks: BTreeMap<String, VecDeque<Claim>>,
    assemblers: BTreeMap<Port, Assembler>,
    /// What goes out, in order.
    pub(crate) sent: Vec<(Port, Vec<u8>)>,
    /// What came in, in words.
    pub(crate) heard: Vec<String>,
    /// Answers to Hello: this node leads, unless it says where somebody else does (empty for nobody knows).
    pub(crate) leader_is: Option<String>,
    /// What the next requests of this kind are refused with.
    pub(crate) refusals: VecDeque<(u16, Status)>,
    /// Views of sessions list so many claims at most.
    pub(crate) claims_max: Option<usize>,
    /// Beats are swallowed.
    pub(crate) ignores_beats: bool,
    /// Beats are answered, and nothing is said of any session.
    pub(crate) confirms_nobody: bool,
    /// What it answers to whoever wishes that it hands over; without it, it does.
    pub(crate) refuses_transfers: Option<Status>,
    /// The pieces of the one snapshot that it has.
    pub(crate) snapshot: Vec<Vec<u8>>,
    /// Mutations are answered late: not before this ends.
    pub(crate) is_slow: bool,
    late: Vec<(Port, Vec<u8>)>,
    /// How often something ran that had an effect, by session and request id.
    pub(crate) runs: BTreeMap<(u64, u64), u32>,
}

impl FakeCell {
    pub(crate) fn disconnect(&mut self, port: Port) {
        self.assemblers.remove(&port);
        for session in self.sessions.values_mut().filter(|session| session.port == Some(port)) {
            session.port = None;
        }
    }

    /// Takes bytes that came on a connection.
    pub(crate) fn receive(&mut self, port: Port, mut bytes: &[u8]) {
        let mut assembler = self.assemblers.remove(&port).unwrap_or_default();
        while let Some(frame) = assembler.next(&mut bytes, CLIENT_FRAME_BYTES_MAX).expect("a client's frame")
        {
            let Head { kind, correlation, cell } = frame.head;
            assert_eq!(cell, CELL);
            if kind == kind::HELLO {
                let hello = Hello::decode(frame.body).expect("a hello");
                assert!(hello.cluster == CLUSTER || hello.cluster == ClusterId::default());
                self.heard.push("Hello".to_owned());
                let refused = self.next_refusal(kind);
                self.welcome(port, correlation, refused.unwrap_or(Status::Ok));
                continue;
            }
            let request = Request::decode(&frame).expect("a client's request");
            if let Some(status) = self.next_refusal(kind) {
                self.heard.push(format!("refused {kind:#06x} {}", status.name()));
                self.say(port, kind, correlation, &Reply::Refused(Refusal::new(status, "as told")));
                continue;
            }
            self.on_request(port, correlation, &request);
        }
        self.assemblers.insert(port, assembler);
    }

    fn next_refusal(&mut self, kind: u16) -> Option<Status> {
        let at = self.refusals.iter().position(|(of, _)| *of == kind)?;
        self.refusals.remove(at).map(|(_, status)| status)
    }

    fn welcome(&mut self, port: Port, correlation: Correlation, status: Status) {
        let (leader, address) = match &self.leader_is {
            None => (NodeId(1), ""),
            Some(address) if address.is_empty() => (NodeId(0), ""),
            Some(address) => (NodeId(2), address.as_str()),
        };
        let reply = HelloReply {
            status,
            detail: if status == Status::Ok { "" } else { "as told" },
            protocol: 1,
            node: NodeId(1),
            cluster: CLUSTER,
            incarnation: Incarnation::default(),
            ttl_ms_min: 1_000,
            ttl_ms_max: 60_000,
            leader,
            leader_address: address,
        };
        let mut out = Vec::new();
        let head = Head { kind: kind::HELLO | kind::REPLY, cell: CELL, correlation };
        frame::encode(&mut out, head, |out| reply.put(out));
        self.sent.push((port, out));
    }

    fn say(&mut self, port: Port, asked: u16, correlation: Correlation, reply: &Reply<'_>) {
        let mut out = Vec::new();
        reply.encode(asked, CELL, correlation, &mut out);
        let is_entry = [kind::ACQUIRE, kind::RELEASE, kind::CANCEL, kind::OPEN_SESSION].contains(&asked);
        if is_entry && self.is_slow {
            self.late.push((port, out));
        } else {
            self.sent.push((port, out));
        }
    }

    /// Its disks are as fast as ever again.
    pub(crate) fn speed_up(&mut self) {
        self.is_slow = false;
        self.sent.append(&mut self.late);
    }

    pub(crate) fn tell(&mut self, port: Port, event: &Event<'_>) {
        let mut out = Vec::new();
        event.encode(CELL, &mut out);
        self.sent.push((port, out));
    }

    fn next_index(&mut self) -> u64 {
        self.index += 1;
        self.index
    }

    fn session_status(&self, session: SessionId, port: Port) -> Status {
        match self.sessions.get(&session) {
            _ if self.ended.contains(&session) => Status::SessionExpired,
            None => Status::SessionUnknown,
            Some(known) if known.port != Some(port) => Status::NotAttached,
            Some(_) => Status::Ok,
        }
    }

    fn on_request(&mut self, port: Port, correlation: Correlation, request: &Request<'_>) {
        let asked = request.kind();
        match request {
            Request::OpenSession { ttl_ms, nonce, client_id: _ } => {
                self.heard.push(format!("Open {ttl_ms}"));
                let known = self.sessions.iter().find(|(_, session)| session.nonce == *nonce);
                let id = known.map(|(id, _)| *id).unwrap_or_else(|| SessionId(self.next_index()));
                let session = self.sessions.entry(id).or_insert_with(|| Session {
                    nonce: *nonce,
                    ttl_ms: *ttl_ms,
                    port: None,
                    highest: 0,
                    kept: BTreeMap::new(),
                    asked: BTreeMap::new(),
                });
                session.port = Some(port);
                let next_request_id = RequestId(session.highest + 1);
                let reply = Reply::Opened { session: id, ttl_ms: session.ttl_ms, next_request_id };
                self.say(port, asked, correlation, &reply);
            }
            Request::AttachSessions(proofs) => self.on_attach(port, correlation, proofs.iter().collect()),
            Request::KeepAlive(sessions) => {
                self.heard.push(format!("KeepAlive {}", sessions.len()));
                if self.ignores_beats {
                    return;
                }
                let row = |session: SessionId| KeptAlive {
                    session,
                    status: self.session_status(session, port),
                    ttl_ms: self.sessions.get(&session).map_or(0, |session| session.ttl_ms),
                };
                let told = if self.confirms_nobody { 0 } else { sessions.len() };
                let rows: Vec<KeptAlive> = sessions.iter().take(told).map(row).collect();
                self.say(port, asked, correlation, &Reply::KeptAlive(Rows::Slice(&rows)));
            }
            Request::CloseSession { session } => {
                self.heard.push("Close".to_owned());
                let status = self.session_status(*session, port);
                if status != Status::Ok {
                    return self.say(port, asked, correlation, &Reply::Refused(Refusal::new(status, "")));
                }
                let released = Rows::Slice(&[]);
                self.say(port, asked, correlation, &Reply::Closed { released_total: 0, released });
                self.end_session(*session, EndReason::Closed, false);
            }
            Request::Acquire(_) | Request::Cancel { .. } | Request::Release { .. } => {
                self.on_mutation(port, correlation, request);
            }
            Request::CheckToken { name, token, session: _ } => {
                let holder = self.locks.get(*name).and_then(|line| line.front());
                let latest_token = holder.map(|claim| claim.token).unwrap_or_default();
                let reply = Reply::Checked {
                    is_current: latest_token == *token,
                    latest_token,
                    fence_floor: FencingToken(self.index),
                };
                self.heard.push("Check".to_owned());
                self.say(port, asked, correlation, &reply);
            }
            Request::GetLock { name } => self.on_get_lock(port, correlation, name),
            Request::GetSession { session } => self.on_get_session(port, correlation, *session),
            Request::Status => {
                let view = StatusView {
                    node: NodeId(1),
                    role: "leader",
                    term: Term(1),
                    leader: NodeId(1),
                    leader_address: "",
                    committed: LogIndex(self.index),
                    applied: LogIndex(self.index),
                    durable: LogIndex(self.index),
                    sessions: self.sessions.len() as u64,
                    locks: self.locks.len() as u64,
                    digest: 0,
                    is_short_of_space: false,
                    is_quiet: false,
                    quiet_left_ms: 0,
                    members: Rows::Slice(&[]),
                };
                self.say(port, asked, correlation, &Reply::Status(view));
            }
            Request::TransferLeader { to } => {
                self.heard.push(format!("TransferLeader {to}"));
                let reply = match self.refuses_transfers {
                    Some(status) => Reply::Refused(Refusal::new(status, "as told")),
                    None => Reply::Transferred { leader: *to, term: Term(2) },
                };
                self.say(port, asked, correlation, &reply);
            }
            Request::Members | Request::ChangeMembers(_) => {
                let refusal = Refusal::new(Status::Unsupported, "one node is all there is");
                self.say(port, asked, correlation, &Reply::Refused(refusal));
            }
            Request::SaveSnapshot { snapshot, piece } => {
                self.heard.push(format!("SaveSnapshot {} {piece}", snapshot.index));
                let pieces = std::mem::take(&mut self.snapshot);
                let saved = pieces.get(*piece as usize).map(|bytes| SavedPiece {
                    snapshot: SNAPSHOT,
                    piece: *piece,
                    is_last: *piece as usize + 1 == pieces.len(),
                    bytes,
                });
                let reply = saved.map_or(Reply::SnapshotGone, Reply::SavedPiece);
                self.say(port, asked, correlation, &reply);
                self.snapshot = pieces;
            }
            Request::Routes => {
                let routes = [Route { namespace: "", cell: CELL }];
                self.say(port, asked, correlation, &Reply::Routes(Rows::Slice(&routes)));
            }
        }
    }

    fn on_attach(
        &mut self,
        port: Port,
        correlation: Correlation,
        proofs: Vec<lockstep_wire::request::SessionProof>,
    ) {
        self.heard.push(format!("Attach {}", proofs.len()));
        let mut rows = Vec::new();
        for proof in proofs {
            let mut status = match self.session_status(proof.session, port) {
                Status::NotAttached => Status::Ok,
                status => status,
            };
            let mut row =
                Attached { session: proof.session, status, ttl_ms: 0, next_request_id: RequestId(0) };
            if let Some(session) = self.sessions.get_mut(&proof.session).filter(|_| status == Status::Ok) {
                if session.nonce != proof.nonce {
                    status = Status::Denied;
                } else {
                    session.port = Some(port);
                    row.ttl_ms = session.ttl_ms;
                    row.next_request_id = RequestId(session.highest + 1);
                }
            }
            row.status = status;
            rows.push(row);
        }
        self.say(port, kind::ATTACH_SESSIONS, correlation, &Reply::Attached(Rows::Slice(&rows)));
    }

    fn on_mutation(&mut self, port: Port, correlation: Correlation, request: &Request<'_>) {
        let (mutation, what) = match request {
            Request::Acquire(acquire) => {
                (acquire.mutation, format!("Acquire {}", acquire.mutation.request_id))
            }
            Request::Cancel { mutation, acquire_id } => {
                (*mutation, format!("Cancel {} of {acquire_id}", mutation.request_id))
            }
            Request::Release { mutation, acquire_id, .. } => {
                (*mutation, format!("Release {} of {acquire_id}", mutation.request_id))
            }
            other => panic!("{other:?} is no mutation"),
        };
        self.heard.push(what);
        let (asked, key, id) = (request.kind(), mutation.session, mutation.request_id.0);
        let status = self.session_status(key, port);
        if status != Status::Ok {
            return self.say(port, asked, correlation, &Reply::Refused(Refusal::new(status, "")));
        }
        let session = self.sessions.get_mut(&key).expect("it is attached");
        for seen in mutation.seen.iter().filter(|seen| seen.0 < id) {
            session.kept.remove(&seen.0);
        }
        assert!(session.kept.len() < 128, "a client keeps to the window");
        session.asked.insert(id, (correlation, asked));
        if let Some(kept) = session.kept.get(&id).cloned() {
            if kept == Kept::Waiting
                && let Request::Acquire(acquire) = request
                && acquire.wait_ms == 0
            {
                return self.time_out(key, mutation.request_id);
            }
            return self.answer(key, id, &kept);
        }
        session.highest = session.highest.max(id);
        *self.runs.entry((key.0, id)).or_default() += 1;
        match request {
            Request::Acquire(acquire) => {
                let name = acquire.names.iter().next().expect("one name").to_owned();
                let claim = Claim {
                    session: key,
                    acquire_id: mutation.request_id,
                    owner: acquire.owner,
                    token: FencingToken(0),
                };
                let line = self.locks.entry(name.clone()).or_default();
                let must_wait = !line.is_empty();
                if must_wait && acquire.wait_ms == 0 {
                    return self.keep(key, id, Kept::TimedOut);
                }
                line.push_back(claim);
                if must_wait {
                    return self.keep(key, id, Kept::Waiting);
                }
                self.promote(&name);
            }
            Request::Cancel { acquire_id, .. } => {
                let is_gap = !session.kept.contains_key(&acquire_id.0);
                if is_gap {
                    session.kept.insert(acquire_id.0, Kept::Closed);
                }
                self.keep(key, id, Kept::Done);
                let ended = self.remove(key, *acquire_id);
                match ended {
                    Some((name, true)) => self.promote(&name),
                    Some((_, false)) => self.keep(key, acquire_id.0, Kept::Cancelled),
                    None => {}
                }
            }
            Request::Release { acquire_id, token, .. } => {
                let line = self.locks.values().filter_map(|line| line.front());
                let is_held = line.clone().any(|claim| {
                    claim.session == key && claim.acquire_id == *acquire_id && claim.token == *token
                });
                self.keep(key, id, if is_held { Kept::Done } else { Kept::StaleToken });
                if is_held && let Some((name, _)) = self.remove(key, *acquire_id) {
                    self.promote(&name);
                }
            }
            _ => {}
        }
    }

    /// Takes a claim out of its line, and says whether it held.
    fn remove(&mut self, session: SessionId, acquire_id: RequestId) -> Option<(String, bool)> {
        let is_it = |claim: &Claim| claim.session == session && claim.acquire_id == acquire_id;
        let (name, at) =
            self.locks.iter().find_map(|(name, line)| Some((name.clone(), line.iter().position(is_it)?)))?;
        let line = self.locks.get_mut(&name)?;
        line.remove(at);
        if line.is_empty() {
            self.locks.remove(&name);
        }
        Some((name, at == 0))
    }

    pub(crate) fn time_out(&mut self, session: SessionId, acquire_id: RequestId) {
        self.remove(session, acquire_id);
        self.keep(session, acquire_id.0, Kept::TimedOut);
    }

    /// Grants to the first in line, unless it holds already.
    fn promote(&mut self, name: &str) {
        let index = self.index + 1;
        let Some(first) = self.locks.get_mut(name).and_then(|line| line.front_mut()) else { return };
        if first.token != FencingToken(0) {
            return;
        }
        first.token = FencingToken(index);
        self.index = index;
        let (session, acquire_id, token) = (first.session, first.acquire_id, first.token);
        self.keep(session, acquire_id.0, Kept::Granted(token));
    }

    fn keep(&mut self, session: SessionId, id: u64, kept: Kept) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.kept.insert(id, kept.clone());
            self.answer(session, id, &kept);
        }
    }

    fn answer(&mut self, session: SessionId, id: u64, kept: &Kept) {
        let Some(state) = self.sessions.get(&session) else { return };
        let (Some(port), Some(&(correlation, asked))) = (state.port, state.asked.get(&id)) else { return };
        let is_live = self.locks.values().any(|line| {
            line.front().is_some_and(|claim| claim.session == session && claim.acquire_id.0 == id)
        });
        let reply = match kept {
            Kept::Waiting => Reply::Queued { position: 1 },
            Kept::Granted(token) if !is_live => Reply::Lost { token: *token, reason: EndReason::Released },
            Kept::Granted(token) => {
                Reply::Granted(Grant { token: *token, fence: *token, slot: 0, hold_left_ms: 0, holders: 1 })
            }
            Kept::TimedOut => Reply::TimedOut,
            Kept::Cancelled => Reply::Cancelled,
            Kept::Done => Reply::Done,
            Kept::StaleToken => Reply::StaleToken,
            Kept::Closed => Reply::Refused(Refusal::new(Status::StaleRequest, "")),
        };
        self.say(port, asked, correlation, &reply);
    }

    fn on_get_lock(&mut self, port: Port, correlation: Correlation, name: &str) {
        let line = self.locks.get(name).cloned().unwrap_or_default();
        let holders: Vec<HolderView<'_>> = line
            .iter()
            .take(1)
            .map(|claim| HolderView {
                session: claim.session,
                owner: claim.owner,
                acquire_id: claim.acquire_id,
                token: claim.token,
                fence: claim.token,
                client_id: "somebody",
                data: b"",
            })
            .collect();
        let view = LockView {
            revision: Revision(self.index),
            exists: !line.is_empty(),
            mode: Mode::Exclusive,
            fence_floor: FencingToken(self.index),
            is_quiet: false,
            holders_total: u32::from(!holders.is_empty()),
            waiters_total: 0,
            holders: Rows::Slice(&holders),
            waiters: Rows::Slice(&[]),
        };
        self.say(port, kind::GET_LOCK, correlation, &Reply::Lock(view));
    }

    fn on_get_session(&mut self, port: Port, correlation: Correlation, session: SessionId) {
        self.heard.push("GetSession".to_owned());
        let mut claims: Vec<(&String, &Claim)> = self
            .locks
            .iter()
            .flat_map(|(name, line)| line.iter().map(move |claim| (name, claim)))
            .filter(|(_, claim)| claim.session == session)
            .collect();
        claims.sort_by_key(|(_, claim)| claim.acquire_id);
        let rows: Vec<ClaimView<'_>> = claims
            .iter()
            .map(|(name, claim)| ClaimView {
                acquire_id: claim.acquire_id,
                owner: claim.owner,
                mode: Mode::Exclusive,
                token: claim.token,
                fence: claim.token,
                name,
            })
            .collect();
        let view = SessionView {
            revision: Revision(self.index),
            ttl_ms: 10_000,
            client_id: "fake",
            claims_total: u32::try_from(rows.len()).expect("a small test"),
            claims: Rows::Slice(&rows[..rows.len().min(self.claims_max.unwrap_or(usize::MAX))]),
        };
        let mut out = Vec::new();
        Reply::Session(view).encode(kind::GET_SESSION, CELL, correlation, &mut out);
        self.sent.push((port, out));
    }

    /// Ends a session; `is_told` sends the event to its connection.
    pub(crate) fn end_session(&mut self, id: SessionId, reason: EndReason, is_told: bool) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.ended.push(id);
        let names: Vec<String> = self.locks.keys().cloned().collect();
        for name in names {
            if let Some(line) = self.locks.get_mut(&name) {
                line.retain(|claim| claim.session != id);
                if line.is_empty() {
                    self.locks.remove(&name);
                }
            }
            self.promote(&name);
        }
        if let Some(port) = session.port.filter(|_| is_told) {
            self.tell(port, &Event::SessionEnded { session: id, reason });
        }
    }

    /// Ends the hold of a name behind its owner's back; tells nobody.
    pub(crate) fn take_away(&mut self, name: &str) -> Option<Claim> {
        let claim = self.locks.get(name)?.front()?.clone();
        self.remove(claim.session, claim.acquire_id);
        self.promote(name);
        Some(claim)
    }

    /// The sessions that are open.
    pub(crate) fn session_ids(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }

    /// Opens a session that no client of the test has, and lets it stand in line for a name.
    pub(crate) fn intrude(&mut self, name: &str) -> SessionId {
        let id = SessionId(self.next_index());
        let claim = Claim { session: id, acquire_id: RequestId(1), owner: Owner(1), token: FencingToken(0) };
        self.locks.entry(name.to_owned()).or_default().push_back(claim);
        self.promote(name);
        id
    }

    /// Lets an intruder go.
    pub(crate) fn leave(&mut self, session: SessionId) {
        if let Some((name, _)) = self.remove(session, RequestId(1)) {
            self.promote(&name);
        }
    }

    /// Who holds a name.
    pub(crate) fn holder(&self, name: &str) -> Option<&Claim> {
        self.locks.get(name)?.front()
    }
}
