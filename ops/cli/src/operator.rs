//! Shared by the operator's commands: connection options, the transaction of a command, output and progress.

use std::{io::Read, path::PathBuf, time::Duration};

use anyhow::{Context, anyhow, ensure};
use chrono::{DateTime, Utc};
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use ingress::ApiError;
use runtime::{Bus, Database, Role, settings::BusSettings};
use secrecy::SecretString;
use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool, Postgres, postgres::PgArguments, query::QueryScalar};
use tokio::time::{sleep, timeout};

use crate::{invocation, table};

/// The option for Postgres.
#[derive(Debug, Clone, clap::Args)]
pub struct DatabaseArgs {
    /// Postgres, as a URL.
    #[arg(long, global = true, env = "POSTRIDER_DATABASE_URL", hide_env_values = true)]
    database_url: Option<SecretString>,
}

impl DatabaseArgs {
    /// The URL. A setting that may stand behind the subcommand cannot be required by the parser.
    pub fn url(&self) -> anyhow::Result<&SecretString> {
        self.database_url.as_ref().context("--database-url is required, or POSTRIDER_DATABASE_URL in the environment")
    }

    /// A small pool in the stages' role.
    pub fn pool(&self) -> anyhow::Result<PgPool> {
        Database::pool(self.url()?, Role::Stages, 2).context("database-url")
    }

    /// Runs a command in one transaction, and prints its answer after the commit.
    pub async fn operate(
        &self,
        command: impl AsyncFnOnce(&mut PgConnection) -> anyhow::Result<CommandOutput>,
    ) -> anyhow::Result<()> {
        let pool = self.pool()?;
        let mut tx = pool.begin().await.map_err(|error| unreachable(&pool, error))?;
        let answer = command(&mut tx).await?;
        tx.commit().await?;
        match answer {
            CommandOutput::Table(records, columns) => print(&records, columns),
            CommandOutput::Done(record, text) => print_result(&record, &text),
        }
        Ok(())
    }
}

/// The error of a pool that got no connection, with the server that did not answer.
fn unreachable(pool: &PgPool, error: sqlx::Error) -> anyhow::Error {
    let server = pool.connect_options();
    match error {
        sqlx::Error::PoolTimedOut => {
            anyhow!(
                "no connection to Postgres at {}:{}: it does not answer, is starting, or has no connection left",
                server.get_host(),
                server.get_port()
            )
        }
        other => other.into(),
    }
}

/// Subcommands that need Postgres and nothing else.
#[derive(Debug, clap::Args)]
pub struct LedgerCommand<C: Subcommand> {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(subcommand)]
    command: C,
}

impl<C: Subcommand> LedgerCommand<C> {
    pub async fn run(
        self,
        run: impl AsyncFnOnce(&mut PgConnection, C) -> anyhow::Result<CommandOutput>,
    ) -> anyhow::Result<()> {
        let Self { database, command } = self;
        database.operate(async move |db| run(db, command).await).await
    }
}

/// Options for NATS.
#[derive(Debug, Clone, clap::Args)]
pub struct BusArgs {
    /// NATS servers, comma-separated URLs.
    #[arg(long, global = true, env = "POSTRIDER_NATS_URL", hide_env_values = true)]
    nats_url: Option<SecretString>,
    #[command(flatten)]
    settings: BusSettings,
}

impl BusArgs {
    /// Connects as an operator.
    pub async fn connect(&self) -> anyhow::Result<Bus> {
        self.connect_as("command line").await
    }

    /// Connects by the inbox on which the user of the credentials may listen: an operator's, the ingress's, or that of a process of several
    /// stages. The server does not say whose they are: the first inbox on which JetStream answers, else the last.
    pub async fn connect_as_any(&self) -> anyhow::Result<Bus> {
        for name in ["command line", "ingress"] {
            let bus = self.connect_as(name).await?;
            let answers = async {
                while !bus.is_healthy().await {
                    sleep(CONNECT_POLL).await;
                }
            };
            if timeout(CONNECT_TIMEOUT, answers).await.is_ok() {
                return Ok(bus);
            }
        }
        self.connect_as("all").await
    }

