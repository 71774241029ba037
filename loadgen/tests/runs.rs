//! The built binary against a whole cluster in this process, with real sockets and real log files.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use lockstep_server::dev::{DevCluster, Shape};
use lockstep_wire::frame::{self, Assembler, Head};
use lockstep_wire::hello::{self, Hello, HelloReply, Role};
use lockstep_wire::limit::REPLY_FRAME_BYTES_MAX;
use lockstep_wire::request::kind;
use lockstep_wire::{CellId, ClusterId, Correlation, NodeId};
use serde_json::Value;
use tempfile::TempDir;

fn loadgen(endpoints: &str, more: &[&str]) -> Output {
    run("pairs", endpoints, more)
}

fn run(profile: &str, endpoints: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-loadgen"));
    command.args([profile, "--json", "--endpoints", endpoints]).args(more);
    command.output().expect("the binary starts")
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{error}: {}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

fn stop(cluster: DevCluster) {
    for stopper in cluster.nodes.iter().map(lockstep_server::Node::stopper) {
        stopper.stop();
    }
    for node in cluster.nodes {
        node.wait().expect("an orderly stop");
    }
}

/// Three replicas in a new directory, and their endpoints.
fn start() -> (TempDir, DevCluster, String) {
    let directory = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a directory");
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let shape = Shape { replicas: 3, cells: 1 };
    let cluster = DevCluster::start(&directory.path().join("cluster"), shape, listen).expect("a cluster");
    let endpoints = cluster.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    (directory, cluster, endpoints)
}

/// Asks a member who leads, as a client does when it says Hello.
fn leader_known_at(endpoint: SocketAddr) -> NodeId {
    let mut stream = TcpStream::connect(endpoint).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let (protocol_min, protocol_max) = hello::PROTOCOL;
    let cluster = ClusterId::default();
    let ask =
        Hello { protocol_min, protocol_max, cluster, role: Role::Client, peer_address: "", credentials: b"" };
    let head = Head { kind: kind::HELLO, cell: CellId(0), correlation: Correlation(1) };
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, head, |out| ask.put(out));
    stream.write_all(&bytes).expect("Hello is sent");
    let mut assembler = Assembler::default();
    let mut buffer = [0; 4_096];
    loop {
        let count = stream.read(&mut buffer).expect("an answer");
        assert!(count > 0, "the member hung up");
        let frame = assembler.next(&mut &buffer[..count], REPLY_FRAME_BYTES_MAX).expect("a frame");
        if let Some(frame) = frame {
            return HelloReply::decode(frame.body).expect("an answer to Hello").leader;
        }
    }
}

#[test]
fn contending_pairs_succeed_without_a_violation() {
    let (_directory, cluster, endpoints) = start();
    let more = ["--check", "--seconds", "2", "--clients", "24", "--sessions-per-connection", "8"];
    let output =
        loadgen(&endpoints, &[&more[..], &["--names", "3", "--contended", "0.5", "--cores", "2"]].concat());
    let report = report(&output);
    assert!(output.status.success(), "{report:#}");
    assert_eq!(report["sessions"], 24, "{report:#}");
    assert_eq!(report["check"]["violations_total"], 0, "{report:#}");
    assert_eq!(report["sessions_lost"], 0, "{report:#}");
    assert!(report["pairs"].as_u64().is_some_and(|pairs| pairs >= 24), "{report:#}");
    assert_eq!(report["pairs"], report["release"]["count"], "{report:#}");
    let [p50, max] = ["p50_us", "max_us"].map(|key| report["acquire"][key].as_u64().unwrap_or(0));
    assert!(0 < p50 && p50 <= max, "{report:#}");
    let lines = String::from_utf8_lossy(&output.stderr);
    assert!(lines.lines().any(|line| line.contains("1 s:") && line.contains("pairs")), "{lines}");
    stop(cluster);
}

