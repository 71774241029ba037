//! Fuzzing: what comes from outside, bent in every way, against the readers of it.
//!
//! Invariant: a case is decided by its target and its number, so that a failing one is replayed by naming the two.
//! Deliberately absent: guidance by coverage; the inputs start from valid ones, which gets deep enough.

mod bend;
mod client;
mod log;
mod wire;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::oracle::words_of_panic;
use crate::random::{Concern, Stream};

/// What is fuzzed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The decoder of frames, fed a stream in pieces.
    Frames,
    /// Every message of clients and members.
    Messages,
    /// The payloads of log entries.
    Entries,
    /// The recovery of a log.
    Recovery,
    /// The two copies of a superblock.
    Superblock,
    /// The client's session core, talked to by a server that has lost its mind.
    Client,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 6] = [
        Target::Frames,
        Target::Messages,
        Target::Entries,
        Target::Recovery,
        Target::Superblock,
        Target::Client,
    ];

    /// How it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Target::Frames => "frames",
            Target::Messages => "messages",
            Target::Entries => "entries",
            Target::Recovery => "recovery",
            Target::Superblock => "superblock",
            Target::Client => "client",
        }
    }

    /// Cases of it among so many of all: one of recovery costs as much as a thousand messages.
    pub fn share(self, cases: u64) -> u64 {
        match self {
            Target::Frames | Target::Messages | Target::Entries => cases,
            Target::Superblock | Target::Client => cases / 10,
            Target::Recovery => cases / 500,
        }
        .max(1)
    }

    fn run(self, stream: &mut Stream) -> Result<(), String> {
        match self {
            Target::Frames => wire::frames(stream),
            Target::Messages => wire::messages(stream),
            Target::Entries => wire::entries(stream),
            Target::Recovery => log::recovery(stream),
            Target::Superblock => log::superblock(stream),
            Target::Client => client::garbage(stream),
        }
    }
}

/// A case that was not borne.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    target: Target,
    case: u64,
    words: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, case) = (self.target.name(), self.case);
        writeln!(f, "case {case} of {name}: {}", self.words)?;
        write!(
            f,
            "replay: cargo run --release -p lockstep-sim -- fuzz --target {name} --first {case} --cases 1"
        )
    }
}

/// Runs one case.
///
/// # Errors
/// What the reader did wrong, a panic included.
pub fn run(target: Target, case: u64) -> Result<(), Failure> {
    let mut stream = Stream::new(case, Concern::Fuzz, target as u64);
    let ran = catch_unwind(AssertUnwindSafe(|| target.run(&mut stream)));
    let outcome = ran.unwrap_or_else(|panic| Err(format!("it panics: {}", words_of_panic(panic.as_ref()))));
    outcome.map_err(|words| Failure { target, case, words })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_bears_some_cases() {
        for target in Target::ALL {
            for case in 0..target.share(2_000) {
                if let Err(failure) = run(target, case) {
                    panic!("{failure}");
                }
            }
        }
    }
}
