//! Every number and position of the on-disk format, in one place.
//!
//! A segment is `segment_bytes` long: one header block, then batches back to back, each block-aligned, the last
//! of them a seal. All integers are little-endian. Invariant: a batch of any permitted size fits any permitted
//! segment, and a block for the seal always stays free behind it. Deliberately absent: code.
//!
//! ```text
//! superblock (one file, two equal copies, one block each, at 0 and 4096)
//!   0 magic u64   8 version u32   12 checksum u32 (of the block, this field zero)
//!  16 cluster [16]   32 incarnation [16]   48 node u16   50 shards u16   52 -   56 segment_bytes u64
//!
//! segment header (first block of a segment)
//!   0 magic u64   8 version u32   12 checksum u32 (of the block, this field zero)
//!  16 sequence u64   24 previous u64   32 incarnation [16]   48 shard u16   50 -   56 segment_bytes u64
//!
//! batch header
//!   0 magic u64   8 checksum u32 (of the whole extent, this field zero)   12 extent bytes u32
//!  16 segment u64   24 batch sequence u64   32 first lsn u64   40 salt u64
//!  48 checksum of the previous batch u32   52 record count u32
//!  56 oldest segment still needed u64   64 seals: the next segment's sequence, 0 if this is no seal u64
//!  72 bytes of records u32   76 -
//!
//! record
//!   0 payload bytes u32   4 cell u16   6 kind u8   7 -   8 term u64   16 index u64   24 payload
//!
//! payload of a snapshot's mark: the mark before it, zeros if there is none
//!   0 index u64   8 term u64
//!
//! snapshot (one file, canonical: the same stream gives the same bytes): pieces at every multiple of 128 KiB, each
//! but the last of them full, the last padded with zeros to a whole block, where the file ends
//!   0 magic u64   8 checksum u32 (of header, payload and padding, this field zero)   12 payload bytes u32
//!  16 cell u16   18 is it the last u8   19 -   20 piece u32   24 index u64   32 term u64   40 -   64 payload
//! ```
//!
//! # How long a log gets
//!
//! With S = [`SNAPSHOT_SEGMENTS`] and T the segment that is written to: a cell with entries beyond its newest snapshot in
//! segment T - S is due for another. When its mark is durable by the time that T has moved on by S, no segment before
//! T - 2S is needed: there, whatever the newest mark covers is released. So a log needs at most 2S + 1 segments. Of
//! those that it no longer needs it keeps [`RETIRED_SEGMENTS_MAX`] for recycling, and giving one up lags at most
//! [`SPARE_SEGMENTS`] rotations behind, because each rotation takes a spare: live segments never exceed
//! [`LIVE_SEGMENTS_MAX`] and, spares and the one that is being zero-filled included, segments never take more than
//! `(LIVE_SEGMENTS_MAX + 1) * segment_bytes`. The owner keeps the promise by answering
//! [`Log::snapshots_due`](crate::Log::snapshots_due); while a read runs in an old segment, that one stays, too. Small entries
//! make a snapshot due earlier ([`UNCOVERED_ENTRIES_MAX`]), which only makes the log shorter.
//!
//! Of snapshots a cell has at most [`SNAPSHOT_FILES_MAX`]: the newest, the one before, one that is being written or waits
//! for its mark, and one that is being removed.

use lockstep_wire::limit::SNAPSHOT_PIECE_BYTES_MAX;

/// The unit of O_DIRECT: every offset and length on disk is a multiple of it.
pub const BLOCK_BYTES: usize = 4096;

/// The smallest unit that a disk writes whole; writes tear between sectors.
pub const SECTOR_BYTES: usize = 512;

/// The version of this format; a directory of another version is refused.
pub const FORMAT_VERSION: u32 = 1;

/// Opens a superblock copy.
pub const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"LKSTPSUP");

/// Opens a segment header.
pub const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"LKSTPSEG");

/// Opens a batch header.
pub const BATCH_MAGIC: u64 = u64::from_le_bytes(*b"LKSTPBAT");

/// How many copies of the superblock there are.
pub const SUPERBLOCK_COPIES: usize = 2;

/// Opens each piece of a snapshot.
pub const SNAPSHOT_MAGIC: u64 = u64::from_le_bytes(*b"LKSTPSNP");

