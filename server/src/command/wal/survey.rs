//! What a shard's log holds, cell by cell: a visitor for the log's walk.
//!
//! Invariant: entries that a truncation has removed are counted as records and as nothing else. Deliberately absent:
//! how any of it is printed.

use std::collections::BTreeMap;

use lockstep_wal::{Inspection, Lsn, Record, RecordKind};
use lockstep_wire::entry::Command;
use lockstep_wire::peer::Manifest;
use lockstep_wire::{CellId, LogIndex, NodeId, Term};
use serde_json::{Map, Value, json};

use super::entry;

/// What a shard's log holds.
#[derive(Debug)]
pub(super) struct ShardSurvey {
    pub(super) inspection: Inspection,
    pub(super) cells: BTreeMap<CellId, CellSurvey>,
}

/// What it holds of one cell.
#[derive(Debug, Default)]
pub(super) struct CellSurvey {
    /// The newest term, and the vote in it.
    pub(super) hard_state: Option<(Term, Option<NodeId>)>,
    /// The newest snapshot's mark.
    pub(super) mark: Option<(LogIndex, Term)>,
    pub(super) manifest: Option<ManifestSurvey>,
    pub(super) is_born: bool,
    /// Every record that is there, by kind.
    pub(super) records: BTreeMap<&'static str, u64>,
    first: LogIndex,
    /// Term and kind of each current entry.
    entries: Vec<(Term, u16)>,
    /// The first entry that cannot be read, and why.
    pub(super) unreadable: Option<(LogIndex, String)>,
    /// The current entries that were asked for.
    pub(super) listed: Vec<Listed>,
}

/// The manifest of a cell's birth.
#[derive(Debug)]
pub(super) struct ManifestSurvey {
    pub(super) birth: String,
    /// Ids and incarnations.
    pub(super) members: Vec<(NodeId, String)>,
}

/// An entry to be shown.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) index: LogIndex,
    pub(super) term: Term,
    pub(super) lsn: Lsn,
    pub(super) command: &'static str,
    pub(super) fields: Map<String, Value>,
}

/// Which entries are to be shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selection {
    /// Of this cell; of all cells if none is named.
    pub(super) cell: Option<CellId>,
    /// From this index on.
    pub(super) from: LogIndex,
}

impl CellSurvey {
    /// First and last current entry, and the last one's term.
    pub(super) fn range(&self) -> Option<(LogIndex, LogIndex, Term)> {
        let (term, _) = *self.entries.last()?;
        Some((self.first, LogIndex(self.first.0 + self.entries.len() as u64 - 1), term))
    }

    /// The current entries by the kind of their command.
    pub(super) fn commands(&self) -> BTreeMap<&'static str, u64> {
        let mut commands = BTreeMap::new();
        for (_, kind) in &self.entries {
            *commands.entry(entry::name(*kind)).or_default() += 1;
        }
        commands
    }

    fn truncate(&mut self, from: LogIndex) {
        let kept = usize::try_from(from.0.saturating_sub(self.first.0)).unwrap_or(usize::MAX);
        self.entries.truncate(kept);
        let listed = self.listed.partition_point(|listed| listed.index < from);
        self.listed.truncate(listed);
        self.unreadable.take_if(|(index, _)| *index >= from);
    }
}

