//! Pausing tenants: at the fence, in the ledger.

use anyhow::Context;
use serde_json::json;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::{
    invocation::{self, AuditEntry},
    operator,
};

/// Pauses a tenant; when this returns, nothing of it is fenced any more.
pub(super) async fn pause(pool: &PgPool, id: Uuid, reason: Option<&str>) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    block_fences(&mut tx, id).await?;
    let was = lock(&mut tx, id).await?;
    if !was {
        sqlx::query!(
            "update tenants set paused_at = now(), pause_actor = $2, pause_reason = $3, resuming = false, updated_at = now() where id = $1",
            id,
            invocation::actor(),
            reason,
        )
        .execute(&mut *tx)
        .await?;
    }
    let (subject, outcome) = (id.to_string(), Some(if was { "was paused already" } else { "paused" }));
    let entry = AuditEntry {
        tenant: Some(id),
        action: "tenant.pause",
        subject: &subject,
        reason,
        outcome,
        ..AuditEntry::default()
    };
    entry.audit(&mut tx).await?;
    tx.commit().await?;
    operator::print_result(&json!({"tenant": id, "paused": true, "was_paused": was}), outcome.unwrap_or_default());
    Ok(())
}

/// Resumes a tenant. What was put aside is woken by the audience stage.
pub(super) async fn resume(pool: &PgPool, id: Uuid, reason: Option<&str>) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let was = lock(&mut tx, id).await?;
    if was {
        sqlx::query!(
            "update tenants set paused_at = null, pause_actor = null, pause_reason = null, resuming = true, updated_at = now() where id = $1",
            id
        )
        .execute(&mut *tx)
        .await?;
    }
    let (subject, outcome) = (id.to_string(), Some(if was { "resumed" } else { "was not paused" }));
    let entry = AuditEntry {
        tenant: Some(id),
        action: "tenant.resume",
        subject: &subject,
        reason,
        outcome,
        ..AuditEntry::default()
    };
    entry.audit(&mut tx).await?;
    tx.commit().await?;
    operator::print_result(&json!({"tenant": id, "paused": false, "was_paused": was}), outcome.unwrap_or_default());
    Ok(())
}

/// Holds the tenant's row; answers whether it is paused.
async fn lock(db: &mut PgConnection, id: Uuid) -> anyhow::Result<bool> {
    sqlx::query_scalar!(r#"select paused_at is not null as "paused!" from tenants where id = $1 for no key update"#, id)
        .fetch_optional(db)
        .await?
        .context("no such tenant")
}

/// Waits for the fences of a tenant that have looked, and lets none look before this transaction is committed. To be called before
/// the tenant's row is locked: a fence may wait for that.
pub async fn block_fences(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    sqlx::query!("select close_gate($1)", tenant).execute(db).await.map(drop)
}
