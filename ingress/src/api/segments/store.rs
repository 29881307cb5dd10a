//! Rows of `segments`.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::rule::SegmentRule;
use crate::pipeline::{ListPage, error::ApiError, page::Time, resource};

/// An audience by rule.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Segment")]
pub(super) struct SegmentView {
    pub(super) segment_id: Uuid,
    pub(super) name: String,
    pub(super) description: Option<String>,
    #[schemars(with = "SegmentRule")]
    pub(super) rule: Value,
    pub(super) created_at: Time,
    updated_at: Time,
}

resource!(SegmentView, "segment", "segments", segment_id);

/// Writers of a tenant's segments take turns: two changes at once could close a circle that neither sees.
pub(crate) async fn lock_all(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended('segments ' || $1::uuid::text, 0))", tenant)
        .fetch_one(db)
        .await
        .map(drop)
}

/// Segments, newest first, one page. Served by `segments_newest`.
pub(super) async fn list(db: &mut PgConnection, tenant: Uuid, page: &ListPage) -> sqlx::Result<Vec<SegmentView>> {
    sqlx::query_as!(
        SegmentView,
        "select id as segment_id, name, description, rule, created_at, updated_at from segments
         where tenant_id = $1 and deleted_at is null and ($2::timestamptz is null or (created_at, id) < ($2, $3))
         order by created_at desc, id desc limit $4",
        tenant,
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(db)
    .await
}

/// One segment.
pub(super) async fn get(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<SegmentView, ApiError> {
    sqlx::query_as!(
        SegmentView,
        "select id as segment_id, name, description, rule, created_at, updated_at from segments
         where tenant_id = $1 and id = $2 and deleted_at is null",
        tenant,
        id,
    )
    .fetch_optional(db)
    .await?
    .ok_or_else(|| ApiError::not_found("segment"))
}

/// 404 unless there is one; it is not deleted before this transaction ends.
pub(crate) async fn lock_for_use(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<(), ApiError> {
    sqlx::query_scalar!(
        "select id from segments where tenant_id = $1 and id = $2 and deleted_at is null for share",
        tenant,
        id,
    )
    .fetch_optional(db)
    .await?
    .map(drop)
    .ok_or_else(|| ApiError::not_found("segment"))
}

/// Locks a segment for its removal: a writer that is about to name it comes before, or finds it gone.
pub(super) async fn lock(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<(), ApiError> {
    sqlx::query_scalar!(
        "select id from segments where tenant_id = $1 and id = $2 and deleted_at is null for update",
        tenant,
        id,
    )
    .fetch_optional(db)
    .await?
    .map(drop)
    .ok_or_else(|| ApiError::not_found("segment"))
}

/// `false`: the name is taken.
pub(super) async fn insert(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    name: &str,
    description: Option<&str>,
    rule: &Value,
) -> sqlx::Result<bool> {
    sqlx::query!(
        "insert into segments (tenant_id, id, name, description, rule) values ($1, $2, $3, $4, $5)
         on conflict (tenant_id, name) where deleted_at is null do nothing",
        tenant,
        id,
        name,
        description,
        rule,
    )
    .execute(db)
    .await
    .map(|done| done.rows_affected() == 1)
}

/// `false`: the name is taken. Writers take turns, so no other writer takes it in between.
pub(super) async fn update(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    name: &str,
    description: Option<&str>,
    rule: &Value,
) -> sqlx::Result<bool> {
    sqlx::query!(
        "update segments s set name = $3, description = $4, rule = $5, updated_at = now()
         where tenant_id = $1 and id = $2
           and not exists (
               select from segments o where o.tenant_id = $1 and o.name = $3 and o.id <> $2 and o.deleted_at is null)",
        tenant,
        id,
        name,
        description,
        rule,
    )
    .execute(db)
    .await
    .map(|done| done.rows_affected() == 1)
}

/// Writes down which segments a rule names.
pub(super) async fn set_uses(db: &mut PgConnection, tenant: Uuid, id: Uuid, uses: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query!("delete from segment_uses where tenant_id = $1 and segment_id = $2", tenant, id)
        .execute(&mut *db)
        .await?;
    sqlx::query!(
        "insert into segment_uses (tenant_id, segment_id, uses) select $1, $2, unnest($3::uuid[])",
        tenant,
        id,
        uses,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The segments that name this one, also by way of others. Served by `segment_uses_by_used`.
pub(super) async fn users_of(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        r#"with recursive users as (
               select segment_id from segment_uses where tenant_id = $1 and uses = $2
               union
               select w.segment_id from users u join segment_uses w on w.tenant_id = $1 and w.uses = u.segment_id
           )
           select segment_id as "id!" from users"#,
        tenant,
        id,
    )
    .fetch_all(db)
    .await
}

/// Takes a segment away. The row stays: campaigns of the past name it.
pub(super) async fn delete(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<()> {
    set_uses(&mut *db, tenant, id, &[]).await?;
    sqlx::query!(
        "update segments set deleted_at = now(), updated_at = now() where tenant_id = $1 and id = $2",
        tenant,
        id,
    )
    .execute(db)
    .await
    .map(drop)
}
