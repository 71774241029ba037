//! One client that keeps books: what was acknowledged to it, what it has asked and not heard of.
//!
//! Invariant: an entry is made only after the acknowledgement has arrived, and a request that was cut off is sent again
//! under its id with the same content. Deliberately absent: any belief about deadlines; its sessions have a long TTL.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_wire::reply::Reply;
use lockstep_wire::request::{Acquire, Mode, Mutation, Request, SessionProof};
use lockstep_wire::{CellId, FencingToken, Nonce, Owner, RequestId, Retry, Rows, SessionId, Status};

use crate::connection::Connection;

/// Long enough for every pause that a test makes.
const TTL_MS: u32 = 60_000;
/// Holds that a worker keeps; then it gives the oldest back.
const HOLDS_MAX: usize = 24;
/// Released holds that it remembers.
const RELEASED_MAX: usize = 8;

/// A hold that was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// The lock.
    pub(crate) name: String,
    /// The acquire that made it.
    pub(crate) acquire_id: RequestId,
    /// Its token.
    pub(crate) token: FencingToken,
}

/// A request without an answer, with all that it says.
#[derive(Clone, Debug)]
struct Pending {
    id: RequestId,
    seen: Vec<RequestId>,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Acquire(String),
    Release(Hold),
}

/// A client with one session.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) cell: CellId,
    /// Everything that it locks is below this.
    prefix: String,
    nonce: Nonce,
    pub(crate) session: Option<SessionId>,
    ids: u64,
    names: u64,
    seen: Vec<RequestId>,
    pending: Option<Pending>,
    pub(crate) holds: Vec<Hold>,
    released: Vec<Hold>,
    /// Answers that it has had; others may look while it works.
    pub(crate) answers: Arc<AtomicU64>,
    /// The greatest token that it has been given.
    pub(crate) token_max: FencingToken,
}

impl Worker {
    /// A client that has done nothing yet; `prefix` is a name that nobody else uses.
    pub(crate) fn new(cell: CellId, prefix: &str) -> Worker {
        // Unique among the workers of one cluster; secrecy does not matter here.
        let mut nonce = [0x5a_u8; 16];
        for (at, byte) in prefix.bytes().enumerate() {
            nonce[at % 16] = nonce[at % 16].wrapping_mul(31).wrapping_add(byte);
        }
        Worker {
            cell,
            prefix: prefix.to_owned(),
            nonce: Nonce(nonce),
            session: None,
            ids: 0,
            names: 0,
            seen: Vec::new(),
            pending: None,
            holds: Vec::new(),
            released: Vec::new(),
            answers: Arc::default(),
            token_max: FencingToken(0),
        }
    }

    /// How many answers it has had.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Locks and unlocks until it is told to stop or the cluster is gone.
    pub(crate) fn run(&mut self, mut connection: Connection, stop: &AtomicBool) {
        // An error means that the process is gone, which is what these tests are about.
        let mut outcome = self.begin(&mut connection);
        while !stop.load(Ordering::Relaxed) && outcome.is_ok() {
            outcome = self.one(&mut connection);
        }
    }

    /// Opens the session, or finds what a cut-off opening has made, or attaches it to this connection.
    pub(crate) fn begin(&mut self, connection: &mut Connection) -> io::Result<()> {
        match self.session {
            Some(session) => self.attach(connection, session)?,
            None => {
                let request =
                    Request::OpenSession { client_id: &self.prefix, ttl_ms: TTL_MS, nonce: self.nonce };
                let answer = connection.call(&request)?;
                match answer.reply() {
                    Reply::Opened { session, .. } => self.session = Some(session),
                    Reply::Refused(refusal) => return Err(io::Error::other(refusal.status.name())),
                    other => panic!("opening a session: {other:?}"),
                }
            }
        }
        self.settle(connection)
    }

    /// Asks for one thing more.
    pub(crate) fn one(&mut self, connection: &mut Connection) -> io::Result<()> {
        self.names += 1;
        let name = format!("{}/{}", self.prefix, self.names);
        self.ask(connection, What::Acquire(name))?;
        if self.holds.len() > HOLDS_MAX || self.names.is_multiple_of(3) {
            // Now the oldest, now the newest.
            let at = if self.names.is_multiple_of(2) { 0 } else { self.holds.len() - 1 };
            let hold = self.holds.remove(at);
            self.ask(connection, What::Release(hold))?;
        }
        Ok(())
    }

    /// Attaches the session: it must be there, and know of every request that was acknowledged.
    fn attach(&mut self, connection: &mut Connection, session: SessionId) -> io::Result<()> {
        let proofs = [SessionProof { session, nonce: self.nonce }];
        let answer = connection.call(&Request::AttachSessions(Rows::Slice(&proofs)))?;
        match answer.reply() {
            Reply::Attached(rows) => {
                let row = rows.iter().next().expect("one session was attached");
                assert_eq!(row.status, Status::Ok, "session {session} of {} is lost", self.prefix);
                let next = row.next_request_id.0;
                let acknowledged = self.ids - u64::from(self.pending.is_some());
                assert!(
                    next > acknowledged && next <= self.ids + 1,
                    "session {session} goes on with request {next}; {acknowledged} were acknowledged, {} sent",
                    self.ids
                );
                Ok(())
            }
            Reply::Refused(refusal) => Err(io::Error::other(refusal.status.name())),
            other => panic!("attaching: {other:?}"),
        }
    }

