//! What a host must have, tried before anything starts.
//!
//! Each check really does what the server will do (a ring of these sizes, a durable direct write in this directory) and
//! yields a [`Finding`]: what was seen, or a [`Shortage`] that says in one sentence which limit, what was seen and
//! what is needed. Limits that may be raised without privileges are raised on the way.
//!
//! Invariant: nothing is left behind, not even when a check fails. Deliberately absent: fallbacks, and opinions about speed.

mod shortage;

use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use io_uring::{IoUring, Probe, opcode};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use shortage::Shortage;

use crate::aligned::AlignedBuf;
use crate::ring::{Ring, RingConfig};

/// What the server will ask of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// The data directory; it exists.
    pub directory: PathBuf,
    /// How many rings, one per shard.
    pub rings: u32,
    /// The size of each.
    pub ring: RingConfig,
    /// Receive buffers of each ring: count and size in bytes, per group.
    pub buffer_groups: Vec<(u16, u32)>,
    /// Descriptors: connections, peers, log files and a margin.
    pub open_files: u64,
}

/// What a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Whether the kernel offers io_uring to this process at all.
    IoUring,
    /// Whether its io_uring can do what is used here.
    RingAbilities,
    /// The limit of open descriptors.
    OpenFiles,
    /// Whether rings and buffers of the sizes asked for can be made, which the memlock limit may forbid.
    LockedMemory,
    /// Whether the data directory takes durable direct writes.
    DirectIo,
}

impl Subject {
    /// Why a server needs it.
    pub fn why(self) -> &'static str {
        match self {
            Self::IoUring => {
                "all network and disk I/O of a server goes through io_uring; there is no other path"
            }
            Self::RingAbilities => {
                "the shard loop relies on deferred task work, multishot receives, provided buffers and ring messages"
            }
            Self::LockedMemory => {
                "kernels differ in whether the memory of rings counts against the user's memlock limit (6.18 counts it, except \
                 for CAP_IPC_LOCK), so it is tried"
            }
            Self::OpenFiles => "every client connection, peer link and log segment is a descriptor",
            Self::DirectIo => {
                "a grant is acknowledged once its log write is durable: O_DIRECT with RWF_DSYNC, past the page cache"
            }
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IoUring => "io_uring",
            Self::RingAbilities => "io_uring abilities",
            Self::LockedMemory => "locked memory",
            Self::OpenFiles => "open files",
            Self::DirectIo => "direct durable writes",
        })
    }
}

/// The outcome of one check.
#[derive(Debug)]
pub struct Finding {
    /// What was looked at.
    pub subject: Subject,
    /// What was seen, in words; or what is short.
    pub outcome: Result<String, Shortage>,
}

/// Runs every check, in the order of [`Subject`]. Checks that cannot be tried because io_uring itself is not there are left out.
pub fn examine(needs: &Needs) -> Vec<Finding> {
    let mut findings = Vec::new();
    let memory_needed = ring_bytes(needs);
    raise(Resource::Memlock, memory_needed);
    // The kernel makes no table of files that is larger than the limit.
    let files_needed = needs.open_files.max(u64::from(needs.ring.registered_files));
    match small_ring(memory_needed) {
        Ok(uring) => {
            let version = format!("available, kernel {}", kernel_release());
            findings.push(Finding { subject: Subject::IoUring, outcome: Ok(version) });
            findings.push(Finding { subject: Subject::RingAbilities, outcome: abilities(&uring) });
            drop(uring);
            // Descriptors first: a ring's table of files counts against their limit, and what it needs is said by it.
            findings.push(Finding { subject: Subject::OpenFiles, outcome: open_files(files_needed) });
            findings.push(Finding { subject: Subject::LockedMemory, outcome: locked_memory(needs) });
        }
        Err(shortage) => {
            findings.push(Finding { subject: Subject::IoUring, outcome: Err(shortage) });
            findings.push(Finding { subject: Subject::OpenFiles, outcome: open_files(files_needed) });
        }
    }
    findings.push(Finding { subject: Subject::DirectIo, outcome: direct_io(&needs.directory) });
    findings
}

/// Runs every check and returns the first shortage, with which no server should start.
pub fn require(needs: &Needs) -> Result<(), Shortage> {
    examine(needs).into_iter().try_for_each(|finding| finding.outcome.map(|_| ()))
}

/// A ring with the flags that all rings here have.
fn small_ring(memory_needed: u64) -> Result<IoUring, Shortage> {
    let plain = IoUring::new(2).map_err(|error| no_ring(&error, memory_needed))?;
    drop(plain);
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .build(2)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => Shortage::KernelTooOld { release: kernel_release() },
            _ => no_ring(&error, memory_needed),
        })
}

