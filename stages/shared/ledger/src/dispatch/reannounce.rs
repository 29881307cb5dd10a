//! Announces batches again that are still open, resting batches whose deferred sends are due, and timed batches whose time has come.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{Bus, plans::PreparedPool};
use schemas::Lane;
use sqlx::PgPool;

use super::{AnnouncedBatch, PRIORITY_REANNOUNCE, announce};

const INTERVAL: Duration = Duration::from_secs(1);
/// Batches announced at a time.
const AT_ONCE: i64 = 256;

/// Announces batches again that are still open.
pub struct ReannounceBatches {
    pool: PgPool,
    by_key: PreparedPool,
    bus: Bus,
    reannounce: Duration,
}

impl ReannounceBatches {
    /// `reannounce`: the first pause, of priority batches at most [`PRIORITY_REANNOUNCE`]; it doubles each time, up to 30 times this.
    #[must_use]
    pub fn new(pool: PgPool, by_key: PreparedPool, bus: Bus, reannounce: Duration) -> Self {
        Self { pool, by_key, bus, reannounce }
    }
}

#[async_trait]
impl Sweep for ReannounceBatches {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("reannounce", INTERVAL).when(
            "exists (select from batches where lane in ('priority', 'bulk') and state in ('announced', 'resting', 'timed'))",
        )
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut db = self.by_key.take().await?;
        let rows = sqlx::query_file!(
            "queries/dispatch/reannounce_batches.sql",
            AT_ONCE,
            self.reannounce.as_secs_f64(),
            self.reannounce.min(PRIORITY_REANNOUNCE).as_secs_f64(),
        )
        .fetch_all(&mut *db)
        .await?;
        db.put_back();
        let found = rows.len() as u64;
        let announced: Vec<_> = rows
            .into_iter()
            .filter(|row| row.state == "announced")
            .map(|row| AnnouncedBatch {
                tenant_id: row.tenant_id,
                batch_id: row.id,
                lane: row.lane,
                announcement: row.announcement,
            })
            .collect();
        announce::batches(&self.pool, &self.bus, &announced).await?;
        Ok(found)
    }
}