#[test]
fn pairs_go_on_after_their_leader_has_stopped() {
    let (_directory, mut cluster, endpoints) = start();
    let endpoint = cluster.endpoints[0];
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-loadgen"));
    command.args([
        "pairs",
        "--json",
        "--check",
        "--seconds",
        "4",
        "--clients",
        "16",
        "--endpoints",
        &endpoints,
    ]);
    command.args(["--names", "2", "--contended", "0.3"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().expect("the binary starts");
    let mut progress = BufReader::new(running.stderr.take().expect("it is piped")).lines();
    let first = progress.next().expect("a line").expect("text");
    let leader = leader_known_at(endpoint);
    let at = cluster.nodes.iter().zip(1..).position(|(_, id)| NodeId(id) == leader).expect("somebody leads");
    let stopped = cluster.nodes.remove(at);
    stopped.stopper().stop();
    stopped.wait().expect("an orderly stop");
    let last = progress.map_while(Result::ok).last().unwrap_or_default();
    let output = running.wait_with_output().expect("it ends");
    let report = report(&output);
    assert!(output.status.success(), "{report:#}");
    assert_eq!(report["check"]["violations_total"], 0, "{report:#}");
    assert_eq!(report["sessions_lost"], 0, "{report:#}");
    assert!(!last.contains(": 0 pairs"), "after {first}: {last}");
    assert_ne!(leader_known_at(cluster.endpoints[usize::from(at == 0)]), leader);
    stop(cluster);
}

#[test]
fn a_run_in_which_nothing_succeeds_ends_by_itself_and_says_why() {
    // Bound and never accepted from: connections are made and nothing is answered.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let endpoint = silent.local_addr().expect("an address").to_string();
    let output = loadgen(&endpoint, &["--seconds", "1", "--clients", "4"]);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert_eq!((report["pairs"].as_u64(), report["sessions"].as_u64()), (Some(0), Some(0)), "{report:#}");
    assert!(report["opens_failed"].as_u64().is_some_and(|count| count >= 4), "{report:#}");
    assert!(report["trouble"].as_str().is_some_and(|why| why.contains("Hello")), "{report:#}");
}

#[test]
fn a_soak_holds_its_locks_to_the_end_and_says_what_the_nodes_took() {
    let (directory, cluster, endpoints) = start();
    let (data, own) = (directory.path().display().to_string(), std::process::id().to_string());
    let small = ["--clients", "8", "--live", "100", "--writes", "3000", "--names", "16", "--every", "1"];
    let more = [&small[..], &["--seconds", "60", "--pids", &own, "--data", &data]].concat();
    let output = run("soak", &endpoints, &more);
    let report = report(&output);
    assert!(output.status.success(), "{report:#}");
    assert_eq!((&report["is_complete"], &report["failures"]), (&true.into(), &0.into()), "{report:#}");
    // The lasting locks are given back after that.
    assert!(report["writes"].as_u64().is_some_and(|writes| writes >= 3_100), "{report:#}");
    for what in ["memory", "disk"] {
        let gauge = &report[what][0];
        let [first, max, last] = ["first", "max", "last"].map(|key| gauge[key].as_u64().unwrap_or(0));
        assert!(0 < first && first <= max && last <= max, "{report:#}");
    }
    let lines = String::from_utf8_lossy(&output.stderr);
    let is_line = |line: &str| line.contains("writes/s") && line.contains("memory") && line.contains("disk");
    assert!(lines.lines().any(is_line), "{lines}");

    // A run whose time is over has had all of it, and gives its locks back then; more than a client may hold are refused before.
    let output = run("soak", &endpoints, &["--clients", "4", "--live", "40", "--seconds", "2"]);
    let report = self::report(&output);
    assert!(output.status.success() && report["is_complete"] == true, "{report:#}");
    assert!(report["measured_s"].as_u64().is_some_and(|seconds| seconds > 2), "{report:#}");
    let output = run("soak", &endpoints, &["--clients", "4", "--live", "4001"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("take more --clients"));
    stop(cluster);
}

#[test]
fn a_reader_that_has_gone_away_is_not_worth_a_word() {
    let (_directory, cluster, endpoints) = start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-loadgen"));
    command.args(["pairs", "--seconds", "1", "--clients", "4", "--endpoints", &endpoints]);
    let mut running =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    drop((running.stdout.take(), running.stderr.take()));
    let status = running.wait().expect("it ends");
    assert_eq!(status.code(), Some(0), "what it ended with");
    stop(cluster);
}

#[test]
fn a_soak_ends_with_the_first_call_that_fails() {
    let (_directory, cluster, endpoints) = start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-loadgen"));
    command.args(["soak", "--json", "--clients", "8", "--live", "8", "--seconds", "60", "--every", "1"]);
    command
        .args(["--ttl-ms", "1000", "--endpoints", &endpoints])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = command.spawn().expect("the binary starts");
    let mut lines = BufReader::new(running.stderr.take().expect("it is piped")).lines();
    lines.next().expect("a line").expect("text");
    stop(cluster);
    let output = running.wait_with_output().expect("it ends");
    let report = report(&output);
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert!(report["failures"].as_u64().is_some_and(|failures| failures > 0), "{report:#}");
    assert!(report["measured_s"].as_u64().is_some_and(|seconds| seconds < 60), "{report:#}");
}
