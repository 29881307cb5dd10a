//! Pings the platform's relay, for the platform's health. Does not ping tenants' own providers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use sqlx::PgPool;

use crate::provider::{PingFault, Provider};

/// Timeout of a ping. The relay's own timeouts are too long for a health check.
const PING_MAX: Duration = Duration::from_secs(15);

/// The sweep that pings the platform's relay and stores the result.
pub(crate) struct RelayPing {
    pool: PgPool,
    provider: Arc<dyn Provider>,
    interval: Duration,
}

impl RelayPing {
    pub fn new(pool: PgPool, provider: Arc<dyn Provider>, interval: Duration) -> Self {
        Self { pool, provider, interval }
    }
}

#[async_trait]
impl Sweep for RelayPing {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("ping_relay", self.interval).also_when_paused()
    }

    /// Stores the result of one ping. Always returns 0: the sweep repairs nothing.
    async fn sweep(&self) -> Result<u64, StageError> {
        let started = Instant::now();
        let answered = tokio::time::timeout(PING_MAX, self.provider.ping()).await.unwrap_or(Err(PingFault::Timeout));
        let latency_ms = i32::try_from(started.elapsed().as_millis()).unwrap_or(i32::MAX);
        sqlx::query!(
            "insert into provider_pings as p (provider, ok, error_code, latency_ms, pinged_at, ok_at)
             values ($1, $2, $3, $4, now(), case when $2 then now() end)
             on conflict (provider) do update
             set ok = excluded.ok, error_code = excluded.error_code, latency_ms = excluded.latency_ms,
                 pinged_at = excluded.pinged_at, ok_at = coalesce(excluded.ok_at, p.ok_at)",
            self.provider.kind().as_str(),
            answered.is_ok(),
            answered.err().map(PingFault::as_str),
            latency_ms
        )
        .execute(&self.pool)
        .await?;
        Ok(0)
    }
}
