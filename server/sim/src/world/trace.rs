//! What happened, as a hash and, for whoever wants to read it, as lines.
//!
//! Invariant: equal runs have equal hashes, and lines are made only when somebody reads them, so that a search does
//! not pay for them.

use std::fmt;

use super::schedule::Moment;

/// See the module.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    events: u64,
    lines: Lines,
}

#[derive(Debug)]
enum Lines {
    Unwanted,
    Kept(Vec<String>),
    Printed,
}

impl Trace {
    /// A trace that only counts and hashes.
    pub fn silent() -> Trace {
        Trace { hash: 0xcbf2_9ce4_8422_2325, events: 0, lines: Lines::Unwanted }
    }

    /// A trace that keeps its lines.
    pub fn kept() -> Trace {
        Trace { lines: Lines::Kept(Vec::new()), ..Trace::silent() }
    }

    /// A trace that prints its lines.
    pub fn printed() -> Trace {
        Trace { lines: Lines::Printed, ..Trace::silent() }
    }

    /// Notes an event by numbers that say all that matters of it, and by a line that says it in words.
    pub fn note(&mut self, now: Moment, words: &[u64], line: impl FnOnce() -> String) {
        self.events += 1;
        self.fold(now);
        words.iter().for_each(|word| self.fold(*word));
        match &mut self.lines {
            Lines::Unwanted => {}
            Lines::Kept(lines) => lines.push(format!("{} {}", clock_face(now), line())),
            Lines::Printed => println!("{} {}", clock_face(now), line()),
        }
    }

    fn fold(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        self.hash ^= self.hash >> 29;
    }

    /// The hash of all that was noted.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many events were noted.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The lines that were kept.
    pub fn lines(&self) -> &[String] {
        match &self.lines {
            Lines::Kept(lines) => lines,
            Lines::Unwanted | Lines::Printed => &[],
        }
    }
}

/// A number for all that is shown of a value.
pub(super) fn number_of_shown(value: &dyn fmt::Debug) -> u64 {
    let mut text = ShownText { hash: 0xcbf2_9ce4_8422_2325 };
    fmt::Write::write_fmt(&mut text, format_args!("{value:?}")).expect("a hash takes any text");
    text.hash
}

/// Takes text without keeping it.
struct ShownText {
    hash: u64,
}

impl fmt::Write for ShownText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

fn clock_face(now: Moment) -> String {
    format!("{:>4}.{:06}", now / 1_000_000_000, now % 1_000_000_000 / 1_000)
}

/// A number for bytes, different for different ones in all likelihood.
pub(super) fn number_of(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().expect("chunks have eight bytes"));
        hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 29;
    }
    chunks.remainder().iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_01b3))
}
