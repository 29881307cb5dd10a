//! Rows of `domains`.

use chrono::{DateTime, Utc};
use schemas::DomainStatus;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::pipeline::page::ListPage;

/// A sending domain.
#[derive(Debug, Clone)]
pub(crate) struct DomainRow {
    pub(crate) id: Uuid,
    pub(crate) domain: String,
    pub(crate) status: DomainStatus,
    pub(crate) selector: String,
    pub(crate) dkim_public: String,
    pub(crate) dkim_private: Vec<u8>,
    pub(crate) second_selector: Option<String>,
    pub(crate) second_public: Option<String>,
    pub(crate) ownership_token: String,
    pub(crate) records: Value,
    pub(crate) verified_at: Option<DateTime<Utc>>,
    pub(crate) last_checked_at: Option<DateTime<Utc>>,
    pub(crate) degraded_since: Option<DateTime<Utc>>,
    /// When it was claimed, or "verify" was last called.
    pub(crate) checks_from: DateTime<Utc>,
    pub(crate) created_at: DateTime<Utc>,
}

/// Domains of a tenant (`$1`), and which of them.
macro_rules! select {
    ($which:tt $(, $value:expr)+ $(,)?) => {
        sqlx::query_as!(
            DomainRow,
            r#"select id, domain, status as "status: DomainStatus", selector, dkim_public, dkim_private,
                      second_selector, second_public, ownership_token, records,
                      verified_at, last_checked_at, degraded_since, checks_from, created_at
               from domains where tenant_id = $1 "# + $which,
            $($value),+
        )
    };
}

/// The tenant's domain of this name.
pub(crate) async fn by_name(db: &mut PgConnection, tenant: Uuid, domain: &str) -> sqlx::Result<Option<DomainRow>> {
    select!("and domain = $2", tenant, domain).fetch_optional(db).await
}

/// As [`by_name`], and the domain is not removed before the transaction ends.
pub(crate) async fn hold_by_name(db: &mut PgConnection, tenant: Uuid, domain: &str) -> sqlx::Result<Option<DomainRow>> {
    select!("and domain = $2 for key share", tenant, domain).fetch_optional(db).await
}

/// The tenant's domain with this id.
pub(crate) async fn by_id(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<DomainRow>> {
    select!("and id = $2", tenant, id).fetch_optional(db).await
}

/// As [`by_id`], and the domain is not changed before the transaction ends.
pub(crate) async fn lock(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<DomainRow>> {
    select!("and id = $2 for no key update", tenant, id).fetch_optional(db).await
}

/// Whether another tenant has proven the name or a domain above it.
pub(crate) async fn proven_elsewhere(db: &mut PgConnection, tenant: Uuid, domain: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"select domain_proven_elsewhere($2, $1) as "proven!""#, tenant, domain).fetch_one(db).await
}

/// Domains, newest first, one page. Served by `domains_newest`.
pub(crate) async fn list(db: &mut PgConnection, tenant: Uuid, page: &ListPage) -> sqlx::Result<Vec<DomainRow>> {
    select!(
        "and ($2::timestamptz is null or (created_at, id) < ($2, $3::uuid)) order by created_at desc, id desc limit $4",
        tenant,
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(db)
    .await
}
