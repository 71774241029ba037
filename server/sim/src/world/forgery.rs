//! What a forger sends: requests of one session, drawn so that every rule of the request window is tried.
//!
//! Invariant: what is due for a request is known when it is drawn: nothing in particular for whatever is allowed, a refusal
//! for what never is and for another content under an id that was answered. Deliberately absent: connections.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_wire::limit::{
    LOCK_DELAY_MS_MAX, NAME_BYTES_MAX, REQUEST_ID_LIMIT, REQUEST_WINDOW_MAX, WAIT_MS_MAX,
};
use lockstep_wire::reply::Reply;
use lockstep_wire::request::{Acquire, Mode, Mutation, Request};
use lockstep_wire::{FencingToken, Owner, RequestId, Rows, SessionId, Status};

use super::forger::Due;
use super::plan::{Plan, Workload};
use crate::random::Stream;

/// A mutation that can be sent any number of times.
#[derive(Clone, Debug)]
pub(super) struct Deed {
    request_id: RequestId,
    seen: Vec<RequestId>,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Acquire(Wish),
    Cancel { acquire_id: RequestId },
    Release { acquire_id: RequestId, name: String, token: FencingToken },
}

#[derive(Clone, Debug)]
struct Wish {
    names: Vec<String>,
    owner: Owner,
    mode: Mode,
    is_reentrant: bool,
    permits: u16,
    wait_ms: u32,
    lock_delay_ms: u32,
    max_hold_ms: u32,
}

impl Deed {
    pub(super) fn request_id(&self) -> RequestId {
        self.request_id
    }

    /// Hands out the request that it is in a session.
    pub(super) fn with_request(&self, session: SessionId, send: impl FnOnce(&Request<'_>)) {
        let mutation = Mutation { session, request_id: self.request_id, seen: Rows::Slice(&self.seen) };
        match &self.what {
            What::Acquire(wish) => {
                let names: Vec<&str> = wish.names.iter().map(String::as_str).collect();
                send(&Request::Acquire(Acquire {
                    mutation,
                    owner: wish.owner,
                    mode: wish.mode,
                    is_reentrant: wish.is_reentrant,
                    permits: wish.permits,
                    wait_ms: wish.wait_ms,
                    lock_delay_ms: wish.lock_delay_ms,
                    max_hold_ms: wish.max_hold_ms,
                    names: Rows::Slice(&names),
                    data: b"forged",
                }));
            }
            What::Cancel { acquire_id } => send(&Request::Cancel { mutation, acquire_id: *acquire_id }),
            What::Release { acquire_id, name, token } => {
                send(&Request::Release { mutation, acquire_id: *acquire_id, name, token: *token });
            }
        }
    }
}

/// What was sent in the present session, and what came of it.
#[derive(Debug)]
pub(super) struct Forgery {
    workload: Workload,
    next_id: u64,
    skipped: Vec<RequestId>,
    sent: Vec<Deed>,
    answered: BTreeSet<RequestId>,
    /// Acquires that were granted and not given back, as far as it knows.
    granted: BTreeMap<RequestId, (String, FencingToken)>,
    last_token: FencingToken,
    /// It tells late what it has seen.
    is_reticent: bool,
}

impl Forgery {
    pub(super) fn new(plan: &Plan) -> Forgery {
        Forgery {
            workload: plan.workload.clone(),
            next_id: 1,
            skipped: Vec::new(),
            sent: Vec::new(),
            answered: BTreeSet::new(),
            granted: BTreeMap::new(),
            last_token: FencingToken(0),
            is_reticent: true,
        }
    }

    /// There is another session now.
    pub(super) fn begin_anew(&mut self) {
        self.is_reticent = !self.is_reticent;
        self.next_id = 1;
        self.skipped.clear();
        self.sent.clear();
        self.answered.clear();
        self.granted.clear();
    }

