//! What a host lacks, in one sentence that names the limit, what was seen and what is needed, and what to do about it.
//!
//! Invariant: a sentence needs no other to be understood. Deliberately absent: causes by type; nobody recovers from these.

use std::fmt;
use std::path::PathBuf;

/// A must-have that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shortage {
    /// The kernel has no io_uring (ENOSYS).
    IoUringMissing {
        /// Which kernel.
        release: String,
    },
    /// `kernel.io_uring_disabled` forbids it.
    IoUringDisabled {
        /// The value of the setting.
        level: String,
    },
    /// Something else forbids it: as a rule the seccomp filter of a container.
    IoUringForbidden,
    /// The kernel's io_uring lacks SINGLE_ISSUER and DEFER_TASKRUN.
    KernelTooOld {
        /// Which kernel.
        release: String,
    },
    /// The kernel's io_uring lacks some features or operations.
    AbilitiesMissing {
        /// Their names.
        missing: Vec<&'static str>,
        /// Which kernel.
        release: String,
    },
    /// Making a ring failed for another reason.
    RingFailed {
        /// The kernel's word for it.
        error: String,
    },
    /// The memlock limit is too low for the rings; limits in bytes, `None` is unlimited.
    LockedMemory {
        /// The soft limit.
        soft: Option<u64>,
        /// The hard limit.
        hard: Option<u64>,
        /// What is needed.
        needed: u64,
    },
    /// The limit of open files is too low and could not be raised.
    OpenFiles {
        /// The soft limit.
        soft: u64,
        /// The hard limit; `None` is unlimited.
        hard: Option<u64>,
        /// What is needed.
        needed: u64,
    },
    /// The data directory cannot be opened or written at all.
    DirectoryUnusable {
        /// Which directory.
        directory: PathBuf,
        /// The kernel's word for it.
        error: String,
    },
    /// The data directory's file system refuses O_DIRECT or RWF_DSYNC.
    DirectIo {
        /// Which directory.
        directory: PathBuf,
        /// Its file system.
        filesystem: String,
        /// The kernel's word for it.
        error: String,
    },
}

/// A limit in words.
pub(super) fn bytes(limit: Option<u64>) -> String {
    match limit {
        None => "unlimited".to_owned(),
        Some(bytes) => format!("{} KiB", bytes.div_ceil(1024)),
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IoUringMissing { release } => {
                write!(f, "io_uring is not in this kernel ({release}), and Linux 6.1 or later with io_uring is needed")
            }
            Self::IoUringDisabled { level } => write!(
                f,
                "io_uring is disabled for this process: kernel.io_uring_disabled is {level}, and 0 is needed (or, \
                 with 1, membership in kernel.io_uring_group)"
            ),
            Self::IoUringForbidden => f.write_str(
                "io_uring is forbidden for this process (EPERM, as a rule by a container's seccomp filter), and \
                 the system calls io_uring_setup, io_uring_enter and io_uring_register are needed",
            ),
            Self::KernelTooOld { release } => write!(
                f,
                "this kernel ({release}) lacks io_uring's SINGLE_ISSUER and DEFER_TASKRUN, and Linux 6.1 or later is needed"
            ),
            Self::AbilitiesMissing { missing, release } => write!(
                f,
                "this kernel's io_uring ({release}) lacks {}, and Linux 6.1 or later with all of them is needed",
                missing.join(", ")
            ),
            Self::RingFailed { error } => write!(f, "an io_uring of the size needed could not be made: {error}"),
            Self::LockedMemory { soft, hard, needed } => write!(
                f,
                "the memlock limit (RLIMIT_MEMLOCK) is {} (hard limit {}), and {} are needed for the rings",
                bytes(*soft),
                bytes(*hard),
                bytes(Some(*needed))
            ),
            Self::OpenFiles { soft, hard, needed } => write!(
                f,
                "the limit of open files (RLIMIT_NOFILE) is {soft} (hard limit {}), and {needed} are needed",
                hard.map_or("unlimited".to_owned(), |hard| hard.to_string())
            ),
            Self::DirectoryUnusable { directory, error } => {
                write!(f, "the data directory {} cannot be written: {error}", directory.display())
            }
            Self::DirectIo { directory, filesystem, error } => write!(
                f,
                "the data directory {} is on {filesystem}, which refused a durable direct write ({error}), and a file \
                 system with O_DIRECT and RWF_DSYNC is needed",
                directory.display()
            ),
        }
    }
}

impl std::error::Error for Shortage {}

impl Shortage {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::IoUringMissing { .. } | Self::KernelTooOld { .. } | Self::AbilitiesMissing { .. } => {
                "run Linux 6.1 or later, built with CONFIG_IO_URING".to_owned()
            }
            Self::IoUringDisabled { .. } => "set it with: sysctl -w kernel.io_uring_disabled=0".to_owned(),
            Self::IoUringForbidden => {
                "allow the three system calls in the container's seccomp profile, or run outside of it"
                    .to_owned()
            }
            Self::RingFailed { .. } => {
                "see the kernel's word for it; the memory limit of the control group counts".to_owned()
            }
            Self::LockedMemory { needed, .. } => format!(
                "raise it (systemd: LimitMEMLOCK={needed}; shell, as root: ulimit -l {}), or grant CAP_IPC_LOCK",
                needed.div_ceil(1024)
            ),
            Self::OpenFiles { needed, .. } => {
                format!(
                    "raise it (systemd: LimitNOFILE={needed}; shell, as root: ulimit -n {needed}), or allow fewer connections"
                )
            }
            Self::DirectoryUnusable { .. } => {
                "create it, make it writable for this user, or free space on its disk".to_owned()
            }
            Self::DirectIo { .. } => "put the data directory on ext4 or xfs on a local disk".to_owned(),
        }
    }
}
