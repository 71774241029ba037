//! Operations on files and directories.
//!
//! Invariant: each goes through [`Ring::start`], which takes ownership of what the kernel is pointed to.
//! Deliberately absent: buffered positions; every transfer names its offset.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use io_uring::opcode;
use io_uring::types::{Fd, FsyncFlags};

use crate::aligned::{AlignedBuf, Pinned};
use crate::completion::Token;
use crate::descriptor::File;
use crate::op::{Op, OpId};
use crate::ring::{Ring, entry_on};

/// What a completed write promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The data and what is needed to find it again are on the disk (RWF_DSYNC).
    Durable,
    /// Nothing until a later sync.
    Volatile,
}

/// How [`Ring::open`] opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// O_DIRECT, for reading and writing; the file exists.
    Direct,
    /// O_DIRECT, for reading and writing; created if need be, and cut to nothing if it exists.
    DirectTruncated,
    /// A directory, to be synced.
    Directory,
}

/// The permissions of a file that an open creates: its owner's alone.
const CREATE_MODE: u32 = 0o600;

impl Ring {
    /// Writes this part of the buffer at the offset. With O_DIRECT everything is a multiple of the logical block.
    pub fn write(
        &self,
        file: File,
        buffer: AlignedBuf,
        part: Range<usize>,
        offset: u64,
        durability: Durability,
        token: Token,
    ) -> OpId {
        let len = transfer_len(&buffer, &part);
        let base = buffer[part].as_ptr();
        let flags = match durability {
            Durability::Durable => libc::RWF_DSYNC,
            Durability::Volatile => 0,
        };
        let entry = entry_on!(self.target(file.0), |fd| {
            opcode::Write::new(fd, base, len).offset(offset).rw_flags(flags).build()
        });
        // SAFETY: the bytes lie in the buffer, whose heap memory the operation owns.
        unsafe { self.start(Op::Write { token, file: file.0, buffer }, entry) }
    }

    /// Reads up to `part.len()` bytes from the offset into this part of the buffer.
    pub fn read(
        &self,
        file: File,
        buffer: AlignedBuf,
        part: Range<usize>,
        offset: u64,
        token: Token,
    ) -> OpId {
        let len = transfer_len(&buffer, &part);
        // The pointer is derived for writing from the allocation itself.
        let base = buffer.base().wrapping_add(part.start);
        let entry =
            entry_on!(self.target(file.0), |fd| opcode::Read::new(fd, base, len).offset(offset).build());
        // SAFETY: the bytes lie in the buffer (`transfer_len` checked), whose heap memory the operation owns.
        unsafe { self.start(Op::Read { token, file: file.0, buffer }, entry) }
    }

    /// Makes data and metadata of the file, or the names in the directory, durable.
    pub fn sync(&self, file: File, token: Token) -> OpId {
        let entry = entry_on!(self.target(file.0), |fd| opcode::Fsync::new(fd).build());
        // SAFETY: the entry refers to no memory.
        unsafe { self.start(Op::Sync { token, file: file.0 }, entry) }
    }

    /// Makes the file's data durable, and of its metadata what is needed to read it (fdatasync).
    pub fn sync_data(&self, file: File, token: Token) -> OpId {
        let entry = entry_on!(self.target(file.0), |fd| {
            opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build()
        });
        // SAFETY: the entry refers to no memory.
        unsafe { self.start(Op::Sync { token, file: file.0 }, entry) }
    }

    /// Allocates space in the file, extending it.
    pub fn allocate(&self, file: File, offset: u64, len: u64, token: Token) -> OpId {
        let entry =
            entry_on!(self.target(file.0), |fd| opcode::Fallocate::new(fd, len).offset(offset).build());
        // SAFETY: the entry refers to no memory.
        unsafe { self.start(Op::Allocate { token, file: file.0 }, entry) }
    }

    /// Frees what this part of the file takes on the disk; it reads as zeros then, and the file stays as long.
    pub fn punch(&self, file: File, offset: u64, len: u64, token: Token) -> OpId {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let entry = entry_on!(self.target(file.0), |fd| {
            opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build()
        });
        // SAFETY: the entry refers to no memory.
        unsafe { self.start(Op::Allocate { token, file: file.0 }, entry) }
    }

    /// How long the file is. Asks the kernel at once, which has it at hand.
    pub fn file_bytes(&self, file: File) -> io::Result<u64> {
        let descriptors = self.descriptors.borrow();
        let fd = descriptors.fd(file.0).ok_or(io::ErrorKind::NotFound)?;
        Ok(u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0))
    }

    /// Opens a file or directory. Fails at once if the path has a NUL in it.
    pub fn open(&self, path: &Path, mode: OpenMode, token: Token) -> io::Result<OpId> {
        let path = pinned_path(path)?;
        let flags = libc::O_CLOEXEC
            | match mode {
                OpenMode::Direct => libc::O_DIRECT | libc::O_RDWR,
                OpenMode::DirectTruncated => libc::O_DIRECT | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC,
                OpenMode::Directory => libc::O_DIRECTORY | libc::O_RDONLY,
            };
        let name = path_pointer(&path);
        let entry = opcode::OpenAt::new(Fd(libc::AT_FDCWD), name).flags(flags).mode(CREATE_MODE).build();
        // SAFETY: the path is in the pinned cell, which the operation owns.
        Ok(unsafe { self.start(Op::Open { token, path }, entry) })
    }

    /// Renames a file, replacing what is there.
    pub fn rename(&self, from: &Path, to: &Path, token: Token) -> io::Result<OpId> {
        let (from, to) = (pinned_path(from)?, pinned_path(to)?);
        let cwd = Fd(libc::AT_FDCWD);
        let entry = opcode::RenameAt::new(cwd, path_pointer(&from), cwd, path_pointer(&to)).build();
        // SAFETY: both paths are in pinned cells, which the operation owns.
        Ok(unsafe { self.start(Op::Rename { token, from, to }, entry) })
    }

    /// Removes a file.
    pub fn unlink(&self, path: &Path, token: Token) -> io::Result<OpId> {
        let path = pinned_path(path)?;
        let entry = opcode::UnlinkAt::new(Fd(libc::AT_FDCWD), path_pointer(&path)).build();
        // SAFETY: the path is in the pinned cell, which the operation owns.
        Ok(unsafe { self.start(Op::Unlink { token, path }, entry) })
    }
}

/// The length of a transfer. Panics if the part is not within the buffer.
fn transfer_len(buffer: &AlignedBuf, part: &Range<usize>) -> u32 {
    assert!(part.start <= part.end && part.end <= buffer.len(), "a transfer lies within its buffer");
    u32::try_from(part.len()).expect("a transfer is shorter than 4 GiB")
}

fn pinned_path(path: &Path) -> io::Result<Pinned<CString>> {
    Ok(Pinned::new(CString::new(path.as_os_str().as_bytes())?))
}

fn path_pointer(path: &Pinned<CString>) -> *const libc::c_char {
    // SAFETY: the cell holds a string, and nobody changes it while this handle lives.
    unsafe { (*path.as_ptr()).as_ptr() }
}
