//! What docs/PROTOCOL.md says of codes, kinds and limits is what the code does.

use super::message::every_kind;
use crate::limit::*;
use crate::reply::DETAIL_BYTES_MAX;
use crate::request::kind::REPLY;
use crate::{Retry, Status, entry};

const DOCUMENT: &str = include_str!("../../../docs/PROTOCOL.md");

fn with_commas(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

#[test]
fn the_document_has_every_status_with_its_class() {
    for status in Status::ALL {
        let class = match status.retry() {
            Retry::Done => "done",
            Retry::Anywhere => "anywhere",
            Retry::SameRequestId => "same id",
            Retry::Never => "never",
        };
        let row = format!("\n| {} | {} | {class} | ", *status as u8, status.name());
        assert!(DOCUMENT.contains(&row), "{row}");
    }
}

#[test]
fn the_document_has_every_kind() {
    for kind in every_kind().into_iter().filter(|kind| kind & REPLY == 0) {
        assert!(DOCUMENT.contains(&format!("{kind:#06x}")), "{kind:#06x}");
    }
}

#[test]
fn the_document_has_every_kind_of_log_entry() {
    let (_, section) = DOCUMENT.split_once("\n## 11. Log entries\n").expect("the section is there");
    for kind in [
        entry::kind::BLANK,
        entry::kind::OPEN_SESSION,
        entry::kind::ACQUIRE,
        entry::kind::CANCEL,
        entry::kind::RELEASE,
        entry::kind::CANCEL_WAIT,
        entry::kind::END_SESSIONS,
        entry::kind::REAP,
        entry::kind::SESSIONS_SILENT,
        entry::kind::SESSIONS_RETURNED,
    ] {
        assert!(section.contains(&format!("\n| {kind:#06x} | ")), "{kind:#06x}");
    }
}

#[test]
fn the_document_has_every_limit() {
    for (name, limit) in [
        ("NAME_BYTES_MAX", NAME_BYTES_MAX),
        ("CLIENT_ID_BYTES_MAX", CLIENT_ID_BYTES_MAX),
        ("DATA_BYTES_MAX", DATA_BYTES_MAX),
        ("CREDENTIALS_BYTES_MAX", CREDENTIALS_BYTES_MAX),
        ("ADDRESS_BYTES_MAX", ADDRESS_BYTES_MAX),
        ("DETAIL_BYTES_MAX", DETAIL_BYTES_MAX),
        ("NAMES_PER_ACQUIRE_MAX", NAMES_PER_ACQUIRE_MAX),
        ("REQUEST_WINDOW_MAX", REQUEST_WINDOW_MAX),
        ("SESSIONS_PER_BATCH_MAX", SESSIONS_PER_BATCH_MAX),
        ("VIEW_ROWS_MAX", VIEW_ROWS_MAX),
        ("MEMBERS_MAX", MEMBERS_MAX),
        ("CELLS_MAX", CELLS_MAX),
        ("ROUTES_MAX", ROUTES_MAX),
        ("TTL_MS_MIN", TTL_MS_MIN as usize),
        ("TTL_MS_MAX", TTL_MS_MAX as usize),
        ("WAIT_MS_MAX", WAIT_MS_MAX as usize),
        ("LOCK_DELAY_MS_MAX", LOCK_DELAY_MS_MAX as usize),
        ("FIRST_FRAME_BYTES_MAX", FIRST_FRAME_BYTES_MAX),
        ("CLIENT_FRAME_BYTES_MAX", CLIENT_FRAME_BYTES_MAX),
        ("REPLY_FRAME_BYTES_MAX", REPLY_FRAME_BYTES_MAX),
        ("PEER_FRAME_BYTES_MAX", PEER_FRAME_BYTES_MAX),
        ("ENTRY_BYTES_MAX", ENTRY_BYTES_MAX),
        ("APPEND_BYTES_MAX", APPEND_BYTES_MAX),
    ] {
        let row = DOCUMENT.lines().find(|line| line.contains(&format!(" {name} ")));
        let number = format!("| {} ", with_commas(limit));
        assert!(row.is_some_and(|row| row.contains(&number)), "{name} is {number}: {row:?}");
    }
}
