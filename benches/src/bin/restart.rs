//! How long a node with a large state takes to start, and what its snapshots cost it while it runs.
//!
//! Invariant: a start is a process of its own over real files, timed from its spawn to its own word that it serves, and on
//! to the first session that it opens. Deliberately absent: other members; a start waits for none.

use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use hdrhistogram::Histogram;
use lockstep_benches::large::{CELL, Clients, Large};
use lockstep_benches::machine;
use lockstep_benches::pace::{Course, Pace, Rate, Sample, drive};
use lockstep_benches::process::Process;
use lockstep_benches::question::{find_leader, status};
use lockstep_benches::table::{Bench, Client, Hold};
use lockstep_benches::windows::{Kind, Seen, Watch, Window, above_percent, neighbours};
use lockstep_core::SNAPSHOT_SLICE_BYTES;
use lockstep_core::table::{Limits, TableLoader};
use lockstep_ring::storage::{DataDirectory, ReadOnlyDirectory};
use lockstep_server::format::{Format, format, random_cluster};
use lockstep_server::{Claim, Node, NodeAddress, NodeConfig, Ports, Timing};
use lockstep_wal::disk::{FileName, StorageRead};
use lockstep_wal::{SnapshotId, encode_snapshot_piece, load_snapshot};
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::{CellId, LogIndex, NodeId};
use rustix::time::{ClockId, clock_gettime};

const NODE: NodeId = NodeId(1);
/// How long a start may take before it counts as none.
const START_MAX: Duration = Duration::from_secs(60);
/// Snapshots that a log has seen when it is as long as it ever gets.
const SNAPSHOTS: usize = 3;
/// Snapshots whose slices are timed.
const SNAPSHOTS_SLICED: usize = 5;
/// Pairs of entries that are timed in one window.
const WINDOW: usize = 20_000;
/// Windows without a snapshot under way, and as many with one.
const WINDOWS: usize = 10;
/// Connections that drive a node.
const CONNECTIONS: usize = 64;
/// How long it may take until a load has its pace.
const PACE_MAX: Duration = Duration::from_secs(60);
/// How long the windows under load may take together.
const LOAD_MAX: Duration = Duration::from_secs(500);
/// The load unless another one is asked for, in writes a second: twice a cell's part of the 33,000 that a node with eight cells
/// is made for. Near what a node can reach at all, windows of one kind differ by more than what is looked for.
const RATE: u32 = 8_250;
/// What is promised: by how many percent medians differ at most, how long the longest slice of a snapshot is, and by how many
/// us a snapshot delays one write of a thousand.
const MEDIANS_PERCENT_MAX: f64 = 5.0;
const SLICE_MAX: Duration = Duration::from_millis(2);
const DELAY_US_MAX: f64 = 2_000.0;
/// The longest time of an entry that is told apart, in ns.
const ENTRY_NS_MAX: u64 = 1_000_000_000;
/// Steps of constant work before a slice, which take about as long as that.
const CONSTANT_WORK: u64 = 400_000;
/// Reads, likewise, and the places that they go around: 256 MiB of them.
const CONSTANT_READS: u32 = 1_600;
const PLACES: u32 = 1 << 26;
/// Pairs of entries between two slices: a thousand a piece are what a busy cell applies while the disk takes one.
const BETWEEN_SLICES: usize = 500;

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
    /// Windows of a node under load with a snapshot under way, and as many without one; 0 for no load.
    #[arg(long, default_value_t = 18)]
    windows: usize,
    /// The load in writes a second.
    #[arg(long, default_value_t = RATE, value_parser = clap::value_parser!(u32).range(10..))]
    rate: u32,
    /// The load as a part of what the node reaches, instead.
    #[arg(long, conflicts_with = "rate", value_parser = share)]
    share: Option<f64>,
    /// Where the files go: a directory on a real disk. A new one beside this program by default.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Be the node: start over this directory, and serve until the end of standard input.
    #[arg(long, hide = true, value_name = "DIR")]
    serve: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.01..=0.95).contains(&value) { Ok(value) } else { Err(format!("{text} is not from 0.01 to 0.95")) }
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
    let Prepared { fresh, holders, late, snapshot, mut bench, mut clients } =
        prepare(directory.path(), &arguments)?;
    println!(
        "{} sessions, {} locks; {} entries ever, the newest snapshot through {}",
        bench.table.sessions_len(),
        bench.table.locks_len(),
        bench.index,
        snapshot.index
    );
    println!();
    slices(&mut bench, &mut clients, snapshot);
    windows(&mut bench, &mut clients)?;
    // Whoever starts has the machine's memory.
    drop((bench, clients));
    loads(&late, snapshot, arguments.runs)?;
    println!();
    println!("start of a node                        p50       worst");
    for (what, data) in [("right after a snapshot", &fresh), ("right before the next counts", &late)] {
        let mut starts = Vec::new();
        for _ in 0..arguments.runs {
            starts.push(Started::new(data)?);
            // A small state is written before the node is killed, and then another start has less to do.
            if newest_snapshot(data)? != Some(snapshot.index) {
                println!("  (no further start: the next snapshot was written in this one)");
                break;
            }
        }
        let times = |time: fn(&Started) -> Duration| starts.iter().map(time).collect::<Vec<_>>();
        print_times(&format!("{what}: it serves"), &mut times(|start| start.serving));
        print_times("  of work", &mut times(|start| start.serving_work));
        print_times(&format!("{what}: it grants"), &mut times(|start| start.granting));
        print_times("  of work", &mut times(|start| start.granting_work));
    }
    println!();
    if arguments.windows > 0 {
        under_load(&fresh, holders, &arguments)?;
    }
    Ok(())
}

