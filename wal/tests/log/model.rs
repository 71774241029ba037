//! What the log should hold, in the simplest words.

use std::collections::BTreeMap;

use lockstep_wal::{CARRIED_KINDS, Lsn, RecordKind, SnapshotId};
use lockstep_wire::{CellId, LogIndex};

use crate::rig::Seen;

/// What a cell has after its records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CellState {
    pub(crate) entries: BTreeMap<LogIndex, Seen>,
    pub(crate) carried: BTreeMap<RecordKind, Seen>,
}

/// Carries records out in order.
pub(crate) fn fold<'a>(records: impl Iterator<Item = &'a Seen>) -> BTreeMap<CellId, CellState> {
    let mut cells = BTreeMap::<CellId, CellState>::new();
    for record in records {
        let cell = cells.entry(record.cell).or_default();
        match record.kind {
            RecordKind::Entry => {
                cell.entries.insert(record.index, record.clone());
            }
            RecordKind::Truncate => {
                cell.entries.split_off(&record.index);
            }
            RecordKind::HardState | RecordKind::SnapshotMark | RecordKind::Manifest | RecordKind::Born => {
                cell.carried.insert(record.kind, record.clone());
            }
        }
    }
    cells
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) records: BTreeMap<Lsn, Seen>,
}

impl Model {
    /// The newest snapshot that the cell's records name.
    pub(crate) fn marked(&self, cell: CellId) -> Option<SnapshotId> {
        let mut records = self.records.values().rev();
        let mark = records.find(|record| record.cell == cell && record.kind == RecordKind::SnapshotMark);
        mark.map(|mark| SnapshotId { index: mark.index, term: mark.term })
    }

    pub(crate) fn cells(&self) -> BTreeMap<CellId, CellState> {
        fold(self.records.values())
    }

    /// Holds what recovery showed against what was appended, then forgets what the crash took.
    pub(crate) fn check_recovered(&mut self, seen: &[(Lsn, Seen)], last: Lsn, durable: Lsn) {
        assert!(last >= durable, "recovery lost durable records: {last} < {durable}");
        for pair in seen.windows(2) {
            assert_eq!(pair[0].0.0 + 1, pair[1].0.0, "recovery shows every record, in order");
        }
        for (lsn, record) in seen {
            match self.records.get(lsn) {
                Some(appended) => assert_eq!(record, appended, "recovery shows what was appended at {lsn}"),
                // The log itself writes carried records again: what it says must be the newest.
                None => {
                    assert!(CARRIED_KINDS.contains(&record.kind), "{record:?} was never appended");
                    let before = fold(self.records.range(..lsn).map(|(_, record)| record));
                    assert_eq!(before[&record.cell].carried[&record.kind], *record);
                    self.records.insert(*lsn, record.clone());
                }
            }
        }
        self.records.retain(|lsn, _| *lsn <= last);
        let first = seen.first().map_or(Lsn(last.0 + 1), |(lsn, _)| *lsn);
        if self.records.keys().any(|lsn| *lsn >= first) {
            assert_eq!(seen.len(), self.records.range(first..).count());
        }
        let recovered = fold(seen.iter().map(|(_, record)| record));
        for (cell, expected) in self.cells() {
            let found = recovered.get(&cell).cloned().unwrap_or_default();
            assert_eq!(found.carried, expected.carried, "cell {cell} keeps what is carried");
            let marked = self.marked(cell).map_or(LogIndex(0), |id| id.index);
            for (index, entry) in &expected.entries {
                match found.entries.get(index) {
                    Some(there) => assert_eq!(there, entry),
                    None => assert!(*index <= marked, "cell {cell} lost its entry {index}"),
                }
            }
            for index in found.entries.keys() {
                assert!(
                    expected.entries.contains_key(index),
                    "cell {cell} has an entry {index} out of nowhere"
                );
            }
        }
    }
}
