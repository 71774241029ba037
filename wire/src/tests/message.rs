//! Any message of the protocol, and the one way in which its kind says how it is read.

use crate::frame::{self, Assembler, Frame, Head};
use crate::hello::{Hello, HelloReply};
use crate::peer::{self, Beat, PeerMessage};
use crate::reply::{Event, Reply};
use crate::request::{self, Request};
use crate::{CellId, Correlation, DecodeError, Decoded, Rows};

pub(super) const CELL: CellId = CellId(3);
pub(super) const CORRELATION: Correlation = Correlation(0x0102_0304_0506_0708);
const HELLO_REPLY: u16 = request::kind::HELLO | request::kind::REPLY;

/// Every kind that a peer message has; beats have a frame of their own.
pub(super) const PEER_KINDS: [u16; 14] = [
    peer::kind::CELL_HELLO,
    peer::kind::REFUSED,
    peer::kind::MANIFEST,
    peer::kind::MANIFEST_STORED,
    peer::kind::BORN,
    peer::kind::VOTE,
    peer::kind::VOTE_REPLY,
    peer::kind::TAKE_OVER,
    peer::kind::APPEND,
    peer::kind::APPEND_REPLY,
    peer::kind::SNAPSHOT_PIECE,
    peer::kind::SNAPSHOT_REPLY,
    peer::kind::DIGEST,
    peer::kind::DIGEST_DISAGREES,
];

/// Every kind that a request has.
pub(super) const REQUEST_KINDS: [u16; 19] = [
    request::kind::OPEN_SESSION,
    request::kind::ATTACH_SESSIONS,
    request::kind::KEEP_ALIVE,
    request::kind::CLOSE_SESSION,
    request::kind::ACQUIRE,
    request::kind::CANCEL,
    request::kind::RELEASE,
    request::kind::CHECK_TOKEN,
    request::kind::GET_LOCK,
    request::kind::GET_SESSION,
    request::kind::STATUS,
    request::kind::MEMBERS,
    request::kind::ADD_LEARNER,
    request::kind::PROMOTE,
    request::kind::REMOVE,
    request::kind::TRANSFER_LEADER,
    request::kind::ROUTES,
    request::kind::SET_ADDRESSES,
    request::kind::SAVE_SNAPSHOT,
];

/// Every kind of frame there is.
pub(super) fn every_kind() -> Vec<u16> {
    let mut kinds = vec![request::kind::HELLO, HELLO_REPLY, request::kind::EVENT, peer::kind::BEATS];
    kinds.extend(REQUEST_KINDS);
    kinds.extend(REQUEST_KINDS.map(|kind| kind | request::kind::REPLY));
    kinds.extend(PEER_KINDS);
    kinds
}

/// Any message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Message<'a> {
    Hello(Hello<'a>),
    HelloReply(HelloReply<'a>),
    Request(Request<'a>),
    /// A reply, and the kind of what was asked.
    Reply(u16, Reply<'a>),
    Event(Event<'a>),
    Peer(PeerMessage<'a>),
    Beats(Rows<'a, Beat>),
}

impl<'a> Message<'a> {
    /// Reads whatever the kind says.
    pub(super) fn decode(frame: &Frame<'a>) -> Decoded<Message<'a>> {
        Ok(match frame.head.kind {
            request::kind::HELLO => Message::Hello(Hello::decode(frame.body)?),
            HELLO_REPLY => Message::HelloReply(HelloReply::decode(frame.body)?),
            request::kind::EVENT => Message::Event(Event::decode(frame)?),
            peer::kind::BEATS => Message::Beats(peer::decode_beats(frame)?),
            kind if kind & request::kind::REPLY != 0 => {
                Message::Reply(kind & !request::kind::REPLY, Reply::decode(frame)?)
            }
            kind if REQUEST_KINDS.contains(&kind) => Message::Request(Request::decode(frame)?),
            kind if PEER_KINDS.contains(&kind) => Message::Peer(PeerMessage::decode(frame)?),
            kind => return Err(DecodeError::UnknownKind(kind)),
        })
    }

    /// The whole frame.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let head = |kind| Head { kind, cell: CELL, correlation: CORRELATION };
        match self {
            Message::Hello(hello) => {
                frame::encode(&mut out, head(request::kind::HELLO), |out| hello.put(out));
            }
            Message::HelloReply(reply) => {
                frame::encode(&mut out, head(HELLO_REPLY), |out| reply.put(out));
            }
            Message::Request(request) => request.encode(CELL, CORRELATION, &mut out),
            Message::Reply(asked, reply) => reply.encode(*asked, CELL, CORRELATION, &mut out),
            Message::Event(event) => event.encode(CELL, &mut out),
            Message::Peer(message) => message.encode(CELL, &mut out),
            Message::Beats(beats) => peer::encode_beats(&beats.iter().collect::<Vec<_>>(), &mut out),
        }
        out
    }
}

/// Reads the one frame that `bytes` are, and hands it on.
pub(super) fn with_frame<T>(bytes: &[u8], read: impl FnOnce(&Frame<'_>) -> T) -> T {
    let mut assembler = Assembler::default();
    let mut input = bytes;
    let frame = assembler.next(&mut input, usize::MAX).expect("a frame").expect("a whole one");
    assert!(input.is_empty(), "more than one frame");
    read(&frame)
}

/// A frame of this kind around any body, as its sender would have made it.
pub(super) fn frame_of(kind: u16, body: &[u8]) -> Frame<'_> {
    Frame { head: Head { kind, cell: CELL, correlation: CORRELATION }, body }
}