/// What is measured.
struct Prepared {
    /// A data directory right after a snapshot.
    fresh: PathBuf,
    /// Who holds what there.
    holders: Vec<(Client, Vec<Hold>)>,
    /// The same right before the next one, which is being written, would count: no start has more to replay.
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
    let holders = large.clients.holders();
    large.work_until_due()?;
    large.work_until_counted(snapshot.index)?;
    let Large { mut bench, clients, .. } = large;
    bench.keep_entries(false);
    Ok(Prepared { fresh, holders, late, snapshot, bench, clients })
}

/// Writes whole snapshots while entries go on, and says what each slice adds to a turn of the shard: making it, and when it
/// is the last one of its piece the copy for the log and the frame in the file. Once by the clock, and once by the time that
/// this thread had the processor, which is what is left when the machine has other work, too.
///
/// What a virtual machine's host does meanwhile is in both, at random places; what is long by itself is so again at the same
/// place of the next snapshot. So the longest slice is judged twice: by the median of the longest of each snapshot, which has what
/// the host does in it, and with each slice as the median of its times, which leaves out what does not come at one place twice.
/// Above stand the longest ones as they were, and how many were too long, of slices and of work that never changes.
fn slices(bench: &mut Bench, clients: &mut Clients, snapshot: SnapshotId) {
    let memory = places_to_read();
    let sliced: Vec<Sliced> =
        (0..SNAPSHOTS_SLICED).map(|_| write_in_slices(bench, clients, snapshot, &memory)).collect();
    let count: usize = sliced.iter().map(|sliced| sliced.elapsed.len()).sum();
    println!("a slice of a snapshot, {count} of {SNAPSHOTS_SLICED} snapshots");
    let of = |times: fn(&Sliced) -> &Vec<Duration>| sliced.iter().map(|it| &**times(it)).collect::<Vec<_>>();
    let (by_the_clock, of_work) = (of(|it| &it.elapsed), of(|it| &it.worked));
    print_slices("by the clock", &by_the_clock);
    print_slices("of work", &of_work);
    print_slices("constant work between them, by the clock", &of(|it| &it.constant));
    print_slices("constant reads between them, by the clock", &of(|it| &it.reading));
    for (what, times) in [("by the clock", by_the_clock), ("of work", of_work)] {
        let judged = [
            ("the median over snapshots", median_longest(&times)),
            ("each slice as the median of its times", longest_median(&times)),
        ];
        for (how, longest) in judged {
            verdict(
                &format!(
                    "the longest slice adds less than {SLICE_MAX:?} to a turn, {what}, {how}: {} us",
                    longest.as_micros()
                ),
                longest < SLICE_MAX,
            );
        }
    }
}

/// Prints what the slices of each snapshot took, or what stands beside them.
fn print_slices(what: &str, snapshots: &[&[Duration]]) {
    let mut all = snapshots.concat();
    all.sort_unstable();
    let longest: Vec<u128> =
        snapshots.iter().filter_map(|times| times.iter().max()).map(Duration::as_micros).collect();
    println!(
        "  {what}: p50 {} us, p99 {} us, the longest of each snapshot {longest:?} us, {} not below {SLICE_MAX:?}",
        all[all.len() / 2].as_micros(),
        all[all.len() * 99 / 100].as_micros(),
        all.iter().filter(|time| **time >= SLICE_MAX).count()
    );
}

/// The longest slice of a snapshot, the median over the snapshots.
fn median_longest(snapshots: &[&[Duration]]) -> Duration {
    let mut longest: Vec<Duration> =
        snapshots.iter().filter_map(|times| times.iter().max().copied()).collect();
    longest.sort_unstable();
    longest[longest.len() / 2]
}

