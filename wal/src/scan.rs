//! The walk over a shard's segments that recovery and inspection share.
//!
//! Invariant: reads only, and hands every surviving record to the visitor in order, exactly once. Deliberately
//! absent: the judgement about damage (`decision`) and repair (`recovery`).

use crate::batch::{Batch, claimed_extent_bytes};
use crate::catalog::{Catalog, Position, Stray};
use crate::decision::{Decision, End, Evidence, NextHeader, decide};
use crate::disk::{FileName, SegmentSequence, ShardId, StorageRead};
use crate::layout::{BATCH_BYTES_MAX, BLOCK_BYTES};
use crate::log::Tail;
use crate::record::{Lsn, Record};
use crate::recovery::{SegmentInspection, SegmentState};
use crate::refusal::{Damage, RecordPlace, Refusal};
use crate::superblock::{SegmentHeader, Superblock};

/// Takes the surviving records in order. What it has seen counts only if the scan ends well.
pub type Visitor<'a> = dyn FnMut(Lsn, Record<'_>) + 'a;

/// How much is read at once; several batches of the largest size.
const WINDOW_BYTES: usize = 4 * BATCH_BYTES_MAX;

/// A segment behind the tail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spare {
    pub(crate) sequence: SegmentSequence,
    pub(crate) bytes: u64,
    pub(crate) has_header: bool,
}

/// What the walk found.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) catalog: Catalog,
    pub(crate) tail: Tail,
    pub(crate) last_lsn: Lsn,
    pub(crate) announced_oldest: SegmentSequence,
    pub(crate) spares: Vec<Spare>,
    pub(crate) segments: Vec<SegmentInspection>,
    pub(crate) has_staging: bool,
    /// Bytes at the tail claim to be a batch of this segment but do not verify.
    pub(crate) is_torn: bool,
}

/// Walks all segments of the shard.
pub(crate) fn scan(
    storage: &mut dyn StorageRead,
    superblock: &Superblock,
    shard: ShardId,
    visitor: &mut Visitor<'_>,
) -> Result<Scan, Refusal> {
    let mut segments = Vec::new();
    let mut has_staging = false;
    for (file, bytes) in storage.list().map_err(Refusal::disk(None))? {
        match file {
            FileName::Segment { shard: of, sequence } if of == shard => segments.push((sequence, bytes)),
            FileName::Staging { shard: of } => has_staging |= of == shard,
            FileName::Segment { .. }
            | FileName::Snapshot { .. }
            | FileName::SnapshotStaging { .. }
            | FileName::Superblock
            | FileName::SuperblockStaging
            | FileName::Lock
            | FileName::FormatMark => {}
        }
    }
    segments.sort_unstable();
    let &[(first, _), ..] = segments.as_slice() else {
        return Err(Refusal::NoSegments { shard });
    };
    let mut walk = Walk {
        storage,
        superblock,
        shard,
        catalog: Catalog::new(first == SegmentSequence(1)),
        chain: (first == SegmentSequence(1)).then_some(Chain { batch_sequence: 1, checksum: 0, lsn: Lsn(1) }),
        announced_oldest: first,
        last: None,
        segments: Vec::with_capacity(segments.len()),
    };
    if !walk.has_header(first, segments[0].1)? {
        return Err(Refusal::SegmentHeaderless { file: walk.file(first) });
    }
    for (at, &(sequence, bytes)) in segments.iter().enumerate() {
        if bytes != superblock.segment_bytes {
            return Err(Refusal::SegmentLength { file: walk.file(sequence), bytes });
        }
        if let Some(tail) = walk.segment(sequence, &segments[at + 1..], visitor)? {
            let is_torn = walk.is_torn_at(tail.position)?;
            let spares = walk.spares(&segments[at + 1..])?;
            return walk.finish(first, tail, spares, has_staging, is_torn);
        }
    }
    // The last segment cannot be sealed with its successor's header in place: that would be the last one.
    unreachable!("a segment is left only for one that is in the list")
}

/// What the next batch must say.
#[derive(Clone, Copy, Debug)]
struct Chain {
    batch_sequence: u64,
    checksum: u32,
    lsn: Lsn,
}

struct Walk<'a> {
    storage: &'a mut dyn StorageRead,
    superblock: &'a Superblock,
    shard: ShardId,
    catalog: Catalog,
    /// `None` before the first batch of a log whose first segments are gone.
    chain: Option<Chain>,
    announced_oldest: SegmentSequence,
    last: Option<RecordPlace>,
    /// Those walked so far; what each is for is known at the end.
    segments: Vec<SegmentInspection>,
}

