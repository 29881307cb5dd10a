//! Rows of `senders`.

use chrono::{DateTime, Utc};
use schemas::DomainStatus;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::act::page::Page;

/// A sender with the status of its domain.
#[derive(Debug, Clone)]
pub(crate) struct SenderRow {
    pub(crate) id: Uuid,
    pub(crate) email: String,
    pub(crate) name: String,
    pub(crate) reply_to: Option<String>,
    pub(crate) physical_address: Option<String>,
    pub(crate) status: String,
    pub(crate) is_default: bool,
    pub(crate) domain_status: DomainStatus,
    pub(crate) created_at: DateTime<Utc>,
}

/// A sender to store.
#[derive(Debug)]
pub(crate) struct NewSender<'a> {
    pub(crate) domain_id: Uuid,
    pub(crate) email: &'a str,
    pub(crate) name: &'a str,
    pub(crate) reply_to: Option<&'a str>,
    pub(crate) physical_address: Option<&'a str>,
}

/// What a mail needs to know of who sends it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readiness {
    pub(crate) id: Uuid,
    pub(crate) active: bool,
    pub(crate) domain_status: DomainStatus,
}

impl Readiness {
    /// Whether mail may leave in this sender's name.
    pub(crate) fn may_send(&self) -> bool {
        self.active && self.domain_status.may_send()
    }
}

/// The tenant's postal address, if it has one. Holds the tenant row, so that senders are stored one after the other: only one
/// becomes the default. Foreign keys to the tenant do not wait for this lock.
pub(crate) async fn lock_profile_address(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar!("select physical_address from tenants where id = $1 for no key update", tenant)
        .fetch_optional(db)
        .await
        .map(Option::flatten)
}

/// The sender with this address.
pub(crate) async fn id_by_email(db: &mut PgConnection, tenant: Uuid, email: &str) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!("select id from senders where tenant_id = $1 and email = $2", tenant, email)
        .fetch_optional(db)
        .await
}

/// Stores a sender; the tenant's first one becomes its default. Call under [`lock_profile_address`].
pub(crate) async fn insert(db: &mut PgConnection, tenant: Uuid, new: &NewSender<'_>) -> sqlx::Result<Uuid> {
    let id = schemas::new_id();
    sqlx::query!(
        "insert into senders (tenant_id, id, domain_id, email, name, reply_to, physical_address, is_default)
         values ($1, $2, $3, $4, $5, $6, $7,
                 not exists (select from senders where tenant_id = $1 and is_default))",
        tenant,
        id,
        new.domain_id,
        new.email,
        new.name,
        new.reply_to,
        new.physical_address,
    )
    .execute(db)
    .await?;
    Ok(id)
}

/// Senders, newest first, one page. Served by `senders_newest`.
pub(crate) async fn list(db: &mut PgConnection, tenant: Uuid, page: &Page) -> sqlx::Result<Vec<SenderRow>> {
    sqlx::query_as!(
        SenderRow,
        r#"select s.id, s.email, s.name, s.reply_to, s.physical_address, s.status, s.is_default,
                  d.status as "domain_status: DomainStatus", s.created_at
           from senders s
           join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
           where s.tenant_id = $1 and ($2::timestamptz is null or (s.created_at, s.id) < ($2, $3::uuid))
           order by s.created_at desc, s.id desc
           limit $4"#,
        tenant,
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(db)
    .await
}

/// Whether a sender, or without an id the tenant's default, can send. `None`: there is no such sender.
pub(crate) async fn readiness(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Option<Uuid>,
) -> sqlx::Result<Option<Readiness>> {
    sqlx::query_as!(
        Readiness,
        r#"select s.id as "id!", s.status = 'active' as "active!", d.status as "domain_status!: DomainStatus"
           from (
               select id, status, domain_id from senders where tenant_id = $1 and id = $2
               union all
               select id, status, domain_id from senders where $2::uuid is null and tenant_id = $1 and is_default
           ) s
           cross join lateral (select d.status from domains d where d.tenant_id = $1 and d.id = s.domain_id offset 0) d"#,
        tenant,
        id,
    )
    .fetch_optional(db)
    .await
}
