//! What `lockstep lock` lets a second process of this program do, because it must happen between fork and exec, or inside
//! another process group, and the safe interfaces have no other place for it.
//!
//! Invariant: both do one thing and are gone.

use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::{complain, exit};

/// Run a command that is killed when its parent dies.
#[derive(Args, Debug)]
pub(crate) struct ExecUnderArgs {
    /// The parent; when it is gone already, nothing is run.
    parent: i32,
    /// The command and its arguments.
    #[arg(required = true, last = true)]
    command: Vec<std::ffi::OsString>,
}

/// Make a process group the terminal's foreground.
#[derive(Args, Debug)]
pub(crate) struct GiveTerminalArgs {
    /// The process group.
    group: i32,
}

pub(super) fn exec_under(args: &ExecUnderArgs) -> u8 {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        complain(&format!("the kernel cannot tie the command to this process ({error}); it was not run"));
        return exit::CANNOT_RUN;
    }
    // A parent that died before the line above will not be noticed any more.
    if Pid::from_raw(args.parent) != getppid() {
        return exit::LOST;
    }
    let error = Command::new(&args.command[0]).args(&args.command[1..]).exec();
    complain(&format!("{} could not be run: {error}", args.command[0].display()));
    match error.kind() {
        std::io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::CANNOT_RUN,
    }
}

pub(super) fn give_terminal(args: &GiveTerminalArgs) -> u8 {
    let Some(group) = Pid::from_raw(args.group) else { return 2 };
    match rustix::termios::tcsetpgrp(std::io::stdin(), group) {
        Ok(()) => 0,
        Err(_) => exit::FAILED,
    }
}
