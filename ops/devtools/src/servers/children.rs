//! Child processes: they end with this one.
#![allow(unsafe_code, reason = "what runs between fork and exec has no safe form")]

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

/// Makes a child end with this process, however it ends, and keeps Ctrl-C at the terminal from reaching it, so that its
/// parent can stop things in order. Spawn it from a thread that lives as long as the process: the child ends with that thread.
pub fn tie_to_this_process(command: &mut Command) {
    end_with_parent(command.process_group(0), Signal::TERM);
}

/// Asks a child to stop in order (SIGTERM). A child that is gone already is no error.
pub fn ask_to_stop(child: &Child) {
    if let Err(error) = kill_process(Pid::from_child(child), Signal::TERM) {
        tracing::debug!(%error, "a process was gone before it could be asked to stop");
    }
}

/// Makes the child receive `signal` when the *thread* that spawns it ends: spawn from one that lives as long
/// as the process. Only on Linux; elsewhere a crash of the parent leaves the child running.
#[cfg(target_os = "linux")]
pub(crate) fn end_with_parent(command: &mut Command, signal: Signal) {
    use rustix::{
        io::Errno,
        process::{getpid, getppid, set_parent_process_death_signal},
    };

    let parent = getpid();
    // SAFETY: between fork and exec only async-signal-safe calls are allowed: prctl and getppid are,
    // and nothing here allocates. It runs after the change of user, which would clear the setting.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(signal))?;
            // The parent may have ended before the setting was made.
            if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
        });
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn end_with_parent(_command: &mut Command, _signal: Signal) {}
