//! The lines of a script: what is written and said, short enough to read.
//!
//! Deliberately absent: anything that decides.

use lockstep_wire::peer::{AppendOutcome, Beat, BeatKind, PeerMessage};

use crate::{RecordHead, RecordKind};

pub(super) fn describe_record(head: &RecordHead, payload: &[u8]) -> String {
    match head.kind {
        RecordKind::Entry => {
            format!("entry {}@{} {}", head.index, head.term, String::from_utf8_lossy(payload))
        }
        RecordKind::HardState => {
            format!("term {} vote {}", head.term, u16::from_le_bytes(payload.try_into().unwrap()))
        }
        RecordKind::Truncate => format!("truncate from {}", head.index),
        RecordKind::SnapshotMark => "snapshot mark".to_string(),
        RecordKind::Manifest => "manifest".to_string(),
        RecordKind::Born => "born".to_string(),
    }
}

pub(super) fn describe_beat(beat: &Beat) -> String {
    let Beat { term, round, committed, .. } = beat;
    match beat.kind {
        BeatKind::Ask => format!("beat term {term} round {round} committed {committed}"),
        BeatKind::Answer => format!("answer term {term} round {round}"),
        BeatKind::Deposed => format!("deposed by term {term}"),
    }
}

pub(super) fn describe(message: &PeerMessage<'_>) -> String {
    match message {
        PeerMessage::CellHello(hello) => match (hello.birth, hello.is_born) {
            (None, _) => "hello".to_string(),
            (Some(_), false) => "hello with manifest".to_string(),
            (Some(_), true) => "hello born".to_string(),
        },
        PeerMessage::Refused { reason } => format!("refused {reason:?}"),
        PeerMessage::Manifest(manifest) => format!("manifest of {}", manifest.members.len()),
        PeerMessage::ManifestStored { .. } => "manifest stored".to_string(),
        PeerMessage::Born { .. } => "born".to_string(),
        PeerMessage::Vote { ballot, term, last_index, last_term } => {
            format!("vote? {ballot:?} term {term} log {last_index}@{last_term}")
        }
        PeerMessage::VoteReply { ballot, term, is_granted } => {
            format!("vote {} {ballot:?} term {term}", if *is_granted { "yes" } else { "no" })
        }
        PeerMessage::TakeOver { term, .. } => format!("take over from term {term}"),
        PeerMessage::Append(append) => {
            let first = append.prev_index.next();
            let count = append.entries.len() as u64;
            let prev = format!("{}@{}", append.prev_index, append.prev_term);
            let what = match count {
                0 => "nothing".to_string(),
                _ => format!("{first}..{}", append.prev_index.0 + count),
            };
            format!("append term {} after {prev}: {what}, committed {}", append.term, append.committed)
        }
        PeerMessage::AppendReply { term, outcome } => match outcome {
            AppendOutcome::Durable { through } => format!("durable through {through} term {term}"),
            AppendOutcome::Conflict { prev_index, hint, hint_term } => {
                format!("conflict at {prev_index}, try {hint}@{hint_term} term {term}")
            }
        },
        PeerMessage::SnapshotPiece(_)
        | PeerMessage::SnapshotReply(_)
        | PeerMessage::Digest { .. }
        | PeerMessage::DigestDisagrees { .. } => panic!("not from Raft alone"),
    }
}
