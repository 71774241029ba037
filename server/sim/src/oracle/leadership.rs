//! Who has led a cell and when, and how long entries have waited for their commit: what everything that must not be late is
//! measured against.
//!
//! Invariant: a moment counts at most once as *without a leader*: one in which no replica serves; in which the one that serves
//! in the newest term cannot act, its process standing still, about to stop or to hand over; or in which the oldest
//! entry of the one that serves has been waiting, if that comes to [`STUCK_MIN`] or ends with its office. A leader that is
//! cut off and has nothing to commit counts as one. A *change of leader* is a replica that serves in a term in which none
//! has served. Deliberately absent: what may be how late.

use std::collections::VecDeque;

use lockstep_wire::{LogIndex, NodeId, Term};

const MS: u64 = 1_000_000;
/// For how long an entry may wait for its commit before its leader counts as none, in ns: the shortest election timeout
/// of the drawn plans.
const STUCK_MIN: u64 = 500 * MS;
/// A wait of an entry for its commit that is worth remembering, in ns.
const WAIT_MIN: u64 = 5 * MS;

/// A replica that serves, in the newest term in which one does, and can act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serving {
    /// Which.
    pub node: NodeId,
    /// In which term.
    pub term: Term,
    /// How far it knows its log to be committed.
    pub committed: LogIndex,
    /// Its last entry.
    pub last: LogIndex,
}

/// Entries that were seen first at one moment.
#[derive(Clone, Copy, Debug)]
struct Appended {
    last: LogIndex,
    at: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Leadership {
    now: u64,
    serving: Option<Serving>,
    /// The newest term in which a replica has served.
    newest: Term,
    /// When the leader changed.
    changes: Vec<u64>,
    /// Times without a leader, apart from each other and in order.
    leaderless: Vec<(u64, u64)>,
    /// The office that `waiting` is of.
    office: Option<(NodeId, Term)>,
    /// What the one that serves has not committed.
    waiting: VecDeque<Appended>,
    /// Waits for a commit that are over: when, and how long they were.
    waits: Vec<(u64, u64)>,
}

impl Leadership {
    /// Nothing has changed since the last call; now this is so.
    pub fn on_look(&mut self, at: u64, serving: Option<Serving>) {
        // Whoever served before it may not have heard of that yet.
        let serving = serving.filter(|serving| serving.term >= self.newest);
        if self.serving.is_none() {
            self.cover(self.now, at);
        }
        self.now = at;
        if let Some(serving) = serving {
            self.take_office(serving);
            self.note_commits(serving);
        }
        if let Some(oldest) = self.waiting.front().copied()
            && serving.is_some()
            && at - oldest.at >= STUCK_MIN
        {
            self.cover(oldest.at, at);
        }
        self.serving = serving;
    }

    fn take_office(&mut self, serving: Serving) {
        let office = Some((serving.node, serving.term));
        if self.office == office {
            return;
        }
        // What the one before it had not committed has waited in vain.
        if let Some(oldest) = self.waiting.front().copied() {
            self.cover(oldest.at, self.now);
        }
        self.office = office;
        self.waiting.clear();
        if serving.term > self.newest {
            self.newest = serving.term;
            self.changes.push(self.now);
        }
    }

    fn note_commits(&mut self, serving: Serving) {
        let known = self.waiting.back().map_or(serving.committed, |appended| appended.last);
        if serving.last > known {
            self.waiting.push_back(Appended { last: serving.last, at: self.now });
        }
        while let Some(oldest) = self.waiting.front().copied()
            && oldest.last <= serving.committed
        {
            self.waiting.pop_front();
            let wait = self.now - oldest.at;
            if wait >= WAIT_MIN {
                self.waits.push((self.now, wait));
            }
        }
    }

    /// Counts this time as one without a leader.
    fn cover(&mut self, from: u64, to: u64) {
        let mut from = from;
        while let Some((begin, end)) = self.leaderless.last().copied()
            && end >= from
        {
            self.leaderless.pop();
            from = from.min(begin);
        }
        if to > from {
            self.leaderless.push((from, to));
        }
    }

