//! A data directory on a real file system: the log's drivers.
//!
//! [`DataDirectory`] blocks and serves start-up (format, recovery); [`LogDisk`] carries out a running log's operations
//! through a [`Ring`](crate::Ring). [`ReadOnlyDirectory`] is for looking at what may be in use. The first two open files with O_DIRECT and make writes durable with RWF_DSYNC.
//!
//! Invariant: an error that leaves here is final; interrupted calls and short transfers have been resumed already.
//! Deliberately absent: any reading or judging of what the files say; that is the log's.

mod directory;
mod log_disk;
mod read_only;

pub use directory::DataDirectory;
pub use log_disk::LogDisk;
pub use read_only::ReadOnlyDirectory;

use std::io;

use lockstep_wal::disk::DiskError;

/// The disk's word for an errno.
fn disk_error(error: &io::Error) -> DiskError {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => DiskError::NoSpace,
        Some(libc::ENOENT) => DiskError::NotFound,
        Some(libc::EEXIST) => DiskError::AlreadyExists,
        Some(errno) => DiskError::Io(errno),
        // Errors without a number are made here: a name with a NUL in it, nothing written of something.
        None => DiskError::Io(libc::EIO),
    }
}
