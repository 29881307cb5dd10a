//! The child process: sets its own limits, then reads job after job from standard input and answers on standard output.

use std::{io, sync::mpsc, thread};

use rustix::process::{Resource, Rlimit, setrlimit};

use super::{
    Job, ReaderError,
    frame::{self, Request},
    run_here,
};

/// Stack of the thread that reads. A reader's depth limit must hold within it.
const STACK_BYTES: usize = 4 * 1024 * 1024;
/// Open files: standard input, output and error, and no more.
const OPEN_FILES: u64 = 3;
/// What the process occupies by itself, where the system does not tell.
const OWN_BYTES: u64 = 512 * 1024 * 1024;

/// Serves as a reader of `jobs` until the parent closes standard input, then ends the process. One reading may take `memory_bytes`
/// beyond what the process occupies when it starts.
///
/// Call it before there are other threads: it changes the limits of the whole process.
/// The parent notices that it ends, by an error or otherwise.
pub fn serve(jobs: Vec<Job>, memory_bytes: u64) -> io::Result<std::convert::Infallible> {
    let failed = |what: &'static str| move |error: io::Error| io::Error::other(format!("{what}: {error}"));
    // A panic's message may quote what was read.
    std::panic::set_hook(Box::new(|_| {}));
    limit_resources(memory_bytes)?;
    let (sender, requests) = mpsc::sync_channel::<Request>(1);
    thread::Builder::new()
        .name("reader".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            for request in requests {
                let answer = answer(&jobs, &request);
                if frame::write_answer(&mut io::stdout().lock(), &answer).is_err() {
                    std::process::exit(1);
                }
            }
        })
        .map_err(failed("cannot start the thread that reads"))?;
    frame::write_ready(&mut io::stdout().lock()).map_err(failed("cannot talk to the parent"))?;
    // This thread waits on standard input also while the other reads: a reader does not outlive its parent.
    let mut stdin = io::stdin().lock();
    while let Some(request) = frame::read_request(&mut stdin).map_err(failed("cannot talk to the parent"))? {
        if sender.send(request).is_err() {
            break;
        }
    }
    std::process::exit(0)
}

fn answer(jobs: &[Job], request: &Request) -> Result<Vec<u8>, ReaderError> {
    let job = jobs.iter().find(|job| job.kind.as_bytes() == request.kind).ok_or(ReaderError::Undecodable)?;
    run_here(job, &request.input)
}

fn limit_resources(memory_bytes: u64) -> io::Result<()> {
    let address_space = own_bytes().saturating_add(STACK_BYTES as u64).saturating_add(memory_bytes);
    let limits = [
        (Resource::As, "address space", address_space),
        (Resource::Core, "core files", 0),
        (Resource::Fsize, "written files", 0),
        (Resource::Nofile, "open files", OPEN_FILES),
    ];
    for (resource, name, most) in limits {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit)
            .map_err(|error| io::Error::other(format!("cannot set the limit {name}: {error}")))?;
    }
    Ok(())
}

/// The address space the process occupies now.
fn own_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes =
        status.lines().find_map(|line| line.strip_prefix("VmSize:")?.split_whitespace().next()?.parse().ok());
    kilobytes.map_or(OWN_BYTES, |kilobytes: u64| kilobytes * 1024)
}
