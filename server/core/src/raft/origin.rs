//! What a cell begins with when it is born: nothing, or the state that it was restored from (ARCHITECTURE section 4.1).
//!
//! Invariant: members that begin with different states tell each other so before the birth. Deliberately absent: the
//! state, which is the table's.

use lockstep_wire::{Epoch, SnapshotId};

/// The state that a cell begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) epoch: Epoch,
    /// Its last entry.
    pub(super) snapshot: SnapshotId,
}

impl Origin {
    /// What a member without a manifest folds into the lower half of the hash of its members; 0 when the cell begins
    /// empty. The upper half still tells whether the lists of members are the same.
    #[expect(clippy::cast_possible_truncation, reason = "half of the hash is wanted")]
    pub(super) fn half_hash(self) -> u32 {
        if self == Origin::default() {
            return 0;
        }
        let words = [u64::from(self.epoch.0), self.snapshot.index.0, self.snapshot.term.0];
        hash(words.into_iter().flat_map(u64::to_le_bytes)) as u32
    }
}

/// FNV-1a: it has to be the same everywhere, not hard to find a collision for.
pub(super) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
