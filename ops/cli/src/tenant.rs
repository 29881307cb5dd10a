//! `postrider tenant list|show|set|link|suspend|activate`.

use anyhow::{Context, ensure};
use clap::Subcommand;
use ingress::{
    api::tenants::{self, ProfileChange, TenantLink},
    pipeline::{is_product_tenant_id, json::decode},
};
use schemas::{Address, Environment};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    api::argument,
    invocation::{audit, audit_record},
    key::{environment, product},
    operator::{CommandOutput, list_records, refused},
};

/// Tenants and their links.
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Lists tenants, newest first.
    List {
        /// At most this many.
        #[arg(long, default_value_t = 50)]
        limit: i64,
    },
    /// One tenant: links, domains, senders, counts.
    Show {
        /// The engine tenant.
        id: Uuid,
    },
    /// Changes a tenant's profile, or shows it: time zone, postal address, default sender, attribution, retention, pages.
    Set(ProfileArgs),
    /// Links a product's tenant, making the engine tenant if there is none.
    Link(Link),
    /// Stops all sending for a tenant; requests are still accepted. Mail whose turn comes while the suspension lasts is skipped for good;
    /// to hold it, `postrider pause tenant`. Mail that waits longer (scheduled, in quiet hours, in what is paused) leaves after
    /// `activate`: cancel what should not.
    Suspend {
        /// The engine tenant.
        id: Uuid,
    },
    /// Lets a suspended tenant send again. What was skipped stays so; what still waits leaves when its turn comes.
    Activate {
        /// The engine tenant.
        id: Uuid,
    },
}

/// What is not named stays as it is. Without fields, shows the profile.
#[derive(Debug, clap::Args)]
pub struct ProfileArgs {
    /// The engine tenant.
    id: Uuid,
    /// Fields as `PATCH /v1/tenant` takes them: `timezone=Europe/Paris`, `attribution:='{"model":"linear"}'`.
    #[arg(value_name = "NAME=VALUE", value_parser = argument)]
    fields: Vec<(String, Value)>,
}

#[derive(Debug, clap::Args)]
pub struct Link {
    /// The product's slug: 2 to 32 of a–z, 0–9, dashes.
    #[arg(long, value_parser = product)]
    product: String,
    /// production or sandbox.
    #[arg(long, value_parser = environment, default_value = "production")]
    environment: Environment,
    /// The product's own id of the tenant.
    #[arg(long, value_parser = product_tenant_id)]
    product_tenant_id: String,
    /// The owner's address.
    #[arg(long)]
    email: String,
    /// The organisation's name.
    #[arg(long)]
    org_name: Option<String>,
    /// An engine tenant that stands: this product shares it with those that are linked to it already.
    #[arg(long)]
    engine_tenant_id: Option<Uuid>,
}

fn product_tenant_id(text: &str) -> Result<String, String> {
    let is_valid = is_product_tenant_id(text);
    is_valid.then(|| text.to_owned()).ok_or_else(|| "1 to 255 characters and no control characters".to_owned())
}

pub async fn run(db: &mut PgConnection, command: TenantCommand) -> anyhow::Result<CommandOutput> {
    match command {
        TenantCommand::List { limit } => list(db, limit).await,
        TenantCommand::Show { id } => show(db, id).await,
        TenantCommand::Link(wanted) => {
            let owner = Address::parse(&wanted.email).context("email")?;
            let id = match wanted.engine_tenant_id {
                Some(tenant) => share(db, &wanted, tenant, &owner).await?,
                None => {
                    let new = TenantLink {
                        product: &wanted.product,
                        environment: wanted.environment,
                        product_tenant_id: &wanted.product_tenant_id,
                        owner: owner.as_str(),
                        org_name: wanted.org_name.as_deref(),
                        producer_name: None,
                    };
                    link(db, new).await?
                }
            };
            Ok(CommandOutput::Table(vec![json!({"engine_tenant_id": id})], &["engine_tenant_id"]))
        }
        TenantCommand::Suspend { id } => set_status(db, id, "suspended").await,
        TenantCommand::Activate { id } => set_status(db, id, "active").await,
        TenantCommand::Set(wanted) => set_profile(db, wanted).await,
    }
}

async fn list(db: &mut PgConnection, limit: i64) -> anyhow::Result<CommandOutput> {
    let query = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select t.id as tenant, t.environment, t.org_name, t.status, t.created_at,
                      (select string_agg(l.product || ':' || l.product_tenant_id, ' ')
                       from tenant_links l where l.tenant_id = t.id) as links
               from tenants t order by t.created_at desc limit $1) r
           order by created_at desc"#,
        limit
    );
    list_records(db, query, &["tenant", "environment", "status", "org_name", "links"]).await
}

