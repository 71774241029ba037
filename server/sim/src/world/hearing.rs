//! What a leader hears of sessions and says about them, read off the frames.
//!
//! Invariant: only what keeps a session alive counts (ARCHITECTURE section 4.3). Deliberately absent: what follows.

use lockstep_wire::SessionId;
use lockstep_wire::frame::Assembler;
use lockstep_wire::limit::REPLY_FRAME_BYTES_MAX;
use lockstep_wire::reply::Reply;
use lockstep_wire::request::Request;
use lockstep_wire::{Nonce, Status};

/// The sessions that a request keeps alive; `by_nonce` finds the one that an open would find, `is_attached` tells whose beats
/// count where this one came from.
pub(super) fn kept_alive_by(
    request: &Request<'_>,
    by_nonce: impl Fn(&Nonce) -> Option<SessionId>,
    is_attached: impl Fn(SessionId) -> bool,
) -> Vec<SessionId> {
    match request {
        Request::KeepAlive(sessions) => sessions.iter().filter(|session| is_attached(*session)).collect(),
        Request::AttachSessions(_) => attached_in(request, by_nonce),
        Request::OpenSession { nonce, .. } => by_nonce(nonce).into_iter().collect(),
        Request::CloseSession { .. }
        | Request::Acquire(_)
        | Request::Cancel { .. }
        | Request::Release { .. }
        | Request::CheckToken { .. }
        | Request::GetLock { .. }
        | Request::GetSession { .. }
        | Request::Status
        | Request::Members
        | Request::ChangeMembers(_)
        | Request::TransferLeader { .. }
        | Request::Routes
        | Request::SaveSnapshot { .. } => Vec::new(),
    }
}

/// The sessions that a request attaches, because it brings the nonces that they were opened by.
pub(super) fn attached_in(
    request: &Request<'_>,
    by_nonce: impl Fn(&Nonce) -> Option<SessionId>,
) -> Vec<SessionId> {
    let Request::AttachSessions(proofs) = request else { return Vec::new() };
    let proven = proofs.iter().filter(|proof| by_nonce(&proof.nonce) == Some(proof.session));
    proven.map(|proof| proof.session).collect()
}

/// The sessions that a frame to a client acknowledges.
pub(super) fn acknowledged_in(frame: &[u8]) -> Vec<SessionId> {
    let mut rest = frame;
    let mut assembler = Assembler::default();
    let Ok(Some(frame)) = assembler.next(&mut rest, REPLY_FRAME_BYTES_MAX) else { return Vec::new() };
    match Reply::decode(&frame) {
        Ok(Reply::KeptAlive(rows)) => {
            rows.iter().filter(|row| row.status == Status::Ok).map(|row| row.session).collect()
        }
        Ok(Reply::Attached(rows)) => {
            rows.iter().filter(|row| row.status == Status::Ok).map(|row| row.session).collect()
        }
        Ok(Reply::Opened { session, .. }) => vec![session],
        _ => Vec::new(),
    }
}
