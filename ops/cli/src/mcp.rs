//! `postrider mcp approve|list|revoke|drafts|draft|close`: who may ask through an assistant, and what assistants proposed.

use anyhow::{Context, ensure};
use chrono::{DateTime, Utc};
use clap::Subcommand;
use schemas::new_id;
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    find_tenant,
    invocation::audit,
    key::expiry,
    operator::{CommandOutput, list_records},
};

/// AI assistants: who may ask, and what they proposed.
#[derive(Debug, Subcommand)]
pub enum McpCommand {
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
pub struct Approve {
    /// The workspace: an engine tenant.
    #[arg(long)]
    tenant: Uuid,
    /// The authorization server, exactly as its tokens spell it (`iss`).
    #[arg(long, value_parser = issuer)]
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
    /// A label to recognise the approval by.
    #[arg(long)]
    label: Option<String>,
    /// When it ends, RFC 3339.
    #[arg(long, value_parser = expiry)]
    expires: Option<DateTime<Utc>>,
}

/// An issuer. The text stays as it is: tokens are compared with it letter by letter.
fn issuer(text: &str) -> Result<String, String> {
    ::mcp::is_issuer(text).then(|| text.to_owned()).ok_or_else(|| "a URL, such as https://id.example.com".to_owned())
}

pub async fn run(db: &mut PgConnection, command: McpCommand) -> anyhow::Result<CommandOutput> {
    match command {
        McpCommand::Approve(wanted) => approve(db, &wanted).await,
        McpCommand::List { tenant } => list(db, tenant).await,
        McpCommand::Revoke { id } => revoke(db, id).await,
        McpCommand::Drafts { tenant, all } => drafts(db, tenant, all).await,
        McpCommand::Draft { tenant, id } => draft(db, tenant, id).await,
        McpCommand::Close { tenant, id } => close(db, tenant, id).await,
    }
}

async fn approve(db: &mut PgConnection, wanted: &Approve) -> anyhow::Result<CommandOutput> {
    for (name, text) in [("subject", &wanted.subject), ("client", &wanted.client)] {
        ensure!(!text.trim().is_empty() && !text.chars().any(char::is_control), "{name} must not be empty");
    }
    let environment = sqlx::query_scalar!("select environment from tenants where id = $1", wanted.tenant)
        .fetch_optional(&mut *db)
        .await?
        .context("no such tenant")?;
    // The unique row is that of an approval that is not revoked: one that has expired is revoked for its renewal.
    let expired = sqlx::query!(
        "update assistant_approvals set revoked_at = now()
         where issuer = $1 and subject = $2 and client_id = $3 and revoked_at is null and expires_at <= now()
         returning id, tenant_id",
        wanted.issuer,
        wanted.subject,
        wanted.client,
    )
    .fetch_optional(&mut *db)
    .await?;
    if let Some(expired) = expired {
        audit(&mut *db, Some(expired.tenant_id), "mcp.revoke", expired.id).await?;
    }
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
    .execute(&mut *db)
    .await?
    .rows_affected();
    ensure!(made > 0, "this user and client are approved already: revoke that approval first (postrider mcp list)");
    audit(db, Some(wanted.tenant), "mcp.approve", id).await?;
    Ok(CommandOutput::Table(vec![json!({"approval_id": id})], &["approval_id"]))
}

async fn list(db: &mut PgConnection, tenant: Option<Uuid>) -> anyhow::Result<CommandOutput> {
    find_tenant::require(db, tenant).await?;
    let query = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select id as approval_id, issuer, subject, client_id as client, tenant_id as tenant, environment,
                      may_draft as drafts, label, created_at, expires_at, revoked_at
               from assistant_approvals) r
           where $1::uuid is null or tenant = $1 order by created_at desc"#,
        tenant
    );
    let columns = &["approval_id", "tenant", "subject", "client", "drafts", "label", "expires_at", "revoked_at"];
    list_records(db, query, columns).await
}

async fn revoke(db: &mut PgConnection, id: Uuid) -> anyhow::Result<CommandOutput> {
    let tenant = sqlx::query_scalar!(
        "update assistant_approvals set revoked_at = now() where id = $1 and revoked_at is null returning tenant_id",
        id
    )
    .fetch_optional(&mut *db)
    .await?
    .context("no live approval has this id")?;
    audit(db, Some(tenant), "mcp.revoke", id).await?;
    Ok(CommandOutput::done(json!({"approval_id": id, "revoked": true}), "revoked"))
}

async fn drafts(db: &mut PgConnection, tenant: Uuid, all: bool) -> anyhow::Result<CommandOutput> {
    find_tenant::require(db, Some(tenant)).await?;
    let query = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select id as proposal_id, approval_id, title, status, created_at from draft_proposals
               where tenant_id = $1 and ($2 or status = 'open')) r
           order by created_at desc, proposal_id desc limit 500"#,
        tenant,
        all
    );
    list_records(db, query, &["proposal_id", "created_at", "status", "title"]).await
}

async fn draft(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> anyhow::Result<CommandOutput> {
    let record = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select id as proposal_id, approval_id, title, campaign_goal, subject, preheader, body, audience, notes, status,
                      created_at, closed_at
               from draft_proposals where tenant_id = $1 and id = $2) r"#,
        tenant,
        id
    )
    .fetch_optional(db)
    .await?
    .context("no such draft proposal")?;
    Ok(CommandOutput::record(record))
}

async fn close(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> anyhow::Result<CommandOutput> {
    let closed = sqlx::query!(
        "update draft_proposals set status = 'closed', closed_at = now() where tenant_id = $1 and id = $2 and status = 'open'",
        tenant,
        id
    )
    .execute(&mut *db)
    .await?
    .rows_affected();
    ensure!(closed > 0, "no open draft proposal of this tenant has this id");
    audit(db, Some(tenant), "mcp.close", id).await?;
    Ok(CommandOutput::done(json!({"proposal_id": id, "status": "closed"}), "closed"))
}
