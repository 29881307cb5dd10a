//! `postrider mcp approve|list|revoke|drafts|draft|close`: who may ask through an assistant, and what assistants proposed.

use anyhow::{Context, bail};
use chrono::{DateTime, Utc};
use clap::Subcommand;
use schemas::new_id;
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use crate::{
    invocation::audit,
    operator::{self, DatabaseArgs},
};

/// The assistant endpoint.
#[derive(Debug, clap::Args)]
pub struct McpArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(subcommand)]
    command: McpCommand,
}

#[derive(Debug, Subcommand)]
enum McpCommand {
    /// Lets one user ask about one workspace through one client.
    Approve(Approve),
    /// Lists approvals, newest first.
    List {
        /// Of this engine tenant only.
        #[arg(long)]
        tenant: Option<Uuid>,
    },
    /// Ends an approval, at once.
    Revoke {
        /// The approval, as `list` shows it.
        id: Uuid,
    },
    /// Lists the draft proposals of a workspace that wait to be read, newest first.
    Drafts {
        /// The engine tenant.
        tenant: Uuid,
        /// The closed ones, too.
        #[arg(long)]
        all: bool,
    },
    /// One draft proposal with all its texts.
    Draft {
        /// The engine tenant.
        tenant: Uuid,
        /// The proposal, as `drafts` shows it.
        id: Uuid,
    },
    /// Removes a draft proposal from the list after it was read.
    Close {
        /// The engine tenant.
        tenant: Uuid,
        /// The proposal.
        id: Uuid,
    },
}

#[derive(Debug, clap::Args)]
struct Approve {
    /// The workspace: an engine tenant.
    #[arg(long)]
    tenant: Uuid,
    /// The authorization server, exactly as its tokens spell it (`iss`).
    #[arg(long)]
    issuer: String,
    /// The user, as the issuer's tokens name it (`sub`).
    #[arg(long)]
    subject: String,
    /// The OAuth client (`client_id` or `azp`). It must also be among the ingress's `mcp-clients`.
    #[arg(long)]
    client: String,
    /// Lets the assistant save draft proposals, too.
    #[arg(long)]
    drafts: bool,
    /// Who this is.
    #[arg(long)]
    label: Option<String>,
    /// When it ends, RFC 3339.
    #[arg(long)]
    expires: Option<DateTime<Utc>>,
}

pub async fn run(args: McpArgs) -> anyhow::Result<()> {
    let pool = args.database.pool()?;
    match args.command {
        McpCommand::Approve(wanted) => {
            let id = approve(&pool, &wanted).await?;
            operator::print(&[json!({"approval_id": id})], &["approval_id"]);
            Ok(())
        }
        McpCommand::List { tenant } => list(&pool, tenant).await,
        McpCommand::Revoke { id } => revoke(&pool, id).await,
        McpCommand::Drafts { tenant, all } => drafts(&pool, tenant, all).await,
        McpCommand::Draft { tenant, id } => draft(&pool, tenant, id).await,
        McpCommand::Close { tenant, id } => close(&pool, tenant, id).await,
    }
}

async fn approve(pool: &PgPool, wanted: &Approve) -> anyhow::Result<Uuid> {
    for (name, text) in [("issuer", &wanted.issuer), ("subject", &wanted.subject), ("client", &wanted.client)] {
        if text.trim().is_empty() || text.chars().any(char::is_control) {
            bail!("{name} must not be empty");
        }
    }
    let mut tx = pool.begin().await?;
    let environment = sqlx::query_scalar!("select environment from tenants where id = $1", wanted.tenant)
        .fetch_optional(&mut *tx)
        .await?
        .context("no such tenant")?;
    let id = new_id();
    let made = sqlx::query!(
        "insert into assistant_approvals (id, issuer, subject, client_id, tenant_id, environment, may_draft, label, expires_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         on conflict (issuer, subject, client_id) where revoked_at is null do nothing",
        id,
        wanted.issuer,
        wanted.subject,
        wanted.client,
        wanted.tenant,
        environment,
        wanted.drafts,
        wanted.label,
        wanted.expires,
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    if made == 0 {
        bail!("this user and client are approved already: revoke that approval first (postrider mcp list)");
    }
    audit(&mut tx, Some(wanted.tenant), "mcp.approve", &id.to_string()).await?;
    tx.commit().await?;
    Ok(id)
}

async fn list(pool: &PgPool, tenant: Option<Uuid>) -> anyhow::Result<()> {
    let records = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select id as approval_id, issuer, subject, client_id as client, tenant_id as tenant, environment,
                      may_draft as drafts, label, created_at, expires_at, revoked_at
               from assistant_approvals) r
           where $1::uuid is null or tenant = $1 order by created_at desc"#,
        tenant
    )
    .fetch_all(pool)
    .await?;
    operator::print(
        &records,
        &["approval_id", "tenant", "subject", "client", "drafts", "label", "expires_at", "revoked_at"],
    );
    Ok(())
}

async fn revoke(pool: &PgPool, id: Uuid) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let tenant = sqlx::query_scalar!(
        "update assistant_approvals set revoked_at = now() where id = $1 and revoked_at is null returning tenant_id",
        id
    )
    .fetch_optional(&mut *tx)
    .await?
    .context("no live approval has this id")?;
    audit(&mut tx, Some(tenant), "mcp.revoke", &id.to_string()).await?;
    tx.commit().await?;
    operator::print_result(&json!({"approval_id": id, "revoked": true}), "revoked");
    Ok(())
}

async fn drafts(pool: &PgPool, tenant: Uuid, all: bool) -> anyhow::Result<()> {
    let records = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select id as proposal_id, approval_id, title, status, created_at from draft_proposals
               where tenant_id = $1 and ($2 or status = 'open')) r
           order by created_at desc, proposal_id desc limit 500"#,
        tenant,
        all
    )
    .fetch_all(pool)
    .await?;
    operator::print(&records, &["proposal_id", "created_at", "status", "title"]);
    Ok(())
}

async fn draft(pool: &PgPool, tenant: Uuid, id: Uuid) -> anyhow::Result<()> {
    let record = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select id as proposal_id, approval_id, title, campaign_goal, subject, preheader, body, audience, notes, status,
                      created_at, closed_at
               from draft_proposals where tenant_id = $1 and id = $2) r"#,
        tenant,
        id
    )
    .fetch_optional(pool)
    .await?
    .context("no such draft proposal")?;
    operator::show(&record)
}

async fn close(pool: &PgPool, tenant: Uuid, id: Uuid) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let closed = sqlx::query!(
        "update draft_proposals set status = 'closed', closed_at = now() where tenant_id = $1 and id = $2 and status = 'open'",
        tenant,
        id
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    if closed == 0 {
        bail!("no open draft proposal of this tenant has this id");
    }
    audit(&mut tx, Some(tenant), "mcp.close", &id.to_string()).await?;
    tx.commit().await?;
    operator::print_result(&json!({"proposal_id": id, "status": "closed"}), "closed");
    Ok(())
}
