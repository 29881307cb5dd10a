//! `postrider hook …`: what providers tell of mail that went through tenants' own accounts.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Subcommand;
use ingress::routes::hooks::{HOOK_PURPOSE, fault};
use runtime::Vault;
use serde_json::{Value, json};
use sqlx::PgPool;
use url::Url;
use uuid::Uuid;

use crate::{
    operator::{self, DatabaseArgs, MasterKeyArgs},
    who::audit,
};

/// What providers tell of mail that went through tenants' own accounts.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    master_key: MasterKeyArgs,
    /// As the processes have it: where the ingress is reached.
    #[arg(long, env = "POSTRIDER_PUBLIC_URL", default_value = "http://localhost:8080", global = true)]
    public_url: Url,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Says what a connection's events are checked with, and prints the URL to give to the provider. Replaces what was set.
    Set(Set),
    /// The URL of a connection, and whether its events can be checked.
    Show {
        /// The connection.
        connection: Uuid,
    },
    /// Lists events as they came, newest first.
    Events {
        /// Of this engine tenant only.
        #[arg(long)]
        tenant: Option<Uuid>,
        /// Only those that could not be read or recorded.
        #[arg(long)]
        rejected: bool,
        /// At most this many.
        #[arg(long, default_value_t = 50)]
        limit: i64,
    },
    /// One event with what the provider sent.
    Event {
        /// The event, as `events` shows it.
        id: Uuid,
    },
    /// Lets an event be read once more. Harmless to repeat: a fact is recorded once.
    Again {
        /// The event.
        id: Uuid,
    },
    /// Lists facts that wait for their send, and those that were given up after 72 hours.
    Parked {
        /// Of this engine tenant only.
        #[arg(long)]
        tenant: Option<Uuid>,
        /// Only those that were given up.
        #[arg(long)]
        dropped: bool,
        /// At most this many.
        #[arg(long, default_value_t = 50)]
        limit: i64,
    },
}

#[derive(Debug, clap::Args)]
struct Set {
    /// The connection.
    connection: Uuid,
    /// SES: the ARN of an SNS topic whose messages count. May be given several times.
    #[arg(long = "topic", value_name = "ARN")]
    topics: Vec<String>,
    #[command(flatten)]
    secret: Secret,
}

/// What events are checked with. Postmark: `user:password`, as its URL carries them. SendGrid: the verification key. Mailgun: the HTTP
/// webhook signing key. Resend: `whsec_…`. Several, one a line: any counts.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct Secret {
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

impl Secret {
    /// The secrets, one a line.
    fn read(&self) -> anyhow::Result<Vec<String>> {
        if !self.secret_stdin && self.secret_file.is_none() && self.secret_env.is_none() {
            return Ok(Vec::new());
        }
        let text = operator::read_secret(self.secret_file.as_deref(), self.secret_env.as_deref())?;
        Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let pool = args.database.pool()?;
    match &args.command {
        Command::Set(wanted) => {
            set(&pool, &Vault::new(&args.master_key.keys()?)?, wanted).await?;
            show(&pool, &args, wanted.connection).await
        }
        Command::Show { connection } => show(&pool, &args, *connection).await,
        Command::Events { tenant, rejected, limit } => events(&pool, *tenant, *rejected, *limit).await,
        Command::Event { id } => event(&pool, *id).await,
        Command::Again { id } => again(&pool, *id).await,
        Command::Parked { tenant, dropped, limit } => parked(&pool, *tenant, *dropped, *limit).await,
    }
}

/// Where a provider is to send the events of a connection.
fn url_of(public_url: &Url, provider: &str, connection: Uuid) -> String {
    format!("{}/hooks/{provider}/{connection}", public_url.as_str().trim_end_matches('/'))
}

async fn set(pool: &PgPool, vault: &Vault, wanted: &Set) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let row = sqlx::query!(
        "select tenant_id, provider from provider_connections where id = $1 for update",
        wanted.connection
    )
    .fetch_optional(&mut *tx)
    .await?
    .context("no such connection")?;
    let secrets = wanted.secret.read()?;
    let each: Vec<&str> = if secrets.is_empty() { vec![""] } else { secrets.iter().map(String::as_str).collect() };
    if let Some(fault) = each.iter().find_map(|secret| fault(&row.provider, secret, &wanted.topics)) {
        bail!("{}: {fault}", row.provider);
    }
    let sealed = match secrets.is_empty() {
        true => None,
        false => Some(vault.seal(row.tenant_id, HOOK_PURPOSE, secrets.join("\n").as_bytes())?),
    };
    sqlx::query!(
        "update provider_connections set hook_secret = $3, hook_topics = $4 where tenant_id = $1 and id = $2",
        row.tenant_id,
        wanted.connection,
        sealed,
        &wanted.topics
    )
    .execute(&mut *tx)
    .await?;
    audit(&mut tx, Some(row.tenant_id), "provider.hook", &wanted.connection.to_string()).await?;
    tx.commit().await?;
    Ok(())
}

