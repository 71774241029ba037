//! A process that is started, watched and ended here.
//!
//! Invariant: it does not outlive its value. Deliberately absent: what it is asked.

use std::io;
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How often its end is looked for.
const LOOK: Duration = Duration::from_millis(10);

/// A running process, or one that has ended.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn start(command: &mut Command) -> anyhow::Result<Process> {
        let program = command.get_program().to_owned();
        let child = command.spawn().with_context(|| format!("{} cannot be started", program.display()))?;
        Ok(Process(child))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// How long it has had a processor so far, in user mode and in the kernel.
    ///
    /// # Errors
    /// When the kernel does not know.
    pub fn worked(&self) -> anyhow::Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id()))?;
        let behind_name = stat.rsplit_once(')').context("a process has a name")?.1;
        // Fields 14 and 15.
        let ticks = behind_name.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        let ticks = ticks.sum::<Result<u64, _>>()?;
        Ok(Duration::from_secs(ticks) / u32::try_from(clock_ticks_per_second())?)
    }

    /// Puts the threads that it has by now on the first of the processors that this thread may use, and this thread and those
    /// that it starts from now on on the others; what the kernel does for either runs where the kernel wants. False, and
    /// nothing done, when there is only one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn keep_apart(&self) -> anyhow::Result<bool> {
        let mut others = sched_getaffinity(None)?;
        let first = (0..CpuSet::MAX_CPU).find(|cpu| others.is_set(*cpu)).filter(|_| others.count() > 1);
        let Some(first) = first else { return Ok(false) };
        let mut its_own = CpuSet::new();
        its_own.set(first);
        others.unset(first);
        for task in std::fs::read_dir(format!("/proc/{}/task", self.id()))? {
            let id =
                task?.file_name().to_str().and_then(|id| id.parse().ok()).context("a thread has a number")?;
            match sched_setaffinity(Pid::from_raw(id), &its_own) {
                Ok(()) => {}
                // It has ended, or is one of the kernel's.
                Err(Errno::SRCH | Errno::INVAL) if self.id() != id.unsigned_abs() => {}
                Err(error) => return Err(error).context("a thread cannot be given its processor"),
            }
        }
        sched_setaffinity(None, &others)?;
        Ok(true)
    }

    /// What it says, if that is piped and was not taken before.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// How it has ended; nothing while it runs.
    ///
    /// # Errors
    /// When the kernel does not know.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// Tells it to stop, and waits until it has.
    ///
    /// # Errors
    /// When it goes on.
    pub fn terminate(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        kill_process(Pid::from_child(&self.0), Signal::TERM)?;
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("process {} was told to stop and goes on after {patience:?}", self.id());
            }
            thread::sleep(LOOK);
        }
    }

    /// Ends it as a loss of power would.
    ///
    /// # Errors
    /// When it is no process of ours any more.
    pub fn kill(&mut self) -> io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_kept_apart_shares_no_processor_with_this_thread() {
        let process = Process::start(Command::new("sleep").arg("10")).unwrap();
        let before = sched_getaffinity(None).unwrap();
        assert_eq!(process.keep_apart().unwrap(), before.count() > 1);
        let own = sched_getaffinity(Pid::from_raw(i32::try_from(process.id()).unwrap())).unwrap();
        let here = sched_getaffinity(None).unwrap();
        if before.count() > 1 {
            assert_eq!((own.count(), here.count()), (1, before.count() - 1));
            assert!((0..CpuSet::MAX_CPU).all(|cpu| !(own.is_set(cpu) && here.is_set(cpu))));
        }
    }
}
