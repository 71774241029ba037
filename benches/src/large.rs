//! The data directory of a node with a large state: what its log and its snapshots are after a long life.
//!
//! The node is born by its own program. What follows is written as its shard would write it, without the requests: the
//! same log, driver and table, the entries of a leader that goes on in its term, snapshots when the log asks for them.
//! Invariant: the table in memory is at every moment the one that the log's entries lead to. Deliberately absent: what
//! is measured.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use lockstep_ring::storage::{DataDirectory, LogDisk};
use lockstep_ring::{Ring, RingConfig, Token};
use lockstep_wal::disk::ShardId;
use lockstep_wal::layout::UNCOVERED_ENTRIES_MAX;
use lockstep_wal::{Log, RecordKind, SnapshotId, SnapshotOutcome, claim};
use lockstep_wire::entry::Command;
use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;
use lockstep_wire::{CellId, LogIndex, Term};

use crate::table::{Bench, Client, Hold, filling};

/// The cell whose state it is.
pub const CELL: CellId = CellId(0);
const SHARD: ShardId = ShardId(0);
/// Clients that retake a lock before the log is looked after.
const ROUND: usize = 4_096;
const TURN_MAX: Duration = Duration::from_millis(100);

/// A large state and the log that leads to it, of which nobody else makes use.
pub struct Large {
    /// The state.
    pub bench: Bench,
    /// Who holds what.
    pub clients: Clients,
    log: LargeLog,
}

/// The clients that fill a table, and whose turn it is.
#[derive(Debug)]
pub struct Clients {
    clients: Vec<(Client, Vec<Hold>)>,
    turn: usize,
}

impl Clients {
    /// Who holds what at this moment.
    pub fn holders(&self) -> Vec<(Client, Vec<Hold>)> {
        self.clients.clone()
    }

    /// The next client, one of its locks and its hold of that: each client once before any comes again.
    pub fn next_hold(&mut self) -> (&mut Client, String, &mut Hold) {
        let (round, at) = (self.turn / self.clients.len(), self.turn % self.clients.len());
        self.turn += 1;
        let (client, holds) = &mut self.clients[at];
        let number = round % holds.len();
        let name = filling(client.session, number as u64);
        (client, name, &mut holds[number])
    }
}

struct LargeLog {
    ring: Ring,
    disk: LogDisk,
    log: Log,
    term: Term,
    last: LogIndex,
}

impl Large {
    /// Fills the directory of a lone node that was born and has stopped.
    pub fn fill(data: &Path, sessions: u64, locks_each: u64) -> anyhow::Result<Large> {
        let mut directory = DataDirectory::open(data)?;
        let superblock = claim(&mut directory)?;
        let mut bench = Bench::new();
        let (mut term, mut unreadable) = (Term(0), None);
        let (log, _) = Log::open(&mut directory, &superblock, SHARD, 1, &mut |_, record| {
            if record.kind != RecordKind::Entry {
                return;
            }
            term = record.term;
            match Command::decode(record.payload) {
                Ok(command) => bench.apply(&command),
                Err(error) => unreadable = Some(error),
            }
        })?;
        ensure!(unreadable.is_none(), "an entry of the node's own cannot be read: {unreadable:?}");
        let config = RingConfig { submission_entries: 64, completion_entries: 256, registered_files: 64 };
        let ring = Ring::new(config).context("a ring")?;
        let disk = LogDisk::new(&ring, data, Token(0))?;
        let log = LargeLog { ring, disk, log, term, last: bench.index };
        bench.keep_entries(true);
        let clients = Clients { clients: bench.fill(sessions, locks_each), turn: 0 };
        let mut large = Large { bench, clients, log };
        large.write_entries()?;
        Ok(large)
    }

    /// Lets clients release locks and take them again until the log asks for a snapshot.
    pub fn work_until_due(&mut self) -> anyhow::Result<()> {
        while self.log.log.snapshots_due(UNCOVERED_ENTRIES_MAX).next().is_none() {
            self.work()?;
        }
        Ok(())
    }

    /// Goes on until there are three quarters as many entries again behind this one: so many come until a snapshot that was due
    /// counts.
    pub fn work_until_counted(&mut self, newest: LogIndex) -> anyhow::Result<()> {
        let behind = self.bench.index.0 - newest.0;
        while self.bench.index.0 - newest.0 < behind + behind * 3 / 4 {
            self.work()?;
        }
        Ok(())
    }

    fn work(&mut self) -> anyhow::Result<()> {
        for _ in 0..ROUND {
            let (client, name, hold) = self.clients.next_hold();
            self.bench.retake(client, &name, hold);
        }
        self.write_entries()
    }

    /// Writes a snapshot of the state as it is, and its mark.
    pub fn take_snapshot(&mut self) -> anyhow::Result<SnapshotId> {
        let LargeLog { term, last, .. } = self.log;
        let id = SnapshotId { index: last, term };
        let (table, log) = (&mut self.bench.table, &mut self.log);
        table.begin_snapshot();
        log.log.begin_snapshot(CELL, id);
        let mut bytes = Vec::new();
        for piece in 0.. {
            bytes.clear();
            let is_last = table.write_snapshot(&mut bytes, SNAPSHOT_PIECE_BYTES_MAX);
            log.log.write_snapshot(CELL, piece, is_last, &bytes);
            let outcome = loop {
                match log.log.poll_snapshot() {
                    Some(done) => break done.outcome,
                    None => log.turn()?,
                }
            };
            ensure!(outcome != SnapshotOutcome::NoSpace, "the disk has no room for a snapshot");
            if is_last {
                break;
            }
        }
        log.append(RecordKind::SnapshotMark, term, last, &[])?;
        log.write_all()?;
        Ok(id)
    }

    fn write_entries(&mut self) -> anyhow::Result<()> {
        for (entry, at) in self.bench.take_entries().iter().zip(1_usize..) {
            self.log.last = self.log.last.next();
            let (term, index) = (self.log.term, self.log.last);
            self.log.append(RecordKind::Entry, term, index, entry)?;
            if at.is_multiple_of(ROUND) {
                self.log.write_all()?;
            }
        }
        self.log.write_all()
    }
}

impl LargeLog {
    fn append(
        &mut self,
        kind: RecordKind,
        term: Term,
        index: LogIndex,
        payload: &[u8],
    ) -> anyhow::Result<()> {
        self.log.append(CELL, kind, term, index, payload).context("the log takes a record")?;
        Ok(())
    }

    /// Waits until everything that was appended is durable.
    fn write_all(&mut self) -> anyhow::Result<()> {
        while self.log.durable() < self.log.appended() {
            self.turn()?;
        }
        Ok(())
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        self.disk.start_all(&self.ring, &mut self.log);
        self.ring.submit_and_wait(Some(TURN_MAX))?;
        for completion in self.ring.completions() {
            self.disk.on_completion(&self.ring, completion, |done| self.log.on_disk_done(done));
        }
        match self.log.failure() {
            Some(failure) => anyhow::bail!("{failure}"),
            None => Ok(()),
        }
    }
}
