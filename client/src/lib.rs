//! The native client of Lockstep: a sans-io session core and its tokio front end.
//!
//! ```no_run
//! # async fn example() -> Result<(), lockstep_client::Error> {
//! use lockstep_client::{Client, Config};
//!
//! let client = Client::connect(Config::new(["127.0.0.1:7400"])).await?;
//! let guard = client.acquire("/ls/demo/job").await?;
//! if let Some(fence) = guard.fence() {
//!     println!("present {fence} with every write to the resource");
//! }
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A lock is an advisory lease. No lock service can stop a holder that was paused from writing after its lease is
//! over; the resource can, by refusing a fence lower than the greatest it has seen. A cloned machine is such a case too:
//! both copies believe in the same session until one of them beats, and only the fence stops the other.
//!
//! Invariant: whatever the front end says of a hold, it has asked the clock at that moment. Deliberately absent: any
//! decision about sessions, retries or members; those are [`core`]'s.

pub mod clock;
pub mod core;

mod client;
mod driver;
mod error;
#[cfg(test)]
mod fake;
mod guard;
mod probe;
mod session;
mod socket;
#[cfg(test)]
mod tests;

pub use client::{Client, Config};
pub use error::Error;
pub use guard::Guard;
pub use probe::{SnapshotSave, change_members, members_of, routes_of, status_of, transfer_leader};
pub use session::{Acquire, Checked, Closed, Session};
