//! The machine under a process: its disk, how fast that is, what survives a crash, and what has become of it.
//!
//! Invariant: what the disk confirmed survives, unless it is known to be harmed: rotten, or lost and formatted anew. Rot in
//! a snapshot is no harm for good: the replica goes on from an older one, or from its leader's.
//! Deliberately absent: disks that confirm and forget or write elsewhere, and rot in a log's newest batches; at its end
//! no log can tell those from a write that a crash interrupted (contract, point 8).

use lockstep_wal::disk::{DiskError, FileName, SegmentSequence, ShardId, Storage, StorageRead};
use lockstep_wal::memory::{FaultRates, MemoryDisk, Random, Rot};
use lockstep_wal::{Failure, Refusal, SnapshotRefusal, Superblock, format};
use lockstep_wire::{CellId, Incarnation};

use super::plan::Plan;
use super::schedule::{MS, Moment};
use crate::random::{Concern, Stream};

/// What cannot be mended any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Harm {
    /// A bit has flipped.
    Rot(Rot),
    /// The disk was lost, and formatted anew.
    Wiped,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) disk: MemoryDisk,
    /// What crashes and faults of the disk draw from.
    pub(super) chance: Random,
    pub(super) identity: Stream,
    latencies: Stream,
    latency_mean: u64,
    /// Until then every operation takes this much longer.
    slow_until: Moment,
    slow_by: u64,
    harm: Option<Harm>,
    /// Bits that have flipped in snapshots.
    rotten_snapshots: Vec<Rot>,
    incarnation: Incarnation,
    segment_bytes: u64,
}

impl Machine {
    /// A machine with a formatted disk.
    pub(super) fn new(plan: &Plan, place: usize) -> Machine {
        let number = place as u64;
        let mut identity = Stream::new(plan.seed, Concern::Identity, number);
        let incarnation = Incarnation(identity.bytes_16());
        let (disk, _) = formatted(plan, place, incarnation);
        let mut crash = Stream::new(plan.seed, Concern::Crash, number);
        let mut machine = Machine {
            disk,
            chance: Random::new(crash.next_u64()),
            identity,
            latencies: Stream::new(plan.seed, Concern::Disk, number),
            latency_mean: plan.disk_latency_mean,
            slow_until: 0,
            slow_by: 0,
            harm: None,
            rotten_snapshots: Vec::new(),
            incarnation,
            segment_bytes: plan.segment_bytes,
        };
        machine.set_error_rate(plan.disk_error_ppm);
        machine
    }

    /// What has become of it for good.
    pub(super) fn harm(&self) -> Option<Harm> {
        self.harm
    }

    /// Whether a snapshot of it has rotted, perhaps one that is gone by now.
    pub(super) fn has_rotten_snapshot(&self) -> bool {
        !self.rotten_snapshots.is_empty()
    }

    /// Whether anything was done to its disk.
    pub(super) fn is_touched(&self) -> bool {
        self.harm.is_some() || self.has_rotten_snapshot()
    }

    /// The present incarnation of its directory.
    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// A bit flips; says where, if there was anything that can rot.
    pub(super) fn rot(&mut self) -> Option<Rot> {
        let rot = self.disk.rot_settled(ShardId(0), &mut self.chance)?;
        self.harm = Some(Harm::Rot(rot));
        Some(rot)
    }

    /// A bit flips in a snapshot; says where, if there is one.
    pub(super) fn rot_snapshot(&mut self) -> Option<Rot> {
        let rot = self.disk.rot_snapshot(&mut self.chance)?;
        self.rotten_snapshots.push(rot);
        Some(rot)
    }

    /// The segments that it holds.
    pub(super) fn segments(&mut self) -> Vec<SegmentSequence> {
        let files = self.disk.list().expect("the disk's own list needs no read");
        let sequence = |file| match file {
            FileName::Segment { sequence, .. } => Some(sequence),
            FileName::Staging { .. }
            | FileName::Snapshot { .. }
            | FileName::SnapshotStaging { .. }
            | FileName::Superblock
            | FileName::SuperblockStaging
            | FileName::Lock
            | FileName::FormatMark => None,
        };
        files.into_iter().filter_map(|(file, _)| sequence(file)).collect()
    }

    /// The disk is lost and another one formatted in its place.
    pub(super) fn wipe(&mut self, plan: &Plan, place: usize) {
        self.replace_disk(plan, place);
        self.set_error_rate(plan.disk_error_ppm);
        self.harm = Some(Harm::Wiped);
    }

    /// Another disk, formatted, which does not fail yet; says how.
    pub(super) fn replace_disk(&mut self, plan: &Plan, place: usize) -> Superblock {
        self.incarnation = Incarnation(self.identity.bytes_16());
        let (disk, superblock) = formatted(plan, place, self.incarnation);
        self.disk = disk;
        self.harm = None;
        self.rotten_snapshots.clear();
        superblock
    }

