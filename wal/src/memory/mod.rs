//! A disk in memory with the faults of real ones, for tests and the simulator.
//!
//! Invariant: everything that happens follows from the calls and the [`Random`] passed in. What was reported durable
//! survives, unless a fault that says otherwise was asked for. O_DIRECT's rules are asserted. Deliberately absent:
//! time; an operation completes when the caller says so, in any order.
//!
//! Both faces of [`crate::disk`]: [`Storage`] acts at once; for a running log, [`MemoryDisk::submit`] takes an
//! operation, [`MemoryDisk::complete`] carries it out, and until then a loss of power leaves any part of it.

mod fault;
mod inode;
mod random;
mod rot;

use std::collections::{BTreeMap, VecDeque};

pub use fault::{Fault, FaultRates};
use inode::{Inode, Survival};
pub use random::Random;
pub use rot::Rot;

use crate::disk::{Action, DiskDone, DiskError, DiskOp, FileName, OpId, Storage, StorageRead};
use crate::layout::{BLOCK_BYTES, SECTOR_BYTES, ZERO_PIECE_BYTES};
use crate::log::Log;

/// What an I/O error looks like (EIO).
const EIO: i32 = 5;

/// Names an operation that the disk has taken; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// An operation that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which operation of its log.
    pub op: OpId,
    /// The bytes read, or what went wrong.
    pub result: Result<Vec<u8>, DiskError>,
}

impl Completion {
    /// As the log takes it.
    pub fn done(&self) -> DiskDone<'_> {
        DiskDone { op: self.op, result: self.result.as_deref().map_err(|error| *error) }
    }
}

#[derive(Clone, Debug)]
struct Pending {
    op: DiskOp,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum NameChange {
    Create(FileName, u64),
    Rename(FileName, FileName),
    Remove(FileName),
}

/// See the module. Several logs (shards) may share one, as they share a directory.
#[derive(Clone, Debug)]
pub struct MemoryDisk {
    inodes: BTreeMap<u64, Inode>,
    inodes_made: u64,
    names: BTreeMap<FileName, u64>,
    durable_names: BTreeMap<FileName, u64>,
    unsynced_names: Vec<NameChange>,
    pending: BTreeMap<Ticket, Pending>,
    tickets: u64,
    capacity_bytes: u64,
    faults: VecDeque<Fault>,
    rates: FaultRates,
    is_locked_elsewhere: bool,
    /// How many more changes [`Storage`] carries out before the power goes.
    changes_left: Option<u64>,
}

impl Default for MemoryDisk {
    fn default() -> MemoryDisk {
        MemoryDisk::new()
    }
}

impl MemoryDisk {
    /// An empty, healthy disk without a bound.
    pub fn new() -> MemoryDisk {
        MemoryDisk {
            inodes: BTreeMap::new(),
            inodes_made: 0,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            pending: BTreeMap::new(),
            tickets: 0,
            capacity_bytes: u64::MAX,
            faults: VecDeque::new(),
            rates: FaultRates::default(),
            is_locked_elsewhere: false,
            changes_left: None,
        }
    }

    /// Bounds what the files may take together. Below what they take already, nothing more is allocated.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity_bytes = bytes;
    }

    /// How often faults happen by themselves to operations of running logs.
    pub fn set_rates(&mut self, rates: FaultRates) {
        self.rates = rates;
    }

    /// Makes the next operation that `fault` can happen to suffer it. Several wait in order.
    pub fn schedule(&mut self, fault: Fault) {
        self.faults.push_back(fault);
    }

    /// Whether another process holds the directory.
    pub fn set_locked_elsewhere(&mut self, is_locked: bool) {
        self.is_locked_elsewhere = is_locked;
    }

    /// Lets [`Storage`] carry out `changes` more changes, then fails it until [`MemoryDisk::lose_power`] or
    /// [`MemoryDisk::kill`]: start-up interrupted at every point.
    pub fn stop_after(&mut self, changes: u64) {
        self.changes_left = Some(changes);
    }

