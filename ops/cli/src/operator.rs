//! What the operator's commands share: where the database and the bus are, tables that fit a terminal, `--json`.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::Context;
use runtime::{Bus, Database, MasterKeys, Role};
use secrecy::SecretString;
use serde_json::Value;
use sqlx::PgPool;

/// Where Postgres is.
#[derive(Debug, Clone, clap::Args)]
pub struct DatabaseArgs {
    /// Postgres, as a URL.
    #[arg(long, env = "POSTRIDER_DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
}

impl DatabaseArgs {
    /// A small pool in the stages' role.
    pub fn pool(&self) -> anyhow::Result<PgPool> {
        Database::pool(&self.database_url, Role::Stages, 2).context("database-url")
    }
}

/// The master key, for commands that seal or open secrets. Needed only by those.
#[derive(Debug, Clone, clap::Args)]
pub struct MasterKeyArgs {
    /// The master key, as the processes have it: 64 hex digits.
    #[arg(long, env = "POSTRIDER_MASTER_KEY", hide_env_values = true)]
    pub master_key: Option<SecretString>,
    /// A file with the master key.
    #[arg(long, env = "POSTRIDER_MASTER_KEY_FILE")]
    pub master_key_file: Option<PathBuf>,
}

impl MasterKeyArgs {
    /// The keys.
    pub fn keys(&self) -> anyhow::Result<MasterKeys> {
        Ok(runtime::settings::master_keys(self.master_key.as_ref(), self.master_key_file.as_deref())?)
    }
}

/// Where NATS is.
#[derive(Debug, Clone, clap::Args)]
pub struct BusArgs {
    /// NATS servers, comma-separated URLs.
    #[arg(long, env = "POSTRIDER_NATS_URL", hide_env_values = true)]
    pub nats_url: SecretString,
    /// A NATS credentials file.
    #[arg(long, env = "POSTRIDER_NATS_CREDENTIALS")]
    pub nats_credentials: Option<PathBuf>,
    /// Copies JetStream keeps of each stream.
    #[arg(long, env = "POSTRIDER_STREAM_REPLICAS", default_value_t = 1)]
    pub stream_replicas: usize,
    /// Put before every stream name and subject.
    #[arg(long, env = "POSTRIDER_STREAM_PREFIX", default_value = "")]
    pub stream_prefix: String,
}

impl BusArgs {
    /// Connects.
    pub async fn connect(&self) -> anyhow::Result<Bus> {
        Bus::connect(
            &self.nats_url,
            self.nats_credentials.as_deref(),
            &self.stream_prefix,
            self.stream_replicas,
            "command line",
        )
        .await
        .context("nats-url")
    }
}

/// The longest secret that is read from standard input, in bytes.
const SECRET_MAX_BYTES: u64 = 64 * 1024;

/// Reads a secret from a file, else from an environment variable, else from standard input: never from the command line, which
/// everybody on the machine may read.
pub fn read_secret(file: Option<&Path>, variable: Option<&str>) -> anyhow::Result<String> {
    match (file, variable) {
        (Some(path), _) => std::fs::read_to_string(path).context("secret-file"),
        (None, Some(name)) => std::env::var(name).context("secret-env"),
        (None, None) => {
            let mut text = String::new();
            std::io::stdin().take(SECRET_MAX_BYTES).read_to_string(&mut text).context("standard input")?;
            Ok(text)
        }
    }
}

/// Applies the migrations.
pub async fn migrate(args: &DatabaseArgs) -> anyhow::Result<()> {
    Database::migrate(&args.database_url).await.context("migrations")?;
    println!("the schema is up to date");
    Ok(())
}

/// Prints records as JSON lines or as a table with these columns.
pub fn print(records: &[Value], columns: &[&str], json: bool) {
    if json {
        for record in records {
            println!("{record}");
        }
        return;
    }
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let rows: Vec<Vec<String>> =
        records.iter().map(|record| columns.iter().map(|column| text(&record[*column])).collect()).collect();
    let width =
        |at: usize| rows.iter().map(|row| row[at].chars().count()).chain([columns[at].len()]).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
        println!("{}", padded.join("  ").trim_end());
    };
    line(columns.to_vec());
    for row in &rows {
        line(row.iter().map(String::as_str).collect());
    }
}