    /// The disk has no room for more than so many bytes beyond what is taken; or as much as anybody wants.
    pub(super) fn set_room(&mut self, bytes: Option<u64>) {
        let capacity = bytes.map_or(u64::MAX, |bytes| self.disk.used_bytes() + bytes);
        self.disk.set_capacity(capacity);
    }

    /// Whether it has less room than a segment takes.
    pub(super) fn is_full(&mut self) -> bool {
        self.disk.free_bytes().is_ok_and(|free| free < self.segment_bytes)
    }

    /// Whether what was done to it explains that a process does not start.
    pub(super) fn explains_refusal(&self, refusal: &Refusal) -> bool {
        let Some(Harm::Rot(rot)) = self.harm else { return false };
        match (rot.extent, refusal) {
            (Some(offset), Refusal::Rot(damage)) => {
                let is_named = damage.after.is_some() || damage.before.is_some();
                (damage.file, damage.offset, is_named) == (rot.file, offset, true)
            }
            (None, Refusal::SegmentHeaderless { file }) => *file == rot.file,
            (_, _) => false,
        }
    }

    /// Whether what was done to it explains that a snapshot which counts is not used.
    pub(super) fn explains_complaint(&self, refusal: Option<SnapshotRefusal>) -> bool {
        self.rotten_snapshots.iter().any(|rot| match refusal {
            Some(SnapshotRefusal::Damaged { file, offset }) => (file, Some(offset)) == (rot.file, rot.extent),
            // The bit was one of a length.
            Some(SnapshotRefusal::CutShort { file, .. }) => file == rot.file,
            Some(
                SnapshotRefusal::Missing { .. }
                | SnapshotRefusal::Foreign { .. }
                | SnapshotRefusal::Disk { .. },
            )
            | None => false,
        })
    }

    /// Whether what was done to it explains that a replica halts: it is alone, and no snapshot of its cell is left.
    pub(super) fn explains_halt(&self, reason: &str) -> bool {
        let is_rotten = |cell: CellId| {
            let is_of_cell =
                |rot: &Rot| matches!(rot.file, FileName::Snapshot { cell: of, .. } if of == cell);
            self.rotten_snapshots.iter().any(is_of_cell)
        };
        let words = reason.strip_prefix("cell ").and_then(|rest| rest.split_once(": snapshot "));
        words.is_some_and(|(cell, rest)| {
            cell.parse().is_ok_and(|cell| is_rotten(CellId(cell)))
                && rest.contains("is damaged, and this node knows of no other member")
        })
    }

    /// Whether a process that starts over segments from `oldest` on must refuse: what is older is needed no more.
    pub(super) fn must_be_refused(&self, oldest: SegmentSequence) -> bool {
        let Some(Harm::Rot(Rot { file: FileName::Segment { sequence, .. }, extent: Some(_), .. })) =
            self.harm
        else {
            return false;
        };
        sequence >= oldest
    }

    /// Whether what was done to it explains that a log has stopped whose disk has failed to do something, or has not.
    pub(super) fn explains_failure(&self, failure: &Failure, has_met_error: bool) -> bool {
        match (failure, self.harm) {
            (Failure::Disk { error: DiskError::Io(_), .. }, _) => has_met_error,
            (Failure::Damaged(damage), Some(Harm::Rot(rot))) => {
                damage.file == rot.file && Some(damage.offset) == rot.extent
            }
            // A full disk is a state, and nothing else goes wrong by itself.
            (Failure::Disk { .. } | Failure::Damaged(_), _) => false,
        }
    }

    /// How often an operation of a running log fails.
    pub(super) fn set_error_rate(&mut self, ppm: u32) {
        self.disk.set_rates(FaultRates {
            write_error_ppm: ppm,
            sync_error_ppm: ppm,
            read_error_ppm: ppm,
            ..FaultRates::default()
        });
    }

    /// For a while the disk is slow.
    pub(super) fn slow_down(&mut self, until: Moment, by: u64) {
        (self.slow_until, self.slow_by) = (until, by);
    }

    /// How long the next operation takes.
    pub(super) fn disk_delay(&mut self, now: Moment, is_unhurried: bool) -> u64 {
        let mut delay = self.latency_mean / 2 + self.latencies.around(self.latency_mean / 2);
        if is_unhurried {
            delay += 2 * MS;
        }
        if now < self.slow_until {
            delay += self.latencies.around(self.slow_by);
        }
        delay
    }
}

fn formatted(plan: &Plan, place: usize, incarnation: Incarnation) -> (MemoryDisk, Superblock) {
    let mut disk = MemoryDisk::new();
    let superblock = Superblock {
        cluster: plan.cluster(),
        node: Plan::node_id(place),
        incarnation,
        shards: 1,
        segment_bytes: plan.segment_bytes,
    };
    format(&mut disk, &superblock).expect("a fresh disk without a bound can be formatted");
    (disk, superblock)
}
