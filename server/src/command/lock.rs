//! `lockstep lock`: runs a command while holding a lock.
//!
//! Invariant: the command runs only between the grant and the end of what this process may believe in.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use lockstep_client::core::{Loss, Time};
use lockstep_client::{Client, Config, Error, Guard, Session};

use super::child::{self, Lease, Passed, Task};
use super::{Cluster, QUIET, complain, exit, status};

/// For how long nobody is told that a lock is being waited for.
const PATIENCE: Duration = Duration::from_millis(700);

/// What a withdrawn acquire has to reach its cell.
const WITHDRAWAL: Duration = Duration::from_millis(200);

/// What the end of a session has to reach its cell, which expires without that; and the last look at a lock that was not
/// granted.
const GOODBYE: Duration = Duration::from_millis(500);

/// Run a command while holding a lock.
///
/// The command's environment has LOCKSTEP_TOKEN, LOCKSTEP_FENCE (to be presented to what the lock protects),
/// LOCKSTEP_LOCK and LOCKSTEP_SESSION. When the lock cannot be kept alive, the command's process group gets TERM a while
/// before the lock may go to somebody else, and KILL before that moment.
///
/// Exit code: the command's own, or 128 and the number of the signal that ended it; 75 when the lock was not granted, 76 when it was
/// lost, 74 when the cluster's disks are full, 69 when no member of the cluster could be reached, 70 when the cluster refused, 126 and
/// 127 when the command could not be run or was not found.
#[derive(Args, Debug)]
pub(crate) struct LockArgs {
    /// The lock, /ls/<namespace>/...
    name: String,
    /// Hold it together with others who hold it shared.
    #[arg(long)]
    shared: bool,
    /// Do not wait: exit with 75 when it is not free.
    #[arg(long = "try", conflicts_with = "wait")]
    is_try: bool,
    /// Wait for so long at most, then exit with 75; a day when not given.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    wait: Option<Duration>,
    /// How long the lock outlives this process when it dies or is cut off; 1s to 60s.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration, value_name = "DURATION")]
    ttl: Duration,
    #[command(flatten)]
    cluster: Cluster,
    /// The command and its arguments, behind `--`.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Lease for Guard {
    fn safe_until(&self) -> Time {
        Guard::safe_until(self)
    }

    async fn lost(&self) -> Loss {
        Guard::lost(self).await
    }
}

pub(super) async fn run(args: LockArgs) -> Result<u8, Error> {
    let stopped = |error: std::io::Error| Error::Stopped { what: format!("listening to signals ({error})") };
    let mut passed = Passed::new().map_err(stopped)?;
    let (guard, session) = tokio::select! {
        acquired = acquire(&args) => match acquired {
            Ok(Ok(acquired)) => acquired,
            Ok(Err(quiet)) => {
                complain(&quiet);
                return Ok(exit::NOT_ACQUIRED);
            }
            Err(error) => return Err(explained(&args.cluster, error).await),
        },
        signal = passed.next() => {
            // The acquire is dropped and withdrawn; the driver needs a moment for that before the process is gone.
            tokio::time::sleep(WITHDRAWAL).await;
            return Ok(u8::try_from(128 + signal.as_raw()).unwrap_or(exit::FAILED));
        }
    };
    if !guard.is_held() {
        complain(&format!("{} was granted too late to be relied on; nothing was run", args.name));
        return Ok(give_back(guard, session, exit::LOST).await);
    }
    let task = Task {
        command: args.command.clone(),
        environment: environment(&guard, &session),
        program: std::env::current_exe().ok(),
        margin: margin(session.ttl()),
    };
    let code = match child::run(&task, &guard, &mut passed).await {
        Ok(ended) if ended.is_stopped => exit::LOST,
        Ok(ended) => ended.code,
        Err(error) => {
            complain(&format!("{} could not be run: {error}", args.command[0].display()));
            if error.kind() == std::io::ErrorKind::NotFound { exit::NOT_FOUND } else { exit::CANNOT_RUN }
        }
    };
    Ok(give_back(guard, session, code).await)
}

