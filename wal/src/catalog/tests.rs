//! Which records may follow each other, and with which beginning a recovered log is taken.

use lockstep_wire::Term;

use super::*;
use lockstep_wire::SnapshotId;

const CELL: CellId = CellId(4);

use RecordKind::{Entry, SnapshotMark, Truncate};

/// Records that recovery refuses: at which of them, or at the end.
type Bad<'a> = (&'a [(RecordKind, u64)], Option<usize>);

/// Reads records, a log's first or what is left of it, as recovery does; where it stumbles, if it does.
fn read(is_whole: bool, records: &[(RecordKind, u64)]) -> Result<Catalog, Option<usize>> {
    let mut catalog = Catalog::new(is_whole);
    catalog.open_segment(SegmentSequence(9), 0, Lsn(1));
    let position = Position { segment: SegmentSequence(9), offset: 4096 };
    for (at, (kind, index)) in records.iter().enumerate() {
        admit(&mut catalog, Lsn(at as u64 + 1), *kind, *index, position).map_err(|OutOfOrder| Some(at))?;
    }
    catalog.finish_recovery(Lsn(records.len() as u64)).map_err(|_| None)?;
    Ok(catalog)
}

fn admit(
    catalog: &mut Catalog,
    lsn: Lsn,
    kind: RecordKind,
    index: u64,
    position: Position,
) -> Result<(), OutOfOrder> {
    let id = SnapshotId { index: LogIndex(index), term: Term(1) };
    let mark = Mark::after(catalog.newest_mark(CELL), id).payload();
    let payload = if kind == SnapshotMark { mark.as_slice() } else { &[] };
    let record = Record { cell: CELL, kind, term: Term(1), index: LogIndex(index), payload };
    catalog.admit(lsn, &record)?;
    catalog.place(position, lsn, &record);
    Ok(())
}

#[test]
fn what_is_left_of_a_log_begins_anywhere_that_its_newest_mark_covers() {
    let good: [&[(RecordKind, u64)]; 9] = [
        &[(Entry, 5), (Entry, 6), (SnapshotMark, 6)],
        &[(Entry, 5), (Entry, 6), (SnapshotMark, 5)],
        // The mark stands before what it does not cover, as when it was carried forward.
        &[(SnapshotMark, 4), (Entry, 5), (Entry, 6)],
        // An older mark is seen although the entries behind it are gone.
        &[(SnapshotMark, 2), (Entry, 8), (Entry, 9), (SnapshotMark, 9)],
        &[(Entry, 8), (SnapshotMark, 2), (Entry, 9), (SnapshotMark, 8)],
        // Installed, over entries and over none.
        &[(Entry, 5), (Truncate, 1), (SnapshotMark, 90), (Entry, 91)],
        &[(Truncate, 1), (SnapshotMark, 90), (Entry, 91)],
        // Truncated behind an older mark, where what it does not cover is gone.
        &[(Entry, 16), (Truncate, 16), (SnapshotMark, 14), (Entry, 16), (SnapshotMark, 16)],
        &[(SnapshotMark, 90)],
    ];
    for records in good {
        assert!(read(false, records).is_ok(), "{records:?}");
    }
    let bad: [Bad<'_>; 9] = [
        (&[(Entry, 5), (Entry, 7)], Some(1)),
        (&[(Entry, 5), (Truncate, 5), (Entry, 6)], Some(2)),
        (&[(Entry, 5), (SnapshotMark, 5), (Entry, 5)], Some(2)),
        (&[(Entry, 5), (SnapshotMark, 6)], Some(1)),
        (&[(Entry, 5), (Entry, 6), (SnapshotMark, 6), (Truncate, 6)], Some(3)),
        (&[(Entry, 5), (Entry, 6), (SnapshotMark, 6), (SnapshotMark, 5)], Some(3)),
        // Entries that begin above what is covered, with a mark and without one.
        (&[(SnapshotMark, 3), (Entry, 5)], None),
        (&[(Entry, 5)], None),
        (&[(Entry, 1 << 48)], Some(0)),
    ];
    for (records, stumbles) in bad {
        assert_eq!(read(false, records).err(), Some(stumbles), "{records:?}");
    }
}

#[test]
fn a_whole_log_begins_at_the_first_entry_or_behind_an_installed_snapshot() {
    let good: [&[(RecordKind, u64)]; 4] = [
        &[(Entry, 1), (Entry, 2)],
        &[(Truncate, 1), (SnapshotMark, 90), (Entry, 91)],
        &[(Entry, 1), (Truncate, 0), (SnapshotMark, 90), (Entry, 91)],
        &[(Entry, 1), (Truncate, 1), (Entry, 1)],
    ];
    for records in good {
        assert!(read(true, records).is_ok(), "{records:?}");
    }
    let bad: [(&[(RecordKind, u64)], usize); 4] = [
        (&[(Entry, 2)], 0),
        (&[(SnapshotMark, 90)], 0),
        (&[(Entry, 1), (Truncate, 1), (SnapshotMark, 90), (Entry, 92)], 3),
        (&[(Entry, 1), (Entry, 2), (Truncate, 2), (Entry, 3)], 3),
    ];
    for (records, stumbles) in bad {
        assert_eq!(read(true, records).err(), Some(Some(stumbles)), "{records:?}");
    }
}

#[test]
fn a_log_goes_on_behind_what_its_newest_mark_covers() {
    let position = Position { segment: SegmentSequence(9), offset: 8192 };
    for (records, next) in [
        (&[(SnapshotMark, 90)][..], 91),
        (&[(Entry, 5), (SnapshotMark, 5), (Entry, 6)], 7),
        // The truncation was written, its mark was not.
        (&[(SnapshotMark, 4), (Entry, 5), (Truncate, 1)], 5),
    ] {
        for index in [next - 1, next + 1, next] {
            let mut catalog = read(false, records).expect("good");
            let admitted = admit(&mut catalog, Lsn(50), Entry, index, position);
            assert_eq!(admitted.is_ok(), index == next, "{records:?}: {index}");
        }
    }
}

#[test]
fn a_mark_that_is_not_well_formed_is_out_of_order() {
    let mut catalog = Catalog::new(false);
    catalog.open_segment(SegmentSequence(9), 0, Lsn(1));
    let mut later = [0; 16];
    later[0] = 7;
    for payload in [&b""[..], b"mark", &later, &[0; 17]] {
        let record = Record { cell: CELL, kind: SnapshotMark, term: Term(1), index: LogIndex(7), payload };
        assert_eq!(catalog.admit(Lsn(1), &record), Err(OutOfOrder), "{payload:?}");
    }
}
