//! Replays: the events of a time range are delivered again to one subscription, even if it was created later.
//!
//! A replay delivers every event of the range that the subscription's `events` name. A receiver that lost its data needs all of
//! them, and other receivers recognise repeated events by their ids. Deliveries that are still pending are left as they are. A
//! replay runs in slices and waits while the subscription is paused or has a backlog, so the queue stays short for any range.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{db, plans::PreparedPool};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::fan_out::{self, EventKey};

/// How soon a requested replay begins.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// How many batches are looked at in one transaction for acceptances in a replay's time.
const BATCHES: i64 = 10_000;
/// About how many facts are replayed in one transaction.
const SLICE: usize = 1_000;
/// A time slice with more facts than this is shortened.
const SLICE_MAX: usize = 4 * SLICE;
/// The shortest and the longest time slice.
const STEP_MIN_SECONDS: f64 = 0.001;
const STEP_MAX_SECONDS: f64 = 7.0 * 24.0 * 3_600.0;
/// A replay waits while its subscription is paused or has this many waiting deliveries.
const BACKLOG_MAX: i64 = 5_000;
/// The timeout of one search for facts. After a timeout the time slice is shortened.
const SEARCH_TIMEOUT: &str = "5s";

pub(crate) struct Replays(pub PreparedPool);

/// The row of a replay. A slice moves it on.
struct Replay {
    tenant_id: Uuid,
    id: Uuid,
    subscription_id: Uuid,
    since: DateTime<Utc>,
    until: DateTime<Utc>,
    /// The table that is read now.
    source: String,
    status: String,
    /// Where the next slice begins.
    cursor_at: DateTime<Utc>,
    cursor_id: Uuid,
    step_seconds: f64,
    /// The subscription is disabled.
    is_over: bool,
}

/// A notice or a contact of a slice.
struct ReplayedRow {
    at: DateTime<Utc>,
    id: Uuid,
}

#[async_trait]
impl Sweep for Replays {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("replays", SWEEP_INTERVAL)
            .when("exists (select from webhook_replays where status = 'running')")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.0.begin().await?;
        // In random order, so that all replays make progress. Those that have to wait are not drawn.
        let Some(mut replay) = sqlx::query_as!(
            Replay,
            r#"select r.tenant_id, r.id, r.subscription_id, r.since, r.until, r.source, r.status, r.cursor_at, r.cursor_id, r.step_seconds,
                      s.status = 'disabled' as "is_over!"
               from webhook_replays r
               join webhook_subscriptions s on s.tenant_id = r.tenant_id and s.id = r.subscription_id
               where r.status = 'running'
                 and (s.status = 'disabled'
                      or s.status = 'active'
                         and (select count(*) from (select from webhook_queue q
                                                    where q.tenant_id = r.tenant_id and q.subscription_id = r.subscription_id
                                                    limit $1) waiting) < $1)
               order by random()
               limit 1
               for update of r skip locked"#,
            BACKLOG_MAX
        )
        .fetch_optional(&mut *tx)
        .await?
        else {
            return Ok(0);
        };
        // How many deliveries the next slice started.
        let deliveries = match replay.source.as_str() {
            _ if replay.is_over => {
                replay.status = "cancelled".to_owned();
                0
            }
            "acceptances" => replay.acceptances(&mut tx).await?,
            "events" => replay.events(&mut tx).await?,
            _ => replay.rows(&mut tx).await?,
        };
        replay.save_progress(&mut tx, deliveries).await?;
        tx.commit().await?;
        Ok(1)
    }
}

impl Replay {
    /// The next slice is the beginning of another table.
    fn start_table(&mut self, source: &str) {
        (self.source, self.cursor_at, self.cursor_id) = (source.to_owned(), self.since, Uuid::nil());
    }

    /// Replays the acceptances of the tenant's next batches. They stand in the rows of sends (`acceptances`), which no index orders by time.
    async fn acceptances(&mut self, db: &mut PgConnection) -> Result<i64, StageError> {
        let rows = sqlx::query_file!(
            "queries/replayed_acceptances.sql",
            self.tenant_id,
            self.cursor_id,
            self.since,
            self.until,
            BATCHES,
            SLICE as i64
        )
        .fetch_all(&mut *db)
        .await?;
        let Some(last) = rows.first().and_then(|row| row.last_batch) else {
            self.start_table("events");
            return Ok(0);
        };
        self.cursor_id = last;
        let tenant_id = self.tenant_id;
        let keys = rows.into_iter().filter_map(|row| {
            let (id, month) = row.send_id.zip(row.month)?;
            Some(EventKey { tenant_id, send_id: id, id, month })
        });
        self.replay_facts(db, &keys.collect::<Vec<_>>()).await
    }

