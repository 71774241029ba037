//! How a log is printed, for people and as JSON.
//!
//! Invariant: both forms say the same. Deliberately absent: reading.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lockstep_wal::{Refusal, SegmentState, Superblock};
use lockstep_wire::CellId;
use serde_json::{Value, json};

use super::super::counted;
use super::entry;
use super::survey::{CellSurvey, Listed, ShardSurvey};

/// The directory's identity.
pub(super) fn superblock(superblock: &Superblock) -> String {
    format!(
        "cluster {}  node {}  incarnation {}\n{}, segments of {} bytes\n",
        superblock.cluster,
        superblock.node,
        superblock.incarnation,
        counted(superblock.shards, "shard"),
        superblock.segment_bytes
    )
}

/// A shard's segments, and its cells.
pub(super) fn shard(number: u16, survey: &ShardSurvey) -> String {
    let inspection = &survey.inspection;
    let mut text = format!("shard {number}: last lsn {}\n", inspection.last_lsn);
    for segment in &inspection.segments {
        let (sequence, state) = (segment.sequence.0, state_name(segment.state));
        text += &match segment.state {
            SegmentState::Spare => format!("  segment {sequence}  {state}\n"),
            SegmentState::Retired | SegmentState::Sealed | SegmentState::Tail => format!(
                "  segment {sequence}  {state}  {} bytes, {}, {}\n",
                segment.end_offset,
                if segment.batches == 1 {
                    "1 batch".to_owned()
                } else {
                    format!("{} batches", segment.batches)
                },
                counted(segment.records, "record")
            ),
        };
    }
    if inspection.is_torn {
        text += "  behind the tail stands a batch that is not whole: torn, or being written right now; a start cuts it\n";
    }
    for (id, cell) in &survey.cells {
        text += &describe_cell(*id, cell);
    }
    text
}

/// The cells of a shard whose log is damaged, as they are before that.
pub(super) fn refused_shard(number: u16, cells: &BTreeMap<CellId, CellSurvey>) -> String {
    let cells: String = cells.iter().map(|(id, cell)| describe_cell(*id, cell)).collect();
    let what = if cells.is_empty() { "no record can be read" } else { "what can be read before the damage" };
    format!("shard {number}: {what}\n{cells}")
}

fn describe_cell(id: CellId, cell: &CellSurvey) -> String {
    let mut text = format!("  cell {id}: ");
    text += &match cell.hard_state {
        Some((term, Some(vote))) => format!("term {term}, voted for node {vote}"),
        Some((term, None)) => format!("term {term}, no vote"),
        None => "no term yet".to_owned(),
    };
    text += &match cell.range() {
        Some((first, last, term)) => format!("; entries {first} to {last} (term {term})\n"),
        None => "; no entries\n".to_owned(),
    };
    text += &format!("    records   {}\n", counts(&cell.records));
    if cell.range().is_some() {
        text += &format!("    commands  {}\n", counts(&cell.commands()));
    }
    if let Some((index, why)) = &cell.unreadable {
        text += &format!("    entry {index} cannot be read: {why}\n");
    }
    if let Some((index, term)) = cell.mark {
        text += &format!("    snapshot  through entry {index} (term {term})\n");
    }
    match &cell.manifest {
        Some(manifest) => {
            let state = if cell.is_born { "born" } else { "not known to be born" };
            let _ = writeln!(text, "    birth     {}, {state}", manifest.birth);
            for (node, incarnation) in &manifest.members {
                let _ = writeln!(text, "    member    node {node}  incarnation {incarnation}");
            }
        }
        None => text += "    no manifest: this member knows of no birth\n",
    }
    text
}

fn counts(counted: &BTreeMap<&'static str, u64>) -> String {
    let all: Vec<String> = counted.iter().map(|(name, count)| format!("{name} {count}")).collect();
    all.join(", ")
}

fn state_name(state: SegmentState) -> &'static str {
    match state {
        SegmentState::Retired => "retired",
        SegmentState::Sealed => "sealed",
        SegmentState::Tail => "tail",
        SegmentState::Spare => "spare",
    }
}

/// One entry on one line.
pub(super) fn entry(cell: CellId, listed: &Listed) -> String {
    let Listed { index, term, lsn: _, command, fields } = listed;
    format!("cell {cell}  {index}  term {term}  {command}{}", entry::line(fields))
}

