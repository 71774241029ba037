//! What a server's process promises its clients, and when it breaks a session's: shown to the judges of beats.
//!
//! Invariant: a promise counts from when its answer is emitted, by the clock that the process reads. Deliberately
//! absent: the rule; see `oracle::beat`.

use lockstep_wire::entry::Command;
use lockstep_wire::frame::Assembler;
use lockstep_wire::limit::{CLIENT_FRAME_BYTES_MAX, REPLY_FRAME_BYTES_MAX};
use lockstep_wire::reply::{EndReason, Reply};
use lockstep_wire::request::{Request, kind};
use lockstep_wire::{CellId, Nonce, SessionId, Status};

use super::process::{Arrival, Process, Surroundings};
use crate::oracle::beat::{Tenure, Unread};

impl Process {
    /// An answer to a client goes out.
    pub(super) fn note_promises(&self, cell: CellId, wire: u64, frame: &[u8], around: &mut Surroundings<'_>) {
        // The kind stands at a fixed place in the head; most answers are about something else.
        let answered = frame.get(8..10).map(|kind| u16::from_le_bytes([kind[0], kind[1]]));
        let is_about_sessions = [kind::OPEN_SESSION, kind::ATTACH_SESSIONS, kind::KEEP_ALIVE]
            .iter()
            .any(|kind| answered == Some(kind | kind::REPLY));
        if !is_about_sessions {
            return;
        }
        let mut rest = frame;
        let mut assembler = Assembler::default();
        let Ok(Some(frame)) = assembler.next(&mut rest, REPLY_FRAME_BYTES_MAX) else { return };
        let Ok(reply) = Reply::decode(&frame) else { return };
        let Some(by) = self.tenure(cell) else { return };
        let beats = &mut around.judges.cell(cell).beats;
        let mut promise =
            |session: SessionId, ttl_ms: u32| beats.on_acknowledged(by, session, self.now.0, ttl_ms, wire);
        match reply {
            Reply::Opened { session, ttl_ms, .. } => promise(session, ttl_ms),
            Reply::Attached(rows) => {
                let kept = rows.iter().filter(|row| row.status == Status::Ok);
                kept.for_each(|row| promise(row.session, row.ttl_ms));
            }
            Reply::KeptAlive(rows) => {
                let kept = rows.iter().filter(|row| row.status == Status::Ok);
                kept.for_each(|row| promise(row.session, row.ttl_ms));
            }
            _ => {}
        }
    }

    fn tenure(&self, cell: CellId) -> Option<Tenure> {
        Some(((self.identity.node, self.life), self.cells.get(&cell)?.raft().term()))
    }

    /// An entry is appended. The end of sessions as expired comes to a follower from its leader, and is its own affair then.
    pub(super) fn note_endings(&mut self, cell: CellId, payload: &[u8], around: &mut Surroundings<'_>) {
        let Ok(Command::EndSessions { reason: EndReason::Expired, sessions }) = Command::decode(payload)
        else {
            return;
        };
        if !self.cells.get(&cell).is_some_and(|cell| cell.raft().is_leader()) {
            return;
        }
        let ended: Vec<SessionId> = sessions.iter().collect();
        let unread: Vec<SessionId> = self
            .unread(cell)
            .filter_map(|arrival| match arrival {
                Arrival::Bytes { wire, bytes } if self.serves_client(*wire, cell) => Some(beats_in(bytes)),
                _ => None,
            })
            .flatten()
            .collect();
        let Some(by) = self.tenure(cell) else { return };
        let all: Vec<Unread> = self
            .inbox()
            .filter_map(|(arrival, clock)| match arrival {
                Arrival::Bytes { wire, bytes } if self.serves_client(*wire, cell) => {
                    let by_nonce = |nonce: &Nonce| around.judges.session_by_nonce(cell, nonce);
                    Some(unread_in(wire.0, clock.0, bytes, by_nonce))
                }
                _ => None,
            })
            .collect();
        let verdict = around.judges.cell(cell).beats.on_expired_over(by, &ended, &all);
        around.judges.take(verdict);
        let verdict = around.judges.cell(cell).beats.on_expired(by, self.now.0, &ended, unread);
        around.judges.take(verdict);
    }
}

/// What these whole frames keep alive.
fn unread_in(
    connection: u64,
    clock_ns: u64,
    bytes: &[u8],
    by_nonce: impl Fn(&Nonce) -> Option<SessionId>,
) -> Unread {
    let mut unread = Unread { connection, clock_ns, beats: Vec::new(), returns: Vec::new() };
    let mut assembler = Assembler::default();
    let mut rest = bytes;
    while let Ok(Some(frame)) = assembler.next(&mut rest, CLIENT_FRAME_BYTES_MAX) {
        match Request::decode(&frame) {
            Ok(Request::KeepAlive(sessions)) => unread.beats.extend(sessions.iter()),
            Ok(Request::AttachSessions(proofs)) => {
                let proven = proofs.iter().filter(|proof| by_nonce(&proof.nonce) == Some(proof.session));
                unread.returns.extend(proven.map(|proof| proof.session));
            }
            Ok(Request::OpenSession { nonce, .. }) => unread.returns.extend(by_nonce(&nonce)),
            _ => {}
        }
    }
    unread
}

/// The sessions that these whole frames keep alive.
fn beats_in(bytes: &[u8]) -> Vec<SessionId> {
    let mut assembler = Assembler::default();
    let mut rest = bytes;
    let mut found = Vec::new();
    while let Ok(Some(frame)) = assembler.next(&mut rest, CLIENT_FRAME_BYTES_MAX) {
        if let Ok(Request::KeepAlive(sessions)) = Request::decode(&frame) {
            found.extend(sessions.iter());
        }
    }
    found
}
