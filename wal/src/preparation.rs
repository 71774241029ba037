//! Segments ahead of time: zero-filling new ones, recycling and removing old ones.
//!
//! Invariant: a spare counts only when its bytes are durable, its name is durable and its header is durable, in
//! this order, so that the commit path writes into it without any further ceremony. A segment is given up only
//! when no cell needs its entries, every carried record stands durably behind it, and a durable batch says that it
//! may be gone. Deliberately absent: a clock. The driver throttles the background lane; the owner says when to
//! try for space again.
//!
//! New:      create staging, zero-fill in pieces, sync, rename, sync directory, header.
//! Recycled: rename, sync directory, header. What it held does not verify under its new number.

use lockstep_wire::mutant::{self, Mutant};

use crate::disk::{Action, DiskError, DiskOp, FileName, Lane, OpId, SegmentSequence};
use crate::layout::{BLOCK_BYTES, RETIRED_SEGMENTS_MAX, SPARE_SEGMENTS, ZERO_PIECE_BYTES};
use crate::log::{Failure, Log};
use crate::superblock::SegmentHeader;

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    CreateStaging,
    FillZeros {
        offset: u64,
    },
    SyncStaging,
    RenameStaging,
    RenameRetired(SegmentSequence),
    SyncDirectory,
    WriteHeader,
    /// The disk is full: give back what the half-made segment took.
    RemoveStaging,
    RemoveRetired(SegmentSequence),
    SyncRemoval,
}

/// What the background lane is doing.
#[derive(Debug, Default)]
pub(crate) struct Preparation {
    spares: usize,
    step: Option<Step>,
    in_flight: Option<OpId>,
    is_short_of_space: bool,
    retries: bool,
}

impl Preparation {
    pub(crate) fn with_spares(spares: usize) -> Preparation {
        Preparation { spares, ..Preparation::default() }
    }

    pub(crate) fn spares(&self) -> usize {
        self.spares
    }

    pub(crate) fn take_spare(&mut self) {
        assert!(self.spares > 0, "a segment is sealed only when the next one is ready");
        self.spares -= 1;
    }

    pub(crate) fn awaits(&self, op: OpId) -> bool {
        self.in_flight == Some(op)
    }
}

impl Log {
    /// Whether the disk had no room for the next segment. The owner refuses new writes with NO_SPACE while this
    /// holds and goes on with releases and hard state, for which the rest of this segment and the spare ones are
    /// kept. Ends by itself when space returns (see [`Log::retry_space`]) or segments are released.
    pub fn is_short_of_space(&self) -> bool {
        self.preparation.is_short_of_space
    }

    /// Tries once more to allocate a segment after the disk was full. Call it now and then, say every second.
    pub fn retry_space(&mut self) {
        self.preparation.retries = self.preparation.is_short_of_space;
    }

    /// Segments ready to be written.
    pub fn spare_segments(&self) -> usize {
        self.preparation.spares
    }

    /// The oldest segment, if it should go and only carried records may be in the way.
    pub(crate) fn segment_to_vacate(&self) -> Option<SegmentSequence> {
        if self.preparation.step.is_some() {
            return None;
        }
        let retired = self.catalog.retired_count();
        let is_wanted = self.preparation.spares < SPARE_SEGMENTS || retired > RETIRED_SEGMENTS_MAX;
        (retired > 0 && is_wanted).then(|| self.catalog.oldest())
    }

    /// Whether a batch, be it an empty one, is needed only to say that the oldest segment may be gone.
    pub(crate) fn wants_announcement(&self) -> bool {
        self.segment_to_vacate().is_some_and(|segment| {
            self.announced_oldest <= segment && self.catalog.carried_is_behind(segment, self.durable)
        })
    }

    fn can_drop(&self, segment: SegmentSequence) -> bool {
        self.announced_oldest > segment
            && self.catalog.carried_is_behind(segment, self.durable)
            && self.catch_up.reading_segment().is_none_or(|reading| reading > segment)
    }

    fn choose_step(&mut self) -> Option<Step> {
        let wants_spare = self.preparation.spares < SPARE_SEGMENTS;
        if let Some(segment) = self.segment_to_vacate() {
            if self.can_drop(segment) {
                if self.catalog.drop_oldest() {
                    self.snapshots.sweep_later();
                }
                return Some(if wants_spare {
                    Step::RenameRetired(segment)
                } else {
                    Step::RemoveRetired(segment)
                });
            }
            // It will be free in a moment. Without any spare even its carried records might find no room.
            if self.preparation.spares > 0 {
                return None;
            }
        }
        let may_allocate = !self.preparation.is_short_of_space || self.preparation.retries;
        (wants_spare && may_allocate).then_some(Step::CreateStaging)
    }