/// Takes a record.
pub(super) fn on_record(
    cells: &mut BTreeMap<CellId, CellSurvey>,
    selection: Option<Selection>,
    lsn: Lsn,
    record: &Record<'_>,
) {
    let cell = cells.entry(record.cell).or_default();
    *cell.records.entry(kind_name(record.kind)).or_default() += 1;
    match record.kind {
        RecordKind::Entry => {
            let command = Command::decode(record.payload);
            let kind = command.as_ref().map_or(entry::UNREADABLE, Command::kind);
            if cell.entries.is_empty() {
                cell.first = record.index;
            }
            cell.entries.push((record.term, kind));
            if let Err(error) = &command
                && cell.unreadable.is_none()
            {
                cell.unreadable = Some((record.index, error.to_string()));
            }
            let is_selected = selection.is_some_and(|selection| {
                selection.cell.is_none_or(|cell| cell == record.cell) && record.index >= selection.from
            });
            if is_selected {
                let fields = match &command {
                    Ok(command) => entry::fields(command),
                    Err(error) => Map::from_iter([("error".to_owned(), json!(error.to_string()))]),
                };
                let (index, term, command) = (record.index, record.term, entry::name(kind));
                cell.listed.push(Listed { index, term, lsn, command, fields });
            }
        }
        RecordKind::Truncate => cell.truncate(record.index),
        RecordKind::HardState => {
            let vote = record.payload.try_into().map_or(0, u16::from_le_bytes);
            cell.hard_state = Some((record.term, (vote != 0).then_some(NodeId(vote))));
        }
        RecordKind::SnapshotMark => cell.mark = Some((record.index, record.term)),
        RecordKind::Manifest => {
            cell.manifest = Manifest::decode(record.payload).ok().map(|manifest| ManifestSurvey {
                birth: manifest.birth.to_string(),
                members: manifest
                    .members
                    .iter()
                    .map(|member| (member.node, member.incarnation.to_string()))
                    .collect(),
            });
        }
        RecordKind::Born => cell.is_born = true,
    }
}

fn kind_name(kind: RecordKind) -> &'static str {
    match kind {
        RecordKind::Entry => "entry",
        RecordKind::HardState => "hard-state",
        RecordKind::Truncate => "truncate",
        RecordKind::SnapshotMark => "snapshot-mark",
        RecordKind::Manifest => "manifest",
        RecordKind::Born => "born",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(records: &[(RecordKind, u64, u64, &[u8])], from: u64) -> CellSurvey {
        let mut cells = BTreeMap::new();
        let selection = Some(Selection { cell: None, from: LogIndex(from) });
        for (lsn, (kind, term, index, payload)) in (1..).zip(records) {
            let (term, index) = (Term(*term), LogIndex(*index));
            let record = Record { cell: CellId(4), kind: *kind, term, index, payload };
            on_record(&mut cells, selection, Lsn(lsn), &record);
        }
        cells.remove(&CellId(4)).expect("the cell has records")
    }

    #[test]
    fn what_was_truncated_is_counted_as_a_record_only() {
        let mut blank = Vec::new();
        Command::Blank.encode(&mut blank);
        let cell = survey(
            &[
                (RecordKind::HardState, 1, 0, &2_u16.to_le_bytes()),
                (RecordKind::Entry, 1, 1, &blank),
                (RecordKind::Entry, 1, 2, b"rubbish"),
                (RecordKind::Entry, 1, 3, &blank),
                (RecordKind::Truncate, 2, 2, b""),
                (RecordKind::HardState, 2, 0, &0_u16.to_le_bytes()),
                (RecordKind::Entry, 2, 2, &blank),
            ],
            2,
        );
        assert_eq!(cell.range(), Some((LogIndex(1), LogIndex(2), Term(2))));
        assert_eq!(cell.hard_state, Some((Term(2), None)));
        assert_eq!(cell.commands(), BTreeMap::from([("blank", 2)]));
        assert_eq!(cell.records, BTreeMap::from([("entry", 4), ("hard-state", 2), ("truncate", 1)]));
        assert_eq!(cell.unreadable, None, "it is gone");
        assert_eq!(
            cell.listed.iter().map(|listed| (listed.index.0, listed.lsn.0)).collect::<Vec<_>>(),
            [(2, 7)]
        );
    }

    #[test]
    fn the_first_entry_that_cannot_be_read_is_named() {
        let cell = survey(&[(RecordKind::Entry, 1, 9, b"rubbish"), (RecordKind::Entry, 1, 10, b"too")], 10);
        assert_eq!(cell.unreadable.as_ref().map(|(index, _)| *index), Some(LogIndex(9)));
        assert_eq!(cell.commands(), BTreeMap::from([("unreadable", 2)]));
        assert_eq!(cell.listed.len(), 1);
    }
}
