//! How a process's Postgres connections are used: how many, and how long one waits for one.

use std::time::{Duration, Instant};

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::{
    Gauge, Histogram,
    plans::{PreparedConnection, PreparedPool},
};

/// How often the pool is looked at, and a connection asked for when none is idle. One a second sees any shortage that lasts.
const EVERY: Duration = Duration::from_secs(1);

/// Connections to be watched.
#[derive(Debug, Clone)]
pub enum Watched {
    /// Of a pool.
    Pool(PgPool),
    /// Kept with their plans.
    Kept(PreparedPool),
}

impl Watched {
    /// The limit of connections, those that are open, and how many of these are idle.
    fn counts(&self) -> (u32, u32, u32) {
        match self {
            Self::Pool(pool) => {
                let size = pool.size();
                (pool.options().get_max_connections(), size, u32::try_from(pool.num_idle()).unwrap_or(size))
            }
            Self::Kept(kept) => kept.counts(),
        }
    }

    /// Whether one could be taken without a wait: bulk work is given only a part of those that are kept.
    fn has_idle(&self) -> bool {
        match self {
            Self::Pool(pool) => pool.num_idle() > 0,
            Self::Kept(kept) => kept.has_idle(),
        }
    }

    /// Takes one and gives it back.
    async fn try_one(&self) -> sqlx::Result<()> {
        match self {
            Self::Pool(pool) => pool.acquire().await.map(drop),
            Self::Kept(kept) => kept.take().await.map(PreparedConnection::put_back),
        }
    }
}

/// Tells how connections are used until shut down. `role` is what the metrics call them.
pub async fn watch(connections: Watched, role: &'static str, shutdown: CancellationToken) {
    while shutdown.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        let (most, size, idle) = connections.counts();
        Gauge::PoolConnectionsMax.set(f64::from(most), [("role", role)]);
        Gauge::PoolConnections.set(f64::from(idle), [("role", role), ("state", "idle")]);
        Gauge::PoolConnections.set(f64::from(size.saturating_sub(idle)), [("role", role), ("state", "busy")]);
        // With an idle connection there is no wait.
        if connections.has_idle() {
            Histogram::PoolWaitSeconds.record(0.0, [("role", role)]);
            continue;
        }
        if let Some(waited) = shutdown.run_until_cancelled(wait(&connections)).await.flatten() {
            Histogram::PoolWaitSeconds.record(waited.as_secs_f64(), [("role", role)]);
        }
    }
}

/// How long a connection was waited for; `None` when Postgres itself did not give one.
async fn wait(connections: &Watched) -> Option<Duration> {
    let asked = Instant::now();
    match connections.try_one().await {
        Ok(()) | Err(sqlx::Error::PoolTimedOut) => Some(asked.elapsed()),
        Err(_) => None,
    }
}
