//! Hands batches of campaigns on to compliance, tenants in turn, no more than the backlog at a time. A tenant with a connection of its
//! own has a backlog of its own: what its provider does not take stands in nobody else's way.
//!
//! Only the bulk lane has batches that wait: priority sends are announced as they are made.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep};
use runtime::Bus;
use schemas::{Lane, ids::BATCH_MAX};
use sqlx::PgPool;

use crate::{
    Settings,
    announce::{self, RungBatch},
};

const INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct HandOn {
    pool: PgPool,
    bus: Bus,
    backlog: i64,
    connection_backlog: i64,
    reannounce: Duration,
}

impl HandOn {
    pub(super) fn new(pool: PgPool, bus: Bus, settings: &Settings) -> Self {
        Self {
            pool,
            bus,
            backlog: settings.audience_backlog.into(),
            connection_backlog: settings.audience_connection_backlog.into(),
            reannounce: settings.audience_reannounce,
        }
    }

    /// Marks the next batches announced, in a transaction of its own.
    async fn take(&self) -> Result<Vec<RungBatch>, StageError> {
        let mut tx = self.pool.begin().await?;
        // One process at a time, so that two do not fill the same room; the others find nothing to do. Whether anything waits is asked
        // first: the statement that hands on takes milliseconds to plan, ten times a second.
        let found = sqlx::query_file!("queries/hand_on_room.sql", self.connection_backlog).fetch_one(&mut *tx).await?;
        let room = found.in_flight.map_or(0, |in_flight| self.backlog - in_flight).max(0);
        if room == 0 && !found.apart {
            return Ok(Vec::new());
        }
        let rows = sqlx::query_file!(
            "queries/hand_on.sql",
            room,
            // No campaign can get more batches than this, so no more of each are looked at.
            room.max(self.connection_backlog) / BATCH_MAX as i64 + 1,
            self.reannounce.as_secs_f64(),
            self.connection_backlog,
        )
        .fetch_all(&mut *tx)
        .await?;
        tx.commit().await?;
        let rung = rows.into_iter().map(|row| RungBatch {
            tenant_id: row.tenant_id,
            batch_id: row.id,
            lane: Lane::Bulk,
            announcement: row.announcement,
        });
        Ok(rung.collect())
    }
}

#[async_trait]
impl Sweep for HandOn {
    fn name(&self) -> &'static str {
        "hand_on"
    }

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let taken = self.take().await?;
        announce::batches(&self.pool, &self.bus, &taken).await?;
        Ok(taken.len() as u64)
    }
}
