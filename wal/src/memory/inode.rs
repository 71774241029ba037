//! One file of the memory disk: what is seen, and what a loss of power would leave of it.
//!
//! Invariant: sectors without an undo are durable. Blank sectors take no memory, so that zero-filled segments are
//! cheap. Deliberately absent: names, which have a durability of their own.

use std::collections::BTreeMap;

use crate::layout::SECTOR_BYTES;

type Sector = Box<[u8; SECTOR_BYTES]>;

/// Which unsynced sectors a loss of power keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survival {
    All,
    None,
    /// Each by itself.
    Coin,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    pub(super) bytes: u64,
    durable_bytes: u64,
    sectors: BTreeMap<u64, Sector>,
    /// What a sector held when it was last durable; `None` for blank.
    undo: BTreeMap<u64, Option<Sector>>,
}

impl Inode {
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        let first = offset / SECTOR_BYTES as u64;
        for (number, chunk) in (first..).zip(out.chunks_mut(SECTOR_BYTES)) {
            match self.sectors.get(&number) {
                Some(sector) => chunk.copy_from_slice(&sector[..]),
                None => chunk.fill(0),
            }
        }
    }

    /// Writes the sectors that `keeps` says; the others stay as they are.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8], mut keeps: impl FnMut() -> bool) {
        let first = offset / SECTOR_BYTES as u64;
        for (number, chunk) in (first..).zip(bytes.chunks(SECTOR_BYTES)) {
            if !keeps() {
                continue;
            }
            let mut sector = Box::new([0; SECTOR_BYTES]);
            sector.copy_from_slice(chunk);
            let is_blank = sector.iter().all(|byte| *byte == 0);
            let old =
                if is_blank { self.sectors.remove(&number) } else { self.sectors.insert(number, sector) };
            self.undo.entry(number).or_insert(old);
            self.bytes = self.bytes.max((number + 1) * SECTOR_BYTES as u64);
        }
    }

    pub(super) fn make_durable(&mut self, offset: u64, len: usize) {
        let first = offset / SECTOR_BYTES as u64;
        let behind = (offset + len as u64) / SECTOR_BYTES as u64;
        let numbers: Vec<u64> = self.undo.range(first..behind).map(|(number, _)| *number).collect();
        for number in numbers {
            self.undo.remove(&number);
        }
        self.durable_bytes = self.durable_bytes.max(offset + len as u64);
    }

    pub(super) fn sync(&mut self) {
        self.undo.clear();
        self.durable_bytes = self.bytes;
    }

    pub(super) fn cut(&mut self) {
        *self = Inode::default();
    }

    pub(super) fn lose_power(&mut self, survival: Survival, mut coin: impl FnMut() -> bool) {
        let mut survives = || match survival {
            Survival::All => true,
            Survival::None => false,
            Survival::Coin => coin(),
        };
        for (number, old) in std::mem::take(&mut self.undo) {
            if survives() {
                continue;
            }
            match old {
                Some(sector) => self.sectors.insert(number, sector),
                None => self.sectors.remove(&number),
            };
        }
        if self.bytes != self.durable_bytes && !survives() {
            self.bytes = self.durable_bytes;
            self.sectors.split_off(&self.bytes.div_ceil(SECTOR_BYTES as u64));
        }
        self.durable_bytes = self.bytes;
    }

    /// Flips bits where the disk lies still: the change is not a write.
    pub(super) fn rot(&mut self, offset: u64, mask: u8) {
        let number = offset / SECTOR_BYTES as u64;
        let sector = self.sectors.entry(number).or_insert_with(|| Box::new([0; SECTOR_BYTES]));
        let within = usize::try_from(offset % SECTOR_BYTES as u64).expect("a sector is small");
        sector[within] ^= mask;
    }

    /// The offset of the nth sector that is not blank, counted around.
    pub(super) fn written_sector(&self, nth: u64) -> Option<u64> {
        let at = usize::try_from(nth % (self.sectors.len() as u64).max(1)).ok()?;
        self.sectors.keys().nth(at).map(|number| number * SECTOR_BYTES as u64)
    }
}