async fn show(db: &mut PgConnection, id: Uuid) -> anyhow::Result<CommandOutput> {
    let row = sqlx::query!(
        r#"select t.environment, t.org_name, t.status, t.timezone, t.physical_address, t.created_at,
                (select count(*) from contacts c where c.tenant_id = t.id) as "contacts!",
                (select count(*) from suppressions s where s.tenant_id = t.id) as "suppressions!",
                (select count(*) from campaigns c where c.tenant_id = t.id) as "campaigns!",
                (select coalesce(jsonb_agg(jsonb_build_object('domain', d.domain, 'status', d.status)), '[]') from domains d where d.tenant_id = t.id) as "domains!",
                (select coalesce(jsonb_agg(jsonb_build_object('sender_id', s.id, 'email', s.email, 'status', s.status)), '[]') from senders s where s.tenant_id = t.id) as "senders!",
                (select coalesce(jsonb_agg(jsonb_build_object('product', l.product, 'product_tenant_id', l.product_tenant_id, 'producer_name', l.producer_name)), '[]') from tenant_links l where l.tenant_id = t.id) as "links!"
         from tenants t where t.id = $1"#,
        id
    )
    .fetch_optional(db)
    .await?
    .context("no such tenant")?;
    let record = json!({
        "tenant": id, "environment": row.environment, "org_name": row.org_name, "status": row.status, "links": row.links,
        "timezone": row.timezone, "physical_address": row.physical_address, "created_at": row.created_at, "contacts": row.contacts,
        "suppressions": row.suppressions, "campaigns": row.campaigns, "domains": row.domains, "senders": row.senders,
    });
    Ok(CommandOutput::record(record))
}

/// Changes a tenant's profile by the rules of `PATCH /v1/tenant`.
async fn set_profile(db: &mut PgConnection, args: ProfileArgs) -> anyhow::Result<CommandOutput> {
    let id = args.id;
    let change: ProfileChange = decode(args.fields.into_iter().collect()).map_err(refused)?;
    let fields = change.fields();
    let profile = tenants::change(db, id, change).await.map_err(refused)?;
    if !fields.is_empty() {
        audit_record(db, Some(id), "tenant.changed", id, None, json!({"fields": fields})).await?;
    }
    Ok(CommandOutput::record(serde_json::to_value(&profile)?))
}

/// Finds or makes the engine tenant behind a product's tenant.
pub async fn link(db: &mut PgConnection, link: TenantLink<'_>) -> anyhow::Result<Uuid> {
    if let Some(id) = link.find(db).await? {
        return Ok(id);
    }
    let id = link.create(db).await?;
    audit(db, Some(id), "tenant.link", id).await?;
    Ok(id)
}

/// Links a product's tenant to an engine tenant that stands.
async fn share(db: &mut PgConnection, wanted: &Link, tenant: Uuid, owner: &Address) -> anyhow::Result<Uuid> {
    let environment = sqlx::query_scalar!(
        r#"select environment as "environment: Environment" from tenants where id = $1 for share"#,
        tenant
    )
    .fetch_optional(&mut *db)
    .await?
    .context("no such tenant")?;
    let of_link = wanted.environment;
    ensure!(environment == of_link, "the tenant belongs to {environment}, the link to {of_link}");
    let linked = sqlx::query_scalar!(
        "insert into tenant_links as l (product, environment, product_tenant_id, tenant_id, owner_email, org_name)
         values ($1, $2, $3, $4, $5, $6)
         on conflict (product, environment, product_tenant_id) do update set updated_at = l.updated_at
         returning tenant_id",
        wanted.product,
        environment.as_str(),
        wanted.product_tenant_id,
        tenant,
        owner.as_str(),
        wanted.org_name,
    )
    .fetch_one(&mut *db)
    .await?;
    ensure!(linked == tenant, "it is linked to another tenant already: {linked}");
    audit(db, Some(tenant), "tenant.link", tenant).await?;
    Ok(tenant)
}

async fn set_status(db: &mut PgConnection, id: Uuid, status: &str) -> anyhow::Result<CommandOutput> {
    if status != "active" {
        ledger::gate::block_fences(db, id).await?;
    }
    let changed = sqlx::query!("update tenants set status = $2, updated_at = now() where id = $1", id, status)
        .execute(&mut *db)
        .await?
        .rows_affected();
    ensure!(changed > 0, "no such tenant");
    audit(db, Some(id), "tenant.status", status).await?;
    Ok(CommandOutput::done(json!({"tenant": id, "status": status}), status))
}
