//! What a server's process promises its clients, and when it breaks a session's: shown to the judges of beats.
//!
//! Invariant: a promise counts from when its answer is emitted, by the clock that the process reads. Deliberately
//! absent: the rule; see `oracle::beat`.

use lockstep_wire::entry::Command;
use lockstep_wire::frame::Assembler;
use lockstep_wire::limit::{CLIENT_FRAME_BYTES_MAX, REPLY_FRAME_BYTES_MAX};
use lockstep_wire::reply::{EndReason, Reply};
use lockstep_wire::request::{Request, kind};
use lockstep_wire::{CellId, SessionId, Status};

use super::process::{Arrival, Process, Surroundings};

impl Process {
    /// An answer to a client goes out.
    pub(super) fn note_promises(&self, cell: CellId, frame: &[u8], around: &mut Surroundings<'_>) {
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
        let by = (self.identity.node, self.life);
        let beats = &mut around.judges.cell(cell).beats;
        let mut promise =
            |session: SessionId, ttl_ms: u32| beats.on_acknowledged(by, session, self.now.0, ttl_ms);
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
        let by = (self.identity.node, self.life);
        let verdict = around.judges.cell(cell).beats.on_expired(by, self.now.0, &ended, unread);
        around.judges.take(verdict);
    }
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
