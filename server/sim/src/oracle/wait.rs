//! A wait is as long as its client asked for (docs/SEMANTICS.md, section 5): never cut short, and over in bounded time.
//!
//! Invariants checked: whoever is told `TIMED_OUT` has sent that acquire its whole wait ago, or sent it again what was left
//! of it ago; and a wait that has begun does not last longer than what it was to last, 250 ms, the time
//! without a leader and, for each change of leader, once more what it was to last, because its timer lives in the memory of a
//! leader. A clock may be wrong by a thousandth; a commit that is slow excuses as much as it takes. Deliberately absent:
//! how else a wait may end, and waits of sessions that have ended.

use std::collections::BTreeMap;

use lockstep_core::table::Outcome;
use lockstep_wire::entry::Command;
use lockstep_wire::{RequestId, SessionId};

use super::leadership::Leadership;
use super::once::RequestKey;
use super::{Verdict, violated};

const MS: u64 = 1_000_000;
/// What a timer may be late by, in ns.
const LATE_MAX: u64 = 250 * MS;
/// What a timer may be early by in true time besides the drift of its clock, in ns: clocks count whole ns.
const EARLY_MAX: u64 = MS;

#[derive(Clone, Copy, Debug)]
struct Wait {
    /// When it began, in ns.
    began: u64,
    /// What it was to last then.
    wait_ms: u32,
    /// The longest that any send of it has asked for: what a new leader may begin anew.
    wait_ms_max: u32,
}

/// Watches the waits of one cell.
#[derive(Debug, Default)]
pub struct Waits {
    /// When an acquire may time out at the earliest, by what its client has sent.
    earliest: BTreeMap<RequestKey, u64>,
    running: BTreeMap<RequestKey, Wait>,
}

impl Waits {
    /// A client sends an acquire, for the first time or again.
    pub fn on_sent(&mut self, request: RequestKey, wait_ms: u32, now: u64) {
        let wait = u64::from(wait_ms) * MS;
        let earliest = (now + wait).saturating_sub(wait / 1_000 + EARLY_MAX);
        let known = self.earliest.entry(request).or_insert(earliest);
        *known = earliest.min(*known);
    }

    /// A client is told that an acquire has waited as long as it asked to.
    ///
    /// # Errors
    /// It has not.
    pub fn on_timed_out(&self, request: RequestKey, now: u64) -> Verdict {
        match self.earliest.get(&request) {
            Some(earliest) if now < *earliest => violated(
                "a wait is never cut short (SEMANTICS, section 5)",
                format!(
                    "request {} of session {} is told TIMED_OUT {} us too early",
                    request.1,
                    request.0,
                    (earliest - now) / 1_000
                ),
            ),
            Some(_) | None => Ok(()),
        }
    }

    /// An entry was committed.
    ///
    /// # Errors
    /// It ends a wait too late.
    pub fn on_entry(
        &mut self,
        command: &Command<'_>,
        outcomes: &[Outcome],
        leadership: &Leadership,
    ) -> Verdict {
        for outcome in outcomes {
            match outcome {
                Outcome::WaitStarted { session, acquire_id, wait_ms } => {
                    let began = leadership.now();
                    let fresh = Wait { began, wait_ms: *wait_ms, wait_ms_max: *wait_ms };
                    let wait = self.running.entry((*session, *acquire_id)).or_insert(fresh);
                    wait.wait_ms_max = wait.wait_ms_max.max(*wait_ms);
                }
                Outcome::WaitEnded { session, acquire_id } => {
                    let request = (*session, *acquire_id);
                    if let Some(wait) = self.running.remove(&request) {
                        check(request, wait, leadership)?;
                    }
                }
                Outcome::Reply { .. }
                | Outcome::Opened { .. }
                | Outcome::OpenRefused { .. }
                | Outcome::HoldEnded { .. }
                | Outcome::SessionEnded { .. }
                | Outcome::ReapNeeded => {}
            }
        }
        if let Command::EndSessions { sessions, .. } = command {
            sessions.iter().for_each(|session| self.forget(session));
        }
        Ok(())
    }

    /// Looks for waits that ought to be over.
    ///
    /// # Errors
    /// There is one.
    pub fn check_all(&self, leadership: &Leadership) -> Verdict {
        self.running.iter().try_for_each(|(request, wait)| check(*request, *wait, leadership))
    }

    fn forget(&mut self, session: SessionId) {
        let of_session = (session, RequestId(0))..=(session, RequestId(u64::MAX));
        let requests: Vec<RequestKey> = self.running.range(of_session).map(|(request, _)| *request).collect();
        for request in requests {
            self.running.remove(&request);
        }
    }
}

