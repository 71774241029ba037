//! The commands for a shell: `lock`, `get`, `check`, `status`, against a running cluster.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockstep_wire::CellId;
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Cluster, config, free_port};
use crate::connection::leader;
use crate::process::{PROGRAM, Process};
use crate::restart::start_dev;
use crate::{PATIENCE, directory, until};

const NAME: &str = "/ls/demo/job";
const NOT_ACQUIRED: Option<i32> = Some(75);
const LOST: Option<i32> = Some(76);

/// A command of the program against these endpoints.
fn command(endpoints: &[SocketAddr], arguments: &[&str]) -> Process {
    let endpoints: Vec<String> = endpoints.iter().map(SocketAddr::to_string).collect();
    let mut command = Command::new(PROGRAM);
    let (options, rest) = match arguments.iter().position(|argument| *argument == "--") {
        Some(at) => arguments.split_at(at),
        None => (arguments, &[] as &[&str]),
    };
    command.args(options).args(["--endpoints", &endpoints.join(",")]).args(rest);
    Process::spawn(command)
}

/// Runs it to its end: exit code, stdout, stderr.
#[track_caller]
fn done(endpoints: &[SocketAddr], arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut process = command(endpoints, arguments);
    let status = process.wait(PATIENCE).expect("the command ends");
    (status.code(), process.said(), process.complained())
}

fn token_of(said: &str) -> u64 {
    let said = said.trim();
    said.strip_prefix("token ")
        .and_then(|token| token.parse().ok())
        .unwrap_or_else(|| panic!("said {said:?}"))
}

/// Whether a process runs; one that nobody has waited for yet does not.
fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

/// Whoever waits for the lock, by position.
fn waiting(endpoints: &[SocketAddr]) -> u64 {
    let (code, said, complained) = done(endpoints, &["get", NAME, "--json"]);
    assert_eq!(code, Some(0), "{complained}");
    let lock: Value = serde_json::from_str(&said).expect("JSON");
    lock["waiters_total"].as_u64().expect("a number")
}

#[test]
fn the_tour_works_and_shells_take_turns_in_order_of_arrival() {
    let directory = directory();
    let (_cluster, endpoints) = start_dev(&directory.path().join("cluster"), &[]);
    leader(&endpoints, CellId(0), PATIENCE);
    let show = ["lock", NAME, "--", "sh", "-c", "echo token $LOCKSTEP_TOKEN"];
    let (code, said, complained) = done(&endpoints, &show);
    assert_eq!(code, Some(0), "{complained}");
    let mut last = token_of(&said);

    let gate = directory.path().join("gate");
    let order = directory.path().join("order");
    let hold = format!(
        "echo token $LOCKSTEP_TOKEN; echo $0 >> {order}; until test -e {gate}; do sleep 0.02; done",
        order = order.display(),
        gate = gate.display()
    );
    let mut shells = Vec::new();
    for number in 0..4_u64 {
        let number_text = number.to_string();
        shells.push(command(&endpoints, &["lock", NAME, "--", "sh", "-c", &hold, &number_text]));
        if number == 0 {
            let first = &shells[0];
            until("the first has it", PATIENCE, || first.said().contains('\n').then_some(()));
        }
        until("it stands in line", PATIENCE, || (waiting(&endpoints) == number).then_some(()));
    }
    let (code, _, complained) = done(&endpoints, &["lock", NAME, "--try", "--", "true"]);
    assert_eq!(code, NOT_ACQUIRED, "{complained}");
    let (code, _, complained) = done(&endpoints, &["lock", NAME, "--wait", "200ms", "--", "true"]);
    assert_eq!(code, NOT_ACQUIRED, "{complained}");
    let first = token_of(&shells[0].said());
    let (code, ..) = done(&endpoints, &["check", NAME, &first.to_string()]);
    assert_eq!(code, Some(0));
    std::fs::write(&gate, "").expect("a file can be written");
    for shell in &mut shells {
        let status = shell.wait(PATIENCE).expect("it gets its turn");
        assert!(status.success(), "{}", shell.complained());
        let token = token_of(&shell.said());
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    assert_eq!(std::fs::read_to_string(&order).expect("each wrote a line"), "0\n1\n2\n3\n");
    let (code, ..) = done(&endpoints, &["check", NAME, &first.to_string()]);
    assert_eq!(code, Some(1), "a token of a hold that is over is stale");
    let (code, _, complained) = done(&endpoints, &["lock", NAME, "--", "sh", "-c", "exit 7"]);
    assert_eq!(code, Some(7), "{complained}");
    let (code, said, _) = done(&endpoints, &["status", "--json"]);
    let status: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, status["cells"].as_array().map(Vec::len)), (Some(0), Some(1)), "{said}");
}

