//! `postrider domain list|suspend|release`.

use anyhow::{Context, ensure};
use clap::{Subcommand, builder::PossibleValuesParser};
use schemas::{DomainStatus, Environment, address::canonical_domain};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    find_tenant,
    invocation::audit_record,
    operator::{CommandOutput, list_records},
};

/// Sending domains: stopping one, and letting it go on.
#[derive(Debug, Subcommand)]
pub enum DomainCommand {
    /// Lists domains by name.
    List {
        /// Only those of this tenant.
        #[arg(long)]
        tenant: Option<Uuid>,
        /// Only those in this status, such as suspended.
        #[arg(long, value_parser = PossibleValuesParser::new(DomainStatus::NAMES))]
        status: Option<String>,
        /// At most this many.
        #[arg(long, default_value_t = 200)]
        limit: i64,
    },
    /// Stops all mail from a domain: when this returns, nothing of it is fenced any more. Mail whose turn comes while the suspension
    /// lasts is skipped for good; to hold it, pause the tenant or the campaign. Mail that waits longer (scheduled, in quiet hours, in what
    /// is paused) leaves after `release`: cancel what should not. Its owner cannot remove it to claim it anew.
    Suspend(DomainArgs),
    /// Lets a suspended domain be what it was before. What was skipped stays so; what still waits leaves when its turn comes. Its DNS
    /// records are checked at once.
    Release(DomainArgs),
}

/// Which domain.
#[derive(Debug, clap::Args)]
pub struct DomainArgs {
    /// The sending domain.
    #[arg(value_parser = domain_name)]
    pub domain: String,
    /// Whose, where several tenants claim it. Without it, the one that has proven it in production.
    #[arg(long)]
    tenant: Option<Uuid>,
}

/// The domain's name as it is stored.
fn domain_name(text: &str) -> Result<String, String> {
    canonical_domain(text).ok_or_else(|| "a domain name with a dot, not an address".to_owned())
}

pub async fn run(db: &mut PgConnection, command: DomainCommand) -> anyhow::Result<CommandOutput> {
    match command {
        DomainCommand::List { tenant, status, limit } => list(db, tenant, status.as_deref(), limit).await,
        DomainCommand::Suspend(domain) => suspend(db, &domain).await,
        DomainCommand::Release(domain) => release(db, &domain).await,
    }
}

async fn list(
    db: &mut PgConnection,
    tenant: Option<Uuid>,
    status: Option<&str>,
    limit: i64,
) -> anyhow::Result<CommandOutput> {
    find_tenant::require(db, tenant).await?;
    let query = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select domain, tenant_id as tenant, id, status, verified_at, last_checked_at from domains) r
           where ($1::uuid is null or tenant = $1) and ($2::text is null or status = $2)
           order by domain, tenant limit $3"#,
        tenant,
        status,
        limit,
    );
    list_records(db, query, &["domain", "status", "tenant", "id", "verified_at"]).await
}

/// A domain whose row is locked until the transaction ends.
pub struct LockedDomain {
    pub tenant: Uuid,
    pub id: Uuid,
    environment: Environment,
    status: DomainStatus,
    suspended_from: Option<String>,
    is_proven: bool,
}

/// Locks the domain: of several claims the one that is proven. In the sandbox nothing is proven.
pub async fn lock_domain(db: &mut PgConnection, asked: &DomainArgs) -> anyhow::Result<LockedDomain> {
    let mut found = sqlx::query_as!(
        LockedDomain,
        r#"select tenant_id as tenant, id, environment as "environment: Environment", status as "status: DomainStatus", suspended_from,
                  coalesce(suspended_from, status) in ('verified', 'degraded') and environment = 'production' as "is_proven!"
           from domains where domain = $1 and ($2::uuid is null or tenant_id = $2) for no key update"#,
        asked.domain,
        asked.tenant,
    )
    .fetch_all(db)
    .await?;
    if found.len() > 1 {
        let claim = |claim: &LockedDomain| format!("{} ({}, {})", claim.tenant, claim.environment, claim.status);
        let claims: Vec<String> = found.iter().map(claim).collect();
        found.retain(|domain| domain.is_proven);
        ensure!(found.len() == 1, "several tenants claim it, say whose with --tenant: {}", claims.join(", "));
    }
    found.pop().context("no such domain")
}

async fn suspend(db: &mut PgConnection, asked: &DomainArgs) -> anyhow::Result<CommandOutput> {
    let domain = lock_domain(db, asked).await?;
    if domain.status != DomainStatus::Suspended {
        sqlx::query!(
            "update domains set status = 'suspended', suspended_from = status, next_check_at = null, updated_at = now()
             where tenant_id = $1 and id = $2",
            domain.tenant,
            domain.id,
        )
        .execute(&mut *db)
        .await?;
        status_changed(db, &domain, DomainStatus::Suspended.as_str()).await?;
    }
    Ok(answer(asked, &domain, DomainStatus::Suspended.as_str()))
}

async fn release(db: &mut PgConnection, asked: &DomainArgs) -> anyhow::Result<CommandOutput> {
    let domain = lock_domain(db, asked).await?;
    ensure!(domain.status == DomainStatus::Suspended, "the domain is {}", domain.status);
    let before = domain.suspended_from.as_deref().unwrap_or(DomainStatus::Pending.as_str()).to_owned();
    sqlx::query!(
        "update domains
         set status = $3, suspended_from = null, updated_at = now(),
             next_check_at = case when environment = 'production' then now() end
         where tenant_id = $1 and id = $2",
        domain.tenant,
        domain.id,
        before,
    )
    .execute(&mut *db)
    .await?;
    status_changed(db, &domain, &before).await?;
    Ok(answer(asked, &domain, &before))
}

/// Writes the audit entry, which also becomes an event for the owner.
async fn status_changed(db: &mut PgConnection, domain: &LockedDomain, to: &str) -> sqlx::Result<()> {
    let detail = json!({"from": domain.status, "to": to});
    audit_record(db, Some(domain.tenant), "domain.status_changed", domain.id, None, detail).await
}

fn answer(asked: &DomainArgs, domain: &LockedDomain, status: &str) -> CommandOutput {
    let record = json!({"domain": asked.domain, "tenant": domain.tenant, "id": domain.id, "status": status});
    CommandOutput::done(record, status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_named_as_the_api_stores_it() {
        assert_eq!(domain_name(" Acme.Example. ").as_deref(), Ok("acme.example"));
        assert!(domain_name("ann@acme.example").is_err());
    }
}
