//! `postrider key issue|list|rotate|revoke`: a key is shown once, its hash is kept.

use anyhow::{Context, bail, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use clap::Subcommand;
use ingress::api::keys::{self, NewKey, OVERLAP_HOURS, OVERLAP_HOURS_MAX};
use schemas::{Environment, key, scope};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    invocation::audit,
    operator::{CommandOutput, list_records, timestamp},
    table,
};

/// API keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Makes a key and shows it, once.
    Issue(Issue),
    /// Lists keys, without the keys.
    List,
    /// Makes a key with the same scopes, and lets the replaced one go on for a while. The keys that it made belong to the new key and go
    /// on. Shows the new key, once.
    Rotate {
        /// The key's id, as `list` shows it.
        id: Uuid,
        /// How many hours the replaced key goes on; 0: it ends at once.
        #[arg(long, default_value_t = OVERLAP_HOURS, value_parser = clap::value_parser!(u32).range(..=i64::from(OVERLAP_HOURS_MAX)))]
        overlap_hours: u32,
    },
    /// Ends a key, with the keys that it made by API and those that these made. Within five seconds no process accepts them any more. A
    /// key that replaced it goes on.
    Revoke {
        /// The key's id, as `list` shows it.
        id: Uuid,
    },
}

#[derive(Debug, clap::Args)]
pub struct Issue {
    /// The product's slug: 2 to 32 of a–z, 0–9, dashes.
    #[arg(long, value_parser = product)]
    product: String,
    /// production or sandbox.
    #[arg(long, value_parser = environment, default_value = "production")]
    environment: Environment,
    /// Scopes, comma-separated; `all` for every scope a product can have.
    #[arg(long, value_delimiter = ',', default_value = "all")]
    scopes: Vec<String>,
    /// Makes the key work for this engine tenant only.
    #[arg(long)]
    tenant: Option<Uuid>,
    /// What the key is for.
    #[arg(long)]
    label: Option<String>,
    /// When it ends, RFC 3339.
    #[arg(long, value_parser = expiry)]
    expires: Option<DateTime<Utc>>,
}

pub fn product(text: &str) -> Result<String, String> {
    key::is_slug(text).then(|| text.to_owned()).ok_or_else(|| "2 to 32 of a-z, 0-9 and dashes inside".to_owned())
}

pub fn environment(text: &str) -> Result<Environment, String> {
    Environment::parse(text).ok_or_else(|| "production or sandbox".to_owned())
}

/// A time that is still to come.
pub fn expiry(text: &str) -> Result<DateTime<Utc>, String> {
    let at = timestamp(text)?;
    if at <= Utc::now() {
        return Err("a time that is still to come".to_owned());
    }
    Ok(at)
}

pub async fn run(db: &mut PgConnection, command: KeyCommand) -> anyhow::Result<CommandOutput> {
    match command {
        KeyCommand::Issue(wanted) => issue(db, &wanted).await,
        KeyCommand::List => list(db).await,
        KeyCommand::Rotate { id, overlap_hours } => rotate(db, id, overlap_hours).await,
        KeyCommand::Revoke { id } => revoke(db, id).await,
    }
}

fn scopes(asked: &[String]) -> anyhow::Result<Vec<String>> {
    if asked.iter().any(|scope| scope == "all") {
        return Ok(scope::ALL.iter().map(|scope| (*scope).to_owned()).collect());
    }
    match asked.iter().find(|text| !scope::is_scope(text)) {
        Some(unknown) => bail!("{unknown} is not a scope; these are: {}", scope::ALL.join(", ")),
        None => Ok(asked.to_vec()),
    }
}

/// Refuses a key for a tenant that it could never reach: of another environment, or not linked to the product.
async fn check_tenant(db: &mut PgConnection, wanted: &Issue, tenant: Uuid) -> anyhow::Result<()> {
    let found = sqlx::query!(
        r#"select t.environment as "environment: Environment",
                  exists (select from tenant_links l where l.tenant_id = t.id and l.product = $2) as "is_linked!"
           from tenants t where t.id = $1"#,
        tenant,
        wanted.product,
    )
    .fetch_optional(db)
    .await?
    .context("no such tenant")?;
    let (of_tenant, of_key) = (found.environment, wanted.environment);
    ensure!(of_tenant == of_key, "the tenant belongs to {of_tenant}, the key to {of_key}");
    ensure!(found.is_linked, "the tenant is not linked to {}: postrider tenant link", wanted.product);
    Ok(())
}