    /// What time it is.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// How much of the time since then was without a leader.
    pub fn leaderless_since(&self, since: u64) -> u64 {
        let spans = self.leaderless.iter().rev().take_while(|(_, end)| *end > since);
        spans.map(|(begin, end)| end - since.max(*begin)).sum()
    }

    /// How often the leader has changed since then.
    pub fn changes_since(&self, since: u64) -> u64 {
        self.changes.iter().rev().take_while(|change| **change > since).count() as u64
    }

    /// The longest wait of an entry for its commit that was not over by then.
    pub fn wait_max_since(&self, since: u64) -> u64 {
        let over = self.waits.iter().rev().take_while(|(end, _)| *end >= since).map(|(_, wait)| *wait);
        let oldest = self.waiting.front().map(|oldest| self.now - oldest.at);
        over.chain(oldest).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serving(term: u64, committed: u64, last: u64) -> Option<Serving> {
        Some(Serving {
            node: NodeId(1),
            term: Term(term),
            committed: LogIndex(committed),
            last: LogIndex(last),
        })
    }

    #[test]
    fn time_in_which_none_serves_counts_from_where_one_looks() {
        let mut leadership = Leadership::default();
        leadership.on_look(1_000, None);
        leadership.on_look(2_000, serving(1, 5, 5));
        leadership.on_look(5_000, None);
        leadership.on_look(6_000, serving(1, 5, 5));
        assert_eq!(leadership.leaderless_since(0), 3_000);
        assert_eq!(leadership.leaderless_since(1_500), 1_500);
        assert_eq!(leadership.leaderless_since(5_500), 500);
        assert_eq!(leadership.leaderless_since(6_000), 0);
    }

    #[test]
    fn only_a_newer_term_is_a_change() {
        let mut leadership = Leadership::default();
        leadership.on_look(1, serving(2, 5, 5));
        leadership.on_look(2, None);
        leadership.on_look(3, serving(2, 5, 5));
        leadership.on_look(4, serving(1, 5, 5));
        assert_eq!(leadership.changes_since(0), 1);
        leadership.on_look(5, serving(3, 5, 5));
        assert_eq!((leadership.changes_since(0), leadership.changes_since(1)), (2, 1));
    }

    #[test]
    fn a_leader_whose_oldest_entry_waits_for_long_counts_as_none_for_all_of_it() {
        let mut leadership = Leadership::default();
        leadership.on_look(0, serving(1, 5, 5));
        leadership.on_look(1_000 * MS, serving(1, 5, 6));
        leadership.on_look(1_400 * MS, serving(1, 5, 9));
        assert_eq!(leadership.leaderless_since(0), 0);
        leadership.on_look(1_500 * MS, serving(1, 5, 9));
        leadership.on_look(1_600 * MS, serving(1, 5, 9));
        leadership.on_look(1_700 * MS, serving(1, 6, 9));
        assert_eq!(leadership.leaderless_since(0), 600 * MS, "from its append on");
        leadership.on_look(1_800 * MS, serving(1, 8, 9));
        assert_eq!(leadership.leaderless_since(0), 600 * MS, "the next one waits since 1,400");
        leadership.on_look(1_900 * MS, serving(1, 8, 9));
        assert_eq!(leadership.leaderless_since(0), 900 * MS);
    }

    #[test]
    fn commits_that_come_if_slowly_are_commits() {
        let mut leadership = Leadership::default();
        for step in 0..100 {
            leadership.on_look(40 * step * MS, serving(1, 7 + step, 9 + step));
        }
        assert_eq!(leadership.leaderless_since(0), 0);
        assert_eq!(leadership.wait_max_since(0), 80 * MS);
    }

    #[test]
    fn what_waits_in_vain_until_another_leads_counts_however_short_it_was() {
        let mut leadership = Leadership::default();
        leadership.on_look(0, serving(1, 5, 5));
        leadership.on_look(100 * MS, serving(1, 5, 6));
        leadership.on_look(300 * MS, serving(2, 6, 6));
        assert_eq!(leadership.leaderless_since(0), 200 * MS);
    }
}
