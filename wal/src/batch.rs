//! One batch: records under one header and one checksum, written in one piece.
//!
//! Invariant: a batch verifies alone. Its checksum covers every byte of its extent, and among these are the
//! segment it belongs to, its own number, the checksum of the batch before it and the salt of the start that wrote
//! it, so that stale bytes of a recycled segment or of an earlier life never pass for it. A seal is a batch without
//! records that names the next segment. Deliberately absent: where batches lie, and what to do when one fails.

use lockstep_wire::RecordKind;

use crate::bytes::{array, checksum_around, get_u32, get_u64, length_u32, put};
use crate::disk::SegmentSequence;
use crate::layout::{BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BATCH_MAGIC, BLOCK_BYTES, RECORD_HEADER_BYTES};
use crate::record::{KIND_AT, Lsn, Record};

/// Where the checksum stands.
const CHECKSUM_AT: usize = 8;

/// The header's fields, but for what the encoder knows by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) segment: SegmentSequence,
    pub(crate) sequence: u64,
    pub(crate) first_lsn: Lsn,
    pub(crate) salt: u64,
    pub(crate) previous_checksum: u32,
    pub(crate) record_count: u32,
    pub(crate) record_bytes: u32,
    /// The oldest segment that this log still needed when the batch was written; older ones may be gone.
    pub(crate) oldest_needed: SegmentSequence,
    /// A seal: nothing follows in this segment, the log goes on in the named one.
    pub(crate) seals: Option<SegmentSequence>,
}

impl BatchHeader {
    /// Writes header and padding around the records, which stand at `BATCH_HEADER_BYTES` already; returns the checksum.
    pub(crate) fn encode(&self, extent: &mut [u8]) -> u32 {
        let used = BATCH_HEADER_BYTES + self.record_bytes as usize;
        assert!(
            extent.len() <= BATCH_BYTES_MAX
                && extent.len().is_multiple_of(BLOCK_BYTES)
                && used <= extent.len()
        );
        extent[used..].fill(0);
        extent[..BATCH_HEADER_BYTES].fill(0);
        put(extent, 0, &BATCH_MAGIC.to_le_bytes());
        let extent_bytes = length_u32(extent.len());
        put(extent, 12, &extent_bytes.to_le_bytes());
        put(extent, 16, &self.segment.0.to_le_bytes());
        put(extent, 24, &self.sequence.to_le_bytes());
        put(extent, 32, &self.first_lsn.0.to_le_bytes());
        put(extent, 40, &self.salt.to_le_bytes());
        put(extent, 48, &self.previous_checksum.to_le_bytes());
        put(extent, 52, &self.record_count.to_le_bytes());
        put(extent, 56, &self.oldest_needed.0.to_le_bytes());
        put(extent, 64, &self.seals.map_or(0, |next| next.0).to_le_bytes());
        put(extent, 72, &self.record_bytes.to_le_bytes());
        let checksum = checksum_around(extent, CHECKSUM_AT);
        put(extent, CHECKSUM_AT, &checksum.to_le_bytes());
        checksum
    }
}

/// A batch that verified alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) header: BatchHeader,
    pub(crate) checksum: u32,
    /// The whole length on disk.
    pub(crate) extent_bytes: usize,
    records: &'a [u8],
}

impl<'a> Batch<'a> {
    /// The batch of `segment` that `bytes` begin with, if one does and verifies. `bytes` may go on behind it.
    pub(crate) fn verify(bytes: &'a [u8], segment: SegmentSequence) -> Option<Batch<'a>> {
        let extent_bytes = claimed_extent_bytes(bytes, segment)?;
        let extent = bytes.get(..extent_bytes)?;
        let checksum = u32::from_le_bytes(array(extent, CHECKSUM_AT));
        if checksum_around(extent, CHECKSUM_AT) != checksum {
            return None;
        }
        let seals = get_u64(extent, 64);
        let header = BatchHeader {
            segment,
            sequence: get_u64(extent, 24),
            first_lsn: Lsn(get_u64(extent, 32)),
            salt: get_u64(extent, 40),
            previous_checksum: get_u32(extent, 48),
            record_count: get_u32(extent, 52),
            record_bytes: get_u32(extent, 72),
            oldest_needed: SegmentSequence(get_u64(extent, 56)),
            seals: (seals != 0).then_some(SegmentSequence(seals)),
        };
        let records = extent.get(BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + header.record_bytes as usize)?;
        Some(Batch { header, checksum, extent_bytes, records })
    }

    /// The records in order with their lsns. Ends early at a malformed record; see [`Batch::is_well_formed`].
    pub(crate) fn records(&self) -> impl Iterator<Item = (Lsn, Record<'a>)> + use<'a> {
        let mut rest = self.records;
        let mut lsn = self.header.first_lsn.0;
        std::iter::from_fn(move || {
            let (record, behind) = Record::decode(rest)?;
            rest = behind;
            let at = Lsn(lsn);
            // The scan refuses a batch whose lsns overflow; showing its records must not panic before.
            lsn = lsn.saturating_add(1);
            Some((at, record))
        })
    }

    /// Whether the records fill their space exactly and are as many as the header says. A batch whose checksum
    /// holds but which is not well formed was written by a defect or by another version.
    pub(crate) fn is_well_formed(&self) -> bool {
        let (count, bytes) = self
            .records()
            .fold((0, 0), |(count, bytes), (_, record)| (count + 1, bytes + record.encoded_bytes()));
        count == self.header.record_count
            && bytes == self.header.record_bytes as usize
            && (self.header.seals.is_none() || count == 0)
    }
}

/// What the bytes claim to be the length of a batch of `segment`, checked only for plausibility.
pub(crate) fn claimed_extent_bytes(bytes: &[u8], segment: SegmentSequence) -> Option<usize> {
    if bytes.len() < BLOCK_BYTES || get_u64(bytes, 0) != BATCH_MAGIC || get_u64(bytes, 16) != segment.0 {
        return None;
    }
    let extent_bytes = get_u32(bytes, 12) as usize;
    let plausible =
        (BLOCK_BYTES..=BATCH_BYTES_MAX).contains(&extent_bytes) && extent_bytes.is_multiple_of(BLOCK_BYTES);
    plausible.then_some(extent_bytes)
}

/// The longest prefix of staged records that fits one batch: (records, bytes). A truncation and the record after it are
/// never parted: power lost between the two would leave a log that was emptied with nothing in its place.
pub(crate) fn prefix_that_fits(staged: &[u8]) -> (u32, usize) {
    let mut count = 0;
    let mut used = 0;
    // Before the truncations that end what is taken so far.
    let mut before_truncations = (0, 0);
    while let Some(header) = staged.get(used..used + RECORD_HEADER_BYTES) {
        let record_bytes = RECORD_HEADER_BYTES + get_u32(header, 0) as usize;
        if BATCH_HEADER_BYTES + used + record_bytes > BATCH_BYTES_MAX {
            // A batch of truncations alone, which nobody writes, still goes.
            return if before_truncations.0 > 0 { before_truncations } else { (count, used) };
        }
        count += 1;
        used += record_bytes;
        if header[KIND_AT] != RecordKind::Truncate.code() {
            before_truncations = (count, used);
        }
    }
    (count, used)
}

#[cfg(test)]
mod tests;
