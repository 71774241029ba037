//! A soak of three nodes, one of which is away for the middle third of it: disk, memory, catching up, tokens.
//!
//! Invariant: whatever does not hold, or was not seen, ends it with a code other than 0. Deliberately absent: times; they
//! are for a machine that does nothing else.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Parser, ValueEnum};
use lockstep_benches::machine;
use lockstep_benches::nodes::{End, Nodes};
use lockstep_benches::question::MemberStatus;
use lockstep_benches::soak::{Directory, DiskUse, MemoryUse, Mib, Verdict};
use lockstep_loadgen::fleet;
use lockstep_loadgen::gauge::memory_of;
use lockstep_loadgen::profile::soak;
use lockstep_wire::LogIndex;

const NODES: u16 = 3;
/// Between two looks into the data directories.
const DISK_LOOK: Duration = Duration::from_millis(100);
/// How long a new cell may take to be born.
const BIRTH_MAX: Duration = Duration::from_secs(20);
/// How long the nodes may take to have applied the same, once nobody writes any more.
const AGREEMENT_MAX: Duration = Duration::from_secs(30);
/// Lasting locks of one client at most; a session may have 1,024.
const LOCKS_PER_CLIENT_MAX: u32 = 500;
/// What a node says when it has caught up by a snapshot.
const INSTALLED: &str = "the leader's snapshot was installed";

