//! Bending bytes: a few changes of the kinds that readers get wrong.
//!
//! Invariant: the result is at most a little longer than what went in. Deliberately absent: any knowledge of a format.

use crate::random::Stream;

/// Numbers at which lengths, counts and signs go wrong.
const EDGES: [u64; 12] =
    [0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 48, u64::MAX];
/// Changes of one input at most.
const CHANGES_MAX: u64 = 4;
/// Bytes put in by one change at most.
const INSERTED_MAX: u64 = 24;

/// Changes bytes in place; `others` are inputs of the same kind to take pieces from.
pub(super) fn bend(bytes: &mut Vec<u8>, others: &[Vec<u8>], stream: &mut Stream) {
    for _ in 0..stream.between(1, CHANGES_MAX) {
        let at = stream.place(bytes.len() + 1);
        match stream.below(8) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << stream.below(8),
            2 if at < bytes.len() => bytes[at] = stream.next_u64().to_le_bytes()[0],
            3 | 4 => overwrite(bytes, at, stream),
            5 => bytes.truncate(at),
            6 => {
                let count = stream.between(1, INSERTED_MAX);
                let inserted: Vec<u8> = (0..count).map(|_| stream.next_u64().to_le_bytes()[0]).collect();
                bytes.splice(at..at, inserted);
            }
            _ => graft(bytes, at, others, stream),
        }
    }
}

/// Puts one of the edges over a number of 1, 2, 4 or 8 bytes.
fn overwrite(bytes: &mut [u8], at: usize, stream: &mut Stream) {
    let number = stream.one_of(&EDGES).to_le_bytes();
    let width = stream.one_of(&[1, 2, 4, 8]).min(bytes.len() - at);
    bytes[at..at + width].copy_from_slice(&number[..width]);
}

/// Goes on with the end of another input.
fn graft(bytes: &mut Vec<u8>, at: usize, others: &[Vec<u8>], stream: &mut Stream) {
    if !others.is_empty() {
        let other = &others[stream.place(others.len())];
        let from = stream.place(other.len() + 1);
        bytes.truncate(at);
        bytes.extend_from_slice(&other[from..]);
    }
}
