//! The engine's own decisions about campaigns go into the audit log, like those of callers.

use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

/// Writes a decision about a campaign down. `detail` carries ids, codes and numbers only.
pub(super) async fn write(
    db: &mut PgConnection,
    tenant: Uuid,
    action: &str,
    campaign: Uuid,
    detail: Value,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into audit_log (id, tenant_id, actor, action, subject, detail) values ($1, $2, 'stage:audience', $3, $4, $5)",
        schemas::new_id(),
        tenant,
        action,
        campaign.to_string(),
        detail,
    )
    .execute(db)
    .await
    .map(drop)
}
