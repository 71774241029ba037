//! A follower of the ceiling: it writes what the leader forwards, and says how far its disk has it.
//!
//! Invariant: it confirms only what its disk has confirmed. Deliberately absent: any check of what it is sent.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use lockstep_ring::{Completion, Ring, Token};
use lockstep_wire::limit::PEER_FRAME_BYTES_MAX;
use lockstep_wire::peer::{AppendOutcome, PeerMessage};
use lockstep_wire::{CellId, LogIndex, Term};

use super::disk::Disk;
use super::{PEER_BUFFERS, TURN_MAX};
use crate::stream::Stream;

const ACCEPT: Token = Token(0);
const RECEIVE: Token = Token(1);
const SEND: Token = Token(2);
const WRITE: Token = Token(3);

/// Runs until it is to stop.
pub(super) fn run(ring: &Ring, stop: &AtomicBool, file: OwnedFd, listener: OwnedFd) -> anyhow::Result<()> {
    let group = ring.add_buffer_group(PEER_BUFFERS.0, PEER_BUFFERS.1)?;
    ring.accept(ring.adopt_socket(listener), ACCEPT);
    let mut disk = Disk::new(ring, file);
    let mut leader: Option<Stream> = None;
    let (mut appended, mut confirmed) = (0, 0);
    while !stop.load(Ordering::Acquire) {
        ring.submit_and_wait(Some(TURN_MAX)).context("the ring refused to go on")?;
        for completion in ring.completions() {
            match (completion, &mut leader) {
                (Completion::Accepted { fd, .. }, _) => {
                    let stream = leader.insert(Stream::new(ring.adopt_socket(fd)));
                    ring.receive_multishot(stream.socket(), group, RECEIVE);
                }
                (Completion::Received { bytes, is_armed, .. }, Some(stream)) => {
                    let mut rest = &*bytes;
                    while let Some(frame) = stream.assembler.next(&mut rest, PEER_FRAME_BYTES_MAX)? {
                        let PeerMessage::Append(append) = PeerMessage::decode(&frame)? else {
                            bail!("the leader sends appends and nothing else")
                        };
                        for entry in append.entries.iter() {
                            appended += 1;
                            disk.append(appended, entry.payload);
                        }
                    }
                    if !is_armed {
                        ring.receive_multishot(stream.socket(), group, RECEIVE);
                    }
                }
                (Completion::ReceiveStarved { .. }, Some(stream)) => {
                    ring.receive_multishot(stream.socket(), group, RECEIVE);
                }
                (Completion::Sent { buffer, result, .. }, Some(stream)) => {
                    result.context("a send failed")?;
                    stream.on_sent(ring, buffer, SEND);
                }
                (written @ Completion::Written { .. }, _) => disk.on_completion(written)?,
                // The leader was stopped first.
                (Completion::EndOfStream { .. } | Completion::ReceiveFailed { .. }, _) => return Ok(()),
                (other, _) => bail!("{other:?}"),
            }
        }
        if let Some(stream) = &mut leader
            && disk.durable() > confirmed
        {
            confirmed = disk.durable();
            let outcome = AppendOutcome::Durable { through: LogIndex(confirmed) };
            PeerMessage::AppendReply { term: Term(1), outcome }.encode(CellId(0), &mut stream.out);
            stream.flush(ring, SEND);
        }
        disk.submit(ring, WRITE);
    }
    Ok(())
}
