//! The choices of simulated clients.
//!
//! Invariant: the same seed gives the same numbers. Not for secrets: the sessions of a load generator guard nothing, and
//! their nonces have only to be different.

use lockstep_wire::Nonce;

/// A stream of pseudo-random numbers (SplitMix64; Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `bound`, `bound` itself excluded.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.next() % u64::from(bound)).expect("below a u32")
    }

    /// True in so many of a million cases.
    pub(crate) fn is_one_of_million(&mut self, cases: u32) -> bool {
        self.below(1_000_000) < cases
    }

    pub(crate) fn nonce(&mut self) -> Nonce {
        let both = (u128::from(self.next()) << 64) | u128::from(self.next());
        Nonce(both.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_nothing_never_comes_up_and_a_share_of_all_always_does() {
        let mut chance = Chance::new(7);
        assert!((0..10_000).all(|_| !chance.is_one_of_million(0)));
        assert!((0..10_000).all(|_| chance.is_one_of_million(1_000_000)));
    }

    #[test]
    fn a_half_comes_up_about_every_second_time() {
        let mut chance = Chance::new(7);
        let hits = (0..10_000).filter(|_| chance.is_one_of_million(500_000)).count();
        assert!((4_500..5_500).contains(&hits), "{hits} of 10,000");
    }

    #[test]
    fn nonces_of_one_stream_differ() {
        let mut chance = Chance::new(7);
        assert_ne!(chance.nonce(), chance.nonce());
    }
}