/// Runs three `lockstep serve` processes under load, takes one away for the middle third, and says whether disk, memory and
/// snapshots stayed as small as they were.
#[derive(Debug, Parser)]
struct Arguments {
    /// Acquires and releases. Every fourth of them is of a name that nobody has used before.
    #[arg(long, default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    writes: u64,
    /// Locks that are held for the whole run.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    locks: u32,
    /// The size of a segment of the log, in MiB.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_024))]
    segment_mib: u64,
    /// Simulated clients, each with a session of its own; more are taken if the locks need them.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Which node is taken away.
    #[arg(long, value_enum, default_value_t = Victim::Leader)]
    victim: Victim,
    /// How it is taken away.
    #[arg(long, value_enum, default_value_t = End::Kill)]
    end: End,
    /// When the run is given up, in seconds.
    #[arg(long, default_value_t = 14_400, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// How often a line is printed, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    every: u32,
    /// The first of the six ports that the nodes listen on.
    #[arg(long, default_value_t = 17_400)]
    port: u16,
    /// Where the files go: a directory on a real disk. A new one beside this program by default.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Victim {
    Leader,
    Follower,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let beside = match &arguments.data {
        Some(directory) => directory.clone(),
        None => std::env::current_exe()?.parent().context("a program lies in a directory")?.to_owned(),
    };
    std::fs::create_dir_all(&beside).with_context(|| format!("{}", beside.display()))?;
    let directory = tempfile::Builder::new().prefix("soak-").tempdir_in(&beside)?;
    println!("{}", machine(&beside));
    let verdicts = run(&arguments, directory.path())?;
    println!();
    verdicts.iter().for_each(|verdict| println!("{verdict}"));
    let is_held = verdicts.iter().all(|verdict| verdict.is_held);
    Ok(if is_held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(arguments: &Arguments, directory: &Path) -> anyhow::Result<Vec<Verdict>> {
    let segment_bytes = arguments.segment_mib << 20;
    let mut nodes = Nodes::format(directory, NODES, arguments.port, segment_bytes)?;
    (0..nodes.places().len()).try_for_each(|at| nodes.start(at))?;
    nodes.await_leader(BIRTH_MAX)?;
    let options = options(arguments, &nodes);
    let clients = u64::from(options.fleet.clients);
    let data: Vec<PathBuf> = nodes.places().iter().map(|place| place.data.clone()).collect();
    let mut course = Course::new(arguments, nodes);
    let is_over = AtomicBool::new(false);
    let (report, disks) = thread::scope(|scope| {
        let looking = scope.spawn(|| watch_disks(&data, &is_over));
        let report = soak::run_watched(&options, |progress| course.on_second(progress));
        is_over.store(true, Ordering::Relaxed);
        let disks = looking.join().expect("looking does not panic").context("looking into a data directory");
        anyhow::Ok((report?, disks?))
    })?;
    print!("{report}");
    if let Some(trouble) = course.trouble.take() {
        return Err(trouble);
    }

    let enough = report.is_success() && report.writes >= arguments.writes;
    let mut verdicts = vec![Verdict {
        is_held: enough,
        text: format!(
            "load: {} of {} writes under {} locks, {} calls failed",
            report.writes, arguments.writes, arguments.locks, report.failures
        ),
    }];
    verdicts.push(Verdict {
        is_held: report.names_new > 0 && report.names_again > 0,
        text: format!(
            "tokens: {} distinct names, {} times one came again and had a greater token",
            report.names_new, report.names_again
        ),
    });
    verdicts.push(course.catching_up.verdict(arguments));
    let (begin, end) = course.loaded.unwrap_or_default();
    for (at, disk) in disks.iter().enumerate() {
        let node = at + 1;
        verdicts.push(disk.verdict(node, segment_bytes));
        let since = course.catching_up.level_since(at).unwrap_or(begin.second);
        verdicts.push(course.memory[at].verdict(node, since, end.second));
        verdicts.push(disk.snapshots_verdict(node, (begin.committed, end.committed), clients));
    }
    verdicts.push(agreement(&course.nodes)?);
    for at in 0..course.nodes.places().len() {
        course.nodes.end(at, End::Term)?;
    }
    Ok(verdicts)
}

fn options(arguments: &Arguments, nodes: &Nodes) -> soak::Options {
    let endpoints = nodes.places().iter().map(|place| place.client).map(|at: SocketAddr| at.to_string());
    soak::Options {
        fleet: fleet::Options {
            endpoints: endpoints.collect(),
            clients: arguments.clients.max(arguments.locks.div_ceil(LOCKS_PER_CLIENT_MAX)),
            sessions_per_connection: 16,
            seconds: arguments.seconds,
            cores: 1,
            ttl_ms: 10_000,
        },
        live: arguments.locks,
        writes: arguments.writes,
        names: 10_000,
        pids: Vec::new(),
        data: Vec::new(),
        every: arguments.every,
    }
}

/// Looks into the data directories until the run is over.
fn watch_disks(data: &[PathBuf], is_over: &AtomicBool) -> std::io::Result<Vec<DiskUse>> {
    let mut disks = vec![DiskUse::default(); data.len()];
    while !is_over.load(Ordering::Relaxed) {
        for (disk, path) in disks.iter_mut().zip(data) {
            disk.on_look(&Directory::look(path)?);
        }
        thread::sleep(DISK_LOOK);
    }
    Ok(disks)
}

/// A moment of the run.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    second: u32,
    committed: LogIndex,
}

/// What is done to the nodes while the load goes on, and what is seen of them.
struct Course {
    writes: u64,
    locks: u64,
    every: u32,
    victim: Victim,
    end: End,
    nodes: Nodes,
    memory: Vec<MemoryUse>,
    /// From when on all locks were held, and until when.
    loaded: Option<(Moment, Moment)>,
    catching_up: CatchingUp,
    /// What ended the run early.
    trouble: Option<anyhow::Error>,
}

/// How the node that is taken away comes back.
#[derive(Debug)]
enum CatchingUp {
    NotAway,
    Away { at: usize },
    Behind { at: usize, said_before: u64, since: Instant },
    Level { at: usize, installed: Option<String>, after: Duration, second: u32 },
}

impl CatchingUp {
    /// From when on a node's memory is that of the process that it has in the end, if that is not the first one.
    fn level_since(&self, node: usize) -> Option<u32> {
        match self {
            CatchingUp::Level { at, second, .. } if *at == node => Some(*second),
            CatchingUp::NotAway
            | CatchingUp::Away { .. }
            | CatchingUp::Behind { .. }
            | CatchingUp::Level { .. } => None,
        }
    }

    fn verdict(&self, arguments: &Arguments) -> Verdict {
        let how = match arguments.end {
            End::Term => "told to stop",
            End::Kill => "killed",
        };
        match self {
            CatchingUp::Level { at, installed: Some(line), after, .. } => Verdict {
                is_held: true,
                text: format!(
                    "catching up: node {} was {how} for a third of the writes, and level {after:.1?} after its start: {line}",
                    at + 1
                ),
            },
            CatchingUp::Level { at, installed: None, .. } => Verdict {
                is_held: false,
                text: format!(
                    "catching up: node {} was {how} and is level without a snapshot: it was away for too few writes; take \
                     more, or smaller segments",
                    at + 1
                ),
            },
            CatchingUp::NotAway | CatchingUp::Away { .. } | CatchingUp::Behind { .. } => Verdict {
                is_held: false,
                text: format!("catching up: when the load ended, this was as far as it came: {self:?}"),
            },
        }
    }
}

impl Course {
    fn new(arguments: &Arguments, nodes: Nodes) -> Course {
        Course {
            writes: arguments.writes,
            locks: u64::from(arguments.locks),
            every: arguments.every,
            victim: arguments.victim,
            end: arguments.end,
            memory: vec![MemoryUse::default(); nodes.places().len()],
            nodes,
            loaded: None,
            catching_up: CatchingUp::NotAway,
            trouble: None,
        }
    }

