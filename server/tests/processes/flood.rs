//! More of the largest requests than a follower that hardly runs can take: beats between members and those of sessions do
//! not stand behind them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockstep_client::Client;
use lockstep_wire::limit::{DATA_BYTES_MAX, NAME_BYTES_MAX};
use lockstep_wire::reply::Reply;
use lockstep_wire::request::{Acquire, Mode, Mutation, Request};
use lockstep_wire::{CellId, Nonce, Owner, RequestId, Rows, SessionId, Status};
use rustix::process::Signal;

use crate::PATIENCE;
use crate::cluster::Cluster;
use crate::connection::{Connection, leader};
use crate::load::client_config;

const CELL: CellId = CellId(0);
const FLOODERS: u8 = 4;
/// Sessions of a flooder at most, and acquires that each of them sends at once.
const SESSIONS_MAX: u8 = 250;
const AT_ONCE: u64 = 60;
/// How long it goes on unless everything was sent before.
const FLOOD_MAX: Duration = Duration::from_secs(3);
/// Long enough that nobody campaigns only because the machine is busy, and about as long as the flood.
const TIMING: &str = "timing.election_ms_min = 1500\ntiming.election_ms_max = 2000\n";
/// What a node may need for all of that, its log's cache included.
const GROWTH_KIB_MAX: u64 = 512 * 1024;

/// Sends the largest acquires there are as fast as they are taken; gives how many were granted and how many refused.
fn flood(endpoint: SocketAddr, number: u8) -> (u64, u64) {
    let mut connection = Connection::open(endpoint, CELL).expect("a client is welcome");
    connection.stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let (mut granted, mut refused, began) = (0, 0, Instant::now());
    for turn in (0..SESSIONS_MAX).take_while(|_| began.elapsed() < FLOOD_MAX) {
        let nonce = Nonce([number, turn, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        let open = Request::OpenSession { client_id: "flood", ttl_ms: 60_000, nonce };
        let opened = connection.call(&open).expect("the leader answers");
        let Reply::Opened { session, .. } = opened.reply() else { panic!("{:?}", opened.reply()) };
        for id in 1..=AT_ONCE {
            send_largest(&mut connection, session, id);
        }
        for _ in 0..AT_ONCE {
            match connection.receive().expect("the leader answers").reply().status() {
                Status::Ok => granted += 1,
                Status::Overloaded => refused += 1,
                other => panic!("an acquire was answered {}", other.name()),
            }
        }
    }
    (granted, refused)
}

fn send_largest(connection: &mut Connection, session: SessionId, id: u64) {
    let start = format!("/ls/flood/{session}/{id}/");
    let name = format!("{start}{}", "x".repeat(NAME_BYTES_MAX - start.len()));
    let names = [name.as_str()];
    let request = Request::Acquire(Acquire {
        mutation: Mutation { session, request_id: RequestId(id), seen: Rows::Slice(&[]) },
        owner: Owner(id),
        mode: Mode::Exclusive,
        is_reentrant: false,
        permits: 0,
        wait_ms: 0,
        lock_delay_ms: 0,
        max_hold_ms: 0,
        names: Rows::Slice(&names),
        data: &[7; DATA_BYTES_MAX],
    });
    connection.send(&request).expect("the kernel takes it");
}

#[test]
fn a_flood_of_the_largest_requests_costs_neither_the_leader_nor_a_session() {
    let mut cluster = Cluster::format(3, 1, TIMING);
    cluster.start_all();
    drop(leader(&cluster.endpoints(), CELL, PATIENCE));
    let leading = cluster.leader(CELL);
    let (endpoints, before) = (cluster.endpoints(), cluster.known(leading, CELL).expect("it answers"));
    let memory_before = cluster.process(leading).memory_kib();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let client = runtime.block_on(Client::connect(client_config(&endpoints))).expect("a client");
    let guard = runtime.block_on(async {
        let session = client.open_session("/ls/quiet/job", Duration::from_secs(2)).await.expect("a session");
        session.acquire("/ls/quiet/job").await.expect("the lock")
    });
    let began = Instant::now();
    let is_over = AtomicBool::new(false);
    let slow = (leading + 1) % 3;
    let told: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let flooders: Vec<_> = (0..FLOODERS)
            .map(|number| {
                let endpoint = endpoints[leading];
                scope.spawn(move || flood(endpoint, number))
            })
            .collect();
        let process = cluster.process(slow);
        let is_over = &is_over;
        scope.spawn(move || {
            // It has a fifth of the time, and so does whatever is sent to it.
            while !is_over.load(Ordering::Relaxed) {
                process.signal(Signal::STOP);
                std::thread::sleep(Duration::from_millis(80));
                process.signal(Signal::CONT);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let told = flooders.into_iter().map(|flooder| flooder.join()).collect::<Vec<_>>();
        is_over.store(true, Ordering::Relaxed);
        told.into_iter().map(|told| told.expect("a flooder does not panic")).collect()
    });
    let (granted, refused) = told.iter().fold((0, 0), |sum, told| (sum.0 + told.0, sum.1 + told.1));
    let grown = cluster.process(leading).memory_kib().saturating_sub(memory_before);
    println!(
        "{granted} granted, {refused} refused in {:.1?}; the leader has {grown} KiB more",
        began.elapsed()
    );
    assert!(granted > u64::from(FLOODERS) * AT_ONCE, "{granted} granted");
    assert!(grown < GROWTH_KIB_MAX, "{grown} KiB");
    let after = cluster.known(leading, CELL).expect("it answers");
    assert_eq!((after.role.as_str(), after.term), ("leader", before.term));
    assert!(guard.is_held(), "a session that beat is held through the flood");
    runtime.block_on(guard.release()).expect("it is given back");
    let asked = Instant::now();
    drop(runtime.block_on(client.acquire("/ls/quiet/job").into_future()).expect("the lock"));
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?} after the flood", asked.elapsed());
    cluster.agree(CELL);
}
