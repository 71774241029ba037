//! `lockstep dev`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use lockstep_ring::probe;
use lockstep_server::dev::{DevCluster, Shape};

use super::{log_lines, stop};

/// Run a whole cluster in this process, to develop against or to try things out.
#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// Replicas of each cell: 1, 3, 5 or 7
    #[arg(long, default_value_t = 5, value_parser = parse_replicas)]
    replicas: u16,
    /// Cells; with several, the namespaces cell-0, cell-1, ... have one each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    cells: u16,
    /// Keep the data here; left out, it goes when the process does
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where the first replica serves clients; the others take the ports that follow. Port 0: wherever there is room
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7400")]
    listen: SocketAddr,
}

/// Runs the cluster until it is told to stop.
pub(crate) fn run(arguments: &DevArgs) -> Result<()> {
    log_lines::begin("warn");
    let shape = Shape { replicas: arguments.replicas, cells: arguments.cells };
    let temporary = match arguments.data {
        Some(_) => None,
        None => Some(temporary_directory()?),
    };
    let data = match (&arguments.data, &temporary) {
        (Some(data), _) => data.clone(),
        (None, Some(temporary)) => temporary.path().join("cluster"),
        (None, None) => unreachable!("there is one or the other"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = runtime.block_on(async { stop::Signals::listen() })?;
    let cluster = DevCluster::start(&data, shape, arguments.listen)?;
    greet(&cluster, arguments, &data);
    runtime.block_on(stop::wait(signals, cluster.nodes))
}

fn greet(cluster: &DevCluster, arguments: &DevArgs, data: &Path) {
    let endpoints: Vec<String> = cluster.endpoints.iter().map(SocketAddr::to_string).collect();
    let endpoints = endpoints.join(",");
    let command = std::env::args().next().unwrap_or_else(|| "lockstep".to_owned());
    println!(
        "lockstep {}: {} {}, {} {}, data in {}{}",
        env!("CARGO_PKG_VERSION"),
        arguments.replicas,
        if arguments.replicas == 1 { "replica" } else { "replicas" },
        arguments.cells,
        if arguments.cells == 1 { "cell" } else { "cells" },
        data.display(),
        if arguments.data.is_some() { "" } else { " (temporary)" },
    );
    println!("endpoints: {endpoints}");
    let option = if cluster.endpoints[0].port() == DEFAULT_PORT {
        String::new()
    } else {
        format!(" --endpoints {endpoints}")
    };
    println!("\ntry, in another terminal:");
    println!("  {command} lock{option} /ls/demo/job -- sh -c 'echo token $LOCKSTEP_TOKEN'");
    println!("  {command} status{option}");
    println!("\nCtrl-C stops it.");
}

fn parse_replicas(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(replicas @ (1 | 3 | 5 | 7)) => Ok(replicas),
        _ => Err("a cell has 1, 3, 5 or 7 replicas".to_owned()),
    }
}

/// The port that commands try when they are told no endpoints.
const DEFAULT_PORT: u16 = 7_400;

/// A directory on a real disk that goes when the process does.
fn temporary_directory() -> Result<tempfile::TempDir> {
    let current = std::env::current_dir().context("there is no current directory")?;
    let candidates = [std::env::temp_dir(), PathBuf::from("/var/tmp"), current];
    let is_disk =
        |path: &&PathBuf| probe::filesystem(path).is_ok_and(|name| name != "tmpfs" && name != "ramfs");
    let Some(parent) = candidates.iter().find(is_disk) else {
        bail!("no temporary directory is on a real disk; give one with --data DIR");
    };
    tempfile::Builder::new()
        .prefix("lockstep-dev-")
        .tempdir_in(parent)
        .with_context(|| format!("no temporary directory in {}; give one with --data DIR", parent.display()))
}
