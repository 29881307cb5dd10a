//! Rings again for batches that were handed on and are still open, and for resting ones whose deferred sends are due.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep};
use runtime::Bus;
use schemas::Lane;
use sqlx::PgPool;

use crate::{
    Settings,
    announce::{self, RungBatch},
};

const INTERVAL: Duration = Duration::from_secs(1);
/// Batches rung for at a time.
const AT_ONCE: i64 = 256;

pub(super) struct Batches {
    pool: PgPool,
    bus: Bus,
    reannounce: Duration,
}

impl Batches {
    pub(super) fn new(pool: PgPool, bus: Bus, settings: &Settings) -> Self {
        Self { pool, bus, reannounce: settings.audience_reannounce }
    }
}

#[async_trait]
impl Sweep for Batches {
    fn name(&self) -> &'static str {
        "batches"
    }

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let rows = sqlx::query_file!("queries/ring_batches.sql", AT_ONCE, self.reannounce.as_secs_f64())
            .fetch_all(&self.pool)
            .await?;
        let found = rows.len() as u64;
        let rung: Vec<_> = rows
            .into_iter()
            .filter(|row| row.state == "announced")
            .map(|row| RungBatch {
                tenant_id: row.tenant_id,
                batch_id: row.id,
                lane: row.lane,
                announcement: row.announcement,
            })
            .collect();
        announce::batches(&self.pool, &self.bus, &rung).await?;
        Ok(found)
    }
}
