//! Stores raw provider events, before they are announced.

use runtime::db::begin_for_tenant;
use serde_json::json;
use sqlx::PgPool;

use super::{check::Proof, connection::HookConnection};
use crate::pipeline::write_audit_log;

/// The result of storing an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreResult {
    /// It is new and committed.
    New,
    /// It was stored before; the provider has signed it again.
    Again,
    /// It was stored before, by the same request.
    Replay,
}

/// Stores an event once.
pub(super) async fn store(
    pool: &PgPool,
    connection: &HookConnection,
    proof: &Proof,
    raw: &[u8],
) -> sqlx::Result<StoreResult> {
    let mut tx = begin_for_tenant(pool, connection.tenant_id).await?;
    let inserted = sqlx::query!(
        "insert into inbound_events (tenant_id, id, connection_id, provider, dedupe_key, nonce, raw)
         values ($1, $2, $3, $4, $5, $6, $7) on conflict (tenant_id, connection_id, dedupe_key) do nothing",
        connection.tenant_id,
        schemas::new_id(),
        connection.id,
        connection.provider,
        proof.event,
        proof.request,
        raw,
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    if inserted == 1 {
        tx.commit().await?;
        return Ok(StoreResult::New);
    }
    // A statement of its own: it sees what the insert waited for.
    let is_replay = sqlx::query_scalar!(
        r#"select nonce = $4 as "is_replay!" from inbound_events
           where tenant_id = $1 and connection_id = $2 and dedupe_key = $3"#,
        connection.tenant_id,
        connection.id,
        proof.event,
        proof.request,
    )
    .fetch_optional(&mut *tx)
    .await?;
    tx.rollback().await?;
    Ok(if is_replay == Some(true) { StoreResult::Replay } else { StoreResult::Again })
}

/// Writes the confirmed subscription of a topic into the audit log.
pub(super) async fn audit_confirmed(pool: &PgPool, connection: &HookConnection, topic: &str) -> sqlx::Result<()> {
    let mut tx = begin_for_tenant(pool, connection.tenant_id).await?;
    let subject = vec![(connection.id.to_string(), json!({"topic": topic}))];
    write_audit_log(&mut tx, Some(connection.tenant_id), "provider", "provider.hook_confirmed", subject).await?;
    tx.commit().await
}
