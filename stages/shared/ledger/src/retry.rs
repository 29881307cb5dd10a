//! Retries failed sends of a campaign.

use runtime::column;
use schemas::{SendId, month_of};
use sqlx::PgConnection;
use uuid::Uuid;

/// The result of a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retried {
    /// Sends that are queued again.
    pub queued: i64,
    /// Those of them that the quota has not counted yet: they failed before a fence.
    pub unmetered: i64,
    /// Sends that stay failed: another attempt would fail as well.
    pub skipped: i64,
}

/// Queues failed sends with these reasons again. The campaign is locked.
pub async fn retry_failed(
    db: &mut PgConnection,
    tenant: Uuid,
    campaign: Uuid,
    reasons: &[&str],
) -> sqlx::Result<Retried> {
    // Lock order of the ledger: batches before sends, by id. The next statement reads the locked rows.
    let batches = sqlx::query_scalar!(
        "select id from batches where tenant_id = $1 and campaign_id = $2 and failed + expired > 0 order by id for update",
        tenant,
        campaign
    )
    .fetch_all(&mut *db)
    .await?;
    sqlx::query_file_as!(
        Retried,
        "queries/retry/retry_failed.sql",
        tenant,
        &batches,
        &column(&batches, |batch| SendId::last_of(*batch)),
        &column(&batches, |batch| month_of(*batch)),
        reasons as &[&str],
    )
    .fetch_one(db)
    .await
}