impl Walk<'_> {
    fn file(&self, sequence: SegmentSequence) -> FileName {
        FileName::Segment { shard: self.shard, sequence }
    }

    /// Walks one segment; `None` if the log goes on in the next one.
    fn segment(
        &mut self,
        sequence: SegmentSequence,
        later: &[(SegmentSequence, u64)],
        visitor: &mut Visitor<'_>,
    ) -> Result<Option<Tail>, Refusal> {
        let mut window = Window::new(self.file(sequence), self.superblock.segment_bytes);
        let mut offset = BLOCK_BYTES as u64;
        let first_lsn = self.chain.map_or(Lsn(0), |chain| chain.lsn);
        self.catalog.open_segment(sequence, offset, first_lsn);
        let mut walked = SegmentInspection {
            sequence,
            state: SegmentState::Tail,
            end_offset: offset,
            batches: 0,
            records: 0,
        };
        let end = loop {
            let Some(batch) = Batch::verify(window.at(self.storage, offset)?, sequence) else {
                break if self.chain.is_none() { End::Blind } else { End::Open };
            };
            let continues = self.chain.is_none_or(|chain| {
                batch.header.sequence == chain.batch_sequence
                    && batch.header.previous_checksum == chain.checksum
                    && batch.header.first_lsn == chain.lsn
            });
            if !continues {
                break End::Foreign;
            }
            self.batch(Position { segment: sequence, offset }, &batch, visitor)?;
            offset += batch.extent_bytes as u64;
            self.catalog.advance(offset);
            walked.end_offset = offset;
            walked.batches += 1;
            walked.records += u64::from(batch.header.record_count);
            match batch.header.seals {
                Some(next) if next == sequence.next() => break End::Sealed,
                Some(_) => return Err(Refusal::Contradiction(self.damage(sequence, offset, None))),
                None => {}
            }
        };
        self.segments.push(walked);
        self.judge(end, Position { segment: sequence, offset }, window, later)
    }

    fn batch(
        &mut self,
        position: Position,
        batch: &Batch<'_>,
        visitor: &mut Visitor<'_>,
    ) -> Result<(), Refusal> {
        let next_lsn = batch.header.first_lsn.0.checked_add(u64::from(batch.header.record_count));
        let next_sequence = batch.header.sequence.checked_add(1);
        let (Some(next_lsn), Some(next_sequence), true) = (next_lsn, next_sequence, batch.is_well_formed())
        else {
            return Err(Refusal::Contradiction(self.damage(position.segment, position.offset, None)));
        };
        for (lsn, record) in batch.records() {
            if self.catalog.admit(lsn, &record).is_err() {
                let here = RecordPlace::of(lsn, &record);
                return Err(Refusal::Contradiction(self.damage(
                    position.segment,
                    position.offset,
                    Some(here),
                )));
            }
            self.catalog.place(position, lsn, &record);
            self.last = Some(RecordPlace::of(lsn, &record));
            visitor(lsn, record);
        }
        self.announced_oldest = batch.header.oldest_needed;
        self.chain =
            Some(Chain { batch_sequence: next_sequence, checksum: batch.checksum, lsn: Lsn(next_lsn) });
        Ok(())
    }

    /// Collects the evidence around the end of a segment's batches and acts on the decision.
    fn judge(
        &mut self,
        end: End,
        position: Position,
        mut window: Window,
        later: &[(SegmentSequence, u64)],
    ) -> Result<Option<Tail>, Refusal> {
        let Position { segment, offset } = position;
        // At an open end the damaged block itself is known not to verify.
        let behind = if end == End::Sealed { offset } else { offset + BLOCK_BYTES as u64 };
        let mut witness = window.find_batch(self.storage, segment, behind)?;
        let later_here = witness.is_some();
        let next = later.first().filter(|(sequence, _)| *sequence == segment.next());
        let next_header = match next {
            None => NextHeader::Absent,
            Some(&(sequence, bytes)) if self.has_header(sequence, bytes)? => NextHeader::Valid,
            Some(_) => NextHeader::Invalid,
        };
        let mut later_segments_written = false;
        if end != End::Sealed {
            for &(sequence, bytes) in later {
                let found = Window::new(self.file(sequence), bytes).find_batch(
                    self.storage,
                    sequence,
                    BLOCK_BYTES as u64,
                )?;
                later_segments_written |= found.is_some();
                witness = witness.or(found);
            }
        }
        let is_bare = end == End::Blind
            && witness.is_none()
            && claimed_extent_bytes(window.at(self.storage, offset)?, segment).is_none();
        let before = witness.flatten();
        match decide(Evidence { end, later_here, next_header, later_segments_written }) {
            Decision::Advance => Ok(None),
            Decision::Tail => {
                let chain = self.chain.expect("a blind end is refused");
                Ok(Some(Tail {
                    position,
                    batch_sequence: chain.batch_sequence,
                    previous_checksum: chain.checksum,
                }))
            }
            // Nothing but spares is left: what was written was before them.
            Decision::RefuseRot if is_bare => {
                Err(Refusal::segment_missing(self.shard, SegmentSequence(segment.0 - 1)))
            }
            Decision::RefuseRot => Err(Refusal::Rot(self.damage(segment, offset, before))),
            Decision::RefuseForeign => Err(Refusal::Foreign(self.damage(segment, offset, before))),
            Decision::RefuseHeaderless => Err(Refusal::SegmentHeaderless { file: self.file(segment.next()) }),
            Decision::RefuseMissing => Err(Refusal::segment_missing(self.shard, segment.next())),
        }
    }

    fn damage(&self, segment: SegmentSequence, offset: u64, before: Option<RecordPlace>) -> Damage {
        Damage { file: self.file(segment), offset, after: self.last, before }
    }

    fn has_header(&mut self, sequence: SegmentSequence, bytes: u64) -> Result<bool, Refusal> {
        let file = self.file(sequence);
        let mut block = [0; BLOCK_BYTES];
        if bytes < BLOCK_BYTES as u64 {
            return Ok(false);
        }
        self.storage.read(file, 0, &mut block).map_err(Refusal::disk(Some(file)))?;
        Ok(SegmentHeader::of(self.superblock, self.shard, sequence).matches(&block))
    }

    fn is_torn_at(&mut self, position: Position) -> Result<bool, Refusal> {
        let mut window = Window::new(self.file(position.segment), self.superblock.segment_bytes);
        let bytes = window.at(self.storage, position.offset)?;
        Ok(claimed_extent_bytes(bytes, position.segment).is_some())
    }

    fn spares(&mut self, later: &[(SegmentSequence, u64)]) -> Result<Vec<Spare>, Refusal> {
        let mut spares = Vec::with_capacity(later.len());
        for &(sequence, bytes) in later {
            spares.push(Spare { sequence, bytes, has_header: self.has_header(sequence, bytes)? });
        }
        Ok(spares)
    }

    fn finish(
        mut self,
        first: SegmentSequence,
        tail: Tail,
        spares: Vec<Spare>,
        has_staging: bool,
        is_torn: bool,
    ) -> Result<Scan, Refusal> {
        // A segment goes only after a durable batch has said that it may.
        if first > self.announced_oldest {
            return Err(Refusal::segment_missing(self.shard, self.announced_oldest));
        }
        let chain = self.chain.expect("a log that ends has a chain");
        let last_lsn = Lsn(chain.lsn.0.saturating_sub(1));
        if let Err(Stray { cell, index, lsn, position }) = self.catalog.finish_recovery(last_lsn) {
            return Err(Refusal::Contradiction(Damage {
                file: self.file(position.segment),
                offset: position.offset,
                after: None,
                before: Some(RecordPlace { lsn, cell, index }),
            }));
        }
        let mut segments = self.segments;
        for walked in &mut segments {
            walked.state = match walked.sequence {
                sequence if sequence == tail.position.segment => SegmentState::Tail,
                sequence if sequence < self.announced_oldest => SegmentState::Retired,
                _ => SegmentState::Sealed,
            };
        }
        segments.extend(spares.iter().map(|spare| SegmentInspection {
            sequence: spare.sequence,
            state: SegmentState::Spare,
            end_offset: 0,
            batches: 0,
            records: 0,
        }));
        Ok(Scan {
            catalog: self.catalog,
            tail,
            last_lsn,
            announced_oldest: self.announced_oldest,
            spares,
            segments,
            has_staging,
            is_torn,
        })
    }
}

