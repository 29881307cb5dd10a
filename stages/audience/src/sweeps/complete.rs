//! Completes campaigns of which nothing is open any more, and rolls their counters up.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep};
use sqlx::PgPool;

const INTERVAL: Duration = Duration::from_secs(1);
/// Campaigns completed at a time.
const AT_ONCE: i64 = 50;

pub(super) struct Complete {
    pool: PgPool,
}

impl Complete {
    pub(super) fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl Sweep for Complete {
    fn name(&self) -> &'static str {
        "complete"
    }

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let completed = sqlx::query_file!("queries/complete_campaigns.sql", AT_ONCE).fetch_all(&self.pool).await?;
        for campaign in &completed {
            tracing::info!(
                stage = "audience", tenant_id = %campaign.tenant_id, campaign_id = %campaign.id, status = campaign.status,
                "campaign completed"
            );
        }
        Ok(completed.len() as u64)
    }
}