    pub(crate) fn poll_preparation(&mut self) -> Option<DiskOp> {
        if self.preparation.in_flight.is_some() {
            return None;
        }
        if self.preparation.step.is_none() {
            self.preparation.step = self.choose_step();
        }
        let staging = FileName::Staging { shard: self.shard };
        let spare = self.segment_file(self.spare_sequence());
        let action = match self.preparation.step? {
            Step::CreateStaging => {
                self.preparation.retries = false;
                Action::Create { file: staging }
            }
            Step::FillZeros { offset } => {
                let left = self.superblock.segment_bytes - offset;
                let len = usize::try_from(left).map_or(ZERO_PIECE_BYTES, |left| left.min(ZERO_PIECE_BYTES));
                Action::WriteZeros { file: staging, offset, len }
            }
            Step::SyncStaging => Action::Sync { file: staging },
            Step::RenameStaging => Action::Rename { from: staging, to: spare },
            Step::RenameRetired(segment) => Action::Rename { from: self.segment_file(segment), to: spare },
            Step::SyncDirectory | Step::SyncRemoval => Action::SyncDirectory,
            Step::WriteHeader => Action::Write { file: spare, offset: 0, len: BLOCK_BYTES },
            Step::RemoveStaging => Action::Remove { file: staging },
            Step::RemoveRetired(segment) => Action::Remove { file: self.segment_file(segment) },
        };
        let op = self.next_op(Lane::Background, action);
        self.preparation.in_flight = Some(op.id);
        Some(op)
    }

    pub(crate) fn fill_preparation(&mut self, op: OpId, bytes: &mut [u8]) {
        let is_header = self.preparation.awaits(op) && self.preparation.step == Some(Step::WriteHeader);
        assert!(is_header, "only a write in flight is filled");
        SegmentHeader::of(&self.superblock, self.shard, self.spare_sequence()).encode(bytes);
    }

    pub(crate) fn on_preparation_done(&mut self, result: Result<(), DiskError>) {
        self.preparation.in_flight = None;
        let step = self.preparation.step.expect("an operation in flight has its step");
        if let Err(error) = result {
            self.on_preparation_error(step, error);
            return;
        }
        self.preparation.step = match step {
            Step::CreateStaging => Some(Step::FillZeros { offset: 0 }),
            Step::FillZeros { offset } => {
                let offset = (offset + ZERO_PIECE_BYTES as u64).min(self.superblock.segment_bytes);
                let is_full = offset == self.superblock.segment_bytes;
                Some(if is_full { Step::SyncStaging } else { Step::FillZeros { offset } })
            }
            Step::SyncStaging => Some(Step::RenameStaging),
            Step::RenameStaging | Step::RenameRetired(_) if mutant::is(Mutant::SkipDirectorySync) => {
                Some(Step::WriteHeader)
            }
            Step::RenameStaging | Step::RenameRetired(_) => Some(Step::SyncDirectory),
            Step::SyncDirectory => Some(Step::WriteHeader),
            Step::WriteHeader => {
                self.preparation.spares += 1;
                self.preparation.is_short_of_space &= self.preparation.spares < SPARE_SEGMENTS;
                // Where there was room for one there may be for the next.
                self.preparation.retries = self.preparation.is_short_of_space;
                None
            }
            Step::RemoveRetired(_) => Some(Step::SyncRemoval),
            Step::RemoveStaging | Step::SyncRemoval => None,
        };
    }

    /// A full disk is a state while a segment is being allocated. Everything else, and everywhere else, is final.
    fn on_preparation_error(&mut self, step: Step, error: DiskError) {
        let file = match step {
            Step::CreateStaging | Step::FillZeros { .. } if error == DiskError::NoSpace => {
                self.preparation.is_short_of_space = true;
                self.preparation.step = Some(Step::RemoveStaging);
                return;
            }
            // Creating it may have failed for want of space, so that there is nothing to remove.
            Step::RemoveStaging if error == DiskError::NotFound => {
                self.preparation.step = None;
                return;
            }
            Step::CreateStaging
            | Step::FillZeros { .. }
            | Step::SyncStaging
            | Step::RenameStaging
            | Step::RemoveStaging => Some(FileName::Staging { shard: self.shard }),
            Step::RenameRetired(segment) | Step::RemoveRetired(segment) => Some(self.segment_file(segment)),
            Step::WriteHeader => Some(self.segment_file(self.spare_sequence())),
            Step::SyncDirectory | Step::SyncRemoval => None,
        };
        self.fail(Failure::Disk { file, error });
    }

    /// The number that the next spare gets. A rotation takes a spare and moves the tail: the sum stays.
    fn spare_sequence(&self) -> SegmentSequence {
        SegmentSequence(self.tail.position.segment.0 + self.preparation.spares as u64 + 1)
    }
}
