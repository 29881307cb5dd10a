//! The ledger statements of dispatch: leases, targets, due deliveries.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use chrono::{DateTime, Utc};
use runtime::{Vault, column, plans::PreparedPool, trace::TraceContext};
use schemas::{
    SubscriptionStatus,
    webhook::{SECRET_PURPOSE, WebhookSecret},
};
use sqlx::PgPool;
use url::Url;
use uuid::Uuid;

use super::{
    attempt::DeliveryTarget,
    endpoint::{DeliveryJob, LoadRequest},
};

/// A subscription: tenant and id.
pub(super) type SubscriptionKey = (Uuid, Uuid);

pub(super) struct SubscriptionState {
    pub tenant_id: Uuid,
    pub id: Uuid,
    pub status: SubscriptionStatus,
    pub failing_since: Option<DateTime<Utc>>,
    url: String,
    secret: Vec<u8>,
    previous_secret: Option<Vec<u8>>,
    previous_until: Option<DateTime<Utc>>,
}

impl SubscriptionState {
    /// The target. `None`: the stored URL or secret cannot be used, which is logged.
    pub fn target(&self, vault: &Vault) -> Option<DeliveryTarget> {
        let open = |sealed: &[u8]| {
            let text = vault.open(self.tenant_id, SECRET_PURPOSE, sealed).ok()?;
            WebhookSecret::parse(std::str::from_utf8(&text).ok()?).ok()
        };
        let (Ok(url), Some(newest)) = (Url::parse(&self.url), open(&self.secret)) else {
            tracing::error!(subscription_id = %self.id, "the url or secret of a subscription cannot be read: is the master key the one it was sealed under?");
            return None;
        };
        let previous = self.previous_secret.as_deref().filter(|_| self.is_previous_valid()).and_then(open);
        Some(DeliveryTarget {
            url,
            secrets: std::iter::once(newest).chain(previous).collect(),
            version: self.version(),
        })
    }

    fn is_previous_valid(&self) -> bool {
        self.previous_until.is_some_and(|until| until > Utc::now())
    }

    /// A hash that is equal for equal targets. Comparing it avoids opening the secrets for every attempt.
    pub fn version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.url, &self.secret, &self.previous_secret, self.is_previous_valid()).hash(&mut hasher);
        hasher.finish()
    }
}

/// Active subscriptions with due deliveries that no other process holds, and whether this process holds them.
pub(super) async fn due_subscriptions(
    by_key: &PreparedPool,
    holder: Uuid,
    most: i64,
) -> sqlx::Result<Vec<(SubscriptionKey, bool)>> {
    let mut db = by_key.take().await?;
    let rows = sqlx::query_file!("queries/due_heads.sql", most, holder).fetch_all(&mut *db).await?;
    db.put_back();
    Ok(rows.into_iter().map(|row| ((row.tenant_id, row.id), row.is_held)).collect())
}

/// Takes the leases that no other process holds.
pub(super) async fn take_leases(
    pool: &PgPool,
    keys: &[SubscriptionKey],
    holder: Uuid,
    seconds: f64,
) -> sqlx::Result<Vec<SubscriptionState>> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = keys.iter().copied().unzip();
    sqlx::query_file_as!(SubscriptionState, "queries/take_leases.sql", &tenants, &ids, holder, seconds)
        .fetch_all(pool)
        .await
}

/// Renews leases and returns those that this process still holds.
pub(super) async fn renew_leases(pool: &PgPool, ids: &[Uuid], holder: Uuid, seconds: f64) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        "with ours as (
             select l.subscription_id from unnest($1::uuid[]) as w (id)
             join webhook_leases l on l.subscription_id = w.id
             where l.holder = $2 order by l.subscription_id for update of l
         )
         update webhook_leases l set lease_until = clock_timestamp() + make_interval(secs => $3)
         from ours o where l.subscription_id = o.subscription_id
         returning l.subscription_id",
        ids,
        holder,
        seconds
    )
    .fetch_all(pool)
    .await
}

pub(super) async fn release_leases(pool: &PgPool, ids: &[Uuid], holder: Uuid) -> sqlx::Result<()> {
    sqlx::query!("delete from webhook_leases where subscription_id = any($1) and holder = $2", ids, holder)
        .execute(pool)
        .await
        .map(drop)
}

