//! The built program as its users have it: real processes, real files, real sockets on loopback, real signals.
//!
//! Invariant: only processes that a test started are ended, each by its pid and at the latest when the test is over; every
//! loop is bounded in time; what is written lies under the build's temporary directory and goes with the test.
//! Deliberately absent: faults that no process can make on a sound machine (torn writes, skewed clocks); those are the
//! simulator's.

mod backup;
mod chaos;
mod cluster;
mod commands;
mod connection;
mod damage;
mod failover;
mod field;
mod flood;
mod hostile;
mod identity;
mod load;
mod members;
mod pause;
mod process;
mod refusal;
mod restart;
mod shards;
mod snapshot;
mod snapshot_command;
mod space;
mod wal;
mod worker;

use std::time::{Duration, Instant};

/// Long enough for anything that happens at all on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Looks again and again until there is something.
#[track_caller]
fn until<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What somebody who runs a test by hand has set a number of it to.
fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}")))
}

/// A directory of its own, on a real disk.
fn directory() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("processes-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a directory can be made")
}
