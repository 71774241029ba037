//! The cell's log in memory: the term of every entry, and the payloads of the newest ones.
//!
//! Invariant: the term of any index behind the base is known without reading a disk, and the payloads are
//! there from [`Log::cache_first`] to the last without a gap. The base is where a snapshot ends, or the last
//! index before what the disk has kept; then its term may be unknown. Deliberately absent: what is durable
//! ([`super::durability`]), what is committed, and the disk.

use std::collections::VecDeque;

use lockstep_wire::limit::ENTRY_BYTES_MAX;
use lockstep_wire::{LogIndex, Term};

/// A chunk takes no further entry once it has this many bytes, so that it never has to grow.
const CHUNK_BYTES_FULL: usize = 64 * 1024;
/// Chunks kept for reuse: in steady state one is dropped for each one begun.
const CHUNKS_SPARE_MAX: usize = 4;

/// Entries of one term that follow each other.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: LogIndex,
    term: Term,
}

/// Payloads that follow each other, back to back.
#[derive(Debug, Default)]
struct Chunk {
    first: u64,
    ends: Vec<usize>,
    bytes: Vec<u8>,
}

impl Chunk {
    fn next(&self) -> u64 {
        self.first + self.ends.len() as u64
    }

    fn payload(&self, index: u64) -> &[u8] {
        let at = usize::try_from(index - self.first).expect("a chunk's entries fit memory");
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start..self.ends[at]]
    }
}

/// The log of one cell, as far as memory has it.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Where the log begins: its first entry is the next one. 0 before any snapshot.
    base: LogIndex,
    /// The term of the entry there; 0 while that is unknown.
    base_term: Term,
    last: LogIndex,
    runs: Vec<Run>,
    chunks: VecDeque<Chunk>,
    spare: Vec<Chunk>,
    cached_bytes: usize,
}

impl Log {
    /// An empty log behind the entry at `base`, whose term may be unknown: 0.
    pub(super) fn begin_at(base: LogIndex, base_term: Term) -> Log {
        Log { base, base_term, last: base, ..Log::default() }
    }

    /// The index in front of the first entry.
    pub(super) fn base(&self) -> LogIndex {
        self.base
    }

    /// The entry at the base has this term: a snapshot says so.
    pub(super) fn set_base_term(&mut self, term: Term) {
        assert!(self.base_term == Term(0) || self.base_term == term, "an entry has one term");
        self.base_term = term;
    }

    /// Forgets everything and goes on behind the entry at `base`, where a snapshot ends.
    pub(super) fn restart_at(&mut self, base: LogIndex, base_term: Term) {
        while let Some(chunk) = self.chunks.pop_back() {
            self.retire(chunk);
        }
        self.runs.clear();
        self.base = base;
        self.base_term = base_term;
        self.last = base;
    }

    /// The index of the last entry.
    pub(super) fn last_index(&self) -> LogIndex {
        self.last
    }

    /// The term of the last entry.
    pub(super) fn last_term(&self) -> Term {
        self.runs.last().map_or(self.base_term, |run| run.term)
    }

    /// The term of the entry at `index`; none before the base, behind the end, or at a base whose term is unknown.
    pub(super) fn term_at(&self, index: LogIndex) -> Option<Term> {
        if index > self.last || index < self.base {
            return None;
        }
        match self.runs.partition_point(|run| run.first <= index) {
            0 if self.base_term == Term(0) && self.base > LogIndex(0) => None,
            0 => Some(self.base_term),
            behind => Some(self.runs[behind - 1].term),
        }
    }

    /// The greatest index, at most `index`, whose term is at most `term`: where two logs may still agree
    /// (Raft, section 5.3, the optimization at its end). What lies before the base may agree, for all that is known.
    pub(super) fn last_at_most(&self, index: LogIndex, term: Term) -> LogIndex {
        if index < self.base {
            return index;
        }
        let behind = self.runs.partition_point(|run| run.first <= index && run.term <= term);
        if behind == 0 {
            return self.base;
        }
        let end = self.runs.get(behind).map_or(self.last, |run| run.first.prev());
        end.min(index)
    }

