//! The frame: a fixed little-endian head in front of every message (ARCHITECTURE section 3, "Frame").
//!
//! ```text
//!  0  u32  length       bytes behind the checksum field: 16 and the body
//!  4  u32  checksum     CRC-32 (IEEE) of those bytes
//!  8  u16  kind         which message
//! 10  u16  flags        0 at level 1
//! 12  u16  cell         which cell it is about
//! 14  u16  level        the feature level it was written for
//! 16  u64  correlation  ties a reply to its request
//! 24       body
//! ```
//!
//! Invariant: a length is checked against the limit of its connection before a byte is waited for or
//! stored. Deliberately absent: what a body means, and when a connection is closed.

use std::fmt;

use crate::cursor::Writer;
use crate::{CellId, Correlation, FeatureLevel};

/// Bytes in front of a body.
pub const HEAD_BYTES: usize = 24;
/// Bytes in front of what `length` counts.
const PREFIX_BYTES: usize = 8;
/// The feature level that frames and entries of this build carry, and the only one that it reads.
pub const LEVEL: FeatureLevel = FeatureLevel(1);

/// What stands in front of a body, the length and the checksum aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which message it is.
    pub kind: u16,
    /// Which cell it is about.
    pub cell: CellId,
    /// Ties a reply to its request.
    pub correlation: Correlation,
}

/// A whole frame whose checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its head.
    pub head: Head,
    /// Its body.
    pub body: &'a [u8],
}

/// Why bytes are not a frame. The connection that sent them is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The length is less than a head.
    TooShort {
        /// What the length field says.
        length: u32,
    },
    /// The length is over what may come on this connection now.
    TooLong {
        /// What the length field says.
        length: u32,
        /// The most that may come.
        limit: usize,
    },
    /// The bytes are not those that the checksum was made of.
    Checksum,
    /// Written for a feature level that this build does not know.
    Level(u16),
    /// A flag is set that this build does not know.
    Flags(u16),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooShort { length } => {
                write!(f, "a frame of {length} bytes is shorter than its head")
            }
            FrameError::TooLong { length, limit } => {
                write!(
                    f,
                    "a frame of {length} bytes is over the limit of {limit}; this may not be a Lockstep client"
                )
            }
            FrameError::Checksum => f.write_str("the frame's checksum does not match its bytes"),
            FrameError::Level(level) => {
                write!(f, "the frame was written for feature level {level}, this build knows {LEVEL}")
            }
            FrameError::Flags(flags) => write!(f, "the frame has unknown flags {flags:#06x}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Appends a frame whose body `body` appends.
///
/// # Panics
/// When the body does not fit a length of four bytes; every message is limited far below.
pub fn encode(out: &mut Vec<u8>, head: Head, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.put(&[0; PREFIX_BYTES]);
    out.put_u16(head.kind);
    out.put_u16(0);
    out.put_u16(head.cell.0);
    out.put_u16(LEVEL.0);
    out.put_u64(head.correlation.0);
    body(out);
    let counted = &out[start + PREFIX_BYTES..];
    let length = u32::try_from(counted.len()).expect("a frame fits its length field");
    let checksum = crc32fast::hash(counted);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + PREFIX_BYTES].copy_from_slice(&checksum.to_le_bytes());
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// How many bytes the frame at the front of `bytes` has, once its length has come and passes the limit.
fn whole_bytes(bytes: &[u8], limit: usize) -> Result<Option<usize>, FrameError> {
    if bytes.len() < 4 {
        return Ok(None);
    }
    let length = u32_at(bytes, 0);
    let counted = length as usize;
    if counted < HEAD_BYTES - PREFIX_BYTES {
        return Err(FrameError::TooShort { length });
    }
    if counted > limit {
        return Err(FrameError::TooLong { length, limit });
    }
    Ok(Some(PREFIX_BYTES + counted))
}

/// Reads exactly one whole frame.
fn open(whole: &[u8]) -> Result<Frame<'_>, FrameError> {
    if crc32fast::hash(&whole[PREFIX_BYTES..]) != u32_at(whole, 4) {
        return Err(FrameError::Checksum);
    }
    match (u16_at(whole, 14), u16_at(whole, 10)) {
        (level, _) if level != LEVEL.0 => Err(FrameError::Level(level)),
        (_, flags) if flags != 0 => Err(FrameError::Flags(flags)),
        _ => {
            let correlation = u64::from(u32_at(whole, 16)) | u64::from(u32_at(whole, 20)) << 32;
            let head = Head {
                kind: u16_at(whole, 8),
                cell: CellId(u16_at(whole, 12)),
                correlation: Correlation(correlation),
            };
            Ok(Frame { head, body: &whole[HEAD_BYTES..] })
        }
    }
}

