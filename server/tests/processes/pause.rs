//! Processes that stand still and go on: a leader, and a holder.

use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_client::{Client, core::Loss};
use lockstep_wire::reply::{EndReason, Reply};
use lockstep_wire::request::{Acquire, Mode, Mutation, Request, SessionProof};
use lockstep_wire::{CellId, Correlation, FencingToken, Nonce, Owner, RequestId, Rows, SessionId, Status};
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::Cluster;
use crate::connection::{Answer, Connection, leader};
use crate::load::client_config;
use crate::restart::start_dev;
use crate::{PATIENCE, directory, until};

const CELL: CellId = CellId(0);
/// How soon a leader that stands still is replaced.
const TAKE_OVER_MAX: Duration = Duration::from_secs(2);
const NAME: &str = "/ls/pause/job";

/// A session by hand.
struct ByHand {
    nonce: Nonce,
    session: SessionId,
    ids: u64,
}

impl ByHand {
    fn open(connection: &mut Connection, nonce: u8) -> ByHand {
        let nonce = Nonce([nonce; 16]);
        let request = Request::OpenSession { client_id: "by hand", ttl_ms: 30_000, nonce };
        let answer = connection.call(&request).expect("the leader answers");
        let Reply::Opened { session, .. } = answer.reply() else { panic!("{:?}", answer.reply()) };
        ByHand { nonce, session, ids: 0 }
    }

    fn attach(&self, connection: &mut Connection) {
        let proofs = [SessionProof { session: self.session, nonce: self.nonce }];
        let request = Request::AttachSessions(Rows::Slice(&proofs));
        let answer = connection.call(&request).expect("the leader answers");
        let Reply::Attached(rows) = answer.reply() else { panic!("{:?}", answer.reply()) };
        assert_eq!(rows.iter().next().map(|row| row.status), Some(Status::Ok));
    }

    fn mutation(&mut self) -> Mutation<'static> {
        self.ids += 1;
        Mutation { session: self.session, request_id: RequestId(self.ids), seen: Rows::Slice(&[]) }
    }

    fn acquire<'a>(&mut self, names: &'a [&'a str], wait_ms: u32) -> Request<'a> {
        let mutation = self.mutation();
        Request::Acquire(Acquire {
            mutation,
            owner: Owner(mutation.request_id.0),
            mode: Mode::Exclusive,
            is_reentrant: false,
            permits: 0,
            wait_ms,
            lock_delay_ms: 0,
            max_hold_ms: 0,
            names: Rows::Slice(names),
            data: b"",
        })
    }

    fn granted(&mut self, connection: &mut Connection, name: &str) -> FencingToken {
        let names = [name];
        let answer = connection.call(&self.acquire(&names, 4_000)).expect("the leader answers");
        match answer.reply() {
            Reply::Granted(grant) => grant.token,
            other => panic!("{name} is not granted: {other:?}"),
        }
    }
}

/// Everything that a leader could answer with OK: a beat, reads, a grant. Gives how many were sent.
fn ask_everything(connection: &mut Connection, client: &mut ByHand, name: &str) -> io::Result<usize> {
    let (sessions, names) = ([client.session], [name]);
    let session = client.session;
    let proofs = [SessionProof { session, nonce: client.nonce }];
    let requests = [
        Request::KeepAlive(Rows::Slice(&sessions)),
        Request::GetLock { name: NAME },
        Request::CheckToken { name: NAME, token: FencingToken(1), session: SessionId(0) },
        Request::GetSession { session },
        Request::AttachSessions(Rows::Slice(&proofs)),
        client.acquire(&names, 0),
        Request::OpenSession { client_id: "late", ttl_ms: 10_000, nonce: Nonce([9; 16]) },
    ];
    for request in &requests {
        connection.send(request)?;
    }
    Ok(requests.len())
}

/// Reads answers until the connection ends or is silent for a second.
fn answers(connection: &mut Connection) -> Vec<Answer> {
    connection.stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout can be set");
    std::iter::from_fn(|| connection.receive().ok()).take(1_000).collect()
}