/// The longest of the slices, each as the median of its times, of which every snapshot has one.
fn longest_median(snapshots: &[&[Duration]]) -> Duration {
    let slices = snapshots.iter().map(|times| times.len()).max().unwrap_or(0);
    let middles = (0..slices).map(|at| {
        let mut times: Vec<Duration> = snapshots.iter().filter_map(|times| times.get(at).copied()).collect();
        times.sort_unstable();
        times[times.len() / 2]
    });
    middles.max().expect("a snapshot has a slice")
}

/// What the slices of one snapshot took.
#[derive(Debug, Default)]
struct Sliced {
    elapsed: Vec<Duration>,
    worked: Vec<Duration>,
    /// What [`constant_work`] took between them.
    constant: Vec<Duration>,
    /// Likewise [`constant_reads`].
    reading: Vec<Duration>,
}

fn write_in_slices(bench: &mut Bench, clients: &mut Clients, snapshot: SnapshotId, memory: &[u32]) -> Sliced {
    let Sliced { mut elapsed, mut worked, mut constant, mut reading } = Sliced::default();
    let (mut piece, mut copy, mut framed) = (Vec::new(), Vec::new(), Vec::new());
    bench.table.begin_snapshot();
    let (mut number, mut place) = (0, 0);
    loop {
        let begun = Instant::now();
        constant_work();
        constant.push(begun.elapsed());
        let begun = Instant::now();
        place = constant_reads(memory, place);
        reading.push(begun.elapsed());
        let (begun, work_begun) = (Instant::now(), worked_so_far());
        let room = SNAPSHOT_PIECE_BYTES_MAX - piece.len();
        let is_last = bench.table.write_snapshot(&mut piece, room.min(SNAPSHOT_SLICE_BYTES));
        if is_last || piece.len() == SNAPSHOT_PIECE_BYTES_MAX {
            copy.clear();
            copy.extend_from_slice(black_box(&piece));
            framed.clear();
            encode_snapshot_piece(CELL, snapshot, number, is_last, &copy, black_box(&mut framed));
            piece.clear();
            number += 1;
        }
        worked.push(worked_so_far() - work_begun);
        elapsed.push(begun.elapsed());
        if is_last {
            break;
        }
        for _ in 0..BETWEEN_SLICES {
            let (client, name, hold) = clients.next_hold();
            bench.retake(client, &name, hold);
        }
    }
    while bench.table.free_some() {}
    Sliced { elapsed, worked, constant, reading }
}

