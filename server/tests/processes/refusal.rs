//! Starts that are refused: quickly, with the cause, and never half.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lockstep_wire::CellId;

use crate::cluster::{Cluster, SEGMENT_MIB, free_port};
use crate::connection::leader;
use crate::process::{PROGRAM, Process, format, run};
use crate::restart::start_dev;
use crate::{PATIENCE, directory};

/// How soon a start is refused.
const REFUSED_MAX: Duration = Duration::from_secs(2);

/// Starts what must be refused in time, and gives what it says.
#[track_caller]
fn refused(command: Command) -> String {
    let mut process = Process::spawn(command);
    let status = process.wait(REFUSED_MAX).expect("it is refused at once");
    let complained = process.complained();
    assert!(!status.success(), "it was not refused: {complained}{}", process.said());
    assert!(status.code().is_some(), "it was refused by {status}, not in words: {complained}");
    complained
}

fn program<A: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments);
    command
}

fn serve(config: &Path) -> Command {
    program(["serve".as_ref(), "--config".as_ref(), config.as_os_str()])
}

#[test]
fn a_second_process_on_the_same_directory_is_refused() {
    let directory = directory();
    let data = directory.path().join("cluster");
    let (_first, endpoints) = start_dev(&data, &["--replicas", "3"]);
    let text = data.display().to_string();
    let complained = refused(program(["dev", "--replicas", "3", "--data", &text, "--listen", "127.0.0.1:0"]));
    assert!(complained.contains("in use by another process"), "{complained}");
    assert!(complained.contains(&text), "{complained}");
    leader(&endpoints, CellId(0), PATIENCE);
}

#[test]
fn a_second_node_on_the_same_directory_is_refused_by_the_directory_whatever_its_ports() {
    let mut cluster = Cluster::start(3);
    let place = cluster.places[0].clone();
    // Everything the same: the directory is the cause, and its ports only follow from it.
    let complained = refused(serve(&place.config));
    assert!(complained.contains("in use by another process"), "{complained}");
    // Other ports, the same directory.
    let text = std::fs::read_to_string(&place.config).expect("a configuration");
    let text = text
        .replace(&place.client.to_string(), &free_port().to_string())
        .replace(&place.peer.to_string(), &free_port().to_string());
    let other = cluster.directory.path().join("second.toml");
    std::fs::write(&other, text).expect("a file can be written");
    let complained = refused(serve(&other));
    assert!(complained.contains("in use by another process"), "{complained}");
    assert!(complained.contains(&place.data.display().to_string()), "{complained}");
    assert!((0..3).all(|at| cluster.process(at).is_running()));
    leader(&cluster.endpoints(), CellId(0), PATIENCE);
}

#[test]
fn a_port_that_somebody_has_is_named_and_the_other_one_is_not_kept() {
    let cluster = Cluster::format(1, 1, "");
    let place = &cluster.places[0];
    for (taken, free) in [(place.client, place.peer), (place.peer, place.client)] {
        let other = TcpListener::bind(taken).expect("a free port");
        let complained = refused(serve(&place.config));
        assert!(complained.contains(&format!("cannot listen on {taken}")), "{complained}");
        assert!(TcpStream::connect(free).is_err(), "it listens in part");
        drop(other);
    }
    let other = TcpListener::bind(free_port()).expect("a free port");
    let taken = other.local_addr().expect("it has an address").to_string();
    let directory = directory();
    let data = directory.path().join("cluster").display().to_string();
    let complained = refused(program(["dev", "--replicas", "1", "--data", &data, "--listen", &taken]));
    assert!(complained.contains(&format!("cannot listen on {taken}")), "{complained}");
}

#[test]
fn contradictions_in_the_configuration_are_refused_by_the_name_of_the_key() {
    let cluster = Cluster::format(3, 1, "");
    let place = &cluster.places[0];
    let good = std::fs::read_to_string(&place.config).expect("a configuration");
    let (client, peer) = (place.client.to_string(), place.peer.to_string());
    let absent = cluster.directory.path().join("absent").display().to_string();
    let cases: &[(&str, &str, &str)] = &[
        ("node = 1", "node = 1\ntiming.heartbeat_ms = 600", "timing.heartbeat_ms"),
        ("node = 1", "node = 1\ntiming.heartbeat_ms = 0", "timing.heartbeat_ms"),
        ("node = 1", "node = 1\ntiming.election_ms_max = 400", "timing.election_ms_max"),
        ("node = 1", "node = 1\ntiming.round_pace_ms = 60", "timing.round_pace_ms"),
        ("node = 1", "node = 1\ntiming.election = 5", "election"),
        ("node = 1", "node = 1\nunknown = 5", "unknown"),
        ("node = 1", "node = 9", "`node`"),
        ("node = 1", "", "`node`"),
        ("node = 1", "node = \"one\"", "node"),
        ("node = 1", "node = 1\ncells = 0", "cells"),
        ("node = 1", "node = 1\nlisten.client = \"nowhere\"", "listen.client"),
        ("id = 2", "id = 1", "nodes[1].id"),
        ("id = 2", "id = 2\nport = 1", "port"),
        (&client, &peer, "nodes[0].peer"),
        (&place.data.display().to_string(), &absent, &absent),
        ("[[nodes]]", "[[nodes", "line"),
    ];
    for (from, to, named) in cases {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from} is not in the configuration");
        let file = cluster.directory.path().join("bad.toml");
        std::fs::write(&file, bad).expect("a file can be written");
        let complained = refused(serve(&file));
        assert!(complained.contains(named), "`{named}` is not in: {complained}");
        assert!(TcpStream::connect(place.client).is_err() && TcpStream::connect(place.peer).is_err());
    }
    let complained = refused(serve(&cluster.directory.path().join("nowhere.toml")));
    assert!(complained.contains("nowhere.toml"), "{complained}");
}

