//! Completes campaigns without open batches, and rolls their counters up.

use std::time::Duration;

use async_trait::async_trait;
use ledger::end_stopped::HAS_UNFINISHED_CAMPAIGNS;
use runner::{StageError, Sweep, SweepSchedule};
use sqlx::PgPool;
use uuid::Uuid;

const INTERVAL: Duration = Duration::from_secs(1);
/// Campaigns completed at a time.
const AT_ONCE: i64 = 50;

pub(super) struct CompleteCampaigns(pub(super) PgPool);

#[async_trait]
impl Sweep for CompleteCampaigns {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("complete_campaigns", INTERVAL).when(HAS_UNFINISHED_CAMPAIGNS).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.0.begin().await?;
        let campaigns = sqlx::query_file!("queries/lock_finished_campaigns.sql", AT_ONCE).fetch_all(&mut *tx).await?;
        if campaigns.is_empty() {
            return Ok(0);
        }
        // Checked again in a statement of its own: its snapshot is taken under the locks.
        let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = campaigns.into_iter().map(|row| (row.tenant_id, row.id)).unzip();
        let completed = sqlx::query_file!("queries/complete_campaigns.sql", &tenants, &ids).fetch_all(&mut *tx).await?;
        tx.commit().await?;
        for campaign in &completed {
            tracing::info!(
                stage = "audience", tenant_id = %campaign.tenant_id, campaign_id = %campaign.id, status = campaign.status,
                "campaign completed"
            );
        }
        Ok(completed.len() as u64)
    }
}
