//! Who has led a cell and when, and how long entries have waited for their commit and rounds to be confirmed: what
//! everything that must not be late is measured against.
//!
//! Invariant: a moment counts at most once as *without a leader*: one in which no replica serves; in which the one that serves
//! in the newest term cannot act, its process standing still, about to stop or to hand over; or in which the oldest
//! entry or the round of the one that serves has been waiting, if that comes to [`STUCK_MIN`] or ends with its office. A
//! leader that is cut off and has nothing to commit or to confirm counts as one. A *change of leader* is a replica that
//! serves in a term in which none has served. Deliberately absent: what may be how late.

use std::collections::VecDeque;

use lockstep_wire::{LogIndex, NodeId, RoundId, Term};

const MS: u64 = 1_000_000;
/// For how long an entry or a round may wait before its leader counts as none, in ns: the shortest election timeout of the
/// drawn plans.
const STUCK_MIN: u64 = 500 * MS;
/// A wait that is worth remembering, in ns.
const WAIT_MIN: u64 = 5 * MS;

/// A replica that serves, in the newest term in which one does.
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
    /// Its newest round that was confirmed.
    pub confirmed: RoundId,
    /// Its newest round.
    pub round: RoundId,
    /// Whether it can act: its process does not stand still, and is not about to stop or to hand over.
    pub can_act: bool,
}

/// Numbers that were seen first at one moment.
#[derive(Clone, Copy, Debug)]
struct Seen {
    last: u64,
    at: u64,
}

/// What has begun and is not done, by rising numbers.
#[derive(Debug, Default)]
struct Waiting(VecDeque<Seen>);

impl Waiting {
    /// Everything through `last` has begun by now, and everything through `done` is done. Gives the waits that are over.
    fn on_look(&mut self, now: u64, done: u64, last: u64) -> Vec<u64> {
        if last > self.0.back().map_or(done, |seen| seen.last) {
            self.0.push_back(Seen { last, at: now });
        }
        let mut over = Vec::new();
        while let Some(oldest) = self.0.front().copied()
            && oldest.last <= done
        {
            self.0.pop_front();
            over.push(now - oldest.at);
        }
        over
    }

    /// Since when the oldest waits.
    fn since(&self) -> Option<u64> {
        self.0.front().map(|oldest| oldest.at)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Leadership {
    now: u64,
    /// A replica served when it was looked last, and could act.
    is_led: bool,
    /// The newest term in which a replica has served.
    newest: Term,
    /// When the leader changed.
    changes: Vec<u64>,
    /// Times without a leader, apart from each other and in order.
    leaderless: Vec<(u64, u64)>,
    /// The office that `waiting` is of.
    office: Option<(NodeId, Term)>,
    /// What the one that serves has not committed, and not confirmed.
    entries: Waiting,
    rounds: Waiting,
    /// Waits that are over: when, and how long they were.
    waits: Vec<(u64, u64)>,
}

impl Leadership {
    /// Nothing has changed since the last call; now this is so.
    pub fn on_look(&mut self, at: u64, serving: Option<Serving>) {
        // Whoever served before it may not have heard of that yet.
        let serving = serving.filter(|serving| serving.term >= self.newest);
        if !self.is_led {
            self.cover(self.now, at);
        }
        self.now = at;
        self.look_at_office(serving);
        let acting = serving.filter(|serving| serving.can_act);
        if let Some(serving) = acting {
            let entries = self.entries.on_look(at, serving.committed.0, serving.last.0);
            let rounds = self.rounds.on_look(at, serving.confirmed.0, serving.round.0);
            let waits = entries.into_iter().chain(rounds).filter(|wait| *wait >= WAIT_MIN);
            self.waits.extend(waits.map(|wait| (at, wait)));
            if let Some(since) = self.waiting_since().filter(|since| at - since >= STUCK_MIN) {
                self.cover(since, at);
            }
        }
        self.is_led = acting.is_some();
    }

    fn look_at_office(&mut self, serving: Option<Serving>) {
        let office = serving.map(|serving| (serving.node, serving.term));
        if self.office == office {
            return;
        }
        // What the one before had not committed, or confirmed, has waited in vain.
        if let Some(since) = self.waiting_since() {
            self.cover(since, self.now);
        }
        self.office = office;
        (self.entries, self.rounds) = (Waiting::default(), Waiting::default());
        if let Some(serving) = serving.filter(|serving| serving.term > self.newest) {
            self.newest = serving.term;
            self.changes.push(self.now);
        }
    }

    /// Since when the oldest entry or the round waits.
    fn waiting_since(&self) -> Option<u64> {
        self.entries.since().into_iter().chain(self.rounds.since()).min()
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

    /// The cell was restored from a backup: terms go back to the backup's.
    pub fn on_restored(&mut self) {
        self.look_at_office(None);
        self.newest = Term(0);
        self.is_led = false;
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

    /// The longest wait, of an entry or a round, that was not over by then.
    pub fn wait_max_since(&self, since: u64) -> u64 {
        let over = self.waits.iter().rev().take_while(|(end, _)| *end >= since).map(|(_, wait)| *wait);
        let oldest = self.waiting_since().map(|since| self.now - since);
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
            confirmed: RoundId(0),
            round: RoundId(0),
            can_act: true,
        })
    }

    fn asking(term: u64, confirmed: u64, round: u64) -> Option<Serving> {
        let rounds = (RoundId(confirmed), RoundId(round));
        serving(term, 5, 5).map(|serving| Serving { confirmed: rounds.0, round: rounds.1, ..serving })
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
    fn a_leader_whose_round_nobody_confirms_counts_as_none() {
        let mut leadership = Leadership::default();
        leadership.on_look(0, asking(1, 7, 7));
        leadership.on_look(1_000 * MS, asking(1, 7, 8));
        leadership.on_look(1_400 * MS, asking(1, 7, 8));
        assert_eq!(leadership.leaderless_since(0), 0);
        leadership.on_look(1_600 * MS, asking(1, 7, 8));
        assert_eq!(leadership.leaderless_since(0), 600 * MS);
        leadership.on_look(1_700 * MS, asking(1, 8, 8));
        leadership.on_look(3_000 * MS, asking(1, 8, 8));
        assert_eq!(leadership.leaderless_since(0), 600 * MS, "it does not ask any more");
        assert_eq!(leadership.wait_max_since(0), 700 * MS);
    }

    #[test]
    fn a_leader_that_cannot_act_counts_as_none_and_keeps_its_office() {
        let mut leadership = Leadership::default();
        leadership.on_look(0, serving(1, 5, 5));
        leadership.on_look(100 * MS, serving(1, 5, 6));
        let standing = serving(1, 5, 6).map(|serving| Serving { can_act: false, ..serving });
        leadership.on_look(200 * MS, standing);
        leadership.on_look(300 * MS, serving(1, 6, 6));
        assert_eq!(leadership.leaderless_since(0), 100 * MS);
        assert_eq!(leadership.wait_max_since(0), 200 * MS);
        leadership.on_look(400 * MS, serving(1, 6, 7));
        leadership.on_look(600 * MS, None);
        assert_eq!(leadership.leaderless_since(0), 300 * MS, "what waited when it left waited in vain");
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
