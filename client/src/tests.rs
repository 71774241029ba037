//! The front end against a cell in memory behind a real socket.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::reply::EndReason;
use lockstep_wire::request::kind;
use lockstep_wire::{CellId, NodeId, Status, Term};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::core::{Condition, Loss};
use crate::fake::{CELL, FakeCell, Port, SNAPSHOT};
use crate::{Client, Config, Error, SnapshotSave};

const NAME: &str = "/ls/demo/job";

#[derive(Default)]
struct Shared {
    cell: FakeCell,
    ports: BTreeMap<Port, mpsc::UnboundedSender<Vec<u8>>>,
    last: Port,
}

impl Shared {
    fn flush(&mut self) {
        for (port, bytes) in std::mem::take(&mut self.cell.sent) {
            if let Some(out) = self.ports.get(&port) {
                let _ = out.send(bytes);
            }
        }
    }
}

/// A member that listens.
#[derive(Clone)]
struct Server {
    shared: Arc<Mutex<Shared>>,
    address: String,
}

impl Server {
    async fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Server { shared: Arc::default(), address };
        let shared = Arc::clone(&server.shared);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                let (out, mut frames) = mpsc::unbounded_channel::<Vec<u8>>();
                let port = {
                    let mut shared = shared.lock().unwrap();
                    shared.last += 1;
                    let port = shared.last;
                    shared.ports.insert(port, out);
                    port
                };
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    loop {
                        tokio::select! {
                            read = stream.read(&mut buffer) => match read {
                                Ok(count) if count > 0 => {
                                    let mut shared = shared.lock().unwrap();
                                    shared.cell.receive(port, &buffer[..count]);
                                    shared.flush();
                                }
                                _ => break,
                            },
                            frame = frames.recv() => match frame {
                                Some(bytes) if stream.write_all(&bytes).await.is_ok() => {}
                                _ => break,
                            },
                        }
                    }
                    let mut shared = shared.lock().unwrap();
                    shared.ports.remove(&port);
                    shared.cell.disconnect(port);
                });
            }
        });
        server
    }

    fn with<T>(&self, change: impl FnOnce(&mut FakeCell) -> T) -> T {
        let mut shared = self.shared.lock().unwrap();
        let value = change(&mut shared.cell);
        shared.flush();
        value
    }

    /// Cuts every connection.
    fn cut(&self) {
        self.shared.lock().unwrap().ports.clear();
    }

    async fn client(&self) -> Client {
        let mut config = Config::new([self.address.clone()]);
        config.cell = CELL;
        config.call_timeout = Duration::from_secs(3);
        Client::connect(config).await.unwrap()
    }

    /// Waits until something is so at the cell.
    async fn until(&self, what: &str, mut is_so: impl FnMut(&FakeCell) -> bool) {
        let start = Instant::now();
        while !self.with(|cell| is_so(cell)) {
            assert!(start.elapsed() < Duration::from_secs(5), "it never came to this: {what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test]
async fn a_guard_holds_until_it_is_released() {
    let server = Server::start().await;
    let client = server.client().await;
    let guard = client.acquire(NAME).await.unwrap();
    assert!(guard.is_held());
    assert_eq!(guard.token(), server.with(|cell| cell.holder(NAME).map(|claim| claim.token)));
    assert_eq!(guard.fence(), guard.token());
    assert!(guard.safe_for() > Duration::from_secs(8));
    assert!(client.check(NAME, guard.token().unwrap()).await.unwrap().is_current);
    assert_eq!(client.get(NAME).await.unwrap().holders.len(), 1);
    assert_eq!(guard.session().view().await.unwrap().claims.len(), 1);
    guard.release().await.unwrap();
    assert_eq!(server.with(|cell| cell.holder(NAME).cloned()), None);
}

#[tokio::test]
async fn a_guard_that_is_dropped_releases_in_the_background() {
    let server = Server::start().await;
    let client = server.client().await;
    drop(client.acquire(NAME).await.unwrap());
    server.until("the lock is free", |cell| cell.holder(NAME).is_none()).await;
    client.acquire(NAME).try_once().await.unwrap();
}

#[tokio::test]
async fn an_acquire_whose_future_is_dropped_leaves_nothing_behind() {
    let server = Server::start().await;
    let client = server.client().await;
    let intruder = server.with(|cell| cell.intrude(NAME));
    let waiting = client.acquire(NAME);
    let waited = tokio::time::timeout(Duration::from_millis(200), waiting).await;
    assert!(waited.is_err(), "it stands in line");
    server.until("only the intruder is there", |cell| cell.locks[NAME].len() == 1).await;
    server.with(|cell| cell.leave(intruder));
    // Dropped at once, at many moments: whatever was granted meanwhile is given back.
    for us in 0..100 {
        let _ = tokio::time::timeout(Duration::from_micros(us * 10), client.acquire(NAME)).await;
    }
    server.until("the lock is free", |cell| cell.holder(NAME).is_none()).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(server.with(|cell| cell.locks.is_empty()));
}

#[tokio::test]
async fn a_try_on_a_held_lock_says_so_in_words() {
    let server = Server::start().await;
    let client = server.client().await;
    let _guard = client.acquire(NAME).await.unwrap();
    let error = client.acquire(NAME).try_once().await.unwrap_err();
    expect_test::expect![
        "/ls/demo/job is held or waited for by somebody else; it was tried once, nothing was acquired"
    ]
    .assert_eq(&error.to_string());
    let error = client.acquire("job").await.unwrap_err();
    expect_test::expect![[r#""job": a lock's name begins with /ls/, as in /ls/demo/job; nothing was sent"#]]
        .assert_eq(&error.to_string());
}

#[tokio::test]
async fn a_guard_lives_through_a_lost_connection() {
    let server = Server::start().await;
    let client = server.client().await;
    let guard = client.acquire(NAME).await.unwrap();
    server.cut();
    server.until("the session is attached again", |cell| cell.heard.contains(&"GetSession".to_owned())).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_end_of_a_session_is_told_to_its_guards() {
    let server = Server::start().await;
    let client = server.client().await;
    let session = client.open_session(NAME, Duration::from_secs(5)).await.unwrap();
    let guard = session.acquire(NAME).await.unwrap();
    server.with(|cell| cell.end_session(session.id(), EndReason::Expired, true));
    let reason = tokio::time::timeout(Duration::from_secs(2), guard.lost()).await.unwrap();
    assert_eq!(reason, Loss::Ended(EndReason::Expired));
    assert!(!guard.is_held());
    assert_eq!(guard.token(), None);
    assert!(matches!(guard.release().await, Err(Error::SessionEnded { .. })));
    assert!(matches!(session.acquire(NAME).await, Err(Error::SessionEnded { .. })));
    // The client's shared session is another one.
    client.acquire(NAME).await.unwrap();
}

#[tokio::test]
async fn loss_is_signalled_by_the_deadline_when_the_cell_is_silent() {
    let server = Server::start().await;
    let client = server.client().await;
    let session = client.open_session(NAME, Duration::from_secs(1)).await.unwrap();
    let guard = session.acquire(NAME).await.unwrap();
    server.with(|cell| cell.ignores_beats = true);
    server.cut();
    server.with(|cell| cell.leader_is = Some(String::new()));
    let deadline = guard.safe_until();
    tokio::time::timeout(Duration::from_secs(3), guard.at_risk()).await.unwrap();
    assert!(crate::clock::now() >= deadline);
    assert!(!guard.is_held());
    assert_eq!(session.condition(), Condition::Jeopardy);
    server.with(|cell| {
        cell.ignores_beats = false;
        cell.leader_is = None;
    });
    let mut conditions = session.conditions();
    let is_safe = conditions.wait_for(|condition| *condition == Condition::Safe);
    tokio::time::timeout(Duration::from_secs(5), is_safe).await.unwrap().unwrap();
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_session_is_closed_with_its_last_handle() {
    let server = Server::start().await;
    let client = server.client().await;
    let session = client.open_session(NAME, Duration::from_secs(5)).await.unwrap();
    let guard = session.acquire(NAME).await.unwrap();
    drop(session);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(guard.is_held(), "a guard keeps its session");
    drop(guard);
    server.until("no session is left", |cell| cell.session_ids().is_empty()).await;
}

#[tokio::test]
async fn a_cluster_that_is_not_there_is_named() {
    let mut config = Config::new(["127.0.0.1:1"]);
    config.call_timeout = Duration::from_millis(300);
    let error = Client::connect(config).await.unwrap_err();
    expect_test::expect!["reaching the cluster at 127.0.0.1:1: no member of the cell could do it in time (last: 127.0.0.1:1: Connection refused (os error 111)); not executed, it is safe to try again"]
        .assert_eq(&error.to_string());
    let error = Client::connect(Config::new::<String>([])).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }));
}

#[tokio::test]
async fn silent_members_cost_nothing_whoever_is_asked_first() {
    let server = Server::start().await;
    // Connections are made, and nothing is ever answered.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = silent.local_addr().map(|address| (silent, address.to_string())).unwrap();
    for _ in 0..6 {
        let mut config = Config::new([&silent.1, &server.address, &silent.1]);
        // Less than one member has for one answer.
        (config.cell, config.call_timeout) = (CELL, Duration::from_millis(800));
        let client = Client::connect(config).await.unwrap();
        assert!(client.get(NAME).await.is_ok());
    }
}

#[tokio::test]
async fn a_member_tells_how_it_is() {
    let server = Server::start().await;
    let status = crate::status_of(&server.address, CELL, Duration::from_secs(1)).await.unwrap();
    assert_eq!(status.role, "leader");
    let routes = crate::routes_of(vec![server.address.clone()], CELL, Duration::from_secs(1)).await.unwrap();
    assert_eq!(routes[0].cell, CELL);
    assert_ne!(CELL, CellId(0));
}

#[tokio::test]
async fn a_leader_is_asked_once_to_hand_over_and_its_word_is_passed_on() {
    let server = Server::start().await;
    let transfer = || crate::transfer_leader(&server.address, CELL, Some(NodeId(3)), Duration::from_secs(5));
    assert_eq!(transfer().await, Ok((NodeId(3), Term(2))));
    server.with(|cell| cell.refuses_transfers = Some(Status::NoQuorum));
    let error = transfer().await.unwrap_err();
    assert!(matches!(error, Error::Refused { status: Status::NoQuorum, .. }), "{error}");
    server.with(|cell| cell.refuses_transfers = Some(Status::OutcomeUnknown));
    assert!(transfer().await.unwrap_err().is_outcome_unknown());
    let heard = server.with(|cell| cell.heard.iter().filter(|heard| *heard == "TransferLeader 3").count());
    assert_eq!(heard, 3, "no answer has it asked again");
}

#[tokio::test]
async fn a_snapshot_comes_piece_by_piece_and_one_that_is_gone_is_told() {
    let server = Server::start().await;
    server.with(|cell| {
        cell.snapshot = vec![vec![7; SNAPSHOT_PIECE_BYTES_MAX], b"end".to_vec()];
        cell.refusals.push_back((kind::SAVE_SNAPSHOT, Status::Overloaded));
    });
    let save = SnapshotSave::connect(vec![server.address.clone()], CELL).unwrap();
    let first = save.begin().await.unwrap().unwrap();
    assert_eq!(
        (first.snapshot, first.is_last, first.bytes.len()),
        (SNAPSHOT, false, SNAPSHOT_PIECE_BYTES_MAX)
    );
    let next = save.next(first.snapshot, 1).await.unwrap().unwrap();
    assert_eq!((next.is_last, &next.bytes[..]), (true, &b"end"[..]));
    server.with(|cell| cell.snapshot.clear());
    assert_eq!(save.next(first.snapshot, 1).await, Ok(None));
    let heard = server.with(|cell| cell.heard.iter().filter(|heard| heard.contains("0157")).count());
    assert_eq!(heard, 1, "a refusal for load is waited for");
}

#[tokio::test]
async fn a_forked_process_is_told_that_it_has_no_session() {
    let handles = crate::driver::start(Vec::new(), &Arc::from([])).unwrap();
    assert!(handles.is_empty());
    let (commands, _inbox) = mpsc::unbounded_channel();
    let handle = crate::driver::Handle { commands, pid: 0, routes: Arc::from([]) };
    let asked = handle.ask::<()>("acquiring /ls/demo/job", |_| unreachable!("nothing is sent")).await;
    expect_test::expect!["acquiring /ls/demo/job: this process was forked from the one that connected, and has no session; connect anew in the child"]
        .assert_eq(&asked.unwrap_err().to_string());
}
