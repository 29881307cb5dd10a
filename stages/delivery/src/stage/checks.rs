//! Answers the checks of tenants' connections that the ingress asks for: it pings the provider with the connection's secret, which the
//! ingress cannot read.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures::future::join_all;
use runner::{StageError, Sweep, SweepSchedule};
use sqlx::PgPool;
use uuid::Uuid;

use super::routes::ProviderRoutes;
use crate::provider::PingFault;

/// Checks at a time, in one process.
const AT_ONCE: i64 = 16;
/// Timeout of one check: a caller waits for it.
const CHECK_MAX: Duration = Duration::from_secs(10);

/// The sweep that answers checks.
pub(crate) struct CheckConnections {
    pool: PgPool,
    routes: Arc<ProviderRoutes>,
}

/// A check that is asked for.
struct AskedCheck {
    tenant_id: Uuid,
    connection_id: Uuid,
    asked_at: DateTime<Utc>,
    /// When the connection was changed last.
    changed_at: DateTime<Utc>,
}

impl CheckConnections {
    pub fn new(pool: PgPool, routes: Arc<ProviderRoutes>) -> Self {
        Self { pool, routes }
    }

    /// Takes checks that no other process has at hand.
    async fn take(&self) -> sqlx::Result<Vec<AskedCheck>> {
        sqlx::query_as!(
            AskedCheck,
            "with due as (
                 select tenant_id, connection_id from connection_checks
                 where answered_at is null and (taken_at is null or taken_at < now() - interval '30 seconds')
                 order by asked_at limit $1 for update skip locked
             )
             update connection_checks k set taken_at = now()
             from due d
             join provider_connections c on c.tenant_id = d.tenant_id and c.id = d.connection_id
             where k.tenant_id = d.tenant_id and k.connection_id = d.connection_id
             returning k.tenant_id, k.connection_id, k.asked_at, c.updated_at as changed_at",
            AT_ONCE,
        )
        .fetch_all(&self.pool)
        .await
    }

    async fn answer(&self, check: AskedCheck) -> Result<(), StageError> {
        let AskedCheck { tenant_id, connection_id, asked_at, changed_at } = check;
        let started = Instant::now();
        let ping = self.routes.ping((tenant_id, connection_id, changed_at));
        let answered = match tokio::time::timeout(CHECK_MAX, ping).await {
            Ok(answered) => answered?,
            Err(_) => Err(PingFault::Timeout),
        };
        sqlx::query!(
            "update connection_checks set answered_at = now(), error_code = $4, latency_ms = $5
             where tenant_id = $1 and connection_id = $2 and asked_at = $3",
            tenant_id,
            connection_id,
            asked_at,
            answered.err().map(PingFault::as_str),
            i32::try_from(started.elapsed().as_millis()).unwrap_or(i32::MAX),
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

#[async_trait]
impl Sweep for CheckConnections {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("check_connections", Duration::from_secs(1))
            .when("exists (select from connection_checks where answered_at is null)")
            .also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let asked = self.take().await?;
        let found = asked.len() as u64;
        join_all(asked.into_iter().map(|check| self.answer(check))).await.into_iter().collect::<Result<(), _>>()?;
        Ok(found)
    }
}
