//! What users of other lock services have met: futures that are dropped at a bad moment, and requests at the limits.

use std::time::{Duration, Instant};

use lockstep_client::Client;
use lockstep_wire::limit::{CLIENT_ID_BYTES_MAX, DATA_BYTES_MAX, NAME_BYTES_MAX};
use lockstep_wire::reply::Reply;
use lockstep_wire::request::{Acquire, Mode, Mutation, Request};
use lockstep_wire::{CellId, FencingToken, Nonce, Owner, RequestId, Retry, Rows, SessionId};

use crate::cluster::Cluster;
use crate::connection::{Connection, leader};
use crate::load::client_config;
use crate::restart::start_dev;
use crate::{PATIENCE, directory};

const CELL: CellId = CellId(0);

/// Whatever the dropped acquire was doing, it is withdrawn, and given back if it had been granted.
#[test]
fn an_acquire_dropped_at_any_moment_leaves_nobody_in_the_way() {
    const NAME: &str = "/ls/drop/job";
    const STEPS: u32 = 80;
    let directory = directory();
    let (_cluster, endpoints) = start_dev(&directory.path().join("cluster"), &["--replicas", "3"]);
    drop(leader(&endpoints, CELL, PATIENCE));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (one, two) =
            (Client::connect(client_config(&endpoints)), Client::connect(client_config(&endpoints)));
        let (one, two) = (one.await.expect("a client"), two.await.expect("a client"));
        let ttl = Duration::from_secs(30);
        let dropping = one.open_session(NAME, ttl).await.expect("a session");
        let next = two.open_session(NAME, ttl).await.expect("a session");
        let (mut dropped, mut longest) = (0, Duration::ZERO);
        for step in 0..STEPS {
            // Some of them stand in line when they are dropped.
            let held = if step % 4 == 3 { Some(next.acquire(NAME).await.expect("the lock")) } else { None };
            let patience = Duration::from_micros(u64::from(step) * 30);
            let outcome = tokio::time::timeout(patience, dropping.acquire(NAME).into_future()).await;
            dropped += u32::from(outcome.is_err());
            drop((outcome, held));
            let asked = Instant::now();
            let granted = next.acquire(NAME).wait(Duration::from_secs(10)).await.expect("it is granted");
            longest = longest.max(asked.elapsed());
            granted.release().await.expect("it is given back");
        }
        println!("{dropped} of {STEPS} dropped, the next one waited {longest:.1?} at most");
        assert!(
            (STEPS / 4..=STEPS).contains(&dropped),
            "{dropped} of {STEPS} were dropped before their grant"
        );
        assert!(longest < Duration::from_secs(2), "a dropped acquire was in the way for {longest:?}");
        let (left, lock) = (dropping.view().await.expect("a view"), two.get(NAME).await.expect("a look"));
        assert_eq!((left.claims.len(), lock.holders_total, lock.waiters_total), (0, 0, 0));
    });
}

/// A hold at the limits: where, and what its owner shows.
struct Bulky {
    name: String,
    data: Vec<u8>,
    token: FencingToken,
}

fn acquire<'a>(session: SessionId, id: u64, names: &'a [&'a str], data: &'a [u8]) -> Request<'a> {
    Request::Acquire(Acquire {
        mutation: Mutation { session, request_id: RequestId(id), seen: Rows::Slice(&[]) },
        owner: Owner(id),
        mode: Mode::Exclusive,
        is_reentrant: false,
        permits: 0,
        wait_ms: 0,
        lock_delay_ms: 0,
        max_hold_ms: 0,
        names: Rows::Slice(names),
        data,
    })
}

/// A name of so many bytes that nobody else has.
fn name(session: u8, number: u64, bytes: usize) -> String {
    let mut name = format!("/ls/bulky/{session}/{number}/");
    name.extend(std::iter::repeat_n('x', bytes - name.len()));
    name
}

/// Opens a session under the longest client id, and takes locks with names and data around the limits.
fn take_bulky(connection: &mut Connection, number: u8) -> Vec<Bulky> {
    let id = "i".repeat(CLIENT_ID_BYTES_MAX);
    let open = Request::OpenSession { client_id: &id, ttl_ms: 60_000, nonce: Nonce([number; 16]) };
    let opened = connection.call(&open).expect("the leader answers");
    let Reply::Opened { session, .. } = opened.reply() else { panic!("{:?}", opened.reply()) };
    let take = |id: u64| {
        let less = usize::from(id.is_multiple_of(2));
        let (name, data) = (name(number, id, NAME_BYTES_MAX - less), vec![number; DATA_BYTES_MAX - less]);
        let names = [name.as_str()];
        let granted = connection.call(&acquire(session, id, &names, &data)).expect("the leader answers");
        let Reply::Granted(grant) = granted.reply() else { panic!("{:?}", granted.reply()) };
        Bulky { token: grant.token, name, data }
    };
    let taken = (1..=60).map(take).collect();
    let (long_name, long_data) = (name(number, 61, NAME_BYTES_MAX + 1), vec![0; DATA_BYTES_MAX + 1]);
    let (over, within) = ([long_name.as_str()], ["/ls/bulky/within"]);
    for request in [acquire(session, 61, &over, b""), acquire(session, 61, &within, &long_data)] {
        let answer = connection.call(&request).expect("it is answered");
        let Reply::Refused(refusal) = answer.reply() else { panic!("{:?}", answer.reply()) };
        assert_eq!(refusal.status.retry(), Retry::Never, "{}", refusal.status.name());
    }
    taken
}

/// More than a segment of the largest entries; what a node takes it can read back.
#[test]
fn what_is_accepted_at_the_limits_replays_everywhere_and_what_is_over_them_is_refused() {
    const SESSIONS: u8 = 12;
    let mut cluster = Cluster::start(3);
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    let taken: Vec<Bulky> = (1..=SESSIONS).flat_map(|number| take_bulky(&mut connection, number)).collect();
    let bytes: usize = taken.iter().map(|held| held.name.len() + held.data.len()).sum();
    assert!(bytes > 1024 * 1024, "{bytes} bytes are less than a segment");
    let long = "i".repeat(CLIENT_ID_BYTES_MAX + 1);
    let open = Request::OpenSession { client_id: &long, ttl_ms: 60_000, nonce: Nonce([99; 16]) };
    let answer = connection.call(&open).expect("it is answered");
    assert!(matches!(answer.reply(), Reply::Refused(_)), "{:?}", answer.reply());
    for at in 0..3 {
        drop(cluster.kill(at));
    }
    cluster.start_all();
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    for held in &taken {
        let looked = connection.call(&Request::GetLock { name: &held.name }).expect("the leader answers");
        let Reply::Lock(lock) = looked.reply() else { panic!("{:?}", looked.reply()) };
        let holders: Vec<_> =
            lock.holders.iter().map(|holder| (holder.token, holder.data.to_vec())).collect();
        assert_eq!(holders, [(held.token, held.data.clone())], "{}", held.name);
    }
    cluster.agree(CELL);
}
