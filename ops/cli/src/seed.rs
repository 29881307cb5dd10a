//! The demo tenant: linked in both environments, with a verified domain, a sender, a key with every scope and a test key.
//!
//! Keys and the master key are kept in the data directory, so that a second start prints the same ones.

use std::path::{Path, PathBuf};

use anyhow::Context;
use dkim::DkimKey;
use ingress::api::{keys::NewKey, tenants::TenantLink};
use runtime::{MasterKeys, Vault};
use schemas::{Address, Environment, key, new_id, scope};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::operator::{CommandOutput, DatabaseArgs};

/// The demo product's slug.
const PRODUCT: &str = "demo";
/// The product's own id of its tenant.
const PRODUCT_TENANT_ID: &str = "demo-tenant";
/// The tenant's sending domain. `.example` is reserved: it has no owner (RFC 2606).
const DOMAIN: &str = "acme.example";
const SENDER: &str = "news@acme.example";
const OWNER: &str = "owner@acme.example";
const SECRETS_FILE: &str = "demo-secrets.json";

/// `postrider seed`
#[derive(Debug, clap::Args)]
pub struct SeedArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Keeps the demo's keys here, so that a second run finds the same.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Secrets {
    master_key: String,
    live_key: String,
    test_key: String,
}

/// Finds or makes the demo tenant, and prints its ids and keys.
pub async fn run(args: SeedArgs) -> anyhow::Result<()> {
    let Secrets { master_key, live_key, test_key } = secrets(&args.data_dir)?;
    let vault = Vault::new(&MasterKeys::parse(&master_key)?)?;
    let demo = async |db: &mut PgConnection| {
        let (engine_tenant_id, sender_id) = tenant(db, &vault, Environment::Production).await?;
        tenant(db, &vault, Environment::Sandbox).await?;
        for (key, environment) in [(&live_key, Environment::Production), (&test_key, Environment::Sandbox)] {
            crate::feed::switch_on(db, PRODUCT, environment).await?;
            ensure_key(db, key, environment).await?;
        }
        let record = json!({
            "product": PRODUCT, "environment": Environment::Production, "product_tenant_id": PRODUCT_TENANT_ID,
            "engine_tenant_id": engine_tenant_id, "sender_id": sender_id, "domain": DOMAIN,
            "live_key": live_key, "test_key": test_key, "master_key": master_key,
        });
        Ok(CommandOutput::done(record.clone(), record.to_string()))
    };
    args.database.operate(demo).await
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

async fn ensure_key(db: &mut PgConnection, text: &str, environment: Environment) -> anyhow::Result<()> {
    let hash = key::hash(text);
    let known = sqlx::query_scalar!("select id from api_keys where hash = $1", hash.as_slice())
        .fetch_optional(&mut *db)
        .await?;
    if known.is_none() {
        let scopes: Vec<String> = scope::ALL.iter().map(|scope| (*scope).to_owned()).collect();
        let new = NewKey {
            key: text,
            product: PRODUCT,
            environment,
            scopes: &scopes,
            tenant: None,
            label: Some("demo"),
            expires_at: None,
            lineage: None,
            rate_lineage: None,
            made_by: &[],
        };
        crate::key::issue_key(db, new).await?;
    }
    Ok(())
}

async fn tenant(db: &mut PgConnection, vault: &Vault, environment: Environment) -> anyhow::Result<(Uuid, Uuid)> {
    let owner = Address::parse(OWNER)?;
    let link = TenantLink {
        product: PRODUCT,
        environment,
        product_tenant_id: PRODUCT_TENANT_ID,
        owner: owner.as_str(),
        org_name: Some("Acme (demo)"),
        producer_name: None,
    };
    let tenant = crate::tenant::link(db, link).await?;
    let known = sqlx::query_scalar!("select id from senders where tenant_id = $1 and email = $2", tenant, SENDER)
        .fetch_optional(&mut *db)
        .await?;
    if let Some(sender) = known {
        return Ok((tenant, sender));
    }
    // Making an RSA key takes tens of milliseconds of CPU.
    let dkim = tokio::task::spawn_blocking(DkimKey::generate_rsa).await??;
    let sealed = vault.seal(tenant, "dkim", dkim.private_pkcs8.expose_secret())?;
    sqlx::query!(
        "update tenants set physical_address = 'Acme Inc., 1 Example Street, 12345 Exampletown' where id = $1",
        tenant
    )
    .execute(&mut *db)
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
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "insert into senders (tenant_id, id, domain_id, email, name, reply_to, is_default) values ($1, $2, $3, $4, 'Acme News', $5, true)",
        tenant,
        sender_id,
        domain_id,
        SENDER,
        "hello@acme.example"
    )
    .execute(&mut *db)
    .await?;
    Ok((tenant, sender_id))
}
