//! Backups: a cell's snapshot in a file of its own, outside of any data directory.
//!
//! The file has the format of the snapshots in a data directory, each piece of which verifies alone. Invariant: a file has
//! its name only when all of it is durable, and no other file is replaced unless that is asked for. It is its owner's
//! alone to read, because the nonces of sessions, which are secrets, are in it. Deliberately absent: what the bytes say.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lockstep_wal::disk::{DiskError, FileName, StorageRead};
use lockstep_wal::layout::SNAPSHOT_HEADER_BYTES;
use lockstep_wal::{claimed_snapshot, encode_snapshot_piece};
use lockstep_wire::{CellId, SnapshotId};
use tempfile::NamedTempFile;

/// A backup while it is written. Dropped before its end, it leaves nothing.
#[derive(Debug)]
pub struct BackupWriter {
    path: PathBuf,
    directory: PathBuf,
    is_forced: bool,
    cell: CellId,
    file: NamedTempFile,
    pieces: u32,
    /// Room for one piece.
    extent: Vec<u8>,
}

impl BackupWriter {
    /// Begins a backup of a cell beside `path`, which must be free or, if `is_forced`, a regular file.
    pub fn create(path: &Path, cell: CellId, is_forced: bool) -> io::Result<BackupWriter> {
        if !is_forced && path.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
            return Err(io::Error::other(
                "what has that name is no regular file, and nothing else is replaced",
            ));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = parent.unwrap_or(Path::new(".")).to_owned();
        let file = BackupWriter::beside(&directory)?;
        let (path, extent) = (path.to_owned(), Vec::new());
        Ok(BackupWriter { path, directory, is_forced, cell, file, pieces: 0, extent })
    }

    fn beside(directory: &Path) -> io::Result<NamedTempFile> {
        let file = tempfile::Builder::new().prefix(".lockstep-").suffix(".partial").tempfile_in(directory);
        // Its own words name the file that nobody has asked for.
        file.map_err(|error| error.kind().into())
    }

    /// Forgets what was written, and begins again.
    pub fn restart(&mut self) -> io::Result<()> {
        self.file = BackupWriter::beside(&self.directory)?;
        self.pieces = 0;
        Ok(())
    }

    /// Writes the next piece of a snapshot.
    pub fn write(&mut self, id: SnapshotId, is_last: bool, bytes: &[u8]) -> io::Result<()> {
        self.extent.clear();
        encode_snapshot_piece(self.cell, id, self.pieces, is_last, bytes, &mut self.extent);
        self.pieces += 1;
        self.file.write_all(&self.extent)
    }

    /// Makes the file durable, and gives it its name.
    pub fn finish(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        let named = match self.is_forced {
            true => self.file.persist(&self.path),
            false => self.file.persist_noclobber(&self.path),
        };
        named.map_err(|error| error.error)?;
        File::open(&self.directory)?.sync_all()
    }
}

/// A backup's file, read as if it lay in a data directory.
#[derive(Debug)]
pub struct BackupFile {
    file: File,
    bytes: u64,
    /// Of which cell it claims to be.
    pub cell: CellId,
    /// Which snapshot it claims to hold.
    pub id: SnapshotId,
}

impl BackupFile {
    /// Opens a file; none if it does not begin as a snapshot does.
    pub fn open(path: &Path) -> io::Result<Option<BackupFile>> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut header = Vec::new();
        (&file).take(SNAPSHOT_HEADER_BYTES as u64).read_to_end(&mut header)?;
        Ok(claimed_snapshot(&header).map(|(cell, id)| BackupFile { file, bytes, cell, id }))
    }

    fn name(&self) -> FileName {
        FileName::Snapshot { cell: self.cell, index: self.id.index }
    }
}

impl StorageRead for BackupFile {
    fn list(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        Ok(vec![(self.name(), self.bytes)])
    }

    fn read(&mut self, file: FileName, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        if file != self.name() {
            return Err(DiskError::NotFound);
        }
        self.file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => DiskError::EndOfFile,
            _ => DiskError::Io(error.raw_os_error().unwrap_or(0)),
        })
    }
}
