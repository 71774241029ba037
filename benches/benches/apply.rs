//! What one log entry costs the lock table, in a cell that already holds a hundred thousand locks.
//!
//! Invariant: every entry measured does what it says (a grant, a hand-over); the outcomes are checked once before
//! the clock runs. Deliberately absent: decoding, which `codec` measures, and the log.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use lockstep_benches::table::{Bench, Client, Hold};
use lockstep_core::table::Answer;
use lockstep_wire::FencingToken;

const SESSIONS: u64 = 1_000;
const LOCKS_PER_SESSION: u64 = 100;

/// A lock is made, granted, released and forgotten: two entries.
fn pair(bench: &mut Bench, client: &mut Client, name: &str) {
    let hold = bench.acquire(client, name);
    bench.release(client, name, hold);
}

/// One client lines up behind the other, which then releases: two entries, the second of them a hand-over.
fn hand_over(
    bench: &mut Bench,
    (holder, hold): (&mut Client, Hold),
    waiter: &mut Client,
    name: &str,
) -> Hold {
    let Hold { acquire_id, .. } = bench.acquire(waiter, name);
    bench.release(holder, name, hold);
    Hold { acquire_id, token: FencingToken(bench.index.0) }
}

fn bench_apply(criterion: &mut Criterion) {
    let (mut bench, clients) = Bench::filled(SESSIONS, LOCKS_PER_SESSION);
    let mut clients: Vec<Client> = clients.into_iter().map(|(client, _)| client).collect();
    let names: Vec<String> = (0..4_096).map(|number| format!("/ls/demo/orders/{number}")).collect();
    let mut group = criterion.benchmark_group("apply");
    group.throughput(Throughput::Elements(2));

    pair(&mut bench, &mut clients[0], &names[0]);
    assert_eq!(bench.answers(), [Answer::Done], "the pair was granted and released");
    let mut turn = 0;
    group.bench_function("acquire-and-release", |bencher| {
        bencher.iter(|| {
            turn += 1;
            let client = turn % clients.len();
            pair(&mut bench, &mut clients[client], black_box(&names[turn % names.len()]));
        });
    });

    let [one, other, ..] = &mut clients[..] else { unreachable!("there are more than two clients") };
    let name = "/ls/demo/contended";
    let mut hold = bench.acquire(one, name);
    hold = hand_over(&mut bench, (one, hold), other, name);
    assert!(
        matches!(bench.answers()[..], [Answer::Done, Answer::Granted(grant)] if grant.token == hold.token)
    );
    let (mut holder, mut waiter) = (other, one);
    group.bench_function("line-up-and-hand-over", |bencher| {
        bencher.iter(|| {
            hold = hand_over(&mut bench, (holder, hold), waiter, black_box(name));
            std::mem::swap(&mut holder, &mut waiter);
        });
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    bench_apply(&mut criterion);
    criterion.final_summary();
}
