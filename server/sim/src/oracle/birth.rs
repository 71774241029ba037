//! A cell is born once (contract, point 8; ARCHITECTURE section 4.1).
//!
//! Invariant checked: nobody takes a cell for born before all that it is born with have stored by which manifest. It knows
//! what the disks have confirmed and what starts have found there. Deliberately absent: what the members are worth
//! afterwards; `membership` knows that.

use lockstep_wire::peer::Manifest;
use lockstep_wire::{BirthId, NodeId};

use super::{Verdict, violated};

/// The rule of this judge.
pub const RULE: &str = "a cell is born when all its members have stored who they are (contract 8)";

/// See the module.
#[derive(Debug, Default)]
pub struct Birth {
    /// Who has stored a manifest, and of which birth.
    stored: Vec<(NodeId, BirthId)>,
}

impl Birth {
    /// The cell was restored from a backup, and will be born anew.
    pub fn on_restored(&mut self) {
        self.stored.clear();
    }

    /// A node's disk has a manifest.
    pub fn on_stored(&mut self, node: NodeId, manifest: &Manifest<'_>) {
        let stored = (node, manifest.birth);
        if !self.stored.contains(&stored) {
            self.stored.push(stored);
        }
    }

    /// A node takes the cell for born by a manifest.
    ///
    /// # Errors
    /// Somebody whom the manifest names has not stored it.
    pub fn on_born(&self, node: NodeId, manifest: &Manifest<'_>) -> Verdict {
        let has_stored = |member: NodeId| self.stored.contains(&(member, manifest.birth));
        match manifest.members.iter().map(|member| member.node).find(|member| !has_stored(*member)) {
            None => Ok(()),
            Some(member) => violated(
                RULE,
                format!("node {node} takes the cell for born, and node {member} has not stored the manifest"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_wire::peer::MemberIncarnation;
    use lockstep_wire::{Incarnation, Rows};

    use super::*;

    #[test]
    fn a_birth_without_one_of_the_members_or_by_another_manifest_is_seen() {
        let member = |node| MemberIncarnation { node: NodeId(node), incarnation: Incarnation([1; 16]) };
        let members = [member(1), member(2)];
        let manifest = |birth| Manifest { birth: BirthId([birth; 16]), members: Rows::Slice(&members) };
        let mut birth = Birth::default();
        birth.on_stored(NodeId(1), &manifest(1));
        birth.on_stored(NodeId(2), &manifest(2));
        let verdict = birth.on_born(NodeId(3), &manifest(1));
        assert_eq!(verdict.map_err(|violation| violation.rule), Err(RULE));
        birth.on_stored(NodeId(2), &manifest(1));
        assert_eq!(birth.on_born(NodeId(3), &manifest(1)), Ok(()));
        birth.on_restored();
        assert!(birth.on_born(NodeId(1), &manifest(1)).is_err());
    }
}
