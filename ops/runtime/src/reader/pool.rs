//! The parent's side: a few children, started when they are needed and replaced when they end.

use std::{
    io,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

use super::{INPUT_BYTES_MAX, Job, ReaderError, ReaderSettings, frame, run_here};
use crate::{Backoff, Counter, Spent};

/// Readings at once in the process itself, when child processes are switched off.
const READINGS_HERE: usize = 2;
/// Longest a reading waits for a free reader.
const FREE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest a child may take until it is ready.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest a killed child is waited for. It is killed for certain; only its slot is free a little early.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// Pauses after failed starts.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// Reads strangers' bytes where they cannot take this process along. Clones share their child processes.
#[derive(Debug, Clone)]
pub struct Reader(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: ReaderSettings,
    /// One permit for each reading at once.
    free: Arc<Semaphore>,
    idle: Mutex<Vec<Running>>,
    starts: Mutex<Starts>,
}

/// The failed starts in a row, and when the next try may be.
#[derive(Debug, Default)]
struct Starts {
    failed: u32,
    not_before: Option<Instant>,
}

/// A child that waits for a job. Dropping it kills it: one that was left in the middle of a job is of no use.
#[derive(Debug)]
struct Running {
    process: Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Reader {
    /// A reader with these settings. Starts nothing yet.
    #[must_use]
    pub fn new(settings: ReaderSettings) -> Self {
        let at_once = if settings.reader_processes == 0 { READINGS_HERE } else { settings.reader_processes };
        Self(Arc::new(Shared {
            settings,
            free: Arc::new(Semaphore::new(at_once)),
            idle: Mutex::default(),
            starts: Mutex::default(),
        }))
    }

    /// A reader without child processes. For tests, whose program is no reader.
    #[must_use]
    pub fn in_process() -> Self {
        Self::new(ReaderSettings { reader_processes: 0, ..ReaderSettings::default() })
    }

    /// Runs `job` on `input` in a child process and answers its result. Waits for a free child, then at most as long as the setting
    /// says. Hold no database connection meanwhile. Dropping the future ends the reading.
    pub async fn read(&self, job: &Job, input: impl Into<Bytes>) -> Result<Vec<u8>, ReaderError> {
        let result = self.attempt(job, input.into()).await;
        let outcome = result.as_ref().err().map_or("done", |error| error.outcome());
        Counter::ReaderJobsTotal.add(1, [("kind", job.kind), ("outcome", outcome)]);
        result
    }

    async fn attempt(&self, job: &Job, input: Bytes) -> Result<Vec<u8>, ReaderError> {
        if input.len() > INPUT_BYTES_MAX {
            return Err(ReaderError::Spent(Spent::Input));
        }
        let permit = timeout(FREE_TIMEOUT, Arc::clone(&self.0.free).acquire_owned());
        let permit = permit.await.ok().and_then(Result::ok).ok_or(ReaderError::Unavailable)?;
        if self.0.settings.reader_processes == 0 {
            return self.read_here(job, input, permit).await;
        }
        let mut running = self.running().await?;
        let exchange = timeout(self.0.settings.reader_timeout, running.ask(job, &input)).await;
        match exchange {
            Ok(Ok(answer)) => {
                self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).push(running);
                answer
            }
            Ok(Err(error)) => {
                running.end(job, &error).await;
                Err(ReaderError::Crashed)
            }
            Err(_) => {
                running.end(job, &"took too long").await;
                Err(ReaderError::TimedOut)
            }
        }
    }

    /// The reading in this process, on a thread of its own. One that takes too long goes on there and keeps its permit.
    async fn read_here(&self, job: &Job, input: Bytes, permit: OwnedSemaphorePermit) -> Result<Vec<u8>, ReaderError> {
        let job = *job;
        let reading = tokio::task::spawn_blocking(move || {
            let result = run_here(&job, &input);
            drop(permit);
            result
        });
        match timeout(self.0.settings.reader_timeout, reading).await {
            Ok(joined) => joined.unwrap_or(Err(ReaderError::Unavailable)),
            Err(_) => Err(ReaderError::TimedOut),
        }
    }

    /// An idle child, or a new one.
    async fn running(&self) -> Result<Running, ReaderError> {
        while let Some(mut running) = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            // It may have been ended from outside meanwhile: that is no job's fault.
            if matches!(running.process.try_wait(), Ok(None)) {
                return Ok(running);
            }
        }
        if self.starts().not_before.is_some_and(|time| Instant::now() < time) {
            return Err(ReaderError::Unavailable);
        }
        let started = timeout(START_TIMEOUT, Running::start(&self.0.settings)).await;
        let started = started.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let outcome = if started.is_ok() { "started" } else { "failed" };
        Counter::ReaderStartsTotal.add(1, [("outcome", outcome)]);
        let mut starts = self.starts();
        match started {
            Ok(running) => {
                *starts = Starts::default();
                Ok(running)
            }
            Err(error) => {
                starts.failed = starts.failed.saturating_add(1);
                let pause = BACKOFF.pause(starts.failed);
                starts.not_before = Some(Instant::now() + pause);
                tracing::error!(%error, pause_ms = pause.as_millis() as u64, "a reader process did not start");
                Err(ReaderError::Unavailable)
            }
        }
    }

    fn starts(&self) -> std::sync::MutexGuard<'_, Starts> {
        self.0.starts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    async fn start(settings: &ReaderSettings) -> io::Result<Self> {
        let mut process = Command::new(program(settings)?)
            .args(["reader", "--memory-mb", &settings.reader_memory_mb.to_string()])
            .env_clear()
            // One area of memory for all threads, and what is free goes back: the limit counts what is set aside.
            .env("_RJEM_MALLOC_CONF", "narenas:1,retain:false")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(to), Some(mut from)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        frame::await_ready(&mut from).await?;
        Ok(Self { process, to, from })
    }

    /// An error here is the end of this child.
    async fn ask(&mut self, job: &Job, input: &[u8]) -> io::Result<Result<Vec<u8>, ReaderError>> {
        frame::send_request(&mut self.to, job.kind, input).await?;
        frame::receive_answer(&mut self.from).await
    }

    /// Makes sure that the child is gone, and says how it ended.
    async fn end(mut self, job: &Job, reason: &(dyn std::fmt::Display + Sync)) {
        // A child that crashed is given the time to do so: how it ended says why.
        drop(self.to);
        let status = match timeout(END_TIMEOUT / 10, self.process.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            _ => {
                let _ = timeout(END_TIMEOUT, self.process.kill()).await;
                "killed".to_owned()
            }
        };
        tracing::warn!(kind = job.kind, status, %reason, "a reader process ended over an input");
    }
}

/// The program to start. Where the system names the running one by a link, that stays right when its file is replaced.
fn program(settings: &ReaderSettings) -> io::Result<PathBuf> {
    match &settings.reader_program {
        Some(program) => Ok(program.clone()),
        None if cfg!(target_os = "linux") => Ok(PathBuf::from("/proc/self/exe")),
        None => std::env::current_exe(),
    }
}
