//! Records as they were at the beginning of a snapshot, encoded, until the snapshot comes to them.
//!
//! They lie back to back in a few large blocks: a hundred thousand pieces of memory of their own would cost entries more
//! to make than the copies do, and whoever frees the last of them a pause.
//!
//! Invariant: a block goes when nothing in it is wanted any more, and one at a time. Deliberately absent: the order of
//! the records, which is their section's.

/// Bytes of a block.
const BLOCK_BYTES: usize = 256 * 1024;
/// A block with less room takes no further record, so that hardly any has to grow.
const ROOM_BYTES_MIN: usize = 4 * 1024;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Copies {
    /// The last one takes what comes.
    blocks: Vec<Block>,
    /// Blocks that nothing is wanted of.
    spent: Vec<Vec<u8>>,
}

#[derive(Clone, Debug)]
struct Block {
    bytes: Vec<u8>,
    /// How many of its records are wanted.
    wanted: usize,
}

/// Where a copy is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copied {
    block: usize,
    start: usize,
    end: usize,
}

impl Block {
    fn memory(self) -> Option<Vec<u8>> {
        (self.bytes.capacity() > 0).then_some(self.bytes)
    }
}

impl Copies {
    /// Keeps what `put` puts.
    pub(super) fn add(&mut self, put: impl FnOnce(&mut Vec<u8>)) -> Copied {
        if self.blocks.last().is_none_or(|block| block.bytes.len() > BLOCK_BYTES - ROOM_BYTES_MIN) {
            let bytes = self.spent.pop().unwrap_or_else(|| Vec::with_capacity(BLOCK_BYTES));
            self.blocks.push(Block { bytes, wanted: 0 });
        }
        let at = self.blocks.len() - 1;
        let block = &mut self.blocks[at];
        let start = block.bytes.len();
        put(&mut block.bytes);
        block.wanted += 1;
        Copied { block: at, start, end: block.bytes.len() }
    }

    pub(super) fn bytes(&self, copied: Copied) -> &[u8] {
        &self.blocks[copied.block].bytes[copied.start..copied.end]
    }

    /// A copy is not wanted any more.
    pub(super) fn forget(&mut self, copied: Copied) {
        let block = &mut self.blocks[copied.block];
        block.wanted -= 1;
        if block.wanted > 0 {
            return;
        }
        block.bytes.clear();
        if copied.block + 1 < self.blocks.len() {
            self.spent.push(std::mem::take(&mut self.blocks[copied.block].bytes));
        }
    }

    /// Frees a block that nothing is wanted of, if there is one; tells whether there was.
    pub(super) fn free_spent(&mut self) -> bool {
        self.spent.pop().is_some()
    }

    /// Frees a block, wanted or not; tells whether there was one.
    pub(super) fn free_any(&mut self) -> bool {
        // Those whose memory was spent have none left.
        let mut blocks = std::iter::from_fn(|| self.blocks.pop());
        self.spent.pop().or_else(|| blocks.find_map(Block::memory)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_as_they_were_and_their_blocks_are_used_again() {
        let mut copies = Copies::default();
        let add = |copies: &mut Copies, number: u8| {
            copies.add(|out| out.resize(out.len() + 50_000 + usize::from(number), number))
        };
        let all: Vec<Copied> = (0..40).map(|number| add(&mut copies, number)).collect();
        let blocks = copies.blocks.len();
        assert!(blocks > 5 && copies.blocks.iter().all(|block| block.bytes.len() >= BLOCK_BYTES - 64 * 1024));
        for (copied, number) in all.iter().zip(0_u8..) {
            assert_eq!(copies.bytes(*copied), vec![number; 50_000 + usize::from(number)]);
        }
        all.iter().for_each(|copied| copies.forget(*copied));
        assert_eq!(copies.spent.len(), blocks - 1, "the last one takes what comes");
        let again = add(&mut copies, 7);
        assert_eq!((copies.spent.len(), copies.bytes(again).len()), (blocks - 1, 50_007));
        assert!((0..blocks - 1).all(|_| copies.free_spent()) && !copies.free_spent());
        assert!(copies.free_any());
    }
}
