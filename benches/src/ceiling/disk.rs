//! A node's file and its group commit.
//!
//! Invariant: one write is in flight at most, and what is staged meanwhile rides the next one. The file goes
//! round: once its end is reached it is written from its beginning again, so that nothing is ever allocated.
//! Deliberately absent: reading.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, ensure};
use lockstep_ring::{AlignedBuf, Completion, Durability, File, Ring, Token};
use lockstep_wal::layout::{BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BLOCK_BYTES, RECORD_HEADER_BYTES};
use rustix::fs::{Mode, OFlags};

/// Bytes of a node's file.
const FILE_BYTES: usize = 32 * 1024 * 1024;

/// Makes a file whose every block has been written with zeros.
pub(super) fn prepare(path: &Path) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
        .with_context(|| format!("{} cannot be opened with O_DIRECT", path.display()))?;
    let zeros = AlignedBuf::zeroed(BATCH_BYTES_MAX);
    for offset in (0..FILE_BYTES).step_by(BATCH_BYTES_MAX) {
        let written = rustix::io::pwritev(&file, &[IoSlice::new(&zeros)], offset as u64)?;
        ensure!(written == zeros.len(), "{} takes no zeros", path.display());
    }
    rustix::fs::fsync(&file)?;
    Ok(file)
}

/// A node's file on its ring.
pub(super) struct Disk {
    file: File,
    /// Away while the kernel has it.
    buffer: Option<AlignedBuf>,
    /// Whole records that wait for the next write.
    staged: Vec<u8>,
    /// Where each staged record ends.
    ends: Vec<usize>,
    offset: usize,
    batches: u64,
    /// Records that the write in flight carries.
    writing: u64,
    durable: u64,
}

impl Disk {
    pub(super) fn new(ring: &Ring, file: OwnedFd) -> Disk {
        Disk {
            file: ring.adopt_file(file),
            buffer: Some(AlignedBuf::zeroed(BATCH_BYTES_MAX)),
            staged: Vec::new(),
            ends: Vec::new(),
            offset: 0,
            batches: 0,
            writing: 0,
            durable: 0,
        }
    }

    /// How many records are durable.
    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// Stages a record: a head as long as that of the log, and the payload.
    pub(super) fn append(&mut self, index: u64, payload: &[u8]) {
        let mut head = [0; RECORD_HEADER_BYTES];
        let length = u32::try_from(payload.len()).expect("a payload is small");
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[16..24].copy_from_slice(&index.to_le_bytes());
        self.staged.extend_from_slice(&head);
        self.staged.extend_from_slice(payload);
        self.ends.push(self.staged.len());
    }

    /// Writes what is staged, unless a write is in flight.
    pub(super) fn submit(&mut self, ring: &Ring, token: Token) {
        if self.ends.is_empty() {
            return;
        }
        let Some(mut buffer) = self.buffer.take() else { return };
        let count = self.ends.partition_point(|end| BATCH_HEADER_BYTES + end <= BATCH_BYTES_MAX);
        let bytes = self.ends[count - 1];
        let extent = (BATCH_HEADER_BYTES + bytes).next_multiple_of(BLOCK_BYTES);
        if self.offset + extent > FILE_BYTES {
            self.offset = 0;
        }
        self.batches += 1;
        let (head, rest) = buffer[..extent].split_at_mut(BATCH_HEADER_BYTES);
        rest[..bytes].copy_from_slice(&self.staged[..bytes]);
        rest[bytes..].fill(0);
        head.fill(0);
        head[..8].copy_from_slice(&self.batches.to_le_bytes());
        let checksum = crc32fast::hash(rest);
        head[8..12].copy_from_slice(&checksum.to_le_bytes());
        ring.write(self.file, buffer, 0..extent, self.offset as u64, Durability::Durable, token);
        self.offset += extent;
        self.writing = count as u64;
        self.staged.drain(..bytes);
        self.ends.drain(..count);
        self.ends.iter_mut().for_each(|end| *end -= bytes);
    }

    /// Takes the completion of a write.
    pub(super) fn on_completion(&mut self, completion: Completion<'_>) -> anyhow::Result<()> {
        let Completion::Written { buffer, result, .. } = completion else {
            unreachable!("only writes are asked of the disk")
        };
        let written = result.context("a durable write failed")?;
        ensure!(written >= BLOCK_BYTES && written.is_multiple_of(BLOCK_BYTES), "a write was cut short");
        self.buffer = Some(buffer);
        self.durable += std::mem::take(&mut self.writing);
        Ok(())
    }
}
