//! A follower of the ceiling: it writes what the leader forwards, and says how far its disk has it.
//!
//! Invariant: it confirms only what its disk has confirmed. Deliberately absent: any check of what it is sent.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::bail;
use lockstep_ring::{Completion, Ring};
use lockstep_wire::frame::Frame;
use lockstep_wire::limit::PEER_FRAME_BYTES_MAX;
use lockstep_wire::peer::{AppendOutcome, PeerMessage};
use lockstep_wire::{CellId, LogIndex, Term};

use super::disk::Disk;
use super::{ACCEPT, PEER_BUFFERS, TURN_MAX, WRITE};
use crate::connections::{Connections, Hearing, Party};

/// The number of the connection to the leader, the only one.
const LEADER: usize = 0;

struct Follower<'r> {
    connections: Connections<'r>,
    leader: Hearing,
    disk: Disk,
    appended: u64,
    is_over: bool,
}

/// Runs until it is to stop.
pub(super) fn run(ring: &Ring, stop: &AtomicBool, file: OwnedFd, listener: OwnedFd) -> anyhow::Result<()> {
    let group = ring.add_buffer_group(PEER_BUFFERS.0, PEER_BUFFERS.1)?;
    ring.accept(ring.adopt_socket(listener), ACCEPT);
    let mut follower = Follower {
        connections: Connections::new(ring),
        leader: Hearing { group, frame_bytes_max: PEER_FRAME_BYTES_MAX },
        disk: Disk::new(ring, file),
        appended: 0,
        is_over: false,
    };
    let mut confirmed = 0;
    while !stop.load(Ordering::Acquire) && !follower.is_over {
        follower.turn(TURN_MAX)?;
        if follower.disk.durable() > confirmed {
            confirmed = follower.disk.durable();
            let outcome = AppendOutcome::Durable { through: LogIndex(confirmed) };
            let reply = PeerMessage::AppendReply { term: Term(1), outcome };
            reply.encode(CellId(0), follower.connections.out(LEADER));
        }
        follower.connections.flush();
        follower.disk.submit(ring, WRITE);
    }
    Ok(())
}

impl<'r> Party<'r> for Follower<'r> {
    fn connections(&mut self) -> &mut Connections<'r> {
        &mut self.connections
    }

    fn on_connected(&mut self, _at: usize) {}

    fn on_frame(&mut self, _at: usize, frame: &Frame<'_>, _now: Instant) -> anyhow::Result<()> {
        let PeerMessage::Append(append) = PeerMessage::decode(frame)? else {
            bail!("the leader sends appends and nothing else")
        };
        for entry in append.entries.iter() {
            self.appended += 1;
            self.disk.append(self.appended, entry.payload);
        }
        Ok(())
    }

    fn on_other(&mut self, _at: usize, completion: Completion<'_>) -> anyhow::Result<()> {
        match completion {
            Completion::Accepted { fd, .. } => self.connections.adopt(fd, self.leader),
            written @ Completion::Written { .. } => self.disk.on_completion(written)?,
            // The leader was stopped first.
            Completion::EndOfStream { .. } | Completion::ReceiveFailed { .. } => self.is_over = true,
            other => bail!("{other:?}"),
        }
        Ok(())
    }
}