/// Cuts a stream of bytes into frames; only a frame that is split between two reads is copied.
#[derive(Debug, Default)]
pub struct Assembler {
    partial: Vec<u8>,
    /// `partial` was handed out whole by the last call.
    handed_out: bool,
}

impl Assembler {
    /// Takes the next whole frame off the front of `input`, or keeps what is left of it for later and
    /// gives none. To be called until it gives none.
    ///
    /// # Errors
    /// Bytes that are not a frame; nothing behind them can be read any more.
    pub fn next<'f, 'i: 'f>(
        &'f mut self,
        input: &mut &'i [u8],
        limit: usize,
    ) -> Result<Option<Frame<'f>>, FrameError> {
        if self.handed_out {
            self.partial.clear();
            self.handed_out = false;
        }
        if self.partial.is_empty() {
            return match whole_bytes(input, limit)?.and_then(|count| input.split_at_checked(count)) {
                Some((whole, rest)) => {
                    *input = rest;
                    open(whole).map(Some)
                }
                None => {
                    self.partial.extend_from_slice(input);
                    *input = &[];
                    Ok(None)
                }
            };
        }
        self.fill(input, 4);
        let Some(count) = whole_bytes(&self.partial, limit)? else { return Ok(None) };
        self.fill(input, count);
        if self.partial.len() < count {
            return Ok(None);
        }
        self.handed_out = true;
        open(&self.partial).map(Some)
    }

    /// Moves bytes from the input until `count` are kept.
    fn fill(&mut self, input: &mut &[u8], count: usize) {
        let missing = count.saturating_sub(self.partial.len()).min(input.len());
        let (head, rest) = input.split_at(missing);
        self.partial.extend_from_slice(head);
        *input = rest;
    }

    /// Whether a frame has begun and not ended.
    pub fn is_inside_a_frame(&self) -> bool {
        !self.handed_out && !self.partial.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let head = Head { kind, cell: CellId(3), correlation: Correlation(0x0102_0304_0506_0708) };
        encode(&mut out, head, |out| out.put(body));
        out
    }

    fn collect(pieces: &[&[u8]], limit: usize) -> Result<Vec<(u16, Vec<u8>)>, FrameError> {
        let mut assembler = Assembler::default();
        let mut seen = Vec::new();
        for piece in pieces {
            let mut input = *piece;
            while let Some(frame) = assembler.next(&mut input, limit)? {
                seen.push((frame.head.kind, frame.body.to_vec()));
            }
        }
        Ok(seen)
    }

    #[test]
    fn a_frame_is_these_bytes() {
        let hex: String = frame(0x0110, b"ab").iter().map(|byte| format!("{byte:02x}")).collect();
        expect_test::expect!["1200000057fa9b62100100000300010008070605040302016162"].assert_eq(&hex);
    }

    #[test]
    fn lengths_that_cannot_be_are_refused_before_anything_is_stored() {
        for length in [0u32, 15] {
            let error = collect(&[&length.to_le_bytes()], 64);
            assert_eq!(error, Err(FrameError::TooShort { length }));
        }
        for length in [65u32, u32::MAX] {
            let error = collect(&[&length.to_le_bytes()], 64);
            assert_eq!(error, Err(FrameError::TooLong { length, limit: 64 }));
        }
        assert_eq!(
            collect(&[b"GET / HTTP/1.1\r\n\r\n"], 65536).unwrap_err().to_string(),
            FrameError::TooLong { length: 0x2054_4547, limit: 65536 }.to_string()
        );
    }

    #[test]
    fn another_level_and_unknown_flags_are_refused_in_words() {
        for (at, error) in [(14, FrameError::Level(2)), (10, FrameError::Flags(2))] {
            let mut bytes = frame(1, b"");
            bytes[at] = 2;
            let checksum = crc32fast::hash(&bytes[8..]).to_le_bytes();
            bytes[4..8].copy_from_slice(&checksum);
            assert_eq!(collect(&[&bytes], 64), Err(error));
        }
    }

    proptest! {
        #[test]
        fn a_stream_cut_anywhere_gives_the_same_frames(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6),
            cuts in prop::collection::vec(0usize..200, 0..6),
        ) {
            let stream: Vec<u8> = bodies.iter().zip(1..).flat_map(|(body, kind)| frame(kind, body)).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(stream.len())).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
            let wanted: Vec<(u16, Vec<u8>)> = (1..).zip(bodies).collect();
            prop_assert_eq!(collect(&pieces, 64), Ok(wanted));
        }

        #[test]
        fn any_bytes_are_frames_or_a_refusal(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = collect(&[&bytes], 256);
        }

        #[test]
        fn one_flipped_bit_is_noticed(body in prop::collection::vec(any::<u8>(), 0..40), bit in 32usize..500) {
            let mut bytes = frame(7, &body);
            let bit = 32 + bit % ((bytes.len() - 4) * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(collect(&[&bytes], 64), Err(FrameError::Checksum));
        }
    }
}
