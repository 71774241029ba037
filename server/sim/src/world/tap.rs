//! A tap on every client's connection: what it asks, and what it is told.
//!
//! Invariant: each reply is matched with the request that it answers and handed to `testimony` when it reaches the client's
//! socket, whatever the client makes of it; what a request must know of is noted when it is sent. Deliberately absent: any
//! judgement, and what the client believes.

use std::collections::BTreeMap;

use lockstep_wire::entry::Command;
use lockstep_wire::frame::{Assembler, Frame};
use lockstep_wire::limit::{CLIENT_FRAME_BYTES_MAX, REPLY_FRAME_BYTES_MAX};
use lockstep_wire::reply::{EndReason, Event, Reply};
use lockstep_wire::request::{Acquire, Mode, Mutation, Request, SessionProof, kind};
use lockstep_wire::{CellId, Correlation, FencingToken, LogIndex, Owner, RequestId, Rows, SessionId};

use super::judge::Judges;
use super::network::WireId;
use super::trace::number_of;
use crate::oracle::nonce::Opener;
use crate::oracle::once::RequestKey;
use crate::oracle::refusal::Wish;

/// A request that is under way, and what had been told to anybody when it was sent.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    Opening {
        wish: Wish,
        opener: Opener,
        /// The session that lived by this nonce, and the highest request id that it was known to have used.
        known: Option<(SessionId, RequestId)>,
    },
    /// With the highest request id that each session is known to have used.
    Attaching(Vec<(SessionProof, RequestId)>),
    Beating(Vec<SessionId>),
    Closing(SessionId),
    Mutation(AskedMutation),
    Lock {
        name: String,
        floor: LogIndex,
        token_floor: FencingToken,
    },
    Token {
        name: String,
        token: FencingToken,
        of: SessionId,
        floor: LogIndex,
        token_floor: FencingToken,
    },
    Session {
        session: SessionId,
        floor: LogIndex,
    },
    /// Status, routes, and what no request is.
    Other,
}

/// A mutation that is under way.
#[derive(Clone, Debug)]
pub(super) struct AskedMutation {
    pub(super) request: RequestKey,
    /// A hash of all that must be the same when it is sent again.
    pub(super) content: u64,
    pub(super) asked: u64,
    pub(super) deed: Deed,
}

impl Asked {
    /// Whether it asks for a session or a lock.
    pub(super) fn is_new(&self) -> bool {
        match self {
            Asked::Opening { .. } => true,
            Asked::Mutation(asked) => matches!(asked.deed, Deed::Acquire { .. }),
            Asked::Attaching(_)
            | Asked::Beating(_)
            | Asked::Closing(_)
            | Asked::Lock { .. }
            | Asked::Token { .. }
            | Asked::Session { .. }
            | Asked::Other => false,
        }
    }

    /// What an entry would do about it.
    pub(super) fn wish(&self) -> Option<Wish> {
        match self {
            Asked::Opening { wish, .. } => Some(*wish),
            Asked::Closing(session) => Some(Wish::Close(*session)),
            Asked::Mutation(asked) => Some(Wish::Mutation { request: asked.request, content: asked.content }),
            Asked::Attaching(_)
            | Asked::Beating(_)
            | Asked::Lock { .. }
            | Asked::Token { .. }
            | Asked::Session { .. }
            | Asked::Other => None,
        }
    }
}

/// What a mutation is to do.
#[derive(Clone, Debug)]
pub(super) enum Deed {
    Acquire {
        name: String,
        owner: Owner,
        mode: Mode,
        token_floor: FencingToken,
    },
    /// A cancel or a release of this acquire.
    Undo(RequestId),
}