    /// What came back for a request.
    pub(super) fn on_reply(&mut self, request_id: RequestId, reply: &Reply<'_>) {
        match reply {
            Reply::Refused(_) => return,
            Reply::Granted(grant) => {
                self.last_token = grant.token;
                let deed = self.sent.iter().find(|deed| deed.request_id == request_id);
                if let Some(What::Acquire(wish)) = deed.map(|deed| &deed.what)
                    && let Some(name) = wish.names.first()
                {
                    self.granted.insert(request_id, (name.clone(), grant.token));
                }
            }
            _ => {}
        }
        self.answered.insert(request_id);
    }

    /// A lock.
    pub(super) fn name(&self, stream: &mut Stream) -> String {
        self.workload.name(stream.place(self.workload.names))
    }

    /// A token, current or not.
    pub(super) fn token(&self, stream: &mut Stream) -> FencingToken {
        let held = self.granted.values().next().map(|(_, token)| *token);
        held.filter(|_| stream.percent(50)).unwrap_or(self.last_token)
    }

    /// Something that was sent before.
    pub(super) fn earlier(&self, stream: &mut Stream) -> Option<Deed> {
        if self.sent.is_empty() {
            return None;
        }
        // Mostly what has just been, so that it meets its own first life.
        let far = if stream.percent(70) { 4 } else { 100 };
        let back = stream.place(self.sent.len().min(far));
        Some(self.sent[self.sent.len() - 1 - back].clone())
    }

    /// The next thing to send, and what has to come of it.
    pub(super) fn draw(&mut self, stream: &mut Stream) -> (Deed, Due) {
        let what = match stream.below(16) {
            0..=4 => What::Acquire(self.wish(stream)),
            5 | 6 => match self.granted.pop_first() {
                Some((acquire_id, (name, token))) => What::Release { acquire_id, name, token },
                None => What::Acquire(self.wish(stream)),
            },
            7 => self.stale_release(stream),
            8 => What::Cancel { acquire_id: RequestId(stream.between(1, self.next_id)) },
            9 | 10 => {
                if let Some(deed) = self.earlier(stream) {
                    return (deed, Due::Anything);
                }
                What::Acquire(self.wish(stream))
            }
            11 | 12 => match self.contradiction(stream) {
                Some(deed) => return (deed, Due::Refusal(Status::Invalid, Status::StaleRequest)),
                None => What::Acquire(self.wish(stream)),
            },
            13 => return self.belated(stream),
            _ => return self.misshapen(stream),
        };
        self.skip(stream);
        let request_id = RequestId(self.next_id);
        self.next_id += 1;
        // An acquire id is below the cancel's own.
        let what = match what {
            What::Cancel { acquire_id } if acquire_id >= request_id => {
                What::Cancel { acquire_id: RequestId(request_id.0 - 1) }
            }
            what => what,
        };
        if matches!(what, What::Cancel { acquire_id: RequestId(0) }) {
            return self.misshapen(stream);
        }
        (self.send(request_id, what, stream), Due::Anything)
    }

    fn send(&mut self, request_id: RequestId, what: What, stream: &mut Stream) -> Deed {
        let deed = Deed { request_id, seen: self.seen(request_id, stream), what };
        self.sent.push(deed.clone());
        deed
    }

    /// Most of what was answered, and sometimes what was not.
    fn seen(&self, below: RequestId, stream: &mut Stream) -> Vec<RequestId> {
        // Some sessions keep the newest to themselves, so that the cell has to keep their outcomes.
        let kept_back = if self.is_reticent { 24 } else { 0 };
        let answered = self.answered.range(..below).rev().skip(kept_back);
        let mut seen: Vec<RequestId> = answered.take(REQUEST_WINDOW_MAX - 1).copied().collect();
        if stream.percent(20) {
            seen.truncate(1);
        }
        if stream.percent(10) {
            seen.push(RequestId(stream.between(1, self.next_id + 2)));
        }
        seen
    }