/// Bytes of a batch header.
pub const BATCH_HEADER_BYTES: usize = 80;

/// Bytes of a record before its payload.
pub const RECORD_HEADER_BYTES: usize = 24;

/// The longest payload of one record (checked when appended, so that whatever was accepted replays).
pub const PAYLOAD_BYTES_MAX: usize = 128 * 1024;

/// The longest batch, header and padding included.
pub const BATCH_BYTES_MAX: usize = 256 * 1024;

/// The longest single read for catch-up: it always holds one whole batch.
pub const READ_BYTES_MAX: usize = BATCH_BYTES_MAX;

/// The longest piece of zero-filling, so that it never delays a commit for long.
pub const ZERO_PIECE_BYTES: usize = 256 * 1024;

/// The size of a segment unless formatted otherwise.
pub const SEGMENT_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;

/// The smallest permitted segment: a header, one largest batch and a seal, with room to spare.
pub const SEGMENT_BYTES_MIN: u64 = 512 * 1024;

/// The largest permitted segment; offsets stay far from overflow.
pub const SEGMENT_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// The index keeps at most one point per cell and this many bytes of log.
pub const INDEX_POINT_BYTES: u64 = 16 * 1024;

/// Spare segments kept ready. One is consumed at a rotation while the other remains in reserve: when the disk is
/// full, releases and hard state still have a whole segment.
pub const SPARE_SEGMENTS: usize = 2;

/// Segments that nobody needs are kept for recycling up to this many; more are removed.
pub const RETIRED_SEGMENTS_MAX: usize = 4;

/// The most staged bytes; beyond it `append` refuses. Above what all cells of a shard may have on its way while a
/// disk stands still: 64 cells that follow with 4 MiB each, or that lead with what their admission takes.
pub const STAGED_BYTES_MAX: usize = 512 * 1024 * 1024;

/// The most reads waiting for their turn.
pub const READS_MAX: usize = 64;

/// From one piece of a snapshot to the next in its file.
pub const SNAPSHOT_STRIDE_BYTES: usize = 128 * 1024;

/// Bytes of a piece before its payload.
pub const SNAPSHOT_HEADER_BYTES: usize = 64;

/// S: a cell is due for a snapshot when this many segments have been begun since an entry that none covers.
/// Every commit takes a whole block, so that a log of 64 MiB segments is six of them further after half a minute of
/// a few thousand commits a second; a snapshot of a hundred MiB that is written meanwhile is not felt.
pub const SNAPSHOT_SEGMENTS: u64 = 6;

/// A snapshot is due, too, when a shard has so many entries that none covers, unless its owner has it otherwise. There are
/// less than twice as many by the time that the snapshot counts, if it can be written while as many again come. A start applies
/// them again, with a million locks in some two microseconds each: small entries take longer to apply than to read.
pub const UNCOVERED_ENTRIES_MAX: u64 = 196_608;

/// The most live segments, those included that wait for recycling.
pub const LIVE_SEGMENTS_MAX: u64 = 2 * SNAPSHOT_SEGMENTS + 1 + (RETIRED_SEGMENTS_MAX + SPARE_SEGMENTS) as u64;

/// The most snapshot files of a cell.
pub const SNAPSHOT_FILES_MAX: usize = 4;

const _: () = assert!(BATCH_HEADER_BYTES + RECORD_HEADER_BYTES + PAYLOAD_BYTES_MAX <= BATCH_BYTES_MAX);
const _: () = assert!((2 * BLOCK_BYTES + BATCH_BYTES_MAX) as u64 <= SEGMENT_BYTES_MIN);
const _: () = assert!(SNAPSHOT_HEADER_BYTES + SNAPSHOT_PIECE_BYTES_MAX == SNAPSHOT_STRIDE_BYTES);
const _: () =
    assert!(SNAPSHOT_STRIDE_BYTES.is_multiple_of(BLOCK_BYTES) && SNAPSHOT_STRIDE_BYTES <= READ_BYTES_MAX);
const _: () =
    assert!(BATCH_BYTES_MAX.is_multiple_of(BLOCK_BYTES) && ZERO_PIECE_BYTES.is_multiple_of(BLOCK_BYTES));
