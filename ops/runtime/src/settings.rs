//! Settings every process has. Each is a flag `--some-name` and an environment variable `POSTRIDER_SOME_NAME`.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;

use crate::{
    Bus, BusError,
    reader::ReaderSettings,
    trace::TraceSettings,
    vault::{MasterKeys, VaultError},
};

/// Settings that do not make sense. Reported at start, before anything is touched.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// An environment variable with our prefix that no setting has.
    #[error("unknown setting {0}: no process reads this environment variable")]
    Unknown(String),
    /// The master key is missing or unreadable.
    #[error("master key: {0}")]
    MasterKey(#[from] VaultError),
    /// The file with the master key cannot be read.
    #[error("cannot read {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Two settings that contradict each other.
    #[error("{0}")]
    Contradiction(&'static str),
}

/// The longest time that something is kept, in days: a thousand years. What is subtracted from now must be a date.
const KEEP_MAX_DAYS: u64 = 365_250;

/// Parses how long something is kept: `0s`, which is for ever, or not shorter than this, and a thousand years at most.
pub fn keep_at_least(least: Duration) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let keep = humantime::parse_duration(text).map_err(|error| error.to_string())?;
        if keep > Duration::from_secs(KEEP_MAX_DAYS * 24 * 60 * 60) {
            return Err("must be at most 1000 years; 0s is for ever".to_owned());
        }
        if keep.is_zero() || keep >= least {
            return Ok(keep);
        }
        Err(format!("must be 0s (kept for ever) or at least {}", humantime::format_duration(least)))
    }
}

/// The settings of every process.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Core")]
pub struct CoreSettings {
    /// Postgres, as a URL. The login is a member of the roles `postrider_ingress` and `postrider_stages`; to migrate it owns the
    /// schema. On the same machine `?host=<directory>` takes the Unix socket, which costs a quarter less per round trip than TCP.
    #[arg(long, env = "POSTRIDER_DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
    /// Connections to Postgres for the ingress, and as many for stages: half of them for statements that find their rows by key and keep
    /// their plans, half for others. A process that delivers has two more, one that answers HTTP one more for its health, so `postrider all`
    /// has at most 31.
    #[arg(long, env = "POSTRIDER_DATABASE_POOL", default_value_t = 14, value_parser = clap::value_parser!(u32).range(4..))]
    pub database_pool: u32,
    /// NATS servers, comma-separated URLs.
    #[arg(long, env = "POSTRIDER_NATS_URL", hide_env_values = true)]
    pub nats_url: SecretString,
    /// How the bus is used.
    #[command(flatten)]
    pub bus: BusSettings,
    /// Where `/metrics`, `/livez` and `/readyz` listen. Port 0 takes a free one.
    #[arg(long, env = "POSTRIDER_ADMIN_ADDR", default_value = "127.0.0.1:0")]
    pub admin_addr: SocketAddr,
    /// The master key.
    #[command(flatten)]
    pub master: MasterKeySettings,
    /// Log filter, as `tracing` understands it: `info`, `info,delivery=debug`.
    #[arg(long, env = "POSTRIDER_LOG", default_value = "info")]
    pub log: String,
    /// Whether metrics are kept; without them `/metrics` is empty. For measuring what they cost.
    #[arg(long, env = "POSTRIDER_METRICS", default_value_t = true, action = clap::ArgAction::Set)]
    pub metrics: bool,
    /// Where traces go, and how many are taken.
    #[command(flatten)]
    pub traces: TraceSettings,
    /// Where strangers' bytes are read.
    #[command(flatten)]
    pub reader: ReaderSettings,
}

/// How the bus is used, by processes and by commands.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct BusSettings {
    /// A NATS credentials file, where the servers ask for one: a `.creds` file, or the seed of an nkey user.
    #[arg(long, global = true, env = "POSTRIDER_NATS_CREDENTIALS")]
    pub nats_credentials: Option<PathBuf>,
    /// Copies JetStream keeps of each stream: 1 on a single server, 3 in production.
    #[arg(long, global = true, env = "POSTRIDER_STREAM_REPLICAS", default_value_t = 1)]
    pub stream_replicas: usize,
    /// Put before every stream name and subject, so that several installations can share one NATS account. Usually empty.
    #[arg(long, global = true, env = "POSTRIDER_STREAM_PREFIX", default_value = "")]
    pub stream_prefix: String,
}

