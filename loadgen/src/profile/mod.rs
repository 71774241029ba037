//! What simulated clients do: each profile is a module with its options, its clients and its run.
//!
//! Invariant: a profile knows no sockets and no clock; it is told what happened and when, like the core under it.

mod failure;
pub mod pairs;
pub mod soak;

use lockstep_client::core::{ClientCore, Event, Time};

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
