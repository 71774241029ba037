//! A command that runs while a lock is held, and not a moment longer.
//!
//! It is a process group of its own: TERM goes to the whole group a margin before the lease's deadline, KILL at it, and at
//! once when the lock is lost earlier. Invariant: nobody of the group is left running at the deadline as long as this
//! process runs. When this process is killed, the kernel kills the command itself; what the command has started then
//! survives, as does whatever left the group, and is stopped by the fence alone.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use lockstep_client::clock;
use lockstep_client::core::{Loss, Time};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgrp, kill_process_group, waitid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use super::{complain, exit};

/// Timers stand still while the machine is suspended: the deadline is looked at this often.
const LOOK: Duration = Duration::from_millis(250);
/// KILL goes out this long before the deadline, because a timer is this late at times, in ns.
const KILL_AHEAD_NS: u64 = 3_000_000;

/// The lock under which a command runs.
pub(super) trait Lease {
    /// Until when it is held if nothing more is heard.
    fn safe_until(&self) -> Time;
    /// Resolves when it is lost for good.
    fn lost(&self) -> impl Future<Output = Loss>;
}

/// What is to be run.
pub(super) struct Task {
    /// The command and its arguments.
    pub(super) command: Vec<OsString>,
    /// What is added to its environment.
    pub(super) environment: Vec<(&'static str, String)>,
    /// This program, which ties the command to this process; without it the command is run as it is.
    pub(super) program: Option<PathBuf>,
    /// How long before the deadline it is asked to stop.
    pub(super) margin: Duration,
}

/// How it went.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// The command's exit code, 128 and the signal's number when it was killed.
    pub(super) code: u8,
    /// It was stopped because the lock was lost or about to be.
    pub(super) is_stopped: bool,
}

/// The signals that end a wait, and are passed on to a command that runs.
pub(super) struct Passed {
    interrupt: Option<Signals>,
    terminate: Option<Signals>,
    hang_up: Option<Signals>,
    quit: Option<Signals>,
}

impl Passed {
    /// From here on these signals do not end the process by themselves. Those that whoever started it had it
    /// ignore, as nohup does and shells do in the background, stay ignored, here and by the command.
    pub(super) fn new() -> std::io::Result<Passed> {
        let ignored = ignored_signals();
        let listen = |kind: SignalKind| match ignored & (1 << (kind.as_raw_value() - 1)) {
            0 => signal(kind).map(Some),
            _ => Ok(None),
        };
        Ok(Passed {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            quit: listen(SignalKind::quit())?,
        })
    }

    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            () = heard(&mut self.interrupt) => Signal::INT,
            () = heard(&mut self.terminate) => Signal::TERM,
            () = heard(&mut self.hang_up) => Signal::HUP,
            () = heard(&mut self.quit) => Signal::QUIT,
        }
    }
}

