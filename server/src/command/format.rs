//! `lockstep format`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lockstep_server::format::{Format, format, random_cluster};
use lockstep_wire::{ClusterId, NodeId};

/// Prepare a data directory for a node; once, before its first `serve`.
#[derive(Debug, Args)]
pub(crate) struct FormatArgs {
    /// The directory to prepare, on the disk that is to hold the log; made if it is not there
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The node's id, as in the configuration; never reused for another machine or directory
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..))]
    node: u16,
    /// The cluster's id, as the formatting of its first node printed it; left out, a new one is drawn
    #[arg(long, value_name = "HEX", value_parser = parse_cluster)]
    cluster: Option<ClusterId>,
    /// Threads, each with a log and cells of its own; the same on every node
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,
    /// The size of a segment of the log, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1024))]
    segment_mib: u64,
}

/// Formats the directory and says what comes next.
pub(crate) fn run(arguments: &FormatArgs) -> Result<()> {
    let cluster = match arguments.cluster {
        Some(cluster) => cluster,
        None => random_cluster()?,
    };
    let plan = Format {
        cluster,
        node: NodeId(arguments.node),
        shards: arguments.shards,
        segment_bytes: arguments.segment_mib * 1024 * 1024,
    };
    format(&arguments.data, &plan)?;
    println!("formatted {} for node {} of cluster {cluster}", arguments.data.display(), arguments.node);
    if arguments.cluster.is_none() {
        println!("format the other nodes with --cluster {cluster}");
    }
    Ok(())
}

fn parse_cluster(text: &str) -> Result<ClusterId, String> {
    let digits = || "a cluster's id has 32 hexadecimal digits, as `lockstep format` printed them".to_owned();
    if text.len() != 32 || !text.is_ascii() {
        return Err(digits());
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| digits())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| digits())?;
    }
    match bytes {
        [0, ..] if bytes == [0; 16] => Err("the cluster's id of only zeros stands for none".to_owned()),
        _ => Ok(ClusterId(bytes)),
    }
}
