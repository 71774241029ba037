//! Expiry is not late without bound (contract, point 2: TTL + 250 ms; with failovers, plus the time without a leader, plus
//! at most TTL/2 + X for each change of leader, X = min(TTL/4, 2 s)).
//!
//! Invariant checked, all the time and at the end of every session that expires: since the cell last heard of the session,
//! or acknowledged it, no more than that has passed in true time. *Heard* is a request of its client that keeps it alive
//! and has been handed to a replica that leads; *acknowledged* is what a leader has answered to one, whether or not that has
//! arrived; both are read off the frames.
//!
//! Who leads since when is `leadership`'s to tell. Commits that come, but slowly, excuse as much as they can delay: an end waits for
//! the entry before it and for its own, and a TTL that begins anew untold begins after the round under way, the next one
//! and, for an attach, an entry; a round is no slower than an entry. The clock of a leader may be wrong by a thousandth.
//! Deliberately absent: how a leader comes to know who is silent.

use std::collections::BTreeMap;

use lockstep_wire::SessionId;

use super::leadership::Leadership;
use super::{Verdict, violated};

const RULE: &str = "expiry is not late without bound (contract 2)";
const MS: u64 = 1_000_000;
/// What the contract allows without any failover, in ns.
const LATE_MAX: u64 = 250 * MS;
/// Entries that the end of a session can wait for, one after the other, its own among them.
const WAITS_OF_END: u64 = 2;
/// What passes between a beat and the TTL that it begins, in waits of an entry.
const WAITS_OF_BEAT: u64 = 3;

#[derive(Clone, Copy, Debug)]
struct Heard {
    ttl_ms: u32,
    /// When it was heard or acknowledged last, in ns.
    at: u64,
}

/// Watches the sessions of one cell.
#[derive(Debug, Default)]
pub struct Lateness {
    sessions: BTreeMap<SessionId, Heard>,
}

impl Lateness {
    /// A session was opened.
    pub fn on_opened(&mut self, session: SessionId, ttl_ms: u32, leadership: &Leadership) {
        self.sessions.insert(session, Heard { ttl_ms, at: leadership.now() });
    }

    /// A session was heard or acknowledged, at `at`.
    pub fn on_heard(&mut self, session: SessionId, at: u64) {
        if let Some(heard) = self.sessions.get_mut(&session) {
            heard.at = at;
        }
    }

    /// A session has ended, by its client's wish or not.
    ///
    /// # Errors
    /// It has not, and it ended too late.
    pub fn on_ended(&mut self, session: SessionId, is_expired: bool, leadership: &Leadership) -> Verdict {
        match self.sessions.remove(&session) {
            Some(heard) if is_expired => check(session, heard, "ends", leadership),
            Some(_) | None => Ok(()),
        }
    }

    /// Looks for sessions that ought to be gone.
    ///
    /// # Errors
    /// There is one.
    pub fn check_all(&self, leadership: &Leadership) -> Verdict {
        self.sessions.iter().try_for_each(|(session, heard)| check(*session, *heard, "lives", leadership))
    }

    /// The sessions that live.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().copied()
    }
}

fn check(session: SessionId, heard: Heard, how: &str, leadership: &Leadership) -> Verdict {
    let ttl = u64::from(heard.ttl_ms) * MS;
    let step = (ttl / 4).min(2_000 * MS);
    let passed = leadership.now().saturating_sub(heard.at);
    if passed <= ttl + LATE_MAX {
        return Ok(());
    }
    let leaderless = leadership.leaderless_since(heard.at);
    let changes = leadership.changes_since(heard.at);
    let due = ttl + ttl / 1_000 + leaderless + changes * (ttl / 2 + step);
    let slow_beat = WAITS_OF_BEAT * leadership.wait_max_since(heard.at);
    let slow_end = WAITS_OF_END * leadership.wait_max_since(heard.at + due);
    let allowed = due + LATE_MAX + slow_beat + slow_end;
    if passed <= allowed {
        return Ok(());
    }
    violated(
        RULE,
        format!(
            "session {session} with a TTL of {} ms {how} {} ms after it was last heard, in which {} ms were without a \
             leader, the leader changed {changes} times and slow commits excuse {} ms: {} ms too late",
            heard.ttl_ms,
            passed / MS,
            leaderless / MS,
            (slow_beat + slow_end) / MS,
            (passed - allowed) / MS
        ),
    )
}