    async fn connect_as(&self, name: &str) -> anyhow::Result<Bus> {
        let url = self.nats_url.as_ref().context("--nats-url is required, or POSTRIDER_NATS_URL in the environment")?;
        self.settings.connect(url, name).await.context("nats-url")
    }
}

/// The options for Postgres and NATS.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArgs {
    #[command(flatten)]
    pub database: DatabaseArgs,
    #[command(flatten)]
    pub bus: BusArgs,
}

/// How long NATS has to answer on an inbox before the next one is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_POLL: Duration = Duration::from_millis(50);

/// The longest secret that is read from standard input, in bytes.
const SECRET_MAX_BYTES: u64 = 64 * 1024;

/// Where a secret is read from.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub struct SecretSource {
    /// Reads the secret from standard input.
    #[arg(long)]
    secret_stdin: bool,
    /// Reads it from this file.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Reads it from this environment variable.
    #[arg(long, value_name = "NAME")]
    secret_env: Option<String>,
}

impl SecretSource {
    /// The secret, if a source is given: never from the command line, which every user of the machine may read.
    pub fn read(&self) -> anyhow::Result<Option<String>> {
        match (&self.secret_file, &self.secret_env) {
            (Some(path), _) => std::fs::read_to_string(path).context("secret-file").map(Some),
            (None, Some(name)) => std::env::var(name).context("secret-env").map(Some),
            (None, None) if self.secret_stdin => {
                let mut text = String::new();
                std::io::stdin().take(SECRET_MAX_BYTES + 1).read_to_string(&mut text).context("standard input")?;
                ensure!(text.len() as u64 <= SECRET_MAX_BYTES, "the secret is longer than {SECRET_MAX_BYTES} bytes");
                Ok(Some(text))
            }
            (None, None) => Ok(None),
        }
    }
}

pub async fn migrate(args: &DatabaseArgs) -> anyhow::Result<()> {
    Database::migrate(args.url()?).await.context("migrations")?;
    print_result(&json!({"migrated": true}), "the schema is up to date");
    Ok(())
}

pub enum CommandOutput {
    /// Records, and the columns to show of them.
    Table(Vec<Value>, &'static [&'static str]),
    /// One record, and its text.
    Done(Value, String),
}

impl CommandOutput {
    /// The result of an action.
    pub fn done(record: Value, text: impl Into<String>) -> Self {
        Self::Done(record, text.into())
    }

    /// One record in full.
    pub fn record(record: Value) -> Self {
        let text = format!("{record:#}");
        Self::Done(record, text)
    }
}

pub async fn list_records(
    db: &mut PgConnection,
    query: QueryScalar<'_, Postgres, Value, PgArguments>,
    columns: &'static [&'static str],
) -> anyhow::Result<CommandOutput> {
    Ok(CommandOutput::Table(query.fetch_all(db).await?, columns))
}

/// Prints records as JSON lines, whole, or these columns of them as a table.
pub fn print(records: &[Value], columns: &[&str]) {
    if invocation::wants_json() {
        for record in records {
            println!("{record}");
        }
        return;
    }
    print!("{}", table::render(records, columns, table::width()));
}

/// Prints the result of an action: the record as JSON, or the text.
pub fn print_result(record: &Value, text: &str) {
    println!("{}", if invocation::wants_json() { record.to_string() } else { text.to_owned() });
}

/// A time, as an option takes it.
pub fn timestamp(text: &str) -> Result<DateTime<Utc>, String> {
    text.parse().map_err(|_| "a time as RFC 3339 has it, such as 2027-12-31T00:00:00Z".to_owned())
}

/// A refusal of the API as text.
pub fn refused(error: ApiError) -> anyhow::Error {
    anyhow!("{}{}", error.code, error.detail.map(|detail| format!(": {detail}")).unwrap_or_default())
}

/// A progress bar for work of a known size. Like a [`spinner`], it shows on a terminal only.
pub fn progress_bar(total: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}  {eta}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// A spinner for work of an unknown size.
pub fn spinner(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}
