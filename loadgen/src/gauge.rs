//! What nodes on this machine take: memory of their processes, and room of their data directories.
//!
//! Invariant: looking changes nothing. What is gone when it is looked at takes nothing. Deliberately absent: nodes of
//! other machines.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

/// The unit of the blocks that a file has, in bytes; POSIX.
const STAT_BLOCK_BYTES: u64 = 512;

/// Something that is measured again and again, in bytes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Gauge {
    /// Whose it is.
    pub(crate) of: String,
    /// At the beginning.
    pub(crate) first: u64,
    /// The most that was seen.
    pub(crate) max: u64,
    /// At the end.
    pub(crate) last: u64,
    #[serde(skip)]
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Process(u32),
    Directory(PathBuf),
}

impl Gauge {
    /// The resident memory of a process.
    pub(crate) fn of_process(id: u32) -> anyhow::Result<Gauge> {
        Gauge::new(id.to_string(), Source::Process(id))
    }

    /// What the files of a directory take on its disk.
    pub(crate) fn of_directory(path: &Path) -> anyhow::Result<Gauge> {
        Gauge::new(path.display().to_string(), Source::Directory(path.to_owned()))
    }

    fn new(of: String, source: Source) -> anyhow::Result<Gauge> {
        let first = source.read().with_context(|| of.clone())?;
        Ok(Gauge { of, first, max: first, last: first, source })
    }

    /// Looks again, and says what there is.
    pub(crate) fn look(&mut self) -> u64 {
        // A node that was restarted is another process.
        self.last = self.source.read().unwrap_or(0);
        self.max = self.max.max(self.last);
        self.last
    }

    /// What comes from now on is compared with what there is now.
    pub(crate) fn begin(&mut self) {
        self.first = self.look();
    }
}

impl Source {
    fn read(&self) -> io::Result<u64> {
        match self {
            Source::Process(id) => memory_of(*id),
            Source::Directory(path) => directory_bytes(path),
        }
    }
}

/// The resident memory of a process, in bytes.
///
/// # Errors
/// When there is no such process.
pub fn memory_of(process: u32) -> io::Result<u64> {
    resident_bytes(&fs::read_to_string(format!("/proc/{process}/status"))?)
}

/// What a file takes on its disk, in bytes.
pub fn blocks_of(metadata: &fs::Metadata) -> u64 {
    metadata.blocks() * STAT_BLOCK_BYTES
}

fn resident_bytes(status: &str) -> io::Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "has no memory"))
}

fn directory_bytes(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        bytes += match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => directory_bytes(&entry.path())?,
            Ok(metadata) => blocks_of(&metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_process_is_what_its_status_says() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    2048 kB\nThreads:\t1\n").expect("it says"), 2 << 20);
        assert!(resident_bytes("Name:\tkthread\n").is_err());
        let mut own = Gauge::of_process(std::process::id()).expect("this process has memory");
        assert!(own.first > 0 && own.look() > 0 && own.max >= own.first);
    }

    #[test]
    fn a_directory_takes_what_its_files_do_and_the_most_is_remembered() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("node")).expect("a directory");
        let mut gauge = Gauge::of_directory(directory.path()).expect("it is there");
        assert_eq!(gauge.first, 0);
        let file = directory.path().join("node/file");
        fs::write(&file, vec![1; 100_000]).expect("a file");
        assert!((100_000..200_000).contains(&gauge.look()), "{gauge:?}");
        gauge.begin();
        fs::remove_file(&file).expect("it goes");
        assert_eq!(gauge.look(), 0);
        assert!(gauge.max >= 100_000 && gauge.first == gauge.max && gauge.last == 0, "{gauge:?}");
    }

    #[test]
    fn what_is_not_there_is_refused_at_the_beginning() {
        let error = Gauge::of_directory(Path::new("/nowhere/at/all")).expect_err("it is not there");
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
