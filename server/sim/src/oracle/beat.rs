//! Beats and what they promise (contract, point 2; ARCHITECTURE sections 4.3 and 4.4).
//!
//! Invariants checked at the moment at which a leader appends the end of a session as expired: no beat of it that reached
//! the leader's socket in time lies unread, and the leader has acknowledged nothing from it for a whole TTL on its own
//! clock. It knows what went into and out of a leader's sockets and what its clock showed. Deliberately absent: what
//! clients believe (see `expiry`), and that expiry is not late.

use std::collections::BTreeMap;

use lockstep_wire::{NodeId, SessionId};

use super::{Verdict, violated};

/// One life of a server's process.
pub type ServerLife = (NodeId, u64);

/// See the module.
#[derive(Debug, Default)]
pub struct Beats {
    acknowledged: BTreeMap<SessionId, Acknowledged>,
}

#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    by: ServerLife,
    clock_ns: u64,
    ttl_ms: u32,
}

impl Beats {
    /// A server's answer says that a session lives for a TTL from now on.
    pub fn on_acknowledged(&mut self, by: ServerLife, session: SessionId, clock_ns: u64, ttl_ms: u32) {
        self.acknowledged.insert(session, Acknowledged { by, clock_ns, ttl_ms });
    }

    /// A leader appends the end of these sessions as expired, while beats of the `unread` ones lie in its sockets.
    ///
    /// # Errors
    /// One of them has beaten in time, or was acknowledged too lately.
    pub fn on_expired(
        &mut self,
        by: ServerLife,
        clock_ns: u64,
        ended: &[SessionId],
        unread: impl IntoIterator<Item = SessionId>,
    ) -> Verdict {
        if let Some(session) = unread.into_iter().find(|session| ended.contains(session)) {
            return violated(
                "a beat that arrived in time is not expired (contract 2)",
                format!("node {} ends session {session} while a beat of it lies unread", by.0),
            );
        }
        for session in ended {
            let Some(last) = self.acknowledged.remove(session).filter(|last| last.by == by) else { continue };
            let silence_ns = clock_ns.saturating_sub(last.clock_ns);
            if silence_ns < u64::from(last.ttl_ms) * 1_000_000 {
                return violated(
                    "nothing was acknowledged for a whole TTL (contract 2)",
                    format!(
                        "node {} ends session {session} {silence_ns} ns after it promised it {} ms",
                        by.0, last.ttl_ms
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

    const LEADER: ServerLife = (NodeId(1), 1);
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
        beats.on_acknowledged(LEADER, SESSION, 1_000, 1);
        assert!(beats.on_expired(LEADER, 1_000_999, &[SESSION], []).is_err());
        beats.on_acknowledged(LEADER, SESSION, 1_000, 1);
        assert!(beats.on_expired(LEADER, 1_001_000, &[SESSION], []).is_ok());
        beats.on_acknowledged((NodeId(2), 1), SESSION, 1_000, 1);
        assert!(
            beats.on_expired(LEADER, 1_001, &[SESSION], []).is_ok(),
            "another one's promise, another clock"
        );
    }
}
