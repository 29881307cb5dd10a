//! Rows of `domains`.

use chrono::{DateTime, Utc};
use schemas::DomainStatus;
use serde_json::Value;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::pipeline::{page::ListPage, tenant};

/// The index that lets only one tenant have a proven name.
const PROVEN_ONCE: &str = "domains_proven_once";

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
    pub(crate) created_at: DateTime<Utc>,
}

/// The key and tokens of a new domain.
#[derive(Debug)]
pub(crate) struct NewDomain<'a> {
    pub(crate) domain: &'a str,
    pub(crate) selector: &'a str,
    pub(crate) dkim_private: &'a [u8],
    pub(crate) dkim_public: &'a str,
    pub(crate) second_selector: &'a str,
    pub(crate) second_private: &'a [u8],
    pub(crate) second_public: &'a str,
    pub(crate) ownership_token: &'a str,
}

/// Domains of a tenant (`$1`), and which of them.
macro_rules! select {
    ($which:tt $(, $value:expr)+ $(,)?) => {
        sqlx::query_as!(
            DomainRow,
            r#"select id, domain, status as "status: DomainStatus", selector, dkim_public, dkim_private,
                      second_selector, second_public, ownership_token, records,
                      verified_at, last_checked_at, degraded_since, created_at
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

/// The domain's status and since when it is degraded, held until the transaction ends.
pub(crate) async fn lock(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
) -> sqlx::Result<Option<(DomainStatus, Option<DateTime<Utc>>)>> {
    let row = sqlx::query!(
        r#"select status as "status: DomainStatus", degraded_since
           from domains where tenant_id = $1 and id = $2 for no key update"#,
        tenant,
        id,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|row| (row.status, row.degraded_since)))
}

/// Whether another tenant has proven the name or a domain above it.
pub(crate) async fn proven_elsewhere(db: &mut PgConnection, tenant: Uuid, domain: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"select domain_proven_elsewhere($2, $1) as "proven!""#, tenant, domain).fetch_one(db).await
}

/// How many domains a tenant has, and how many of them wait for their proof. Locks the tenant's row, so that they are claimed one after the
/// other.
pub(crate) async fn count(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<(i64, i64)> {
    tenant::lock_row(db, tenant).await?;
    let counted = sqlx::query!(
        r#"select count(*) as "domains!", count(*) filter (where status = 'pending') as "pending!"
           from domains where tenant_id = $1"#,
        tenant
    )
    .fetch_one(db)
    .await?;
    Ok((counted.domains, counted.pending))
}

/// Stores a domain. `false`: the tenant has one of this name already (another request was first).
pub(crate) async fn insert(db: &mut PgConnection, tenant: Uuid, new: &NewDomain<'_>) -> sqlx::Result<bool> {
    sqlx::query!(
        "insert into domains (tenant_id, id, domain, selector, dkim_private, dkim_public, ownership_token,
                              second_selector, second_private, second_public)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
         on conflict (tenant_id, domain) do nothing",
        tenant,
        schemas::new_id(),
        new.domain,
        new.selector,
        new.dkim_private,
        new.dkim_public,
        new.ownership_token,
        new.second_selector,
        new.second_private,
        new.second_public,
    )
    .execute(db)
    .await
    .map(|done| done.rows_affected() == 1)
}

/// Removes a domain to which no sender refers. `false`: something refers to it; the transaction can then only be rolled back.
pub(crate) async fn delete(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<bool> {
    match sqlx::query!("delete from domains where tenant_id = $1 and id = $2", tenant, id).execute(db).await {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(error)) if error.is_foreign_key_violation() => Ok(false),
        Err(error) => Err(error),
    }
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

/// What a check found.
#[derive(Debug)]
pub(crate) struct DomainCheck<'a> {
    /// What it makes of the domain.
    pub(crate) status: DomainStatus,
    /// What it saw, record by record.
    pub(crate) records: &'a Value,
    /// When the next one is due.
    pub(crate) next_check_at: Option<DateTime<Utc>>,
    /// Whether the second DKIM key is published; `None` if the DNS did not say.
    pub(crate) second_published: Option<bool>,
}

/// Stores what a check saw and what it makes of the domain. `false`: another tenant has proven the name meanwhile.
/// After `false` the transaction is aborted and can only be rolled back.
pub(crate) async fn record_check(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    check: &DomainCheck<'_>,
) -> sqlx::Result<bool> {
    let written = sqlx::query!(
        "update domains
         set status = $3,
             records = $4,
             last_checked_at = now(),
             next_check_at = $5,
             second_published = coalesce($6, second_published),
             verified_at = case when $3 = 'verified' then coalesce(verified_at, now()) else verified_at end,
             degraded_since = case when $3 = 'degraded' then coalesce(degraded_since, now())
                                   when $3 = 'verified' then null else degraded_since end,
             updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        check.status.as_str(),
        check.records,
        check.next_check_at,
        check.second_published,
    )
    .execute(db)
    .await;
    match written {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(error)) if error.constraint() == Some(PROVEN_ONCE) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes domains whose check is due, of all tenants, for ten minutes. Served by `domains_to_check`.
pub(crate) async fn take_due(db: &PgPool, at_most: i32) -> sqlx::Result<Vec<(Uuid, Uuid)>> {
    let rows = sqlx::query!(r#"select tenant_id as "tenant_id!", id as "id!" from take_domains_to_check($1)"#, at_most)
        .fetch_all(db)
        .await?;
    Ok(rows.into_iter().map(|row| (row.tenant_id, row.id)).collect())
}

/// Says when a domain is looked at again, and nothing else.
pub(crate) async fn check_again(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    next_check_at: Option<DateTime<Utc>>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update domains set next_check_at = $3, last_checked_at = now() where tenant_id = $1 and id = $2",
        tenant,
        id,
        next_check_at,
    )
    .execute(db)
    .await
    .map(drop)
}
