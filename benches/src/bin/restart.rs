//! How long a node with a large state takes to start, and what its snapshots cost it while it runs.
//!
//! Invariant: a start is a process of its own over real files, timed from its spawn to its own word that it serves, and on
//! to the first session that it opens. Deliberately absent: other members; a start waits for none.

use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use hdrhistogram::Histogram;
use lockstep_benches::client::{Figures, Load, drive};
use lockstep_benches::large::{CELL, Clients, Large};
use lockstep_benches::machine;
use lockstep_benches::process::Process;
use lockstep_benches::question::find_leader;
use lockstep_benches::table::Bench;
use lockstep_core::table::{Limits, TableLoader};
use lockstep_ring::storage::{DataDirectory, ReadOnlyDirectory};
use lockstep_server::format::{Format, format, random_cluster};
use lockstep_server::{Claim, Node, NodeAddress, NodeConfig, Ports, Timing};
use lockstep_wal::disk::{FileName, StorageRead};
use lockstep_wal::{SnapshotId, load_snapshot};
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::{CellId, NodeId};
use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

const NODE: NodeId = NodeId(1);
/// How long a start may take before it counts as none.
const START_MAX: Duration = Duration::from_secs(60);
/// Snapshots that a log has seen when it is as long as it ever gets.
const SNAPSHOTS: usize = 3;
/// Pairs of entries that are timed in one window.
const WINDOW: usize = 20_000;
/// Windows without a snapshot under way, and as many with one.
const WINDOWS: usize = 10;
/// Connections that drive a node, each with one pair under way.
const CONNECTIONS: usize = 64;
/// How long each window of a node under load is, and how much before it does not count.
const LOAD_WINDOW: Duration = Duration::from_millis(250);
const LOAD_WARM_UP: Duration = Duration::from_millis(50);
/// How long it may take until there are windows enough.
const LOAD_MAX: Duration = Duration::from_secs(600);
/// The longest time of an entry that is told apart, in ns.
const ENTRY_NS_MAX: u64 = 1_000_000_000;
/// Pairs of entries between two slices: what a busy cell applies while the disk takes one.
const BETWEEN_SLICES: usize = 1_000;

/// Times restarts of a node with many sessions and locks, and what a snapshot adds to a turn and to an entry.
#[derive(Debug, Parser)]
struct Arguments {
    /// Starts of each kind.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Sessions.
    #[arg(long, default_value_t = 200_000)]
    sessions: u64,
    /// Locks that each of them holds.
    #[arg(long, default_value_t = 5)]
    locks_each: u64,
    /// The size of a segment, in MiB.
    #[arg(long, default_value_t = 64)]
    segment_mib: u64,
    /// Windows of a node under load with a snapshot under way, and as many without one.
    #[arg(long, default_value_t = 10)]
    windows: usize,
    /// Where the files go: a directory on a real disk. A new one beside this program by default.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Be the node: start over this directory, and serve until the end of standard input.
    #[arg(long, hide = true, value_name = "DIR")]
    serve: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(data) = &arguments.serve {
        return serve(data);
    }
    ensure!(arguments.runs > 0 && arguments.sessions > 0 && arguments.locks_each > 0, "nothing to measure");
    let beside = match &arguments.data {
        Some(directory) => directory.clone(),
        None => std::env::current_exe()?.parent().context("a program lies in a directory")?.to_owned(),
    };
    std::fs::create_dir_all(&beside).with_context(|| format!("{}", beside.display()))?;
    let directory = tempfile::Builder::new().prefix("restart-").tempdir_in(&beside)?;
    println!("{}", machine(&beside));
    let Prepared { fresh, late, snapshot, mut bench, mut clients } = prepare(directory.path(), &arguments)?;
    println!(
        "{} sessions, {} locks; {} entries ever, the newest snapshot through {}",
        bench.table.sessions_len(),
        bench.table.locks_len(),
        bench.index,
        snapshot.index
    );
    println!();
    slices(&mut bench, &mut clients);
    windows(&mut bench, &mut clients)?;
    // Whoever starts has the machine's memory.
    drop((bench, clients));
    loads(&late, snapshot, arguments.runs)?;
    println!();
    println!("start of a node                        p50       worst");
    for (what, data) in [("right after a snapshot", &fresh), ("right before the next one", &late)] {
        let mut starts = Vec::new();
        for _ in 0..arguments.runs {
            starts.push(Started::new(data)?);
        }
        let times = |time: fn(&Started) -> Duration| starts.iter().map(time).collect::<Vec<_>>();
        print_times(&format!("{what}: it serves"), &mut times(|start| start.serving));
        print_times("  of work", &mut times(|start| start.serving_work));
        print_times(&format!("{what}: it grants"), &mut times(|start| start.granting));
        print_times("  of work", &mut times(|start| start.granting_work));
    }
    println!();
    if arguments.windows > 0 {
        under_load(&late, arguments.windows)?;
    }
    Ok(())
}

