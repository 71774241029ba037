//! What is seen of nodes during a soak, and what is said of it at the end.
//!
//! Invariant: a statement that nothing was seen for does not hold. Deliberately absent: the load, and the nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use lockstep_loadgen::gauge::blocks_of;
use lockstep_wal::disk::FileName;
use lockstep_wire::LogIndex;

/// Segments that a shard's log has at most; docs/ARCHITECTURE.md, section 6.1.
pub const SEGMENTS_MAX: u64 = 20;
/// Snapshots that a cell has at most, for a moment.
pub const SNAPSHOTS_MAX: u64 = 4;
/// What a directory has beside segments and snapshots, in bytes at most: two copies of the superblock, and the file system's
/// own blocks.
const OTHER_BYTES_MAX: u64 = 64 * 1024;
/// Memory is flat when it has grown by no more than so many percent,
const GROWTH_PERCENT_MAX: u64 = 10;
/// and so many bytes, which is what an allocator may keep of a snapshot that was taken or loaded.
const GROWTH_BYTES_MAX: u64 = 16 << 20;
/// What one client's session may differ by between two snapshots: a lock on its way, and outcomes that it has not seen.
const CLIENT_BYTES_MAX: u64 = 4 * 1024;

/// What a data directory held when it was looked at.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    segments: u64,
    segment_bytes: u64,
    snapshots: u64,
    snapshot_bytes: u64,
    other_bytes: u64,
    /// The size of each whole snapshot.
    whole: BTreeMap<LogIndex, u64>,
}

impl Directory {
    /// Looks into a directory. What goes away meanwhile takes nothing.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn look(path: &Path) -> io::Result<Directory> {
        let mut seen = Directory::default();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            seen.add(
                entry.file_name().to_str().and_then(FileName::parse),
                metadata.len(),
                blocks_of(&metadata),
            );
        }
        Ok(seen)
    }

    fn add(&mut self, file: Option<FileName>, len: u64, blocks: u64) {
        match file {
            Some(FileName::Segment { .. } | FileName::Staging { .. }) => {
                self.segments += 1;
                self.segment_bytes += blocks;
            }
            Some(FileName::Snapshot { index, .. }) => {
                self.snapshots += 1;
                self.snapshot_bytes += blocks;
                self.whole.insert(index, len);
            }
            Some(FileName::SnapshotStaging { .. }) => {
                self.snapshots += 1;
                self.snapshot_bytes += blocks;
            }
            Some(
                FileName::Superblock | FileName::SuperblockStaging | FileName::Lock | FileName::FormatMark,
            )
            | None => self.other_bytes += blocks,
        }
    }

    fn bytes(&self) -> u64 {
        self.segment_bytes + self.snapshot_bytes + self.other_bytes
    }
}

/// The most that a node's directory was seen to hold, and every snapshot that was seen whole.
#[derive(Clone, Debug, Default)]
pub struct DiskUse {
    looks: u64,
    segments_max: u64,
    snapshots_max: u64,
    bytes_max: u64,
    snapshots: BTreeMap<LogIndex, u64>,
}

impl DiskUse {
    /// Takes what was seen.
    pub fn on_look(&mut self, seen: &Directory) {
        self.looks += 1;
        self.segments_max = self.segments_max.max(seen.segments);
        self.snapshots_max = self.snapshots_max.max(seen.snapshots);
        self.bytes_max = self.bytes_max.max(seen.bytes());
        self.snapshots.extend(&seen.whole);
    }

    /// Whether it stayed below its ceiling.
    pub fn verdict(&self, node: usize, segment_bytes: u64) -> Verdict {
        let snapshot_bytes = self.snapshots.values().max().copied().unwrap_or(0);
        let ceiling = SEGMENTS_MAX * segment_bytes + SNAPSHOTS_MAX * snapshot_bytes + OTHER_BYTES_MAX;
        let is_held = self.looks > 0
            && self.segments_max <= SEGMENTS_MAX
            && self.snapshots_max <= SNAPSHOTS_MAX
            && self.bytes_max <= ceiling;
        let text = format!(
            "disk of node {node}: {} at most (segments: {}, snapshots: {}), its ceiling is {} ({SEGMENTS_MAX} of {} + \
             {SNAPSHOTS_MAX} of {}); seen {} times",
            Mib(self.bytes_max),
            self.segments_max,
            self.snapshots_max,
            Mib(ceiling),
            Mib(segment_bytes),
            Mib(snapshot_bytes),
            self.looks
        );
        Verdict { is_held, text }
    }

    /// Whether the newest of the snapshots from `first` to `last` is as small as the oldest: `clients` were at work.
    pub fn snapshots_verdict(&self, node: usize, between: (LogIndex, LogIndex), clients: u64) -> Verdict {
        let (first, last) = between;
        let all: Vec<u64> = self.snapshots.range(first..=last).map(|(_, bytes)| *bytes).collect();
        let [before, .., after] = all[..] else {
            let text = format!(
                "snapshots of node {node}: {} seen while all locks were held, which are too few; take more writes, or \
                 smaller segments",
                all.len()
            );
            return Verdict { is_held: false, text };
        };
        let text = format!(
            "snapshots of node {node}: {before} bytes before, {after} bytes after ({} seen while all locks were held)",
            all.len()
        );
        Verdict { is_held: after <= before + clients * CLIENT_BYTES_MAX, text }
    }
}

/// The memory of a node, in bytes, each by the second in which it was seen.
#[derive(Clone, Debug, Default)]
pub struct MemoryUse(Vec<(u32, u64)>);

impl MemoryUse {
    /// Takes what was seen.
    pub fn on_look(&mut self, second: u32, bytes: u64) {
        self.0.push((second, bytes));
    }

