//! A process of the built program: started, signalled, watched, and ended by its pid.
//!
//! Invariant: a process does not outlive its value, and whatever it wrote was read.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_lockstep");

/// A running process, or one that has ended.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    out: Output,
    err: Output,
}

impl Process {
    /// Starts the program with these arguments.
    pub(crate) fn start<A: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = A>) -> Process {
        let mut command = Command::new(PROGRAM);
        command.args(arguments);
        Process::spawn(command)
    }

    /// Starts a command whose output is read.
    pub(crate) fn spawn(mut command: Command) -> Process {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_remove("LOCKSTEP_LOG").env_remove("LOCKSTEP_ENDPOINTS");
        let mut child = command.spawn().expect("the program can be started");
        let out = Output::of(child.stdout.take().expect("its output is piped"));
        let err = Output::of(child.stderr.take().expect("its errors are piped"));
        Process { child, out, err }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a process of ours takes a signal");
    }

    /// Stops it, and waits until none of its threads runs any more.
    pub(crate) fn stand_still(&self) {
        self.signal(Signal::STOP);
        crate::until("every thread stands still", crate::PATIENCE, || self.is_standing_still().then_some(()));
    }

    fn is_standing_still(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it has threads");
        tasks.filter_map(Result::ok).all(|task| {
            // A thread that is gone meanwhile does not run either.
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit(')').next().is_none_or(|rest| rest.trim_start().starts_with('T'))
        })
    }

    /// Ends it as a loss of power would, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a process of ours can be killed");
        self.child.wait().expect("a killed process ends");
    }

    /// Waits for its end; none when it goes on.
    pub(crate) fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait().expect("a process of ours can be waited for") {
                self.out.finish();
                self.err.finish();
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether it runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.wait(Duration::ZERO).is_none()
    }

    /// What it has said on stdout so far.
    pub(crate) fn said(&self) -> String {
        self.out.text()
    }

    /// What it has said on stderr so far.
    pub(crate) fn complained(&self) -> String {
        self.err.text()
    }

    /// How much memory it has, in KiB.
    pub(crate) fn memory_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("a running process has a status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it has memory");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("in KiB")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is waited for, so that its pid means nobody else.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- stderr of process {}:\n{}---", self.child.id(), self.err.text());
        }
    }
}

/// Runs the program to its end, which must come soon, and gives what it said: status, stdout, stderr.
#[track_caller]
pub(crate) fn run<A: AsRef<std::ffi::OsStr>>(
    arguments: impl IntoIterator<Item = A>,
) -> (ExitStatus, String, String) {
    let mut process = Process::start(arguments);
    let status = process.wait(crate::PATIENCE).expect("the command comes to an end");
    (status, process.said(), process.complained())
}

/// Formats a data directory and gives the cluster's id.
#[track_caller]
pub(crate) fn format(data: &Path, node: u16, cluster: Option<&str>, shards: u16, segment_mib: u64) -> String {
    let mut arguments = vec!["format".to_owned(), "--data".to_owned(), data.display().to_string()];
    arguments.extend(["--node".to_owned(), node.to_string(), "--shards".to_owned(), shards.to_string()]);
    arguments.extend(["--segment-mib".to_owned(), segment_mib.to_string()]);
    if let Some(cluster) = cluster {
        arguments.extend(["--cluster".to_owned(), cluster.to_owned()]);
    }
    let (status, said, complained) = run(arguments);
    assert!(status.success(), "format: {complained}");
    let first = said.lines().next().expect("format says what it did");
    first.rsplit(' ').next().expect("the cluster's id comes last").to_owned()
}

/// What came out of a pipe so far.
#[derive(Debug)]
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Output {
    fn of(mut pipe: impl Read + Send + 'static) -> Output {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut piece) {
                shared.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..count]);
            }
        });
        Output { bytes, reader: Some(reader) }
    }

    fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("a reader does not panic");
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}
