//! Where every choice of a run comes from.
//!
//! Invariant: one seed decides everything, and each concern draws from a stream of its own, so that one more draw
//! for the network does not change what the disk does. Deliberately absent: any claim to be unpredictable.

/// A stream of pseudo-random numbers (SplitMix64; Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Stream {
    state: u64,
}

/// What a stream is for. Two concerns never share a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concern {
    /// Sizes and rates of the whole run.
    Plan,
    /// Latencies of links, and when they break.
    Network,
    /// Latencies of disks.
    Disk,
    /// What a crash leaves of a disk.
    Crash,
    /// When faults come, and which.
    Fault,
    /// What clients do.
    Workload,
    /// Nonces, incarnations, salts and seeds handed to the real parts.
    Identity,
    /// Commands for the lock table.
    Command,
    /// Bent inputs.
    Fuzz,
    /// What clients do out of the ordinary.
    Variety,
    /// What forgers send.
    Forgery,
}

impl Stream {
    /// The stream of one concern of a run; `number` tells apart the streams of several nodes or clients.
    pub fn new(seed: u64, concern: Concern, number: u64) -> Stream {
        let salt = (concern as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
        let mut stream = Stream { state: seed ^ salt };
        stream.state = stream.next_u64() ^ number.wrapping_mul(0x8cb9_2ba7_2f3d_8dd7);
        stream.next_u64();
        stream
    }

    /// 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `bound - 1`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below 0");
        self.next_u64() % bound
    }

    /// A number from `low` to `high`, both possible.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A place in a list of `len`.
    pub fn place(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("a place in a list fits")
    }

    /// One of several.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.place(choices.len())]
    }

    /// A time around one of several means.
    pub fn around_one_of(&mut self, means: &[u64]) -> u64 {
        let mean = self.one_of(means);
        self.around(mean)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// A time around `mean`: exponentially distributed, so that events come as if independent of each other,
    /// and never more than ten times the mean.
    pub fn around(&mut self, mean: u64) -> u64 {
        // -ln(u) by its binary digits: each leading zero adds ln 2, the next bits interpolate. Integers only,
        // so that every machine agrees.
        let bits = self.next_u64() | 1;
        let zeros = u64::from(bits.leading_zeros());
        let fraction = ((bits << zeros << 1) >> 48) & 0xffff;
        let scaled = zeros * 0x1_0000 + (0xffff - fraction);
        let value = (u128::from(mean) * u128::from(scaled) * 45_426) >> 32;
        u64::try_from(value).unwrap_or(u64::MAX).min(mean.saturating_mul(10))
    }

    /// 128 bits.
    pub fn bytes_16(&mut self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.next_u64().to_le_bytes());
        bytes[8..].copy_from_slice(&self.next_u64().to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concerns_and_numbers_have_streams_of_their_own() {
        let first = |concern, number| Stream::new(7, concern, number).next_u64();
        assert_ne!(first(Concern::Plan, 0), first(Concern::Network, 0));
        assert_ne!(first(Concern::Network, 0), first(Concern::Network, 1));
        assert_eq!(first(Concern::Network, 1), first(Concern::Network, 1));
    }

    #[test]
    fn times_around_a_mean_have_it_and_are_bounded() {
        let mut stream = Stream::new(1, Concern::Plan, 0);
        let draws: Vec<u64> = (0..100_000).map(|_| stream.around(1_000_000)).collect();
        let mean = draws.iter().sum::<u64>() / draws.len() as u64;
        assert!((900_000..1_100_000).contains(&mean), "{mean}");
        assert!(draws.iter().all(|draw| *draw <= 10_000_000));
    }
}
