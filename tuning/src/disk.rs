//! The disk under the data directory: how it is driven, and how long a durable write takes.
//!
//! Invariant: the measurement is bounded in time and space and its file is removed. It is a sample of this moment,
//! not a benchmark. Deliberately absent: a verdict on the figures.

use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockstep_ring::{AlignedBuf, probe};
use rustix::fs::{Mode, OFlags};
use rustix::io::ReadWriteFlags;

use crate::{Observation, Standing};

const SAMPLE_BYTES: u64 = 4 * 1024 * 1024;
const SAMPLE_WRITES_MAX: usize = 1000;
const SAMPLE_TIME_MAX: Duration = Duration::from_millis(1000);
const BLOCK_BYTES: usize = 4096;

pub(crate) fn observe(directory: &Path, is_writable: bool) -> Vec<Observation> {
    let mut observations = vec![filesystem(directory), scheduler(directory), write_cache(directory)];
    if is_writable {
        observations.push(latency(directory));
    }
    observations
}

fn filesystem(directory: &Path) -> Observation {
    let subject = "file system";
    let why = "what a majority of replicas has confirmed must survive power loss; on ext4 and xfs an overwrite in place needs no metadata";
    match probe::filesystem(directory) {
        Ok(name) if name == "tmpfs" || name == "ramfs" => {
            let advice = "use it for experiments only: a restart of the host loses everything";
            Observation::new(
                subject,
                Standing::WorthALook,
                format!("{name}, which is memory"),
                why,
                Some(advice),
            )
        }
        Ok(name) if name == "ext4" || name == "xfs" => {
            Observation::new(subject, Standing::Fine, name, why, None)
        }
        Ok(name) => {
            let advice = "compare the latency below with ext4 or xfs; make sure that copies and networks beneath it keep what they confirm";
            Observation::new(subject, Standing::WorthALook, name, why, Some(advice))
        }
        Err(error) => Observation::new(subject, Standing::Unknown, error.to_string(), why, None),
    }
}

/// The queue directory in sysfs of the disk that holds the directory, if it is on one.
fn queue(directory: &Path) -> Option<PathBuf> {
    let device = fs::metadata(directory).ok()?.dev();
    let link = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let device = fs::canonicalize(link).ok()?;
    // A partition has its disk above it.
    [device.join("queue"), device.parent()?.join("queue")].into_iter().find(|queue| queue.is_dir())
}

fn scheduler(directory: &Path) -> Observation {
    let why = "the log has one small durable write in flight at a time; a scheduler can only add to its latency, \
               unless others use the same disk";
    let schedulers = queue(directory).and_then(|queue| fs::read_to_string(queue.join("scheduler")).ok());
    let Some(schedulers) = schedulers else {
        return Observation::new(
            "disk scheduler",
            Standing::Unknown,
            "no block device is visible",
            why,
            None,
        );
    };
    let schedulers = schedulers.trim();
    if schedulers.contains("[none]") || schedulers == "none" {
        Observation::new("disk scheduler", Standing::Fine, schedulers, why, None)
    } else {
        let advice = "compare the latency below with: echo none > /sys/block/<disk>/queue/scheduler";
        Observation::new("disk scheduler", Standing::WorthALook, schedulers, why, Some(advice))
    }
}

fn write_cache(directory: &Path) -> Observation {
    let why = "with a volatile cache (`write back`) every durable write must flush it; a disk that says `write through` \
               must not be lying about it";
    let cache = queue(directory).and_then(|queue| fs::read_to_string(queue.join("write_cache")).ok());
    match cache {
        Some(cache) => Observation::new("disk write cache", Standing::Fine, cache.trim(), why, None),
        None => {
            Observation::new("disk write cache", Standing::Unknown, "no block device is visible", why, None)
        }
    }
}

fn latency(directory: &Path) -> Observation {
    let subject = "durable write latency";
    let why = "an uncontended grant takes at least one such write on a majority of the replicas, side by side, plus a round trip";
    let path = directory.join(format!(".latency-sample-{}", std::process::id()));
    let sample = sample(&path);
    // Gone already if it could not be made; anything else shows as a file of that name.
    let _ = fs::remove_file(&path);
    match sample {
        Ok(mut times) if !times.is_empty() => {
            times.sort_unstable();
            let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_micros();
            let seen = format!(
                "{} writes of 4 KiB, one after the other, into zeroed space: p50 {} us, p99 {} us, worst {} us",
                times.len(),
                at(50),
                at(99),
                at(100)
            );
            let advice = "a figure too good for the disk that it is may mean that it confirms before it has written: ask its maker or provider";
            Observation::new(subject, Standing::Fine, seen, why, Some(advice))
        }
        Ok(_) => Observation::new(subject, Standing::Unknown, "no write ended in time", why, None),
        Err(error) => {
            Observation::new(subject, Standing::Unknown, format!("could not be measured: {error}"), why, None)
        }
    }
}

fn sample(path: &Path) -> io::Result<Vec<Duration>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    for piece in 0..SAMPLE_BYTES / BLOCK_BYTES as u64 {
        write(&file, &block, piece * BLOCK_BYTES as u64, ReadWriteFlags::empty())?;
    }
    rustix::fs::fsync(&file)?;
    block.fill(0x5a);
    let started = Instant::now();
    let mut times = Vec::with_capacity(SAMPLE_WRITES_MAX);
    for offset in (0..SAMPLE_BYTES).step_by(BLOCK_BYTES).take(SAMPLE_WRITES_MAX) {
        let before = Instant::now();
        write(&file, &block, offset, ReadWriteFlags::DSYNC)?;
        times.push(before.elapsed());
        if started.elapsed() > SAMPLE_TIME_MAX {
            break;
        }
    }
    Ok(times)
}

fn write(file: &OwnedFd, block: &[u8], offset: u64, flags: ReadWriteFlags) -> io::Result<()> {
    let written =
        rustix::io::retry_on_intr(|| rustix::io::pwritev2(file, &[IoSlice::new(block)], offset, flags))?;
    if written == block.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}
