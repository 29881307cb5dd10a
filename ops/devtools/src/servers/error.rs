//! What can go wrong with a server, and what a person can do about it.

use std::io;
use std::path::PathBuf;

/// Why a server could not be found, installed, started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServersError {
    /// The program is nowhere and none of the ways to install it worked.
    #[error("{program} was not found and could not be installed:\n{attempts}\n{advice}")]
    NotInstalled {
        /// What was looked for.
        program: &'static str,
        /// Each way tried and how it failed, one per line.
        attempts: String,
        /// What a person can do.
        advice: &'static str,
    },
    /// A download is not the file that was pinned. Nothing of it was run.
    #[error("{file} does not have the expected SHA-256 checksum: {actual} instead of {expected}")]
    Checksum {
        /// The file's name.
        file: String,
        /// The pinned checksum.
        expected: &'static str,
        /// The checksum it has.
        actual: String,
    },
    /// A helper program (pip, npm, apt-get, initdb …) failed.
    #[error("`{command}` failed: {output}")]
    Command {
        /// Its name.
        command: String,
        /// The end of what it printed.
        output: String,
    },
    /// Another process runs its servers on this data directory.
    #[error("the data directory {} is in use by another process", .0.display())]
    DataInUse(PathBuf),
    /// The data was written by another major version of Postgres.
    #[error("the data in {} is of Postgres {found}, the installed server is {installed}: install that version or use another data directory", .data_dir.display())]
    DataVersion {
        /// The cluster's directory.
        data_dir: PathBuf,
        /// Major version that wrote it.
        found: String,
        /// Major version at hand.
        installed: u32,
    },
    /// The server ended, or never became ready.
    #[error("{server} {what}; its last log lines:\n{log}")]
    NotReady {
        /// Which server.
        server: &'static str,
        /// What happened.
        what: String,
        /// The end of its log.
        log: String,
    },
    /// The port, or another thing the server needs, was in use at that moment: another start may succeed.
    #[error("{server} found its port or memory in use; its last log lines:\n{log}")]
    Busy {
        /// Which server.
        server: &'static str,
        /// The end of its log.
        log: String,
    },
    /// A database name with characters other than `a-z`, `0-9` and `_`, or longer than 63.
    #[error("not a database name: it takes 1 to 63 of a-z, 0-9 and _")]
    DatabaseName,
    /// Only one of the two addresses of the servers for tests is set, or one is not a URL.
    #[error("POSTRIDER_TEST_NATS_URL and POSTRIDER_TEST_DATABASE_URL are set together and to URLs, or not at all")]
    TestAddresses,
    /// Postgres refused a statement or the connection to it failed.
    #[error("Postgres did not do what was asked")]
    Database(#[from] sqlx::Error),
    /// The schema could not be set up in a database for tests.
    #[error("the migrations failed")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// A file or process operation failed.
    #[error("{action} failed")]
    Io {
        /// What was attempted.
        action: String,
        /// How it failed.
        #[source]
        source: io::Error,
    },
    /// The work was cut off: the runtime is shutting down.
    #[error("interrupted by shutdown")]
    Interrupted,
}

/// Names the action an [`io::Error`] interrupted.
pub(crate) trait During<T> {
    fn during(self, action: impl FnOnce() -> String) -> Result<T, ServersError>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, action: impl FnOnce() -> String) -> Result<T, ServersError> {
        self.map_err(|source| ServersError::Io { action: action(), source })
    }
}