fn no_ring(error: &io::Error, memory_needed: u64) -> Shortage {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => Shortage::IoUringMissing { release: kernel_release() },
        Some(libc::EPERM | libc::EACCES) => {
            let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
            match setting.trim() {
                level @ ("1" | "2") => Shortage::IoUringDisabled { level: level.to_owned() },
                _ => Shortage::IoUringForbidden,
            }
        }
        Some(libc::ENOMEM) => {
            let (soft, hard) = limit(Resource::Memlock);
            Shortage::LockedMemory { soft, hard, needed: memory_needed }
        }
        _ => Shortage::RingFailed { error: error.to_string() },
    }
}

const PAGE: u64 = 4096;

fn abilities(uring: &IoUring) -> Result<String, Shortage> {
    let parameters = uring.params();
    let features = [
        ("NODROP", parameters.is_feature_nodrop()),
        ("SUBMIT_STABLE", parameters.is_feature_submit_stable()),
        ("FAST_POLL", parameters.is_feature_fast_poll()),
        ("EXT_ARG", parameters.is_feature_ext_arg()),
        ("CQE_SKIP", parameters.is_feature_skip_cqe_on_success()),
    ];
    let mut operations = Probe::new();
    uring
        .submitter()
        .register_probe(&mut operations)
        .map_err(|error| Shortage::RingFailed { error: error.to_string() })?;
    let wanted = [
        ("ACCEPT", opcode::Accept::CODE),
        ("CONNECT", opcode::Connect::CODE),
        ("RECV", opcode::Recv::CODE),
        ("SEND", opcode::Send::CODE),
        ("SENDMSG", opcode::SendMsg::CODE),
        ("SHUTDOWN", opcode::Shutdown::CODE),
        ("CLOSE", opcode::Close::CODE),
        ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
        ("MSG_RING", opcode::MsgRingData::CODE),
        ("TIMEOUT", opcode::Timeout::CODE),
        ("READ", opcode::Read::CODE),
        ("WRITE", opcode::Write::CODE),
        ("FSYNC", opcode::Fsync::CODE),
        ("FALLOCATE", opcode::Fallocate::CODE),
        ("OPENAT", opcode::OpenAt::CODE),
        ("RENAMEAT", opcode::RenameAt::CODE),
        ("UNLINKAT", opcode::UnlinkAt::CODE),
    ];
    let missing: Vec<&'static str> = features
        .into_iter()
        .filter_map(|(name, is_there)| (!is_there).then_some(name))
        .chain(wanted.into_iter().filter_map(|(name, code)| (!operations.is_supported(code)).then_some(name)))
        .collect();
    if missing.is_empty() {
        Ok(format!("all {} features and {} operations", features.len(), wanted.len()))
    } else {
        Err(Shortage::AbilitiesMissing { missing, release: kernel_release() })
    }
}

/// Makes all the rings at once, as the server will.
fn locked_memory(needs: &Needs) -> Result<String, Shortage> {
    let outcome = make_rings(needs);
    let (soft, hard) = limit(Resource::Memlock);
    match outcome {
        Ok(()) => Ok(format!(
            "{} ring(s) with their buffers could be made; memlock limit {}",
            needs.rings,
            shortage::bytes(soft)
        )),
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
            Err(Shortage::LockedMemory { soft, hard, needed: ring_bytes(needs) })
        }
        Err(error) => Err(Shortage::RingFailed { error: error.to_string() }),
    }
}

fn make_rings(needs: &Needs) -> io::Result<()> {
    let mut rings = Vec::new();
    for _ in 0..needs.rings {
        let ring = Ring::new(needs.ring)?;
        for (count, size) in &needs.buffer_groups {
            ring.add_buffer_group(*count, *size)?;
        }
        rings.push(ring);
    }
    Ok(())
}

/// What the kernel may count as locked: the queues and the rings of buffers, in pages. Buffers themselves are not.
fn ring_bytes(needs: &Needs) -> u64 {
    let pages = |bytes: u64| bytes.next_multiple_of(PAGE);
    let queues = pages(64 * u64::from(needs.ring.submission_entries))
        + pages(
            16 * u64::from(needs.ring.completion_entries)
                + 4 * u64::from(needs.ring.submission_entries)
                + 512,
        );
    let groups: u64 = needs.buffer_groups.iter().map(|(count, _)| pages(16 * u64::from(*count))).sum();
    // Rings that were closed a moment ago still count for a while, the ones of this probe too: hence twice.
    2 * u64::from(needs.rings) * (queues + groups)
}

