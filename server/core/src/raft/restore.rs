//! What a cell's records in the log add up to after a restart.
//!
//! Invariant: everything restored is durable, and only a truncation record removes entries (ARCHITECTURE
//! section 6.1). What the log no longer has at its beginning is in a snapshot that a mark names. Deliberately absent:
//! reading and verifying the records; the log did both. What a snapshot says is the table's.

use lockstep_wire::peer::{Manifest, MemberIncarnation};
use lockstep_wire::{BirthId, Epoch, LogIndex, Members, NodeId, SnapshotId, Term};

use super::RaftConfig;
use super::log::Log;
use super::origin::Origin;
use crate::members::{Membership, MembershipHistory};
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
    /// Whether the log has had an entry: the first one may stand anywhere, those before it were recycled.
    has_begun: bool,
    /// The payloads of entries through this one are not kept: a snapshot that is likely to count has them.
    covered: LogIndex,
    /// The newest snapshot that counts.
    pub(super) mark: Option<SnapshotId>,
    /// The one whose state the replica goes on from.
    pub(super) loaded: Option<SnapshotId>,
    /// That state, and its epoch: what the cell begins with if it is unborn.
    pub(super) origin: Origin,
    pub(super) manifest: Option<StoredManifest>,
    pub(super) is_born: bool,
    /// The lists of members that entries have, by their indexes.
    lists: Vec<(LogIndex, Membership)>,
    /// The one that the loaded state has, unless the members are those of the birth.
    loaded_list: Option<Membership>,
}

impl Restored {
    /// No record yet: a cell that was never born.
    pub fn new() -> Restored {
        Restored::default()
    }

    /// No record yet, of a cell that is likely to go on from a snapshot through this index, and not from an older one.
    pub fn behind(through: LogIndex) -> Restored {
        Restored { covered: through, ..Restored::default() }
    }

