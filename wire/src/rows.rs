//! Lists inside messages: a count in two bytes, then the rows.
//!
//! Invariant: a list that was decoded has had every row read once, so that iterating cannot fail; and a
//! list is never copied. Deliberately absent: any order or uniqueness of the rows.

use std::fmt;

use crate::cursor::{DecodeError, Decoded, Reader, Writer};

/// One row of a list.
pub trait Row<'a>: Copy + fmt::Debug + PartialEq {
    /// Appends the row.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads a row.
    fn read(reader: &mut Reader<'a>) -> Decoded<Self>;
}

/// A borrowed list, as its maker holds it or as it came over the wire.
#[derive(Clone, Copy)]
pub enum Rows<'a, T> {
    /// As its maker holds it.
    Slice(&'a [T]),
    /// As it came over the wire: this many rows in these bytes, all of them read once already.
    Encoded(u16, &'a [u8]),
}

impl<'a, T: Row<'a>> Rows<'a, T> {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        match self {
            Rows::Slice(rows) => rows.len(),
            Rows::Encoded(count, _) => usize::from(*count),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows in their order.
    pub fn iter(&self) -> RowsIter<'a, T> {
        match *self {
            Rows::Slice(rows) => RowsIter::Slice(rows.iter()),
            Rows::Encoded(count, bytes) => RowsIter::Encoded(count, Reader::new(bytes)),
        }
    }

    /// Appends the list.
    ///
    /// # Panics
    /// When there are more than 65,535 rows: whoever encodes keeps to the list's limit.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(u16::try_from(self.len()).expect("a list fits its limit"));
        match self {
            Rows::Slice(rows) => rows.iter().for_each(|row| row.put(out)),
            Rows::Encoded(_, bytes) => out.put(bytes),
        }
    }

    /// Reads a list of at most `limit` rows.
    pub fn read(reader: &mut Reader<'a>, limit: usize, field: &'static str) -> Decoded<Rows<'a, T>> {
        let count = reader.u16(field)?;
        if usize::from(count) > limit {
            return Err(DecodeError::TooLarge(field));
        }
        let mut ahead = *reader;
        for _ in 0..count {
            T::read(&mut ahead)?;
        }
        let bytes = reader.take(reader.remaining() - ahead.remaining(), field)?;
        Ok(Rows::Encoded(count, bytes))
    }
}

impl<'a, T: Row<'a>> PartialEq for Rows<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<'a, T: Row<'a>> fmt::Debug for Rows<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The rows of a list, one after the other.
#[derive(Clone, Debug)]
pub enum RowsIter<'a, T> {
    /// Of a list as its maker holds it.
    Slice(std::slice::Iter<'a, T>),
    /// Of a list as it came over the wire.
    Encoded(u16, Reader<'a>),
}

impl<'a, T: Row<'a>> Iterator for RowsIter<'a, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match self {
            RowsIter::Slice(rows) => rows.next().copied(),
            RowsIter::Encoded(0, _) => None,
            RowsIter::Encoded(left, reader) => {
                *left -= 1;
                Some(T::read(reader).expect("the rows were read when the list was"))
            }
        }
    }
}
