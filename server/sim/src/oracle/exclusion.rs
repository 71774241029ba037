//! Mutual exclusion at a resource that checks fences, and in what clients believe (contract, point 1 and "Locks are
//! advisory leases").
//!
//! Invariants checked: no two holders in conflicting modes present the same fence; the resource never refuses the
//! write of somebody who still holds by right; and at no moment of true time do two clients believe, by their own
//! rules, that they hold one name in conflicting modes, or together and with different fences. Deliberately absent:
//! locks; the resource knows fences only. That fences grow from phase to phase is for `token`.

use std::collections::BTreeMap;

use lockstep_wire::request::Mode;
use lockstep_wire::{CellId, FencingToken};

use super::{Verdict, violated};

const RULE: &str = "mutual exclusion (contract 1)";

/// Who holds: a client, by its place and life, and the acquire that made its hold.
pub type Holder = (usize, u64, u64);

/// A write on its way to the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// What the lock protects, by the lock's cell and name.
    pub resource: (CellId, String),
    /// Who writes.
    pub holder: Holder,
    /// How it holds.
    pub mode: Mode,
    /// What it presents.
    pub fence: FencingToken,
}

/// What a client believes to hold at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Belief {
    /// The lock, by its cell and name.
    pub resource: (CellId, String),
    /// Who believes.
    pub holder: Holder,
    /// How it holds.
    pub mode: Mode,
    /// Its token.
    pub token: FencingToken,
    /// What it presents.
    pub fence: FencingToken,
}

/// The resources behind all locks.
#[derive(Debug, Default)]
pub struct Resources {
    fences: BTreeMap<(CellId, String), FencingToken>,
    presented: BTreeMap<((CellId, String), FencingToken), (Holder, Mode)>,
    /// Writes that were let through.
    pub accepted: u64,
    /// Writes that a newer fence kept out.
    pub refused: u64,
}

impl Resources {
    /// A write arrives. Says whether it is let through. `holds_by_right` says that the writer's own rules let it
    /// believe in its hold at this very moment.
    ///
    /// # Errors
    /// Exclusion does not hold.
    pub fn on_write(&mut self, write: &Write, holds_by_right: bool) -> Result<bool, super::Violation> {
        let key = (write.resource.clone(), write.fence);
        let (first, mode) = *self.presented.entry(key).or_insert((write.holder, write.mode));
        if first != write.holder && (mode == Mode::Exclusive || write.mode == Mode::Exclusive) {
            return violated(
                RULE,
                format!(
                    "holders {first:?} and {:?} present the same fence {} of {:?}",
                    write.holder, write.fence, write.resource
                ),
            );
        }
        let fence = self.fences.entry(write.resource.clone()).or_default();
        if write.fence < *fence {
            self.refused += 1;
            if holds_by_right {
                return violated(
                    RULE,
                    format!(
                        "{:?} holds {:?} by right with fence {}, and somebody with {} has written before it",
                        write.holder, write.resource, write.fence, fence
                    ),
                );
            }
            return Ok(false);
        }
        *fence = write.fence;
        self.accepted += 1;
        Ok(true)
    }
}

/// Looks at what all clients believe at one moment.
///
/// # Errors
/// Two of them believe what cannot both be true.
pub fn check_beliefs(beliefs: &[Belief]) -> Verdict {
    for (at, one) in beliefs.iter().enumerate() {
        for other in &beliefs[at + 1..] {
            if one.resource != other.resource {
                continue;
            }
            if one.mode == Mode::Exclusive || other.mode == Mode::Exclusive {
                return violated(
                    RULE,
                    format!(
                        "{:?} (token {}) and {:?} (token {}) both believe that they hold {:?}",
                        one.holder, one.token, other.holder, other.token, one.resource
                    ),
                );
            }
            if one.fence != other.fence {
                return violated(
                    RULE,
                    format!(
                        "{:?} and {:?} share {:?} and present fences {} and {}",
                        one.holder, other.holder, one.resource, one.fence, other.fence
                    ),
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(client: usize, mode: Mode, fence: u64) -> Write {
        let resource = (CellId(0), "n".to_owned());
        Write { resource, holder: (client, 1, 1), mode, fence: FencingToken(fence) }
    }

    #[test]
    fn a_stale_write_is_kept_out_and_is_no_violation() {
        let mut resources = Resources::default();
        assert_eq!(resources.on_write(&write(1, Mode::Exclusive, 5), true), Ok(true));
        assert_eq!(resources.on_write(&write(2, Mode::Exclusive, 6), true), Ok(true));
        assert_eq!(resources.on_write(&write(1, Mode::Exclusive, 5), false), Ok(false));
    }

    #[test]
    fn a_rightful_holder_that_is_kept_out_is_seen() {
        let mut resources = Resources::default();
        assert_eq!(resources.on_write(&write(2, Mode::Exclusive, 6), true), Ok(true));
        assert!(resources.on_write(&write(1, Mode::Exclusive, 5), true).is_err());
    }

    #[test]
    fn one_fence_for_two_exclusive_holders_is_seen() {
        let mut resources = Resources::default();
        assert_eq!(resources.on_write(&write(1, Mode::Shared, 5), true), Ok(true));
        assert_eq!(resources.on_write(&write(2, Mode::Shared, 5), true), Ok(true));
        assert!(resources.on_write(&write(3, Mode::Exclusive, 5), true).is_err());
    }

    fn belief(client: usize, mode: Mode, fence: u64) -> Belief {
        Belief {
            resource: (CellId(0), "n".to_owned()),
            holder: (client, 1, 1),
            mode,
            token: FencingToken(fence),
            fence: FencingToken(fence),
        }
    }

    #[test]
    fn two_beliefs_in_one_lock_are_seen() {
        assert!(check_beliefs(&[belief(1, Mode::Shared, 1), belief(2, Mode::Shared, 1)]).is_ok());
        assert!(check_beliefs(&[belief(1, Mode::Shared, 1), belief(2, Mode::Exclusive, 1)]).is_err());
    }

    #[test]
    fn sharers_with_different_fences_are_seen() {
        assert!(check_beliefs(&[belief(1, Mode::Shared, 1), belief(2, Mode::Shared, 2)]).is_err());
    }
}