    /// Delivers the events of these facts about sends.
    async fn replay_facts(&self, db: &mut PgConnection, keys: &[EventKey]) -> Result<i64, StageError> {
        let mut pending = Vec::new();
        for part in keys.chunks(SLICE) {
            pending.extend(fan_out::read_pending_events(db, part, &[], &[]).await?.0);
        }
        // All at once: another replay of the product may have the same bodies in parts that are cut differently.
        fan_out::replay_events(db, self.subscription_id, pending).await
    }

    /// Replays the other facts about sends of one time slice. No index orders these facts by time, only a BRIN index finds the pages of a
    /// time; so the time slice is adapted until it contains about [`SLICE`] facts.
    async fn events(&mut self, db: &mut PgConnection) -> Result<i64, StageError> {
        // Nothing was recorded before the oldest month that is kept.
        let oldest = sqlx::query_scalar!("select oldest_ledger_month()").fetch_one(&mut *db).await?;
        let oldest = oldest.and_then(|month| month.and_hms_opt(0, 0, 0)).map(|at| at.and_utc());
        let from = oldest.map_or(self.cursor_at, |oldest| self.cursor_at.max(oldest));
        if from >= self.until {
            self.start_table("notices");
            return Ok(0);
        }
        let step = TimeDelta::microseconds((self.step_seconds * 1e6) as i64);
        let end = (from + step).min(self.until);
        let can_be_cut = self.step_seconds > STEP_MIN_SECONDS;
        let most = can_be_cut.then_some(SLICE_MAX as i64 + 1);
        let rows = match self.find_events(db, from, end, most).await {
            Err(error) if can_be_cut && db::is_timeout(&error) => None,
            rows => Some(rows?).filter(|rows| rows.len() <= SLICE_MAX || !can_be_cut),
        };
        let Some(rows) = rows else {
            self.cursor_at = from;
            self.step_seconds = (self.step_seconds / 8.0).max(STEP_MIN_SECONDS);
            return Ok(0);
        };
        let deliveries = self.replay_facts(db, &rows).await?;
        self.cursor_at = end;
        if rows.len() < SLICE {
            self.step_seconds = (self.step_seconds * 4.0).min(STEP_MAX_SECONDS);
        }
        Ok(deliveries)
    }