async fn issue(db: &mut PgConnection, wanted: &Issue) -> anyhow::Result<CommandOutput> {
    let scopes = scopes(&wanted.scopes)?;
    if let Some(tenant) = wanted.tenant {
        check_tenant(db, wanted, tenant).await?;
    }
    let text = key::generate(&wanted.product, wanted.environment);
    let new = NewKey {
        key: &text,
        product: &wanted.product,
        environment: wanted.environment,
        scopes: &scopes,
        tenant: wanted.tenant,
        label: wanted.label.as_deref(),
        expires_at: wanted.expires,
        lineage: None,
        rate_lineage: None,
        made_by: &[],
    };
    let record = json!({"key_id": issue_key(db, new).await?, "key": text});
    let shown = table::render(std::slice::from_ref(&record), &["key_id", "key"], table::width());
    Ok(CommandOutput::done(record, format!("{shown}\nKeep it now: it is not shown again.")))
}

/// Stores a key's hash with what it may do.
pub async fn issue_key(db: &mut PgConnection, new: NewKey<'_>) -> anyhow::Result<Uuid> {
    let id = new.insert(db).await.context("the key could not be stored")?;
    audit(db, new.tenant, "key.issue", id).await?;
    Ok(id)
}

async fn rotate(db: &mut PgConnection, id: Uuid, overlap_hours: u32) -> anyhow::Result<CommandOutput> {
    let replaced = keys::lock_live(db, id).await?.context("no live key has this id")?;
    // Its next successor would end with it.
    if let Some(successor) = keys::successor(db, &replaced).await? {
        bail!("the key was replaced by {successor}: rotate that");
    }
    let overlap = TimeDelta::hours(i64::from(overlap_hours));
    let new = keys::replace(db, &replaced, None, overlap).await?;
    audit(db, replaced.tenant_id, "key.rotate", id).await?;
    let record = json!({
        "key_id": new.id, "key": new.key, "expires_at": new.expires_at, "replaced": id, "replaced_until": new.replaced_until,
    });
    Ok(CommandOutput::Table(vec![record], &["key_id", "key", "expires_at", "replaced", "replaced_until"]))
}

async fn list(db: &mut PgConnection) -> anyhow::Result<CommandOutput> {
    let query = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select id as key_id, prefix, product, environment, scopes, tenant_id as tenant, label, made_by, created_at,
                      expires_at, revoked_at, last_used_on
               from api_keys) r
           order by created_at desc"#
    );
    let columns = &[
        "key_id",
        "prefix",
        "product",
        "environment",
        "tenant",
        "label",
        "last_used_on",
        "expires_at",
        "revoked_at",
        "made_by",
        "scopes",
    ];
    list_records(db, query, columns).await
}

async fn revoke(db: &mut PgConnection, id: Uuid) -> anyhow::Result<CommandOutput> {
    let key = keys::lock_live(db, id).await?.context("no live key has this id")?;
    let successor = keys::successor(db, &key).await?;
    let ended = keys::revoke(db, id).await?;
    for key in &ended {
        audit(db, key.tenant_id, "key.revoke", key.id).await?;
    }
    let made: Vec<Uuid> = ended.iter().map(|key| key.id).filter(|ended| *ended != id).collect();
    let successor = successor.filter(|other| !made.contains(other));
    let with = if made.is_empty() { String::new() } else { format!(", with {} key(s) that it made", made.len()) };
    let goes_on = successor.map(|other| format!("; {other}, which replaced it, goes on")).unwrap_or_default();
    let text = format!("revoked{with}{goes_on}");
    let record = json!({"key_id": id, "revoked": true, "revoked_with_it": made, "replaced_by": successor});
    Ok(CommandOutput::done(record, text))
}
