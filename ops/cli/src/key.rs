//! `postrider key issue|list|rotate|revoke`: a key is shown once, its hash is kept.

use anyhow::{Context, bail};
use chrono::{DateTime, TimeDelta, Utc};
use clap::Subcommand;
use ingress::api::keys::{self, NewKey, OVERLAP_HOURS, OVERLAP_HOURS_MAX};
use schemas::{Environment, key, scope};
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use crate::{
    invocation::{self, audit},
    operator::{self, DatabaseArgs},
};

/// API keys.
#[derive(Debug, clap::Args)]
pub struct KeyArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Makes a key and shows it, once.
    Issue(Issue),
    /// Lists keys, without the keys.
    List,
    /// Makes a key with the same scopes, and lets the replaced one go on for a while. Shows the new key, once.
    Rotate {
        /// The key's id, as `list` shows it.
        id: Uuid,
        /// How many hours the replaced key goes on; 0: it ends at once.
        #[arg(long, default_value_t = OVERLAP_HOURS, value_parser = clap::value_parser!(u32).range(..=i64::from(OVERLAP_HOURS_MAX)))]
        overlap_hours: u32,
    },
    /// Ends a key. Within five seconds no process accepts it any more.
    Revoke {
        /// The key's id, as `list` shows it.
        id: Uuid,
    },
}

#[derive(Debug, clap::Args)]
struct Issue {
    /// The product's slug: 2 to 32 of a–z, 0–9, dashes.
    #[arg(long)]
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
    #[arg(long)]
    expires: Option<DateTime<Utc>>,
}

/// Reads an environment's word.
pub fn environment(text: &str) -> Result<Environment, String> {
    Environment::parse(text).ok_or_else(|| "production or sandbox".to_owned())
}

pub async fn run(args: KeyArgs) -> anyhow::Result<()> {
    let pool = args.database.pool()?;
    match args.command {
        KeyCommand::Issue(issue) => {
            let scopes = scopes(&issue.scopes)?;
            if !key::is_slug(&issue.product) {
                bail!("a product's slug is 2 to 32 of a-z, 0-9 and dashes inside");
            }
            let made = insert(&pool, &issue, &scopes).await?;
            operator::print(&[json!({"key_id": made.0, "key": made.1})], &["key_id", "key"]);
            if !invocation::wants_json() {
                println!("\nKeep it now: it is not shown again.");
            }
            Ok(())
        }
        KeyCommand::List => list(&pool).await,
        KeyCommand::Rotate { id, overlap_hours } => rotate(&pool, id, overlap_hours).await,
        KeyCommand::Revoke { id } => revoke(&pool, id).await,
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

async fn insert(pool: &PgPool, issue: &Issue, scopes: &[String]) -> anyhow::Result<(Uuid, String)> {
    let text = key::generate(&issue.product, issue.environment);
    let new = NewKey {
        key: &text,
        product: &issue.product,
        environment: issue.environment,
        scopes,
        tenant: issue.tenant,
        label: issue.label.as_deref(),
        expires_at: issue.expires,
        lineage: None,
        rate_lineage: None,
    };
    Ok((issue_key(pool, new).await?, text))
}

/// Stores a key's hash with what it may do.
pub async fn issue_key(pool: &PgPool, new: NewKey<'_>) -> anyhow::Result<Uuid> {
    let mut tx = pool.begin().await?;
    let id = new.insert(&mut tx).await.context("the key could not be stored")?;
    audit(&mut tx, new.tenant, "key.issue", &id.to_string()).await?;
    tx.commit().await?;
    Ok(id)
}

async fn rotate(pool: &PgPool, id: Uuid, overlap_hours: u32) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let replaced = keys::lock_live(&mut tx, id).await?.context("no live key has this id")?;
    let overlap = TimeDelta::hours(i64::from(overlap_hours));
    let (new, text, until) = keys::replace(&mut tx, &replaced, None, overlap).await?;
    audit(&mut tx, replaced.tenant_id, "key.rotate", &id.to_string()).await?;
    tx.commit().await?;
    operator::print(
        &[json!({"key_id": new, "key": text, "replaced": id, "replaced_until": until})],
        &["key_id", "key", "replaced", "replaced_until"],
    );
    Ok(())
}

async fn list(pool: &PgPool) -> anyhow::Result<()> {
    let records = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select id as key_id, prefix, product, environment, cardinality(scopes) as scopes, tenant_id as tenant, label,
                      created_at, expires_at, revoked_at, last_used_on
               from api_keys) r
           order by created_at desc"#
    )
    .fetch_all(pool)
    .await?;
    operator::print(
        &records,
        &["key_id", "prefix", "product", "environment", "scopes", "last_used_on", "expires_at", "revoked_at"],
    );
    Ok(())
}

async fn revoke(pool: &PgPool, id: Uuid) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let key = keys::lock_live(&mut tx, id).await?.context("no live key has this id")?;
    keys::revoke(&mut tx, id).await?;
    audit(&mut tx, key.tenant_id, "key.revoke", &id.to_string()).await?;
    tx.commit().await?;
    operator::print_result(&json!({"key_id": id, "revoked": true}), "revoked");
    Ok(())
}
