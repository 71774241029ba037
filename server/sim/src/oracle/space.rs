//! A full disk costs only what is new (ARCHITECTURE section 6.1, "No space").
//!
//! Invariant checked: nothing but a new session or an acquire is ever refused for want of space. Kept beside it is whose
//! disk is full and since when. Deliberately absent: that a cell is not short for ever, and that one full disk does not
//! stop it; whoever plays that looks for grants.

use std::collections::BTreeMap;

use lockstep_wire::{NodeId, Status};

use super::{Verdict, violated};

const RULE: &str = "a full disk refuses only what is new (contract 6)";

/// See the module.
#[derive(Debug, Default)]
pub struct Space {
    /// Members whose disks have no room for the next segment, and since when they know, in ns.
    full: BTreeMap<NodeId, u64>,
}

impl Space {
    /// A member's log has found that its disk is full, or that it has room again.
    pub fn on_space(&mut self, node: NodeId, is_short: bool, now: u64) {
        if is_short {
            self.full.insert(node, now);
        } else {
            self.full.remove(&node);
        }
    }

    /// A member's process has ended.
    pub fn on_ended(&mut self, node: NodeId) {
        self.full.remove(&node);
    }

    /// Whether just one of the members that run has a full disk, and has had it for so long.
    pub fn is_one_full(&self, now: u64, span: u64) -> bool {
        self.full.len() == 1 && self.full.values().all(|since| now - since >= span)
    }

    /// Something was refused; `is_new` if it asks for a session or a lock.
    ///
    /// # Errors
    /// It was refused for want of space, and needs none that is not kept for it.
    pub fn on_refused(is_new: bool, status: Status, what: impl FnOnce() -> String) -> Verdict {
        if status == Status::NoSpace && !is_new {
            return violated(RULE, format!("NO_SPACE is the answer to {}", what()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_may_be_refused_for_want_of_space() {
        let refused = |is_new, status| Space::on_refused(is_new, status, || "a release".to_owned());
        assert!(refused(true, Status::NoSpace).is_ok());
        assert!(refused(false, Status::NoSpace).is_err());
        assert!(refused(false, Status::Overloaded).is_ok());
    }

    #[test]
    fn one_full_disk_is_told_from_none_and_from_two() {
        let mut space = Space::default();
        assert!(!space.is_one_full(9, 0));
        space.on_space(NodeId(1), true, 10);
        assert_eq!((space.is_one_full(14, 5), space.is_one_full(15, 5)), (false, true));
        space.on_space(NodeId(2), true, 15);
        assert!(!space.is_one_full(20, 5));
        space.on_ended(NodeId(1));
        space.on_space(NodeId(2), false, 21);
        assert!(!space.is_one_full(30, 5));
    }
}