#[derive(Debug, Default)]
struct Conversation {
    sent: Assembler,
    told: Assembler,
    asked: BTreeMap<Correlation, Asked>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Tap {
    conversations: BTreeMap<WireId, Conversation>,
    /// What had been told when an acquire was sent for the first time; another content is another acquire.
    token_floors: BTreeMap<(CellId, RequestKey, u64), FencingToken>,
}

impl Tap {
    /// Whatever is under way is answered by nobody any more.
    pub(super) fn forget_conversations(&mut self) {
        self.conversations.clear();
    }
}

impl Judges {
    /// A client puts bytes into a wire.
    pub(super) fn on_sent(&mut self, wire: WireId, bytes: &[u8]) {
        let mut conversation = self.tap.conversations.remove(&wire).unwrap_or_default();
        let mut rest = bytes;
        while let Ok(Some(frame)) = conversation.sent.next(&mut rest, CLIENT_FRAME_BYTES_MAX) {
            if frame.head.kind != kind::HELLO {
                let asked = self.note_asked(&frame);
                if let Some(wish) = asked.wish() {
                    self.cell(frame.head.cell).refusals.on_sent(wish);
                }
                conversation.asked.insert(frame.head.correlation, asked);
            }
        }
        self.tap.conversations.insert(wire, conversation);
    }

    /// Bytes have come out of a wire at its client.
    pub(super) fn on_told(&mut self, wire: WireId, bytes: &[u8]) {
        let Some(mut conversation) = self.tap.conversations.remove(&wire) else { return };
        let mut rest = bytes;
        while let Ok(Some(frame)) = conversation.told.next(&mut rest, REPLY_FRAME_BYTES_MAX) {
            let cell = frame.head.cell;
            match frame.head.kind {
                kind::EVENT => {
                    if let Ok(event) = Event::decode(&frame) {
                        self.hear_event(cell, &event);
                    }
                }
                kind if kind == kind::HELLO | kind::REPLY => {}
                _ => {
                    let Ok(reply) = Reply::decode(&frame) else { continue };
                    let correlation = frame.head.correlation;
                    let is_last = !matches!(reply, Reply::Queued { .. });
                    let asked = match is_last {
                        true => conversation.asked.remove(&correlation),
                        false => conversation.asked.get(&correlation).cloned(),
                    };
                    if let Some(asked) = asked {
                        self.hear(cell, &asked, &reply);
                    }
                }
            }
        }
        self.tap.conversations.insert(wire, conversation);
    }

    /// A client has no more use for a wire.
    pub(super) fn on_hung_up(&mut self, wire: WireId) {
        self.tap.conversations.remove(&wire);
    }

    fn note_asked(&mut self, frame: &Frame<'_>) -> Asked {
        let cell = frame.head.cell;
        let Ok(request) = Request::decode(frame) else { return Asked::Other };
        if !self.has_cell(cell) {
            return Asked::Other;
        }
        let floor = self.cell(cell).readings.floor();
        match request {
            Request::OpenSession { nonce, client_id, .. } => {
                let judges = self.cell(cell);
                let live = judges.nonces.live(&nonce);
                Asked::Opening {
                    wish: Wish::Open { nonce, content: content_of(&request) },
                    opener: Opener { nonce, client_id: client_id.to_owned() },
                    known: live.map(|session| (session, judges.once.used(session))),
                }
            }
            Request::AttachSessions(proofs) => {
                let once = &self.cell(cell).once;
                Asked::Attaching(proofs.iter().map(|it| (it, once.used(it.session))).collect())
            }
            Request::KeepAlive(sessions) => Asked::Beating(sessions.iter().collect()),
            Request::CloseSession { session } => Asked::Closing(session),
            Request::Acquire(acquire) => {
                let request = (acquire.mutation.session, acquire.mutation.request_id);
                let now = self.now;
                self.cell(cell).waits.on_sent(request, acquire.wait_ms, now);
                let name = acquire.names.iter().next().unwrap_or_default().to_owned();
                let told = match acquire.is_reentrant {
                    true => FencingToken(0),
                    false => self.tokens.floor(&(cell, name.clone())),
                };
                let content = content_of_acquire(acquire);
                let token_floor = *self.tap.token_floors.entry((cell, request, content)).or_insert(told);
                let deed = Deed::Acquire { name, owner: acquire.owner, mode: acquire.mode, token_floor };
                self.note_mutation(cell, request, content, deed)
            }
            Request::Cancel { mutation, acquire_id } => {
                let content = content_of_cancel(acquire_id);
                self.note_mutation(cell, key(&mutation), content, Deed::Undo(acquire_id))
            }
            Request::Release { mutation, acquire_id, name, token } => {
                let content = content_of_release(acquire_id, name, token);
                self.note_mutation(cell, key(&mutation), content, Deed::Undo(acquire_id))
            }
            Request::CheckToken { name, token, session } => {
                let token_floor = self.tokens.floor(&(cell, name.to_owned()));
                Asked::Token { name: name.to_owned(), token, of: session, floor, token_floor }
            }
            Request::GetLock { name } => {
                let token_floor = self.tokens.floor(&(cell, name.to_owned()));
                Asked::Lock { name: name.to_owned(), floor, token_floor }
            }
            Request::GetSession { session } => Asked::Session { session, floor },
            Request::Status
            | Request::Members
            | Request::ChangeMembers(_)
            | Request::TransferLeader { .. }
            | Request::Routes
            | Request::SaveSnapshot { .. } => Asked::Other,
        }
    }

