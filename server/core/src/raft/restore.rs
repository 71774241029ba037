//! What a cell's records in the log add up to after a restart.
//!
//! Invariant: everything restored is durable, and only a truncation record removes entries (ARCHITECTURE
//! section 6.1). Deliberately absent: reading and verifying the records; the log did both.

use lockstep_wire::peer::{Manifest, MemberIncarnation};
use lockstep_wire::{BirthId, LogIndex, NodeId, Term};

use super::log::Log;
use crate::{RecordHead, RecordKind};

/// Who the members were at the birth, as this node has stored it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredManifest {
    pub(super) birth: BirthId,
    pub(super) members: Vec<MemberIncarnation>,
}

impl StoredManifest {
    pub(super) fn of(manifest: &Manifest<'_>) -> StoredManifest {
        StoredManifest { birth: manifest.birth, members: manifest.members.iter().collect() }
    }
}

/// The state of one cell, gathered from its records in the order of the log.
#[derive(Debug, Default)]
pub struct Restored {
    pub(super) term: Term,
    pub(super) vote: Option<NodeId>,
    pub(super) log: Log,
    pub(super) manifest: Option<StoredManifest>,
    pub(super) is_born: bool,
}

impl Restored {
    /// No record yet: a cell that was never born.
    pub fn new() -> Restored {
        Restored::default()
    }

    /// Takes the cell's next record.
    ///
    /// # Panics
    /// When the records cannot have been written by this program in this order. The log has verified
    /// their bytes, so that is a defect, and going on would be a lie.
    pub fn on_record(&mut self, head: RecordHead, payload: &[u8]) {
        match head.kind {
            RecordKind::Entry => {
                let expected = self.log.last_index().next();
                assert!(
                    head.index == expected,
                    "entry {} is in the log where {expected} belongs",
                    head.index
                );
                self.log.append(head.term, |out| out.extend_from_slice(payload));
            }
            RecordKind::HardState => {
                let vote: [u8; 2] = payload.try_into().expect("a hard state names a node in two bytes");
                assert!(head.term >= self.term, "the term falls from {} to {}", self.term, head.term);
                self.term = head.term;
                self.vote = Some(NodeId(u16::from_le_bytes(vote))).filter(|node| node.0 != 0);
            }
            RecordKind::Truncate => self.log.truncate_from(head.index),
            RecordKind::SnapshotMark => panic!("nothing writes a snapshot's mark"),
            RecordKind::Manifest => {
                let manifest = Manifest::decode(payload).expect("a manifest in the log is whole");
                let manifest = StoredManifest::of(&manifest);
                assert!(
                    self.manifest.as_ref().is_none_or(|known| *known == manifest),
                    "a member stores one manifest ever"
                );
                self.manifest = Some(manifest);
            }
            RecordKind::Born => {
                assert!(self.manifest.is_some(), "a cell is born by its manifest");
                self.is_born = true;
            }
        }
    }

    /// The last entry that survived.
    pub fn last_index(&self) -> LogIndex {
        self.log.last_index()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(restored: &mut Restored, kind: RecordKind, term: u64, index: u64, payload: &[u8]) {
        restored.on_record(RecordHead { kind, term: Term(term), index: LogIndex(index) }, payload);
    }

    #[test]
    fn only_truncation_records_remove_entries() {
        let mut restored = Restored::new();
        record(&mut restored, RecordKind::HardState, 1, 0, &2u16.to_le_bytes());
        record(&mut restored, RecordKind::Entry, 1, 1, b"a");
        record(&mut restored, RecordKind::Entry, 1, 2, b"b");
        record(&mut restored, RecordKind::HardState, 3, 0, &0u16.to_le_bytes());
        record(&mut restored, RecordKind::Truncate, 3, 2, b"");
        record(&mut restored, RecordKind::Entry, 3, 2, b"c");
        assert_eq!((restored.term, restored.vote), (Term(3), None));
        assert_eq!(restored.log.payload(LogIndex(2)), Some(&b"c"[..]));
        assert_eq!(restored.log.term_at(LogIndex(1)), Some(Term(1)));
    }

    #[test]
    #[should_panic(expected = "where 1 belongs")]
    fn a_gap_is_a_defect() {
        record(&mut Restored::new(), RecordKind::Entry, 1, 2, b"");
    }
}