#[test]
fn a_directory_is_formatted_once_and_served_only_when_it_is_whole() {
    let directory = directory();
    let data = directory.path().join("data");
    format(&data, 1, None, 1, SEGMENT_MIB);
    let text = data.display().to_string();
    let (status, _, complained) = run(["format", "--data", &text, "--node", "1"]);
    assert!(!status.success() && complained.contains("will not be formatted again"), "{complained}");

    // A disk that is not mounted looks like a directory without anything, or without segments.
    let cluster = Cluster::format(1, 1, "");
    let place = &cluster.places[0];
    let kept = cluster.directory.path().join("kept");
    std::fs::rename(&place.data, &kept).expect("a directory can be moved");
    std::fs::create_dir(&place.data).expect("a directory can be made");
    let complained = refused(serve(&place.config));
    assert!(complained.contains("not formatted"), "{complained}");
    // The refusal has left nothing behind that would forbid to format it.
    format(&place.data, 1, None, 1, SEGMENT_MIB);
    std::fs::remove_dir_all(&place.data).expect("a directory can be removed");
    std::fs::rename(&kept, &place.data).expect("a directory can be moved");
    for entry in std::fs::read_dir(&place.data).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.metadata().expect("a file").len() >= 1024 * 1024 {
            std::fs::remove_file(path).expect("a file can be removed");
        }
    }
    let complained = refused(serve(&place.config));
    assert!(complained.contains("no segment"), "{complained}");
}

#[test]
fn a_development_cluster_keeps_its_shape() {
    let directory = directory();
    let data = directory.path().join("cluster");
    let text = data.display().to_string();
    let (mut process, _) = start_dev(&data, &["--replicas", "1"]);
    process.kill();
    let complained = refused(program(["dev", "--replicas", "3", "--data", &text, "--listen", "127.0.0.1:0"]));
    assert!(complained.contains("--replicas 1"), "{complained}");
    let complained = refused(program(["dev", "--replicas", "2", "--listen", "127.0.0.1:0"]));
    assert!(complained.contains("1, 3, 5 or 7"), "{complained}");
}

/// A shell that lowers a limit and then becomes the program without the capabilities that pass by limits.
fn limited(limit: &str, rest: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let drop = if rustix::process::geteuid().is_root() {
        "exec setpriv --bounding-set=-ipc_lock,-sys_resource \"$@\""
    } else {
        "exec \"$@\""
    };
    command.args(["-c", &format!("{limit} && {drop}"), "sh", PROGRAM]).args(rest);
    command
}

fn is_there(tool: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {tool} >/dev/null")]).status();
    found.is_ok_and(|status| status.success())
}

#[test]
fn low_limits_are_named_with_what_is_needed() {
    if rustix::process::geteuid().is_root() && !is_there("setpriv") {
        println!("SKIPPED: root passes by limits, and there is no setpriv to take that away");
        return;
    }
    let cluster = Cluster::format(1, 1, "");
    let config = cluster.places[0].config.display().to_string();
    let serve = ["serve", "--config", &config];
    let complained = refused(limited("ulimit -n 128", &serve));
    assert!(complained.contains("RLIMIT_NOFILE") && complained.contains("128"), "{complained}");
    assert!(complained.contains("are needed"), "{complained}");
    let complained = refused(limited("ulimit -l 64", &serve));
    assert!(complained.contains("RLIMIT_MEMLOCK") && complained.contains("64 KiB"), "{complained}");
    assert!(complained.contains("are needed"), "{complained}");
}

/// A file system that has no direct I/O.
#[test]
fn a_directory_without_direct_io_is_named_with_its_file_system() {
    let directory = directory();
    let mounted = directory.path().join("ramfs");
    std::fs::create_dir(&mounted).expect("a directory can be made");
    let mounted = mounted.display().to_string();
    // The mount is in a name space of the process's own and goes with it.
    let mut unshare = vec!["--mount"];
    if !rustix::process::geteuid().is_root() {
        unshare.push("--map-root-user");
    }
    let mount = "mount -t ramfs lockstep-test \"$0\"";
    let can = Command::new("unshare").args(&unshare).args(["sh", "-c", mount, &mounted]).status();
    if !can.is_ok_and(|status| status.success()) {
        println!("SKIPPED: no ramfs can be mounted here");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(&unshare).args(["sh", "-c", &format!("{mount} && exec \"$@\""), &mounted, PROGRAM]);
    command.args(["dev", "--replicas", "1", "--listen", "127.0.0.1:0", "--data", &format!("{mounted}/data")]);
    let complained = refused(command);
    assert!(complained.contains("ramfs") && complained.contains("O_DIRECT"), "{complained}");
    assert!(complained.contains(&mounted), "{complained}");
}
