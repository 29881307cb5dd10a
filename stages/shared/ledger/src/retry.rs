//! Failed sends of a campaign, owed again.

use schemas::{SendId, month_of};
use sqlx::PgConnection;
use uuid::Uuid;

/// What became of failed sends that were to be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retried {
    /// Back in the queue.
    pub queued: i64,
    /// Those of them that the quota has not counted yet: they failed before anything was handed over.
    pub unmetered: i64,
    /// Left failed: another attempt would fail, too.
    pub skipped: i64,
}

/// Puts failed sends with these reasons back into the queue. The campaign is held.
///
/// # Errors
/// When Postgres is away.
pub async fn retry_failed(
    db: &mut PgConnection,
    tenant: Uuid,
    campaign: Uuid,
    reasons: &[&str],
) -> sqlx::Result<Retried> {
    // Batches before sends, in order: as everybody locks them. What is locked is read in the next statement.
    let batches = sqlx::query_scalar!(
        "select id from batches where tenant_id = $1 and campaign_id = $2 and failed + expired > 0 order by id for update",
        tenant,
        campaign
    )
    .fetch_all(&mut *db)
    .await?;
    let last: Vec<Uuid> = batches.iter().map(|batch| SendId::last_of(*batch)).collect();
    let months: Vec<_> = batches.iter().map(|batch| month_of(*batch)).collect();
    sqlx::query_file_as!(
        Retried,
        "queries/retry/retry_failed.sql",
        tenant,
        &batches,
        &last,
        &months,
        reasons as &[&str],
    )
    .fetch_one(db)
    .await
}
