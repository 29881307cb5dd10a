//! The two servers the engine stands on, run privately and without containers: `nats-server` and Postgres.
//!
//! [`Servers::start`] finds both programs (or installs them, see [`nats`](mod@nats) and [`postgres`](mod@postgres)),
//! starts them on free loopback ports and waits until they really answer. They end with the process that started
//! them, however it ends, and they keep their ports over a restart, so that clients can reconnect.
//!
//! Tests take [`shared`]: one pair for a whole test run, a [`TestDatabase`] for each test.

mod children;
mod install;
pub mod nats;
mod place;
mod ports;
pub mod postgres;
mod process;
mod shared;

use std::path::{Path, PathBuf};

use anyhow::anyhow;

pub use children::{ask_to_stop, tie_to_this_process};
pub use nats::NatsServer;
pub use ports::free_port;
pub use postgres::PostgresServer;
pub use process::Server;
pub(crate) use process::last_lines;
pub use shared::{SharedServers, TEST_DATABASE_URL_VARIABLE, TEST_NATS_URL_VARIABLE, TestDatabase, shared};

use place::DataDirectory;

/// How to start the servers.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Where their data goes, in a directory that is created when missing; a later start finds the data again. One process at a time.
    /// `None`: a new directory that is deleted when the servers stop. One that a crash left behind is deleted by the next such start.
    pub data_dir: Option<PathBuf>,
    /// Commits and published messages wait for the disk, as in production. Without, they outlive a killed server and
    /// no power cut, which is enough for tests and much quicker.
    pub synced: bool,
}

impl ServerOptions {
    /// Data that lives as long as the servers.
    pub fn ephemeral() -> Self {
        Self { data_dir: None, synced: true }
    }

    /// Data that lives as long as the servers, and waits for no disk: for the servers that tests share.
    pub fn unsynced() -> Self {
        Self { synced: false, ..Self::ephemeral() }
    }

    /// Data that stays in `data_dir`.
    pub fn kept(data_dir: impl Into<PathBuf>) -> Self {
        Self { data_dir: Some(data_dir.into()), synced: true }
    }
}

/// A usable nats-server: the one on `PATH`, else the one that is kept or fetched. For tests that run it with files of their own.
pub fn nats_program() -> anyhow::Result<PathBuf> {
    nats::find_or_install(&install::Cache::open()?)
}

/// A running NATS server and a running Postgres. Both stop when this is dropped.
#[derive(Debug)]
pub struct Servers {
    nats: NatsServer,
    postgres: PostgresServer,
    place: DataDirectory,
}

impl Servers {
    /// Starts both servers and returns when both answer. The first start on a machine may download them.
    pub async fn start(options: &ServerOptions) -> anyhow::Result<Self> {
        let options = options.clone();
        process::blocking(move || Self::start_blocking(&options)).await
    }

    /// [`Servers::start`] for callers outside an async runtime.
    pub fn start_blocking(options: &ServerOptions) -> anyhow::Result<Self> {
        let cache = install::Cache::open()?;
        let nats_program = nats::find_or_install(&cache)?;
        let postgres_programs = postgres::find_or_install(&cache)?;
        let place = DataDirectory::open(options.data_dir.as_deref(), options.synced)?;
        // Side by side: initdb takes a second or two, and NATS need not wait for it.
        let (nats, postgres) = std::thread::scope(|scope| {
            let nats = scope.spawn(|| nats::start(&nats_program, &place, options.synced));
            let postgres = postgres::start(&postgres_programs, &place, options.synced);
            (nats.join(), postgres)
        });
        Ok(Self { nats: nats.map_err(|_| anyhow!("the start of NATS panicked"))??, postgres: postgres?, place })
    }

    /// The NATS server.
    pub fn nats(&self) -> &NatsServer {
        &self.nats
    }

    /// The Postgres server.
    pub fn postgres(&self) -> &PostgresServer {
        &self.postgres
    }

    /// `nats://…`, the address clients connect to.
    pub fn nats_url(&self) -> String {
        self.nats.url()
    }

    /// `postgres://…/<database>`, as the superuser of this private cluster. Contains its password.
    pub fn database_url(&self, database: &str) -> String {
        self.postgres.database_url(database)
    }

    /// The directory that holds the servers' configuration, data and logs.
    pub fn data_dir(&self) -> &Path {
        self.place.root()
    }

    /// Checks that neither server has ended by itself; the error has the end of its log.
    pub fn check_running(&self) -> anyhow::Result<()> {
        self.postgres.check_running().and(self.nats.check_running())
    }

    /// Stops both servers, each in its orderly way. Ephemeral data is deleted when `self` is dropped.
    pub async fn stop_all(&self) -> anyhow::Result<()> {
        let (nats, postgres) = tokio::join!(self.nats.stop(), self.postgres.stop());
        nats.and(postgres)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // Here and not with the last handle: `place` goes next, and with it an ephemeral directory.
        self.nats.stop_blocking();
        self.postgres.stop_blocking();
    }
}