pub(super) async fn read_subscriptions(
    by_key: &PreparedPool,
    keys: &[SubscriptionKey],
) -> sqlx::Result<Vec<SubscriptionState>> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = keys.iter().copied().unzip();
    let mut db = by_key.take().await?;
    let states = sqlx::query_file_as!(SubscriptionState, "queries/read_subscriptions.sql", &tenants, &ids)
        .fetch_all(&mut *db)
        .await?;
    db.put_back();
    Ok(states)
}

/// Which of these events have a body for the product of the subscription: subscription and event.
pub(super) async fn events_with_bodies(
    by_key: &PreparedPool,
    events: &[(SubscriptionKey, Uuid)],
) -> sqlx::Result<HashSet<(Uuid, Uuid)>> {
    let mut db = by_key.take().await?;
    let rows = sqlx::query_file!(
        "queries/events_with_bodies.sql",
        &column(events, |((tenant, _), _)| *tenant),
        &column(events, |((_, subscription), _)| *subscription),
        &column(events, |(_, event)| *event)
    )
    .fetch_all(&mut *db)
    .await?;
    db.put_back();
    Ok(rows.into_iter().map(|row| (row.id, row.event_id)).collect())
}

/// Due deliveries by subscription: id and position in the queue.
pub(super) type DueDeliveries = HashMap<Uuid, Vec<(Uuid, DateTime<Utc>)>>;

/// The due deliveries of these subscriptions, the most overdue first, as many as each request asks for beyond the known ones.
pub(super) async fn due_deliveries(
    by_key: &PreparedPool,
    requests: &[(SubscriptionKey, LoadRequest)],
) -> sqlx::Result<DueDeliveries> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = requests.iter().map(|(key, _)| *key).unzip();
    let limits = column(requests, |(_, request)| i64::try_from(request.capacity + request.known).unwrap_or(i64::MAX));
    let mut db = by_key.take().await?;
    let rows = sqlx::query_file!("queries/due.sql", &tenants, &ids, &limits).fetch_all(&mut *db).await?;
    db.put_back();
    let mut due = DueDeliveries::new();
    for row in rows {
        due.entry(row.subscription_id).or_default().push((row.delivery_id, row.due_at));
    }
    Ok(due)
}

#[derive(Debug, Clone, Copy)]
pub(super) struct QueueEntry {
    pub tenant_id: Uuid,
    pub subscription_id: Uuid,
    pub due_at: DateTime<Utc>,
    pub delivery_id: Uuid,
}

/// Loads deliveries with their bodies: those that are still to be tried as the queue said.
pub(super) async fn load_jobs(
    by_key: &PreparedPool,
    wanted: &[QueueEntry],
) -> sqlx::Result<HashMap<Uuid, DeliveryJob>> {
    let (tenants, ids) = (column(wanted, |entry| entry.tenant_id), column(wanted, |entry| entry.delivery_id));
    let dues = column(wanted, |entry| entry.due_at);
    let mut db = by_key.take().await?;
    let rows = sqlx::query_file!("queries/load_deliveries.sql", &tenants, &ids, &dues).fetch_all(&mut *db).await?;
    db.put_back();
    let jobs = rows.into_iter().map(|row| {
        let job = DeliveryJob {
            delivery_id: row.id,
            event_id: row.event_id,
            event_type: row.event_type,
            attempts: u16::try_from(row.attempts).unwrap_or(0),
            body: row.body.map(Into::into),
            trace: row.traceparent.and_then(|parent| TraceContext::parse(&parent, None)),
            due_at: row.due_at,
            made_at: row.created_at,
            replayed: row.replayed,
        };
        (row.id, job)
    });
    Ok(jobs.collect())
}

