//! The engine's own decisions about campaigns go into the audit log, like those of callers.

use runtime::{AuditRecord, audit};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

/// Writes a decision about a campaign. `detail` carries ids, codes and numbers only.
pub(super) async fn write(
    db: &mut PgConnection,
    tenant: Uuid,
    action: &str,
    campaign: Uuid,
    detail: Value,
) -> sqlx::Result<()> {
    let record = AuditRecord {
        tenant: Some(tenant),
        actor: "stage:audience",
        action,
        subject: campaign.to_string(),
        detail,
        ..AuditRecord::default()
    };
    audit::write(db, &[record]).await
}