    /// Appends an entry whose payload `payload` writes.
    ///
    /// # Panics
    /// When the payload is over the limit of an entry or the term is older than the last one.
    pub(super) fn append(&mut self, term: Term, payload: impl FnOnce(&mut Vec<u8>)) -> LogIndex {
        let index = self.extend(term);
        if self.chunks.back().is_none_or(|chunk| chunk.bytes.len() >= CHUNK_BYTES_FULL) {
            let mut chunk = self.spare.pop().unwrap_or_default();
            chunk.bytes.reserve(CHUNK_BYTES_FULL + ENTRY_BYTES_MAX);
            chunk.first = index.0;
            self.chunks.push_back(chunk);
        }
        let chunk = self.chunks.back_mut().expect("a chunk was just made sure of");
        let start = chunk.bytes.len();
        payload(&mut chunk.bytes);
        let payload_bytes = chunk.bytes.len() - start;
        assert!(payload_bytes <= ENTRY_BYTES_MAX, "an entry of {payload_bytes} bytes is over the limit");
        chunk.ends.push(chunk.bytes.len());
        self.cached_bytes += payload_bytes;
        index
    }

    /// Appends an entry whose payload nobody will ask memory for: it is applied and durable.
    ///
    /// # Panics
    /// When a payload before it is in memory: they are there without a gap.
    pub(super) fn append_without_payload(&mut self, term: Term) -> LogIndex {
        assert!(self.chunks.is_empty(), "there is no gap between payloads");
        self.extend(term)
    }

    fn extend(&mut self, term: Term) -> LogIndex {
        assert!(term >= self.last_term(), "terms never fall along a log");
        let index = self.last.next();
        if term > self.last_term() || self.runs.is_empty() {
            self.runs.push(Run { first: index, term });
        }
        self.last = index;
        index
    }

    /// Forgets the entries from `first` on.
    pub(super) fn truncate_from(&mut self, first: LogIndex) {
        assert!(first > self.base && first <= self.last, "only entries of the log are truncated");
        while let Some(mut chunk) = self.chunks.pop_back() {
            let bytes_before = chunk.bytes.len();
            if chunk.first >= first.0 {
                self.retire(chunk);
                continue;
            }
            let keep = usize::try_from(first.0 - chunk.first).expect("a chunk's entries fit memory");
            chunk.ends.truncate(keep);
            chunk.bytes.truncate(chunk.ends.last().copied().unwrap_or(0));
            self.cached_bytes -= bytes_before - chunk.bytes.len();
            self.chunks.push_back(chunk);
            break;
        }
        self.runs.truncate(self.runs.partition_point(|run| run.first < first));
        self.last = first.prev();
    }

    /// The first index whose payload is in memory; behind the last when none is.
    pub(super) fn cache_first(&self) -> LogIndex {
        self.chunks.front().map_or(self.last.next(), |chunk| LogIndex(chunk.first))
    }

    /// The payload of the entry at `index`, if it is in memory.
    pub(super) fn payload(&self, index: LogIndex) -> Option<&[u8]> {
        let chunk = &self.chunks[self.chunk_of(index)?];
        (index.0 < chunk.next()).then(|| chunk.payload(index.0))
    }

    /// The payloads from `first` on, as far as they are in memory without a gap.
    pub(super) fn payloads_from(&self, first: LogIndex) -> impl Iterator<Item = &[u8]> {
        let chunks = self.chunk_of(first).map(|at| self.chunks.range(at..)).into_iter().flatten();
        chunks
            .flat_map(move |chunk| (first.0.max(chunk.first)..chunk.next()).map(|index| chunk.payload(index)))
    }

    /// The last chunk that begins at `index` or before.
    fn chunk_of(&self, index: LogIndex) -> Option<usize> {
        let last = self.chunks.len().checked_sub(1)?;
        // It is nearly always asked for what came last.
        if self.chunks[last].first <= index.0 {
            return Some(last);
        }
        self.chunks.partition_point(|chunk| chunk.first <= index.0).checked_sub(1)
    }

    /// Drops the payloads through `through`; terms stay.
    pub(super) fn drop_payloads_through(&mut self, through: LogIndex) {
        while self.chunks.front().is_some_and(|chunk| chunk.next() <= through.0 + 1) {
            let oldest = self.chunks.pop_front().expect("there is one");
            self.retire(oldest);
        }
    }

    /// Drops the oldest payloads until `bytes_max` are left, none of them behind `through`. The newest
    /// chunk stays: appends go into it.
    pub(super) fn evict(&mut self, bytes_max: usize, through: LogIndex) {
        while self.cached_bytes > bytes_max && self.chunks.len() > 1 {
            if self.chunks.front().is_none_or(|chunk| chunk.next() > through.0 + 1) {
                return;
            }
            let oldest = self.chunks.pop_front().expect("there are two at least");
            self.retire(oldest);
        }
    }