async fn show(pool: &PgPool, args: &Args, id: Uuid) -> anyhow::Result<()> {
    let row = sqlx::query!(
        r#"select tenant_id, provider, hook_topics, hook_secret is not null or hook_topics <> '{}' as "is_set!",
                  (select max(e.received_at) from inbound_events e where e.tenant_id = c.tenant_id and e.connection_id = c.id) as heard_at
           from provider_connections c where id = $1"#,
        id
    )
    .fetch_optional(pool)
    .await?
    .context("no such connection")?;
    let record = json!({
        "connection_id": id, "tenant": row.tenant_id, "provider": row.provider, "url": url_of(&args.public_url, &row.provider, id),
        "checked": row.is_set, "topics": row.hook_topics, "heard_at": row.heard_at,
    });
    operator::print(&[record], &["connection_id", "provider", "checked", "heard_at", "url"]);
    Ok(())
}

async fn events(pool: &PgPool, tenant: Option<Uuid>, rejected: bool, limit: i64) -> anyhow::Result<()> {
    let rows = sqlx::query!(
        r#"select tenant_id, id, connection_id, provider, state, reason, facts, octet_length(raw) as "bytes!", received_at, handled_at
           from inbound_events
           where ($1::uuid is null or tenant_id = $1) and (not $2 or state = 'rejected')
           order by received_at desc limit $3"#,
        tenant,
        rejected,
        limit
    )
    .fetch_all(pool)
    .await?;
    let records: Vec<Value> = rows
        .into_iter()
        .map(|row| {
            json!({
                "id": row.id, "tenant": row.tenant_id, "connection": row.connection_id, "provider": row.provider, "state": row.state,
                "reason": row.reason, "facts": row.facts, "bytes": row.bytes, "received_at": row.received_at,
                "handled_at": row.handled_at,
            })
        })
        .collect();
    operator::print(&records, &["id", "provider", "state", "reason", "facts", "bytes", "received_at"]);
    Ok(())
}

async fn event(pool: &PgPool, id: Uuid) -> anyhow::Result<()> {
    let raw = sqlx::query_scalar!("select raw from inbound_events where id = $1", id)
        .fetch_optional(pool)
        .await?
        .context("no such event")?;
    let text = String::from_utf8_lossy(&raw);
    operator::say(&json!({"id": id, "raw": text}), &text);
    Ok(())
}

async fn again(pool: &PgPool, id: Uuid) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let tenant = sqlx::query_scalar!(
        "update inbound_events set state = 'received', reason = null, attempts = 0, due_at = now(), handled_at = null
         where id = $1 returning tenant_id",
        id
    )
    .fetch_optional(&mut *tx)
    .await?
    .context("no such event")?;
    audit(&mut tx, Some(tenant), "hook.again", &id.to_string()).await?;
    tx.commit().await?;
    operator::say(&json!({"id": id, "state": "received"}), "will be read once more");
    Ok(())
}

async fn parked(pool: &PgPool, tenant: Option<Uuid>, dropped: bool, limit: i64) -> anyhow::Result<()> {
    let rows = sqlx::query!(
        r#"select tenant_id, id, reason, send_id, coalesce(provider, 'link') as "provider!", signal ->> 'kind' as kind, pending_since,
                  attempts, due_at, dropped_at
           from pending_facts
           where ($1::uuid is null or tenant_id = $1) and (not $2 or dropped_at is not null)
           order by pending_since desc limit $3"#,
        tenant,
        dropped,
        limit
    )
    .fetch_all(pool)
    .await?;
    let records: Vec<Value> = rows
        .into_iter()
        .map(|row| {
            json!({
                "id": row.id, "tenant": row.tenant_id, "provider": row.provider, "reason": row.reason, "kind": row.kind,
                "send_id": row.send_id, "pending_since": row.pending_since, "attempts": row.attempts, "due_at": row.due_at,
                "dropped_at": row.dropped_at,
            })
        })
        .collect();
    operator::print(
        &records,
        &["id", "provider", "kind", "reason", "send_id", "pending_since", "due_at", "dropped_at"],
    );
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_the_ingress_own_whatever_stands_behind_it() {
        let id = Uuid::nil();
        for base in ["https://mail.example.com", "https://mail.example.com/"] {
            assert_eq!(url_of(&base.parse().unwrap(), "ses", id), format!("https://mail.example.com/hooks/ses/{id}"));
        }
    }
}
