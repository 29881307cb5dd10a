//! Announces requests again that were accepted and not handled. This also starts scheduled campaigns: the request of a launch is due
//! when its campaign is. The launches of a tenant are announced one after another, so that many of one keep no other's waiting. Mail has no
//! share of each tenant: what is due longest goes first, up to ten thousand a second, and fresh prompt mail does not pass here.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{Bus, Notifier};
use schemas::{Environment, RequestKind};
use sqlx::PgPool;

use super::announce::{self, AnnouncedRequest};

const INTERVAL: Duration = Duration::from_secs(1);
/// Requests announced at a time.
const AT_ONCE: i64 = 500;
/// How often in one run: thousands may be due at the same minute.
const ROUNDS: u32 = 20;

/// Announces requests again that were accepted and not handled.
pub struct AnnounceRequests {
    pool: PgPool,
    bus: Bus,
    /// Notified when a launch was handled: its tenant's next is announced at once.
    launch_handled: Notifier,
}

impl AnnounceRequests {
    /// On this bus. `launch_handled` is notified when a launch was handled.
    #[must_use]
    pub fn new(pool: PgPool, bus: Bus, launch_handled: Notifier) -> Self {
        Self { pool, bus, launch_handled }
    }

    async fn announce(&self) -> Result<Vec<AnnouncedRequest>, StageError> {
        // A kind that this version does not know is left to the newer one that accepted it.
        let announced = sqlx::query_as!(
            AnnouncedRequest,
            r#"with due as (
                   select tenant_id, id, announce_after from requests
                   where announce_after <= now() and state = 'accepted' and kind = any($2)
                     and (kind <> 'campaign-launch' or not waits_for_launch(tenant_id, due_at, id))
                   order by announce_after
                   limit $1
                   for update skip locked
               )
               update requests r
               set announcements = r.announcements + 1,
                   announce_after = now() + request_pause(r.announcements)
               from due d
               where r.tenant_id = d.tenant_id and r.id = d.id
               returning r.tenant_id, r.id as request_id, r.product, r.environment as "environment: Environment",
                         r.kind as "kind: RequestKind", r.announcements,
                         coalesce(1 + jsonb_array_length(r.options -> 'copies'), 1) as "sends!",
                         coalesce((r.options ->> 'is_bulk')::boolean, false) as "is_bulk!",
                         (r.announcements > 1 or r.kind <> 'campaign-launch' and d.announce_after > r.due_at) as "is_late!""#,
            AT_ONCE,
            RequestKind::ALL as &[RequestKind],
        )
        .fetch_all(&self.pool)
        .await?;
        announce::requests(&self.pool, &self.bus, &announced).await?;
        Ok(announced)
    }
}

#[async_trait]
impl Sweep for AnnounceRequests {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("announce_requests", INTERVAL)
            .when("exists (select from requests where announce_after <= now())")
    }

    async fn woken(&self) {
        self.launch_handled.notified().await;
    }

    /// Answers how many were late: to announce what is due is its work, and shows no loss.
    async fn sweep(&self) -> Result<u64, StageError> {
        let mut late = 0;
        for _ in 0..ROUNDS {
            let announced = self.announce().await?;
            late += announced.iter().filter(|request| request.is_late).count() as u64;
            if (announced.len() as u64) < AT_ONCE.unsigned_abs() {
                break;
            }
        }
        Ok(late)
    }
}
