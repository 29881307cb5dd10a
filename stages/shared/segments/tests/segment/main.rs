//! Segments on a real Postgres: what the compiled rule selects is what the rule says.
#![allow(clippy::unwrap_used, missing_docs)]

mod agreement;
mod events;
mod model;
mod named;
mod statement;

use chrono::{DateTime, Utc};
use segments::{CompiledSegment, Rule, SegmentError};
use serde_json::Value;
use sqlx::QueryBuilder;
use stage_rig::{Rig, Tenant};
use uuid::Uuid;

/// The fields of every tenant here.
pub const FIELDS: [(&str, &str); 6] = [
    ("plan", "string"),
    ("seats", "number"),
    ("vip", "boolean"),
    ("renews", "date"),
    ("seen", "datetime"),
    ("langs", "string_list"),
];

/// A tenant with these fields.
pub async fn tenant(rig: &Rig) -> Tenant {
    let tenant = rig.tenant().await;
    for (key, kind) in FIELDS {
        sqlx::query("insert into fields (tenant_id, id, key, label, type) values ($1, $2, $3, $3, $4)")
            .bind(tenant.id)
            .bind(schemas::new_id())
            .bind(key)
            .bind(kind)
            .execute(&rig.pool)
            .await
            .unwrap();
    }
    tenant
}

/// A rig and such a tenant.
pub async fn rig() -> (Rig, Tenant) {
    let rig = Rig::new().await;
    let tenant = tenant(&rig).await;
    (rig, tenant)
}

/// Reads and resolves a rule.
pub async fn compile(rig: &Rig, tenant: &Tenant, rule: &Value) -> Result<CompiledSegment, SegmentError> {
    let mut db = rig.pool.acquire().await.unwrap();
    let definitions = segments::definitions(&mut db, tenant.id).await?;
    let parsed = Rule::parse(rule, "rule", &definitions).map_err(SegmentError::Invalid)?;
    segments::resolve(&mut db, tenant.id, &parsed, &definitions, None).await
}

/// The contacts that a rule selects, in the order of ids.
pub async fn select(rig: &Rig, tenant: &Tenant, rule: &Value) -> Vec<Uuid> {
    let compiled = compile(rig, tenant, rule).await.unwrap_or_else(|error| panic!("{error:?}: {rule}"));
    let mut query = QueryBuilder::new("select c.id from ");
    compiled.push(&mut query, tenant.id);
    query.push(" order by c.id");
    query.build_query_scalar().fetch_all(&rig.pool).await.unwrap_or_else(|error| panic!("{error}: {rule}"))
}

/// Writes a mail to a contact that was sent at this time.
pub async fn insert_sent(rig: &Rig, tenant: &Tenant, id: Uuid, contact: Uuid, at: DateTime<Utc>) {
    sqlx::query(
        "insert into sends (tenant_id, id, month, contact_id, state, decided_at, provider) values ($1, $2, $3, $4, 'sent', $5, 'smtp')",
    )
    .bind(tenant.id)
    .bind(id)
    .bind(schemas::month_of(id))
    .bind(contact)
    .bind(at)
    .execute(&rig.pool)
    .await
    .unwrap();
}

/// Stores a segment as the API would.
pub async fn store(rig: &Rig, tenant: &Tenant, rule: &Value) -> Uuid {
    let id = schemas::new_id();
    sqlx::query("insert into segments (tenant_id, id, name, rule) values ($1, $2, $2::text, $3)")
        .bind(tenant.id)
        .bind(id)
        .bind(rule)
        .execute(&rig.pool)
        .await
        .unwrap();
    id
}
