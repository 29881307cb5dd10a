//! `postrider hook …`: events of providers about mail that was sent through tenants' own accounts.

use anyhow::{Context, bail};
use clap::Subcommand;
use ingress::{
    api::connections::{SealedHook, set_hook},
    public::hooks::{fault, path_of},
};
use runtime::{Vault, settings::MasterKeySettings};
use serde_json::json;
use sqlx::PgConnection;
use url::Url;
use uuid::Uuid;

use crate::{
    find_tenant,
    invocation::audit,
    operator::{CommandOutput, DatabaseArgs, SecretSource, list_records},
};

/// Events of providers about mail that was sent through tenants' own accounts.
#[derive(Debug, clap::Args)]
pub struct HookArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    master_key: MasterKeySettings,
    /// The public URL of the ingress, as the processes have it.
    #[arg(long, env = "POSTRIDER_PUBLIC_URL", default_value = "http://localhost:8080", global = true)]
    public_url: Url,
    #[command(subcommand)]
    command: HookCommand,
}

#[derive(Debug, Subcommand)]
enum HookCommand {
    /// Sets how a connection's events are verified, and prints the URL to enter at the provider. Replaces the previous setting.
    Set(SetHook),
    /// Prints the URL of a connection, and whether its events can be verified.
    Show {
        /// The connection.
        connection: Uuid,
    },
    /// Lists received events, newest first.
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
    /// Prints one event as the provider sent it.
    Event {
        /// The event, as `hook events` shows it.
        id: Uuid,
    },
    /// Processes an event again. Harmless to repeat: a fact is recorded once.
    Again {
        /// The event.
        id: Uuid,
    },
    /// Lists facts that wait for their send, and those that were dropped after 72 hours.
    Pending {
        /// Of this engine tenant only.
        #[arg(long)]
        tenant: Option<Uuid>,
        /// Only dropped facts.
        #[arg(long)]
        dropped: bool,
        /// At most this many.
        #[arg(long, default_value_t = 50)]
        limit: i64,
    },
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The secret that events are verified with. Postmark: user:password, as in the URL. SendGrid: the verification key. \
                        Mailgun: the HTTP webhook signing key. Resend: whsec_…. Several, one a line: any counts."
)]
struct SetHook {
    /// The connection.
    connection: Uuid,
    /// SES: the ARN of an SNS topic whose messages count. May be given several times.
    #[arg(long = "topic", value_name = "ARN")]
    topics: Vec<String>,
    #[command(flatten)]
    secret: SecretSource,
}

pub async fn run(args: HookArgs) -> anyhow::Result<()> {
    // Read before the transaction begins: a person may be typing it.
    let secret = match &args.command {
        HookCommand::Set(wanted) => wanted.secret.read()?.unwrap_or_default(),
        _ => String::new(),
    };
    let run = async |db: &mut PgConnection| match &args.command {
        HookCommand::Set(wanted) => {
            set_checks(db, &Vault::new(&args.master_key.keys()?)?, wanted, &secret).await?;
            show(db, &args, wanted.connection).await
        }
        HookCommand::Show { connection } => show(db, &args, *connection).await,
        HookCommand::Events { tenant, rejected, limit } => list_events(db, *tenant, *rejected, *limit).await,
        HookCommand::Event { id } => show_event(db, *id).await,
        HookCommand::Again { id } => retry_event(db, *id).await,
        HookCommand::Pending { tenant, dropped, limit } => list_pending_facts(db, *tenant, *dropped, *limit).await,
    };
    args.database.operate(run).await
}

/// The URL to which a provider sends the events of a connection, if it sends any.
fn url_of(public_url: &Url, provider: &str, connection: Uuid) -> Option<String> {
    let path = path_of(provider, connection)?;
    Some(format!("{}{path}", public_url.as_str().trim_end_matches('/')))
}

async fn set_checks(db: &mut PgConnection, vault: &Vault, wanted: &SetHook, secret: &str) -> anyhow::Result<()> {
    let row = sqlx::query!(
        "select tenant_id, provider from provider_connections where id = $1 for update",
        wanted.connection
    )
    .fetch_optional(&mut *db)
    .await?
    .context("no such connection")?;
    let secrets: Vec<String> =
        secret.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    let none = [String::new()];
    let each = if secrets.is_empty() { &none[..] } else { &secrets[..] };
    if let Some(fault) = each.iter().find_map(|secret| fault(&row.provider, secret, &wanted.topics)) {
        bail!("{}: {fault}", row.provider);
    }
    let hook = SealedHook::new(vault, row.tenant_id, Some(secrets), Some(wanted.topics.clone()))?;
    set_hook(db, row.tenant_id, wanted.connection, hook).await?;
    Ok(audit(db, Some(row.tenant_id), "provider.hook", wanted.connection).await?)
}

