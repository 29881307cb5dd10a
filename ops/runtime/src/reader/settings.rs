//! Settings of the readers.

use std::{path::PathBuf, time::Duration};

use clap::Args;

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
