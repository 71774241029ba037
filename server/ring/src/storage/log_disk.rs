//! The driver of a running log: each of its operations becomes one or a few ring operations.
//!
//! Invariant: at most one operation of each lane is in flight, each lane has its own buffer, and a batch is one
//! O_DIRECT write with RWF_DSYNC into a file that is open already: nothing is allocated on the commit path.
//! A file that is removed loses its name at once, and what it takes on the disk bit by bit: freeing a hundred MiB in one go
//! would keep the file system from everything else for tens of milliseconds, the next commit included.
//! Deliberately absent: pacing of the background lane and of what is freed; whoever polls the log decides when.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use lockstep_wal::Log;
use lockstep_wal::disk::{Action, DiskDone, DiskError, DiskOp, FileName, Lane};
use lockstep_wal::layout::{
    BATCH_BYTES_MAX, BLOCK_BYTES, READ_BYTES_MAX, SNAPSHOT_STRIDE_BYTES, ZERO_PIECE_BYTES,
};

use super::disk_error;
use crate::aligned::AlignedBuf;
use crate::completion::{Completion, Token};
use crate::descriptor::File;
use crate::files::{Durability, OpenMode};
use crate::ring::Ring;

const LANES: usize = 4;
/// What has no lane goes by tokens behind theirs.
const CLOSED: u64 = LANES as u64;
const FREED: u64 = LANES as u64 + 1;
/// What is freed of a removed file in one go: some hundred microseconds.
const FREED_BYTES: u64 = 1024 * 1024;

/// One log's files, on one ring.
pub struct LogDisk {
    path: PathBuf,
    first_token: u64,
    directory: File,
    files: BTreeMap<FileName, File>,
    lanes: [LaneState; LANES],
    /// Removed files that still take space; the last one is being freed.
    removed: Vec<Removed>,
    is_freeing: bool,
    /// Zeros to fill segments with; away while such a write is in flight.
    zeros: Option<AlignedBuf>,
}

/// A lane: its buffer, and what is going on in it.
struct LaneState {
    /// Away while the kernel has it.
    buffer: Option<AlignedBuf>,
    running: Option<Running>,
}

/// A file without a name.
struct Removed {
    file: File,
    /// What it takes lies before this.
    bytes: u64,
}

#[derive(Clone, Copy)]
struct Running {
    op: DiskOp,
    /// Bytes transferred so far.
    done: usize,
}

impl LogDisk {
    /// Tokens that one log's driver uses, from the first on.
    pub const TOKENS: u64 = LANES as u64 + 2;

    /// A driver for files in the data directory `path`. Its operations go by `first_token` and the
    /// [`TOKENS`](Self::TOKENS)` - 1` that follow it.
    pub fn new(ring: &Ring, path: &Path, first_token: Token) -> io::Result<Self> {
        // Absolute, so that it means the same directory whatever becomes of the working directory.
        let path = path.canonicalize()?;
        let directory: OwnedFd = std::fs::File::open(&path)?.into();
        let lane = |len| LaneState { buffer: Some(AlignedBuf::zeroed(len)), running: None };
        Ok(Self {
            directory: ring.adopt_file(directory),
            path,
            first_token: first_token.0,
            files: BTreeMap::new(),
            lanes: [
                lane(BATCH_BYTES_MAX),
                lane(BLOCK_BYTES),
                lane(READ_BYTES_MAX),
                lane(SNAPSHOT_STRIDE_BYTES),
            ],
            removed: Vec::new(),
            is_freeing: false,
            zeros: Some(AlignedBuf::zeroed(ZERO_PIECE_BYTES)),
        })
    }

    /// Whether a completion with this token is this driver's.
    pub fn owns(&self, token: Token) -> bool {
        (self.first_token..self.first_token + Self::TOKENS).contains(&token.0)
    }

    /// Whether an operation of the lane is in flight.
    pub fn is_busy(&self, lane: Lane) -> bool {
        self.lanes[lane_index(lane)].running.is_some()
    }