/// What is measured.
struct Prepared {
    /// A data directory right after a snapshot.
    fresh: PathBuf,
    /// The same right before the next one is due: no start has more to replay.
    late: PathBuf,
    /// The newest snapshot of both.
    snapshot: SnapshotId,
    bench: Bench,
    clients: Clients,
}

fn prepare(directory: &Path, arguments: &Arguments) -> anyhow::Result<Prepared> {
    let (fresh, late) = (directory.join("fresh"), directory.join("late"));
    let segment_bytes = arguments.segment_mib * 1024 * 1024;
    format(&late, &Format { cluster: random_cluster()?, node: NODE, shards: 1, segment_bytes })?;
    Started::new(&late).context("the birth of a node")?;
    let mut large = Large::fill(&late, arguments.sessions, arguments.locks_each)?;
    let mut snapshot = large.take_snapshot()?;
    for _ in 1..SNAPSHOTS {
        large.work_until_due()?;
        snapshot = large.take_snapshot()?;
    }
    std::fs::create_dir(&fresh)?;
    for entry in std::fs::read_dir(&late)? {
        let entry = entry?;
        let copy = fresh.join(entry.file_name());
        std::fs::copy(entry.path(), &copy)?;
        // As if the node itself had written it: nothing of it is in the kernel's cache.
        let copy = std::fs::File::open(copy)?;
        copy.sync_all()?;
        rustix::fs::fadvise(&copy, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    large.work_until_due()?;
    let Large { mut bench, clients, .. } = large;
    bench.keep_entries(false);
    Ok(Prepared { fresh, late, snapshot, bench, clients })
}

/// Writes a whole snapshot while entries go on, and says how long a slice takes: by the clock, and by the time that this
/// thread had the processor, which is what is left when the machine has other work, too.
fn slices(bench: &mut Bench, clients: &mut Clients) {
    let (mut elapsed, mut worked, mut piece) = (Vec::new(), Vec::new(), Vec::new());
    bench.table.begin_snapshot();
    while bench.table.is_snapshot_under_way() {
        piece.clear();
        let (begun, work_begun) = (Instant::now(), worked_so_far());
        black_box(bench.table.write_snapshot(&mut piece, SNAPSHOT_PIECE_BYTES_MAX));
        worked.push(worked_so_far() - work_begun);
        elapsed.push(begun.elapsed());
        for _ in 0..BETWEEN_SLICES {
            let (client, name, hold) = clients.next_hold();
            bench.retake(client, &name, hold);
        }
    }
    for (what, times) in [("by the clock", &mut elapsed), ("of work", &mut worked)] {
        times.sort_unstable();
        println!(
            "a slice of a snapshot, {} of them, {what}: p50 {:.0?}, p99 {:.0?}, longest {:.0?}",
            times.len(),
            times[times.len() / 2],
            times[times.len() * 99 / 100],
            times[times.len() - 1]
        );
    }
}

/// How long a process has had a processor.
fn work_of(pid: u32) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let behind_name = stat.rsplit_once(')').context("a process has a name")?.1;
    // In user mode and in the kernel, fields 14 and 15.
    let ticks =
        behind_name.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_secs(ticks) / u32::try_from(clock_ticks_per_second())?)
}