async fn show(db: &mut PgConnection, args: &HookArgs, id: Uuid) -> anyhow::Result<CommandOutput> {
    let row = sqlx::query!(
        r#"select tenant_id, provider, hook_topics, hook_secret is not null or hook_topics <> '{}' as "is_set!",
                  (select max(e.received_at) from inbound_events e where e.tenant_id = c.tenant_id and e.connection_id = c.id) as last_event_at
           from provider_connections c where id = $1"#,
        id
    )
    .fetch_optional(db)
    .await?
    .context("no such connection")?;
    let record = json!({
        "connection_id": id, "tenant": row.tenant_id, "provider": row.provider, "url": url_of(&args.public_url, &row.provider, id),
        "checked": row.is_set, "topics": row.hook_topics, "last_event_at": row.last_event_at,
    });
    Ok(CommandOutput::Table(vec![record], &["connection_id", "provider", "checked", "last_event_at", "url"]))
}

async fn list_events(
    db: &mut PgConnection,
    tenant: Option<Uuid>,
    rejected: bool,
    limit: i64,
) -> anyhow::Result<CommandOutput> {
    find_tenant::require(db, tenant).await?;
    let query = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select id, tenant_id as tenant, connection_id as connection, provider, state, reason, facts,
                      octet_length(raw) as bytes, received_at, handled_at
               from inbound_events
               where ($1::uuid is null or tenant_id = $1) and (not $2 or state = 'rejected')
               order by received_at desc limit $3) r
           order by received_at desc"#,
        tenant,
        rejected,
        limit
    );
    list_records(db, query, &["id", "provider", "state", "reason", "facts", "bytes", "received_at"]).await
}

async fn show_event(db: &mut PgConnection, id: Uuid) -> anyhow::Result<CommandOutput> {
    let raw = sqlx::query_scalar!("select raw from inbound_events where id = $1", id)
        .fetch_optional(db)
        .await?
        .context("no such event")?;
    let text = String::from_utf8_lossy(&raw);
    Ok(CommandOutput::done(json!({"id": id, "raw": text}), text))
}

async fn retry_event(db: &mut PgConnection, id: Uuid) -> anyhow::Result<CommandOutput> {
    let tenant = sqlx::query_scalar!(
        "update inbound_events set state = 'received', reason = null, attempts = 0, due_at = now(), handled_at = null
         where id = $1 returning tenant_id",
        id
    )
    .fetch_optional(&mut *db)
    .await?
    .context("no such event")?;
    audit(db, Some(tenant), "hook.again", id).await?;
    Ok(CommandOutput::done(json!({"id": id, "state": "received"}), "will be processed again"))
}

async fn list_pending_facts(
    db: &mut PgConnection,
    tenant: Option<Uuid>,
    dropped: bool,
    limit: i64,
) -> anyhow::Result<CommandOutput> {
    find_tenant::require(db, tenant).await?;
    let query = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select id, tenant_id as tenant, coalesce(provider, 'link') as provider, reason, signal ->> 'kind' as kind, send_id,
                      pending_since, attempts, due_at, dropped_at
               from pending_facts) r
           where ($1::uuid is null or tenant = $1) and (not $2 or dropped_at is not null)
           order by pending_since desc limit $3"#,
        tenant,
        dropped,
        limit
    );
    list_records(db, query, &["id", "provider", "kind", "reason", "send_id", "pending_since", "due_at", "dropped_at"])
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_that_reports_nothing_by_http_has_no_url() {
        let base = "https://mail.example.com".parse().unwrap();
        assert_eq!(url_of(&base, "smtp", Uuid::nil()), None);
    }

    #[test]
    fn the_url_is_the_ingress_own_whatever_stands_behind_it() {
        let id = Uuid::nil();
        for base in ["https://mail.example.com", "https://mail.example.com/"] {
            let url = url_of(&base.parse().unwrap(), "ses", id);
            assert_eq!(url, Some(format!("https://mail.example.com/hooks/ses/{id}")));
        }
    }
}
