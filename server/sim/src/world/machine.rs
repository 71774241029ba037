//! The machine under a process: its disk, how fast that is, and what survives a crash.
//!
//! Invariant: what the disk confirmed survives. Deliberately absent: disks that confirm and forget; no log can notice
//! those (contract, point 8).

use lockstep_wal::memory::{FaultRates, MemoryDisk, Random};
use lockstep_wal::{Superblock, format};

use super::plan::Plan;
use super::schedule::{MS, Moment};
use crate::random::{Concern, Stream};

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
}

impl Machine {
    /// A machine with a formatted disk.
    pub(super) fn new(plan: &Plan, place: usize) -> Machine {
        let number = place as u64;
        let mut identity = Stream::new(plan.seed, Concern::Identity, number);
        let mut disk = MemoryDisk::new();
        let superblock = Superblock {
            cluster: plan.cluster(),
            node: Plan::node_id(place),
            incarnation: lockstep_wire::Incarnation(identity.bytes_16()),
            shards: 1,
            segment_bytes: plan.segment_bytes,
        };
        format(&mut disk, &superblock).expect("a fresh disk without a bound can be formatted");
        let mut crash = Stream::new(plan.seed, Concern::Crash, number);
        let mut machine = Machine {
            disk,
            chance: Random::new(crash.next_u64()),
            identity,
            latencies: Stream::new(plan.seed, Concern::Disk, number),
            latency_mean: plan.disk_latency_mean,
            slow_until: 0,
            slow_by: 0,
        };
        machine.set_error_rate(plan.disk_error_ppm);
        machine
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
