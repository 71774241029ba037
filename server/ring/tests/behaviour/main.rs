//! The ring against the real kernel: real sockets on loopback, real files under the target directory.

#![allow(clippy::unit_arg, reason = "`Some(result.expect(..))` reads as what it does")]

mod death;
mod disk;
mod host;
mod log;
mod sockets;
mod storage;
mod threads;

use std::time::{Duration, Instant};

use lockstep_ring::{Completion, Ring, RingConfig};

/// Long enough for anything that happens at all on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn small_ring() -> Ring {
    Ring::new(RingConfig { submission_entries: 8, completion_entries: 16, registered_files: 4 })
        .expect("a ring can be made on this host")
}

/// Runs turns until `take` has what it wanted from a completion.
fn run_until<T>(ring: &Ring, mut take: impl FnMut(&Ring, Completion<'_>) -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "what the test waits for has not happened");
        ring.submit_and_wait(Some(Duration::from_millis(100))).expect("the ring goes on");
        for completion in ring.completions() {
            if let Some(taken) = take(ring, completion) {
                return taken;
            }
        }
    }
}

/// A directory of its own, on a real disk.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}