    /// Whether it was flat from one second to another: in the last quarter of that time it has hardly grown above the second
    /// quarter. Both are medians. A process is held against itself: the time of one that was started again begins then.
    pub fn verdict(&self, node: usize, begin: u32, end: u32) -> Verdict {
        let quarter = |number: u32| {
            let at = |number: u32| begin + (end - begin) * number / 4;
            self.median(at(number - 1), at(number))
        };
        let (Some(before), Some(after)) = (quarter(2), quarter(4)) else {
            let text = format!("memory of node {node}: seen too rarely; take more writes");
            return Verdict { is_held: false, text };
        };
        let max = self.0.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let text = format!(
            "memory of node {node} from {begin} s to {end} s: {} in the second quarter, {} in the last (flat: at most \
             {GROWTH_PERCENT_MAX} % and {} more), {} at most in the whole run",
            Mib(before),
            Mib(after),
            Mib(GROWTH_BYTES_MAX),
            Mib(max)
        );
        Verdict { is_held: after <= before + before * GROWTH_PERCENT_MAX / 100 + GROWTH_BYTES_MAX, text }
    }

    fn median(&self, from: u32, to: u32) -> Option<u64> {
        let seen = self.0.iter().filter(|(second, _)| (from..=to).contains(second));
        let mut bytes: Vec<u64> = seen.map(|(_, bytes)| *bytes).collect();
        bytes.sort_unstable();
        bytes.get(bytes.len() / 2).copied()
    }
}

/// A statement about the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it holds.
    pub is_held: bool,
    /// What was seen.
    pub text: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {}", if self.is_held { "holds " } else { "BROKEN" }, self.text)
    }
}

/// Bytes, as people read them.
#[derive(Clone, Copy, Debug)]
pub struct Mib(pub u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0 * 10 / (1 << 20);
        write!(f, "{}.{} MiB", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn used(segments: u64, snapshots: &[(u64, u64)]) -> DiskUse {
        let whole: BTreeMap<LogIndex, u64> =
            snapshots.iter().map(|(index, bytes)| (LogIndex(*index), *bytes)).collect();
        let mut used = DiskUse::default();
        used.on_look(&Directory {
            segments,
            segment_bytes: segments * MIB,
            snapshots: whole.len() as u64,
            snapshot_bytes: whole.values().sum(),
            other_bytes: 8_192,
            whole,
        });
        used
    }

    #[test]
    fn a_directory_is_counted_by_what_its_files_are() {
        let directory = tempfile::tempdir().expect("a directory");
        let segment = FileName::parse("superblock").expect("a name").to_string();
        fs::write(directory.path().join(segment), [1; 8_192]).expect("a file");
        let snapshot = FileName::Snapshot { cell: lockstep_wire::CellId(0), index: LogIndex(7) };
        fs::write(directory.path().join(snapshot.to_string()), [1; 5_000]).expect("a file");
        let seen = Directory::look(directory.path()).expect("it can be read");
        assert_eq!((seen.segments, seen.snapshots), (0, 1));
        assert_eq!(seen.whole, BTreeMap::from([(LogIndex(7), 5_000)]));
        assert!(seen.bytes() >= 8_192 + 5_000, "{seen:?}");
    }

    #[test]
    fn a_disk_is_judged_by_bytes_and_by_files() {
        assert!(used(SEGMENTS_MAX, &[(1, MIB), (2, MIB)]).verdict(1, MIB).is_held);
        let broken = used(SEGMENTS_MAX + 1, &[]).verdict(1, MIB);
        assert!(!broken.is_held && broken.text.contains("segments: 21"), "{broken}");
        assert!(!used(1, &[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]).verdict(1, MIB).is_held);
        assert!(!used(SEGMENTS_MAX, &[]).verdict(1, MIB - 64 * 1024).is_held, "segments of another size");
        assert!(!DiskUse::default().verdict(1, MIB).is_held, "nobody looked");
    }

    #[test]
    fn the_most_of_several_looks_counts() {
        let mut disk = used(SEGMENTS_MAX, &[]);
        disk.on_look(&Directory::default());
        let verdict = disk.verdict(3, MIB);
        assert!(verdict.is_held && verdict.text.starts_with("disk of node 3: 20.0 MiB at most"), "{verdict}");
    }

    #[test]
    fn snapshots_are_compared_while_all_locks_are_held() {
        let disk = used(1, &[(10, 50), (20, 100_000), (30, 300_000), (40, 104_000), (50, 900_000)]);
        let between = (LogIndex(20), LogIndex(40));
        let verdict = disk.snapshots_verdict(1, between, 1);
        assert!(
            verdict.is_held && verdict.text.contains("100000 bytes before, 104000 bytes after"),
            "{verdict}"
        );
        assert!(!disk.snapshots_verdict(1, (LogIndex(20), LogIndex(50)), 1).is_held);
        assert!(!disk.snapshots_verdict(1, (LogIndex(20), LogIndex(29)), 1).is_held, "one tells nothing");
    }

    #[test]
    fn memory_is_flat_when_the_last_quarter_is_like_the_second() {
        let grown = |mib: u64| {
            let mut memory = MemoryUse::default();
            for second in 0..=100 {
                memory.on_look(second, if second < 75 { 100 * MIB } else { mib * MIB });
            }
            memory
        };
        assert!(grown(126).verdict(1, 0, 100).is_held);
        assert!(!grown(127).verdict(1, 0, 100).is_held);
        let mut away = MemoryUse::default();
        away.on_look(30, MIB);
        assert!(!away.verdict(1, 0, 100).is_held, "nothing was seen in the last quarter");
    }
}
