//! The demo tenant: linked in both environments, with a verified domain, a sender, a key with every scope and a test key.
//!
//! Keys and the master key are kept in the data directory, so that a second start prints the same ones.

use std::path::Path;

use anyhow::Context;
use dkim::DkimKey;
use runtime::{Database, MasterKeys, Role, Vault};
use schemas::{Address, Environment, key, new_id, scope};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use uuid::Uuid;

/// The demo product's slug.
pub const PRODUCT: &str = "demo";
/// The product's own id of its tenant.
pub const PRODUCT_TENANT_ID: &str = "demo-tenant";
/// The tenant's sending domain. `.example` is reserved: it belongs to nobody (RFC 2606).
pub const DOMAIN: &str = "acme.example";
const SENDER: &str = "news@acme.example";
const OWNER: &str = "owner@acme.example";
const SECRETS_FILE: &str = "demo-secrets.json";

/// What was seeded.
pub struct Seeded {
    pub engine_tenant_id: Uuid,
    pub sender_id: Uuid,
    pub live_key: String,
    pub test_key: String,
    pub master_key: String,
}

#[derive(Serialize, Deserialize)]
struct Secrets {
    master_key: String,
    live_key: String,
    test_key: String,
}

/// Finds or makes the demo tenant.
pub async fn seed(database_url: &SecretString, data_dir: &Path) -> anyhow::Result<Seeded> {
    let secrets = secrets(data_dir)?;
    let vault = Vault::new(&MasterKeys::parse(&secrets.master_key)?)?;
    let pool = Database::pool(database_url, Role::Stages, 2)?;
    let (engine_tenant_id, sender_id) = tenant(&pool, &vault, Environment::Production).await?;
    tenant(&pool, &vault, Environment::Sandbox).await?;
    for environment in [Environment::Production, Environment::Sandbox] {
        crate::feed::switch_on(&pool, PRODUCT, environment).await?;
    }
    for (text, environment) in [(&secrets.live_key, Environment::Production), (&secrets.test_key, Environment::Sandbox)]
    {
        ensure_key(&pool, text, environment).await?;
    }
    pool.close().await;
    let Secrets { master_key, live_key, test_key } = secrets;
    Ok(Seeded { engine_tenant_id, sender_id, live_key, test_key, master_key })
}

fn secrets(data_dir: &Path) -> anyhow::Result<Secrets> {
    let path = data_dir.join(SECRETS_FILE);
    if let Ok(text) = std::fs::read_to_string(&path) {
        return serde_json::from_str(&text).with_context(|| format!("{}", path.display()));
    }
    let made = Secrets {
        master_key: hex::encode(rand::random::<[u8; 32]>()),
        live_key: key::generate(PRODUCT, Environment::Production),
        test_key: key::generate(PRODUCT, Environment::Sandbox),
    };
    std::fs::write(&path, serde_json::to_string_pretty(&made)?).with_context(|| format!("{}", path.display()))?;
    Ok(made)
}

async fn ensure_key(pool: &PgPool, text: &str, environment: Environment) -> anyhow::Result<()> {
    let hash = key::hash(text);
    let known =
        sqlx::query_scalar!("select id from api_keys where hash = $1", hash.as_slice()).fetch_optional(pool).await?;
    if known.is_none() {
        let scopes: Vec<String> = scope::ALL.iter().map(|scope| (*scope).to_owned()).collect();
        crate::key::issue_key(pool, text, PRODUCT, environment, &scopes, None, Some("demo"), None).await?;
    }
    Ok(())
}

async fn tenant(pool: &PgPool, vault: &Vault, environment: Environment) -> anyhow::Result<(Uuid, Uuid)> {
    let owner = Address::parse(OWNER)?;
    let tenant =
        crate::tenant::link(pool, PRODUCT, environment, PRODUCT_TENANT_ID, &owner, Some("Acme (demo)")).await?;
    let known = sqlx::query_scalar!("select id from senders where tenant_id = $1 and email = $2", tenant, SENDER)
        .fetch_optional(pool)
        .await?;
    if let Some(sender) = known {
        return Ok((tenant, sender));
    }
    // Making an RSA key takes tens of milliseconds of CPU.
    let dkim = tokio::task::spawn_blocking(DkimKey::generate_rsa).await??;
    let sealed = vault.seal(tenant, "dkim", dkim.private_pkcs8.expose_secret())?;
    let mut tx = pool.begin().await?;
    sqlx::query!(
        "update tenants set physical_address = 'Acme Inc., 1 Example Street, 12345 Exampletown' where id = $1",
        tenant
    )
    .execute(&mut *tx)
    .await?;
    let (domain_id, sender_id) = (new_id(), new_id());
    sqlx::query!(
        "insert into domains (tenant_id, id, environment, domain, status, selector, dkim_private, dkim_public, ownership_token,
                              verified_at, last_checked_at)
         values ($1, $2, $3, $4, 'verified', 'pr1', $5, $6, $7, now(), now())",
        tenant,
        domain_id,
        environment.as_str(),
        DOMAIN,
        sealed,
        dkim.public,
        domain_id.simple().to_string()
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "insert into senders (tenant_id, id, domain_id, email, name, reply_to, is_default) values ($1, $2, $3, $4, 'Acme News', $5, true)",
        tenant,
        sender_id,
        domain_id,
        SENDER,
        "hello@acme.example"
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok((tenant, sender_id))
}
