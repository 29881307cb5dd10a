//! `postrider provider add|list|ping|enable|disable|default|order|remove`: tenants' own accounts with mail providers.

use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Subcommand;
use delivery::provider::{ClientSettings, Connection, ConnectionSettings, HostPolicy, PROVIDER_PURPOSE, ProviderKind};
use ingress::api::connections::{self, NewConnection};
use runtime::{Vault, settings::MasterKeySettings};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use smtp::{Relay, SmtpSettings};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::{
    find_tenant,
    invocation::audit,
    operator::{self, CommandOutput, DatabaseArgs, SecretSource, list_records},
};

/// Tenants' own accounts with mail providers.
#[derive(Debug, clap::Args)]
pub struct ProviderArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    master_key: MasterKeySettings,
    /// As the processes have it: hosts a connection may name beside the provider's own, as `host:port`.
    #[arg(long, env = "POSTRIDER_PROVIDER_ALLOW_HOSTS", value_delimiter = ',', global = true)]
    provider_allow_hosts: Vec<String>,
    #[command(subcommand)]
    command: ProviderCommand,
}

#[derive(Debug, Subcommand)]
enum ProviderCommand {
    /// Adds a connection. Its secret is read from standard input, a file or an environment variable, never from the command line.
    Add(Box<AddProvider>),
    /// Lists connections, without their secrets.
    List {
        /// Those of one engine tenant only.
        #[arg(long)]
        tenant: Option<Uuid>,
    },
    /// Asks a provider whether it would serve: connects and authenticates, sends nothing.
    Ping(Which),
    /// Makes a connection the one that carries its tenant's mail.
    Default(Which),
    /// Chooses which connections carry a tenant's mail: the first, and those that take over while its circuit is open. Without any, the
    /// platform's relay does.
    Order {
        /// The engine tenant.
        tenant: Uuid,
        /// The connections, in their order.
        connections: Vec<Uuid>,
    },
    /// Takes a connection out of use within seconds: its fallbacks carry the tenant's mail, or else the platform's relay.
    Disable(Which),
    /// Puts it back.
    Enable(Which),
    /// Forgets a connection and its secret.
    Remove(Which),
}

#[derive(Debug, clap::Args)]
struct Which {
    /// The connection.
    id: Uuid,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The secret. SMTP: the relay's URL as in smtp-url. SES: access key id:secret access key[:session token]. Others: the API key."
)]
struct AddProvider {
    /// The engine tenant.
    #[arg(long)]
    tenant: Uuid,
    /// smtp, ses, postmark, sendgrid, mailgun or resend.
    #[arg(long, value_parser = kind)]
    provider: ProviderKind,
    /// A name to recognise it by.
    #[arg(long, default_value = "default")]
    name: String,
    /// SES: the AWS region. SendGrid, Mailgun: us or eu.
    #[arg(long)]
    region: Option<String>,
    /// Mailgun: the domain the account sends for.
    #[arg(long)]
    domain: Option<String>,
    /// Postmark: the message stream.
    #[arg(long)]
    stream: Option<String>,
    /// SES: the configuration set.
    #[arg(long)]
    configuration_set: Option<String>,
    /// Most mails a second, of each delivery process: the account's rate divided by their number.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    max_per_second: Option<u32>,
    /// Where the API is, if not at the provider's own address. Its host must be allowed.
    #[arg(long)]
    base_url: Option<url::Url>,
    /// Adds it without making it the tenant's default.
    #[arg(long)]
    spare: bool,
    #[command(flatten)]
    secret: SecretSource,
}

fn kind(text: &str) -> Result<ProviderKind, String> {
    ProviderKind::parse(text).ok_or_else(|| format!("one of {}", ProviderKind::NAMES.join(", ")))
}

pub async fn run(args: ProviderArgs) -> anyhow::Result<()> {
    let guard = HostPolicy::allowing(&args.provider_allow_hosts);
    let vault = || anyhow::Ok(Vault::new(&args.master_key.keys()?)?);
    let database = &args.database;
    let change = async |id, change| database.operate(async |db| self::change(db, id, change).await).await;
    match args.command {
        ProviderCommand::Add(wanted) => {
            // Read before the transaction begins: a person may be typing the secret.
            let (connection, vault) = (wanted.connection(&guard)?, vault()?);
            database.operate(async |db| add(db, &vault, &wanted, &connection).await).await
        }
        ProviderCommand::List { tenant } => database.operate(async |db| list(db, tenant).await).await,
        ProviderCommand::Ping(which) => ping(&database.pool()?, &vault()?, &guard, which.id).await,
        ProviderCommand::Order { tenant, connections } => {
            database.operate(async |db| set_order(db, tenant, &connections).await).await
        }
        ProviderCommand::Default(which) => change(which.id, ChangeProvider::Default).await,
        ProviderCommand::Disable(which) => change(which.id, ChangeProvider::Status("disabled")).await,
        ProviderCommand::Enable(which) => change(which.id, ChangeProvider::Status("active")).await,
        ProviderCommand::Remove(which) => change(which.id, ChangeProvider::Remove).await,
    }
}

/// What a process would open a connection with, for checking and pinging.
fn client_settings() -> anyhow::Result<ClientSettings> {
    let relay: Relay = "smtp://127.0.0.1".parse()?;
    Ok(ClientSettings {
        connections: 1,
        timeout: Duration::from_secs(15),
        connect_timeout: Duration::from_secs(10),
        smtp: SmtpSettings::new(relay, "[127.0.0.1]"),
    })
}

