//! One server process: started from a thread that outlives it, watched until it is ready, stopped in order.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::servers::children::end_with_parent;
use crate::servers::place::DataDirectory;

/// Postgres replays its log after a crash before it answers, and disks are slow at times.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a restart waits for its own port or memory to become free.
const BUSY_FOR_AT_MOST: Duration = Duration::from_secs(15);
/// Time for an orderly stop, then the process is killed.
const STOP_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// What is particular to a server.
pub trait Program: Send + Sync + 'static {
    /// Its name, for people.
    const NAME: &'static str;
    /// Its orderly stop. NATS leaves on SIGTERM; on SIGINT, Postgres rolls back, checkpoints and leaves ("fast shutdown").
    #[doc(hidden)]
    const STOP: Signal;
    #[doc(hidden)]
    fn command(&self) -> Command;
    #[doc(hidden)]
    fn is_ready(&self, pid: u32) -> bool;
}

/// The port, or another thing the server needs, was in use at that moment: another start may succeed.
#[derive(Debug, thiserror::Error)]
#[error("{server} found its port or memory in use; its last log lines:\n{log}")]
struct Busy {
    server: &'static str,
    log: String,
}

/// A server that this process started and that ends with it.
pub struct Server<P: Program> {
    inner: Arc<Inner<P>>,
}

struct Inner<P: Program> {
    program: P,
    log: PathBuf,
    lock: File,
    child: Mutex<Option<Child>>,
}

impl<P: Program> fmt::Debug for Server<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(P::NAME).field("pid", &self.pid()).finish()
    }
}