#[test]
fn a_cluster_that_is_not_there_has_its_own_exit_code() {
    let nowhere = [free_port()];
    for arguments in
        [&["lock", NAME, "--timeout", "500ms", "--", "true"][..], &["get", NAME, "--timeout", "500ms"]]
    {
        let (code, _, complained) = done(&nowhere, arguments);
        assert_eq!(code, Some(69), "{complained}");
        assert!(complained.contains(&nowhere[0].to_string()), "{complained}");
    }
}

/// Whoever is cut off stops its command before anybody else can have the lock, even one that ignores TERM.
#[test]
fn a_command_is_dead_before_the_lock_goes_to_somebody_else() {
    let mut cluster = Cluster::format(1, 1, "");
    let place = cluster.places[0].clone();
    // Clients are told the address of a relay that can be cut; whoever knows better goes to the node itself.
    let direct = free_port();
    let text = config(&place, &cluster.places, &format!("listen.client = \"{direct}\""));
    std::fs::write(&place.config, text).expect("a file can be written");
    cluster.start_all();
    drop(leader(&[direct], CellId(0), PATIENCE));
    for script in ["sleep 60", "trap 'echo told' TERM; while :; do sleep 0.05; done"] {
        let relay = Relay::start(place.client, direct);
        let script_text = format!("echo token $LOCKSTEP_TOKEN $$; {script}");
        let holding = ["lock", NAME, "--ttl", "2s", "--", "sh", "-c", &script_text];
        let mut holder = command(&[place.client], &holding);
        let child = pid_of_child(&holder);
        relay.cut();
        let cut_off = Instant::now();
        // What the next holder's command sees of the former one.
        let look = "if grep -qs 'State:.[^ZX]' /proc/$0/status; then echo alive; else echo dead; fi";
        let waiting = ["lock", NAME, "--wait", "15s", "--", "sh", "-c", look, &child];
        let (code, said, complained) = done(&[direct], &waiting);
        println!("granted to the next {:.2?} after the holder was cut off, TTL 2 s", cut_off.elapsed());
        assert_eq!((code, said.trim()), (Some(0), "dead"), "{complained}");
        let status = holder.wait(Duration::from_secs(5)).expect("it ends when its lease does");
        assert_eq!(status.code(), LOST, "{}", holder.complained());
        assert_eq!(script.contains("trap"), holder.said().contains("told"));
    }
}

/// The process id that a command under a lock has said behind its token.
#[track_caller]
fn pid_of_child(holder: &Process) -> String {
    let said = until("it has the lock", PATIENCE, || {
        let said = holder.said();
        said.contains('\n').then_some(said)
    });
    said.split_whitespace().nth(2).expect("its pid").to_owned()
}

