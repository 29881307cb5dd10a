//! For programs that start further processes beside the servers.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use crate::servers::sys::{self, ProcessSignal};

/// Makes a child end with this process, however it ends, and keeps Ctrl-C at the terminal from reaching it, so that its
/// parent can stop things in order. Spawn it from a thread that lives as long as the process: the child ends with that thread.
pub fn tie_to_this_process(command: &mut Command) {
    command.process_group(0);
    sys::end_with_parent(command, ProcessSignal::Terminate);
}

/// Asks a child to stop in order (SIGTERM). A child that is gone already is no error.
pub fn ask_to_stop(child: &Child) {
    if let Err(error) = sys::send(child, ProcessSignal::Terminate) {
        tracing::debug!(%error, "a process was gone before it could be asked to stop");
    }
}
