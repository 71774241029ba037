//! Reading and writing fixed little-endian layouts.
//!
//! Invariant: a read past the end is a typed error, never a panic, and nothing is allocated by a
//! length that came from outside. Deliberately absent: what the fields mean.

use std::fmt;

/// Why bytes are not the message that they claim to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end inside this field.
    Truncated(&'static str),
    /// Bytes are left over behind the last field.
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// The field has a value that its layout does not allow.
    Invalid(&'static str),
    /// The field is larger than its limit.
    TooLarge(&'static str),
    /// No message has this kind.
    UnknownKind(u16),
    /// The bytes were written for a feature level that this build does not know.
    UnknownLevel(u16),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Truncated(field) => write!(f, "the message ends inside `{field}`"),
            DecodeError::Trailing { bytes } => write!(f, "{bytes} bytes are left over behind the message"),
            DecodeError::Invalid(field) => write!(f, "`{field}` has a value that it cannot have"),
            DecodeError::TooLarge(field) => write!(f, "`{field}` is over its limit"),
            DecodeError::UnknownKind(kind) => write!(f, "no message has kind {kind:#06x}"),
            DecodeError::UnknownLevel(level) => {
                write!(f, "feature level {level} is not known to this build; upgrade it first")
            }
        }
    }
}

impl std::error::Error for DecodeError {}

/// The result of decoding.
pub type Decoded<T> = Result<T, DecodeError>;

/// A position in borrowed bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// Ends the message: anything left over is refused.
    pub fn finish(self) -> Decoded<()> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(DecodeError::Trailing { bytes }),
        }
    }

    /// Whether every byte was read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize, field: &'static str) -> Decoded<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(head)
    }

    /// All that is left.
    pub fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Decoded<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(*head)
    }

    /// One byte.
    pub fn u8(&mut self, field: &'static str) -> Decoded<u8> {
        Ok(self.array::<1>(field)?[0])
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self, field: &'static str) -> Decoded<u16> {
        self.array(field).map(u16::from_le_bytes)
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self, field: &'static str) -> Decoded<u32> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self, field: &'static str) -> Decoded<u64> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// Sixteen bytes as they are.
    pub fn random(&mut self, field: &'static str) -> Decoded<[u8; 16]> {
        self.array(field)
    }

    /// One byte that must be 0 or 1.
    pub fn bool(&mut self, field: &'static str) -> Decoded<bool> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid(field)),
        }
    }

    /// Bytes behind their length in two bytes, at most `limit` of them.
    pub fn bytes(&mut self, limit: usize, field: &'static str) -> Decoded<&'a [u8]> {
        let count = usize::from(self.u16(field)?);
        if count > limit {
            return Err(DecodeError::TooLarge(field));
        }
        self.take(count, field)
    }

    /// UTF-8 behind its length in two bytes, at most `limit` bytes of it.
    pub fn text(&mut self, limit: usize, field: &'static str) -> Decoded<&'a str> {
        std::str::from_utf8(self.bytes(limit, field)?).map_err(|_| DecodeError::Invalid(field))
    }
}

/// Appends fixed little-endian layouts to a buffer.
pub trait Writer {
    /// One byte.
    fn put_u8(&mut self, value: u8);
    /// Two bytes.
    fn put_u16(&mut self, value: u16);
    /// Four bytes.
    fn put_u32(&mut self, value: u32);
    /// Eight bytes.
    fn put_u64(&mut self, value: u64);
    /// Bytes as they are.
    fn put(&mut self, bytes: &[u8]);
    /// One byte, 0 or 1.
    fn put_bool(&mut self, value: bool) {
        self.put_u8(u8::from(value));
    }
    /// Bytes behind their length in two bytes.
    ///
    /// # Panics
    /// When there are more than 65,535: whoever encodes has checked the field's limit.
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_u16(u16::try_from(bytes.len()).expect("a length-prefixed field fits its limit"));
        self.put(bytes);
    }
}

impl Writer for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
