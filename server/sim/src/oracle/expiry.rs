//! Expiry is never early (contract, point 2; ARCHITECTURE section 5).
//!
//! Invariant checked: when the entry that ends a session commits, and when its client is told, the client's own
//! deadline has passed on its own clock, unless it closed the session itself. Deliberately absent: that expiry is not late;
//! that is `lateness`.

use lockstep_wire::SessionId;

use super::{Verdict, violated};

/// What a client believes of one of its sessions at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The session.
    pub session: SessionId,
    /// Whose it is.
    pub client: usize,
    /// Until when it believes in it, on its own clock, in ns.
    pub safe_until: u64,
    /// What its clock shows, in ns.
    pub now: u64,
}

/// A session has ended, for everybody or for its client, and not by the client's own wish.
///
/// # Errors
/// The client still believed in it.
pub fn on_ended(lease: Lease, how: &str) -> Verdict {
    if lease.now >= lease.safe_until {
        return Ok(());
    }
    violated(
        "expiry is never early (contract 2)",
        format!(
            "session {} of client {} {how} {} ns before the client's own deadline",
            lease.session,
            lease.client,
            lease.safe_until - lease.now
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_before_the_deadline_is_seen() {
        let lease = |now| Lease { session: SessionId(1), client: 0, safe_until: 10, now };
        assert!(on_ended(lease(9), "ended").is_err());
        assert!(on_ended(lease(10), "ended").is_ok());
    }
}
