//! What one log entry costs the lock table, in a cell that already holds a hundred thousand locks.
//!
//! Invariant: every entry measured does what it says (a grant, a hand-over); the outcomes are checked once before
//! the clock runs. Deliberately absent: decoding, which `codec` measures, and the log.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use lockstep_core::table::{Answer, Limits, Outcome, Outcomes, Table};
use lockstep_wire::entry::Command;
use lockstep_wire::request::{Acquire, Mode, Mutation};
use lockstep_wire::{Epoch, FencingToken, LogIndex, Nonce, Owner, RequestId, Rows, SessionId};

const SESSIONS: u64 = 1_000;
const LOCKS_PER_SESSION: u64 = 100;

/// A client as the table sees it.
struct Client {
    session: SessionId,
    last: RequestId,
}

/// A hold, as whoever releases it must name it.
#[derive(Clone, Copy)]
struct Hold {
    acquire_id: RequestId,
    token: FencingToken,
}

/// A table and the log's index that it has reached.
struct Bench {
    table: Table,
    index: LogIndex,
    outcomes: Outcomes,
}

impl Bench {
    /// A table with many locks held, and the clients that hold them.
    fn filled() -> (Bench, Vec<Client>) {
        let table = Table::new(Epoch(0), Limits::default());
        let mut bench = Bench { table, index: LogIndex(0), outcomes: Outcomes::new() };
        let mut clients: Vec<Client> = (0..SESSIONS).map(|number| bench.open(number)).collect();
        for client in &mut clients {
            for number in 0..LOCKS_PER_SESSION {
                let name = format!("/ls/filling/{}/{number}", client.session);
                bench.acquire(client, &name);
            }
        }
        assert_eq!(bench.table.locks_len() as u64, SESSIONS * LOCKS_PER_SESSION);
        (bench, clients)
    }

    fn apply(&mut self, command: &Command<'_>) {
        self.index = self.index.next();
        self.outcomes.clear();
        self.table.apply(self.index, command, &mut self.outcomes);
    }

    fn open(&mut self, number: u64) -> Client {
        let mut nonce = Nonce::default();
        nonce.0[..8].copy_from_slice(&number.to_le_bytes());
        self.apply(&Command::OpenSession { client_id: "bench", ttl_ms: 10_000, nonce });
        Client { session: SessionId(self.index.0), last: RequestId(0) }
    }

    /// Acquires, or lines up. The hold has this token if it is granted by this entry.
    fn acquire(&mut self, client: &mut Client, name: &str) -> Hold {
        let seen = [client.last];
        client.last.0 += 1;
        self.apply(&Command::Acquire(Acquire {
            mutation: Mutation { session: client.session, request_id: client.last, seen: Rows::Slice(&seen) },
            owner: Owner(client.last.0),
            mode: Mode::Exclusive,
            is_reentrant: false,
            permits: 0,
            wait_ms: 30_000,
            lock_delay_ms: 0,
            max_hold_ms: 0,
            names: Rows::Slice(&[name]),
            data: b"",
        }));
        Hold { acquire_id: client.last, token: FencingToken(self.index.0) }
    }

    fn release(&mut self, client: &mut Client, name: &str, hold: Hold) {
        let seen = [client.last];
        client.last.0 += 1;
        self.apply(&Command::Release {
            mutation: Mutation { session: client.session, request_id: client.last, seen: Rows::Slice(&seen) },
            acquire_id: hold.acquire_id,
            name,
            token: hold.token,
        });
    }

    fn answers(&self) -> Vec<Answer> {
        let answer = |outcome: &Outcome| match outcome {
            Outcome::Reply { answer, .. } => Some(*answer),
            _ => None,
        };
        self.outcomes.iter().filter_map(answer).collect()
    }
}

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
    let (mut bench, mut clients) = Bench::filled();
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
