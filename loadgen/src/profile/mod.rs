//! What simulated clients do: each profile is a module with its options, its clients and its run.
//!
//! Invariant: a profile knows no sockets and no clock; it is told what happened and when, like the core under it.

mod failure;
pub mod pairs;
pub mod soak;

use lockstep_client::core::{ClientCore, Event, SessionKey, Time};

use crate::tally::Tally;

/// The simulated clients of one connection.
pub(crate) trait Crowd {
    /// The core reports something.
    fn on_event(&mut self, event: Event, core: &mut ClientCore, now: Time);

    /// Time has passed.
    fn on_tick(&mut self, core: &mut ClientCore, now: Time);

    /// When [`Crowd::on_tick`] is to be called next, if nothing else happens.
    fn deadline(&self) -> Option<Time>;

    /// The load is over: the clients ask for nothing more and close their sessions.
    fn close(&mut self, core: &mut ClientCore, now: Time);
}

/// What is left of a client when the load is over.
struct Leaving {
    session: Option<SessionKey>,
    /// Since when it waits for an answer about a lock.
    since: Option<Time>,
}

/// Closes the sessions of the clients of one connection, and notes for how long the oldest request had no answer.
fn leave(clients: impl Iterator<Item = Leaving>, tally: &mut Tally, core: &mut ClientCore, now: Time) {
    for Leaving { session, since } in clients {
        let unanswered_ms = since.map_or(0, |since| now.ms_since(since));
        tally.unanswered_ms_max = tally.unanswered_ms_max.max(unanswered_ms);
        if let Some(session) = session {
            core.close_session(session, now);
        }
    }
}
