//! How a process's Postgres connections are used: how many, and how long one waits for one.

use std::time::{Duration, Instant};

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::{Gauge, Histogram};

/// How often the pool is looked at, and a connection asked for. One a second costs nothing and sees any shortage that lasts.
const EVERY: Duration = Duration::from_secs(1);

/// Tells how a pool is used until shut down. `role` is what the metrics call it.
pub async fn watch(pool: PgPool, role: &'static str, shutdown: CancellationToken) {
    Gauge::PoolConnectionsMax.set(f64::from(pool.options().get_max_connections()), [("role", role)]);
    while shutdown.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        let size = f64::from(pool.size());
        let idle = u32::try_from(pool.num_idle()).map_or(size, f64::from);
        Gauge::PoolConnections.set(idle, [("role", role), ("state", "idle")]);
        Gauge::PoolConnections.set((size - idle).max(0.0), [("role", role), ("state", "busy")]);
        if let Some(waited) = shutdown.run_until_cancelled(wait(&pool)).await.flatten() {
            Histogram::PoolWaitSeconds.record(waited.as_secs_f64(), [("role", role)]);
        }
    }
}

/// How long a connection was waited for; `None` when Postgres itself did not give one.
async fn wait(pool: &PgPool) -> Option<Duration> {
    let asked = Instant::now();
    match pool.acquire().await {
        Ok(_) | Err(sqlx::Error::PoolTimedOut) => Some(asked.elapsed()),
        Err(_) => None,
    }
}