async fn heard(signals: &mut Option<Signals>) {
    match signals {
        Some(signals) => {
            signals.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// The signals that this process was started to ignore, one bit each; none where the kernel does not say.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Runs a command under a lease to its end.
pub(super) async fn run(task: &Task, lease: &impl Lease, passed: &mut Passed) -> std::io::Result<Ended> {
    let mut ended = signal(SignalKind::child())?;
    let mut running = Running::start(task)?;
    let lost = lease.lost();
    tokio::pin!(lost);
    let mut is_lost = false;
    while !running.has_exited() {
        let wait = running.stop_in_time(lease.safe_until(), task.margin);
        tokio::select! {
            _ = ended.recv() => running.resume(),
            passed = passed.next() => running.tell(passed),
            reason = &mut lost, if !is_lost => {
                is_lost = true;
                complain(&format!("the lock is lost ({reason}); the command is killed"));
                running.is_stopped = true;
                running.tell(Signal::KILL);
            }
            () = tokio::time::sleep(wait) => {}
        }
    }
    let is_stopped = running.is_stopped;
    let status = running.finish()?;
    Ok(Ended { code: code_of(status), is_stopped })
}

fn code_of(status: ExitStatus) -> u8 {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => i32::from(exit::FAILED),
    };
    u8::try_from(code & 0xff).unwrap_or(exit::FAILED)
}

/// The command while it runs.
struct Running {
    child: Child,
    group: Pid,
    program: Option<PathBuf>,
    /// The group that had the terminal before, if the command got it.
    terminal_of: Option<Pid>,
    is_stopped: bool,
    is_killed: bool,
}

impl Running {
    fn start(task: &Task) -> std::io::Result<Running> {
        let mut command = match &task.program {
            Some(program) => {
                let mut command = Command::new(program);
                command.arg("exec-under").arg(std::process::id().to_string()).arg("--");
                command.args(&task.command);
                command
            }
            None => {
                let mut command = Command::new(&task.command[0]);
                command.args(&task.command[1..]);
                command
            }
        };
        command.envs(task.environment.iter().map(|(name, value)| (name, value)));
        let child = command.process_group(0).spawn()?;
        let raw = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let group = raw.ok_or_else(|| std::io::Error::other("the command has no process id"))?;
        let mut running = Running {
            child,
            group,
            program: task.program.clone(),
            terminal_of: None,
            is_stopped: false,
            is_killed: false,
        };
        running.give_terminal();
        Ok(running)
    }

    /// A command that is used from a terminal gets it, as from a shell; else it would be stopped when it reads.
    fn give_terminal(&mut self) {
        let stdin = std::io::stdin();
        let ours = getpgrp();
        if self.program.is_some()
            && stdin.is_terminal()
            && tcgetpgrp(&stdin).is_ok_and(|front| front == ours)
            && tcsetpgrp(&stdin, self.group).is_ok()
        {
            self.terminal_of = Some(ours);
            self.tell(Signal::CONT);
        }
    }

    /// Takes the terminal back. Only a process of the group that has it may give it away, so that one joins that group; it
    /// exists as long as the command has not been reaped.
    fn take_terminal(&mut self) {
        if let (Some(ours), Some(program)) = (self.terminal_of.take(), &self.program) {
            let mut give = Command::new(program);
            give.arg("give-terminal").arg(ours.as_raw_nonzero().to_string());
            give.process_group(self.group.as_raw_nonzero().get()).stdout(Stdio::null()).stderr(Stdio::null());
            if let Err(error) = give.status() {
                complain(&format!("the terminal could not be taken back ({error})"));
            }
        }
    }

    /// Sends what the deadline calls for, and says when to look again.
    fn stop_in_time(&mut self, deadline: Time, margin: Duration) -> Duration {
        let kill_in = clock::until(Time(deadline.0.saturating_sub(KILL_AHEAD_NS)));
        if kill_in.is_zero() {
            if !self.is_killed {
                complain("the lock could not be kept alive up to its deadline; the command is killed");
                self.is_stopped = true;
                self.is_killed = true;
            }
            // Repeated, in case somebody was being born.
            self.tell(Signal::KILL);
            return LOOK;
        }
        let term_in = kill_in.saturating_sub(margin);
        if term_in.is_zero() && !self.is_stopped {
            complain(&format!(
                "the lock cannot be kept alive; the command is told to stop within {kill_in:.1?}"
            ));
            self.is_stopped = true;
            self.tell(Signal::TERM);
            // A command that was stopped does not see TERM before it continues.
            self.tell(Signal::CONT);
        }
        LOOK.min(if self.is_stopped { kill_in } else { term_in })
    }

    fn tell(&self, signal: Signal) {
        // Nobody is left in the group: then there is nobody to tell.
        let _ = kill_process_group(self.group, signal);
    }

    /// A command that has the terminal and was stopped from it goes on: its lock does not wait for it.
    fn resume(&self) {
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if self.terminal_of.is_some() && matches!(waitid(WaitId::Pid(self.group), stopped), Ok(Some(_))) {
            complain("a command that holds a lock cannot be suspended");
            self.tell(Signal::CONT);
        }
    }

    /// Whether the command has ended; it is not reaped yet, so that its group still exists.
    fn has_exited(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.group), options), Ok(None))
    }

    fn finish(mut self) -> std::io::Result<ExitStatus> {
        if self.is_stopped {
            self.tell(Signal::KILL);
        }
        self.take_terminal();
        self.child.wait()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    use lockstep_wire::reply::EndReason;
    use tokio::sync::watch;

    use super::*;

    struct Fake {
        safe_until: AtomicU64,
        lost: watch::Sender<Option<Loss>>,
    }

    impl Fake {
        fn lasting(ms: u64) -> Fake {
            let until = clock::now().plus_ms(ms);
            Fake { safe_until: AtomicU64::new(until.0), lost: watch::Sender::new(None) }
        }
    }

    impl Lease for Fake {
        fn safe_until(&self) -> Time {
            Time(self.safe_until.load(Ordering::Relaxed))
        }
        async fn lost(&self) -> Loss {
            let mut lost = self.lost.subscribe();
            let lost = lost.wait_for(Option::is_some).await.expect("the sender is there");
            lost.expect("it is some")
        }
    }

    fn shell(script: &str, margin_ms: u64) -> Task {
        Task {
            command: ["sh", "-c", script].map(OsString::from).to_vec(),
            environment: vec![("LOCKSTEP_TOKEN", "7".to_owned())],
            program: None,
            margin: Duration::from_millis(margin_ms),
        }
    }

    #[tokio::test]
    async fn the_code_of_the_command_is_passed_on_and_it_sees_its_token() {
        let ended =
            run(&shell("exit $LOCKSTEP_TOKEN", 100), &Fake::lasting(60_000), &mut Passed::new().unwrap())
                .await
                .unwrap();
        assert_eq!(ended, Ended { code: 7, is_stopped: false });
        let ended = run(&shell("kill -9 $$", 100), &Fake::lasting(60_000), &mut Passed::new().unwrap())
            .await
            .unwrap();
        assert_eq!(ended, Ended { code: 137, is_stopped: false });
    }

    #[tokio::test]
    async fn a_command_is_told_to_stop_a_margin_before_the_deadline() {
        let lease = Fake::lasting(900);
        let start = Instant::now();
        let ended = run(
            &shell("trap 'exit 9' TERM; while :; do sleep 0.01; done", 600),
            &lease,
            &mut Passed::new().unwrap(),
        )
        .await
        .unwrap();
        assert_eq!(ended, Ended { code: 9, is_stopped: true });
        let took = start.elapsed();
        assert!((Duration::from_millis(290)..Duration::from_millis(890)).contains(&took), "{took:?}");
    }

    #[tokio::test]
    async fn a_command_that_ignores_term_is_dead_at_the_deadline_with_its_whole_group() {
        let lease = Fake::lasting(700);
        let directory = tempfile::tempdir().unwrap();
        let beat = directory.path().join("beat");
        let script = format!(
            "trap '' TERM; (trap '' TERM; while :; do echo x >> {}; sleep 0.01; done) & wait",
            beat.display()
        );
        let ended = run(&shell(&script, 200), &lease, &mut Passed::new().unwrap()).await.unwrap();
        assert_eq!(ended, Ended { code: 137, is_stopped: true });
        assert!(clock::now() <= lease.safe_until().plus_ms(100));
        tokio::time::sleep(Duration::from_millis(50)).await;
        let size = std::fs::metadata(&beat).unwrap().len();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(std::fs::metadata(&beat).unwrap().len(), size, "its own child is dead too");
    }

    #[tokio::test]
    async fn a_command_whose_lease_is_renewed_is_left_alone() {
        let lease = Fake::lasting(400);
        let renew = async {
            for _ in 0..12 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                lease.safe_until.store(clock::now().plus_ms(400).0, Ordering::Relaxed);
            }
        };
        let task = shell("sleep 0.55; exit 3", 200);
        let mut passed = Passed::new().unwrap();
        let (ended, ()) = tokio::join!(run(&task, &lease, &mut passed), renew);
        assert_eq!(ended.unwrap(), Ended { code: 3, is_stopped: false });
    }

    #[tokio::test]
    async fn a_command_is_killed_at_once_when_the_lock_is_lost() {
        let lease = Fake::lasting(60_000);
        let lose = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            lease.lost.send_replace(Some(Loss::Ended(EndReason::Revoked)));
        };
        let task = shell("trap '' TERM; sleep 30", 200);
        let start = Instant::now();
        let mut passed = Passed::new().unwrap();
        let (ended, ()) = tokio::join!(run(&task, &lease, &mut passed), lose);
        assert_eq!(ended.unwrap(), Ended { code: 137, is_stopped: true });
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn a_command_that_is_not_there_is_an_error() {
        let mut task = shell("", 100);
        task.command = vec![OsString::from("/nonexistent/command")];
        let error = run(&task, &Fake::lasting(1_000), &mut Passed::new().unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }
}
