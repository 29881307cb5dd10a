//! Reports how tenants' connections serve, for their owners. The circuit breakers themselves are each process's own.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use runner::{StageError, Sweep, SweepSchedule};
use sqlx::PgPool;
use uuid::Uuid;

use super::routes::ProviderRoutes;

/// The sweep that stores what is new of the circuits of tenants' connections.
pub(crate) struct ReportHealth {
    pool: PgPool,
    routes: Arc<ProviderRoutes>,
}

impl ReportHealth {
    pub fn new(pool: PgPool, routes: Arc<ProviderRoutes>) -> Self {
        Self { pool, routes }
    }
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
        let (mut tenants, mut ids): (Vec<Uuid>, Vec<Uuid>) = Default::default();
        let (mut open, mut served): (Vec<Option<DateTime<Utc>>>, Vec<Option<DateTime<Utc>>>) = Default::default();
        let (mut classes, mut failed): (Vec<Option<String>>, Vec<Option<DateTime<Utc>>>) = Default::default();
        for ((tenant, id, _), _, report) in &reports {
            tenants.push(*tenant);
            ids.push(*id);
            open.push(report.open_until);
            served.push(report.served_at);
            classes.push(report.failure.map(|(class, _)| class.to_owned()));
            failed.push(report.failure.map(|(_, at)| at));
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
            &tenants,
            &ids,
            &open as &[Option<DateTime<Utc>>],
            &classes as &[Option<String>],
            &failed as &[Option<DateTime<Utc>>],
            &served as &[Option<DateTime<Utc>>],
        )
        .execute(&self.pool)
        .await?;
        for (_, breaker, report) in reports {
            breaker.record_reported(report);
        }
        Ok(0)
    }
}
