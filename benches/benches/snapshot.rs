//! What a snapshot of a large table costs: a slice of it, what entries pay while it is under way, and loading it.
//!
//! Invariant: a million locks and two hundred thousand sessions, as the slices' bound is stated for. Deliberately absent:
//! files and their checksums.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use lockstep_benches::table::{Bench, Client, Hold, filling};
use lockstep_core::SNAPSHOT_SLICE_BYTES;
use lockstep_core::table::{Answer, Table, TableLoader};
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;

const SESSIONS: u64 = 200_000;
const LOCKS_EACH: u64 = 5;

/// The next client releases a lock that it has held since the table was filled, and takes it again: two entries, which
/// change a session and a lock that no entry before changed.
fn retake(bench: &mut Bench, clients: &mut [(Client, Vec<Hold>)], turn: &mut usize) {
    let (round, client_at) = (*turn / clients.len(), *turn % clients.len());
    let (client, holds) = &mut clients[client_at];
    let number = round % holds.len();
    let name = filling(client.session, number as u64);
    bench.retake(client, black_box(&name), &mut holds[number]);
    *turn += 1;
}

/// The whole snapshot, and how long its slowest slice took.
fn write_all(table: &mut Table) -> (Vec<u8>, Duration) {
    let (mut bytes, mut slice, mut slowest) = (Vec::new(), Vec::new(), Duration::ZERO);
    table.begin_snapshot();
    loop {
        let begun = Instant::now();
        slice.clear();
        let is_end = table.write_snapshot(&mut slice, SNAPSHOT_SLICE_BYTES);
        slowest = slowest.max(begun.elapsed());
        bytes.extend_from_slice(&slice);
        if is_end {
            return (bytes, slowest);
        }
    }
}

fn abandon(table: &mut Table) {
    table.abandon_snapshot();
    while table.free_some() {}
}

fn bench_snapshot(criterion: &mut Criterion) {
    let (mut bench, mut clients) = Bench::filled(SESSIONS, LOCKS_EACH);
    let (bytes, slowest) = write_all(&mut bench.table);
    println!("the snapshot has {} bytes; its slowest slice took {slowest:?}", bytes.len());
    let mut group = criterion.benchmark_group("snapshot");

    let mut slice = Vec::new();
    group.throughput(Throughput::Bytes(SNAPSHOT_SLICE_BYTES as u64));
    group.bench_function("slice", |bencher| {
        bencher.iter(|| {
            if !bench.table.is_snapshot_under_way() {
                bench.table.begin_snapshot();
            }
            slice.clear();
            black_box(bench.table.write_snapshot(&mut slice, SNAPSHOT_SLICE_BYTES))
        });
    });
    abandon(&mut bench.table);

    let mut turn = 0;
    retake(&mut bench, &mut clients, &mut turn);
    assert!(matches!(bench.answers()[..], [Answer::Granted(_)]), "the lock was released and taken again");
    group.throughput(Throughput::Elements(2));
    group.bench_function("entries-without", |bencher| {
        bencher.iter(|| retake(&mut bench, &mut clients, &mut turn));
    });
    let mut begun_at = turn;
    group.bench_function("entries-meanwhile", |bencher| {
        bencher.iter(|| {
            // Every session once, so that each pair of entries copies a session and a lock.
            if !bench.table.is_snapshot_under_way() || turn - begun_at == clients.len() {
                abandon(&mut bench.table);
                bench.table.begin_snapshot();
                begun_at = turn;
            }
            retake(&mut bench, &mut clients, &mut turn);
        });
    });
    abandon(&mut bench.table);

    group.sample_size(10);
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("load", |bencher| {
        bencher.iter_with_large_drop(|| {
            let mut loader = TableLoader::new(*bench.table.limits());
            for piece in bytes.chunks(SNAPSHOT_PIECE_BYTES_MAX) {
                loader.push(piece).expect("a snapshot loads");
            }
            loader.finish().expect("a snapshot loads")
        });
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    bench_snapshot(&mut criterion);
    criterion.final_summary();
}
