//! Ends the open sends of a campaign that was cancelled, or whose window closed and that must not be mailed late. What is fenced
//! is left to the worker that sends it.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::Counter;
use schemas::{SendId, SkipReason};
use sqlx::PgPool;
use uuid::Uuid;

use crate::hours::random_shard;

/// SQL that is true while a campaign is under way, or cancelled with sends that are still open. The sweeps over such campaigns wait for it.
pub const HAS_UNFINISHED_CAMPAIGNS: &str =
    "exists (select from campaigns where status in ('sending', 'cancelled') and completed_at is null)";

const INTERVAL: Duration = Duration::from_millis(500);
/// Batches per transaction: 10,000 sends, some tens of milliseconds.
const AT_ONCE: i64 = 20;

/// Ends the open sends of stopped campaigns.
pub struct EndStopped {
    pool: PgPool,
    shard: i16,
}

impl EndStopped {
    /// The sweep.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self { pool, shard: random_shard() }
    }
}

#[async_trait]
impl Sweep for EndStopped {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("end_stopped_campaigns", INTERVAL).when(HAS_UNFINISHED_CAMPAIGNS).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.pool.begin().await?;
        let batches = sqlx::query!(
            r#"select b.tenant_id, b.id, b.month, c.status = 'sending' as "missed!"
               from campaigns c
               join batches b on b.tenant_id = c.tenant_id and b.campaign_id = c.id
               where (c.status = 'cancelled' or c.status = 'sending' and c.on_miss = 'skip' and c.closes_at <= now())
                 and c.completed_at is null and b.state <> 'done' and b.queued + b.deferred > 0
               order by b.tenant_id, b.id
               limit $1
               for update of b skip locked"#,
            AT_ONCE,
        )
        .fetch_all(&mut *tx)
        .await?;
        if batches.is_empty() {
            return Ok(0);
        }
        let tenants: Vec<Uuid> = batches.iter().map(|batch| batch.tenant_id).collect();
        let ids: Vec<Uuid> = batches.iter().map(|batch| batch.id).collect();
        let last: Vec<Uuid> = ids.iter().map(|id| SendId::last_of(*id)).collect();
        let months: Vec<_> = batches.iter().map(|batch| batch.month).collect();
        let missed: Vec<bool> = batches.iter().map(|batch| batch.missed).collect();
        let closed =
            sqlx::query_file!("queries/stop/end_sends.sql", &tenants, &ids, &last, &months, &missed, self.shard)
                .fetch_one(&mut *tx)
                .await?;
        tx.commit().await?;
        let count = |sends: i64| u64::try_from(sends).unwrap_or(0);
        Counter::SendsTotal.add(count(closed.cancelled), [("lane", "bulk"), ("state", "cancelled")]);
        Counter::SendsTotal.add(count(closed.missed), [("lane", "bulk"), ("state", "skipped")]);
        let reason = SkipReason::WindowMissed.as_str();
        Counter::SendsWithheldTotal.add(count(closed.missed), [("stage", "audience"), ("reason", reason)]);
        Ok(batches.len() as u64)
    }
}
