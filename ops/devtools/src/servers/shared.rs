//! Servers for tests: one pair for a whole run, a database for each test.
//!
//! `with-servers <command>` (what `./ops/test` uses) starts a pair, names it to the command in two environment
//! variables and stops it afterwards. A test process without these variables starts a pair of its own, which ends
//! with the process.

use std::sync::{Mutex, OnceLock, PoisonError, mpsc};

use anyhow::{Context as _, bail};
use sha2::{Digest, Sha256};
use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use url::Url;

use crate::servers::postgres::{checked_name, create_database};
use crate::servers::{ServerOptions, Servers, process};

/// Names the NATS server for tests.
pub const TEST_NATS_URL_VARIABLE: &str = "POSTRIDER_TEST_NATS_URL";
/// Names any database, as a superuser, of the Postgres for tests.
pub const TEST_DATABASE_URL_VARIABLE: &str = "POSTRIDER_TEST_DATABASE_URL";

/// The servers that tests share: keep to your own database, and to your own prefix of stream names.
#[derive(Clone)]
pub struct SharedServers {
    nats_url: String,
    database_url: Url,
}

impl std::fmt::Debug for SharedServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The database's URL has a password.
        f.debug_struct("SharedServers").field("nats_url", &self.nats_url).finish_non_exhaustive()
    }
}

/// The servers of this test run, started when this process is the first to ask for them.
pub async fn shared() -> anyhow::Result<SharedServers> {
    match SharedServers::from_environment()? {
        Some(servers) => Ok(servers),
        None => process::blocking(SharedServers::own).await,
    }
}

impl SharedServers {
    /// `nats://…`
    pub fn nats_url(&self) -> &str {
        &self.nats_url
    }

    /// `postgres://…/<database>` as the superuser.
    pub fn database_url(&self, database: &str) -> String {
        let mut url = self.database_url.clone();
        url.set_path(database);
        url.into()
    }

    fn from_environment() -> anyhow::Result<Option<Self>> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        match (variable(TEST_NATS_URL_VARIABLE), variable(TEST_DATABASE_URL_VARIABLE)) {
            (None, None) => Ok(None),
            (Some(nats_url), Some(database_url)) => Ok(Some(Self {
                nats_url,
                database_url: Url::parse(&database_url).context(TEST_DATABASE_URL_VARIABLE)?,
            })),
            _ => bail!("{TEST_NATS_URL_VARIABLE} and {TEST_DATABASE_URL_VARIABLE} are set together, or not at all"),
        }
    }

    /// The pair of this process. Never dropped: the servers get their signal when the process ends, and the next
    /// ephemeral start deletes their directory.
    fn own() -> anyhow::Result<Self> {
        static OWN: Mutex<Option<Servers>> = Mutex::new(None);

        let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        let servers = match &*own {
            Some(servers) => servers,
            None => own.insert(Servers::start_blocking(&ServerOptions::unsynced())?),
        };
        Ok(Self { nats_url: servers.nats_url(), database_url: Url::parse(&servers.database_url("postgres"))? })
    }
}

/// A new database on the shared Postgres. It is deleted when this is dropped: keep it as long as anything is connected.
pub struct TestDatabase {
    name: String,
    servers: SharedServers,
}

impl std::fmt::Debug for TestDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestDatabase").field("name", &self.name).finish_non_exhaustive()
    }
}

impl TestDatabase {
    /// An empty database.
    pub async fn create() -> anyhow::Result<Self> {
        Self::from_template(None).await
    }

    /// A database with the schema of `migrator`. They run once per test run, into a template that is then copied.
    pub async fn migrated(migrator: &Migrator) -> anyhow::Result<Self> {
        Self::from_template(Some(migrator)).await
    }

