//! Frames, messages and entries: bytes that are bent must be read to a value or a refusal.
//!
//! Invariant checked: no panic; a value that is read has exactly the bytes that it was read from, or one value would
//! have two encodings; a stream gives the same frames however it is cut. Deliberately absent: what a message means.

use std::sync::OnceLock;

use lockstep_wire::entry::{Command, Silence};
use lockstep_wire::frame::{Assembler, Frame, HEAD_BYTES, Head};
use lockstep_wire::hello::{Hello, HelloReply};
use lockstep_wire::limit::PEER_FRAME_BYTES_MAX;
use lockstep_wire::peer::{self, PeerMessage};
use lockstep_wire::reply::{EndReason, Event, Reply};
use lockstep_wire::request::{self, Acquire, Mode, Mutation, Request};
use lockstep_wire::{CellId, Correlation, FencingToken, Nonce, Owner, RequestId, Rows, SessionId};

use super::bend::bend;
use crate::random::Stream;

/// An example of every frame.
const GOLDEN: &str = include_str!("../../../../wire/golden.txt");
/// Frames in one stream at most.
const FRAMES_MAX: u64 = 5;

/// The whole frames of the golden file.
pub(super) fn examples() -> &'static [Vec<u8>] {
    static EXAMPLES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    EXAMPLES.get_or_init(|| {
        let lines = GOLDEN.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.map(|line| line.split(' ').skip(1).flat_map(unhex).collect()).collect()
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("the golden file is hexadecimal");
    (0..text.len()).step_by(2).map(digits).collect()
}

/// A stream of frames, bent, in pieces.
pub(super) fn frames(stream: &mut Stream) -> Result<(), String> {
    let examples = examples();
    let mut bytes = Vec::new();
    for _ in 0..stream.between(1, FRAMES_MAX) {
        bytes.extend_from_slice(&examples[stream.place(examples.len())]);
    }
    if stream.percent(80) {
        bend(&mut bytes, examples, stream);
    }
    let limit = stream.one_of(&[64, 1_024, PEER_FRAME_BYTES_MAX]);
    let whole = cut(&bytes, &[bytes.len()], limit);
    let mut ends: Vec<usize> = (0..stream.below(6)).map(|_| stream.place(bytes.len() + 1)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let pieces = cut(&bytes, &ends, limit);
    if whole != pieces {
        return Err(format!("cut at {ends:?} the bytes {bytes:02x?} are {pieces:?}, uncut {whole:?}"));
    }
    Ok(())
}

/// The frames of a stream that comes in pieces, and whether it could be read to its end.
fn cut(bytes: &[u8], ends: &[usize], limit: usize) -> (Vec<(u16, Vec<u8>)>, Option<String>) {
    let mut assembler = Assembler::default();
    let mut frames = Vec::new();
    let mut from = 0;
    for end in ends {
        let mut input = &bytes[from..*end];
        from = *end;
        loop {
            match assembler.next(&mut input, limit) {
                Ok(Some(frame)) => frames.push((frame.head.kind, frame.body.to_vec())),
                Ok(None) => break,
                Err(error) => return (frames, Some(error.to_string())),
            }
        }
    }
    (frames, None)
}

/// One message, bent, under its own kind or another's.
pub(super) fn messages(stream: &mut Stream) -> Result<(), String> {
    let examples = examples();
    let example = &examples[stream.place(examples.len())];
    let kind_of = |bytes: &[u8]| u16::from_le_bytes([bytes[8], bytes[9]]);
    let kind = match stream.percent(90) {
        true => kind_of(example),
        false => kind_of(&examples[stream.place(examples.len())]),
    };
    let bodies: Vec<Vec<u8>> = vec![examples[stream.place(examples.len())][HEAD_BYTES..].to_vec()];
    let mut body = example[HEAD_BYTES..].to_vec();
    bend(&mut body, &bodies, stream);
    let head = Head { kind, cell: CellId(3), correlation: Correlation(9) };
    match read_again(&Frame { head, body: &body }) {
        Some(again) if again != body => {
            Err(format!("kind {kind:#06x}: {body:02x?} is read and written again as {again:02x?}"))
        }
        _ => Ok(()),
    }
}

/// Reads a message by its kind and writes it again: the new body; none when it was refused.
fn read_again(frame: &Frame<'_>) -> Option<Vec<u8>> {
    let (head, mut out) = (frame.head, Vec::new());
    let body = |out: Vec<u8>| Some(out[HEAD_BYTES..].to_vec());
    if head.kind == request::kind::HELLO {
        Hello::decode(frame.body).ok()?.put(&mut out);
        return Some(out);
    }
    if head.kind == request::kind::HELLO | request::kind::REPLY {
        HelloReply::decode(frame.body).ok()?.put(&mut out);
        return Some(out);
    }
    if let Ok(request) = Request::decode(frame) {
        request.encode(head.cell, head.correlation, &mut out);
        return body(out);
    }
    if let Ok(reply) = Reply::decode(frame) {
        reply.encode(head.kind & !request::kind::REPLY, head.cell, head.correlation, &mut out);
        return body(out);
    }
    if let Ok(event) = Event::decode(frame) {
        event.encode(head.cell, &mut out);
        return body(out);
    }
    if let Ok(message) = PeerMessage::decode(frame) {
        message.encode(head.cell, &mut out);
        return body(out);
    }
    let beats: Vec<_> = peer::decode_beats(frame).ok()?.iter().collect();
    if beats.is_empty() {
        // No beats make no frame; a frame of none is read as nothing.
        return Some(frame.body.to_vec());
    }
    peer::encode_beats(&beats, &mut out);
    body(out)
}

/// The payload of an entry, bent.
pub(super) fn entries(stream: &mut Stream) -> Result<(), String> {
    let examples = payloads();
    let mut payload = examples[stream.place(examples.len())].clone();
    bend(&mut payload, &examples, stream);
    let Ok(command) = Command::decode(&payload) else { return Ok(()) };
    let mut again = Vec::new();
    command.encode(&mut again);
    if again != payload {
        return Err(format!("{payload:02x?} is read and written again as {again:02x?}"));
    }
    Ok(())
}

fn payloads() -> Vec<Vec<u8>> {
    let mutation =
        Mutation { session: SessionId(7), request_id: RequestId(9), seen: Rows::Slice(&[RequestId(8)]) };
    let acquire = Acquire {
        mutation,
        owner: Owner(1),
        mode: Mode::Shared,
        is_reentrant: true,
        permits: 0,
        wait_ms: 1_000,
        lock_delay_ms: 0,
        max_hold_ms: 0,
        names: Rows::Slice(&["/ls/demo/job"]),
        data: b"host",
    };
    let commands = [
        Command::Blank,
        Command::OpenSession { client_id: "host", ttl_ms: 10_000, nonce: Nonce([5; 16]) },
        Command::Acquire(acquire),
        Command::Cancel { mutation, acquire_id: RequestId(6) },
        Command::Release { mutation, acquire_id: RequestId(6), name: "/ls/demo/job", token: FencingToken(4) },
        Command::CancelWait { session: SessionId(7), acquire_id: RequestId(6) },
        Command::EndSessions {
            reason: EndReason::Expired,
            sessions: Rows::Slice(&[SessionId(7), SessionId(9)]),
        },
        Command::Reap,
        Command::SessionsSilent {
            silences: Rows::Slice(&[
                Silence { session: SessionId(7), ms: 2_000 },
                Silence { session: SessionId(9), ms: 500 },
            ]),
        },
        Command::SessionsReturned { sessions: Rows::Slice(&[SessionId(7)]) },
        Command::EndQuiet,
    ];
    let payload = |command: &Command<'_>| {
        let mut out = Vec::new();
        command.encode(&mut out);
        out
    };
    commands.iter().map(payload).collect()
}
