//! The load generator: thousands of simulated clients a core, on glommio executors, over the client's sans-io core.
//!
//! A [`profile`] says what the clients of one connection do; a driver carries bytes and time between their core and a
//! socket; a [`fleet`] runs the drivers on executors and watches over them. Each profile is a module of its own.
//!
//! Invariant: whatever the cluster does, a run ends by itself: opening, load and closing each have a bound, and so has
//! everything kept in memory. Deliberately absent: the protocol (that is the client core's), and any claim about a
//! server that is not measured here.

pub mod fleet;
pub mod gauge;
pub mod ledger;
pub mod output;
pub mod profile;
pub mod report;

mod chance;
mod clock;
mod driver;
mod host;
mod socket;
mod tally;