impl AddProvider {
    /// The connection it asks for, with the secret from its source.
    fn connection(&self, guard: &HostPolicy) -> anyhow::Result<Connection> {
        let settings = ConnectionSettings {
            region: self.region.clone(),
            domain: self.domain.clone(),
            stream: self.stream.clone(),
            configuration_set: self.configuration_set.clone(),
            max_per_second: self.max_per_second,
            base_url: self.base_url.clone(),
        };
        let secret =
            self.secret.read()?.context("say where the secret is: --secret-stdin, --secret-file or --secret-env")?;
        let connection = Connection { kind: self.provider, settings, secret: SecretString::from(secret.trim()) };
        connection.check(guard)?;
        Ok(connection)
    }
}

async fn add(
    db: &mut PgConnection,
    vault: &Vault,
    wanted: &AddProvider,
    connection: &Connection,
) -> anyhow::Result<CommandOutput> {
    let sealed = vault.seal(wanted.tenant, PROVIDER_PURPOSE, connection.secret.expose_secret().as_bytes())?;
    sqlx::query_scalar!("select 1 as one from tenants where id = $1 for key share", wanted.tenant)
        .fetch_optional(&mut *db)
        .await?
        .context("no such tenant")?;
    let new = NewConnection {
        tenant: wanted.tenant,
        name: &wanted.name,
        kind: connection.kind,
        settings: &connection.settings,
        sealed: &sealed,
    };
    let stored = connections::insert(db, new).await;
    let id = stored.map_err(|error| anyhow!("the connection could not be stored: {}", error.code))?;
    if !wanted.spare {
        make_default(db, wanted.tenant, id).await?;
    }
    audit(db, Some(wanted.tenant), "provider.add", format!("{id} {}", connection.kind.as_str())).await?;
    Ok(CommandOutput::Table(vec![json!({"connection_id": id})], &["connection_id"]))
}

/// Puts a connection in the place of the default one. The fallbacks stay.
async fn make_default(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<()> {
    let fallbacks = connections::order(&mut *db, tenant).await?.into_iter().skip(1).filter(|other| *other != id);
    let order: Vec<Uuid> = std::iter::once(id).chain(fallbacks).collect();
    connections::set_order(db, tenant, &order).await
}

async fn set_order(db: &mut PgConnection, tenant: Uuid, order: &[Uuid]) -> anyhow::Result<CommandOutput> {
    connections::set_order(db, tenant, order).await?;
    ensure!(connections::order(db, tenant).await? == order, "each must be a connection of the tenant, named once");
    audit(db, Some(tenant), "provider.order", tenant).await?;
    Ok(CommandOutput::done(json!({"tenant": tenant, "connections": order}), "set"))
}

async fn list(db: &mut PgConnection, tenant: Option<Uuid>) -> anyhow::Result<CommandOutput> {
    find_tenant::require(db, tenant).await?;
    let query = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select id as connection_id, tenant_id as tenant, provider, name, status, is_default as "default", fallback_rank as fallback, settings, created_at
               from provider_connections) r
           where $1::uuid is null or tenant = $1 order by tenant, created_at desc"#,
        tenant
    );
    let columns = &["connection_id", "tenant", "provider", "name", "status", "default", "fallback", "settings"];
    list_records(db, query, columns).await
}

async fn ping(pool: &PgPool, vault: &Vault, guard: &HostPolicy, id: Uuid) -> anyhow::Result<()> {
    let row = sqlx::query!("select tenant_id, provider, settings, secret from provider_connections where id = $1", id)
        .fetch_optional(pool)
        .await?
        .context("no such connection")?;
    let secret = String::from_utf8(vault.open(row.tenant_id, PROVIDER_PURPOSE, &row.secret)?)?;
    let connection = Connection {
        kind: ProviderKind::parse(&row.provider).context("an unknown provider")?,
        settings: serde_json::from_value(row.settings)?,
        secret: SecretString::from(secret),
    };
    let provider = delivery::provider::open(&connection, &client_settings()?, guard)?;
    let started = std::time::Instant::now();
    let answered = provider.ping().await;
    let record = json!({
        "connection_id": id, "provider": row.provider, "ok": answered.is_ok(), "error": answered.err().map(|fault| fault.as_str()),
        "latency_ms": started.elapsed().as_millis() as u64,
    });
    operator::print(&[record], &["connection_id", "provider", "ok", "error", "latency_ms"]);
    match answered {
        Ok(()) => Ok(()),
        Err(fault) => bail!("{fault}"),
    }
}

#[derive(Debug, Clone, Copy)]
enum ChangeProvider {
    Default,
    Status(&'static str),
    Remove,
}

async fn change(db: &mut PgConnection, id: Uuid, change: ChangeProvider) -> anyhow::Result<CommandOutput> {
    let tenant = sqlx::query_scalar!("select tenant_id from provider_connections where id = $1 for update", id)
        .fetch_optional(&mut *db)
        .await?
        .context("no such connection")?;
    let (action, done) = match change {
        ChangeProvider::Default => {
            make_default(db, tenant, id).await?;
            ("provider.default", "default")
        }
        ChangeProvider::Status(status) => {
            connections::set_status(db, tenant, id, status).await?;
            ("provider.status", status)
        }
        ChangeProvider::Remove => {
            let mut order = connections::order(db, tenant).await?;
            order.retain(|other| *other != id);
            connections::set_order(db, tenant, &order).await?;
            connections::remove(db, tenant, id).await?;
            ("provider.remove", "removed")
        }
    };
    audit(db, Some(tenant), action, format!("{id} {done}")).await?;
    Ok(CommandOutput::done(json!({"connection_id": id, "done": done}), done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_provider_is_named_by_its_word() {
        for known in ProviderKind::ALL {
            assert_eq!(kind(known.as_str()), Ok(*known));
        }
        assert!(kind("pigeon").is_err());
    }
}