    async fn from_template(migrator: Option<&Migrator>) -> anyhow::Result<Self> {
        let database =
            Self { name: format!("test_{}", hex::encode(rand::random::<[u8; 8]>())), servers: shared().await? };
        let mut connection = maintenance(&database.servers).await?;
        let template = match migrator {
            Some(migrator) => Some(template_of(&database.servers, &mut connection, migrator).await?),
            None => None,
        };
        create_database(&mut connection, &database.name, template.as_deref()).await?;
        connection.close().await?;
        Ok(database)
    }

    /// Its name, unique on the server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `postgres://…` as the superuser, which row security does not bind: `set role` first to test that.
    pub fn url(&self) -> String {
        self.servers.database_url(&self.name)
    }

    /// The NATS server beside it.
    pub fn nats_url(&self) -> &str {
        self.servers.nats_url()
    }
}

impl Drop for TestDatabase {
    /// Deletes it in the background, even while clients are connected: thousands of them, each of 14 MB in 700 files, fill a disk.
    fn drop(&mut self) {
        queue_deletion(self.servers.clone(), std::mem::take(&mut self.name));
    }
}

/// Hands a database to the thread that deletes them, one after another. What is left when the process ends goes with the servers.
fn queue_deletion(servers: SharedServers, name: String) {
    static DELETER: OnceLock<mpsc::Sender<(SharedServers, String)>> = OnceLock::new();

    let deleter = DELETER.get_or_init(|| {
        let (names, received) = mpsc::channel::<(SharedServers, String)>();
        std::thread::spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            for (servers, name) in received {
                // Servers that were stopped have taken it along.
                let _ = runtime.block_on(delete_database(&servers, &name));
            }
        });
        names
    });
    let _ = deleter.send((servers, name));
}

async fn delete_database(servers: &SharedServers, name: &str) -> anyhow::Result<()> {
    let mut connection = maintenance(servers).await?;
    let statement = format!(r#"drop database "{}" with (force)"#, checked_name(name)?);
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    Ok(connection.close().await?)
}

async fn maintenance(servers: &SharedServers) -> anyhow::Result<PgConnection> {
    Ok(PgConnection::connect(&servers.database_url("postgres")).await?)
}

/// The template database with this schema, made by the first process that asks for it.
async fn template_of(
    servers: &SharedServers,
    connection: &mut PgConnection,
    migrator: &Migrator,
) -> anyhow::Result<String> {
    /// Key of the advisory lock under which a template is made; any number that no one else uses on this server.
    const MAKING_A_TEMPLATE: i64 = 0x706f_7374_7269;

    let mut hasher = Sha256::new();
    for migration in migrator.iter() {
        hasher.update(migration.version.to_be_bytes());
        hasher.update(&migration.checksum);
    }
    let name = format!("template_{}", hex::encode(&hasher.finalize()[..8]));
    if exists(connection, &name).await? {
        return Ok(name);
    }
    // Released with the connection, too, when something fails half-way.
    sqlx::query("select pg_advisory_lock($1)").bind(MAKING_A_TEMPLATE).execute(&mut *connection).await?;
    if !exists(connection, &name).await? {
        make_template(servers, connection, migrator, &name).await?;
    }
    sqlx::query("select pg_advisory_unlock($1)").bind(MAKING_A_TEMPLATE).execute(connection).await?;
    Ok(name)
}

async fn exists(connection: &mut PgConnection, database: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar("select exists (select from pg_database where datname = $1)")
        .bind(database)
        .fetch_one(connection)
        .await
}

/// Migrates under another name and renames at the end, so that a template is whole or not there.
async fn make_template(
    servers: &SharedServers,
    connection: &mut PgConnection,
    migrator: &Migrator,
    name: &str,
) -> anyhow::Result<()> {
    let unfinished = format!("unfinished_{}", hex::encode(rand::random::<[u8; 8]>()));
    create_database(connection, &unfinished, None).await?;
    let mut database = PgConnection::connect(&servers.database_url(&unfinished)).await?;
    migrator.run(&mut database).await?;
    database.close().await?;
    let statement = format!(r#"alter database "{}" rename to "{}""#, checked_name(&unfinished)?, checked_name(name)?);
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await?;
    Ok(())
}