    /// Takes an operation of `log`, and with it the bytes to be written.
    pub fn submit(&mut self, log: &mut Log, op: DiskOp) -> Ticket {
        let mut bytes = Vec::new();
        match op.action {
            Action::Write { offset, len, .. } | Action::Extend { offset, len, .. } => {
                assert_aligned(offset, len);
                bytes.resize(len, 0xa5);
                log.fill(op.id, &mut bytes);
            }
            Action::WriteZeros { offset, len, .. } => {
                assert_aligned(offset, len);
                assert!(len <= ZERO_PIECE_BYTES, "zero-filling goes in small pieces");
                bytes.resize(len, 0);
            }
            Action::Read { offset, len, .. } => assert_aligned(offset, len),
            Action::Create { .. }
            | Action::Sync { .. }
            | Action::Rename { .. }
            | Action::Remove { .. }
            | Action::SyncDirectory => {}
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.pending.insert(ticket, Pending { op, bytes });
        ticket
    }

    /// The operations taken and not yet carried out, oldest first.
    pub fn pending(&self) -> impl Iterator<Item = (Ticket, DiskOp)> + '_ {
        self.pending.iter().map(|(ticket, pending)| (*ticket, pending.op))
    }

    /// Carries an operation out.
    ///
    /// # Panics
    /// When there is no such operation.
    pub fn complete(&mut self, ticket: Ticket, random: &mut Random) -> Completion {
        let Pending { op, bytes } = self.pending.remove(&ticket).expect("an operation is completed once");
        let fault = self.draw_fault(&op.action, random);
        let result = match op.action {
            Action::Write { file, offset, .. } => {
                self.write_with(file, offset, &bytes, true, fault, random).map(|()| Vec::new())
            }
            Action::WriteZeros { file, offset, .. } | Action::Extend { file, offset, .. } => {
                self.write_with(file, offset, &bytes, false, fault, random).map(|()| Vec::new())
            }
            Action::Read { file, offset, len } => {
                let mut out = vec![0; len];
                match fault {
                    Some(_) => Err(DiskError::Io(EIO)),
                    None => self.read(file, offset, &mut out).map(|()| out),
                }
            }
            Action::Sync { file } => match fault {
                Some(_) => Err(DiskError::Io(EIO)),
                None => self.inode(file).map(|inode| inode.sync()).map(|()| Vec::new()),
            },
            Action::SyncDirectory => match fault {
                Some(_) => Err(DiskError::Io(EIO)),
                None => {
                    self.commit_names();
                    Ok(Vec::new())
                }
            },
            Action::Create { file } => match fault {
                Some(_) => Err(DiskError::NoSpace),
                None => {
                    self.create_or_cut(file);
                    Ok(Vec::new())
                }
            },
            Action::Rename { from, to } => {
                let replaces = self.names.contains_key(&to);
                let is_snapshot = matches!(to, FileName::Snapshot { .. });
                assert!(is_snapshot || !replaces, "a running log never renames onto a file, snapshots aside");
                self.change_name(NameChange::Rename(from, to)).map(|()| Vec::new())
            }
            Action::Remove { file } => self.change_name(NameChange::Remove(file)).map(|()| Vec::new()),
        };
        Completion { op: op.id, result }
    }

    /// Carries out everything that `log` asks for, in order, until it asks for nothing more. Only for a disk that
    /// no other log uses at the time.
    pub fn settle(&mut self, log: &mut Log, random: &mut Random) {
        loop {
            while let Some(op) = log.poll_op() {
                self.submit(log, op);
            }
            let Some((ticket, _)) = self.pending().next() else {
                return;
            };
            let completion = self.complete(ticket, random);
            log.on_disk_done(completion.done());
        }
    }

    /// The process dies. Operations in flight may have happened, in any part; nothing else is lost, but nothing
    /// becomes durable by it.
    pub fn kill(&mut self, random: &mut Random) {
        self.abandon_pending(random);
        self.changes_left = None;
    }

    /// The power goes: operations in flight may have happened in any part, each sector by itself; what was not
    /// made durable survives in any part, each sector and each name by itself.
    pub fn lose_power(&mut self, random: &mut Random) {
        self.kill(random);
        for inode in self.inodes.values_mut() {
            let survival = draw_survival(random);
            inode.lose_power(survival, || random.happens(500_000));
        }
        self.names = std::mem::take(&mut self.durable_names);
        for change in std::mem::take(&mut self.unsynced_names) {
            if random.happens(500_000) {
                apply(&mut self.names, change);
            }
        }
        self.durable_names = self.names.clone();
        self.forget_nameless();
    }

