//! What went wrong with a call, in a word that can be counted.
//!
//! Invariant: there are few words, whatever happens. Deliberately absent: what a client does about it.

use lockstep_client::core::{Failure, Outcome};

/// The name under which a failure is counted, and what there is to say about it.
pub(super) fn describe(outcome: &Outcome) -> (&'static str, String) {
    match outcome {
        Outcome::TimedOut => ("TIMED_OUT", String::new()),
        Outcome::AlreadyHeld { .. } => ("ALREADY_HELD", String::new()),
        Outcome::Lost { reason, .. } => ("LOST", reason.name().to_owned()),
        Outcome::StaleToken => ("STALE_TOKEN", String::new()),
        Outcome::Failed(Failure::Invalid { detail }) => ("INVALID", detail.clone()),
        Outcome::Failed(Failure::Refused { status, detail }) => (status.name(), detail.clone()),
        Outcome::Failed(Failure::SessionEnded(loss)) => ("SESSION_ENDED", loss.to_string()),
        Outcome::Failed(Failure::NotExecuted { trouble }) => ("NOT_EXECUTED", trouble.clone()),
        Outcome::Failed(Failure::OutcomeUnknown { trouble }) => ("OUTCOME_UNKNOWN", trouble.clone()),
        Outcome::Failed(Failure::NoSpace) => ("NO_SPACE", String::new()),
        Outcome::Failed(Failure::Backlog) => ("BACKLOG", String::new()),
        Outcome::Opened { .. }
        | Outcome::Granted(_)
        | Outcome::Released
        | Outcome::Closed { .. }
        | Outcome::Checked { .. }
        | Outcome::Lock(_)
        | Outcome::Session(_)
        | Outcome::Status(_)
        | Outcome::Members(_)
        | Outcome::MembersChanged
        | Outcome::Transferred { .. }
        | Outcome::Routes(_)
        | Outcome::Piece(_)
        | Outcome::SnapshotGone => ("UNEXPECTED", format!("{outcome:?}")),
    }
}