    /// Takes the cell's next record.
    ///
    /// # Panics
    /// When the records cannot have been written by this program in this order. The log has verified
    /// their bytes, so that is a defect, and going on would be a lie.
    pub fn on_record(&mut self, head: RecordHead, payload: &[u8]) {
        match head.kind {
            RecordKind::Entry => self.on_entry(head, payload),
            RecordKind::HardState => {
                let vote: [u8; 2] = payload.try_into().expect("a hard state names a node in two bytes");
                assert!(head.term >= self.term, "the term falls from {} to {}", self.term, head.term);
                self.term = head.term;
                self.vote = Some(NodeId(u16::from_le_bytes(vote))).filter(|node| node.0 != 0);
            }
            RecordKind::Truncate => self.on_truncate(head.index),
            RecordKind::SnapshotMark => self.on_mark(SnapshotId { index: head.index, term: head.term }),
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

    fn on_entry(&mut self, head: RecordHead, payload: &[u8]) {
        if !self.has_begun && head.index > LogIndex(1) {
            let before = head.index.prev();
            let mark = self.mark.filter(|mark| mark.index == before);
            let base_term = mark.map_or(Term(0), |mark| mark.term);
            self.log = Log::begin_at(before, base_term);
        }
        self.has_begun = true;
        let expected = self.log.last_index().next();
        assert!(head.index == expected, "entry {} is in the log where {expected} belongs", head.index);
        if head.index <= self.covered {
            // Truncations have taken whatever is behind it.
            self.log.append_without_payload(head.term);
        } else {
            self.log.append(head.term, |out| out.extend_from_slice(payload));
        }
        if let Some(members) = Members::in_entry(payload) {
            let members = members.expect("a list of members in the log is whole");
            self.lists.push((head.index, Membership::of(&members)));
        }
    }

    /// What was truncated may have been recycled meanwhile, in part or as a whole.
    fn on_truncate(&mut self, first: LogIndex) {
        self.lists.retain(|(index, _)| *index < first);
        if first <= self.log.base() {
            self.log.restart_at(first.prev(), Term(0));
        } else if first <= self.log.last_index() {
            self.log.truncate_from(first);
        }
    }

    /// A snapshot counts from here on. The log has the entry that it ends with, or has lost it to recycling, or was
    /// emptied for it right before. A restored cell has nothing but the mark, which tells the term that it goes on from.
    fn on_mark(&mut self, mark: SnapshotId) {
        let log = &mut self.log;
        let is_empty = log.last_index() == log.base();
        match log.term_at(mark.index) {
            Some(term) => {
                assert!(
                    term == mark.term,
                    "entry {} has term {term} and a mark of term {}",
                    mark.index,
                    mark.term
                );
            }
            None if mark.index == log.base() => log.set_base_term(mark.term),
            None if mark.index > log.last_index() => {
                assert!(is_empty, "a snapshot through {} is behind the end of the log", mark.index);
                log.restart_at(mark.index, mark.term);
            }
            None => {}
        }
        self.mark = Some(mark);
        self.term = self.term.max(mark.term);
    }

    /// The state of this snapshot, which is of this epoch, and its list of members, is what the replica goes on from.
    pub fn on_loaded(&mut self, snapshot: SnapshotId, epoch: Epoch, members: Option<Membership>) {
        assert!(snapshot.index >= self.log.base(), "the log does not go on where snapshot {snapshot} ends");
        if snapshot.index == self.log.base() {
            self.log.set_base_term(snapshot.term);
        }
        self.log.drop_payloads_through(snapshot.index);
        self.loaded = Some(snapshot);
        self.origin = Origin { epoch, snapshot };
        self.loaded_list = members;
    }

    /// Who the members are: as they were born, as the snapshot knows them, and as the entries behind it say.
    pub(super) fn memberships(&self, config: &RaftConfig) -> MembershipHistory {
        let birth = match &self.manifest {
            Some(manifest) => Membership::of_birth(&manifest.members),
            None if config.is_joining => Membership::none(),
            None => {
                let unknown =
                    |node: &NodeId| MemberIncarnation { node: *node, ..MemberIncarnation::default() };
                Membership::of_birth(&config.members.iter().map(unknown).collect::<Vec<_>>())
            }
        };
        let mut history = MembershipHistory::new(birth);
        self.lists.iter().for_each(|(index, list)| history.push(*index, list.clone()));
        if let Some(snapshot) = self.loaded {
            history.install(snapshot.index, self.loaded_list.clone(), true);
        }
        history
    }

    /// Whether the replica cannot go on by itself: entries are gone, and no snapshot that has them is whole.
    pub(crate) fn lacks_state(&self) -> bool {
        self.log.base() > LogIndex(0) && self.loaded.is_none()
    }

    /// Whether the payloads of all entries behind the loaded state are there. If not, they were not kept because of a
    /// snapshot that was not loaded.
    pub(super) fn has_payloads(&self) -> bool {
        let through = self.loaded.map_or(LogIndex(0), |snapshot| snapshot.index);
        self.lacks_state() || self.log.cache_first() <= through.next()
    }

    /// What an entry says that survived, behind the snapshot that was loaded.
    pub(crate) fn payload(&self, index: LogIndex) -> Option<&[u8]> {
        self.log.payload(index)
    }

    /// The last entry that survived, which may be in the snapshot.
    pub(crate) fn last_entry(&self) -> Option<SnapshotId> {
        let index = self.log.last_index();
        self.log.term_at(index).filter(|_| index > LogIndex(0)).map(|term| SnapshotId { index, term })
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
    fn payloads_that_a_snapshot_covers_are_not_kept_and_their_terms_are() {
        let mut restored = Restored::behind(LogIndex(3));
        for index in 1..=5 {
            record(&mut restored, RecordKind::Entry, 1, index, b"old");
        }
        record(&mut restored, RecordKind::Truncate, 2, 2, b"");
        for index in 2..=5 {
            record(&mut restored, RecordKind::Entry, 2, index, b"new");
        }
        record(&mut restored, RecordKind::SnapshotMark, 2, 3, b"");
        let payload = |index| restored.log.payload(LogIndex(index));
        assert_eq!([1, 2, 3, 4, 5].map(payload), [None, None, None, Some(&b"new"[..]), Some(&b"new"[..])]);
        assert_eq!([1, 2, 3].map(|index| restored.log.term_at(LogIndex(index)).unwrap().0), [1, 2, 2]);
        assert!(!restored.has_payloads(), "nothing is loaded");
        restored.on_loaded(mark(3, 2), Epoch(0), None);
        assert!(restored.has_payloads());
    }

    #[test]
    fn payloads_that_were_not_kept_are_missed_behind_an_older_snapshot() {
        let mut restored = Restored::behind(LogIndex(3));
        for index in 1..=4 {
            record(&mut restored, RecordKind::Entry, 1, index, b"");
        }
        restored.on_loaded(mark(1, 1), Epoch(0), None);
        assert!(!restored.has_payloads());
    }

    fn mark(index: u64, term: u64) -> SnapshotId {
        SnapshotId { index: LogIndex(index), term: Term(term) }
    }

    #[test]
    fn a_log_whose_beginning_was_recycled_goes_on_from_its_snapshots() {
        let mut restored = Restored::new();
        // Staged again before the entries that followed it were recycled, too.
        record(&mut restored, RecordKind::SnapshotMark, 1, 50, b"");
        record(&mut restored, RecordKind::Entry, 2, 81, b"old");
        record(&mut restored, RecordKind::Entry, 3, 82, b"new");
        assert_eq!(restored.log.term_at(LogIndex(80)), None);
        record(&mut restored, RecordKind::SnapshotMark, 2, 80, b"");
        assert_eq!(restored.log.term_at(LogIndex(80)), Some(Term(2)));
        record(&mut restored, RecordKind::SnapshotMark, 2, 81, b"");
        assert_eq!(restored.mark, Some(mark(81, 2)));
        assert!(restored.lacks_state());
        restored.on_loaded(mark(81, 2), Epoch(0), None);
        assert!(!restored.lacks_state());
        assert_eq!(restored.last_index(), LogIndex(82));
    }

    #[test]
    #[should_panic(expected = "does not go on")]
    fn a_snapshot_that_the_log_does_not_reach_is_not_gone_on_from() {
        let mut restored = Restored::new();
        record(&mut restored, RecordKind::Entry, 2, 71, b"");
        restored.on_loaded(mark(50, 1), Epoch(0), None);
    }

    #[test]
    fn an_installed_snapshot_replaces_a_log_that_did_not_match() {
        for recycled in [0, 3, 5] {
            let mut restored = Restored::new();
            for index in recycled + 1..=5 {
                record(&mut restored, RecordKind::Entry, 1, index, b"");
            }
            record(&mut restored, RecordKind::Truncate, 4, 1, b"");
            record(&mut restored, RecordKind::SnapshotMark, 3, 20, b"");
            record(&mut restored, RecordKind::Entry, 4, 21, b"next");
            assert_eq!(restored.log.term_at(LogIndex(20)), Some(Term(3)), "{recycled} recycled");
            assert_eq!(restored.mark, Some(mark(20, 3)));
        }
    }

    #[test]
    fn a_snapshot_may_be_installed_where_no_entry_was() {
        let mut restored = Restored::new();
        record(&mut restored, RecordKind::Truncate, 4, 1, b"");
        record(&mut restored, RecordKind::SnapshotMark, 3, 20, b"");
        record(&mut restored, RecordKind::Entry, 4, 21, b"next");
        assert_eq!(restored.log.term_at(LogIndex(20)), Some(Term(3)));
    }

    #[test]
    fn what_was_truncated_and_half_recycled_is_gone() {
        let mut restored = Restored::new();
        record(&mut restored, RecordKind::Entry, 1, 8, b"");
        record(&mut restored, RecordKind::Truncate, 2, 6, b"");
        record(&mut restored, RecordKind::Entry, 2, 6, b"");
        assert_eq!(restored.log.base(), LogIndex(5));
        assert_eq!(restored.log.term_at(LogIndex(6)), Some(Term(2)));
    }

    #[test]
    #[should_panic(expected = "where 2 belongs")]
    fn a_gap_is_a_defect() {
        let mut restored = Restored::new();
        record(&mut restored, RecordKind::Entry, 1, 1, b"");
        record(&mut restored, RecordKind::Entry, 1, 3, b"");
    }

    #[test]
    #[should_panic(expected = "behind the end of the log")]
    fn a_snapshot_of_entries_that_the_log_never_had_is_a_defect() {
        let mut restored = Restored::new();
        record(&mut restored, RecordKind::Entry, 1, 1, b"");
        record(&mut restored, RecordKind::SnapshotMark, 1, 7, b"");
    }
}