impl<P: Program> Server<P> {
    /// Starts a server whose ports `make` chooses, again with other ports when they were taken meanwhile. Empties the log of its last run.
    pub(crate) fn launch(
        place: &DataDirectory,
        log: &Path,
        make: impl Fn() -> anyhow::Result<P>,
    ) -> anyhow::Result<Self> {
        const ATTEMPTS: u32 = 20;
        fs::write(log, "").with_context(|| format!("writing {}", log.display()))?;
        let mut attempt = 1;
        loop {
            let (program, lock) = (make()?, place.share_lock()?);
            let inner = Inner { program, log: log.to_owned(), lock, child: Mutex::new(None) };
            let started = inner.start_once(&mut inner.child());
            match started {
                Ok(()) => return Ok(Self { inner: Arc::new(inner) }),
                Err(error) if error.is::<Busy>() && attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// [`Server::stop`] for `Drop` implementations.
    pub(crate) fn stop_blocking(&self) {
        self.inner.stop_blocking();
    }

    pub(crate) fn program(&self) -> &P {
        &self.inner.program
    }

    /// Its process id; `None` while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.inner.child().as_ref().map(Child::id)
    }

    /// Starts it after [`stop`](Self::stop) or [`kill9`](Self::kill9): same port, same data. Returns when it answers.
    /// Nothing happens when it runs.
    pub async fn start(&self) -> anyhow::Result<()> {
        let inner = Arc::clone(&self.inner);
        blocking(move || inner.start()).await
    }

    /// Checks that the server has not ended by itself; the error has the end of its log.
    pub(crate) fn check_running(&self) -> anyhow::Result<()> {
        let ended = match self.inner.child().as_mut() {
            Some(child) => child.try_wait().with_context(|| format!("looking at {}", P::NAME))?,
            None => None,
        };
        if let Some(status) = ended {
            bail!(self.inner.failed(&format!("ended by itself ({status})"), 0));
        }
        Ok(())
    }

    /// Stops it in its orderly way and returns when its process is gone. Nothing happens when it is stopped.
    pub async fn stop(&self) -> anyhow::Result<()> {
        let inner = Arc::clone(&self.inner);
        blocking(move || inner.end(P::STOP)).await
    }

    /// Kills its (main) process as a crash would, and returns when that is gone.
    pub async fn kill9(&self) -> anyhow::Result<()> {
        let inner = Arc::clone(&self.inner);
        blocking(move || inner.end(Signal::KILL)).await
    }
}

impl<P: Program> Inner<P> {
    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        // A panic while the lock was held cannot leave an `Option<Child>` half-written.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) -> anyhow::Result<()> {
        let mut child = self.child();
        if child.is_some() {
            return Ok(());
        }
        let give_up = Instant::now() + BUSY_FOR_AT_MOST;
        loop {
            match self.start_once(&mut child) {
                Err(error) if error.is::<Busy>() && Instant::now() < give_up => thread::sleep(LOOK_EVERY * 10),
                result => return result,
            }
        }
    }

    fn start_once(&self, slot: &mut Option<Child>) -> anyhow::Result<()> {
        let opened = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = opened.with_context(|| format!("opening {}", self.log.display()))?;
        let log_start = log.metadata().map_or(0, |metadata| metadata.len());
        let again = |file: &File| file.try_clone().with_context(|| format!("preparing the files of {}", P::NAME));
        let mut command = self.program.command();
        command
            // Holding the lock of the data directory open, the server keeps it locked until it is gone, also
            // when we are gone first: no second server starts on the same data meanwhile.
            .stdin(Stdio::from(again(&self.lock)?))
            .stdout(Stdio::from(again(&log)?))
            .stderr(Stdio::from(log))
            // Out of the terminal's foreground group: Ctrl-C is for us, and we drain first.
            .process_group(0);
        end_with_parent(&mut command, P::STOP);
        let mut child = spawn(command).with_context(|| format!("starting {}", P::NAME))?;
        if let Err(error) = self.wait_until_ready(&mut child, log_start) {
            end(&mut child, Signal::KILL, P::NAME)?;
            return Err(error);
        }
        *slot = Some(child);
        Ok(())
    }

    fn wait_until_ready(&self, child: &mut Child, log_start: u64) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let ended = child.try_wait().with_context(|| format!("looking at {}", P::NAME))?;
            if let Some(status) = ended {
                let log = log_tail(&self.log, log_start);
                if is_busy(&log) {
                    return Err(Busy { server: P::NAME, log }.into());
                }
                bail!(self.failed(&format!("ended at start ({status})"), log_start));
            }
            if self.program.is_ready(child.id()) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!(self.failed(&format!("was not ready within {} s", READY_WITHIN.as_secs()), log_start));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// What happened, with the end of the log.
    fn failed(&self, what: &str, log_start: u64) -> String {
        format!("{} {what}; its last log lines:\n{}", P::NAME, log_tail(&self.log, log_start))
    }

    fn end(&self, signal: Signal) -> anyhow::Result<()> {
        let mut slot = self.child();
        if let Some(child) = slot.as_mut() {
            end(child, signal, P::NAME)?;
            *slot = None;
        }
        Ok(())
    }

    fn stop_blocking(&self) {
        if let Err(error) = self.end(P::STOP) {
            tracing::warn!(server = P::NAME, %error, "could not be stopped");
        }
    }
}

impl<P: Program> Drop for Inner<P> {
    fn drop(&mut self) {
        self.stop_blocking();
    }
}

/// Sends `signal`, waits, and kills what does not go.
fn end(child: &mut Child, signal: Signal, name: &str) -> anyhow::Result<()> {
    let looking = || format!("stopping {name}");
    if child.try_wait().with_context(looking)?.is_some() {
        return Ok(());
    }
    kill_process(Pid::from_child(child), signal).with_context(looking)?;
    let deadline = Instant::now() + STOP_WITHIN;
    while signal != Signal::KILL && Instant::now() < deadline {
        if child.try_wait().with_context(looking)?.is_some() {
            return Ok(());
        }
        thread::sleep(LOOK_EVERY);
    }
    child.kill().with_context(looking)?;
    child.wait().with_context(looking).map(drop)
}

/// Whether the log names something that is only in use for now: a port, or what a killed Postgres left to its children.
fn is_busy(log: &str) -> bool {
    let log = log.to_lowercase();
    ["address already in use", "pre-existing shared memory block", "lock file \"postmaster.pid\" already exists"]
        .iter()
        .any(|sign| log.contains(sign))
}

fn log_tail(path: &Path, from: u64) -> String {
    const LINES: usize = 20;
    let mut text = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut text)
    });
    if let Err(error) = read {
        return format!("(unreadable: {error})");
    }
    last_lines(&String::from_utf8_lossy(&text), LINES)
}

pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

type SpawnJob = (Command, mpsc::Sender<std::io::Result<Child>>);

/// Spawns from a thread that lives as long as this process: a child gets its "parent died" signal when the
/// thread that spawned it ends, and threads of a test or of a runtime end early.
fn spawn(command: Command) -> std::io::Result<Child> {
    static SPAWNER: Mutex<Option<mpsc::Sender<SpawnJob>>> = Mutex::new(None);

    let (answer, answered) = mpsc::channel();
    {
        let mut spawner = SPAWNER.lock().unwrap_or_else(PoisonError::into_inner);
        let jobs = match &*spawner {
            Some(jobs) => jobs,
            None => spawner.insert(start_spawner()?),
        };
        jobs.send((command, answer)).map_err(|_| std::io::Error::other("the spawning thread ended"))?;
    }
    answered.recv().map_err(|_| std::io::Error::other("the spawning thread ended"))?
}

fn start_spawner() -> std::io::Result<mpsc::Sender<SpawnJob>> {
    let (jobs, received) = mpsc::channel::<SpawnJob>();
    thread::Builder::new().name("server-spawner".to_owned()).spawn(move || {
        for (mut command, answer) in received {
            // A caller that left does not read the answer; the child is then killed by no one but the
            // parent-died signal, which is what we want.
            let _ = answer.send(command.spawn());
        }
    })?;
    Ok(jobs)
}

/// Runs blocking work beside the async runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await.context("interrupted by shutdown")?
}
