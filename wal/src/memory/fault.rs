//! What can go wrong with one operation of the memory disk.
//!
//! Invariant: a fault happens only to operations that a real disk could do it to. Deliberately absent: crashes and
//! rot, which happen to the disk and not to an operation.

use super::Random;
use crate::disk::Action;

/// One thing going wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write is reported done and did nothing.
    LostWrite,
    /// A write goes to another place of the same file and is reported done.
    MisdirectedWrite {
        /// How many blocks away.
        blocks: i64,
    },
    /// A write fails, having written any part.
    WriteError,
    /// A sync of a file or of the directory fails.
    SyncError,
    /// A read fails.
    ReadError,
    /// Creating or extending fails for want of space.
    NoSpace,
}

impl Fault {
    pub(super) fn can_happen_to(self, action: &Action) -> bool {
        let (is_write, is_sync, is_read, allocates) = match action {
            Action::Write { .. } => (true, false, false, false),
            Action::WriteZeros { .. } | Action::Extend { .. } => (true, false, false, true),
            Action::Create { .. } => (false, false, false, true),
            Action::Sync { .. } | Action::SyncDirectory => (false, true, false, false),
            Action::Read { .. } => (false, false, true, false),
            Action::Rename { .. } | Action::Remove { .. } => (false, false, false, false),
        };
        match self {
            Fault::LostWrite | Fault::MisdirectedWrite { .. } | Fault::WriteError => is_write,
            Fault::SyncError => is_sync,
            Fault::ReadError => is_read,
            Fault::NoSpace => allocates,
        }
    }
}

/// How often each fault happens by itself, in a million operations that it can happen to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// See [`Fault::LostWrite`].
    pub lost_write_ppm: u32,
    /// See [`Fault::MisdirectedWrite`]; up to 64 blocks away.
    pub misdirected_write_ppm: u32,
    /// See [`Fault::WriteError`].
    pub write_error_ppm: u32,
    /// See [`Fault::SyncError`].
    pub sync_error_ppm: u32,
    /// See [`Fault::ReadError`].
    pub read_error_ppm: u32,
}

impl FaultRates {
    pub(super) fn draw(&self, action: &Action, random: &mut Random) -> Option<Fault> {
        let blocks = random.below(129).cast_signed() - 64;
        [
            (self.lost_write_ppm, Fault::LostWrite),
            (self.misdirected_write_ppm, Fault::MisdirectedWrite { blocks }),
            (self.write_error_ppm, Fault::WriteError),
            (self.sync_error_ppm, Fault::SyncError),
            (self.read_error_ppm, Fault::ReadError),
        ]
        .into_iter()
        .find(|(chance_ppm, fault)| fault.can_happen_to(action) && random.happens(*chance_ppm))
        .map(|(_, fault)| fault)
    }
}