fn stopped_leader(nodes: u16) {
    let mut cluster = Cluster::start(nodes);
    let old = cluster.leader(CELL);
    let mut to_old = leader(&cluster.endpoints(), CELL, PATIENCE);
    assert_eq!(usize::from(to_old.node.0), old + 1);
    let mut client = ByHand::open(&mut to_old, 1);
    let old_token = client.granted(&mut to_old, NAME);

    let stopped = Instant::now();
    cluster.process(old).stand_still();
    // These lie in the stopped process's sockets, from before there was another leader.
    let mut sent = ask_everything(&mut to_old, &mut client, "/ls/pause/early").expect("the kernel takes it");
    let others: Vec<usize> = (0..usize::from(nodes)).filter(|at| *at != old).collect();
    let new = until("another leader", PATIENCE, || cluster.leader_among(&others, CELL));
    let took_over = stopped.elapsed();
    assert!(took_over < TAKE_OVER_MAX, "another leader came after {took_over:?}");

    // The world moves on: the session ends, and somebody else gets the lock.
    let mut to_new = leader(&[cluster.places[new].client], CELL, PATIENCE);
    let served = stopped.elapsed();
    client.attach(&mut to_new);
    let closed = to_new.call(&Request::CloseSession { session: client.session }).expect("it answers");
    assert!(matches!(closed.reply(), Reply::Closed { released_total: 1, .. }), "{:?}", closed.reply());
    let mut successor = ByHand::open(&mut to_new, 2);
    let token = successor.granted(&mut to_new, NAME);
    assert!(token > old_token, "{token} after {old_token}");

    sent += ask_everything(&mut to_old, &mut client, "/ls/pause/late").expect("the kernel takes it");
    cluster.process(old).signal(Signal::CONT);
    sent += ask_everything(&mut to_old, &mut client, "/ls/pause/later").unwrap_or(0);
    let answered = answers(&mut to_old);
    println!(
        "{nodes} nodes: another led after {took_over:.0?}, served after {served:.0?}; the old one answered {} of {sent}",
        answered.len()
    );
    for answer in &answered {
        assert!(
            matches!(answer.reply(), Reply::Refused(_)),
            "a leader that was stopped and replaced answered {:?}",
            answer.reply()
        );
    }

    // It follows, and nothing of what it was asked while it stood still has happened behind its successor's back.
    until("the old leader follows", PATIENCE, || {
        cluster.known(old, CELL).filter(|known| known.role == "follower" && known.leader != 0)
    });
    let looked = to_new.call(&Request::GetLock { name: NAME }).expect("the leader answers");
    let Reply::Lock(lock) = looked.reply() else { panic!("{:?}", looked.reply()) };
    let holders: Vec<_> = lock.holders.iter().map(|holder| (holder.session, holder.token)).collect();
    assert_eq!(holders, [(successor.session, token)]);
    cluster.agree(CELL);
}

#[test]
fn a_stopped_leader_of_three_is_replaced_and_acknowledges_nothing_when_it_goes_on() {
    stopped_leader(3);
}

#[test]
fn a_stopped_leader_of_five_is_replaced_and_acknowledges_nothing_when_it_goes_on() {
    stopped_leader(5);
}

/// A leader that stood still for a moment only is the leader still, and its sessions live on.
#[test]
fn a_leader_that_stood_still_for_a_moment_goes_on() {
    let mut cluster = Cluster::start(3);
    let old = cluster.leader(CELL);
    let mut connection = leader(&cluster.endpoints(), CELL, PATIENCE);
    let mut client = ByHand::open(&mut connection, 1);
    let token = client.granted(&mut connection, NAME);
    cluster.process(old).stand_still();
    std::thread::sleep(Duration::from_millis(150));
    cluster.process(old).signal(Signal::CONT);
    let answer = connection.call(&Request::CheckToken { name: NAME, token, session: client.session });
    let answer = answer.expect("it answers");
    assert!(matches!(answer.reply(), Reply::Checked { is_current: true, .. }), "{:?}", answer.reply());
    assert_eq!(answer.head.correlation, Correlation(4));
}

