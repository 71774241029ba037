//! What nobody should send, on both ports: it is refused, said once, and disturbs nobody.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockstep_wire::frame::{self, HEAD_BYTES, Head};
use lockstep_wire::hello::{PeerIdentity, Role};
use lockstep_wire::limit::{CLIENT_FRAME_BYTES_MAX, FIRST_FRAME_BYTES_MAX, PEER_FRAME_BYTES_MAX};
use lockstep_wire::peer::{Ballot, PeerMessage, kind as peer_kind};
use lockstep_wire::reply::Reply;
use lockstep_wire::request::{Acquire, Mode, Mutation, Request, SessionProof, kind};
use lockstep_wire::{
    CellId, ClusterId, Correlation, FencingToken, Incarnation, LogIndex, NodeId, Nonce, Owner, RequestId,
    Rows, SessionId, SnapshotId, Status, Term,
};

use crate::cluster::{Cluster, Known};
use crate::connection::{Connection, hello, leader, read_frame};
use crate::{PATIENCE, until};

const CELL: CellId = CellId(0);
/// How long somebody may take to say a valid Hello, and a margin for a busy machine.
const SILENCE_MAX: Duration = Duration::from_secs(5 + 3);
/// How soon a good client is served, whatever others do.
const SERVED_MAX: Duration = Duration::from_secs(1);
/// Nothing but bad input may change anything, so nobody campaigns because the machine is busy.
const PATIENT: &str = "timing.election_ms_min = 5000\ntiming.election_ms_max = 6000\n";

fn patient_cluster() -> (Cluster, usize) {
    let mut cluster = Cluster::format(3, 1, PATIENT);
    cluster.start_all();
    // Whoever answers a read has its first entry behind it.
    drop(leader(&cluster.endpoints(), CELL, PATIENCE));
    let leading = cluster.leader(CELL);
    (cluster, leading)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).expect("it listens");
    stream.set_nodelay(true).expect("an option can be set");
    stream
}

/// Reads until the other side closes. None when it has not within the time.
fn time_until_closed(stream: &mut TcpStream, patience: Duration) -> Option<Duration> {
    let began = Instant::now();
    let mut sink = [0; 4096];
    loop {
        let left = patience.checked_sub(began.elapsed()).filter(|left| !left.is_zero())?;
        stream.set_read_timeout(Some(left)).expect("a timeout can be set");
        match stream.read(&mut sink) {
            Ok(0) => return Some(began.elapsed()),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return None,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Some(began.elapsed()),
        }
    }
}

fn framed(kind: u16, cell: CellId, correlation: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let head = Head { kind, cell, correlation: Correlation(correlation) };
    frame::encode(&mut bytes, head, |out| out.extend_from_slice(body));
    bytes
}

fn length(counted: usize) -> Vec<u8> {
    u32::try_from(counted).expect("a length").to_le_bytes().to_vec()
}

/// What is no Hello and cannot become one.
fn never_a_hello() -> Vec<(&'static str, Vec<u8>)> {
    let good = hello(CELL, ClusterId::default(), Role::Client);
    let mut tls = vec![0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];
    tls.resize(517, 0x2a);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let random = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    });
    let mut status = Vec::new();
    Request::Status.encode(CELL, Correlation(1), &mut status);
    let mut garbled = good.clone();
    garbled[30] ^= 1;
    let body = &good[HEAD_BYTES..];
    let mut trailing = body.to_vec();
    trailing.push(0);
    vec![
        ("an HTTP request", b"GET / HTTP/1.1\r\nHost: lockstep\r\n\r\n".to_vec()),
        ("a TLS hello", tls),
        ("random bytes", random.take(3_000).collect()),
        ("a length of 0", length(0)),
        ("a length below a head", length(15)),
        ("a length of limit + 1", length(FIRST_FRAME_BYTES_MAX + 1)),
        ("a length of 0xFFFFFFFF", vec![0xff; 4]),
        ("a request before Hello", status),
        ("an unknown kind before Hello", framed(0x7777, CELL, 1, b"what")),
        ("a Hello with a wrong checksum", garbled),
        ("a Hello that ends early", framed(kind::HELLO, CELL, 1, &body[..body.len() - 1])),
        ("a Hello with something behind it", framed(kind::HELLO, CELL, 1, &trailing)),
        ("an empty Hello", framed(kind::HELLO, CELL, 1, b"")),
    ]
}