/// How long this thread has had a processor.
fn worked_so_far() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("it is not negative")
}

/// Times entries in windows that take turns: without a snapshot, and from the beginning of one on, when most is copied.
fn windows(bench: &mut Bench, clients: &mut Clients) -> anyhow::Result<()> {
    let times = || Histogram::new_with_bounds(1, ENTRY_NS_MAX, 3);
    let (mut without, mut meanwhile) = (times()?, times()?);
    for _ in 0..WINDOWS {
        window(bench, clients, &mut without);
        bench.table.begin_snapshot();
        window(bench, clients, &mut meanwhile);
        bench.table.abandon_snapshot();
        while bench.table.free_some() {}
    }
    for (what, times) in [("without a snapshot", &without), ("while one is written", &meanwhile)] {
        println!(
            "an entry {what}: p50 {} ns, p99 {} ns",
            times.value_at_quantile(0.5),
            times.value_at_quantile(0.99)
        );
    }
    println!("medians: {:.2} x", ratio(meanwhile.value_at_quantile(0.5), without.value_at_quantile(0.5)));
    Ok(())
}

fn window(bench: &mut Bench, clients: &mut Clients, times: &mut Histogram<u64>) {
    for _ in 0..WINDOW {
        let (client, name, hold) = clients.next_hold();
        let begun = Instant::now();
        bench.retake(client, black_box(&name), hold);
        // Two entries.
        times.saturating_record(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX) / 2);
    }
}

