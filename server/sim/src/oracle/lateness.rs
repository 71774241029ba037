//! Expiry is not late without bound (contract, point 2: TTL + 250 ms; with failovers, plus the time without a leader, plus
//! at most TTL/2 + X for each change of leader, X = min(TTL/4, 2 s)).
//!
//! Invariant checked, all the time and at the end of every session that expires: since the cell last heard of the session,
//! or acknowledged it, no more than that has passed in true time. *Heard* is a request of its client that keeps it alive
//! and has been handed to a replica that leads; *acknowledged* is what a leader has answered to one, whether or not that has
//! arrived; both are read off the frames.
//!
//! *Time without a leader* is true time in which no replica serves, or the one that serves in the newest term gets nothing
//! done: its process stands still, it is about to stop or to hand over, or the oldest entry that it has not committed has been
//! waiting for [`STUCK_MIN`] (then all of that wait counts, from when commits stood still). A leader that is cut off and has
//! nothing to commit counts as one: what is lost with it is what the contract allows for the change of leader that follows.
//! A *change of leader* is a replica that serves in a term in which none has served. The clock of a leader may be wrong by a
//! thousandth. Deliberately absent: how a leader comes to know who is silent.

use std::collections::BTreeMap;

use lockstep_wire::{LogIndex, NodeId, SessionId, Term};

use super::{Verdict, violated};

const RULE: &str = "expiry is not late without bound (contract 2)";
const MS: u64 = 1_000_000;
/// What the contract allows without any failover, in ns.
const LATE_MAX: u64 = 250 * MS;
/// For how long an entry may wait for its commit before its leader counts as none, in ns.
const STUCK_MIN: u64 = 50 * MS;

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

/// How much had happened by some moment.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// The moment, in ns of true time.
    at: u64,
    /// Time without a leader, in ns.
    leaderless: u64,
    /// Changes of leader.
    changes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    ttl_ms: u32,
    /// When it was heard or acknowledged last.
    since: Tally,
}

/// Watches the sessions of one cell.
#[derive(Debug, Default)]
pub struct Lateness {
    now: Tally,
    serving: Option<Serving>,
    /// The newest term in which a replica has served.
    newest: Term,
    /// Since when the commits of the one that serves have stood still, and whether that counts as none serving.
    still: Option<(u64, bool)>,
    sessions: BTreeMap<SessionId, Heard>,
}

impl Lateness {
    /// Nothing has changed since the last call; now this is so.
    pub fn on_look(&mut self, at: u64, serving: Option<Serving>) {
        // Whoever served before it may not have heard of that yet.
        let serving = serving.filter(|serving| serving.term >= self.newest);
        let passed = at - self.now.at;
        let counts = self.serving.is_none() || self.still.is_some_and(|(_, counts)| counts);
        self.now.leaderless += if counts { passed } else { 0 };
        self.now.at = at;
        if let Some((since, counts)) = &mut self.still
            && !*counts
            && at - *since >= STUCK_MIN
        {
            *counts = true;
            self.now.leaderless += at - *since;
        }
        let is_still = |serving: &Serving| {
            serving.committed < serving.last
                && self.serving.is_some_and(|before| {
                    (before.node, before.term, before.committed)
                        == (serving.node, serving.term, serving.committed)
                        && before.committed < before.last
                })
        };
        if !serving.as_ref().is_some_and(is_still) {
            let waits = serving.is_some_and(|serving| serving.committed < serving.last);
            self.still = waits.then_some((at, false));
        }
        if let Some(serving) = serving
            && serving.term > self.newest
        {
            self.newest = serving.term;
            self.now.changes += 1;
        }
        self.serving = serving;
    }

    /// A session was opened.
    pub fn on_opened(&mut self, session: SessionId, ttl_ms: u32) {
        self.sessions.insert(session, Heard { ttl_ms, since: self.now });
    }

    /// A session was heard or acknowledged, at `at`.
    pub fn on_heard(&mut self, session: SessionId, at: u64) {
        if let Some(heard) = self.sessions.get_mut(&session) {
            heard.since = Tally { at, ..self.now };
        }
    }

    /// A session has ended, by its client's wish or not.
    ///
    /// # Errors
    /// It has not, and it ended too late.
    pub fn on_ended(&mut self, session: SessionId, is_expired: bool) -> Verdict {
        match self.sessions.remove(&session) {
            Some(heard) if is_expired => self.check(session, heard, "ends"),
            Some(_) | None => Ok(()),
        }
    }

