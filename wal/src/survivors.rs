//! What recovery leaves of each cell: a visitor for [`Log::open`](crate::Log::open) that carries truncations out.
//!
//! Invariant: after the last record, every cell has exactly its newest carried records and its current entries,
//! contiguous. The first entry may have any index up to the one behind what the mark covers.
//! Deliberately absent: what any of it means, and which entries a snapshot makes superfluous.

use std::collections::BTreeMap;

use lockstep_wire::{CellId, RecordKind};

use crate::record::{LoggedRecord, Lsn, Record};

/// What survives of one cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellSurvivors {
    /// The newest term and vote.
    pub hard_state: Option<LoggedRecord>,
    /// The newest snapshot mark.
    pub snapshot_mark: Option<LoggedRecord>,
    /// The manifest.
    pub manifest: Option<LoggedRecord>,
    /// The confirmation of birth.
    pub born: Option<LoggedRecord>,
    /// The current entries, contiguous; entries released before the crash may be among them or not.
    pub entries: Vec<LoggedRecord>,
}

/// What survives of every cell of a shard. `Log::open(.., &mut |lsn, record| survivors.on_record(lsn, &record))`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survivors {
    cells: BTreeMap<CellId, CellSurvivors>,
}

impl Survivors {
    /// Takes the next record.
    pub fn on_record(&mut self, lsn: Lsn, record: &Record<'_>) {
        let cell = self.cells.entry(record.cell).or_default();
        let logged = LoggedRecord::of(lsn, record);
        match record.kind {
            RecordKind::Entry => cell.entries.push(logged),
            RecordKind::Truncate => {
                let kept = cell.entries.partition_point(|entry| entry.index < record.index);
                cell.entries.truncate(kept);
            }
            RecordKind::HardState => cell.hard_state = Some(logged),
            RecordKind::SnapshotMark => cell.snapshot_mark = Some(logged),
            RecordKind::Manifest => cell.manifest = Some(logged),
            RecordKind::Born => cell.born = Some(logged),
        }
    }

    /// The cells in order of their ids.
    pub fn into_cells(self) -> BTreeMap<CellId, CellSurvivors> {
        self.cells
    }
}

#[cfg(test)]
mod tests {
    use lockstep_wire::{LogIndex, Term};

    use super::*;

    #[test]
    fn truncated_entries_and_older_carried_records_do_not_survive() {
        let mut survivors = Survivors::default();
        let records = [
            (RecordKind::HardState, 1, 0),
            (RecordKind::Entry, 1, 5),
            (RecordKind::Entry, 1, 6),
            (RecordKind::Entry, 1, 7),
            (RecordKind::Truncate, 2, 6),
            (RecordKind::HardState, 2, 0),
            (RecordKind::Entry, 2, 6),
            (RecordKind::Manifest, 0, 0),
        ];
        for (lsn, (kind, term, index)) in (1..).zip(records) {
            let record = Record {
                cell: CellId(1),
                kind,
                term: Term(term),
                index: LogIndex(index),
                payload: b"payload",
            };
            survivors.on_record(Lsn(lsn), &record);
        }
        let cells = survivors.into_cells();
        let cell = &cells[&CellId(1)];
        let entries: Vec<_> =
            cell.entries.iter().map(|entry| (entry.lsn.0, entry.term.0, entry.index.0)).collect();
        assert_eq!(entries, [(2, 1, 5), (7, 2, 6)]);
        assert_eq!(cell.hard_state.as_ref().map(|record| record.term), Some(Term(2)));
        assert_eq!(cell.manifest.as_ref().map(|record| record.lsn), Some(Lsn(8)));
        assert_eq!((&cell.born, &cell.snapshot_mark), (&None, &None));
    }
}
