//! The built binary against a whole cluster in this process, with real sockets and real log files.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};

use lockstep_server::dev::{DevCluster, Shape};
use serde_json::Value;

fn loadgen(endpoints: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-loadgen"));
    command.args(["pairs", "--json", "--endpoints", endpoints]).args(more);
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

#[test]
fn contending_pairs_succeed_without_a_violation_and_leave_no_session_behind() {
    let directory = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a directory");
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let data = directory.path().join("cluster");
    let cluster = DevCluster::start(&data, Shape { replicas: 3, cells: 1 }, listen).expect("a cluster");
    let endpoints = cluster.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
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