#[cfg(test)]
mod tests {
    use lockstep_wire::{LogIndex, NodeId, RoundId, Term};

    use super::super::leadership::Serving;
    use super::*;

    const ONE: SessionId = SessionId(1);

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

    /// A session with a TTL of 4 s that was opened at 1 s under the leader of term 1.
    fn opened() -> (Lateness, Leadership) {
        let mut leadership = Leadership::default();
        leadership.on_look(1_000 * MS, serving(1, 5, 5));
        let mut lateness = Lateness::default();
        lateness.on_opened(ONE, 4_000, &leadership);
        (lateness, leadership)
    }

    #[test]
    fn a_session_that_outlives_its_ttl_is_seen_while_it_lives_and_when_it_ends() {
        let (mut lateness, mut leadership) = opened();
        leadership.on_look(5_250 * MS, serving(1, 9, 9));
        assert_eq!(lateness.check_all(&leadership), Ok(()));
        leadership.on_look(5_260 * MS, serving(1, 9, 9));
        assert!(lateness.check_all(&leadership).is_err());
        assert!(lateness.on_ended(ONE, true, &leadership).is_err());
        assert_eq!(lateness.check_all(&leadership), Ok(()), "it is gone");
    }

    #[test]
    fn it_counts_from_when_it_was_heard_last_and_not_for_a_session_that_was_closed() {
        let (mut lateness, mut leadership) = opened();
        leadership.on_look(4_000 * MS, serving(1, 5, 5));
        lateness.on_heard(ONE, 4_000 * MS);
        leadership.on_look(8_250 * MS, serving(1, 5, 5));
        assert_eq!(lateness.check_all(&leadership), Ok(()));
        leadership.on_look(60_000 * MS, serving(1, 5, 5));
        assert_eq!(lateness.on_ended(ONE, false, &leadership), Ok(()));
    }

    #[test]
    fn a_change_of_leader_allows_half_a_ttl_and_a_step_and_no_ttl() {
        let (lateness, mut leadership) = opened();
        leadership.on_look(2_000 * MS, serving(2, 5, 5));
        leadership.on_look(8_250 * MS, serving(2, 5, 5));
        assert_eq!(lateness.check_all(&leadership), Ok(()));
        leadership.on_look(8_260 * MS, serving(2, 5, 5));
        assert!(lateness.check_all(&leadership).is_err());
    }

    #[test]
    fn time_without_a_leader_is_allowed() {
        let (lateness, mut leadership) = opened();
        leadership.on_look(2_000 * MS, None);
        leadership.on_look(9_000 * MS, serving(1, 5, 5));
        leadership.on_look(12_250 * MS, serving(1, 5, 5));
        assert_eq!(lateness.check_all(&leadership), Ok(()));
        leadership.on_look(12_260 * MS, serving(1, 5, 5));
        assert!(lateness.check_all(&leadership).is_err());
    }

    #[test]
    fn a_slow_commit_excuses_what_it_can_delay_and_not_the_time_that_it_took_before() {
        let (lateness, mut leadership) = opened();
        for step in 0..20 {
            leadership.on_look((1_100 + 50 * step) * MS, serving(1, 5 + step, 6 + step));
        }
        leadership.on_look(2_100 * MS, serving(1, 25, 25));
        leadership.on_look(5_400 * MS, serving(1, 25, 25));
        assert_eq!(lateness.check_all(&leadership), Ok(()), "50 ms, three times");
        leadership.on_look(5_410 * MS, serving(1, 25, 25));
        assert!(lateness.check_all(&leadership).is_err(), "a second of waits, one after the other");
    }
}