    fn note_mutation(&mut self, cell: CellId, request: RequestKey, content: u64, deed: Deed) -> Asked {
        let asked = self.cell(cell).once.moment();
        Asked::Mutation(AskedMutation { request, content, asked, deed })
    }
}

/// What clients wished for that a command does.
pub(super) fn wishes_of(command: &Command<'_>) -> Vec<Wish> {
    let mutation =
        |mutation: &Mutation<'_>, content| vec![Wish::Mutation { request: key(mutation), content }];
    match command {
        Command::OpenSession { client_id, ttl_ms, nonce } => {
            let request = Request::OpenSession { client_id, ttl_ms: *ttl_ms, nonce: *nonce };
            vec![Wish::Open { nonce: *nonce, content: content_of(&request) }]
        }
        Command::Acquire(acquire) => mutation(&acquire.mutation, content_of_acquire(*acquire)),
        Command::Cancel { mutation: own, acquire_id } => mutation(own, content_of_cancel(*acquire_id)),
        Command::Release { mutation: own, acquire_id, name, token } => {
            mutation(own, content_of_release(*acquire_id, name, *token))
        }
        Command::EndSessions { reason: EndReason::Closed, sessions } => {
            sessions.iter().map(Wish::Close).collect()
        }
        Command::Blank
        | Command::CancelWait { .. }
        | Command::EndSessions { .. }
        | Command::Reap
        | Command::SessionsSilent { .. }
        | Command::SessionsReturned { .. }
        | Command::EndQuiet
        | Command::Members(_) => Vec::new(),
    }
}

fn content_of_acquire(acquire: Acquire<'_>) -> u64 {
    content_of(&Request::Acquire(Acquire { mutation: nobodys(), wait_ms: 0, ..acquire }))
}

fn content_of_cancel(acquire_id: RequestId) -> u64 {
    content_of(&Request::Cancel { mutation: nobodys(), acquire_id })
}

fn content_of_release(acquire_id: RequestId, name: &str, token: FencingToken) -> u64 {
    content_of(&Request::Release { mutation: nobodys(), acquire_id, name, token })
}

fn content_of(request: &Request<'_>) -> u64 {
    let mut bytes = Vec::new();
    request.encode(CellId(0), Correlation(0), &mut bytes);
    number_of(&bytes)
}

fn key(mutation: &Mutation<'_>) -> RequestKey {
    (mutation.session, mutation.request_id)
}

/// In place of what may differ between two sends of one request.
fn nobodys() -> Mutation<'static> {
    Mutation { session: SessionId(0), request_id: RequestId(0), seen: Rows::Slice(&[]) }
}