fn open_files(needed: u64) -> Result<String, Shortage> {
    let (before, _) = limit(Resource::Nofile);
    if before.is_some_and(|soft| soft < needed) {
        raise(Resource::Nofile, needed);
    }
    let (soft, hard) = limit(Resource::Nofile);
    match soft {
        Some(soft) if soft < needed => Err(Shortage::OpenFiles { soft, hard, needed }),
        Some(soft) if before != Some(soft) => Ok(format!(
            "limit raised to {soft} of {}, {needed} needed",
            hard.map_or("any".into(), |h| h.to_string())
        )),
        Some(soft) => Ok(format!("limit {soft}, {needed} needed")),
        None => Ok(format!("no limit, {needed} needed")),
    }
}

/// The soft and the hard limit; `None` is unlimited.
fn limit(resource: Resource) -> (Option<u64>, Option<u64>) {
    let limit = getrlimit(resource);
    (limit.current, limit.maximum)
}

/// Raises the soft limit as far towards `needed` as the hard one, or our privileges, allow.
fn raise(resource: Resource, needed: u64) {
    let Rlimit { current, maximum } = getrlimit(resource);
    if current.is_none_or(|soft| soft >= needed) {
        return;
    }
    let raised = maximum.map_or(needed, |hard| hard.min(needed));
    // A refusal shows in the limit, which is read again afterwards.
    let _ = setrlimit(resource, Rlimit { current: Some(raised), maximum });
    if raised < needed {
        let _ = setrlimit(resource, Rlimit { current: Some(needed), maximum: Some(needed) });
    }
}

/// Writes one block durably into a new file in the directory, and removes it. Says what was seen, or what is short. A full
/// disk is no shortage: a log that exists needs no room to start, and what it finds to be full it tries again.
pub fn direct_io(directory: &Path) -> Result<String, Shortage> {
    let unusable = |error: Errno| Shortage::DirectoryUnusable {
        directory: directory.to_owned(),
        error: io::Error::from(error).to_string(),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty()).map_err(unusable)?;
    let filesystem =
        rustix::fs::fstatfs(&opened).map(|status| filesystem_name(status.f_type)).map_err(unusable)?;
    let name = format!(".probe-{}", std::process::id());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let full = || Ok(format!("{filesystem} has no room to try a write in; the log waits until it has"));
    // Without O_DIRECT first: whether the directory can be written is another question than how.
    match rustix::fs::openat(&opened, &name, flags, Mode::RUSR | Mode::WUSR) {
        Ok(plain) => drop(plain),
        Err(Errno::NOSPC | Errno::DQUOT) => return full(),
        Err(error) => return Err(unusable(error)),
    }
    let outcome = write_direct(&opened, &name);
    let removal = rustix::fs::unlinkat(&opened, &name, AtFlags::empty());
    match outcome {
        Ok(()) => {
            removal.map_err(unusable)?;
            Ok(format!("a 4,096-byte O_DIRECT write with RWF_DSYNC worked on {filesystem}"))
        }
        // The file could be opened with O_DIRECT, which is what file systems refuse; there is no more to learn now.
        Err(Errno::NOSPC | Errno::DQUOT) => {
            removal.map_err(unusable)?;
            full()
        }
        Err(error) => Err(Shortage::DirectIo {
            directory: directory.to_owned(),
            filesystem,
            error: io::Error::from(error).to_string(),
        }),
    }
}

fn write_direct(directory: impl std::os::fd::AsFd, name: &str) -> rustix::io::Result<()> {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let block = AlignedBuf::zeroed(4096);
    let written = rustix::io::retry_on_intr(|| {
        rustix::io::pwritev2(&file, &[IoSlice::new(&block)], 0, ReadWriteFlags::DSYNC)
    })?;
    if written == block.len() { Ok(()) } else { Err(Errno::IO) }
}

fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The name of the file system that holds the path.
pub fn filesystem(path: &Path) -> io::Result<String> {
    Ok(filesystem_name(rustix::fs::statfs(path)?.f_type))
}

/// The name of a file system by its magic number, as `statfs` gives it.
fn filesystem_name(magic: i64) -> String {
    let name = match magic {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x0102_1994 => "tmpfs",
        0x8584_58f6 => "ramfs",
        0x794c_7630 => "overlayfs",
        0x6969 => "nfs",
        0x2fc1_2fc1 => "zfs",
        0xf2f5_2010 => "f2fs",
        0x6573_5546 => "fuse",
        0x0102_1997 => "9p",
        0xff53_4d42 => "cifs",
        _ => return format!("file system {magic:#x}"),
    };
    name.to_owned()
}
