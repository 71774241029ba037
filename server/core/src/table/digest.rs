//! One number that stands for the whole replicated state (ARCHITECTURE section 2, "Digest").
//!
//! Invariant: the digest is the sum of one hash per fact, so that a change costs what it changes and equal states
//! have equal digests however they were reached. Deliberately absent: resistance against somebody who chooses the
//! facts; it finds defects, not attackers.

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const STEP: u64 = 0xd6e8_feb8_6659_fd93;

/// What a fact is about; keeps facts of different kinds apart.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Fact {
    Cell = 1,
    Session,
    Gap,
    Outcome,
    Hold,
    HeldClaim,
    Wait,
    Mark,
    /// Not part of the state: what a request asks, for telling a retry from another request.
    Content,
    /// The list of members.
    Members,
}

/// Hashes one fact.
pub(crate) fn fact(kind: Fact, words: &[u64]) -> u64 {
    words.iter().fold(fold(SEED ^ kind as u64), |hash, word| fold(hash ^ word))
}

/// Hashes bytes into a word of a fact.
pub(crate) fn bytes(bytes: &[u8]) -> u64 {
    let mut chunks = bytes.chunks_exact(8);
    let mut hash = fold(SEED ^ bytes.len() as u64);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().expect("a chunk has eight bytes"));
        hash = fold(hash ^ word);
    }
    let mut last = [0; 8];
    let rest = chunks.remainder();
    last[..rest.len()].copy_from_slice(rest);
    fold(hash ^ u64::from_le_bytes(last))
}

/// Mixes every bit into every other: both halves of a product, then a shift for the zero that a product keeps.
#[expect(clippy::cast_possible_truncation, reason = "the two halves of the product are wanted")]
fn fold(word: u64) -> u64 {
    let product = u128::from(word ^ STEP) * u128::from(SEED);
    let folded = product as u64 ^ (product >> 64) as u64;
    folded ^ (word >> 29)
}

/// The sum of the facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn value(self) -> u64 {
        self.0
    }

    pub(crate) fn add(&mut self, fact: u64) {
        self.0 = self.0.wrapping_add(fact);
    }

    pub(crate) fn remove(&mut self, fact: u64) {
        self.0 = self.0.wrapping_sub(fact);
    }
}