    fn retire(&mut self, mut chunk: Chunk) {
        self.cached_bytes -= chunk.bytes.len();
        if self.spare.len() < CHUNKS_SPARE_MAX {
            chunk.bytes.clear();
            chunk.ends.clear();
            self.spare.push(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_of(terms: &[u64]) -> Log {
        let mut log = Log::default();
        for (at, term) in terms.iter().enumerate() {
            log.append(Term(*term), |out| out.extend_from_slice(format!("{at}@{term}").as_bytes()));
        }
        log
    }

    #[test]
    fn terms_are_known_for_every_index() {
        let log = log_of(&[1, 1, 3, 3, 3, 7]);
        let terms: Vec<u64> = (0..=6).map(|index| log.term_at(LogIndex(index)).unwrap().0).collect();
        assert_eq!(terms, [0, 1, 1, 3, 3, 3, 7]);
        assert_eq!(log.term_at(LogIndex(7)), None);
    }

    #[test]
    fn backtracking_skips_whole_terms() {
        let log = log_of(&[1, 1, 3, 3, 3, 7]);
        for (index, term, expected) in [(6, 7, 6), (6, 6, 5), (4, 3, 4), (6, 2, 2), (9, 9, 6), (5, 0, 0)] {
            assert_eq!(log.last_at_most(LogIndex(index), Term(term)).0, expected, "{index} {term}");
        }
    }

    #[test]
    fn a_log_that_begins_behind_a_snapshot_knows_no_term_before_it() {
        let mut log = Log::begin_at(LogIndex(10), Term(0));
        log.append(Term(4), |out| out.push(b'x'));
        assert_eq!((log.base(), log.last_index()), (LogIndex(10), LogIndex(11)));
        let known = |log: &Log, index| log.term_at(LogIndex(index)).map(|term| term.0);
        assert_eq!([9, 10, 11].map(|index| known(&log, index)), [None, None, Some(4)]);
        log.set_base_term(Term(3));
        assert_eq!(known(&log, 10), Some(3));
        assert_eq!(log.last_at_most(LogIndex(11), Term(3)), LogIndex(10));
        assert_eq!(log.last_at_most(LogIndex(7), Term(1)), LogIndex(7), "nothing is known of 7");
        log.truncate_from(LogIndex(11));
        assert_eq!((log.last_index(), log.last_term()), (LogIndex(10), Term(3)));
        log.restart_at(LogIndex(20), Term(5));
        assert_eq!((log.append(Term(5), |_| {}), log.cached_bytes), (LogIndex(21), 0));
    }

    #[test]
    fn truncated_entries_are_gone_and_replaced() {
        let mut log = log_of(&[1, 1, 3, 3]);
        log.truncate_from(LogIndex(2));
        assert_eq!((log.last_index(), log.last_term()), (LogIndex(1), Term(1)));
        assert_eq!(log.payload(LogIndex(2)), None);
        log.append(Term(4), |out| out.push(b'x'));
        assert_eq!(log.payload(LogIndex(2)), Some(&b"x"[..]));
        assert_eq!(log.payload(LogIndex(1)), Some(&b"0@1"[..]));
        assert!(log.payloads_from(LogIndex(2)).eq([&b"x"[..]]));
        log.truncate_from(LogIndex(1));
        assert_eq!((log.last_index(), log.last_term(), log.cached_bytes), (LogIndex(0), Term(0), 0));
    }

    #[test]
    fn eviction_keeps_what_is_not_applied_and_leaves_terms() {
        let mut log = Log::default();
        for index in 0..200u8 {
            log.append(Term(1 + u64::from(index) / 100), |out| out.resize(out.len() + 4096, index));
        }
        log.evict(0, LogIndex(50));
        let first = log.cache_first();
        assert!(first.0 > 1 && first.0 <= 51, "{first}");
        assert_eq!(log.payload(first.prev()), None);
        for index in first.0..=200 {
            assert_eq!(log.payload(LogIndex(index)).unwrap()[0], u8::try_from(index - 1).unwrap());
        }
        for from in first.0..=201 {
            let payloads = log.payloads_from(LogIndex(from));
            assert!(payloads.map(|payload| u64::from(payload[0]) + 1).eq(from..=200), "from {from}");
        }
        assert_eq!(log.payloads_from(first.prev()).count(), 0);
        assert_eq!(log.term_at(LogIndex(1)), Some(Term(1)));
        log.truncate_from(LogIndex(first.0));
        assert_eq!(log.cache_first(), first);
    }
}
