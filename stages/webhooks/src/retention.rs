//! Sweeps that keep the webhook tables small: end deliveries of disabled subscriptions, delete expired rows, measure the queue.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{Counter, Gauge, plans::PreparedPool};
use sqlx::PgPool;

/// Rows changed in one transaction.
const SLICE: i64 = 2_000;
/// Expired deliveries, or bodies, deleted in one transaction.
const PURGE_SLICE: i64 = 50_000;
const END_INTERVAL: Duration = Duration::from_secs(2);
const PURGE_INTERVAL: Duration = Duration::from_secs(5 * 60);
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);

/// The sweep that ends waiting deliveries of disabled subscriptions.
pub(crate) struct EndDisabledDeliveries(pub PreparedPool);

#[async_trait]
impl Sweep for EndDisabledDeliveries {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("end_disabled_deliveries", END_INTERVAL).when("exists (select from webhook_queue)")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.0.begin().await?;
        let ended = sqlx::query_file!("queries/end_disabled_deliveries.sql", SLICE).fetch_one(&mut *tx).await?.count;
        tx.commit().await?;
        Ok(u64::try_from(ended).unwrap_or(0))
    }
}

/// The sweep that deletes expired event bodies, deliveries and replays, also deliveries that a paused subscription holds.
pub(crate) struct PurgeExpired {
    pub pool: PgPool,
    /// How long they are kept. Zero: for ever.
    pub keep: Duration,
    /// How long a delivery is tried: for so much longer it may need its body.
    pub retries: Duration,
}

#[async_trait]
impl Sweep for PurgeExpired {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("purge_expired", PURGE_INTERVAL).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        if self.keep.is_zero() {
            return Ok(0);
        }
        let keep = self.keep.as_secs_f64();
        let keep_bodies = self.keep.saturating_add(self.retries).as_secs_f64();
        let deliveries =
            sqlx::query_file!("queries/purge_deliveries.sql", keep, PURGE_SLICE).fetch_one(&self.pool).await?;
        let undelivered = u64::try_from(deliveries.undelivered).unwrap_or(0);
        if undelivered > 0 {
            Counter::WebhookAttemptsTotal.add(undelivered, [("outcome", "dead")]);
            tracing::warn!(
                stage = "webhooks",
                undelivered,
                "deliveries are deleted that waited, as in a pause, for longer than they are kept"
            );
        }
        let bodies =
            sqlx::query_file!("queries/purge_bodies.sql", keep_bodies, PURGE_SLICE).fetch_one(&self.pool).await?.gone;
        sqlx::query!(
            "delete from webhook_replays where ctid = any(array(
                 select ctid from webhook_replays where status <> 'running' and created_at < now() - make_interval(secs => $1) limit $2))",
            keep,
            SLICE
        )
        .execute(&self.pool)
        .await?;
        Ok(u64::try_from(deliveries.gone + bodies).unwrap_or(0))
    }
}

/// The sweep that sets the gauges of waiting deliveries, over all processes.
pub(crate) struct MeasureQueue(pub PreparedPool);

#[async_trait]
impl Sweep for MeasureQueue {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("measure_queue", MEASURE_INTERVAL).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut db = self.0.take().await?;
        let now = sqlx::query!(
            r#"select due as "due!", coalesce(oldest, 0) as "oldest!", coalesce(unfanned, 0) as "unfanned!" from platform_webhooks()"#
        )
        .fetch_one(&mut *db)
        .await?;
        db.put_back();
        Gauge::WebhooksDue.set(now.due as f64, []);
        Gauge::WebhooksOldestDueSeconds.set(now.oldest, []);
        Gauge::OutboxOldestSeconds.set(now.unfanned, []);
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runner::Sweep;
    use stage_rig::Rig;
    use uuid::Uuid;

    use super::{PURGE_SLICE, PurgeExpired};

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn purge(rig: &Rig, keep: Duration) -> PurgeExpired {
        PurgeExpired { pool: rig.pool.clone(), keep, retries: DAY }
    }

