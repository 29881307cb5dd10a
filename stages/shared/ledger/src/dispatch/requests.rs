//! Announces requests again that were accepted and not handled. This also starts scheduled campaigns: the request of a launch is due
//! when its campaign is.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::Bus;
use schemas::{Environment, RequestKind};
use sqlx::PgPool;

use super::{announce, announced::AnnouncedRequest};

const INTERVAL: Duration = Duration::from_secs(1);
/// Requests announced at a time.
const AT_ONCE: i64 = 500;

/// Announces requests again that were accepted and not handled.
pub struct AnnounceRequests {
    pool: PgPool,
    bus: Bus,
}

impl AnnounceRequests {
    /// On this bus.
    #[must_use]
    pub fn new(pool: PgPool, bus: Bus) -> Self {
        Self { pool, bus }
    }
}

#[async_trait]
impl Sweep for AnnounceRequests {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("announce_requests", INTERVAL)
            .when("exists (select from requests where announce_after <= now())")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        // 30 s, doubling to ten minutes.
        let announced = sqlx::query_as!(
            AnnouncedRequest,
            r#"with due as (
                   select tenant_id, id from requests
                   where announce_after <= now() and state = 'accepted'
                   order by announce_after
                   limit $1
                   for update skip locked
               )
               update requests r
               set announcements = r.announcements + 1,
                   announce_after = now() + make_interval(secs => least(30 * power(2, least(r.announcements, 5)), 600))
               from due d
               where r.tenant_id = d.tenant_id and r.id = d.id
               returning r.tenant_id, r.id as request_id, r.product, r.environment as "environment: Environment",
                         r.kind as "kind: RequestKind", r.announcements,
                         coalesce(1 + jsonb_array_length(r.options -> 'copies'), 1) as "sends!""#,
            AT_ONCE,
        )
        .fetch_all(&self.pool)
        .await?;
        announce::requests(&self.pool, &self.bus, &announced).await?;
        Ok(announced.len() as u64)
    }
}