/// Needs no memory: what makes it longer at one time than at another is the machine.
fn constant_work() {
    let steps =
        (0..CONSTANT_WORK).fold(1_u64, |seen, step| (seen ^ step).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    black_box(steps);
}

/// Goes through memory as a slice does, from one place to another that is not near: each read waits for the one before. Gives
/// where to go on.
fn constant_reads(memory: &[u32], place: u32) -> u32 {
    (0..CONSTANT_READS).fold(place, |place, _| memory[place as usize])
}

/// Memory for [`constant_reads`]: each place has the next one, and all are on one way around.
fn places_to_read() -> Vec<u32> {
    // A linear congruential generator has its full period here, because the increment is odd and the factor 1 modulo 4; places
    // that follow each other are far apart.
    (0..PLACES).map(|place| place.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f) % PLACES).collect()
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

/// Drives a node with all its locks at a fixed pace, and compares the windows in which it wrote a snapshot with those in
/// which it wrote none.
fn under_load(data: &Path, holders: Vec<(Client, Vec<Hold>)>, arguments: &Arguments) -> anyhow::Result<()> {
    let rate = match arguments.share {
        Some(share) => Rate::Share(share),
        None => Rate::PerSecond(f64::from(arguments.rate)),
    };
    let (process, address) = spawn(data)?;
    let leader = find_leader(&[address], START_MAX)?;
    let locks = status(leader)?.locks;
    // Else windows differ by where the kernel puts node and driver, and by more than what is looked for.
    let apart = if process.keep_apart()? { ", driven from another processor" } else { "" };
    let course = Course::default();
    let pace = Pace { connections: CONNECTIONS.min(holders.len()), rate };
    let (samples, windows) = thread::scope(|scope| {
        let load = scope.spawn(|| drive(leader, holders, &pace, &course));
        let watch = Watch {
            process: &process,
            staging: data.join(FileName::SnapshotStaging { cell: CELL }.to_string()),
            is_loaded: &|| !load.is_finished(),
        };
        let windows = watch.wait_for_pace(&course, PACE_MAX).and_then(|pace| {
            println!("a node under load at {pace:.0} writes/s{apart}");
            watch.run(arguments.windows, Instant::now() + LOAD_MAX)
        });
        course.end();
        // If it failed, the windows did for that reason.
        let samples = load.join().map_err(|_| anyhow::anyhow!("the load has panicked"))??;
        anyhow::Ok((samples, windows?))
    })?;
    let left = status(leader)?.locks;
    ensure!(left >= locks - locks / 4, "of {locks} locks {left} are left: the load has lost sessions");
    report(&samples, &windows)
}

fn report(samples: &[Sample], windows: &[Window]) -> anyhow::Result<()> {
    let of = |kind| Seen::of(samples, windows, &|_, found| found == kind);
    let (without, meanwhile, after) = (of(Kind::Without)?, of(Kind::Meanwhile)?, of(Kind::After)?);
    println!("                     windows  seconds  writes/s  node busy        p50        p99      p99.9");
    for (what, seen) in
        [("without a snapshot", &without), ("while it writes one", &meanwhile), ("just after one", &after)]
    {
        println!(
            "  {what:<19} {:>6} {:>8.1} {:>9.0} {:>8.0} % {:>7.0} us {:>7.0} us {:>7.0} us",
            seen.windows,
            seen.elapsed.as_secs_f64(),
            seen.writes_per_second(),
            seen.busy_percent(),
            seen.us(0.5),
            seen.us(0.99),
            seen.us(0.999)
        );
    }
    // Of each window by itself, so that one that something else has disturbed says no more than another one.
    let medians = |kind| -> anyhow::Result<Vec<f64>> {
        let of_kind = (0..windows.len()).filter(|at| windows[*at].kind == kind);
        let seen = of_kind.map(|wanted| Seen::of(samples, windows, &|at, _| at == wanted));
        seen.filter(|seen| seen.as_ref().map_or(true, |seen| seen.answered > 0))
            .map(|seen| Ok(seen?.us(0.5)))
            .collect()
    };
    println!("  p50 of each window in us, without: {:.0?}", medians(Kind::Without)?);
    println!("  p50 of each window in us, meanwhile: {:.0?}", medians(Kind::Meanwhile)?);
    let (mut above, mut beginnings, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for (quiet, written) in neighbours(windows) {
        let of = |window| Seen::of(samples, &[window], &|_, _| true);
        let (without, meanwhile) = (of(quiet)?, of(written)?);
        if !without.latency.is_empty() && !meanwhile.latency.is_empty() {
            let percent = above_percent(meanwhile.us(0.5), without.us(0.5));
            above.push(percent);
            if written.from < quiet.from { &mut ends } else { &mut beginnings }.push(percent);
        }
    }
    if let (Some(beginning), Some(end)) = (median(&mut beginnings), median(&mut ends)) {
        let whole = above_percent(meanwhile.us(0.5), without.us(0.5));
        println!(
            "  p50 with a snapshot above that without: {beginning:+.1} % where one begins, {end:+.1} % where it ends, {whole:+.1} % in all"
        );
    }
    println!("  p50 with a snapshot above that of the seconds beside it without one, in %: {above:.1?}");
    let Some(above) = median(&mut above) else {
        println!("  no window was long enough to tell");
        return Ok(());
    };
    verdict(
        &format!(
            "medians with and without a snapshot differ by less than {MEDIANS_PERCENT_MAX} %: {above:+.1} % in the middle"
        ),
        above.abs() < MEDIANS_PERCENT_MAX,
    );
    let delay = meanwhile.us(0.999) - without.us(0.999);
    verdict(
        &format!("a snapshot delays p99.9 by less than {DELAY_US_MAX} us: {delay:+.0} us"),
        delay < DELAY_US_MAX,
    );
    Ok(())
}

/// The middle one, or between the two that are, if there is any.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().saturating_sub(1) / 2)?, values.get(values.len() / 2)?);
    Some(low.midpoint(*high))
}

fn verdict(what: &str, holds: bool) {
    println!("  {}: {what}", if holds { "holds" } else { "does not hold" });
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
        let serving_work = process.worked()?;
        find_leader(&[address], START_MAX)?;
        Ok(Started { serving, serving_work, granting: begun.elapsed(), granting_work: process.worked()? })
    }
}

/// The newest snapshot in a data directory.
fn newest_snapshot(data: &Path) -> anyhow::Result<Option<LogIndex>> {
    let files = ReadOnlyDirectory::open(data)?.list();
    let files = files.map_err(|error| anyhow::anyhow!("{}: {error}", data.display()))?;
    let index = |(file, _)| {
        let FileName::Snapshot { index, .. } = file else { return None };
        Some(index)
    };
    Ok(files.into_iter().filter_map(index).max())
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