/// Acquires it; or says that the cell grants nothing to anybody yet.
async fn acquire(args: &LockArgs) -> Result<Result<(Guard, Session), String>, Error> {
    let client = args.cluster.connect().await?;
    let session = client.open_session(&args.name, args.ttl).await?;
    let mut acquire = session.acquire(&args.name);
    if args.shared {
        acquire = acquire.shared();
    }
    if args.is_try {
        acquire = acquire.try_once();
    } else if let Some(wait) = args.wait {
        acquire = acquire.wait(wait);
    }
    let granted = acquire.into_future();
    tokio::pin!(granted);
    let guard = tokio::select! {
        guard = &mut granted => guard,
        () = tell_who_holds(&client, &args.name) => granted.await,
    };
    match guard {
        Ok(guard) => Ok(Ok((guard, session))),
        Err(error) => {
            let is_in_vain = matches!(error, Error::Held { .. } | Error::TimedOut { .. });
            let seen = async { is_in_vain && client.get(&args.name).await.is_ok_and(|lock| lock.is_quiet) };
            // Neither is waited for when the cell does not answer: what was to be waited for is over, and the session
            // expires by itself and holds nothing.
            let (_, is_quiet) = tokio::join!(
                tokio::time::timeout(GOODBYE, session.close()),
                tokio::time::timeout(GOODBYE, seen)
            );
            if is_quiet.unwrap_or(false) {
                return Ok(Err(format!("{} was not granted: its cell {QUIET}; nothing is held", args.name)));
            }
            Err(error)
        }
    }
}

/// Says of a cluster that does not answer whether it has yet to begin.
async fn explained(cluster: &Cluster, error: Error) -> Error {
    let cell = Config::FIRST_CELL;
    match error {
        Error::NoCluster { what, trouble } if status::is_unborn(cluster, cell).await => {
            Error::NoCluster { what, trouble: format!("{trouble}; cell {cell}: {}", status::UNBORN) }
        }
        other => other,
    }
}

/// Says what is being waited for, to somebody who may be wondering.
async fn tell_who_holds(client: &Client, name: &str) {
    tokio::time::sleep(PATIENCE).await;
    if let Ok(lock) = client.get(name).await {
        if lock.is_quiet {
            return complain(&format!("waiting for {name}; its cell {QUIET}"));
        }
        let ahead = lock.waiters_total.saturating_sub(1);
        let holder = lock.holders.first().map_or("nobody any more", |holder| holder.client_id.as_str());
        let line = if ahead == 0 { String::new() } else { format!(", {ahead} more wait") };
        complain(&format!("waiting for {name}; it is held by {holder}{line}"));
    }
}

fn environment(guard: &Guard, session: &Session) -> Vec<(&'static str, String)> {
    // A guard that is not safe shows no token; the command is stopped at once then, and must not find one either.
    let number =
        |token: Option<lockstep_wire::FencingToken>| token.map_or(String::new(), |it| it.to_string());
    vec![
        ("LOCKSTEP_TOKEN", number(guard.token())),
        ("LOCKSTEP_FENCE", number(guard.fence())),
        ("LOCKSTEP_LOCK", guard.name().to_owned()),
        ("LOCKSTEP_SESSION", session.id().to_string()),
    ]
}

/// How long before the deadline the command is told to stop: a fifth of the TTL, 3 s at most. Beats come every third of the TTL, so
/// that at least one full retry has failed by then.
fn margin(ttl: Duration) -> Duration {
    (ttl / 5).min(Duration::from_secs(3))
}

/// Releases the lock and closes the session; a lock that was lost before the command had ended is worth its own code.
async fn give_back(guard: Guard, session: Session, code: u8) -> u8 {
    let mut code = code;
    // After the deadline there is nothing left to release.
    let patience = guard.safe_for().max(WITHDRAWAL);
    let name = guard.name().to_owned();
    match tokio::time::timeout(patience, guard.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) | Err(_) if code == exit::LOST => {}
        Ok(Err(error)) => {
            complain(&error.to_string());
            if matches!(error, Error::Stale { .. } | Error::SessionEnded { .. }) {
                code = exit::LOST;
            }
        }
        Err(_) => {
            complain(&format!("the release of {name} was not confirmed; it is free when its TTL is over"))
        }
    }
    // The cell ends a session that it does not hear of; its lock was released above or goes with it.
    let _ = tokio::time::timeout(GOODBYE, session.close()).await;
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_time_to_stop_in_proportion_to_the_ttl() {
        assert_eq!(margin(Duration::from_secs(1)), Duration::from_millis(200));
        assert_eq!(margin(Duration::from_secs(10)), Duration::from_secs(2));
        assert_eq!(margin(Duration::from_secs(60)), Duration::from_secs(3));
    }
}
