//! Rows of `senders`.

use schemars::JsonSchema;
use schemas::DomainStatus;
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::pipeline::{
    error::ApiError,
    page::{ListPage, Time},
    resource,
};

/// An identity that the tenant sends from.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Sender")]
pub(crate) struct SenderIdentity {
    #[serde(rename = "sender_id")]
    pub(crate) id: Uuid,
    pub(crate) email: String,
    pub(crate) name: String,
    pub(crate) reply_to: Option<String>,
    pub(crate) physical_address: Option<String>,
    /// `pending_domain`: its domain may not send now. `disabled`: switched off.
    #[schemars(extend("enum" = ["active", "pending_domain", "disabled"]))]
    pub(crate) status: String,
    pub(crate) is_default: bool,
    pub(crate) domain_status: DomainStatus,
    pub(crate) created_at: Time,
}

resource!(SenderIdentity, "sender", "senders", id);

impl SenderIdentity {
    /// Whether the tenant switched it off.
    pub(crate) fn is_disabled(&self) -> bool {
        self.status == "disabled"
    }

    /// The sender as callers see it: it waits for its domain while mail may not leave from there.
    pub(super) fn shown(self) -> Self {
        let waits = !self.is_disabled() && !self.domain_status.may_send();
        if waits { Self { status: "pending_domain".to_owned(), ..self } } else { self }
    }
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

    /// Why mail may not leave in this sender's name.
    pub(crate) fn why_not(&self) -> &'static str {
        match (self.active, self.domain_status) {
            (false, _) => "the sender is disabled: PATCH its status to active",
            (true, DomainStatus::Suspended) => "the operator suspended the sender's domain",
            (true, _) => "the sender's domain is not verified",
        }
    }
}

/// Refuses mail of a tenant that is suspended, and of a sender in whose name none may leave.
///
/// # Errors
/// 403 `tenant_suspended`, 422 `sender_missing_verified_domain`.
pub(crate) async fn require_ready(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<(), ApiError> {
    let active = sqlx::query_scalar!(r#"select status = 'active' as "active!" from tenants where id = $1"#, tenant);
    // What a suspended tenant owes is skipped for good: a campaign that is launched now would be lost.
    if !active.fetch_one(&mut *db).await? {
        return Err(ApiError::forbidden("tenant_suspended").detail("the operator suspended the tenant"));
    }
    match readiness(db, tenant, Some(id)).await? {
        Some(sender) if sender.may_send() => Ok(()),
        found => {
            let why = found.map_or("there is no such sender", |sender| sender.why_not());
            Err(ApiError::unprocessable("sender_missing_verified_domain").detail(why))
        }
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

/// Senders of a tenant (`$1`), and which of them.
macro_rules! select {
    ($which:tt $(, $value:expr)+ $(,)?) => {
        sqlx::query_as!(
            SenderIdentity,
            r#"select s.id, s.email, s.name, s.reply_to, s.physical_address, s.status, s.is_default,
                      d.status as "domain_status: DomainStatus", s.created_at
               from senders s
               join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
               where s.tenant_id = $1 "# + $which,
            $($value),+
        )
    };
}

pub(super) async fn by_email(db: &mut PgConnection, tenant: Uuid, email: &str) -> sqlx::Result<Option<SenderIdentity>> {
    select!("and s.email = $2", tenant, email).fetch_optional(db).await
}

/// The sender with this id.
///
/// # Errors
/// 404 `sender_not_found`.
pub(crate) async fn get(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<SenderIdentity, ApiError> {
    let found = select!("and s.id = $2", tenant, id).fetch_optional(db).await?;
    found.ok_or_else(|| ApiError::not_found("sender"))
}

/// 404 `sender_profile_not_found` unless there is such a sender, which is not removed before this transaction ends.
pub(crate) async fn lock_for_use(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<(), ApiError> {
    sqlx::query_scalar!("select id from senders where tenant_id = $1 and id = $2 for key share", tenant, id)
        .fetch_optional(db)
        .await?
        .map(drop)
        .ok_or_else(|| ApiError::not_found("sender_profile"))
}

/// Makes a sender the tenant's default. Call under [`lock_profile_address`].
///
/// # Errors
/// 409 `sender_disabled`.
pub(crate) async fn make_default(db: &mut PgConnection, tenant: Uuid, row: &SenderIdentity) -> Result<(), ApiError> {
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

/// Whether a sender of the tenant has no postal address of its own.
pub(crate) async fn one_relies_on_profile_address(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select exists (
               select from senders where tenant_id = $1 and postal_address(physical_address, null) is null
           ) as "found!""#,
        tenant
    )
    .fetch_one(db)
    .await
}

/// Removes a sender that nothing refers to: no campaign, sequence, mail or request that waits. `false`: something does; the
/// transaction can then only be rolled back.
pub(super) async fn delete(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<bool> {
    // A request that accepts mail from the sender holds it until its row is there to be seen.
    sqlx::query_scalar!("select id from senders where tenant_id = $1 and id = $2 for update", tenant, id)
        .fetch_optional(&mut *db)
        .await?;
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

/// Senders, newest first, one page. Served by `senders_newest`.
pub(super) async fn list(db: &mut PgConnection, tenant: Uuid, page: &ListPage) -> sqlx::Result<Vec<SenderIdentity>> {
    select!(
        "and ($2::timestamptz is null or (s.created_at, s.id) < ($2, $3::uuid)) order by s.created_at desc, s.id desc limit $4",
        tenant,
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(db)
    .await
}

/// Whether a sender, or without an id the tenant's default, can send. `None`: there is no such sender; one that there is is not removed
/// before this transaction ends.
pub(crate) async fn readiness(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Option<Uuid>,
) -> sqlx::Result<Option<Readiness>> {
    // The id is chosen in a select of its own: row security keeps a `coalesce` out of the condition of an index.
    sqlx::query_as!(
        Readiness,
        r#"select s.id, s.status = 'active' as "active!", d.status as "domain_status: DomainStatus"
           from senders s
           cross join lateral (select d.status from domains d where d.tenant_id = $1 and d.id = s.domain_id offset 0) d
           where s.tenant_id = $1
             and s.id = (select coalesce($2::uuid, (select n.id from senders n where n.tenant_id = $1 and n.is_default)))
           for key share of s"#,
        tenant,
        id,
    )
    .fetch_optional(db)
    .await
}
