//! Keeping the tables short: what waited for a disabled subscription is dead, and what is old goes.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep};
use runtime::{Gauge, plans};
use sqlx::PgPool;

/// Rows changed in one transaction.
const SLICE: i64 = 2_000;
const BURY_EVERY: Duration = Duration::from_secs(2);
const FORGET_EVERY: Duration = Duration::from_secs(5 * 60);
const MEASURE_EVERY: Duration = Duration::from_secs(5);

/// Deliveries that waited for subscriptions which are disabled.
pub(crate) struct Bury(pub PgPool);

#[async_trait]
impl Sweep for Bury {
    fn name(&self) -> &'static str {
        "bury"
    }

    fn interval(&self) -> Duration {
        BURY_EVERY
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.0.begin_with(plans::BEGIN_BY_KEY).await?;
        let buried = sqlx::query_file!("queries/bury.sql", SLICE).fetch_one(&mut *tx).await?.count;
        tx.commit().await?;
        Ok(u64::try_from(buried).unwrap_or(0))
    }
}

/// Bodies, deliveries and replays of long ago; totals and leases that nobody asks for any more. A delivery that was held for a
/// paused subscription all that time goes with them.
pub(crate) struct Forget {
    pub pool: PgPool,
    pub keep: Duration,
}

#[async_trait]
impl Sweep for Forget {
    fn name(&self) -> &'static str {
        "forget"
    }

    fn interval(&self) -> Duration {
        FORGET_EVERY
    }

    fn rests(&self) -> bool {
        false
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let keep = self.keep.as_secs_f64();
        let deliveries = sqlx::query!(
            "delete from webhook_deliveries where ctid = any(array(
                 select ctid from webhook_deliveries where created_at < now() - make_interval(secs => $1) order by created_at limit $2))",
            keep,
            SLICE
        )
        .execute(&self.pool)
        .await?
        .rows_affected();
        let events = sqlx::query!(
            "delete from webhook_events where ctid = any(array(
                 select ctid from webhook_events where created_at < now() - make_interval(secs => $1) order by created_at limit $2))",
            keep,
            SLICE
        )
        .execute(&self.pool)
        .await?
        .rows_affected();
        sqlx::query!(
            "delete from webhook_replays where status <> 'running' and created_at < now() - make_interval(secs => $1)",
            keep
        )
        .execute(&self.pool)
        .await?;
        sqlx::query!("delete from webhook_totals where hour < now() - interval '7 days'").execute(&self.pool).await?;
        sqlx::query!("delete from webhook_leases where lease_until < now() - interval '1 hour'")
            .execute(&self.pool)
            .await?;
        Ok(deliveries + events)
    }
}

/// What waits, over all processes, as gauges.
pub(crate) struct Measure(pub PgPool);

#[async_trait]
impl Sweep for Measure {
    fn name(&self) -> &'static str {
        "measure"
    }

    fn interval(&self) -> Duration {
        MEASURE_EVERY
    }

    fn rests(&self) -> bool {
        false
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let now = sqlx::query!(
            r#"select due as "due!", coalesce(oldest, 0) as "oldest!", coalesce(unfanned, 0) as "unfanned!" from platform_webhooks()"#
        )
        .fetch_one(&self.0)
        .await?;
        Gauge::WebhooksDue.set(now.due as f64, []);
        Gauge::WebhooksOldestDueSeconds.set(now.oldest, []);
        Gauge::OutboxOldestSeconds.set(now.unfanned, []);
        Ok(0)
    }
}
