//! The subcommands, one file each: those that are servers, and those that speak to a running cluster.
//!
//! Invariant: data goes to standard output, everything else to standard error; each way to fail has its own exit code, so
//! that scripts need not read texts. Deliberately absent: protocol; that is the client crate's.

mod check;
mod child;
mod dev;
mod format;
mod get;
mod lock;
mod log_lines;
mod members;
mod reexec;
mod restore;
mod serve;
mod snapshot;
mod status;
mod stop;
mod transfer_leader;
mod wal;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use lockstep_client::core::Loss;
use lockstep_client::{Client, Config, Error};

/// What a command ends with when it is not 0 or the code of a command that was run under a lock.
///
/// A command that was killed by a signal gives 128 and the signal's number, as in a shell; 2 is a mistake in
/// the arguments; 126 and 127 say that the command could not be run or was not found.
pub(crate) mod exit {
    /// The token is not the current one.
    pub(crate) const STALE: u8 = 1;
    /// A node's log or a snapshot of it is damaged: a node would not start on it.
    pub(crate) const DAMAGED: u8 = 65;
    /// No member of the cluster could be reached, or none knew a leader in time.
    pub(crate) const NO_CLUSTER: u8 = 69;
    /// The cluster refused, or what became of it is not known; a server could not start or go on.
    pub(crate) const FAILED: u8 = 70;
    /// The cluster's disks are full, so that it takes nothing new.
    pub(crate) const NO_SPACE: u8 = 74;
    /// The lock was not granted: held by somebody else for as long as was waited.
    pub(crate) const NOT_ACQUIRED: u8 = 75;
    /// The lock was lost while the command ran; it was told to stop, and killed if it did not.
    pub(crate) const LOST: u8 = 76;
    /// The command could not be run.
    pub(crate) const CANNOT_RUN: u8 = 126;
    /// The command was not found.
    pub(crate) const NOT_FOUND: u8 = 127;
}

/// What help says of each stands with its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Dev(dev::DevArgs),
    Lock(lock::LockArgs),
    Get(get::GetArgs),
    Check(check::CheckArgs),
    Status(status::StatusArgs),
    Format(format::FormatArgs),
    Members(members::MembersArgs),
    Restore(restore::RestoreArgs),
    Serve(serve::ServeArgs),
    Snapshot(snapshot::SnapshotArgs),
    TransferLeader(transfer_leader::TransferLeaderArgs),
    Wal(wal::WalArgs),
    #[command(hide = true)]
    ExecUnder(reexec::ExecUnderArgs),
    #[command(hide = true)]
    GiveTerminal(reexec::GiveTerminalArgs),
}

impl Command {
    /// Runs the command to its end.
    pub(crate) fn run(self) -> ExitCode {
        let code = match self {
            Command::Dev(args) => serving(dev::run(&args)),
            Command::Format(args) => serving(format::run(&args)),
            Command::Serve(args) => serving(serve::run(&args)),
            Command::Members(args) => on_this_thread(members::run(args)),
            Command::TransferLeader(args) => on_this_thread(transfer_leader::run(args)),
            Command::Wal(args) => wal::run(&args),
            Command::Snapshot(args) => snapshot::run(&args),
            Command::Restore(args) => restore::run(&args),
            Command::Lock(args) => on_this_thread(lock::run(args)),
            Command::Get(args) => on_this_thread(get::run(args)),
            Command::Check(args) => on_this_thread(check::run(args)),
            Command::Status(args) => on_this_thread(status::run(args)),
            Command::ExecUnder(args) => reexec::exec_under(&args),
            Command::GiveTerminal(args) => reexec::give_terminal(&args),
        };
        ExitCode::from(code)
    }
}

/// How to reach the cluster.
#[derive(Args, Clone, Debug)]
pub(crate) struct Cluster {
    /// Members of the cluster, host:port, separated by commas; one that lives is enough.
    #[arg(
        long,
        global = true,
        env = "LOCKSTEP_ENDPOINTS",
        value_delimiter = ',',
        default_value = "127.0.0.1:7400",
        value_parser = parse_endpoint,
        value_name = "HOST:PORT,..."
    )]
    endpoints: Vec<String>,
    /// How long to look for a member that can answer.
    #[arg(
        long,
        global = true,
        default_value = "10s",
        value_parser = parse_timeout,
        value_name = "DURATION"
    )]
    timeout: Duration,
}