fn check(request: RequestKey, wait: Wait, leadership: &Leadership) -> Verdict {
    let period = u64::from(wait.wait_ms) * MS;
    let passed = leadership.now().saturating_sub(wait.began);
    if passed <= period + LATE_MAX {
        return Ok(());
    }
    let changes = leadership.changes_since(wait.began);
    let periods = period + changes * u64::from(wait.wait_ms_max) * MS;
    let due = periods + periods / 1_000 + leadership.leaderless_since(wait.began);
    let allowed = due + LATE_MAX + leadership.wait_max_since(wait.began + due);
    if passed <= allowed {
        return Ok(());
    }
    violated(
        "a wait ends within its bound (SEMANTICS, section 5)",
        format!(
            "request {} of session {} was to wait {} ms and has for {} ms, in which the leader changed {changes} times: \
             {} ms too long",
            request.1,
            request.0,
            wait.wait_ms,
            passed / MS,
            (passed - allowed) / MS
        ),
    )
}

#[cfg(test)]
mod tests {
    use lockstep_wire::reply::EndReason;
    use lockstep_wire::{LogIndex, NodeId, RoundId, Rows, Term};

    use super::super::leadership::Serving;
    use super::*;

    const ONE: RequestKey = (SessionId(1), RequestId(7));

    fn look(leadership: &mut Leadership, ms: u64, term: u64) {
        let (node, index) = (NodeId(1), LogIndex(5));
        let (round, can_act) = (RoundId(0), true);
        let serving = Serving {
            node,
            term: Term(term),
            committed: index,
            last: index,
            confirmed: round,
            round,
            can_act,
        };
        leadership.on_look(ms * MS, Some(serving));
    }

    /// A wait of 2 s that began at 1 s.
    fn begun() -> (Waits, Leadership) {
        let (mut waits, mut leadership) = (Waits::default(), Leadership::default());
        look(&mut leadership, 1_000, 1);
        let begun = Outcome::WaitStarted { session: ONE.0, acquire_id: ONE.1, wait_ms: 2_000 };
        assert_eq!(waits.on_entry(&Command::Blank, &[begun], &leadership), Ok(()));
        (waits, leadership)
    }

    #[test]
    fn a_timeout_before_the_time_is_over_is_seen() {
        let mut waits = Waits::default();
        waits.on_sent(ONE, 2_000, 1_000 * MS);
        assert!(waits.on_timed_out(ONE, 2_990 * MS).is_err());
        assert_eq!(waits.on_timed_out(ONE, 2_998 * MS), Ok(()));
        waits.on_sent(ONE, 500, 1_500 * MS);
        assert_eq!(waits.on_timed_out(ONE, 2_000 * MS), Ok(()), "it was sent again with less");
        assert!(waits.on_timed_out(ONE, 1_900 * MS).is_err());
    }

    #[test]
    fn a_wait_that_outlasts_its_time_is_seen_while_it_lasts_and_when_it_ends() {
        let (mut waits, mut leadership) = begun();
        look(&mut leadership, 3_250, 1);
        assert_eq!(waits.check_all(&leadership), Ok(()));
        look(&mut leadership, 3_260, 1);
        assert!(waits.check_all(&leadership).is_err());
        let ended = Outcome::WaitEnded { session: ONE.0, acquire_id: ONE.1 };
        assert!(waits.on_entry(&Command::Blank, &[ended], &leadership).is_err());
        assert_eq!(waits.check_all(&leadership), Ok(()), "it is over");
    }

    #[test]
    fn a_change_of_leader_allows_one_period_more() {
        let (waits, mut leadership) = begun();
        look(&mut leadership, 2_900, 2);
        look(&mut leadership, 5_250, 2);
        assert_eq!(waits.check_all(&leadership), Ok(()));
        look(&mut leadership, 5_260, 2);
        assert!(waits.check_all(&leadership).is_err());
    }

    #[test]
    fn waits_of_a_session_that_has_ended_are_nobodys() {
        let (mut waits, mut leadership) = begun();
        let sessions = [ONE.0];
        let end = Command::EndSessions { reason: EndReason::Expired, sessions: Rows::Slice(&sessions) };
        assert_eq!(waits.on_entry(&end, &[], &leadership), Ok(()));
        look(&mut leadership, 60_000, 1);
        assert_eq!(waits.check_all(&leadership), Ok(()));
    }
}
