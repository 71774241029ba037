//! What clients ask, with as few words as a test wants to spend.
//!
//! Deliberately absent: any memory of what was answered.

use lockstep_wire::request::{Acquire, Mode, Mutation, Request, SessionProof};
use lockstep_wire::{FencingToken, Nonce, Owner, RequestId, Rows, SessionId};

use super::rig::Rig;
use crate::ConnectionId;

/// The nonce that the client with this number opens its session with.
pub(super) fn nonce(client: u64) -> Nonce {
    let mut nonce = Nonce([7; 16]);
    nonce.0[..8].copy_from_slice(&client.to_le_bytes());
    nonce
}

pub(super) fn open(client: u64, ttl_ms: u32) -> Request<'static> {
    Request::OpenSession { client_id: "client", ttl_ms, nonce: nonce(client) }
}

pub(super) fn mutation(session: SessionId, request_id: u64) -> Mutation<'static> {
    Mutation { session, request_id: RequestId(request_id), seen: Rows::Slice(&[]) }
}

pub(super) fn acquire<'a>(
    session: SessionId,
    request_id: u64,
    names: &'a [&'a str],
    wait_ms: u32,
) -> Request<'a> {
    Request::Acquire(Acquire {
        mutation: mutation(session, request_id),
        owner: Owner(request_id),
        mode: Mode::Exclusive,
        is_reentrant: false,
        permits: 0,
        wait_ms,
        lock_delay_ms: 0,
        max_hold_ms: 0,
        names: Rows::Slice(names),
        data: b"",
    })
}

pub(super) fn release(
    session: SessionId,
    request_id: u64,
    acquire_id: u64,
    name: &str,
    token: u64,
) -> Request<'_> {
    Request::Release {
        mutation: mutation(session, request_id),
        acquire_id: RequestId(acquire_id),
        name,
        token: FencingToken(token),
    }
}

pub(super) fn cancel(session: SessionId, request_id: u64, acquire_id: u64) -> Request<'static> {
    Request::Cancel { mutation: mutation(session, request_id), acquire_id: RequestId(acquire_id) }
}

/// The token in a line that grants.
pub(super) fn token(line: &str) -> u64 {
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words[..2], ["OK", "token"], "{line}");
    words[2].parse().unwrap()
}

impl Rig {
    /// Opens a session.
    pub(super) fn open(&mut self, connection: ConnectionId, client: u64, ttl_ms: u32) -> SessionId {
        let told = self.call(connection, open(client, ttl_ms));
        let words: Vec<&str> = told.last().expect("it is answered").split(' ').collect();
        assert_eq!(words[..2], ["OK", "session"], "{told:?}");
        SessionId(words[2].parse().unwrap())
    }

    pub(super) fn attach(
        &mut self,
        connection: ConnectionId,
        session: SessionId,
        client: u64,
    ) -> Vec<String> {
        self.say_attach(connection, session, client);
        self.settle();
        self.told(connection)
    }

    pub(super) fn say_attach(&mut self, connection: ConnectionId, session: SessionId, client: u64) {
        let proofs = [SessionProof { session, nonce: nonce(client) }];
        self.say(connection, Request::AttachSessions(Rows::Slice(&proofs)));
    }

    /// Beats, and lets the pace of rounds pass.
    pub(super) fn beat(&mut self, connection: ConnectionId, session: SessionId) {
        self.say_beat(connection, session);
        self.settle();
    }

    pub(super) fn say_beat(&mut self, connection: ConnectionId, session: SessionId) {
        self.say(connection, Request::KeepAlive(Rows::Slice(&[session])));
    }
}
