//! The blocking driver: one data directory at start-up.
//!
//! Invariant: while [`DataDirectory`] holds the lock no other process that asks for it uses the directory; keep the
//! value for the life of the process. Deliberately absent: speed; a running log uses [`LogDisk`](super::LogDisk).

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockstep_wal::disk::{DiskError, FileName, Storage, StorageRead};
use lockstep_wal::layout::BLOCK_BYTES;
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::disk_error;
use crate::aligned::AlignedBuf;

/// How long a lock that somebody holds is asked for again. The kernel releases the files of a killed process a
/// moment after the process is gone, later still those that a ring held.
const LOCK_WAIT: Duration = Duration::from_millis(1000);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Bytes of the buffer through which unaligned memory is written and read.
pub(super) const BOUNCE_BYTES: usize = 256 * 1024;

/// A data directory, for blocking use.
#[derive(Debug)]
pub struct DataDirectory {
    path: PathBuf,
    directory: OwnedFd,
    lock: Option<OwnedFd>,
    files: BTreeMap<FileName, OwnedFd>,
    bounce: AlignedBuf,
}

impl DataDirectory {
    /// Opens an existing directory. Changes nothing in it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty())?;
        let bounce = AlignedBuf::zeroed(BOUNCE_BYTES);
        Ok(Self { path: path.to_owned(), directory, lock: None, files: BTreeMap::new(), bounce })
    }

    /// Makes the directory, and those above it, if need be, durably, and opens it.
    pub fn create(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        if let Some(parent) = path.canonicalize()?.parent() {
            std::fs::File::open(parent)?.sync_all()?;
        }
        Self::open(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open_file(&self, file: FileName, flags: OFlags) -> Result<OwnedFd, DiskError> {
        let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        retry(|| rustix::fs::openat(&self.directory, file.to_string(), flags, mode))
    }

    fn file(&mut self, file: FileName) -> Result<(&OwnedFd, &mut AlignedBuf), DiskError> {
        if !self.files.contains_key(&file) {
            let fd = self.open_file(file, OFlags::DIRECT)?;
            self.files.insert(file, fd);
        }
        Ok((&self.files[&file], &mut self.bounce))
    }
}

pub(super) fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> Result<T, DiskError> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome.map_err(|errno| disk_error(&errno.into())),
        }
    }
}

pub(super) fn assert_aligned(offset: u64, len: usize) {
    assert!(
        offset.is_multiple_of(BLOCK_BYTES as u64) && len.is_multiple_of(BLOCK_BYTES),
        "transfers are in whole blocks, not {len} bytes at {offset}"
    );
}

/// Every file of ours in the directory, with its length.
pub(super) fn list(directory: &OwnedFd) -> Result<Vec<(FileName, u64)>, DiskError> {
    let mut files = Vec::new();
    for entry in Dir::read_from(directory).map_err(|errno| disk_error(&errno.into()))? {
        let entry = entry.map_err(|errno| disk_error(&errno.into()))?;
        let Some(file) = entry.file_name().to_str().ok().and_then(FileName::parse) else { continue };
        match retry(|| rustix::fs::statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(status) => files.push((file, u64::try_from(status.st_size).unwrap_or(0))),
            // Another shard's log, which runs already, has renamed or removed it since it was read.
            Err(DiskError::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

/// Fills `bytes` from a file that is open with O_DIRECT.
pub(super) fn read_at(
    fd: &OwnedFd,
    bounce: &mut AlignedBuf,
    offset: u64,
    bytes: &mut [u8],
) -> Result<(), DiskError> {
    let mut done = 0;
    while done < bytes.len() {
        let want = (bytes.len() - done).min(bounce.len());
        let len = retry(|| rustix::io::pread(fd, &mut bounce[..want], offset + done as u64))?;
        if len == 0 {
            return Err(DiskError::EndOfFile);
        }
        if len < want && !len.is_multiple_of(BLOCK_BYTES) {
            // A file that ends within a block: the next read could not be aligned and would find nothing.
            return Err(DiskError::EndOfFile);
        }
        bytes[done..done + len].copy_from_slice(&bounce[..len]);
        done += len;
    }
    Ok(())
}

/// Locks the lock file, which is held until it is closed.
pub(super) fn lock_patiently(fd: &OwnedFd) -> Result<(), DiskError> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK) => return Err(DiskError::Locked),
            Err(errno) => return Err(disk_error(&errno.into())),
        }
    }
}

impl StorageRead for DataDirectory {
    fn list(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        list(&self.directory)
    }

    fn read(&mut self, file: FileName, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        assert_aligned(offset, bytes.len());
        let (fd, bounce) = self.file(file)?;
        read_at(fd, bounce, offset, bytes)
    }
}

impl Storage for DataDirectory {
    fn lock(&mut self) -> Result<(), DiskError> {
        if self.lock.is_some() {
            return Ok(());
        }
        let fd = self.open_file(FileName::Lock, OFlags::CREATE)?;
        lock_patiently(&fd)?;
        self.lock = Some(fd);
        Ok(())
    }

    fn create(&mut self, file: FileName) -> Result<(), DiskError> {
        let fd = self.open_file(file, OFlags::CREATE | OFlags::EXCL | OFlags::DIRECT)?;
        self.files.insert(file, fd);
        Ok(())
    }

    fn write_durable(&mut self, file: FileName, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        assert_aligned(offset, bytes.len());
        let (fd, bounce) = self.file(file)?;
        let mut done = 0;
        while done < bytes.len() {
            let want = (bytes.len() - done).min(bounce.len());
            bounce[..want].copy_from_slice(&bytes[done..done + want]);
            let piece = [IoSlice::new(&bounce[..want])];
            let at = offset + done as u64;
            let len = retry(|| rustix::io::pwritev2(fd, &piece, at, ReadWriteFlags::DSYNC))?;
            if len == 0 || !len.is_multiple_of(BLOCK_BYTES) {
                return Err(DiskError::Io(libc::EIO));
            }
            done += len;
        }
        Ok(())
    }

    fn sync(&mut self, file: FileName) -> Result<(), DiskError> {
        let (fd, _) = self.file(file)?;
        retry(|| rustix::fs::fsync(fd))
    }

    fn rename(&mut self, from: FileName, to: FileName) -> Result<(), DiskError> {
        retry(|| rustix::fs::renameat(&self.directory, from.to_string(), &self.directory, to.to_string()))?;
        self.files.remove(&to);
        if let Some(fd) = self.files.remove(&from) {
            self.files.insert(to, fd);
        }
        Ok(())
    }

    fn remove(&mut self, file: FileName) -> Result<(), DiskError> {
        self.files.remove(&file);
        retry(|| rustix::fs::unlinkat(&self.directory, file.to_string(), AtFlags::empty()))
    }

    fn sync_directory(&mut self) -> Result<(), DiskError> {
        retry(|| rustix::fs::fsync(&self.directory))
    }

    fn free_bytes(&mut self) -> Result<u64, DiskError> {
        let status = retry(|| rustix::fs::fstatvfs(&self.directory))?;
        Ok(status.f_bavail.saturating_mul(status.f_frsize))
    }
}