    /// The tenant's facts that were recorded in a time slice, so many at most. The pages of that time contain all
    /// tenants' facts, so the statement has a timeout, [`SEARCH_TIMEOUT`].
    async fn find_events(
        &self,
        db: &mut PgConnection,
        from: DateTime<Utc>,
        end: DateTime<Utc>,
        most: Option<i64>,
    ) -> sqlx::Result<Vec<EventKey>> {
        // Always rolled back: it changes nothing, and the rollback ends the timeout.
        let mut search = db.begin().await?;
        sqlx::query!("select set_config('statement_timeout', $1, true)", SEARCH_TIMEOUT)
            .fetch_one(&mut *search)
            .await?;
        let rows = sqlx::query!(
            // `is true` keeps the planner from reading all of the tenant's facts by their key. It plans as if there were no limit.
            r#"with found as materialized (
                 select e.send_id, e.id, e.month from events e
                 where e.recorded_at >= $2 and e.recorded_at < $3 and (e.tenant_id = $1) is true
             )
             select send_id as "send_id!", id as "id!", month as "month!" from found limit $4"#,
            self.tenant_id,
            from,
            end,
            most
        )
        .fetch_all(&mut *search)
        .await;
        search.rollback().await?;
        let (tenant_id, rows) = (self.tenant_id, rows?.into_iter());
        Ok(rows.map(|row| EventKey { tenant_id, send_id: row.send_id, id: row.id, month: row.month }).collect())
    }

    /// Replays the next notices, or contacts, of the time range.
    async fn rows(&mut self, db: &mut PgConnection) -> Result<i64, StageError> {
        let is_notices = self.source == "notices";
        let rows = if is_notices {
            sqlx::query_as!(
                ReplayedRow,
                "select recorded_at as at, id from notices
                 where tenant_id = $1 and (recorded_at, id) > ($2, $3) and recorded_at < $4
                 order by recorded_at, id limit $5",
                self.tenant_id,
                self.cursor_at,
                self.cursor_id,
                self.until,
                SLICE as i64
            )
            .fetch_all(&mut *db)
            .await?
        } else {
            sqlx::query_as!(
                ReplayedRow,
                "select created_at as at, id from contacts
                 where tenant_id = $1 and (created_at, id) > ($2, $3) and created_at < $4
                 order by created_at, id limit $5",
                self.tenant_id,
                self.cursor_at,
                self.cursor_id,
                self.until,
                SLICE as i64
            )
            .fetch_all(&mut *db)
            .await?
        };
        let keys: Vec<(Uuid, Uuid)> = rows.iter().map(|row| (self.tenant_id, row.id)).collect();
        let (notices, contacts) = if is_notices { (keys, Vec::new()) } else { (Vec::new(), keys) };
        let (pending, _) = fan_out::read_pending_events(db, &[], &notices, &contacts).await?;
        let deliveries = fan_out::replay_events(db, self.subscription_id, pending).await?;
        match rows.last() {
            Some(last) if rows.len() == SLICE => (self.cursor_at, self.cursor_id) = (last.at, last.id),
            _ if is_notices => self.start_table("contacts"),
            _ => self.status = "completed".to_owned(),
        }
        Ok(deliveries)
    }

    async fn save_progress(&self, db: &mut PgConnection, deliveries: i64) -> sqlx::Result<()> {
        sqlx::query!(
            "update webhook_replays
             set source = $3, status = $4, cursor_at = $5, cursor_id = $6, step_seconds = $7, deliveries = deliveries + $8,
                 finished_at = case when $4 <> 'running' then now() end
             where tenant_id = $1 and id = $2",
            self.tenant_id,
            self.id,
            self.source,
            self.status,
            self.cursor_at,
            self.cursor_id,
            self.step_seconds,
            deliveries
        )
        .execute(db)
        .await
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use chrono::{TimeDelta, Utc};
    use runner::Sweep;
    use stage_rig::{Rig, until};
    use uuid::Uuid;

    use super::{Replay, Replays};
    use crate::retention::PurgeExpired;

    #[tokio::test]
    async fn a_replay_starts_at_the_oldest_month_of_the_ledger() {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        replay(&rig, tenant.id, "active").await;
        let replays = Replays(runtime::plans::PreparedPool::new(&rig.pool, 1));
        let mut slices = 0;
        while replays.sweep().await.unwrap() > 0 {
            slices += 1;
        }
        assert!(slices < 30, "{slices} slices for a ledger of one month");
        assert_eq!(rig.number("select count(*) from webhook_replays where status = 'completed'").await, 1);
    }

    /// A running replay of all times into a subscription in this state.
    async fn replay(rig: &Rig, tenant: Uuid, status: &str) -> Uuid {
        let id = Uuid::now_v7();
        sqlx::query(
            "with s as (
                 insert into webhook_subscriptions (tenant_id, id, product, environment, url, events, status, secret)
                 values ($1, $2, 'crm', 'production', 'https://x.example/', '{campaign.sent}', $3, '') returning id
             )
             insert into webhook_replays (tenant_id, id, subscription_id, since, until, cursor_at)
             select $1, $2, id, '2000-01-01', now(), '2000-01-01' from s",
        )
        .bind(tenant)
        .bind(id)
        .bind(status)
        .execute(&rig.pool)
        .await
        .unwrap();
        id
    }

    #[tokio::test]
    async fn no_more_facts_are_read_than_a_slice_may_have() {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await.id;
        let send = schemas::SendId::of(schemas::new_batch_id(), 0);
        sqlx::query(
            "insert into events (tenant_id, send_id, id, month, type, occurred_at)
             select $1, $2, gen_random_uuid(), $3, 'opened', now() from generate_series(1, 20)",
        )
        .bind(tenant)
        .bind(send.0)
        .bind(send.month())
        .execute(&rig.pool)
        .await
        .unwrap();
        let (since, until) = (Utc::now() - TimeDelta::hours(1), Utc::now() + TimeDelta::hours(1));
        let replay = Replay {
            tenant_id: tenant,
            id: Uuid::nil(),
            subscription_id: Uuid::nil(),
            since,
            until,
            source: "events".to_owned(),
            status: "running".to_owned(),
            cursor_at: since,
            cursor_id: Uuid::nil(),
            step_seconds: 60.0,
            is_over: false,
        };
        let mut tx = runtime::plans::PreparedPool::new(&rig.pool, 1).begin().await.unwrap();
        for (most, found) in [(Some(7), 7), (None, 20)] {
            assert_eq!(replay.find_events(&mut tx, since, until, most).await.unwrap().len(), found);
        }
    }

    #[tokio::test]
    async fn replays_that_have_to_wait_do_not_delay_others() {
        let rig = Rig::new().await;
        let (tenant, other) = (rig.tenant().await, rig.tenant().await);
        replay(&rig, tenant.id, "paused").await;
        for _ in 0..9 {
            let busy = replay(&rig, tenant.id, "active").await;
            sqlx::query(
                "insert into webhook_queue (tenant_id, subscription_id, due_at, delivery_id)
                 select $1, $2, now(), gen_random_uuid() from generate_series(1, $3)",
            )
            .bind(tenant.id)
            .bind(busy)
            .bind(super::BACKLOG_MAX)
            .execute(&rig.pool)
            .await
            .unwrap();
        }
        let free = replay(&rig, other.id, "active").await;
        let replays = Replays(runtime::plans::PreparedPool::new(&rig.pool, 1));
        let is_running = "select count(*) from webhook_replays where status = 'running'";
        while rig.number(is_running).await > 10 {
            assert_eq!(replays.sweep().await.unwrap(), 1, "a replay that waits was drawn");
        }
        assert_eq!(replays.sweep().await.unwrap(), 0);
        let completed: Uuid = sqlx::query_scalar("select id from webhook_replays where status = 'completed'")
            .fetch_one(&rig.pool)
            .await
            .unwrap();
        assert_eq!(completed, free);
        let untouched = "select count(*) from webhook_replays where status = 'running' and source = 'acceptances' and cursor_at = since";
        assert_eq!(rig.number(untouched).await, 10);
    }

    #[tokio::test]
    async fn a_replayed_body_is_kept_as_long_as_a_new_one() {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        sqlx::query(
            "with link as (
                 insert into tenant_links (product, environment, product_tenant_id, tenant_id, owner_email)
                 values ('crm', 'production', 't-1', $1, 'owner@example.com')
             ), notice as (
                 insert into notices (tenant_id, id, type, recorded_at) values ($1, $1, 'campaign.sent', now() - interval '40 days')
             )
             insert into webhook_events (tenant_id, product, id, body, created_at)
             values ($1, 'crm', $1, 'the first bytes', now() - interval '40 days')",
        )
        .bind(tenant.id)
        .execute(&rig.pool)
        .await
        .unwrap();
        replay(&rig, tenant.id, "active").await;
        let replays = Replays(runtime::plans::PreparedPool::new(&rig.pool, 1));
        while replays.sweep().await.unwrap() > 0 {}
        assert_eq!(rig.number("select count(*) from webhook_deliveries where status = 'pending'").await, 1);
        let keep = std::time::Duration::from_secs(30 * 24 * 60 * 60);
        let purge = PurgeExpired { pool: rig.pool.clone(), keep, retries: std::time::Duration::ZERO };
        while purge.sweep().await.unwrap() > 0 {}
        assert_eq!(rig.number("select count(*) from webhook_events where body = 'the first bytes'").await, 1);
    }

    #[tokio::test]
    async fn replays_write_bodies_in_the_order_of_their_ids() {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
        sqlx::query(
            "with link as (
                 insert into tenant_links (product, environment, product_tenant_id, tenant_id, owner_email)
                 values ('crm', 'production', 't-1', $1, 'owner@example.com')
             )
             insert into notices (tenant_id, id, type, recorded_at)
             values ($1, $2, 'campaign.sent', now() - interval '1 day'), ($1, $3, 'campaign.sent', now() - interval '2 days')",
        )
        .bind(tenant.id)
        .bind(first)
        .bind(second)
        .execute(&rig.pool)
        .await
        .unwrap();
        replay(&rig, tenant.id, "active").await;
        let body = "insert into webhook_events (tenant_id, product, id, body) values ($1, 'crm', $2, '')";
        let mut other = rig.pool.begin().await.unwrap();
        sqlx::query(body).bind(tenant.id).bind(first).execute(&mut *other).await.unwrap();
        let replays = Replays(runtime::plans::PreparedPool::new(&rig.pool, 1));
        let replayed = tokio::spawn(async move { while replays.sweep().await.unwrap() > 0 {} });
        let waiting = "select count(*) from pg_locks l join pg_stat_activity a on a.pid = l.pid
                       where a.datname = current_database() and not l.granted";
        until("the replay waits", async || rig.number(waiting).await > 0).await;
        // The replay waits for the first body. Had it written the second before, neither would end.
        sqlx::query(body).bind(tenant.id).bind(second).execute(&mut *other).await.unwrap();
        other.commit().await.unwrap();
        replayed.await.unwrap();
        assert_eq!(rig.number("select count(*) from webhook_deliveries").await, 2);
    }
}
