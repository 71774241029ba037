//! The decision table of recovery: what the bytes around the end of a segment's valid batches mean.
//!
//! Invariant: pure and total. Only what can be explained by power lost during the last write is repaired;
//! everything else is refused. Deliberately absent: reading, repairing, wording.
//!
//! The log has one write in flight, so a batch that does not verify can be a torn write only if nothing valid was
//! written after it, in its segment or in a later one. A seal is written only when the next segment's header is
//! durable and its directory synced; the first batch of a segment only when the seal before it is durable.

use lockstep_wire::mutant::{self, Mutant};

/// How the walk over a segment's batches ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// At a seal.
    Sealed,
    /// At bytes that are no valid batch (blank, stale, torn or rotten), or at the segment's end.
    Open,
    /// At a batch that verifies alone but does not continue the chain.
    Foreign,
    /// Before the first batch, although segments before this one are gone: they were given up only once a batch
    /// in a later segment was durable.
    Blind,
}

/// The header of the segment after this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextHeader {
    /// There is no such file.
    Absent,
    /// There is the file, without a header of that number.
    Invalid,
    /// The header is good.
    Valid,
}

/// What stands around the end of the valid batches of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    pub(crate) end: End,
    /// A valid batch of this segment stands behind the end.
    pub(crate) later_here: bool,
    pub(crate) next_header: NextHeader,
    /// Some later segment holds a valid batch of its own.
    pub(crate) later_segments_written: bool,
}

/// What it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Go on with the next segment.
    Advance,
    /// The log ends here: cut what may be torn; later segments are spares.
    Tail,
    /// Valid batches follow damage: never truncate.
    RefuseRot,
    /// A batch stands here that this log did not write in this place.
    RefuseForeign,
    /// The seal promises a segment that has no header.
    RefuseHeaderless,
    /// The seal promises a segment that is not there.
    RefuseMissing,
}

pub(crate) fn decide(evidence: Evidence) -> Decision {
    match evidence {
        Evidence { end: End::Foreign, .. } => Decision::RefuseForeign,
        Evidence { end: End::Blind, .. } => Decision::RefuseRot,
        Evidence { end: End::Open, .. } if mutant::is(Mutant::TruncateAtRot) => Decision::Tail,
        // Behind a seal as behind damage: a valid batch there contradicts the order of writes.
        Evidence { later_here: true, .. } => Decision::RefuseRot,
        Evidence { end: End::Sealed, next_header: NextHeader::Valid, .. } => Decision::Advance,
        Evidence { end: End::Sealed, next_header: NextHeader::Invalid, .. } => Decision::RefuseHeaderless,
        Evidence { end: End::Sealed, next_header: NextHeader::Absent, .. } => Decision::RefuseMissing,
        Evidence { end: End::Open, later_segments_written: true, .. } => Decision::RefuseRot,
        Evidence { end: End::Open, later_segments_written: false, .. } => Decision::Tail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination, in the order end, later batch here, next header, later segment written.
    #[test]
    fn every_case_of_the_table_is_decided_as_written() {
        use Decision::*;
        use End::*;
        use NextHeader::*;
        #[rustfmt::skip]
        let table = [
            (Sealed,  false, Absent,  false, RefuseMissing),
            (Sealed,  false, Absent,  true,  RefuseMissing),
            (Sealed,  false, Invalid, false, RefuseHeaderless),
            (Sealed,  false, Invalid, true,  RefuseHeaderless),
            (Sealed,  false, Valid,   false, Advance),
            (Sealed,  false, Valid,   true,  Advance),
            (Sealed,  true,  Absent,  false, RefuseRot),
            (Sealed,  true,  Absent,  true,  RefuseRot),
            (Sealed,  true,  Invalid, false, RefuseRot),
            (Sealed,  true,  Invalid, true,  RefuseRot),
            (Sealed,  true,  Valid,   false, RefuseRot),
            (Sealed,  true,  Valid,   true,  RefuseRot),
            (Open,    false, Absent,  false, Tail),
            (Open,    false, Absent,  true,  RefuseRot),
            (Open,    false, Invalid, false, Tail),
            (Open,    false, Invalid, true,  RefuseRot),
            (Open,    false, Valid,   false, Tail),
            (Open,    false, Valid,   true,  RefuseRot),
            (Open,    true,  Absent,  false, RefuseRot),
            (Open,    true,  Absent,  true,  RefuseRot),
            (Open,    true,  Invalid, false, RefuseRot),
            (Open,    true,  Invalid, true,  RefuseRot),
            (Open,    true,  Valid,   false, RefuseRot),
            (Open,    true,  Valid,   true,  RefuseRot),
            (Foreign, false, Absent,  false, RefuseForeign),
            (Foreign, false, Absent,  true,  RefuseForeign),
            (Foreign, false, Invalid, false, RefuseForeign),
            (Foreign, false, Invalid, true,  RefuseForeign),
            (Foreign, false, Valid,   false, RefuseForeign),
            (Foreign, false, Valid,   true,  RefuseForeign),
            (Foreign, true,  Absent,  false, RefuseForeign),
            (Foreign, true,  Absent,  true,  RefuseForeign),
            (Foreign, true,  Invalid, false, RefuseForeign),
            (Foreign, true,  Invalid, true,  RefuseForeign),
            (Foreign, true,  Valid,   false, RefuseForeign),
            (Foreign, true,  Valid,   true,  RefuseForeign),
            (Blind,   false, Absent,  false, RefuseRot),
            (Blind,   false, Absent,  true,  RefuseRot),
            (Blind,   false, Invalid, false, RefuseRot),
            (Blind,   false, Invalid, true,  RefuseRot),
            (Blind,   false, Valid,   false, RefuseRot),
            (Blind,   false, Valid,   true,  RefuseRot),
            (Blind,   true,  Absent,  false, RefuseRot),
            (Blind,   true,  Absent,  true,  RefuseRot),
            (Blind,   true,  Invalid, false, RefuseRot),
            (Blind,   true,  Invalid, true,  RefuseRot),
            (Blind,   true,  Valid,   false, RefuseRot),
            (Blind,   true,  Valid,   true,  RefuseRot),
        ];
        let mut rows = table.iter();
        for end in [Sealed, Open, Foreign, Blind] {
            for later_here in [false, true] {
                for next_header in [Absent, Invalid, Valid] {
                    for later_segments_written in [false, true] {
                        let &row = rows.next().expect("the table has a row for every case");
                        assert_eq!(
                            (row.0, row.1, row.2, row.3),
                            (end, later_here, next_header, later_segments_written)
                        );
                        let evidence = Evidence { end, later_here, next_header, later_segments_written };
                        assert_eq!(decide(evidence), row.4, "{evidence:?}");
                    }
                }
            }
        }
        assert!(rows.next().is_none(), "the table has rows that no case reaches");
    }
}