impl BusSettings {
    /// Connects to these servers under a name. See [`Bus::connect`].
    pub async fn connect(&self, url: &SecretString, name: &str) -> Result<Bus, BusError> {
        Bus::connect(url, self.nats_credentials.as_deref(), &self.stream_prefix, self.stream_replicas, name).await
    }
}

/// The master key: for processes, and for commands that seal or open secrets.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct MasterKeySettings {
    /// 64 hex digits, from which token and encryption keys are derived. Older keys may follow, comma-separated: they still check
    /// tokens and decrypt. Required, here or in `master-key-file`.
    #[arg(long, global = true, env = "POSTRIDER_MASTER_KEY", hide_env_values = true)]
    pub master_key: Option<SecretString>,
    /// A file with what `master-key` would hold.
    #[arg(long, global = true, env = "POSTRIDER_MASTER_KEY_FILE")]
    pub master_key_file: Option<PathBuf>,
}

impl MasterKeySettings {
    /// The keys, from the setting or its file.
    pub fn keys(&self) -> Result<MasterKeys, SettingsError> {
        match (&self.master_key, &self.master_key_file) {
            (Some(_), Some(_)) => Err(SettingsError::Contradiction("set master-key or master-key-file, not both")),
            (None, None) => Err(SettingsError::Contradiction("master-key or master-key-file is required")),
            (Some(text), None) => Ok(MasterKeys::parse(text.expose_secret())?),
            (None, Some(path)) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|source| SettingsError::Unreadable { path: path.clone(), source })?;
                Ok(MasterKeys::parse(&text)?)
            }
        }
    }
}

/// Refuses environment variables `POSTRIDER_…` that no setting of `command` (or a subcommand) reads: a mistyped name must not
/// silently leave a default in force.
pub fn refuse_unknown_environment(command: &clap::Command) -> Result<(), SettingsError> {
    let known: BTreeSet<&str> = arguments(command).into_iter().filter_map(|arg| arg.get_env()?.to_str()).collect();
    let ours = |name: &str| name.starts_with("POSTRIDER_") && !name.starts_with("POSTRIDER_TEST_");
    std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .find(|name| ours(name) && !known.contains(name.as_str()))
        .map_or(Ok(()), |name| Err(SettingsError::Unknown(name)))
}

/// The names of the settings of `command` (or a subcommand) that this process was given, by flag or environment. Never a value.
#[must_use]
pub fn given(command: &clap::Command) -> Vec<String> {
    let flags: BTreeSet<String> = std::env::args()
        .filter_map(|arg| arg.strip_prefix("--").map(|flag| flag.split('=').next().unwrap_or_default().to_owned()))
        .collect();
    let is_given = |arg: &clap::Arg, name: &str| {
        flags.contains(name) || arg.get_env().and_then(std::env::var_os).is_some_and(|value| !value.is_empty())
    };
    let settings = arguments(command).into_iter().filter_map(|arg| Some((arg, arg.get_long()?)));
    let names: BTreeSet<&str> = settings.filter(|(arg, name)| is_given(arg, name)).map(|(_, name)| name).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// The settings of `command` and of its subcommands.
fn arguments(command: &clap::Command) -> Vec<&clap::Arg> {
    command.get_arguments().chain(command.get_subcommands().flat_map(arguments)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_shorter_than_running_work_needs_is_refused() {
        let least = Duration::from_secs(60 * 24 * 60 * 60);
        let parse = keep_at_least(least);
        assert_eq!(parse("0s").ok(), Some(Duration::ZERO));
        assert_eq!(parse("60d").ok(), Some(least));
        assert!(parse("59d").is_err_and(|error| error.contains("at least")));
        assert!(parse("1000y").is_ok());
        assert!(parse("1001y").is_err_and(|error| error.contains("at most 1000 years")));
        assert!(parse("long").is_err());
    }
}
