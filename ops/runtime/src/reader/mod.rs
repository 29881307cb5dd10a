//! Reads strangers' bytes in small child processes, so that a stack overflow, an exhausted memory limit or an endless loop costs one
//! job and not the engine.
//!
//! A [`Job`] is a plain function from bytes to bytes. [`Reader::read`] hands it to a child process (`postrider reader`), which runs it
//! under resource limits it has set itself ([`serve`]). The child knows nothing: its environment is empty, it opens no files, it has no
//! connections. A child that dies or does not answer in time is replaced.
//!
//! The process is the second safeguard. The first is the function's own [`Budget`](crate::Budget).

mod child;
mod frame;
mod pool;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use thiserror::Error;

use crate::Spent;

pub use child::serve;
pub use pool::Reader;

/// Longest input of a job, in bytes: above the largest upload the API takes, decoded.
pub const INPUT_BYTES_MAX: usize = 48 * 1024 * 1024;
/// Longest result of a job, in bytes.
pub const RESULT_BYTES_MAX: usize = 32 * 1024 * 1024;

const PROCESSES: usize = 2;
const MEMORY_MB: u64 = 128;
const TIMEOUT: Duration = Duration::from_secs(10);

/// How strangers' bytes are read.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Readers")]
#[group(skip)]
pub struct ReaderSettings {
    /// Child processes that read inbound mail and attachments, at most, for each process that does; started when they are needed. 0
    /// reads in the process itself: an input that overflows the stack then ends the whole process.
    #[arg(long, env = "POSTRIDER_READER_PROCESSES", default_value_t = PROCESSES)]
    pub reader_processes: usize,
    /// Memory one reading may take, in MB. More ends that child process.
    #[arg(long, env = "POSTRIDER_READER_MEMORY_MB", default_value_t = MEMORY_MB, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    pub reader_memory_mb: u64,
    /// Longest one reading may take; then its child process is ended.
    #[arg(long, env = "POSTRIDER_READER_TIMEOUT", default_value = "10s", value_parser = humantime::parse_duration)]
    pub reader_timeout: Duration,
    /// The program that is started as a reader, in tests. `None`: the running one.
    #[arg(skip)]
    pub reader_program: Option<PathBuf>,
}

impl Default for ReaderSettings {
    fn default() -> Self {
        Self { reader_processes: PROCESSES, reader_memory_mb: MEMORY_MB, reader_timeout: TIMEOUT, reader_program: None }
    }
}

/// One kind of reading. The function must depend on nothing but its input: it runs in another process.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// The name: in metrics, and between the processes. Lower-case words, at most 64 bytes.
    pub kind: &'static str,
    /// The reading. "This input is damaged" is a result; a fault is what ends the reading without one.
    pub run: fn(&[u8]) -> Result<Vec<u8>, ReadFault>,
}

/// Why a job has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReadFault {
    /// The reading passed its budget.
    #[error(transparent)]
    Spent(#[from] Spent),
    /// The job's own wrapping of its input cannot be decoded: a defect of the program.
    #[error("the job cannot be decoded")]
    Undecodable,
}

/// Why [`Reader::read`] answers no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReaderError {
    /// The input passed the budget of its reading, or [`INPUT_BYTES_MAX`].
    #[error(transparent)]
    Spent(Spent),
    /// The input ended its reading: a panic, a stack overflow, or more memory than the limit.
    #[error("the input crashed its reader")]
    Crashed,
    /// The reading took longer than the setting allows and was ended.
    #[error("reading the input took too long and was ended")]
    TimedOut,
    /// The job's own wrapping of its input cannot be decoded: a defect of the program.
    #[error("the job cannot be decoded")]
    Undecodable,
    /// No reader could be started, or none was free in time.
    #[error("no reader is available")]
    Unavailable,
}

impl ReaderError {
    /// True if the same input may be read another time. Bound the tries of [`Self::TimedOut`] and of [`Spent::Time`]: the input may be
    /// the reason.
    #[must_use]
    pub fn is_transient(self) -> bool {
        match self {
            Self::Spent(spent) => spent.is_transient(),
            Self::TimedOut | Self::Unavailable => true,
            Self::Crashed | Self::Undecodable => false,
        }
    }

    /// The outcome as metrics name it.
    fn outcome(self) -> &'static str {
        match self {
            Self::Spent(_) => "spent",
            Self::Crashed | Self::Undecodable => "crashed",
            Self::TimedOut => "timed_out",
            Self::Unavailable => "unavailable",
        }
    }
}

impl From<ReadFault> for ReaderError {
    fn from(fault: ReadFault) -> Self {
        match fault {
            ReadFault::Spent(spent) => Self::Spent(spent),
            ReadFault::Undecodable => Self::Undecodable,
        }
    }
}

/// Runs a job in this process. A panic is [`ReaderError::Crashed`].
fn run_here(job: &Job, input: &[u8]) -> Result<Vec<u8>, ReaderError> {
    catch_unwind(AssertUnwindSafe(|| (job.run)(input))).map_err(|_| ReaderError::Crashed)?.map_err(ReaderError::from)
}