    /// Begins an operation; `fill` puts the bytes of an [`Action::Write`] or [`Action::Extend`] into the buffer it is given.
    ///
    /// Panics if the lane is busy, which the log does not ask for.
    pub fn start(&mut self, ring: &Ring, op: DiskOp, fill: impl FnOnce(&mut [u8])) {
        let index = lane_index(op.lane);
        let lane = &mut self.lanes[index];
        assert!(lane.running.is_none(), "one operation of a lane at a time");
        lane.running = Some(Running { op, done: 0 });
        match op.action {
            Action::Write { len, .. } | Action::Extend { len, .. } => fill(&mut lane.buffer_for(len)[..len]),
            Action::Read { len, .. } => {
                lane.buffer_for(len);
            }
            Action::WriteZeros { len, .. } => assert!(len <= ZERO_PIECE_BYTES, "zeros are written in pieces"),
            Action::Create { .. }
            | Action::Sync { .. }
            | Action::Rename { .. }
            | Action::Remove { .. }
            | Action::SyncDirectory => {}
        }
        self.submit(ring, index);
    }

    /// Begins everything that the log wants done now: once a turn, before the submission.
    pub fn start_all(&mut self, ring: &Ring, log: &mut Log) {
        while let Some(op) = log.poll_op() {
            self.start(ring, op, |bytes| log.fill(op.id, bytes));
        }
        self.free_part(ring);
    }

    /// Whether a part of a removed file can be freed now.
    pub fn has_to_free(&self) -> bool {
        !self.removed.is_empty() && !self.is_freeing
    }

    /// Begins to free the next part of what was removed, if there is something and no other part is being freed.
    pub fn free_part(&mut self, ring: &Ring) {
        if !self.has_to_free() {
            return;
        }
        let Removed { file, bytes } = self.removed.last_mut().expect("there is something to free");
        let left = bytes.saturating_sub(FREED_BYTES);
        let freed = *bytes - left;
        *bytes = left;
        self.is_freeing = true;
        ring.punch(*file, left, freed, Token(self.first_token + FREED));
    }

    fn on_part_freed(&mut self, ring: &Ring, result: &io::Result<()>) {
        self.is_freeing = false;
        // Where parts cannot be freed, all of it is at once when the file is closed.
        let is_over = |removed: &mut Removed| removed.bytes == 0 || result.is_err();
        if let Some(Removed { file, .. }) = self.removed.pop_if(is_over) {
            self.close(ring, file);
        }
    }