    /// Flips the bits of `mask` in one byte of a file.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn rot(&mut self, file: FileName, offset: u64, mask: u8) {
        self.inode(file).expect("only a file that is there rots").rot(offset, mask);
    }

    /// Flips one bit somewhere in a written sector of a segment; says where, if there is any.
    pub fn rot_anywhere(&mut self, random: &mut Random) -> Option<(FileName, u64)> {
        let segments: Vec<FileName> =
            self.names.keys().copied().filter(|file| matches!(file, FileName::Segment { .. })).collect();
        let at = random.below((segments.len() as u64).max(1));
        let file = *segments.get(usize::try_from(at).ok()?)?;
        let sector = self.inode(file).ok()?.written_sector(random.next_u64())?;
        let offset = sector + random.below(SECTOR_BYTES as u64);
        self.rot(file, offset, 1 << random.below(8));
        Some((file, offset))
    }

    fn inode(&mut self, file: FileName) -> Result<&mut Inode, DiskError> {
        let number = self.names.get(&file).ok_or(DiskError::NotFound)?;
        self.inodes.get_mut(number).ok_or(DiskError::NotFound)
    }

    /// What the files take together.
    pub fn used_bytes(&self) -> u64 {
        self.names.values().filter_map(|number| self.inodes.get(number)).map(|inode| inode.bytes).sum()
    }

    fn write_with(
        &mut self,
        file: FileName,
        offset: u64,
        bytes: &[u8],
        is_durable: bool,
        fault: Option<Fault>,
        random: &mut Random,
    ) -> Result<(), DiskError> {
        let offset = match fault {
            None => offset,
            Some(Fault::LostWrite) => return Ok(()),
            Some(Fault::NoSpace) => return Err(DiskError::NoSpace),
            Some(Fault::MisdirectedWrite { blocks }) => {
                let end = self.inode(file)?.bytes;
                let there = offset.saturating_add_signed(blocks * BLOCK_BYTES as i64);
                there.min(end.saturating_sub(bytes.len() as u64))
            }
            // What a failed write did is unknown.
            Some(Fault::WriteError | Fault::SyncError | Fault::ReadError) => {
                if self.has_room(file, offset, bytes.len())? {
                    self.inode(file)?.write(offset, bytes, || random.happens(500_000));
                }
                return Err(DiskError::Io(EIO));
            }
        };
        if !self.has_room(file, offset, bytes.len())? {
            return Err(DiskError::NoSpace);
        }
        let inode = self.inode(file)?;
        inode.write(offset, bytes, || true);
        if is_durable {
            inode.make_durable(offset, bytes.len());
        }
        Ok(())
    }

    fn has_room(&mut self, file: FileName, offset: u64, len: usize) -> Result<bool, DiskError> {
        let end = offset + len as u64;
        let extension = end.saturating_sub(self.inode(file)?.bytes);
        Ok(extension == 0 || self.used_bytes().saturating_add(extension) <= self.capacity_bytes)
    }

    fn create_or_cut(&mut self, file: FileName) {
        if let Ok(inode) = self.inode(file) {
            inode.cut();
            return;
        }
        self.inodes_made += 1;
        let number = self.inodes_made;
        self.inodes.insert(number, Inode::default());
        let change = NameChange::Create(file, number);
        apply(&mut self.names, change);
        self.unsynced_names.push(change);
    }

    fn change_name(&mut self, change: NameChange) -> Result<(), DiskError> {
        let source = match change {
            NameChange::Create(..) => None,
            NameChange::Rename(from, _) | NameChange::Remove(from) => Some(from),
        };
        if source.is_some_and(|source| !self.names.contains_key(&source)) {
            return Err(DiskError::NotFound);
        }
        apply(&mut self.names, change);
        self.unsynced_names.push(change);
        Ok(())
    }

    fn commit_names(&mut self) {
        self.unsynced_names.clear();
        self.durable_names = self.names.clone();
        self.forget_nameless();
    }

    fn forget_nameless(&mut self) {
        let named: Vec<u64> = self.names.values().chain(self.durable_names.values()).copied().collect();
        self.inodes.retain(|number, _| named.contains(number));
    }

    fn abandon_pending(&mut self, random: &mut Random) {
        for Pending { op, bytes } in std::mem::take(&mut self.pending).into_values() {
            let survival = draw_survival(random);
            match op.action {
                Action::Write { file, offset, .. }
                | Action::WriteZeros { file, offset, .. }
                | Action::Extend { file, offset, .. } => {
                    let has_room = self.has_room(file, offset, bytes.len()) == Ok(true);
                    if let (true, Ok(inode)) = (has_room, self.inode(file)) {
                        inode.write(offset, &bytes, || match survival {
                            Survival::All => true,
                            Survival::None => false,
                            Survival::Coin => random.happens(500_000),
                        });
                    }
                }
                Action::Create { file } if survival == Survival::All => self.create_or_cut(file),
                // What is not there can be neither renamed nor removed; then nothing has happened.
                Action::Rename { from, to } if survival == Survival::All => {
                    let _ = self.change_name(NameChange::Rename(from, to));
                }
                Action::Remove { file } if survival == Survival::All => {
                    let _ = self.change_name(NameChange::Remove(file));
                }
                Action::Create { .. }
                | Action::Rename { .. }
                | Action::Remove { .. }
                | Action::Sync { .. }
                | Action::SyncDirectory
                | Action::Read { .. } => {}
            }
        }
    }

    fn draw_fault(&mut self, action: &Action, random: &mut Random) -> Option<Fault> {
        if self.faults.front().is_some_and(|fault| fault.can_happen_to(action)) {
            return self.faults.pop_front();
        }
        self.rates.draw(action, random)
    }

    /// Counts a change of [`Storage`] against [`MemoryDisk::stop_after`].
    fn spend_change(&mut self) -> Result<(), DiskError> {
        match &mut self.changes_left {
            None => Ok(()),
            Some(0) => Err(DiskError::Io(EIO)),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

impl StorageRead for MemoryDisk {
    fn list(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        Ok(self.names.iter().map(|(file, number)| (*file, self.inodes[number].bytes)).collect())
    }

    fn read(&mut self, file: FileName, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        assert_aligned(offset, bytes.len());
        let inode = self.inode(file)?;
        if offset + bytes.len() as u64 > inode.bytes {
            return Err(DiskError::EndOfFile);
        }
        inode.read(offset, bytes);
        Ok(())
    }
}

impl Storage for MemoryDisk {
    fn lock(&mut self) -> Result<(), DiskError> {
        if self.is_locked_elsewhere {
            return Err(DiskError::Locked);
        }
        if !self.names.contains_key(&FileName::Lock) {
            self.spend_change()?;
            self.create_or_cut(FileName::Lock);
        }
        Ok(())
    }

    fn create(&mut self, file: FileName) -> Result<(), DiskError> {
        if self.names.contains_key(&file) {
            return Err(DiskError::AlreadyExists);
        }
        self.spend_change()?;
        self.create_or_cut(file);
        Ok(())
    }

    fn write_durable(&mut self, file: FileName, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        assert_aligned(offset, bytes.len());
        self.spend_change()?;
        if !self.has_room(file, offset, bytes.len())? {
            return Err(DiskError::NoSpace);
        }
        let inode = self.inode(file)?;
        inode.write(offset, bytes, || true);
        inode.make_durable(offset, bytes.len());
        Ok(())
    }

    fn sync(&mut self, file: FileName) -> Result<(), DiskError> {
        self.spend_change()?;
        self.inode(file).map(|inode| inode.sync())
    }

    fn rename(&mut self, from: FileName, to: FileName) -> Result<(), DiskError> {
        self.spend_change()?;
        self.change_name(NameChange::Rename(from, to))
    }

    fn remove(&mut self, file: FileName) -> Result<(), DiskError> {
        self.spend_change()?;
        self.change_name(NameChange::Remove(file))
    }

    fn sync_directory(&mut self) -> Result<(), DiskError> {
        self.spend_change()?;
        self.commit_names();
        Ok(())
    }

    fn free_bytes(&mut self) -> Result<u64, DiskError> {
        Ok(self.capacity_bytes.saturating_sub(self.used_bytes()))
    }
}

fn draw_survival(random: &mut Random) -> Survival {
    match random.below(3) {
        0 => Survival::All,
        1 => Survival::None,
        _ => Survival::Coin,
    }
}

/// Does nothing where the change has lost what it builds on.
fn apply(names: &mut BTreeMap<FileName, u64>, change: NameChange) {
    match change {
        NameChange::Create(file, number) => {
            names.insert(file, number);
        }
        NameChange::Rename(from, to) => {
            if let Some(number) = names.remove(&from) {
                names.insert(to, number);
            }
        }
        NameChange::Remove(file) => {
            names.remove(&file);
        }
    }
}

fn assert_aligned(offset: u64, len: usize) {
    assert!(
        offset.is_multiple_of(BLOCK_BYTES as u64) && len.is_multiple_of(BLOCK_BYTES),
        "O_DIRECT takes whole blocks, not {len} bytes at {offset}"
    );
}