    #[tokio::test]
    async fn what_waits_is_kept_from_when_it_was_due() {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        // Held by a pause for 40 and for 20 days; made 40 days ago and replayed yesterday, when its body was made anew.
        for (status, made, due) in [("paused", 40, 40), ("paused", 20, 20), ("active", 40, 1)] {
            sqlx::query(
                "with s as (
                     insert into webhook_subscriptions (tenant_id, id, product, environment, url, events, status, secret)
                     values ($1, $2, 'crm', 'production', 'https://x.example/', '{email.opened}', $3, '')
                 ), e as (
                     insert into webhook_events (tenant_id, product, id, body, created_at)
                     select $1, 'crm', gen_random_uuid(), '', now() - make_interval(days => $5)
                     from generate_series(1, 3)
                     returning id
                 ), d as (
                     insert into webhook_deliveries (tenant_id, id, subscription_id, product, event_id, type, created_at, next_attempt_at)
                     select $1, gen_random_uuid(), $2, 'crm', e.id, 'email.opened', now() - make_interval(days => $4),
                            now() - make_interval(days => $5)
                     from e
                     returning id, next_attempt_at
                 )
                 insert into webhook_queue (tenant_id, subscription_id, due_at, delivery_id)
                 select $1, $2, d.next_attempt_at, d.id from d",
            )
            .bind(tenant.id)
            .bind(Uuid::now_v7())
            .bind(status)
            .bind(made)
            .bind(due)
            .execute(&rig.pool)
            .await
            .unwrap();
        }
        let left = async |keep: Duration| {
            while purge(&rig, keep).sweep().await.unwrap() > 0 {}
            let mut left = Vec::new();
            for count in [
                "select count(*) from webhook_deliveries",
                "select count(*) from webhook_events",
                "select count(*) from webhook_queue",
            ] {
                left.push(rig.number(count).await);
            }
            left
        };
        assert_eq!(left(Duration::ZERO).await, [9; 3], "for ever");
        let mut tx = rig.pool.begin().await.unwrap();
        let counted = sqlx::query_file!("queries/purge_deliveries.sql", (30 * DAY).as_secs_f64(), PURGE_SLICE)
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        assert_eq!((counted.gone, counted.undelivered), (3, 3), "what goes undelivered is counted");
        tx.rollback().await.unwrap();
        assert_eq!(left(30 * DAY).await, [6; 3], "the pause of 40 days holds nothing any more");
        assert_eq!(left(10 * DAY).await, [3; 3]);
    }

    /// Deliveries of 40 days ago, and their body.
    async fn expired(rig: &Rig, deliveries: i64) {
        let tenant = rig.tenant().await;
        sqlx::query(
            "with e as (
                 insert into webhook_events (tenant_id, product, id, body, created_at)
                 values ($1, 'crm', $1, '', now() - interval '40 days')
             )
             insert into webhook_deliveries (tenant_id, id, subscription_id, product, event_id, type, status, created_at)
             select $1, gen_random_uuid(), $1, 'crm', $1, 'email.opened', 'delivered', now() - interval '40 days'
             from generate_series(1, $2)",
        )
        .bind(tenant.id)
        .bind(deliveries)
        .execute(&rig.pool)
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn one_run_deletes_many_thousand_expired_deliveries() {
        let rig = Rig::new().await;
        expired(&rig, 5_000).await;
        let mut tx = rig.pool.begin().await.unwrap();
        let counted = sqlx::query_file!("queries/purge_deliveries.sql", (30 * DAY).as_secs_f64(), PURGE_SLICE)
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        assert_eq!((counted.gone, counted.undelivered), (5_000, 0));
        tx.rollback().await.unwrap();
        assert_eq!(purge(&rig, 30 * DAY).sweep().await.unwrap(), 5_001);
    }

    #[tokio::test]
    async fn a_body_is_kept_as_long_as_a_delivery_of_it_may_be_tried() {
        let rig = Rig::new().await;
        expired(&rig, 1).await;
        let bodies = "select count(*) from webhook_events";
        assert_eq!((purge(&rig, 39 * DAY + DAY / 2).sweep().await.unwrap(), rig.number(bodies).await), (1, 1));
        assert_eq!((purge(&rig, 38 * DAY).sweep().await.unwrap(), rig.number(bodies).await), (1, 0));
    }
}
