//! Pausing tenants: at the fence, in the ledger.

use anyhow::Context;
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::outcome;
use crate::{
    invocation::{self, AuditEntry},
    operator::CommandOutput,
};

/// Pauses or resumes a tenant. When a pause returns, nothing of the tenant is fenced any more; what was put aside is announced by the
/// audience stage after a resumption.
pub(super) async fn set_paused(db: &mut PgConnection, id: Uuid, paused: bool) -> anyhow::Result<CommandOutput> {
    if paused {
        block_fences(db, id).await?;
    }
    let was = lock(db, id).await?;
    if was != paused {
        sqlx::query!(
            "update tenants set paused_at = case when $2 then now() end, pause_actor = case when $2 then $3::text end,
                                pause_reason = case when $2 then $4::text end, resuming = not $2, updated_at = now(),
                                pauses = case when $2 then pauses
                                         else pauses + tstzmultirange(tstzrange(paused_at, greatest(paused_at, now()))) end
             where id = $1",
            id,
            paused,
            invocation::actor(),
            invocation::reason(),
        )
        .execute(&mut *db)
        .await?;
    }
    let (subject, outcome) = (&id.to_string(), outcome(was, paused));
    let action = if paused { "tenant.pause" } else { "tenant.resume" };
    AuditEntry { tenant: Some(id), action, subject, outcome: Some(outcome), detail: None }.audit(db).await?;
    Ok(CommandOutput::done(json!({"tenant": id, "paused": paused, "was_paused": was}), outcome))
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
