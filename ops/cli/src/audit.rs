//! `postrider audit list`: acts with their actor, subject, reason and outcome.

use chrono::{DateTime, Utc};
use clap::Subcommand;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    find_tenant,
    operator::{CommandOutput, list_records, timestamp},
};

/// What operators did.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Lists acts, newest first: of operators, of callers, and what the engine decided by itself.
    List(Filter),
}

#[derive(Debug, clap::Args)]
pub struct Filter {
    /// Of this engine tenant only.
    #[arg(long)]
    tenant: Option<Uuid>,
    /// Acts whose name begins like this: `stage.`, `campaign.pause`.
    #[arg(long)]
    action: Option<String>,
    /// Actors whose name begins like this: `cli:`, `cli:ann@`, `key:`.
    #[arg(long)]
    actor: Option<String>,
    /// Since then only, such as 2026-03-01T00:00:00Z.
    #[arg(long, value_parser = timestamp)]
    since: Option<DateTime<Utc>>,
    /// At most this many.
    #[arg(long, default_value_t = 50)]
    limit: i64,
}

pub async fn run(db: &mut PgConnection, command: AuditCommand) -> anyhow::Result<CommandOutput> {
    let AuditCommand::List(filter) = command;
    find_tenant::require(db, filter.tenant).await?;
    let query = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select id as audit_id, at, actor, action, subject, tenant_id as tenant, reason, outcome, detail from audit_log) r
           where ($1::uuid is null or tenant = $1) and ($2::text is null or starts_with(action, $2))
             and ($3::text is null or starts_with(actor, $3)) and ($4::timestamptz is null or at >= $4)
           order by at desc, audit_id desc
           limit $5"#,
        filter.tenant,
        filter.action,
        filter.actor,
        filter.since,
        filter.limit,
    );
    list_records(db, query, &["at", "actor", "action", "subject", "outcome", "reason"]).await
}
