//! What it costs to encode and decode the messages that a busy cell sees most: an acquire, a batch of
//! keep-alives, an append.
//!
//! Invariant: what is decoded is looked at to its last row, as the core would, and buffers are reused, as the
//! shard loop does. Deliberately absent: any judgement of the times; wall time is compared within one run.

use std::hint::black_box;

use criterion::{Bencher, BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use lockstep_wire::frame::{Assembler, Frame};
use lockstep_wire::limit::PEER_FRAME_BYTES_MAX;
use lockstep_wire::peer::{Append, EntryRow, PeerMessage};
use lockstep_wire::request::{Acquire, Mode, Mutation, Request};
use lockstep_wire::{CellId, Correlation, LogIndex, Owner, RequestId, Rows, SessionId, Term};

const CELL: CellId = CellId(1);
const SESSIONS_PER_BATCH: u64 = 100;
const ENTRIES_PER_APPEND: usize = 64;

fn acquire() -> Request<'static> {
    Request::Acquire(Acquire {
        mutation: Mutation {
            session: SessionId(42),
            request_id: RequestId(7),
            seen: Rows::Slice(&[RequestId(5), RequestId(6)]),
        },
        owner: Owner(9),
        mode: Mode::Exclusive,
        is_reentrant: false,
        permits: 0,
        wait_ms: 30_000,
        lock_delay_ms: 0,
        max_hold_ms: 0,
        names: Rows::Slice(&["/ls/demo/orders/1234567"]),
        data: b"host-1/42",
    })
}

fn request_bytes(request: &Request<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    request.encode(CELL, Correlation(1), &mut out);
    out
}

/// Times reading the one frame in `bytes` from the stream to the message, with `visit` for its rows.
fn decode(bencher: &mut Bencher<'_>, bytes: &[u8], visit: impl Fn(&Frame<'_>) -> u64) {
    let mut assembler = Assembler::default();
    bencher.iter(|| {
        let mut input = black_box(bytes);
        let frame = assembler.next(&mut input, PEER_FRAME_BYTES_MAX).expect("a frame").expect("a whole one");
        black_box(visit(&frame))
    });
}

/// Times writing a message behind the others of one turn.
fn encode(bencher: &mut Bencher<'_>, write: impl Fn(&mut Vec<u8>)) {
    let mut out = Vec::new();
    bencher.iter(|| {
        out.clear();
        write(&mut out);
        black_box(out.len())
    });
}

fn bench_acquire(group: &mut BenchmarkGroup<'_, WallTime>) {
    let request = acquire();
    let bytes = request_bytes(&request);
    group.throughput(Throughput::Elements(1));
    group.bench_function("acquire/encode", |bencher| {
        encode(bencher, |out| black_box(&request).encode(CELL, Correlation(1), out));
    });
    group.bench_function("acquire/decode", |bencher| {
        decode(bencher, &bytes, |frame| match Request::decode(frame) {
            Ok(Request::Acquire(acquire)) => acquire.names.iter().map(|name| name.len() as u64).sum(),
            other => panic!("an acquire, not {other:?}"),
        });
    });
}

fn bench_keep_alive(group: &mut BenchmarkGroup<'_, WallTime>) {
    let sessions: Vec<SessionId> = (1..=SESSIONS_PER_BATCH).map(SessionId).collect();
    let request = Request::KeepAlive(Rows::Slice(&sessions));
    let bytes = request_bytes(&request);
    group.throughput(Throughput::Elements(SESSIONS_PER_BATCH));
    group.bench_function("keep-alive-of-100/encode", |bencher| {
        encode(bencher, |out| black_box(&request).encode(CELL, Correlation(1), out));
    });
    group.bench_function("keep-alive-of-100/decode", |bencher| {
        decode(bencher, &bytes, |frame| match Request::decode(frame) {
            Ok(Request::KeepAlive(sessions)) => sessions.iter().map(|session| session.0).sum(),
            other => panic!("a keep-alive, not {other:?}"),
        });
    });
}

fn bench_append(group: &mut BenchmarkGroup<'_, WallTime>) {
    // An entry carries an acquire in the layout of its request.
    let payload = request_bytes(&acquire());
    let entries = vec![EntryRow { term: Term(4), payload: &payload }; ENTRIES_PER_APPEND];
    let message = PeerMessage::Append(Append {
        term: Term(4),
        prev_index: LogIndex(1_000),
        prev_term: Term(4),
        committed: LogIndex(990),
        entries: Rows::Slice(&entries),
    });
    let mut bytes = Vec::new();
    message.encode(CELL, &mut bytes);
    group.throughput(Throughput::Elements(ENTRIES_PER_APPEND as u64));
    group.bench_function("append-of-64/encode", |bencher| {
        encode(bencher, |out| black_box(&message).encode(CELL, out));
    });
    group.bench_function("append-of-64/decode", |bencher| {
        decode(bencher, &bytes, |frame| match PeerMessage::decode(frame) {
            Ok(PeerMessage::Append(append)) => {
                append.entries.iter().map(|entry| entry.term.0 + entry.payload.len() as u64).sum()
            }
            other => panic!("an append, not {other:?}"),
        });
    });
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("codec");
    bench_acquire(&mut group);
    bench_keep_alive(&mut group);
    bench_append(&mut group);
    group.finish();
    criterion.final_summary();
}
