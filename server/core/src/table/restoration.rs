//! The table that a restored cell begins with (docs/SEMANTICS.md, section 5).
//!
//! Invariant: nobody has anything in it, every number that it gives is above every number that was given before, and
//! it is the same wherever it is made of the same state and epoch. Deliberately absent: where the backup comes from,
//! and that the old cell is no more; whoever restores sees to that.

use std::fmt;

use lockstep_wire::Epoch;

use super::cell::{CellNumbers, Table};

/// Why a cell cannot be restored with an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The backup's numbers are not below it.
    EpochNotAbove {
        /// The epoch that was asked for.
        asked: Epoch,
        /// The backup's own.
        own: Epoch,
    },
    /// It is not below [`Epoch::LIMIT`].
    EpochTooLarge(Epoch),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::EpochNotAbove { asked, own } => {
                write!(f, "epoch {asked} is not above the backup's own, which is {own}")
            }
            RestoreError::EpochTooLarge(asked) => {
                write!(f, "epoch {asked} is too large: {} is the last one", Epoch::LIMIT - 1)
            }
        }
    }
}

impl std::error::Error for RestoreError {}

impl Table {
    /// What a cell begins with that is restored from this state under a new epoch: all sessions are void, with what they
    /// held and waited for, and nothing is granted until an `EndQuiet` entry.
    ///
    /// # Errors
    /// When the epoch is not above this one's, or not below [`Epoch::LIMIT`].
    pub fn restored(&self, epoch: Epoch) -> Result<Table, RestoreError> {
        if epoch.0 >= Epoch::LIMIT {
            return Err(RestoreError::EpochTooLarge(epoch));
        }
        if epoch <= self.epoch {
            return Err(RestoreError::EpochNotAbove { asked: epoch, own: self.epoch });
        }
        let numbers = CellNumbers { epoch, applied: self.applied, is_quiet: true, ..CellNumbers::default() };
        Ok(Table::without_records(self.limits, numbers))
    }
}
