//! The system calls the standard library has no safe form of.
#![allow(unsafe_code, reason = "kill, geteuid and prctl have no safe form in the standard library")]

use std::io;
use std::process::Command;

/// Signals we send to servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessSignal {
    /// NATS: leave in order. Postgres would wait for its clients first.
    Terminate,
    /// Postgres: roll back, checkpoint, leave ("fast shutdown").
    Interrupt,
    /// No chance to react.
    Kill,
}

impl ProcessSignal {
    fn number(self) -> libc::c_int {
        match self {
            Self::Terminate => libc::SIGTERM,
            Self::Interrupt => libc::SIGINT,
            Self::Kill => libc::SIGKILL,
        }
    }
}

/// The user this process acts as.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: takes no arguments, touches no memory, cannot fail.
    unsafe { libc::geteuid() }
}

/// Sends a signal to a child that was not waited for yet, so that its number cannot belong to another process.
pub(crate) fn send(child: &std::process::Child, signal: ProcessSignal) -> io::Result<()> {
    let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    // SAFETY: plain integers in, nothing is dereferenced.
    if unsafe { libc::kill(pid, signal.number()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the child receive `signal` when the *thread* that spawns it ends: spawn from one that lives as long
/// as the process. Only on Linux; elsewhere a crash of the parent leaves the child running.
#[cfg(target_os = "linux")]
pub(crate) fn end_with_parent(command: &mut Command, signal: ProcessSignal) {
    use std::os::unix::process::CommandExt;

    let parent = std::process::id();
    // SAFETY: between fork and exec only async-signal-safe calls are allowed: prctl and getppid are,
    // and nothing here allocates. It runs after the change of user, which would clear the setting.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal.number()) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have ended before the setting was made.
            if u32::try_from(libc::getppid()).ok() != Some(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn end_with_parent(_command: &mut Command, _signal: ProcessSignal) {}
