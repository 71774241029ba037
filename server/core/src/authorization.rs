//! Who may do what: the one place that is asked in Hello and in front of every call (ARCHITECTURE section 3).
//!
//! Invariant: nothing is executed that was not permitted here first. Deliberately absent, so far: a policy; until
//! there is one, everybody may do everything.

use lockstep_wire::request::Request;

/// Whether whoever brings these credentials may connect.
pub(crate) fn admits(_credentials: &[u8]) -> bool {
    true
}

/// Whether a client may ask for this.
pub(crate) fn permits(_request: &Request<'_>) -> bool {
    true
}
