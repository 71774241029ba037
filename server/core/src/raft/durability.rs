//! What the disk has confirmed, and what waits for it.
//!
//! Invariant: an index counts as durable only by the append that carries its *current* content: a
//! truncation takes back every confirmation still to come for what it removed (ARCHITECTURE section 4.1).
//! A vote leaves only from here. Deliberately absent: the records themselves.

use std::collections::VecDeque;

use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::peer::Ballot;
use lockstep_wire::{LogIndex, NodeId, SnapshotId, Term};

use crate::{AppendId, Span, Time};

/// What happens once an append is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deferred {
    /// The manifest is stored: say so.
    Manifest,
    /// The lowest member has stored that the cell is born: tell everybody.
    Born,
    /// The mark of a snapshot of this node's state is stored: it counts.
    Marked(SnapshotId),
    /// The mark of a snapshot of the leader is stored, and whatever it replaced is gone: say so.
    Installed(SnapshotId),
    /// This node's own vote is stored: ask the others for theirs.
    Campaign {
        /// In this term.
        term: Term,
    },
    /// A vote is stored: give it.
    VoteReply {
        /// To this candidate.
        to: NodeId,
        /// In this ballot.
        ballot: Ballot,
        /// In this term.
        term: Term,
    },
}

/// Appends that follow each other with entries that follow each other.
#[derive(Clone, Copy, Debug)]
struct EntryRun {
    append: u64,
    index: u64,
    count: u64,
}

/// The appends of a cell on their way to the disk.
#[derive(Debug)]
pub(super) struct Durability {
    last_append: AppendId,
    durable_append: AppendId,
    durable_index: LogIndex,
    hard_state: AppendId,
    entries: VecDeque<EntryRun>,
    deferred: VecDeque<(AppendId, Deferred)>,
    /// The outstanding appends in groups: the last one, and when the first one was made.
    issued: VecDeque<(AppendId, Time)>,
    issued_grain: Span,
}

impl Durability {
    /// Nothing is on its way; the entries through `durable_index` were found on the disk.
    pub(super) fn new(durable_index: LogIndex, issued_grain: Span) -> Durability {
        Durability {
            last_append: AppendId(0),
            durable_append: AppendId(0),
            durable_index,
            hard_state: AppendId(0),
            entries: VecDeque::new(),
            deferred: VecDeque::new(),
            issued: VecDeque::new(),
            issued_grain,
        }
    }

    /// The last index that the disk has.
    pub(super) fn durable_index(&self) -> LogIndex {
        self.durable_index
    }

    /// The newest append.
    #[cfg(test)]
    pub(super) fn last_append(&self) -> AppendId {
        self.last_append
    }

    /// Numbers an append that is made now.
    pub(super) fn append(&mut self, now: Time) -> AppendId {
        self.last_append = AppendId(self.last_append.0 + 1);
        match self.issued.back_mut() {
            Some((last, since)) if now.since(*since) < self.issued_grain => *last = self.last_append,
            Some(_) | None => self.issued.push_back((self.last_append, now)),
        }
        self.last_append
    }

    /// Numbers the append of an entry.
    pub(super) fn append_entry(&mut self, index: LogIndex, now: Time) -> AppendId {
        let append = self.append(now);
        if mutant::is(Mutant::AcknowledgeBeforeDurable) {
            self.durable_index = index;
        }
        match self.entries.back_mut() {
            Some(run) if run.append + run.count == append.0 && run.index + run.count == index.0 => {
                run.count += 1;
            }
            Some(_) | None => {
                self.entries.push_back(EntryRun { append: append.0, index: index.0, count: 1 });
            }
        }
        append
    }

    /// Numbers the append of a hard state.
    pub(super) fn append_hard_state(&mut self, now: Time) -> AppendId {
        self.hard_state = self.append(now);
        self.hard_state
    }

    /// The append of the current hard state.
    pub(super) fn hard_state(&self) -> AppendId {
        self.hard_state
    }

