//! Sweeps that keep the webhook tables small: end deliveries of disabled subscriptions, delete expired rows, measure the queue.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{Gauge, plans::PreparedPool};
use sqlx::PgPool;

/// Rows changed in one transaction.
const SLICE: i64 = 2_000;
/// Expired deliveries, or bodies, deleted in one transaction: many, because each looks through all old deliveries that wait.
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

/// The sweep that deletes expired event bodies, deliveries and replays. Deliveries that wait stay until they are delivered or dead.
pub(crate) struct PurgeExpired {
    pub pool: PgPool,
    pub keep: Duration,
}

#[async_trait]
impl Sweep for PurgeExpired {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("purge_expired", PURGE_INTERVAL).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let keep = self.keep.as_secs_f64();
        let mut gone =
            sqlx::query_file!("queries/purge_deliveries.sql", keep, PURGE_SLICE).fetch_one(&self.pool).await?.gone;
        // While there are more deliveries, each search for bodies would look through them.
        if gone < PURGE_SLICE {
            gone += sqlx::query_file!("queries/purge_bodies.sql", keep, PURGE_SLICE).fetch_one(&self.pool).await?.gone;
        }
        sqlx::query!(
            "delete from webhook_replays where ctid = any(array(
                 select ctid from webhook_replays where status <> 'running' and created_at < now() - make_interval(secs => $1) limit $2))",
            keep,
            SLICE
        )
        .execute(&self.pool)
        .await?;
        Ok(u64::try_from(gone).unwrap_or(0))
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
    use runner::Sweep;
    use stage_rig::Rig;
    use uuid::Uuid;

    use super::{PURGE_SLICE, PurgeExpired};

    #[tokio::test]
    async fn deliveries_that_wait_keep_their_bodies_through_a_pause() {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        for status in ["paused", "active"] {
            sqlx::query(
                "with s as (
                     insert into webhook_subscriptions (tenant_id, id, product, environment, url, events, status, secret)
                     values ($1, $2, 'crm', 'production', 'https://x.example/', '{email.opened}', $3, '')
                     returning tenant_id, id
                 ), e as (
                     insert into webhook_events (tenant_id, product, id, type, body, created_at)
                     select $1, 'crm', gen_random_uuid(), 'email.opened', '', now() - interval '400 days' from generate_series(1, 3)
                     returning id
                 ), d as (
                     insert into webhook_deliveries (tenant_id, id, subscription_id, product, event_id, type, status, created_at)
                     select $1, gen_random_uuid(), $2, 'crm', e.id, 'email.opened', 'pending', now() - interval '400 days' from e
                     returning id
                 )
                 insert into webhook_queue (tenant_id, subscription_id, due_at, delivery_id) select $1, $2, now(), d.id from d",
            )
            .bind(tenant.id)
            .bind(Uuid::now_v7())
            .bind(status)
            .execute(&rig.pool)
            .await
            .unwrap();
        }
        let purge = PurgeExpired { pool: rig.pool.clone(), keep: std::time::Duration::from_secs(30 * 24 * 60 * 60) };
        while purge.sweep().await.unwrap() > 0 {}
        let counts = async || {
            (
                rig.number("select count(*) from webhook_deliveries").await,
                rig.number("select count(*) from webhook_events").await,
            )
        };
        assert_eq!(counts().await, (6, 6), "held by a pause, and just resumed");
        sqlx::query(
            "update webhook_subscriptions set status = 'disabled', disabled_at = now() where status = 'active'",
        )
        .execute(&rig.pool)
        .await
        .unwrap();
        while purge.sweep().await.unwrap() > 0 {}
        assert_eq!(counts().await, (3, 3), "the disabled subscription's are gone");
    }

    /// Expired deliveries, and a body.
    async fn expired(rig: &Rig, deliveries: i64) {
        let tenant = rig.tenant().await;
        sqlx::query(
            "with e as (
                 insert into webhook_events (tenant_id, product, id, type, body, created_at)
                 values ($1, 'crm', $1, 'email.opened', '', now() - interval '40 days')
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
        let purge = PurgeExpired { pool: rig.pool.clone(), keep: std::time::Duration::from_secs(30 * 24 * 60 * 60) };
        assert_eq!(purge.sweep().await.unwrap(), 5_001);
    }

    #[tokio::test]
    async fn bodies_are_deleted_once_all_their_deliveries_are() {
        let rig = Rig::new().await;
        expired(&rig, PURGE_SLICE + 1).await;
        let purge = PurgeExpired { pool: rig.pool.clone(), keep: std::time::Duration::from_secs(30 * 24 * 60 * 60) };
        assert_eq!(purge.sweep().await.unwrap(), 50_000);
        assert_eq!(rig.number("select count(*) from webhook_events").await, 1);
        assert_eq!(purge.sweep().await.unwrap(), 2);
    }
}
