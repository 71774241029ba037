//! A cluster that is lost as a whole and restored from a backup.
//!
//! Invariant: all members of a cell begin with the same state on new disks, in new incarnations of their directories, and are born
//! anew; whoever is a client goes on with what he believes. Deliberately absent: the command that does it; it makes the
//! same state by the same call.

use lockstep_core::table::{Limits, Table, TableLoader};
use lockstep_wal::disk::ShardId;
use lockstep_wal::memory::{MemoryDisk, Random};
use lockstep_wal::{Log, RecordKind, claim, load_snapshot};
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::{CellId, Epoch, LogIndex, SnapshotId};

use super::World;
use super::fault::Fault;
use super::machine::Machine;
use super::plan::Plan;

const SHARD: ShardId = ShardId(0);

/// What a cell is restored from, or with.
struct Backup {
    cell: CellId,
    snapshot: SnapshotId,
    table: Table,
}

impl World {
    /// Loses all nodes and begins anew with what a disk has, if it has a whole snapshot of every cell. A cluster whose members
    /// change is never lost.
    pub(super) fn restore(&mut self, node: usize, is_older: bool) -> bool {
        if self.plan.spares > 0 {
            return false;
        }
        let cells = (0..self.plan.cells).map(CellId);
        let Some(backups) = self.nodes[node].machine.backups(cells, self.plan.limits, is_older) else {
            return false;
        };
        self.epoch = Epoch(self.epoch.0 + 1);
        let restore = |backup: Backup| Backup {
            table: backup.table.restored(self.epoch).expect("the epoch is above"),
            ..backup
        };
        let mut restored: Vec<Backup> = backups.into_iter().map(restore).collect();
        for node in 0..self.nodes.len() {
            self.act(&Fault::Kill(node));
        }
        for (place, node) in self.nodes.iter_mut().enumerate() {
            node.machine.restore(&self.plan, place, &mut restored);
            node.lost_cells.clear();
        }
        self.judges.on_cluster_restored();
        for Backup { cell, snapshot, table } in restored {
            self.judges.on_cell_restored(cell, snapshot.term, table);
        }
        for node in 0..self.nodes.len() {
            self.act(&Fault::Start(node));
        }
        true
    }
}

impl Machine {
    /// A whole snapshot of each cell: the newest, or the one before if there is one.
    fn backups(
        &self,
        cells: impl Iterator<Item = CellId>,
        limits: Limits,
        is_older: bool,
    ) -> Option<Vec<Backup>> {
        // Looked at as after a crash: nothing may come of what the disk is at.
        let mut disk = self.disk.clone();
        disk.kill(&mut Random::new(1));
        let superblock = claim(&mut disk).ok()?;
        let (log, _) = Log::open(&mut disk, &superblock, SHARD, 1, &mut |_, _| {}).ok()?;
        let backup = |cell| {
            let whole = log.snapshots(cell).filter_map(|snapshot| {
                let table = load(&mut disk, cell, snapshot, limits)?;
                Some(Backup { cell, snapshot, table })
            });
            let mut whole: Vec<Backup> = whole.collect();
            whole.truncate(if is_older { 2 } else { 1 });
            whole.pop()
        };
        cells.map(backup).collect()
    }

    /// Another disk, formatted anew, with these states.
    fn restore(&mut self, plan: &Plan, place: usize, states: &mut [Backup]) {
        let superblock = self.replace_disk(plan, place);
        let salt = self.identity.next_u64();
        let opened = Log::open(&mut self.disk, &superblock, SHARD, salt, &mut |_, _| {});
        let (mut log, _) = opened.expect("a fresh disk holds an empty log");
        for Backup { cell, snapshot, table } in states {
            let mut bytes = Vec::new();
            table.begin_snapshot();
            assert!(table.write_snapshot(&mut bytes, usize::MAX), "all of it fits");
            log.begin_snapshot(*cell, *snapshot);
            let count = bytes.len().div_ceil(SNAPSHOT_PIECE_BYTES_MAX);
            for (piece, bytes) in bytes.chunks(SNAPSHOT_PIECE_BYTES_MAX).enumerate() {
                let number = u32::try_from(piece).expect("a snapshot has few pieces");
                log.write_snapshot(*cell, number, piece + 1 == count, bytes);
                self.disk.settle(&mut log, &mut self.chance);
                log.poll_snapshot().expect("a fresh disk has room");
            }
            let SnapshotId { index, term } = *snapshot;
            let first = LogIndex(1);
            log.append(*cell, RecordKind::Truncate, term, first, b"")
                .expect("a fresh log takes a truncation");
            log.append(*cell, RecordKind::SnapshotMark, term, index, b"").expect("a fresh log takes a mark");
            self.disk.settle(&mut log, &mut self.chance);
        }
        self.set_error_rate(plan.disk_error_ppm);
    }
}

fn load(disk: &mut MemoryDisk, cell: CellId, snapshot: SnapshotId, limits: Limits) -> Option<Table> {
    let mut loader = TableLoader::new(limits);
    let visit = &mut |bytes: &[u8]| {
        // What is wrong is said at the end once more.
        let _ = loader.push(bytes);
    };
    load_snapshot(disk, cell, snapshot, visit).ok()?;
    loader.finish().ok()
}