/// Serves itself again and again as a new client until it is told to stop; keeps the longest time that it took.
fn good_client(endpoint: SocketAddr, stop: &AtomicBool, slowest: &Mutex<Duration>) {
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let served = Connection::open(endpoint, CELL).and_then(|mut connection| {
            connection.call(&Request::GetLock { name: "/ls/good/client" }).map(|answer| {
                assert!(matches!(answer.reply(), Reply::Lock(_)), "{:?}", answer.reply());
            })
        });
        served.expect("a good client is served");
        let mut slowest = slowest.lock().expect("nobody panicked");
        *slowest = slowest.max(began.elapsed());
        drop(slowest);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs something while a good client asks the leader all the time, which must not suffer.
fn beside_a_good_client(cluster: &Cluster, leader: usize, work: impl FnOnce()) {
    let (stop, slowest) = (AtomicBool::new(false), Mutex::new(Duration::ZERO));
    let endpoint = cluster.places[leader].client;
    std::thread::scope(|scope| {
        let good = scope.spawn(|| good_client(endpoint, &stop, &slowest));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        good.join().expect("a good client is served");
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    let slowest = slowest.into_inner().expect("nobody panicked");
    println!("a good client was served within {slowest:.1?} at the longest");
    assert!(slowest < SERVED_MAX, "a good client had to wait for {slowest:?}");
}

/// The term and the log of the leader; nothing that is tested here may change them.
fn log_of(cluster: &Cluster, leader: usize) -> Known {
    cluster.known(leader, CELL).expect("the leader answers")
}

fn bad_lines(complained: &str) -> usize {
    complained.lines().filter(|line| line.contains("does not speak this protocol")).count()
}

#[test]
fn bytes_that_are_no_hello_close_the_connection_and_disturb_nobody() {
    let (mut cluster, leader) = patient_cluster();
    let before = log_of(&cluster, leader);
    let ports: Vec<SocketAddr> = cluster.places.iter().flat_map(|place| [place.client, place.peer]).collect();
    let began = Instant::now();
    beside_a_good_client(&cluster, leader, || {
        let half = hello(CELL, ClusterId::default(), Role::Client);
        let slow: [(&str, &[u8]); 3] =
            [("silence", b""), ("one byte", &half[..1]), ("half a frame", &half[..30])];
        let mut slow: Vec<(String, TcpStream)> = ports
            .iter()
            .flat_map(|port| slow.map(|(what, bytes)| (format!("{what} on {port}"), *port, bytes)))
            .map(|(what, port, bytes)| {
                let mut stream = connect(port);
                stream.write_all(bytes).expect("the kernel takes it");
                (what, stream)
            })
            .collect();
        for port in &ports {
            for (what, bytes) in never_a_hello() {
                let mut stream = connect(*port);
                // The other side may have closed before the last byte.
                let _ = stream.write_all(&bytes);
                let closed = time_until_closed(&mut stream, Duration::from_secs(2));
                assert!(closed.is_some(), "{what} on {port} is not refused");
            }
        }
        for (what, stream) in &mut slow {
            let left = SILENCE_MAX.saturating_sub(began.elapsed());
            assert!(time_until_closed(stream, left).is_some(), "{what} is not closed in time");
        }
    });
    assert!(began.elapsed() >= Duration::from_secs(4), "whoever is silent has a moment");
    assert_eq!(log_of(&cluster, leader), before, "bad input has left something behind");
    let seconds = usize::try_from(began.elapsed().as_secs()).expect("not so long");
    for at in 0..3 {
        assert!(cluster.process(at).is_running());
        let complained = cluster.process(at).complained();
        let lines = bad_lines(&complained);
        assert!((1..=seconds + 2).contains(&lines), "{lines} lines in {seconds} s:\n{complained}");
    }
}

#[test]
fn a_flood_of_bad_bytes_leaves_a_line_a_second() {
    let (mut cluster, leader) = patient_cluster();
    let port = cluster.places[leader].client;
    let began = Instant::now();
    beside_a_good_client(&cluster, leader, || {
        for _ in 0..500 {
            let mut stream = connect(port);
            let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
            assert!(time_until_closed(&mut stream, Duration::from_secs(2)).is_some());
        }
    });
    let seconds = usize::try_from(began.elapsed().as_secs()).expect("not so long");
    let complained = cluster.process(leader).complained();
    let lines = bad_lines(&complained);
    assert!((1..=seconds + 2).contains(&lines), "{lines} lines in {seconds} s:\n{complained}");
    assert!(complained.contains("127.0.0.1:"), "whose bytes they were is said: {complained}");
}

/// As many as the limit of open files lets us.
#[test]
fn thousands_of_silent_connections_cost_no_memory_and_nobody_waits() {
    let (mut cluster, leader) = patient_cluster();
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(4_096);
    let count = usize::try_from(files.saturating_sub(400) / 2).unwrap_or(usize::MAX).min(3_000);
    let (client, peer) = (cluster.places[leader].client, cluster.places[leader].peer);
    let before = log_of(&cluster, leader);
    let memory = cluster.process(leader).memory_kib();
    let mut grown = 0;
    let process = cluster.processes[leader].take().expect("the node runs");
    beside_a_good_client(&cluster, leader, || {
        let mut silent: Vec<TcpStream> =
            (0..count).map(|at| connect(if at % 8 == 0 { peer } else { client })).collect();
        grown = process.memory_kib().saturating_sub(memory);
        let began = Instant::now();
        for stream in &mut silent {
            let left = SILENCE_MAX.saturating_sub(began.elapsed());
            assert!(
                time_until_closed(stream, left).is_some(),
                "silent for {:?} and not closed",
                began.elapsed()
            );
        }
    });
    cluster.processes[leader] = Some(process);
    println!("{count} silent connections: {grown} KiB");
    assert!(grown < 16 * 1024, "{count} silent connections cost {grown} KiB");
    assert_eq!(log_of(&cluster, leader), before);
    let complained = cluster.process(leader).complained();
    let lines = complained.lines().filter(|line| line.contains("said no Hello")).count();
    assert!((1..=20).contains(&lines), "{lines} lines:\n{complained}");
}

/// Clients that were welcomed and stay: so many, or as many as the node lets in.
fn fill(client: SocketAddr, count: usize) -> Vec<Connection> {
    (0..count).map_while(|_| Connection::open(client, CELL).ok()).collect()
}

#[test]
fn clients_that_fill_a_node_keep_no_member_out() {
    let mut cluster = Cluster::format(3, 1, PATIENT);
    for at in 0..3 {
        cluster.start_limited(at, "-n 1100");
    }
    drop(leader(&cluster.endpoints(), CELL, PATIENCE));
    let leading = cluster.leader(CELL);
    let clients = fill(cluster.places[leading].client, 1_300);
    println!("{} clients fill a node that may have 1,100 files open", clients.len());
    assert!((700..1_100).contains(&clients.len()), "{} clients were let in", clients.len());
    let follower = (leading + 1) % 3;
    cluster.kill(follower);
    cluster.start_node(follower);
    let place = cluster.places[follower].client;
    until("the follower is told who leads", PATIENCE, || {
        Connection::open(place, CELL)
            .ok()
            .filter(|connection| usize::from(connection.leader.0) == leading + 1)
    });
    let complained = cluster.process(leading).complained();
    let lines = complained.lines().filter(|line| line.contains("there are too many")).count();
    assert!((1..=20).contains(&lines), "{lines} lines:\n{complained}");
    // Room that is given back is used again.
    drop(clients);
    until("there is room again", PATIENCE, || Connection::open(cluster.places[leading].client, CELL).ok());
}

#[test]
fn clients_that_were_welcomed_do_not_crowd_out_one_that_is_slow_with_its_hello() {
    let mut cluster = Cluster::format(1, 1, "");
    cluster.start_limited(0, "-n 2000");
    drop(leader(&cluster.endpoints(), CELL, PATIENCE));
    let client = cluster.places[0].client;
    let began = Instant::now();
    let mut slow = connect(client);
    assert_eq!(fill(client, 1_100).len(), 1_100);
    assert!(began.elapsed() < Duration::from_secs(4), "it was silent for too long");
    slow.write_all(&hello(CELL, ClusterId::default(), Role::Client)).expect("it is still connected");
    slow.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout can be set");
    read_frame(&mut slow).expect("it is welcome");
}

#[test]
fn a_crowd_that_says_nothing_leaves_everybody_a_moment_for_a_hello() {
    let mut cluster = Cluster::format(1, 1, "");
    cluster.start_all();
    drop(leader(&cluster.endpoints(), CELL, PATIENCE));
    let client = cluster.places[0].client;
    // On a busy machine the crowd may take longer than the moment; then it says nothing.
    let moment = Duration::from_millis(200);
    for _ in 0..20 {
        let began = Instant::now();
        let mut slow = connect(client);
        let crowd: Vec<TcpStream> = (0..1_200).map(|_| connect(client)).collect();
        // Long enough for the node to have looked at all of them.
        std::thread::sleep(Duration::from_millis(20));
        let said = slow.write_all(&hello(CELL, ClusterId::default(), Role::Client));
        if began.elapsed() < moment {
            said.expect("it is still connected");
            slow.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout can be set");
            read_frame(&mut slow).expect("it is welcome");
            return;
        }
        drop(crowd);
    }
    println!("SKIPPED: 1,200 connections take longer than {moment:?} here");
}

#[test]
fn clients_of_a_shard_without_the_door_leave_files_for_members_too() {
    let mut cluster = Cluster::format(1, 2, "cells = 2");
    cluster.start_limited(0, "-n 1100");
    let other = CellId(1);
    drop(leader(&cluster.endpoints(), other, PATIENCE));
    let welcome = |_| Connection::open(cluster.places[0].client, other).ok();
    let clients: Vec<Connection> = (0..600).map_while(welcome).collect();
    assert!((300..500).contains(&clients.len()), "{} clients were let in", clients.len());
}

#[test]
fn a_node_takes_as_many_clients_as_the_hard_limit_allows() {
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    if hard.is_some_and(|hard| hard < 2_500) {
        println!("SKIPPED: no process may open 2,500 files here");
        return;
    }
    let mut cluster = Cluster::format(1, 1, "");
    cluster.start_limited(0, "-S -n 900");
    drop(leader(&cluster.endpoints(), CELL, PATIENCE));
    let clients = fill(cluster.places[0].client, 1_500);
    assert_eq!(clients.len(), 1_500, "{}", cluster.process(0).complained());
}

#[test]
fn bad_frames_after_hello_close_the_connection() {
    let (mut cluster, leader) = patient_cluster();
    let before = log_of(&cluster, leader);
    let mut status = Vec::new();
    Request::Status.encode(CELL, Correlation(1), &mut status);
    status[20] ^= 0x10;
    let bad = [
        ("a length of 0", length(0)),
        ("a length of limit + 1", length(CLIENT_FRAME_BYTES_MAX + 1)),
        ("a length of 0xFFFFFFFF", vec![0xff; 4]),
        ("a wrong checksum", status),
        ("an HTTP request", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
    ];
    for place in &cluster.places {
        for (what, bytes) in &bad {
            let mut connection = Connection::open(place.client, CELL).expect("a client is welcome");
            connection.stream.write_all(bytes).expect("the kernel takes it");
            let closed = time_until_closed(&mut connection.stream, Duration::from_secs(2));
            assert!(closed.is_some(), "{what} is not refused");
        }
    }
    assert_eq!(log_of(&cluster, leader), before);
    assert!((0..3).all(|at| cluster.process(at).is_running()));
}

fn as_member(cluster: &Cluster, to: usize, node: u16) -> TcpStream {
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(cluster.id.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("digits");
    }
    let identity = PeerIdentity {
        node: NodeId(node),
        to: NodeId(cluster.places[to].id),
        shard: 0,
        incarnation: Incarnation([3; 16]),
    };
    let mut stream = connect(cluster.places[to].peer);
    stream.write_all(&hello(CELL, ClusterId(id), Role::PeerControl(identity))).expect("the kernel takes it");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout can be set");
    let answer = read_frame(&mut stream).expect("a Hello is answered");
    assert_eq!(answer.body[0], Status::Ok as u8, "a member is welcome");
    stream
}

#[test]
fn bad_frames_between_members_close_the_connection_and_strangers_have_no_vote() {
    let (mut cluster, leader) = patient_cluster();
    let before = log_of(&cluster, leader);
    let mut bad = vec![
        ("a length of limit + 1".to_owned(), length(PEER_FRAME_BYTES_MAX + 1)),
        ("a length of 0".to_owned(), length(0)),
        ("a client's request".to_owned(), framed(kind::STATUS, CELL, 1, b"")),
        ("an unknown kind".to_owned(), framed(0x7777, CELL, 1, b"")),
    ];
    let kinds = [
        peer_kind::CELL_HELLO,
        peer_kind::REFUSED,
        peer_kind::MANIFEST,
        peer_kind::MANIFEST_STORED,
        peer_kind::BORN,
        peer_kind::VOTE,
        peer_kind::VOTE_REPLY,
        peer_kind::TAKE_OVER,
        peer_kind::APPEND,
        peer_kind::APPEND_REPLY,
        peer_kind::BEATS,
        peer_kind::DIGEST,
        peer_kind::DIGEST_DISAGREES,
    ];
    for kind in kinds {
        bad.push((format!("{kind:#06x} cut short"), framed(kind, CELL, 0, &[0xff])));
        bad.push((format!("{kind:#06x} garbled"), framed(kind, CELL, 0, &[0xff; 300])));
    }
    for to in 0..3 {
        for (what, bytes) in &bad {
            let mut stream = as_member(&cluster, to, 9);
            stream.write_all(bytes).expect("the kernel takes it");
            assert!(
                time_until_closed(&mut stream, Duration::from_secs(2)).is_some(),
                "{what} is not refused"
            );
        }
        // Well formed, from somebody who is no member: read and not acted upon.
        let mut stream = as_member(&cluster, to, 9);
        let (last_index, last_term) = (LogIndex(1 << 40), Term(1 << 40));
        for message in [
            PeerMessage::Vote { ballot: Ballot::Real, term: Term(1 << 40), last_index, last_term },
            PeerMessage::TakeOver { term: Term(before.term), is_wished: true },
        ] {
            for cell in [CELL, CellId(63)] {
                let mut bytes = Vec::new();
                message.encode(cell, &mut bytes);
                stream.write_all(&bytes).expect("the kernel takes it");
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(log_of(&cluster, leader), before, "a stranger has changed something");
    assert!((0..3).all(|at| cluster.process(at).is_running()));
}

fn mutation(session: SessionId, request_id: u64) -> Mutation<'static> {
    Mutation { session, request_id: RequestId(request_id), seen: Rows::Slice(&[]) }
}

fn acquire<'a>(session: SessionId, request_id: u64, names: &'a [&'a str]) -> Acquire<'a> {
    Acquire {
        mutation: mutation(session, request_id),
        owner: Owner(1),
        mode: Mode::Exclusive,
        is_reentrant: false,
        permits: 0,
        wait_ms: 0,
        lock_delay_ms: 0,
        max_hold_ms: 0,
        names: Rows::Slice(names),
        data: b"data",
    }
}

/// Every request, garbled in every single place: cut off at each byte, each byte inverted, something left over.
fn garbled(session: SessionId) -> Vec<(u16, Vec<u8>)> {
    let names = ["/ls/bad/one", "/ls/bad/two"];
    let proofs = [SessionProof { session, nonce: Nonce([8; 16]) }];
    let sessions = [session];
    let requests = [
        Request::AttachSessions(Rows::Slice(&proofs)),
        Request::KeepAlive(Rows::Slice(&sessions)),
        Request::CloseSession { session },
        Request::Acquire(acquire(session, 3, &names)),
        Request::Cancel { mutation: mutation(session, 3), acquire_id: RequestId(1) },
        Request::Release {
            mutation: mutation(session, 3),
            acquire_id: RequestId(1),
            name: "/ls/bad/one",
            token: FencingToken(5),
        },
        Request::CheckToken { name: "/ls/bad/one", token: FencingToken(5), session },
        Request::GetLock { name: "/ls/bad/one" },
        Request::GetSession { session },
        Request::Status,
        Request::TransferLeader { to: NodeId(0) },
        Request::Routes,
        Request::SaveSnapshot { snapshot: SnapshotId::default(), piece: 0 },
    ];
    let mut all = Vec::new();
    for request in &requests {
        let mut bytes = Vec::new();
        request.encode(CELL, Correlation(0), &mut bytes);
        let body = &bytes[HEAD_BYTES..];
        for at in 0..body.len() {
            all.push((request.kind(), body[..at].to_vec()));
            let mut inverted = body.to_vec();
            inverted[at] ^= 0xff;
            all.push((request.kind(), inverted));
        }
        all.push((request.kind(), [body, &[0]].concat()));
    }
    // An opening that is whole opens something, so this one is only cut, and given what it cannot have.
    let mut bytes = Vec::new();
    let open = Request::OpenSession { client_id: "bad", ttl_ms: 10_000, nonce: Nonce([6; 16]) };
    open.encode(CELL, Correlation(0), &mut bytes);
    let body = &bytes[HEAD_BYTES..];
    all.extend((0..body.len()).map(|at| (open.kind(), body[..at].to_vec())));
    all.push((open.kind(), [body, &[0]].concat()));
    let mut not_text = body.to_vec();
    not_text[2] = 0xff;
    all.push((open.kind(), not_text));
    all.extend([0x0000, 0x0002, 0x0105, 0x0122, 0x0151, 0x0180, 0x7fff].map(|kind| (kind, b"?".to_vec())));
    all
}

/// On the leader and on followers.
#[test]
fn garbled_requests_are_answered_and_nothing_enters_the_log() {
    let (mut cluster, leading) = patient_cluster();
    let mut owner = leader(&cluster.endpoints(), CELL, PATIENCE);
    let open = Request::OpenSession { client_id: "owner", ttl_ms: 60_000, nonce: Nonce([7; 16]) };
    let opened = owner.call(&open).expect("the leader answers");
    let Reply::Opened { session, .. } = opened.reply() else { panic!("{:?}", opened.reply()) };
    let names = ["/ls/bad/held"];
    let granted = owner.call(&Request::Acquire(acquire(session, 1, &names))).expect("the leader answers");
    assert!(matches!(granted.reply(), Reply::Granted(_)), "{:?}", granted.reply());
    let before = log_of(&cluster, leading);

    let bad = garbled(session);
    println!("{} garbled requests", bad.len());
    for place in &cluster.places {
        let mut connection = Connection::open(place.client, CELL).expect("a client is welcome");
        for piece in bad.chunks(100) {
            let mut bytes = Vec::new();
            for ((kind, body), correlation) in piece.iter().zip(1..) {
                bytes.extend(framed(*kind, CELL, correlation, body));
            }
            connection.stream.write_all(&bytes).expect("the kernel takes it");
            let mut unanswered: Vec<u64> = (1..).take(piece.len()).collect();
            while !unanswered.is_empty() {
                let answer = connection.receive().unwrap_or_else(|error| {
                    let (kind, body) = &piece[usize::try_from(unanswered[0] - 1).expect("small")];
                    panic!("{kind:#06x} {body:?} was not answered: {error}")
                });
                let number = answer.head.correlation.0;
                assert!(unanswered.contains(&number), "answered twice");
                unanswered.retain(|other| *other != number);
                let (kind, body) = &piece[usize::try_from(number - 1).expect("small")];
                if answer.head.kind != kind::HELLO | kind::REPLY {
                    let reply = answer.reply();
                    assert!(!changes_something(&reply), "{kind:#06x} {body:?} was answered {reply:?}");
                }
            }
        }
        // A frame of another cell than the connection's.
        connection.stream.write_all(&framed(kind::STATUS, CellId(1), 77, b"")).expect("the kernel takes it");
        let answer = connection.receive().expect("it is answered");
        assert_eq!(answer.reply().status(), Status::WrongCell);
    }
    assert_eq!(log_of(&cluster, leading), before, "a garbled request has entered the log");
    let kept = owner.call(&Request::GetSession { session }).expect("the leader answers");
    assert!(matches!(kept.reply(), Reply::Session(view) if view.claims_total == 1), "{:?}", kept.reply());
    assert!((0..3).all(|at| cluster.process(at).is_running()));
}

fn changes_something(reply: &Reply<'_>) -> bool {
    match reply {
        Reply::Attached(rows) => rows.iter().any(|row| row.status == Status::Ok),
        Reply::KeptAlive(rows) => rows.iter().any(|row| row.status == Status::Ok),
        Reply::Refused(_) | Reply::Checked { .. } | Reply::Lock(_) | Reply::Session(_) => false,
        Reply::Status(_) | Reply::Members(_) | Reply::Routes(_) | Reply::Transferred { .. } => false,
        Reply::SavedPiece(_) | Reply::SnapshotGone => false,
        Reply::Opened { .. } | Reply::Closed { .. } | Reply::Granted(_) | Reply::Queued { .. } => true,
        Reply::TimedOut | Reply::Cancelled | Reply::AlreadyHeld { .. } | Reply::Lost { .. } => true,
        Reply::Done | Reply::StaleToken => true,
    }
}

/// With the owner's own session: whole requests with values that cannot be.
#[test]
fn requests_that_cannot_be_are_refused_and_nothing_enters_the_log() {
    let (cluster, leading) = patient_cluster();
    let mut owner = leader(&cluster.endpoints(), CELL, PATIENCE);
    let open = Request::OpenSession { client_id: "owner", ttl_ms: 60_000, nonce: Nonce([7; 16]) };
    let opened = owner.call(&open).expect("the leader answers");
    let Reply::Opened { session, .. } = opened.reply() else { panic!("{:?}", opened.reply()) };
    let before = log_of(&cluster, leading);
    let long = format!("/ls/bad/{}", "x".repeat(504));
    let (none, relative, empty, late): ([&str; 0], _, _, _) = ([], ["job"], ["/ls/bad//x"], ["/ls/bad/x"]);
    let (long, twice) = ([long.as_str()], ["/ls/bad/x", "/ls/bad/x"]);
    let good = acquire(session, 1, &late);
    let open = |client_id, ttl_ms| Request::OpenSession { client_id, ttl_ms, nonce: Nonce([5; 16]) };
    let release = |name, request_id| Request::Release {
        mutation: mutation(session, request_id),
        acquire_id: RequestId(1),
        name,
        token: FencingToken(5),
    };
    let bad = [
        ("no name", Request::Acquire(acquire(session, 1, &none))),
        ("a relative name", Request::Acquire(acquire(session, 1, &relative))),
        ("an empty segment", Request::Acquire(acquire(session, 1, &empty))),
        ("a name of 512 bytes", Request::Acquire(acquire(session, 1, &long))),
        ("a name twice", Request::Acquire(acquire(session, 1, &twice))),
        ("request id 0", Request::Acquire(acquire(session, 0, &late))),
        ("request id 2^63", Request::Acquire(acquire(session, 1 << 63, &late))),
        ("a wait of 49 days", Request::Acquire(Acquire { wait_ms: u32::MAX, ..good })),
        ("a lock-delay of 49 days", Request::Acquire(Acquire { lock_delay_ms: u32::MAX, ..good })),
        ("permits", Request::Acquire(Acquire { permits: 5, ..good })),
        ("an empty client id", open("", 10_000)),
        ("a release of a relative name", release("job", 7)),
        ("a release under request id 0", release("/ls/bad/x", 0)),
        (
            "a cancel under request id 0",
            Request::Cancel { mutation: mutation(session, 0), acquire_id: RequestId(1) },
        ),
        ("a read of a relative name", Request::GetLock { name: "job" }),
        ("a check of an empty name", Request::CheckToken { name: "", token: FencingToken(1), session }),
        ("another's session", Request::CloseSession { session: SessionId(1) }),
    ];
    let mut entered = Vec::new();
    for (what, request) in &bad {
        let committed = log_of(&cluster, leading).committed;
        let answer = owner.call(request).expect("it is answered");
        if *what != "a name of 512 bytes" {
            let Reply::Refused(refusal) = answer.reply() else { panic!("{what}: {:?}", answer.reply()) };
            let status = refusal.status;
            assert!(status.retry() == lockstep_wire::Retry::Never, "{what}: {status:?}");
            if log_of(&cluster, leading).committed != committed {
                entered.push(format!("{what}: {} {}", status.name(), refusal.detail));
            }
        }
    }
    assert_eq!(entered, [] as [String; 0], "these have entered the log");
    drop(until("the leader is there still", PATIENCE, || cluster.known(leading, CELL)));
    assert_eq!(log_of(&cluster, leading).term, before.term);
}
