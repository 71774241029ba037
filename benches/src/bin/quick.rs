//! The quick comparison: a cell of five replicas and the ceiling, driven by the same client in one run.
//!
//! Invariant: the sides take turns, each alone while it is measured and each with fresh files, and what is
//! printed is the median of the runs. Deliberately absent: absolute verdicts; only ratios within one run mean
//! anything (ARCHITECTURE section 7).

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use lockstep_benches::ceiling::{self, Ceiling};
use lockstep_benches::client::{Figures, Load, drive};
use lockstep_benches::machine;
use lockstep_benches::question::find_leader;
use lockstep_server::dev::{DevCluster, Shape};

/// Compares a cell of five replicas with the ceiling: the same bytes and durable writes without consensus and
/// locks.
#[derive(Debug, Parser)]
struct Arguments {
    /// Measured seconds of each cell of the table.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Runs, of which the median is printed.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Where the files go: a directory on a real disk. A new one beside this program by default.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// How long a cell may take to elect its first leader.
const ELECTION_MAX: Duration = Duration::from_secs(20);

/// Connections and depth of each load.
const LOADS: [(usize, usize); 3] = [(1, 1), (64, 1), (64, 16)];

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    anyhow::ensure!(arguments.runs > 0 && arguments.seconds > 0.0, "there must be something to measure");
    let beside = match &arguments.data {
        Some(directory) => directory.clone(),
        None => std::env::current_exe()?.parent().context("a program lies in a directory")?.to_owned(),
    };
    std::fs::create_dir_all(&beside).with_context(|| format!("{}", beside.display()))?;
    println!("{}", machine(&beside));
    let mut cells = Samples::default();
    let mut ceilings = Samples::default();
    for run in 0..arguments.runs {
        // Whoever goes second finds caches and disk as the first has left them: take turns in that, too.
        if run % 2 == 0 {
            ceilings.add(measure_ceiling(&beside, &arguments)?);
            cells.add(measure_cell(&beside, &arguments)?);
        } else {
            cells.add(measure_cell(&beside, &arguments)?);
            ceilings.add(measure_ceiling(&beside, &arguments)?);
        }
        eprintln!("run {} of {} done", run + 1, arguments.runs);
    }
    print_table(&cells, &ceilings, &arguments);
    Ok(())
}

/// The figures of each load, run by run.
#[derive(Default)]
struct Samples(Vec<Vec<Figures>>);

impl Samples {
    fn add(&mut self, figures: Vec<Figures>) {
        self.0.push(figures);
    }

    /// The median over the runs of what `of` says about a load.
    fn median(&self, load: usize, of: impl Fn(&Figures) -> f64) -> f64 {
        let mut values: Vec<f64> = self.0.iter().map(|run| of(&run[load])).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        }
    }
}

fn measure_cell(beside: &Path, arguments: &Arguments) -> anyhow::Result<Vec<Figures>> {
    let directory = tempfile::Builder::new().prefix("quick-cell-").tempdir_in(beside)?;
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let shape = Shape { replicas: u16::try_from(ceiling::NODES)?, cells: 1 };
    let cluster = DevCluster::start(directory.path(), shape, anywhere)?;
    let figures = measure(&cluster.endpoints, arguments).context("the cell")?;
    for node in &cluster.nodes {
        node.stopper().stop();
    }
    for node in cluster.nodes {
        node.wait()?;
    }
    Ok(figures)
}

fn measure_ceiling(beside: &Path, arguments: &Arguments) -> anyhow::Result<Vec<Figures>> {
    let directory = tempfile::Builder::new().prefix("quick-ceiling-").tempdir_in(beside)?;
    let ceiling = Ceiling::start(directory.path())?;
    let figures = measure(&[ceiling.address], arguments).context("the ceiling")?;
    ceiling.stop()?;
    Ok(figures)
}

fn measure(members: &[SocketAddr], arguments: &Arguments) -> anyhow::Result<Vec<Figures>> {
    let measured = Duration::from_secs_f64(arguments.seconds);
    let warm_up = measured / 4;
    LOADS
        .iter()
        .map(|(connections, depth)| {
            let load = Load { connections: *connections, depth: *depth, warm_up, measured };
            drive(find_leader(members, ELECTION_MAX)?, &load)
        })
        .collect()
}

fn print_table(cells: &Samples, ceilings: &Samples, arguments: &Arguments) {
    println!(
        "medians of {} runs of {} s; every write is durable on three of five disks",
        arguments.runs, arguments.seconds
    );
    println!();
    println!("clients x depth          writes/s    pairs/s   acquire p50   acquire p99");
    for (at, (connections, depth)) in LOADS.iter().enumerate() {
        let writes = |samples: &Samples| samples.median(at, Figures::writes_per_second);
        let p50 = |samples: &Samples| samples.median(at, |figures| figures.acquire_us(0.50));
        let p99 = |samples: &Samples| samples.median(at, |figures| figures.acquire_us(0.99));
        for (side, samples) in [("cell", cells), ("ceiling", ceilings)] {
            println!(
                "{connections:>7} x {depth:<3} {side:<9} {:>10.0} {:>10.0} {:>10.0} us {:>10.0} us",
                writes(samples),
                writes(samples) / 2.0,
                p50(samples),
                p99(samples),
            );
        }
        println!(
            "{:>13} {:<9} {:>9.0}% {:>10} {:>11.2} x {:>11.2} x",
            "",
            "ratio",
            100.0 * writes(cells) / writes(ceilings),
            "",
            p50(cells) / p50(ceilings),
            p99(cells) / p99(ceilings),
        );
    }
    println!();
    let busy =
        100.0 * cells.median(1, Figures::writes_per_second) / ceilings.median(1, Figures::writes_per_second);
    let lone = cells.median(0, |figures| figures.acquire_us(0.50))
        / ceilings.median(0, |figures| figures.acquire_us(0.50));
    println!("64 clients at depth 1: {busy:.0} % of the ceiling's writes/s (target: at least 40 %)");
    println!("one client: acquire p50 is {lone:.2} x the ceiling's (target: at most 2 x)");
}