/// One entry as an object.
pub(super) fn entry_json(cell: CellId, listed: &Listed) -> Value {
    json!({
        "cell": cell.0,
        "index": listed.index.to_string(),
        "term": listed.term.to_string(),
        "lsn": listed.lsn.to_string(),
        "command": listed.command,
        "fields": listed.fields,
    })
}

/// The directory's identity as an object.
pub(super) fn superblock_json(superblock: &Superblock) -> Value {
    json!({
        "cluster": superblock.cluster.to_string(),
        "node": superblock.node.0,
        "incarnation": superblock.incarnation.to_string(),
        "shards": superblock.shards,
        "segment_bytes": superblock.segment_bytes.to_string(),
    })
}

/// A shard as an object.
pub(super) fn shard_json(number: u16, survey: &ShardSurvey) -> Value {
    let inspection = &survey.inspection;
    let segments: Vec<Value> = inspection
        .segments
        .iter()
        .map(|segment| {
            json!({
                "sequence": segment.sequence.to_string(),
                "state": state_name(segment.state),
                "used_bytes": segment.end_offset.to_string(),
                "batches": segment.batches.to_string(),
                "records": segment.records.to_string(),
            })
        })
        .collect();
    json!({
        "shard": number,
        "last_lsn": inspection.last_lsn.to_string(),
        "torn": inspection.is_torn,
        "segments": segments,
        "cells": cells_json(&survey.cells),
    })
}

/// A shard whose log is damaged as an object: the refusal, and the cells as they are before that.
pub(super) fn refused_shard_json(
    number: u16,
    refusal: &Refusal,
    cells: &BTreeMap<CellId, CellSurvey>,
) -> Value {
    let mut json = refusal_json(refusal);
    (json["shard"], json["cells"]) = (json!(number), cells_json(cells));
    json
}

fn cells_json(cells: &BTreeMap<CellId, CellSurvey>) -> Value {
    cells.iter().map(|(id, cell)| cell_json(*id, cell)).collect()
}

fn cell_json(id: CellId, cell: &CellSurvey) -> Value {
    let range = cell.range();
    json!({
        "cell": id.0,
        "term": cell.hard_state.map(|(term, _)| term.to_string()),
        "vote": cell.hard_state.and_then(|(_, vote)| vote).map(|node| node.0),
        "first_index": range.map(|(first, ..)| first.to_string()),
        "last_index": range.map(|(_, last, _)| last.to_string()),
        "last_term": range.map(|(.., term)| term.to_string()),
        "records": cell.records,
        "commands": cell.commands(),
        "unreadable": cell.unreadable.as_ref().map(|(index, why)| json!({ "index": index.to_string(), "error": why })),
        "snapshot_mark": cell.mark.map(|(index, term)| json!({ "index": index.to_string(), "term": term.to_string() })),
        "born": cell.is_born,
        "birth": cell.manifest.as_ref().map(|manifest| manifest.birth.clone()),
        "members": cell.manifest.as_ref().map(|manifest| {
            let members = manifest.members.iter();
            members.map(|(node, incarnation)| json!({ "node": node.0, "incarnation": incarnation })).collect::<Vec<_>>()
        }),
    })
}

/// A refusal as an object: the sentence, and the place where it names one.
pub(super) fn refusal_json(refusal: &Refusal) -> Value {
    let mut json = json!({ "refusal": refusal.to_string() });
    match refusal {
        Refusal::Rot(damage) | Refusal::Foreign(damage) | Refusal::Contradiction(damage) => {
            json["file"] = json!(damage.file.to_string());
            json["offset"] = json!(damage.offset.to_string());
            for (side, place) in [("after", damage.after), ("before", damage.before)] {
                json[side] = place.map_or(Value::Null, |place| {
                    json!({
                        "cell": place.cell.0,
                        "index": place.index.to_string(),
                        "lsn": place.lsn.to_string(),
                    })
                });
            }
        }
        Refusal::SegmentMissing { file }
        | Refusal::SegmentHeaderless { file }
        | Refusal::SegmentLength { file, .. }
        | Refusal::AlreadyFormatted { file }
        | Refusal::OtherVersion { file, .. }
        | Refusal::Disk { file: Some(file), .. } => json["file"] = json!(file.to_string()),
        Refusal::NotFormatted
        | Refusal::SuperblockDamaged
        | Refusal::SuperblocksDiffer
        | Refusal::BadGeometry { .. }
        | Refusal::NoSegments { .. }
        | Refusal::Disk { file: None, .. } => {}
    }
    json
}
