//! Beats and what they promise (contract, point 2; ARCHITECTURE sections 4.3 and 4.4).
//!
//! Invariants checked at the moment at which a leader appends the end of a session as expired: no beat of it that reached
//! the leader's socket in time lies unread, and the leader has acknowledged nothing from it for a whole TTL on its own
//! clock. It knows what went into and out of a leader's sockets and what its clock showed. Deliberately absent: what
//! clients believe (see `expiry`), and that expiry is not late.

use std::collections::BTreeMap;

use lockstep_wire::{NodeId, SessionId, Term};

use super::{Verdict, violated};

const IN_TIME: &str = "a beat that arrived in time is not expired (contract 2)";

/// One life of a server's process.
pub type ServerLife = (NodeId, u64);

/// One time in office. A promise is of one: what a leader answers late, by a round that was confirmed before its successor
/// was elected, counts for its client from when it asked, and for that successor from its election on.
pub type Tenure = (ServerLife, Term);

/// See the module.
#[derive(Debug, Default)]
pub struct Beats {
    acknowledged: BTreeMap<(SessionId, Tenure), Acknowledged>,
}

#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    clock_ns: u64,
    ttl_ms: u32,
    /// Where it was said.
    connection: u64,
}

/// Something that keeps sessions alive and was not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// On which connection it came.
    pub connection: u64,
    /// What the server's clock showed then.
    pub clock_ns: u64,
    /// Sessions that it keeps alive if they are attached to the connection.
    pub beats: Vec<SessionId>,
    /// Sessions that it keeps alive wherever they are attached.
    pub returns: Vec<SessionId>,
}

impl Beats {
    /// A server's answer on a connection says that a session lives for a TTL from now on.
    pub fn on_acknowledged(
        &mut self,
        by: Tenure,
        session: SessionId,
        clock_ns: u64,
        ttl_ms: u32,
        connection: u64,
    ) {
        self.acknowledged.insert((session, by), Acknowledged { clock_ns, ttl_ms, connection });
    }

    /// A leader appends the end of these sessions as expired, while this lies in its sockets: what came before the TTL that it
    /// had promised was over came in time, whether it asked for it or not.
    ///
    /// # Errors
    /// One of them has beaten in time.
    pub fn on_expired_over(&self, by: Tenure, ended: &[SessionId], unread: &[Unread]) -> Verdict {
        for session in ended {
            let Some(last) = self.acknowledged.get(&(*session, by)) else { continue };
            let deadline_ns = last.clock_ns + u64::from(last.ttl_ms) * 1_000_000;
            let counts = |it: &&Unread| {
                let is_beat = it.connection == last.connection && it.beats.contains(session);
                it.clock_ns < deadline_ns && (is_beat || it.returns.contains(session))
            };
            if let Some(unread) = unread.iter().find(counts) {
                return violated(
                    IN_TIME,
                    format!(
                        "node {} ends session {session}, for which something came on connection {} {} ns before its \
                         deadline and lies unread",
                        by.0.0,
                        unread.connection,
                        deadline_ns - unread.clock_ns
                    ),
                );
            }
        }
        Ok(())
    }

    /// A leader appends the end of these sessions as expired, while beats of the `unread` ones lie in its sockets.
    ///
    /// # Errors
    /// One of them has beaten in time, or was acknowledged too lately.
    pub fn on_expired(
        &mut self,
        by: Tenure,
        clock_ns: u64,
        ended: &[SessionId],
        unread: impl IntoIterator<Item = SessionId>,
    ) -> Verdict {
        if let Some(session) = unread.into_iter().find(|session| ended.contains(session)) {
            return violated(
                IN_TIME,
                format!("node {} ends session {session} while a beat of it lies unread", by.0.0),
            );
        }
        for session in ended {
            let Some(last) = self.acknowledged.remove(&(*session, by)) else { continue };
            let silence_ns = clock_ns.saturating_sub(last.clock_ns);
            if silence_ns < u64::from(last.ttl_ms) * 1_000_000 {
                return violated(
                    "nothing was acknowledged for a whole TTL (contract 2)",
                    format!(
                        "node {} ends session {session} {silence_ns} ns after it promised it {} ms",
                        by.0.0, last.ttl_ms
                    ),
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEADER: Tenure = ((NodeId(1), 1), Term(1));
    const OTHER: Tenure = ((NodeId(2), 1), Term(2));
    const SESSION: SessionId = SessionId(7);

    #[test]
    fn an_unread_beat_of_a_session_that_is_ended_is_seen() {
        let mut beats = Beats::default();
        assert!(beats.on_expired(LEADER, 0, &[SESSION], [SessionId(8)]).is_ok());
        assert!(beats.on_expired(LEADER, 0, &[SESSION], [SESSION]).is_err());
    }

    #[test]
    fn an_end_within_a_ttl_of_an_acknowledgement_is_seen() {
        let mut beats = Beats::default();
        beats.on_acknowledged(LEADER, SESSION, 1_000, 1, 5);
        assert!(beats.on_expired(LEADER, 1_000_999, &[SESSION], []).is_err());
        beats.on_acknowledged(LEADER, SESSION, 1_000, 1, 5);
        assert!(beats.on_expired(LEADER, 1_001_000, &[SESSION], []).is_ok());
        beats.on_acknowledged(OTHER, SESSION, 1_000, 1, 5);
        assert!(
            beats.on_expired(LEADER, 1_001, &[SESSION], []).is_ok(),
            "another one's promise, another clock"
        );
    }

    #[test]
    fn another_ones_acknowledgement_hides_none() {
        let mut beats = Beats::default();
        beats.on_acknowledged(LEADER, SESSION, 1_000, 1, 5);
        beats.on_acknowledged(OTHER, SESSION, 9, 1, 5);
        assert!(beats.on_expired(LEADER, 1_000_999, &[SESSION], []).is_err());
    }

    #[test]
    fn what_came_before_the_deadline_and_lies_unread_is_seen_though_nobody_asked_for_it() {
        let mut beats = Beats::default();
        beats.on_acknowledged(LEADER, SESSION, 1_000, 1, 5);
        let beat =
            |connection, clock_ns| Unread { connection, clock_ns, beats: vec![SESSION], returns: Vec::new() };
        let verdict = |unread| beats.on_expired_over(LEADER, &[SESSION], &[unread]);
        assert!(verdict(beat(5, 1_000_999)).is_err());
        assert!(verdict(beat(5, 1_001_000)).is_ok(), "too late");
        assert!(verdict(beat(6, 1_000_999)).is_ok(), "the session is not attached there");
        let back = Unread { beats: Vec::new(), returns: vec![SESSION], ..beat(6, 1_000_999) };
        assert!(verdict(back).is_err());
    }
}