    /// Looks for sessions that ought to be gone.
    ///
    /// # Errors
    /// There is one.
    pub fn check_all(&self) -> Verdict {
        self.sessions.iter().try_for_each(|(session, heard)| self.check(*session, *heard, "lives"))
    }

    /// The sessions that live.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().copied()
    }

    fn check(&self, session: SessionId, heard: Heard, how: &str) -> Verdict {
        let ttl = u64::from(heard.ttl_ms) * MS;
        let step = (ttl / 4).min(2_000 * MS);
        let passed = self.now.at - heard.since.at;
        let leaderless = self.now.leaderless - heard.since.leaderless;
        let changes = self.now.changes - heard.since.changes;
        let allowed = ttl + ttl / 1_000 + LATE_MAX + leaderless + changes * (ttl / 2 + step);
        if passed <= allowed {
            return Ok(());
        }
        violated(
            RULE,
            format!(
                "session {session} with a TTL of {} ms {how} {} ms after it was last heard, in which {} ms were without a \
                 leader and the leader changed {changes} times: {} ms too late",
                heard.ttl_ms,
                passed / MS,
                leaderless / MS,
                (passed - allowed) / MS
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SessionId = SessionId(1);

    fn serving(term: u64, committed: u64, last: u64) -> Option<Serving> {
        Some(Serving {
            node: NodeId(1),
            term: Term(term),
            committed: LogIndex(committed),
            last: LogIndex(last),
        })
    }

    /// A session with a TTL of 4 s that was opened at 1 s under the leader of term 1.
    fn opened() -> Lateness {
        let mut lateness = Lateness::default();
        lateness.on_look(1_000 * MS, serving(1, 5, 5));
        lateness.on_opened(ONE, 4_000);
        lateness
    }

    #[test]
    fn a_session_that_outlives_its_ttl_is_seen_while_it_lives_and_when_it_ends() {
        let mut lateness = opened();
        lateness.on_look(5_250 * MS, serving(1, 9, 9));
        assert_eq!(lateness.check_all(), Ok(()));
        lateness.on_look(5_260 * MS, serving(1, 9, 9));
        assert!(lateness.check_all().is_err());
        assert!(lateness.on_ended(ONE, true).is_err());
        assert_eq!(lateness.check_all(), Ok(()), "it is gone");
    }

    #[test]
    fn it_counts_from_when_it_was_heard_last_and_not_for_a_session_that_was_closed() {
        let mut lateness = opened();
        lateness.on_look(4_000 * MS, serving(1, 5, 5));
        lateness.on_heard(ONE, 4_000 * MS);
        lateness.on_look(8_250 * MS, serving(1, 5, 5));
        assert_eq!(lateness.check_all(), Ok(()));
        lateness.on_look(60_000 * MS, serving(1, 5, 5));
        assert_eq!(lateness.on_ended(ONE, false), Ok(()));
    }

    #[test]
    fn a_change_of_leader_allows_half_a_ttl_and_a_step_and_no_ttl() {
        let mut lateness = opened();
        lateness.on_look(2_000 * MS, serving(2, 5, 5));
        lateness.on_look(8_250 * MS, serving(2, 5, 5));
        assert_eq!(lateness.check_all(), Ok(()));
        lateness.on_look(8_260 * MS, serving(2, 5, 5));
        assert!(lateness.check_all().is_err());
    }

    #[test]
    fn time_without_a_leader_is_allowed() {
        let mut lateness = opened();
        lateness.on_look(2_000 * MS, None);
        lateness.on_look(9_000 * MS, serving(1, 5, 5));
        lateness.on_look(12_250 * MS, serving(1, 5, 5));
        assert_eq!(lateness.check_all(), Ok(()));
        lateness.on_look(12_260 * MS, serving(1, 5, 5));
        assert!(lateness.check_all().is_err());
    }

    #[test]
    fn a_leader_whose_commits_stand_still_counts_as_none_from_when_they_do() {
        let mut lateness = opened();
        lateness.on_look(2_000 * MS, serving(1, 5, 6));
        lateness.on_look(2_020 * MS, serving(1, 5, 7));
        lateness.on_look(2_100 * MS, serving(1, 5, 7));
        lateness.on_look(4_000 * MS, serving(1, 7, 7));
        assert_eq!(lateness.now.leaderless, 3_000 * MS, "and the first second had none");
        // Commits that come, if slowly, are commits.
        for step in 1..100 {
            lateness.on_look((4_000 + 40 * step) * MS, serving(1, 7 + step, 9 + step));
        }
        assert_eq!(lateness.now.leaderless, 3_000 * MS);
    }
}