    fn ask(&mut self, connection: &mut Connection, what: What) -> io::Result<()> {
        self.ids += 1;
        self.pending = Some(Pending { id: RequestId(self.ids), seen: self.seen.clone(), what });
        self.settle(connection)
    }

    /// Sends what has no answer yet, again if need be, until it has its final one.
    fn settle(&mut self, connection: &mut Connection) -> io::Result<()> {
        let (Some(pending), Some(session)) = (self.pending.clone(), self.session) else { return Ok(()) };
        let mutation = Mutation { session, request_id: pending.id, seen: Rows::Slice(&pending.seen) };
        let names;
        let request = match &pending.what {
            What::Acquire(name) => {
                names = [name.as_str()];
                Request::Acquire(Acquire {
                    mutation,
                    owner: Owner(pending.id.0),
                    mode: Mode::Exclusive,
                    is_reentrant: false,
                    permits: 0,
                    wait_ms: 0,
                    lock_delay_ms: 0,
                    max_hold_ms: 0,
                    names: Rows::Slice(&names),
                    data: b"",
                })
            }
            What::Release(hold) => Request::Release {
                mutation,
                acquire_id: hold.acquire_id,
                name: &hold.name,
                token: hold.token,
            },
        };
        let answer = connection.call(&request)?;
        match (&pending.what, answer.reply()) {
            (What::Acquire(name), Reply::Granted(grant)) => {
                assert!(
                    grant.token > self.token_max,
                    "{name} was granted with token {} after {}",
                    grant.token,
                    self.token_max
                );
                self.token_max = grant.token;
                self.holds.push(Hold { name: name.clone(), acquire_id: pending.id, token: grant.token });
            }
            (What::Release(hold), Reply::Done) => {
                self.released.push(hold.clone());
                let excess = self.released.len().saturating_sub(RELEASED_MAX);
                self.released.drain(..excess);
            }
            (_, Reply::Refused(refusal)) if refusal.status.retry() != Retry::Never => {
                return Err(io::Error::other(refusal.status.name()));
            }
            (what, other) => panic!("{what:?} of {} was answered {other:?}", self.prefix),
        }
        self.pending = None;
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.seen.push(pending.id);
        // What the request said it had seen has been taken note of.
        self.seen.retain(|id| !pending.seen.contains(id));
        Ok(())
    }

    /// Attaches to what came back after a crash, settles what was cut off, and holds every entry of the books against
    /// what the cell says.
    pub(crate) fn verify(&mut self, connection: &mut Connection) {
        self.try_verify(connection).expect("the cell answers")
    }

    fn try_verify(&mut self, connection: &mut Connection) -> io::Result<()> {
        let Some(session) = self.session else { return Ok(()) };
        self.begin(connection)?;
        self.verify_session(connection, session)?;
        for hold in &self.holds {
            let asked = Request::CheckToken { name: &hold.name, token: hold.token, session };
            let checked = connection.call(&asked)?;
            let is_current = matches!(checked.reply(), Reply::Checked { is_current: true, .. });
            assert!(is_current, "{hold:?} of session {session} is lost: {:?}", checked.reply());
            let looked = connection.call(&Request::GetLock { name: &hold.name })?;
            let Reply::Lock(lock) = looked.reply() else { panic!("a read was answered {looked:?}") };
            let holders: Vec<_> =
                lock.holders.iter().map(|holder| (holder.session, holder.acquire_id, holder.token)).collect();
            assert_eq!(holders, [(session, hold.acquire_id, hold.token)], "the holders of {}", hold.name);
        }
        for hold in &self.released {
            let asked = Request::CheckToken { name: &hold.name, token: hold.token, session };
            let checked = connection.call(&asked)?;
            let is_over = matches!(checked.reply(), Reply::Checked { is_current: false, .. });
            assert!(is_over, "{hold:?} of session {session} was released and is back: {:?}", checked.reply());
        }
        Ok(())
    }

    /// The session has exactly the holds that the books have.
    fn verify_session(&self, connection: &mut Connection, session: SessionId) -> io::Result<()> {
        let answer = connection.call(&Request::GetSession { session })?;
        let Reply::Session(view) = answer.reply() else { panic!("session {session}: {:?}", answer.reply()) };
        assert_eq!((view.client_id, view.ttl_ms), (self.prefix.as_str(), TTL_MS));
        let mut claims: Vec<Hold> = view
            .claims
            .iter()
            .map(|claim| Hold {
                name: claim.name.to_owned(),
                acquire_id: claim.acquire_id,
                token: claim.token,
            })
            .collect();
        claims.sort_by_key(|claim| claim.acquire_id);
        let mut holds = self.holds.clone();
        holds.sort_by_key(|hold| hold.acquire_id);
        assert_eq!(claims, holds, "what session {session} holds");
        Ok(())
    }
}