/// Drives a node with all its locks in short windows, and compares those in which it wrote a snapshot from beginning to end
/// with those in which it wrote none. It takes one whenever its log asks for it.
fn under_load(data: &Path, windows: usize) -> anyhow::Result<()> {
    let staging = data.join(FileName::SnapshotStaging { cell: CELL }.to_string());
    let load = Load { connections: CONNECTIONS, depth: 1, warm_up: LOAD_WARM_UP, measured: LOAD_WINDOW };
    let (_process, address) = spawn(data)?;
    let leader = find_leader(&[address], START_MAX)?;
    let (mut without, mut meanwhile) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    while without.len().min(meanwhile.len()) < windows {
        ensure!(
            begun.elapsed() < LOAD_MAX,
            "a window has to fit into a snapshot: more locks, or fewer windows"
        );
        let was_writing = staging.exists();
        let figures = drive(leader, &load)?;
        match (was_writing, staging.exists()) {
            (false, false) => without.push(figures),
            (true, true) => meanwhile.push(figures),
            // It began or ended.
            (true, false) | (false, true) => {}
        }
    }
    println!("a node under load                 windows     writes/s    acquire p50");
    let (mut writes, mut waits) = (Vec::new(), Vec::new());
    for (what, figures) in [("without a snapshot", &without), ("while it writes one", &meanwhile)] {
        let median = |of: fn(&Figures) -> f64| {
            let mut all: Vec<f64> = figures.iter().map(of).collect();
            all.sort_unstable_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let (rate, wait) = (median(Figures::writes_per_second), median(|figures| figures.acquire_us(0.5)));
        println!("  {what:<30} {:>8} {rate:>12.0} {wait:>11.0} us", figures.len());
        writes.push(rate);
        waits.push(wait);
    }
    println!("  medians: {:.2} x the writes, {:.2} x the wait", writes[1] / writes[0], waits[1] / waits[0]);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of an entry are few")]
fn ratio(one: u64, other: u64) -> f64 {
    one as f64 / other as f64
}

/// Loads the snapshot as a start does, and through a map, in turns, each with nothing in the kernel's cache.
fn loads(data: &Path, snapshot: SnapshotId, runs: usize) -> anyhow::Result<()> {
    let file = FileName::Snapshot { cell: CELL, index: snapshot.index };
    let cached = std::fs::File::open(data.join(file.to_string()))?;
    let (mut read, mut mapped) = (Vec::new(), Vec::new());
    let mut times = [(false, &mut read), (true, &mut mapped)];
    for _ in 0..runs {
        for (is_mapped, times) in &mut times {
            rustix::fs::fadvise(&cached, 0, None, rustix::fs::Advice::DontNeed)?;
            let begun = Instant::now();
            if *is_mapped {
                let mut directory = ReadOnlyDirectory::open(data)?;
                let frozen = directory.freeze_snapshot(CELL, snapshot.index);
                frozen.map_err(|error| anyhow::anyhow!("{file}: {error}"))?;
                load(&mut directory, snapshot)?;
            } else {
                load(&mut DataDirectory::open(data)?, snapshot)?;
            }
            times.push(begun.elapsed());
        }
    }
    println!();
    println!("loading a snapshot of {} MiB             p50       worst", cached.metadata()?.len() >> 20);
    print_times("read", &mut read);
    print_times("mapped", &mut mapped);
    Ok(())
}

fn load(storage: &mut dyn StorageRead, snapshot: SnapshotId) -> anyhow::Result<()> {
    let mut loader = TableLoader::new(Limits::default());
    let mut failed = None;
    load_snapshot(storage, CELL, snapshot, &mut |bytes| failed = failed.or(loader.push(bytes).err()))?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    // Freeing it is not part of loading; a node never does.
    std::mem::forget(black_box(loader.finish()?));
    Ok(())
}

/// A node that was started, until it is killed.
struct Started {
    /// From its spawn to its word that it serves.
    serving: Duration,
    /// How long it had a processor until then.
    serving_work: Duration,
    /// From its spawn to the first session that it opened.
    granting: Duration,
    /// How long it had a processor until then.
    granting_work: Duration,
}

impl Started {
    /// Starts a node as a process of its own, which is killed when both are known.
    fn new(data: &Path) -> anyhow::Result<Started> {
        let begun = Instant::now();
        let (process, address) = spawn(data)?;
        let serving = begun.elapsed();
        let serving_work = work_of(process.id())?;
        find_leader(&[address], START_MAX)?;
        Ok(Started {
            serving,
            serving_work,
            granting: begun.elapsed(),
            granting_work: work_of(process.id())?,
        })
    }
}

/// Starts a node as a process of its own; tells where it serves, once it does.
fn spawn(data: &Path) -> anyhow::Result<(Process, SocketAddr)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--serve").arg(data).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(&mut command)?;
    let mut line = String::new();
    BufReader::new(process.take_output().context("its output is piped")?).read_line(&mut line)?;
    let address = line.trim().parse().with_context(|| format!("it said {line:?}"))?;
    Ok((process, address))
}

/// What the child does: a node like that of `lockstep serve`. It says where it serves as soon as it does.
fn serve(data: &Path) -> anyhow::Result<()> {
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let claim = Claim::take(data, NODE)?;
    let ports = Ports::bind(anywhere, anywhere)?;
    let (client, peer) = (ports.client, ports.peer);
    let config = NodeConfig {
        data: data.to_owned(),
        node: NODE,
        nodes: vec![NodeAddress { node: NODE, client: client.to_string(), peer }],
        is_joining: false,
        cells: 1,
        routes: vec![(String::new(), CellId(0))],
        timing: Timing::default(),
    };
    let node = Node::start(config, claim, ports)?;
    println!("{client}");
    // Nobody outlives whoever started it.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    node.stopper().stop();
    Ok(node.wait()?)
}

fn print_times(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let ms = |at: usize| times[at].as_millis();
    println!("  {what:<36} {:>5} ms    {:>5} ms", ms(times.len() / 2), ms(times.len() - 1));
}