fn parse_endpoint(text: &str) -> Result<String, String> {
    let text = text.trim();
    match text.rsplit_once(':') {
        Some((host, port))
            if !host.is_empty()
                && !host.contains(char::is_whitespace)
                && port.parse::<u16>().is_ok_and(|port| port != 0) =>
        {
            Ok(text.to_owned())
        }
        _ => Err("a member's address is host:port, 127.0.0.1:7400 for example".to_owned()),
    }
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(timeout) if timeout >= TIMEOUT_MIN => Ok(timeout),
        Ok(_) => Err("no member can answer within less than 100ms".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The shortest patience that makes sense.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);

impl Cluster {
    async fn connect(&self) -> Result<Client, Error> {
        let mut config = Config::new(self.endpoints.iter());
        config.call_timeout = self.timeout;
        Client::connect(config).await
    }
}

/// What a server ends with: why, if not in order.
fn serving(outcome: anyhow::Result<()>) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            complain(&format!("{error:#}"));
            exit::FAILED
        }
    }
}

/// The main thread runs everything: a child that is to die with its parent dies with the thread that made it.
fn on_this_thread(command: impl Future<Output = Result<u8, Error>>) -> u8 {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!(
                "the event loop could not be started ({error}); check the limit of open files"
            ));
            return exit::FAILED;
        }
    };
    match runtime.block_on(command) {
        Ok(code) => code,
        Err(error) => {
            complain(&error.to_string());
            code_of(&error)
        }
    }
}

fn code_of(error: &Error) -> u8 {
    match error {
        Error::Invalid { .. } => 2,
        Error::Held { .. } | Error::TimedOut { .. } | Error::AlreadyHeld { .. } => exit::NOT_ACQUIRED,
        Error::NoSpace { .. } => exit::NO_SPACE,
        Error::NoCluster { .. } | Error::SessionEnded { reason: Loss::Unconfirmed, .. } => exit::NO_CLUSTER,
        // Whoever waits holds nothing that could be lost: no command ran.
        _ => exit::FAILED,
    }
}

/// So many of something, whose name takes an s when there are several.
fn counted(count: impl Into<u64>, noun: &str) -> String {
    let count = count.into();
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// What is said of a cell in which nobody can believe yet that he holds anything.
const QUIET: &str = "was restored and grants nothing yet, for a minute at most if its leader stays";

fn complain(text: &str) {
    eprintln!("lockstep: {text}");
}

/// Prints data. A reader that has gone away is not worth a word; data that cannot be written otherwise is a failure.
fn print(text: &str) {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    let written = writeln!(stdout, "{}", text.trim_end()).and_then(|()| stdout.flush());
    if let Err(error) = written
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        complain(&format!("standard output cannot be written: {error}"));
        std::process::exit(i32::from(exit::FAILED));
    }
}

#[cfg(test)]
mod tests {
    use lockstep_wire::reply::EndReason;

    use super::*;

    #[test]
    fn one_of_something_is_not_several() {
        let all = [0_u32, 1, 2].map(|count| counted(count, "shard"));
        assert_eq!(all, ["0 shards", "1 shard", "2 shards"]);
    }

    #[test]
    fn a_wait_that_fails_lost_nothing() {
        let ended = |reason| Error::SessionEnded { what: "acquiring a".to_owned(), reason };
        assert_eq!(code_of(&ended(Loss::Unconfirmed)), exit::NO_CLUSTER, "nobody answered for too long");
        assert_eq!(code_of(&ended(Loss::Ended(EndReason::Expired))), exit::FAILED);
        let unheard = Error::NoCluster { what: "acquiring a".to_owned(), trouble: "refused".to_owned() };
        assert_eq!(code_of(&unheard), exit::NO_CLUSTER);
        assert_eq!(code_of(&Error::NoSpace { what: "acquiring a".to_owned() }), exit::NO_SPACE);
    }
}