/// Passes bytes on between clients and a node until it is cut; then both sides hear nothing any more, not even an end.
struct Relay {
    is_cut: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Relay {
    fn start(from: SocketAddr, to: SocketAddr) -> Relay {
        // A process that another test is about to start may have the former relay's for a moment.
        let listener = until("the port is free", PATIENCE, || TcpListener::bind(from).ok());
        listener.set_nonblocking(true).expect("an option can be set");
        let (is_cut, is_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (cut, over) = (Arc::clone(&is_cut), Arc::clone(&is_over));
        let accepting = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((client, _)) => {
                        let node = TcpStream::connect(to).expect("the node listens");
                        let back = (node.try_clone(), client.try_clone());
                        pass_on(client, node, &cut, &over);
                        pass_on(back.0.expect("a copy"), back.1.expect("a copy"), &cut, &over);
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Relay { is_cut, is_over, accepting: Some(accepting) }
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }
}

/// Passes on what comes from one side to the other, on a thread of its own that ends with the relay.
fn pass_on(mut from: TcpStream, mut to: TcpStream, cut: &Arc<AtomicBool>, over: &Arc<AtomicBool>) {
    let (cut, over) = (Arc::clone(cut), Arc::clone(over));
    from.set_nonblocking(false).expect("an option can be set");
    from.set_read_timeout(Some(Duration::from_millis(10))).expect("an option can be set");
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while !over.load(Ordering::Relaxed) {
            match from.read(&mut bytes) {
                Ok(0) => break,
                Ok(_) if cut.load(Ordering::Relaxed) => {}
                Ok(count) => {
                    if to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => break,
            }
        }
    });
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

#[test]
fn a_command_dies_with_the_process_that_holds_its_lock() {
    let directory = directory();
    let (_cluster, endpoints) = start_dev(&directory.path().join("cluster"), &["--replicas", "1"]);
    leader(&endpoints, CellId(0), PATIENCE);
    let script = "echo token $LOCKSTEP_TOKEN $$; exec sleep 60";
    let mut holder = command(&endpoints, &["lock", NAME, "--ttl", "1s", "--", "sh", "-c", script]);
    let child = pid_of_child(&holder);
    holder.kill();
    until("its command is gone", PATIENCE, || (!lives(&child)).then_some(()));
    let (code, ..) = done(&endpoints, &["lock", NAME, "--wait", "10s", "--", "true"]);
    assert_eq!(code, Some(0), "the lock is free after the TTL");
}

/// `lockstep lock` itself is stopped past its TTL.
#[test]
fn a_stopped_lock_command_ends_as_lost_when_it_goes_on() {
    let directory = directory();
    let (_cluster, endpoints) = start_dev(&directory.path().join("cluster"), &["--replicas", "1"]);
    leader(&endpoints, CellId(0), PATIENCE);
    let script = "echo token $LOCKSTEP_TOKEN; exec sleep 60";
    let mut holder = command(&endpoints, &["lock", NAME, "--ttl", "1s", "--", "sh", "-c", script]);
    until("it has the lock", PATIENCE, || holder.said().contains('\n').then_some(()));
    let token = token_of(&holder.said());
    holder.stand_still();
    let show = ["lock", NAME, "--wait", "10s", "--", "sh", "-c", "echo token $LOCKSTEP_TOKEN"];
    let (code, said, complained) = done(&endpoints, &show);
    assert_eq!(code, Some(0), "{complained}");
    assert!(token_of(&said) > token);
    holder.signal(Signal::CONT);
    let status = holder.wait(Duration::from_secs(5)).expect("it ends at once");
    assert_eq!(status.code(), LOST, "{}", holder.complained());
    let (code, ..) = done(&endpoints, &["check", NAME, &token.to_string()]);
    assert_eq!(code, Some(1), "its token is refused");
}

#[test]
fn whoever_locks_in_a_cell_that_is_not_born_is_told_so() {
    let mut cluster = Cluster::format(3, 1, "");
    cluster.start_node(0);
    until("the node answers", PATIENCE, || {
        let arguments = ["lock", NAME, "--timeout", "1s", "--", "true"];
        let (code, said, complained) = done(&cluster.endpoints()[..1], &arguments);
        assert_eq!((code, said.as_str()), (Some(69), ""), "{complained}");
        complained.contains("cell 0: not born yet; every one of its members").then_some(())
    });
}