    /// Takes a completion that this driver [`owns`](Self::owns). `done` is called when it ends an operation of the log.
    pub fn on_completion(
        &mut self,
        ring: &Ring,
        completion: Completion<'_>,
        done: impl FnOnce(DiskDone<'_>),
    ) {
        let Some(token) = completion.token() else { return };
        assert!(self.owns(token), "a completion goes to whoever began the operation");
        if let Completion::Allocated { result, .. } = completion {
            return self.on_part_freed(ring, &result);
        }
        let Some(index) = usize::try_from(token.0 - self.first_token).ok().filter(|index| *index < LANES)
        else {
            // A file that was removed is closed now.
            return;
        };
        let running = self.lanes[index].running.expect("a lane completes what it runs");
        let action = running.op.action;
        let outcome = match completion {
            Completion::Opened { result, .. } => self.on_opened(ring, action, result),
            Completion::Written { buffer, result, .. } => {
                self.put_back(index, action, buffer);
                self.on_transferred(index, result, DiskError::Io(libc::EIO))
            }
            Completion::Read { buffer, result, .. } => {
                self.put_back(index, action, buffer);
                self.on_transferred(index, result, DiskError::EndOfFile)
            }
            Completion::Synced { result, .. } => ended(result),
            Completion::Renamed { result, .. } => {
                if let (Ok(()), Action::Rename { from, to }) = (&result, action) {
                    self.on_renamed(ring, from, to);
                }
                ended(result)
            }
            Completion::Unlinked { result, .. } => {
                if let (Ok(()), Action::Remove { file }) = (&result, action) {
                    self.on_removed(ring, file);
                }
                ended(result)
            }
            other => unreachable!("a log's disk does not ask for {other:?}"),
        };
        match outcome {
            Outcome::Continue => self.submit(ring, index),
            Outcome::Ended(result) => {
                self.lanes[index].running = None;
                let bytes = match action {
                    Action::Read { len, .. } => {
                        &self.lanes[index].buffer.as_ref().expect("the buffer is back")[..len]
                    }
                    _ => &[],
                };
                done(DiskDone { op: running.op.id, result: result.map(|()| bytes) });
            }
        }
    }

    /// Submits the next step of what the lane runs.
    fn submit(&mut self, ring: &Ring, index: usize) {
        let Running { op, done } = self.lanes[index].running.expect("a lane submits what it runs");
        let token = Token(self.first_token + index as u64);
        match op.action {
            Action::Write { file, offset, len } => {
                let Some(file) = self.opened(ring, file, token) else { return };
                let buffer = self.lanes[index].buffer.take().expect("the buffer is here between operations");
                let at = offset + done as u64;
                ring.write(file, buffer, done..len, at, Durability::Durable, token);
            }
            Action::Extend { file, offset, len } => {
                let Some(file) = self.opened(ring, file, token) else { return };
                let buffer = self.lanes[index].buffer.take().expect("the buffer is here between operations");
                let at = offset + done as u64;
                ring.write(file, buffer, done..len, at, Durability::Volatile, token);
            }
            Action::WriteZeros { file, offset, len } => {
                let Some(file) = self.opened(ring, file, token) else { return };
                let zeros = self.zeros.take().expect("zeros are written by the background lane alone");
                ring.write(file, zeros, done..len, offset + done as u64, Durability::Volatile, token);
            }
            Action::Read { file, offset, len } => {
                let Some(file) = self.opened(ring, file, token) else { return };
                let buffer = self.lanes[index].buffer.take().expect("the buffer is here between operations");
                ring.read(file, buffer, done..len, offset + done as u64, token);
            }
            Action::Sync { file } => {
                let Some(file) = self.opened(ring, file, token) else { return };
                ring.sync(file, token);
            }
            Action::Create { file } => {
                self.forget(ring, file);
                self.open(ring, file, OpenMode::DirectTruncated, token);
            }
            Action::Rename { from, to } => {
                ring.rename(&self.path_of(from), &self.path_of(to), token).expect("our names have no NUL");
            }
            Action::Remove { file } => {
                // Whoever has it open decides when what it takes is freed.
                let Some(_) = self.opened(ring, file, token) else { return };
                ring.unlink(&self.path_of(file), token).expect("our names have no NUL");
            }
            Action::SyncDirectory => {
                ring.sync(self.directory, token);
            }
        }
    }

    /// The open file; or none, and then it is being opened and the step is submitted again after that.
    fn opened(&self, ring: &Ring, file: FileName, token: Token) -> Option<File> {
        let open = self.files.get(&file).copied();
        if open.is_none() {
            self.open(ring, file, OpenMode::Direct, token);
        }
        open
    }

    fn open(&self, ring: &Ring, file: FileName, mode: OpenMode, token: Token) {
        ring.open(&self.path_of(file), mode, token).expect("our names have no NUL");
    }

    fn on_opened(&mut self, ring: &Ring, action: Action, result: io::Result<OwnedFd>) -> Outcome {
        let fd = match result {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Outcome::Continue,
            Err(error) => return Outcome::Ended(Err(disk_error(&error))),
        };
        let (file, outcome) = match action {
            Action::Create { file } => (file, Outcome::Ended(Ok(()))),
            Action::Write { file, .. }
            | Action::WriteZeros { file, .. }
            | Action::Extend { file, .. }
            | Action::Read { file, .. }
            | Action::Sync { file }
            | Action::Remove { file } => (file, Outcome::Continue),
            Action::Rename { .. } | Action::SyncDirectory => {
                unreachable!("these open no file")
            }
        };
        // Another lane may have opened it meanwhile; this handle replaces that one.
        self.forget(ring, file);
        self.files.insert(file, ring.adopt_file(fd));
        outcome
    }

    fn on_transferred(&mut self, index: usize, result: io::Result<usize>, if_nothing: DiskError) -> Outcome {
        let running = self.lanes[index].running.as_mut().expect("a lane completes what it runs");
        let (Action::Write { len, .. }
        | Action::WriteZeros { len, .. }
        | Action::Extend { len, .. }
        | Action::Read { len, .. }) = running.op.action
        else {
            unreachable!("only transfers transfer")
        };
        match result {
            Ok(0) if running.done < len => Outcome::Ended(Err(if_nothing)),
            Ok(more) => {
                running.done += more;
                if running.done == len {
                    Outcome::Ended(Ok(()))
                } else if running.done.is_multiple_of(BLOCK_BYTES) {
                    Outcome::Continue
                } else {
                    // The rest could not be transferred with O_DIRECT.
                    Outcome::Ended(Err(if_nothing))
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Outcome::Continue,
            Err(error) => Outcome::Ended(Err(disk_error(&error))),
        }
    }

    fn on_renamed(&mut self, ring: &Ring, from: FileName, to: FileName) {
        self.forget(ring, to);
        if let Some(handle) = self.files.remove(&from) {
            self.files.insert(to, handle);
        }
    }

    /// The file's name is gone.
    fn on_removed(&mut self, ring: &Ring, file: FileName) {
        let Some(handle) = self.files.remove(&file) else { return };
        match ring.file_bytes(handle) {
            // Below the one that is being freed.
            Ok(bytes) if bytes > 0 => self.removed.insert(0, Removed { file: handle, bytes }),
            Ok(_) | Err(_) => self.close(ring, handle),
        }
    }

    /// Closes the file, if it is open, once nothing is in flight on it.
    fn forget(&mut self, ring: &Ring, file: FileName) {
        if let Some(handle) = self.files.remove(&file) {
            self.close(ring, handle);
        }
    }

    fn close(&self, ring: &Ring, file: File) {
        ring.close_file(file, Token(self.first_token + CLOSED));
    }

    fn put_back(&mut self, index: usize, action: Action, buffer: AlignedBuf) {
        match action {
            Action::WriteZeros { .. } => self.zeros = Some(buffer),
            _ => self.lanes[index].buffer = Some(buffer),
        }
    }

    fn path_of(&self, file: FileName) -> PathBuf {
        self.path.join(file.to_string())
    }
}

impl LaneState {
    /// The lane's buffer, made longer if it must be, which it is sized not to need.
    fn buffer_for(&mut self, len: usize) -> &mut AlignedBuf {
        if self.buffer.as_ref().is_none_or(|buffer| buffer.len() < len) {
            self.buffer = Some(AlignedBuf::zeroed(len));
        }
        self.buffer.as_mut().expect("made above")
    }
}

/// What follows a completion.
enum Outcome {
    /// Another step of the same operation.
    Continue,
    /// The operation is over.
    Ended(Result<(), DiskError>),
}

fn ended(result: io::Result<()>) -> Outcome {
    match result {
        Ok(()) => Outcome::Ended(Ok(())),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Outcome::Continue,
        Err(error) => Outcome::Ended(Err(disk_error(&error))),
    }
}

fn lane_index(lane: Lane) -> usize {
    match lane {
        Lane::Commit => 0,
        Lane::Background => 1,
        Lane::Read => 2,
        Lane::Snapshot => 3,
    }
}
