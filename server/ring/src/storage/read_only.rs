//! A data directory that is only looked at, beside a node that may be using it.
//!
//! Writes nothing, and takes no lock unless it is asked to keep nodes away. A shard is *frozen* before it is read: its sealed segments are mapped, all others
//! are read into memory once, from their ends to their beginnings. A log grows in the other direction, so whatever is
//! seen of it, all that came before it is seen, too. A snapshot is frozen by mapping its file, which nothing is written
//! into under its name.
//!
//! Invariant: no reference to a mapped page is ever made, and none is touched that the kernel has not just
//! brought in. Deliberately absent: any promise about the tail of a running node; it is a moment's view, and
//! what it shows last may not be durable yet.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use lockstep_wal::disk::{DiskError, FileName, ShardId, StorageRead};
use lockstep_wal::sealed_segments;
use lockstep_wire::{CellId, LogIndex};
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{Mode, OFlags};

use super::directory::{BOUNCE_BYTES, assert_aligned, list, lock_patiently, read_at, retry};
use super::disk_error;
use crate::aligned::AlignedBuf;

/// A data directory, for looking at.
#[derive(Debug)]
pub struct ReadOnlyDirectory {
    directory: OwnedFd,
    lock: Option<OwnedFd>,
    bounce: AlignedBuf,
    /// The listing that the frozen shard or snapshot was found with.
    listed: Option<Vec<(FileName, u64)>>,
    sealed: BTreeMap<FileName, MmapRaw>,
    others: BTreeMap<FileName, Vec<u8>>,
}

impl ReadOnlyDirectory {
    /// Opens an existing directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            directory: rustix::fs::open(path, flags, Mode::empty())?,
            lock: None,
            bounce: AlignedBuf::zeroed(BOUNCE_BYTES),
            listed: None,
            sealed: BTreeMap::new(),
            others: BTreeMap::new(),
        })
    }

    /// Keeps nodes away as long as this value lives; [`DiskError::Locked`] if one uses the directory. Makes no lock file: a
    /// directory without one was never used.
    pub fn lock(&mut self) -> Result<(), DiskError> {
        let fd = match self.open_file(FileName::Lock, OFlags::empty()) {
            Err(DiskError::NotFound) => return Ok(()),
            opened => opened?,
        };
        lock_patiently(&fd)?;
        self.lock = Some(fd);
        Ok(())
    }

    /// Holds a shard's files as they are now; what was held before is let go. Takes as much memory as the
    /// shard's unsealed segments, three as a rule.
    pub fn freeze(&mut self, shard: ShardId) -> Result<(), DiskError> {
        self.let_go();
        let mut listed = self.list()?;
        listed.sort_unstable();
        let sealed = sealed_segments(self, shard)?;
        for (file, bytes) in listed.iter().rev() {
            let FileName::Segment { shard: of, .. } = file else { continue };
            if *of != shard {
                continue;
            }
            if sealed.contains(file) {
                let map = map(self.open_file(*file, OFlags::empty())?, *bytes)?;
                self.sealed.insert(*file, map);
            } else {
                let copy = self.copy_backwards(*file, *bytes)?;
                self.others.insert(*file, copy);
            }
        }
        self.listed = Some(listed);
        Ok(())
    }

    /// Holds a snapshot's file, also when its node removes it; what was held before is let go.
    pub fn freeze_snapshot(&mut self, cell: CellId, index: LogIndex) -> Result<(), DiskError> {
        self.let_go();
        let file = FileName::Snapshot { cell, index };
        let listed = self.list()?;
        let (_, bytes) = *listed.iter().find(|(found, _)| *found == file).ok_or(DiskError::NotFound)?;
        let map = map(self.open_file(file, OFlags::empty())?, bytes)?;
        self.sealed.insert(file, map);
        self.listed = Some(listed);
        Ok(())
    }

    /// Lets go of what is held: files are as they are now.
    pub fn let_go(&mut self) {
        self.listed = None;
        self.sealed.clear();
        self.others.clear();
    }

    fn copy_backwards(&mut self, file: FileName, bytes: u64) -> Result<Vec<u8>, DiskError> {
        let fd = self.open_file(file, OFlags::DIRECT)?;
        let len = usize::try_from(bytes).map_err(|_| DiskError::Io(libc::EFBIG))?;
        // A length that is no multiple of a block is not the log's; what lies in whole blocks is read.
        let mut copy = vec![0; len - len % lockstep_wal::layout::BLOCK_BYTES];
        let mut offset = copy.len() as u64;
        for piece in copy.rchunks_mut(BOUNCE_BYTES) {
            offset -= piece.len() as u64;
            read_at(&fd, &mut self.bounce, offset, piece)?;
        }
        Ok(copy)
    }

    fn open_file(&self, file: FileName, more: OFlags) -> Result<OwnedFd, DiskError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | more;
        retry(|| rustix::fs::openat(&self.directory, file.to_string(), flags, Mode::empty()))
    }
}

impl StorageRead for ReadOnlyDirectory {
    fn list(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        match &self.listed {
            Some(listed) => Ok(listed.clone()),
            None => list(&self.directory),
        }
    }

    fn read(&mut self, file: FileName, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        assert_aligned(offset, bytes.len());
        if let Some(copy) = self.others.get(&file) {
            let from = usize::try_from(offset).map_err(|_| DiskError::EndOfFile)?;
            let part =
                copy.get(from..).and_then(|rest| rest.get(..bytes.len())).ok_or(DiskError::EndOfFile)?;
            bytes.copy_from_slice(part);
            return Ok(());
        }
        if self.sealed.get(&file).is_some_and(|map| copy_mapped(map, offset, bytes).is_ok()) {
            return Ok(());
        }
        // Not mapped, or no page can be had there: this says why.
        let fd = self.open_file(file, OFlags::DIRECT)?;
        read_at(&fd, &mut self.bounce, offset, bytes)
    }
}

fn map(fd: OwnedFd, bytes: u64) -> Result<MmapRaw, DiskError> {
    let len = usize::try_from(bytes).map_err(|_| DiskError::Io(libc::EFBIG))?;
    // Raw: it hands out a pointer and no slice, because another process can change what it shows. A sealed segment is
    // never written again under its name, but its node may recycle it under another one meanwhile.
    MmapOptions::new().len(len).map_raw_read_only(&File::from(fd)).map_err(|error| disk_error(&error))
}

/// Copies out of the map what lies at `offset`.
fn copy_mapped(map: &MmapRaw, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
    let from = usize::try_from(offset).map_err(|_| DiskError::EndOfFile)?;
    if from.checked_add(bytes.len()).is_none_or(|end| end > map.len()) {
        return Err(DiskError::EndOfFile);
    }
    // Has the kernel read the pages now, and answer with an error where touching them would be a SIGBUS: a file that
    // has been cut, a sector that cannot be read. What is left is the moment until the copy: if the file is cut in it
    // (nothing of ours cuts a segment), or the page is dropped and its sector fails right then, this process dies.
    map.advise_range(Advice::PopulateRead, from, bytes.len()).map_err(|error| disk_error(&error))?;
    // SAFETY: the range lies in the map (checked above), which lives as long as the borrow of `map`, and is mapped readable. `bytes`
    // is exclusively borrowed memory of this process, so the two do not overlap. No reference to the map is made; a
    // byte that another process changes during the copy arrives old or new, and the log's checksums decide what
    // either is worth.
    unsafe { std::ptr::copy_nonoverlapping(map.as_ptr().add(from), bytes.as_mut_ptr(), bytes.len()) };
    Ok(())
}