/// Removes queue entries whose delivery has ended, is to be tried at another time, or no longer exists.
pub(super) async fn drop_orphans(pool: &PgPool, entries: &[QueueEntry]) -> sqlx::Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "delete from webhook_queue q
         using unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::uuid[]) as w (tenant_id, subscription_id, due_at, delivery_id)
         where q.tenant_id = w.tenant_id and q.subscription_id = w.subscription_id and q.due_at = w.due_at
           and q.delivery_id = w.delivery_id
           and not exists (select from webhook_deliveries d
                           where d.tenant_id = w.tenant_id and d.id = w.delivery_id and d.status = 'pending'
                             and d.next_attempt_at = w.due_at)",
        &column(entries, |entry| entry.tenant_id),
        &column(entries, |entry| entry.subscription_id),
        &column(entries, |entry| entry.due_at),
        &column(entries, |entry| entry.delivery_id)
    )
    .execute(pool)
    .await
    .map(drop)
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use runtime::{Database, Role};
    use stage_rig::Rig;

    use super::*;

    #[tokio::test]
    async fn an_entry_from_before_an_attempt_is_an_orphan() {
        let rig = Rig::new().await;
        let (tenant_id, subscription_id, delivery_id) = (rig.tenant().await.id, Uuid::now_v7(), Uuid::now_v7());
        let [tried, live] = [1, 2].map(|hour| {
            let due_at = DateTime::UNIX_EPOCH + TimeDelta::hours(hour);
            QueueEntry { tenant_id, subscription_id, due_at, delivery_id }
        });
        sqlx::query(
            "with d as (
                 insert into webhook_deliveries (tenant_id, id, subscription_id, product, event_id, type, next_attempt_at)
                 values ($1, $3, $2, 'crm', $3, 'email.sent', $5)
             )
             insert into webhook_queue (tenant_id, subscription_id, due_at, delivery_id) values ($1, $2, $4, $3), ($1, $2, $5, $3)",
        )
        .bind(tenant_id)
        .bind(subscription_id)
        .bind(delivery_id)
        .bind(tried.due_at)
        .bind(live.due_at)
        .execute(&rig.pool)
        .await
        .unwrap();
        let by_key = PreparedPool::new(&rig.pool, 1);
        assert!(load_jobs(&by_key, &[tried]).await.unwrap().is_empty(), "it would be tried a second time");
        assert_eq!(load_jobs(&by_key, &[tried, live]).await.unwrap()[&delivery_id].due_at, live.due_at);
        drop_orphans(&rig.pool, &[tried, live]).await.unwrap();
        let left: Vec<DateTime<Utc>> =
            sqlx::query_scalar("select due_at from webhook_queue").fetch_all(&rig.pool).await.unwrap();
        assert_eq!(left, [live.due_at]);
    }

    /// Blocks of the queue and its index that the only connection of the pool has read.
    async fn blocks_read(pool: &PgPool) -> i64 {
        sqlx::query("select pg_stat_force_next_flush()").execute(pool).await.unwrap();
        sqlx::query_scalar(
            "select pg_stat_get_blocks_fetched('webhook_queue'::regclass) + pg_stat_get_blocks_fetched('webhook_queue_pkey'::regclass)",
        )
        .fetch_one(pool)
        .await
        .unwrap()
    }

    #[tokio::test]
    async fn an_orphan_is_found_without_reading_other_subscriptions() {
        let rig = Rig::new().await;
        // A vacuum reads, too.
        let owner = PgPool::connect(&rig.database.url()).await.unwrap();
        sqlx::query("alter table webhook_queue set (autovacuum_enabled = false)").execute(&owner).await.unwrap();
        let pool = Database::pool(&rig.database.url().into(), Role::Stages, 1).unwrap();
        let orphan = QueueEntry {
            tenant_id: Uuid::now_v7(),
            subscription_id: Uuid::now_v7(),
            due_at: DateTime::UNIX_EPOCH,
            delivery_id: Uuid::now_v7(),
        };
        sqlx::query(
            "insert into webhook_queue (tenant_id, subscription_id, due_at, delivery_id)
             select $1::uuid, $1, $3::timestamptz, gen_random_uuid() from generate_series(1, 10000)
             union all select $1, $2, $3, $4",
        )
        .bind(orphan.tenant_id)
        .bind(orphan.subscription_id)
        .bind(orphan.due_at)
        .bind(orphan.delivery_id)
        .execute(&pool)
        .await
        .unwrap();
        let before = blocks_read(&pool).await;
        drop_orphans(&pool, &[orphan]).await.unwrap();
        let read = blocks_read(&pool).await - before;
        assert!(read < 30, "{read} blocks were read");
        assert_eq!(rig.number("select count(*) from webhook_queue").await, 10_000);
    }
}