    fn wish(&self, stream: &mut Stream) -> Wish {
        Wish {
            names: vec![self.name(stream)],
            owner: Owner(stream.between(1, 4)),
            mode: if stream.percent(50) { Mode::Shared } else { Mode::Exclusive },
            is_reentrant: stream.percent(40),
            permits: 0,
            wait_ms: stream.one_of(&[0, 100, 2_000]),
            lock_delay_ms: 0,
            max_hold_ms: 0,
        }
    }

    /// Leaves ids out: a few that may come later, or more than a session remembers.
    fn skip(&mut self, stream: &mut Stream) {
        if stream.percent(15) {
            let count = if stream.percent(5) { 70 } else { stream.between(1, 3) };
            self.skipped.extend((self.next_id..self.next_id + count).map(RequestId));
            self.next_id += count;
        }
    }

    /// A hold that was given back long ago, another name, or a token of somebody else.
    fn stale_release(&self, stream: &mut Stream) -> What {
        let acquire_id = RequestId(stream.between(1, self.next_id));
        What::Release { acquire_id, name: self.name(stream), token: self.token(stream) }
    }

    /// A request that comes when later ones have come, or long after that.
    fn belated(&mut self, stream: &mut Stream) -> (Deed, Due) {
        let wish = self.wish(stream);
        if self.skipped.is_empty() {
            return self.misshapen(stream);
        }
        let at = stream.place(self.skipped.len());
        let request_id = self.skipped.swap_remove(at);
        (self.send(request_id, What::Acquire(wish), stream), Due::Anything)
    }

    /// Another content under an id that was answered.
    fn contradiction(&self, stream: &mut Stream) -> Option<Deed> {
        let answered: Vec<RequestId> = self.answered.iter().copied().collect();
        if answered.is_empty() {
            return None;
        }
        let request_id = answered[stream.place(answered.len())];
        let wish = Wish { owner: Owner(99), ..self.wish(stream) };
        Some(Deed { request_id, seen: Vec::new(), what: What::Acquire(wish) })
    }

    /// What no session may ask; its id stays free, and the next request has it.
    fn misshapen(&self, stream: &mut Stream) -> (Deed, Due) {
        let mut wish = self.wish(stream);
        let mut request_id = RequestId(self.next_id);
        let mut what = None;
        let status = match stream.below(12) {
            0 => {
                request_id = RequestId(0);
                Status::Invalid
            }
            1 => {
                request_id = RequestId(REQUEST_ID_LIMIT);
                Status::Invalid
            }
            2 => {
                wish.names.clear();
                Status::Invalid
            }
            3 => {
                wish.names.push("/ls/sim/second".to_owned());
                Status::Unsupported
            }
            4 => {
                wish.permits = 3;
                Status::Unsupported
            }
            5 => {
                wish.lock_delay_ms = 5;
                Status::Unsupported
            }
            6 => {
                wish.max_hold_ms = 5;
                Status::Unsupported
            }
            7 => {
                wish.lock_delay_ms = LOCK_DELAY_MS_MAX + 1;
                Status::Invalid
            }
            8 => {
                wish.wait_ms = WAIT_MS_MAX + 1;
                Status::Invalid
            }
            9 => {
                let too_long = format!("/ls/sim/{}", "n".repeat(NAME_BYTES_MAX - 7));
                let names = ["", "sim/0", "/ls", "/ls/sim/", "/ls//0", &too_long];
                wish.names = vec![stream.one_of(&names).to_owned()];
                Status::Invalid
            }
            10 => {
                what = Some(What::Cancel { acquire_id: request_id });
                Status::Invalid
            }
            _ => {
                what = Some(What::Cancel { acquire_id: RequestId(0) });
                Status::Invalid
            }
        };
        let what = what.unwrap_or(What::Acquire(wish));
        (Deed { request_id, seen: Vec::new(), what }, Due::Refusal(status, status))
    }
}