    fn on_second(&mut self, progress: soak::Progress) -> ControlFlow<()> {
        match self.go_on(progress) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.trouble = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    fn go_on(&mut self, progress: soak::Progress) -> anyhow::Result<()> {
        self.nodes.check()?;
        self.look_at_memory(progress.second);
        if progress.is_enough {
            return Ok(());
        }
        let leader = self.nodes.leader();
        if let Some((_, leader)) = leader
            && (progress.held == self.locks || self.loaded.is_some())
        {
            let now = Moment { second: progress.second, committed: leader.committed };
            self.loaded = Some((self.loaded.map_or(now, |(begin, _)| begin), now));
        }
        self.catch_up(progress, leader)
    }

    fn look_at_memory(&mut self, second: u32) {
        let mut seen = Vec::new();
        for (at, memory) in self.memory.iter_mut().enumerate() {
            // Between two looks it may have ended, which is found out by whoever checks.
            let bytes = self.nodes.process(at).and_then(|process| memory_of(process).ok());
            if let Some(bytes) = bytes {
                memory.on_look(second, bytes);
            }
            seen.push(bytes.map_or("away".to_owned(), |bytes| Mib(bytes).to_string()));
        }
        if second.is_multiple_of(self.every) {
            println!("{second:>5} s: memory {}", seen.join(", "));
        }
    }

    fn catch_up(
        &mut self,
        progress: soak::Progress,
        leader: Option<(usize, MemberStatus)>,
    ) -> anyhow::Result<()> {
        let soak::Progress { second, writes, .. } = progress;
        match self.catching_up {
            CatchingUp::NotAway if writes >= self.writes / 3 => {
                let Some((leader, _)) = leader else { return Ok(()) };
                let at = match self.victim {
                    Victim::Leader => leader,
                    Victim::Follower => (leader + 1) % self.nodes.places().len(),
                };
                println!("node {} is taken away after {writes} writes", at + 1);
                self.nodes.end(at, self.end)?;
                self.catching_up = CatchingUp::Away { at };
            }
            CatchingUp::Away { at } if writes >= self.writes * 2 / 3 => {
                println!("node {} is started after {writes} writes", at + 1);
                let (said_before, since) = (self.nodes.said_len(at), Instant::now());
                self.nodes.start(at)?;
                self.catching_up = CatchingUp::Behind { at, said_before, since };
            }
            CatchingUp::Behind { at, said_before, since } => {
                // The leader was asked first: whoever has applied that much now is not behind.
                let Some((_, leader)) = leader else { return Ok(()) };
                let own = self.nodes.status(at).ok();
                if own.is_some_and(|own| own.applied >= leader.committed && leader.committed > LogIndex(0)) {
                    let installed = self.nodes.line_with(at, said_before, INSTALLED);
                    let after = since.elapsed();
                    println!("node {} is level {after:.1?} after its start, after {writes} writes", at + 1);
                    self.catching_up = CatchingUp::Level { at, installed, after, second };
                }
            }
            CatchingUp::NotAway | CatchingUp::Away { .. } | CatchingUp::Level { .. } => {}
        }
        Ok(())
    }
}

/// Whether every node has applied the same in the end, and no lock is left.
fn agreement(nodes: &Nodes) -> anyhow::Result<Verdict> {
    let deadline = Instant::now() + AGREEMENT_MAX;
    loop {
        let all: anyhow::Result<Vec<MemberStatus>> =
            (0..nodes.places().len()).map(|at| nodes.status(at)).collect();
        let all = all?;
        let first = *all.first().context("there are nodes")?;
        let is_same = all.iter().all(|own| own.applied == first.applied && own.digest == first.digest);
        let is_empty = first.locks == 0 && first.sessions == 0;
        if (is_same && is_empty) || Instant::now() > deadline {
            let text = format!(
                "end: {} entries; the nodes {}; {} locks and {} sessions are left",
                first.applied,
                if is_same { "agree on the state" } else { "do not agree" },
                first.locks,
                first.sessions
            );
            return Ok(Verdict { is_held: is_same && is_empty, text });
        }
        thread::sleep(DISK_LOOK);
    }
}
