//! Rows of `senders`.

use chrono::{DateTime, Utc};
use schemas::DomainStatus;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::pipeline::{error::ApiError, page::ListPage};

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

impl SenderRow {
    /// Whether the tenant switched it off.
    pub(crate) fn is_disabled(&self) -> bool {
        self.status == "disabled"
    }

    /// The state as callers see it: a sender waits for its domain while mail may not leave from there.
    pub(crate) fn shown_status(&self) -> &'static str {
        match (self.is_disabled(), self.domain_status.may_send()) {
            (true, _) => "disabled",
            (false, true) => "active",
            (false, false) => "pending_domain",
        }
    }
}

/// What is to be changed of a sender. `None`: stays; `Some(None)`: is cleared.
#[derive(Debug, Clone, Default)]
pub(crate) struct SenderChange {
    pub(crate) name: Option<String>,
    pub(crate) reply_to: Option<Option<String>>,
    pub(crate) physical_address: Option<Option<String>>,
    pub(crate) status: Option<String>,
}

impl SenderChange {
    /// Whether anything would be another than it is.
    pub(crate) fn alters(&self, row: &SenderRow) -> bool {
        self.name.as_ref().is_some_and(|name| *name != row.name)
            || self.reply_to.as_ref().is_some_and(|address| *address != row.reply_to)
            || self.physical_address.as_ref().is_some_and(|address| *address != row.physical_address)
            || self.status.as_ref().is_some_and(|status| *status != row.status)
    }

    /// The names of the fields that are given: for the audit log.
    pub(crate) fn fields(&self) -> Vec<&'static str> {
        let given = [
            ("name", self.name.is_some()),
            ("reply_to", self.reply_to.is_some()),
            ("physical_address", self.physical_address.is_some()),
            ("status", self.status.is_some()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }
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

/// Waits for the fences of the tenant that have looked, and lets none look before this transaction is committed. To be called before
/// [`lock_profile_address`]: a fence may wait for that row.
pub(crate) async fn close_gate(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    sqlx::query!("select close_gate($1)", tenant).execute(db).await.map(drop)
}

/// The sender with this address.
pub(crate) async fn by_email(db: &mut PgConnection, tenant: Uuid, email: &str) -> sqlx::Result<Option<SenderRow>> {
    sqlx::query_as!(
        SenderRow,
        r#"select s.id, s.email, s.name, s.reply_to, s.physical_address, s.status, s.is_default,
                  d.status as "domain_status: DomainStatus", s.created_at
           from senders s
           join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
           where s.tenant_id = $1 and s.email = $2"#,
        tenant,
        email,
    )
    .fetch_optional(db)
    .await
}

/// The sender with this id.
pub(crate) async fn get(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<SenderRow>> {
    sqlx::query_as!(
        SenderRow,
        r#"select s.id, s.email, s.name, s.reply_to, s.physical_address, s.status, s.is_default,
                  d.status as "domain_status: DomainStatus", s.created_at
           from senders s
           join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
           where s.tenant_id = $1 and s.id = $2"#,
        tenant,
        id,
    )
    .fetch_optional(db)
    .await
}

/// Changes a sender. Call under [`lock_profile_address`].
pub(crate) async fn change(db: &mut PgConnection, tenant: Uuid, id: Uuid, change: &SenderChange) -> sqlx::Result<()> {
    sqlx::query!(
        "update senders set
             name = coalesce($3, name),
             reply_to = case when $4 then $5 else reply_to end,
             physical_address = case when $6 then $7 else physical_address end,
             status = coalesce($8, status),
             updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        change.name,
        change.reply_to.is_some(),
        change.reply_to.clone().flatten(),
        change.physical_address.is_some(),
        change.physical_address.clone().flatten(),
        change.status,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Makes a sender the tenant's default. Call under [`lock_profile_address`].
///
/// # Errors
/// 409 `sender_disabled`.
pub(crate) async fn make_default(db: &mut PgConnection, tenant: Uuid, row: &SenderRow) -> Result<(), ApiError> {
    if row.is_disabled() {
        return Err(ApiError::conflict("sender_disabled").detail("a disabled sender cannot be the default"));
    }
    sqlx::query!(
        "update senders set is_default = false, updated_at = now() where tenant_id = $1 and is_default and id <> $2",
        tenant,
        row.id
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "update senders set is_default = true, updated_at = now() where tenant_id = $1 and id = $2",
        tenant,
        row.id
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Whether the tenant has another sender that is not disabled.
pub(crate) async fn another_is_active(db: &mut PgConnection, tenant: Uuid, than: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select exists (select from senders where tenant_id = $1 and id <> $2 and status <> 'disabled') as "found!""#,
        tenant,
        than
    )
    .fetch_one(db)
    .await
}

/// Whether a sender of the tenant has no postal address of its own.
pub(crate) async fn one_relies_on_profile_address(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select exists (
               select from senders where tenant_id = $1 and nullif(btrim(physical_address), '') is null
           ) as "found!""#,
        tenant
    )
    .fetch_one(db)
    .await
}

/// Removes a sender that nothing refers to: no campaign, sequence, mail or request that waits. `false`: something does; the
/// transaction can then only be rolled back.
pub(crate) async fn delete(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<bool> {
    let waits = sqlx::query_scalar!(
        r#"select exists (
               select from requests
               where announce_after is not null and tenant_id = $1 and kind = 'transactional' and payload ->> 'sender_id' = $2
           ) as "waits!""#,
        tenant,
        id.to_string(),
    )
    .fetch_one(&mut *db)
    .await?;
    if waits {
        return Ok(false);
    }
    match sqlx::query!("delete from senders where tenant_id = $1 and id = $2", tenant, id).execute(db).await {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(error)) if error.is_foreign_key_violation() => Ok(false),
        Err(error) => Err(error),
    }
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
pub(crate) async fn list(db: &mut PgConnection, tenant: Uuid, page: &ListPage) -> sqlx::Result<Vec<SenderRow>> {
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
