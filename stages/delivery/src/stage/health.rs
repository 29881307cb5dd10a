//! How the platform's relay and tenants' connections serve, for operators and owners. The circuit breakers themselves are each process's
//! own.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures::future::join_all;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::column;
use sqlx::PgPool;
use uuid::Uuid;

use super::routes::ProviderRoutes;
use crate::provider::{PingFault, Provider};

/// The sweep that stores what is new of the circuits of tenants' connections.
pub(crate) struct ReportHealth {
    pub pool: PgPool,
    pub routes: Arc<ProviderRoutes>,
}

#[async_trait]
impl Sweep for ReportHealth {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("report_connection_health", Duration::from_secs(2)).also_when_paused()
    }

    /// Always returns 0: the sweep repairs nothing.
    async fn sweep(&self) -> Result<u64, StageError> {
        let reports = self.routes.new_reports();
        if reports.is_empty() {
            return Ok(0);
        }
        // A connection that is removed meanwhile has no health. Several versions of one may be in memory.
        sqlx::query!(
            "insert into connection_health as h (tenant_id, connection_id, open_until, error_class, failed_at, served_at)
             select distinct on (c.tenant_id, c.id) c.tenant_id, c.id, u.open_until, u.error_class, u.failed_at, u.served_at
             from unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::text[], $5::timestamptz[], $6::timestamptz[])
                  as u (tenant_id, id, open_until, error_class, failed_at, served_at)
             join provider_connections c on c.tenant_id = u.tenant_id and c.id = u.id
             order by c.tenant_id, c.id, greatest(u.failed_at, u.served_at) desc
             on conflict (tenant_id, connection_id) do update
             set open_until = excluded.open_until, error_class = coalesce(excluded.error_class, h.error_class),
                 failed_at = coalesce(excluded.failed_at, h.failed_at), served_at = coalesce(excluded.served_at, h.served_at)",
            &column(&reports, |((tenant, ..), ..)| *tenant),
            &column(&reports, |((_, id, _), ..)| *id),
            &column(&reports, |(.., report)| report.open_until) as &[Option<DateTime<Utc>>],
            &column(&reports, |(.., report)| report.failure.map(|(class, _)| class)) as &[Option<&str>],
            &column(&reports, |(.., report)| report.failure.map(|(_, at)| at)) as &[Option<DateTime<Utc>>],
            &column(&reports, |(.., report)| report.served_at) as &[Option<DateTime<Utc>>],
        )
        .execute(&self.pool)
        .await?;
        for (_, breaker, report) in reports {
            breaker.record_reported(report);
        }
        Ok(0)
    }
}

/// Timeout of a ping. The relay's own timeouts are too long for a health check.
const PING_MAX: Duration = Duration::from_secs(15);

/// The sweep that pings the platform's relay and stores the result. It does not ping tenants' own providers.
pub(crate) struct RelayPing {
    pub pool: PgPool,
    pub provider: Arc<dyn Provider>,
    pub interval: Duration,
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
        let latency_ms = latency_ms(started);
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

/// Checks at a time, in one process.
const AT_ONCE: i64 = 16;
/// Timeout of one check: a caller waits for it.
const CHECK_MAX: Duration = Duration::from_secs(10);

/// The sweep that answers the checks of tenants' connections that the ingress asks for: it pings the provider with the connection's
/// secret, which the ingress cannot read.
pub(crate) struct CheckConnections {
    pub pool: PgPool,
    pub routes: Arc<ProviderRoutes>,
}

/// A check that is asked for.
struct AskedCheck {
    tenant_id: Uuid,
    connection_id: Uuid,
    asked_at: DateTime<Utc>,
    version: Uuid,
}

impl CheckConnections {
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
             returning k.tenant_id, k.connection_id, k.asked_at, c.version",
            AT_ONCE,
        )
        .fetch_all(&self.pool)
        .await
    }

    async fn answer(&self, check: AskedCheck) -> Result<(), StageError> {
        let AskedCheck { tenant_id, connection_id, asked_at, version } = check;
        let started = Instant::now();
        let ping = self.routes.ping((tenant_id, connection_id, version));
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
            latency_ms(started),
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

fn latency_ms(started: Instant) -> i32 {
    i32::try_from(started.elapsed().as_millis()).unwrap_or(i32::MAX)
}
