//! A small seeded generator for the faults of the memory disk.
//!
//! Invariant: the same seed gives the same numbers on every machine. Deliberately absent: any claim to be
//! unpredictable.

/// See the module. The step is Marsaglia's xorshift64* (Vigna, 2016), seeded through a splitmix64 round.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator that depends on nothing but `seed`.
    pub fn new(seed: u64) -> Random {
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The state is never 0, from which the step would not move.
        Random { state: (mixed ^ (mixed >> 31)) | 1 }
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from 0 to `bound - 1`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next_u64() >> 11) % bound
    }

    /// True `chance_ppm` times in a million.
    pub fn happens(&mut self, chance_ppm: u32) -> bool {
        chance_ppm > 0 && self.below(1_000_000) < u64::from(chance_ppm)
    }
}
