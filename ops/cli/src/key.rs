//! `postrider key issue|list|revoke`: a key is shown once, its hash is kept.

use anyhow::{Context, bail};
use chrono::{DateTime, Utc};
use clap::Subcommand;
use schemas::{Environment, key, new_id, scope};
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
    let id = issue_key(
        pool,
        &text,
        &issue.product,
        issue.environment,
        scopes,
        issue.tenant,
        issue.label.as_deref(),
        issue.expires,
    )
    .await?;
    Ok((id, text))
}

/// Stores a key's hash with what it may do.
#[allow(clippy::too_many_arguments, reason = "one argument per column")]
pub async fn issue_key(
    pool: &PgPool,
    key: &str,
    product: &str,
    environment: Environment,
    scopes: &[String],
    tenant: Option<Uuid>,
    label: Option<&str>,
    expires_at: Option<DateTime<Utc>>,
) -> anyhow::Result<Uuid> {
    let id = new_id();
    let prefix: String = key.chars().take(key.len().saturating_sub(45)).collect();
    let hash = key::hash(key);
    let mut tx = pool.begin().await?;
    sqlx::query!(
        "insert into api_keys (id, hash, prefix, product, environment, scopes, tenant_id, label, expires_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        id,
        hash.as_slice(),
        prefix,
        product,
        environment.as_str(),
        scopes,
        tenant,
        label,
        expires_at
    )
    .execute(&mut *tx)
    .await
    .context("the key could not be stored")?;
    audit(&mut tx, tenant, "key.issue", &id.to_string()).await?;
    tx.commit().await?;
    Ok(id)
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
    let changed = sqlx::query!("update api_keys set revoked_at = now() where id = $1 and revoked_at is null", id)
        .execute(&mut *tx)
        .await?
        .rows_affected();
    if changed == 0 {
        bail!("no live key has this id");
    }
    audit(&mut tx, None, "key.revoke", &id.to_string()).await?;
    tx.commit().await?;
    operator::print_result(&json!({"key_id": id, "revoked": true}), "revoked");
    Ok(())
}