/// What the holder process is told; without it that test is over at once.
const HOLDER: &str = "LOCKSTEP_TEST_HOLDER";
const HOLDER_TTL: Duration = Duration::from_secs(1);

/// Not a test of its own: the process that holds a lock while its parent stops it. It says `held TOKEN`, then answers each
/// line that it reads with what its guard says, and at the end with why the hold was lost.
#[test]
fn holder_process() {
    let Some(endpoint) = std::env::var(HOLDER).ok() else { return };
    let endpoint: SocketAddr = endpoint.parse().expect("an address");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect(client_config(&[endpoint])).await.expect("a client");
        let session = client.open_session(NAME, HOLDER_TTL).await.expect("a session");
        let guard = session.acquire(NAME).await.expect("the lock");
        println!("\nheld {}", guard.token().expect("it is held"));
        // Blocks this thread on purpose: the library has its own.
        let mut line = String::new();
        while io::stdin().read_line(&mut line).is_ok_and(|count| count > 0) {
            println!("guard {} {:?} {:?}", guard.is_held(), guard.token(), guard.fence());
            line.clear();
        }
        let lost = tokio::time::timeout(Duration::from_secs(5), guard.lost()).await;
        println!("lost {}", matches!(lost, Ok(Loss::Ended(EndReason::Expired))));
    });
}

/// The holder is stopped for longer than its TTL.
#[test]
fn a_holder_that_was_stopped_past_its_ttl_knows_that_it_has_lost() {
    let directory = directory();
    let (_cluster, endpoints) = start_dev(&directory.path().join("cluster"), &["--replicas", "3"]);
    let mut connection = leader(&endpoints, CELL, PATIENCE);
    let mut command = Command::new(std::env::current_exe().expect("a test has a file"));
    command.args(["--exact", "pause::holder_process", "--nocapture"]).env(HOLDER, endpoints[0].to_string());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this program can be started");
    let mut input = child.stdin.take().expect("its input is piped");
    let mut lines = BufReader::new(child.stdout.take().expect("its output is piped")).lines();
    let mut next = |start: &str| {
        let mut lines = lines.by_ref().map(|line| line.expect("text"));
        lines.find_map(|line| line.strip_prefix(start).map(str::to_owned)).expect("it says so")
    };
    let old_token = FencingToken(next("held ").parse().expect("a token"));
    input.write_all(b"?\n").expect("it reads");
    assert!(next("guard ").starts_with("true "));

    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::STOP).expect("it can be stopped");
    let stopped = Instant::now();
    let mut other = ByHand::open(&mut connection, 7);
    let token = other.granted(&mut connection, NAME);
    let freed = stopped.elapsed();
    assert!(token > old_token);
    // The last beat may have been acknowledged up to a beat's pause before the stop, a third of the TTL and its jitter.
    assert!(freed >= HOLDER_TTL / 2, "freed after {freed:?}, with a TTL of {HOLDER_TTL:?}");
    println!("freed {freed:.0?} after the holder was stopped, TTL {HOLDER_TTL:?}");

    input.write_all(b"?\n").expect("the kernel keeps it");
    kill_process(pid, Signal::CONT).expect("it can go on");
    assert_eq!(next("guard "), "false None None", "a holder that wakes up is told the truth");
    drop(input);
    assert_eq!(next("lost "), "true");
    let checked =
        connection.call(&Request::CheckToken { name: NAME, token: old_token, session: SessionId(0) });
    let checked = checked.expect("the leader answers");
    assert!(
        matches!(checked.reply(), Reply::Checked { is_current: false, latest_token, .. } if latest_token == token),
        "{:?}",
        checked.reply()
    );
    assert!(child.wait().expect("it ends").success());
}