    /// Whether the disk has the current term and vote.
    pub(super) fn is_hard_state_durable(&self) -> bool {
        self.hard_state <= self.durable_append
    }

    /// Does something once `append` is durable; appends come in order.
    pub(super) fn defer(&mut self, append: AppendId, deferred: Deferred) {
        assert!(append > self.durable_append, "what is durable already does not wait");
        debug_assert!(self.deferred.back().is_none_or(|(last, _)| *last <= append));
        self.deferred.push_back((append, deferred));
    }

    /// Whether anything waits for the disk.
    pub(super) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// The entries from `first` on are gone: no confirmation under way is about them any more.
    pub(super) fn on_truncated(&mut self, first: LogIndex) {
        if mutant::is(Mutant::AcknowledgementSurvivesTruncation) {
            return;
        }
        while let Some(run) = self.entries.back_mut() {
            if run.index >= first.0 {
                self.entries.pop_back();
                continue;
            }
            run.count = run.count.min(first.0 - run.index);
            break;
        }
        self.durable_index = self.durable_index.min(first.prev());
    }

    /// The disk has every append through this one.
    pub(super) fn on_durable(&mut self, append: AppendId) {
        assert!(append <= self.last_append, "only what was appended becomes durable");
        self.durable_append = self.durable_append.max(append);
        while let Some(run) = self.entries.front_mut() {
            if run.append > append.0 {
                break;
            }
            let confirmed = run.count.min(append.0 - run.append + 1);
            self.durable_index = LogIndex(run.index + confirmed - 1);
            if confirmed < run.count {
                run.append += confirmed;
                run.index += confirmed;
                run.count -= confirmed;
                break;
            }
            self.entries.pop_front();
        }
        while self.issued.front().is_some_and(|(last, _)| *last <= append) {
            self.issued.pop_front();
        }
    }

    /// The next thing that no longer has to wait.
    pub(super) fn poll_deferred(&mut self) -> Option<Deferred> {
        let (append, deferred) = *self.deferred.front()?;
        if append > self.durable_append {
            return None;
        }
        self.deferred.pop_front();
        Some(deferred)
    }

    /// Whether an append has been outstanding for longer than `limit`.
    pub(super) fn is_hung(&self, now: Time, limit: Span) -> bool {
        self.issued.front().is_some_and(|(_, since)| now.since(*since) > limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(0);

    #[test]
    fn confirmations_of_truncated_entries_count_for_nothing() {
        let mut disk = Durability::new(LogIndex(0), Span(1));
        let appends: Vec<AppendId> = (1..=5).map(|index| disk.append_entry(LogIndex(index), NOW)).collect();
        disk.on_durable(appends[1]);
        assert_eq!(disk.durable_index(), LogIndex(2));
        disk.append(NOW);
        disk.on_truncated(LogIndex(4));
        let replaced = disk.append_entry(LogIndex(4), NOW);
        disk.on_durable(appends[4]);
        assert_eq!(disk.durable_index(), LogIndex(3), "the old entries 4 and 5 do not count");
        disk.on_durable(replaced);
        assert_eq!(disk.durable_index(), LogIndex(4));
    }

    #[test]
    fn truncation_below_what_is_durable_takes_it_back() {
        let mut disk = Durability::new(LogIndex(9), Span(1));
        disk.append(NOW);
        disk.on_truncated(LogIndex(4));
        assert_eq!(disk.durable_index(), LogIndex(3));
    }

    #[test]
    fn an_old_outstanding_append_means_a_hung_disk() {
        let mut disk = Durability::new(LogIndex(0), Span(10));
        let first = disk.append(Time(100));
        disk.append(Time(150));
        assert!(!disk.is_hung(Time(200), Span(100)));
        assert!(disk.is_hung(Time(201), Span(100)));
        disk.on_durable(first);
        assert!(!disk.is_hung(Time(201), Span(100)));
        assert!(disk.is_hung(Time(251), Span(100)));
    }
}
