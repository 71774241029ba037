//! Fixed-position little-endian fields of a block.
//!
//! Invariant: positions come from `layout` and lie inside the slice that the caller checked; a miss is a
//! programmer's error and panics. Deliberately absent: variable-length formats.

pub(crate) fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(crate) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

pub(crate) fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

/// CRC-32 of `bytes`, the four bytes at `at` (where it will stand) taken as zero.
pub(crate) fn checksum_around(bytes: &[u8], at: usize) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..at]);
    hasher.update(&[0; 4]);
    hasher.update(&bytes[at + 4..]);
    hasher.finalize()
}

/// A length that is known to be far below 4 GiB.
pub(crate) fn length_u32(len: usize) -> u32 {
    u32::try_from(len).expect("lengths on disk are bounded far below 4 GiB")
}

/// `len` rounded up to whole blocks.
pub(crate) fn blocks_up(len: usize) -> usize {
    len.next_multiple_of(crate::layout::BLOCK_BYTES)
}
