//! Proof that decoding allocates nothing, whatever comes, and that the assembler keeps no more than came.
//!
//! Invariant: measured by an allocator that counts, per thread, in a binary of its own. The frames are those of
//! `golden.txt`, whole, damaged, and claiming to be more than they are.

use std::fmt::{self, Write as _};

use allocation_counter::measure;
use lockstep_wire::entry::Command;
use lockstep_wire::frame::{self, Assembler, Frame, HEAD_BYTES, Head};
use lockstep_wire::hello::{Hello, HelloReply};
use lockstep_wire::limit::PEER_FRAME_BYTES_MAX;
use lockstep_wire::peer::{self, Manifest, PeerMessage};
use lockstep_wire::reply::{Event, Reply};
use lockstep_wire::request::Request;
use lockstep_wire::{CellId, Correlation, Decoded};
use proptest::prelude::*;

/// The frames of `golden.txt`.
fn golden() -> Vec<Vec<u8>> {
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).expect("hex is ASCII");
        u8::from_str_radix(digits, 16).expect("two hex digits")
    };
    include_str!("../golden.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let hex: String = line.split_whitespace().skip(1).collect();
            hex.as_bytes().chunks(2).map(byte).collect()
        })
        .collect()
}

/// Somewhere to write that keeps nothing.
struct Sink {
    bytes: usize,
}

impl fmt::Write for Sink {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes += text.len();
        Ok(())
    }
}

/// Reads the frame as everything that a frame can be, and every value to its last row.
fn read_as_everything(frame: &Frame<'_>, sink: &mut Sink) {
    fn visit<T: fmt::Debug>(sink: &mut Sink, decoded: Decoded<T>) {
        match decoded {
            Ok(value) => write!(sink, "{value:?}"),
            Err(error) => write!(sink, "{error}"),
        }
        .expect("a sink takes everything");
    }
    visit(sink, Hello::decode(frame.body));
    visit(sink, HelloReply::decode(frame.body));
    visit(sink, Manifest::decode(frame.body));
    visit(sink, Command::decode(frame.body));
    visit(sink, Request::decode(frame));
    visit(sink, Reply::decode(frame));
    visit(sink, Event::decode(frame));
    visit(sink, PeerMessage::decode(frame));
    visit(sink, peer::decode_beats(frame));
}

/// Takes a stream apart and gives how many frames there were.
fn read_stream(stream: &[u8], sink: &mut Sink) -> usize {
    let (mut assembler, mut input, mut frames) = (Assembler::default(), stream, 0);
    while let Ok(Some(frame)) = assembler.next(&mut input, PEER_FRAME_BYTES_MAX) {
        read_as_everything(&frame, sink);
        frames += 1;
    }
    frames
}

#[test]
fn decoding_whole_frames_allocates_nothing() {
    let frames = golden();
    let stream = frames.concat();
    let (mut sink, mut count) = (Sink { bytes: 0 }, 0);
    let info = measure(|| count = read_stream(&stream, &mut sink));
    assert_eq!(count, frames.len());
    assert!(sink.bytes > stream.len(), "everything was looked at");
    assert_eq!(info.count_total, 0, "{info:?}");
}

#[test]
fn a_count_or_a_length_that_lies_makes_nobody_allocate() {
    let mut sink = Sink { bytes: 0 };
    for frame in golden() {
        let head = Head {
            kind: u16::from_le_bytes([frame[8], frame[9]]),
            cell: CellId(0),
            correlation: Correlation(0),
        };
        let mut body = frame[HEAD_BYTES..].to_vec();
        for at in 0..body.len().saturating_sub(1) {
            let kept = [body[at], body[at + 1]];
            body[at..at + 2].fill(0xff);
            let info = measure(|| read_as_everything(&Frame { head, body: &body }, &mut sink));
            assert_eq!(info.count_total, 0, "kind {:#06x}, byte {at}: {info:?}", head.kind);
            body[at..at + 2].copy_from_slice(&kept);
        }
    }
}

#[test]
fn the_assembler_keeps_no_more_than_came_however_long_a_frame_claims_to_be() {
    // A Vec that grows holds at most twice what is in it, and its old room while it moves.
    const FACTOR: u64 = 3;
    let claim = u32::try_from(PEER_FRAME_BYTES_MAX).unwrap().to_le_bytes();
    let piece = [0x5a; 100];
    let mut assembler = Assembler::default();
    let mut came = 0;
    let info = measure(|| {
        for piece in std::iter::once(&claim[..]).chain(std::iter::repeat_n(&piece[..], 40)) {
            let mut input = piece;
            assert_eq!(assembler.next(&mut input, PEER_FRAME_BYTES_MAX), Ok(None));
            came += piece.len() as u64;
        }
    });
    assert!(assembler.is_inside_a_frame());
    assert!(info.bytes_max >= came, "the counter counts");
    assert!(info.bytes_max <= FACTOR * came, "{info:?} for {came} bytes");
}

#[test]
fn a_length_over_the_limit_stores_nothing() {
    let mut assembler = Assembler::default();
    let info = measure(|| {
        let mut input = &[0xff; 1000][..];
        assert!(assembler.next(&mut input, PEER_FRAME_BYTES_MAX).is_err());
    });
    assert_eq!(info.count_total, 0, "{info:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn decoding_any_bytes_allocates_nothing(
        kind in prop_oneof![0x0101u16..0x0181, 0x8101u16..0x8160, 0x0201u16..0x0242, any::<u16>()],
        body in prop::collection::vec(prop_oneof![3 => 0u8..4, 1 => any::<u8>()], 0..300),
    ) {
        let mut stream = Vec::new();
        let head = Head { kind, cell: CellId(1), correlation: Correlation(1) };
        frame::encode(&mut stream, head, |out| out.extend_from_slice(&body));
        let (mut sink, mut count) = (Sink { bytes: 0 }, 0);
        let info = measure(|| count = read_stream(&stream, &mut sink));
        prop_assert_eq!(count, 1);
        prop_assert_eq!(info.count_total, 0, "{:?}", info);
    }
    #[test]
    fn decoding_any_log_entry_allocates_nothing(
        kind in 0u16..0x30,
        fields in prop::collection::vec(prop_oneof![3 => 0u8..4, 1 => any::<u8>()], 0..300),
    ) {
        let mut payload = vec![1, 0];
        payload.extend(kind.to_le_bytes());
        payload.extend(fields);
        let mut sink = Sink { bytes: 0 };
        let info = measure(|| match Command::decode(&payload) {
            Ok(command) => write!(sink, "{command:?}").expect("a sink takes everything"),
            Err(error) => write!(sink, "{error}").expect("a sink takes everything"),
        });
        prop_assert!(sink.bytes > 0);
        prop_assert_eq!(info.count_total, 0, "{:?}", info);
    }
}