/// A part of a file in memory that moves forward with whoever reads it.
struct Window {
    file: FileName,
    file_bytes: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn new(file: FileName, file_bytes: u64) -> Window {
        Window { file, file_bytes: file_bytes - file_bytes % BLOCK_BYTES as u64, start: 0, bytes: Vec::new() }
    }

    /// The bytes at `offset`: a whole largest batch, or up to the end of the file.
    fn at(&mut self, storage: &mut dyn StorageRead, offset: u64) -> Result<&[u8], Refusal> {
        let wanted = self.file_bytes.saturating_sub(offset).min(BATCH_BYTES_MAX as u64);
        let holds = offset >= self.start && offset + wanted <= self.start + self.bytes.len() as u64;
        if !holds {
            let left = self.file_bytes - offset;
            self.bytes.resize(usize::try_from(left).map_or(WINDOW_BYTES, |left| left.min(WINDOW_BYTES)), 0);
            self.start = offset;
            storage.read(self.file, offset, &mut self.bytes).map_err(Refusal::disk(Some(self.file)))?;
        }
        let at = usize::try_from(offset - self.start).expect("the offset lies in the window");
        Ok(&self.bytes[at..])
    }

    /// Looks in every block from `offset` on for a batch of `segment` that verifies; tells its first record.
    fn find_batch(
        &mut self,
        storage: &mut dyn StorageRead,
        segment: SegmentSequence,
        mut offset: u64,
    ) -> Result<Option<Option<RecordPlace>>, Refusal> {
        while offset < self.file_bytes {
            if let Some(batch) = Batch::verify(self.at(storage, offset)?, segment) {
                return Ok(Some(batch.records().next().map(|(lsn, record)| RecordPlace::of(lsn, &record))));
            }
            offset += BLOCK_BYTES as u64;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
