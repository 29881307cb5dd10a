//! Leases, targets and what is due: what dispatch asks of the ledger.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use chrono::{DateTime, Utc};
use runtime::{Vault, plans::PreparedPool, trace::TraceContext};
use schemas::{
    SubscriptionStatus,
    webhook::{SECRET_PURPOSE, WebhookSecret},
};
use sqlx::PgPool;
use url::Url;
use uuid::Uuid;

use super::{
    attempt::Target,
    endpoint::{Job, Want},
};

/// A subscription: tenant and id.
pub(super) type Key = (Uuid, Uuid);

/// A subscription as it stands.
pub(super) struct Looked {
    pub tenant_id: Uuid,
    pub id: Uuid,
    pub status: SubscriptionStatus,
    pub failing_since: Option<DateTime<Utc>>,
    url: String,
    secret: Vec<u8>,
    previous_secret: Option<Vec<u8>>,
    previous_until: Option<DateTime<Utc>>,
}

impl Looked {
    /// Where and how to deliver. `None`: what is stored cannot be used, and the log says why.
    pub fn target(&self, vault: &Vault) -> Option<Target> {
        let open = |sealed: &[u8]| {
            let text = vault.open(self.tenant_id, SECRET_PURPOSE, sealed).ok()?;
            WebhookSecret::parse(std::str::from_utf8(&text).ok()?).ok()
        };
        let (Ok(url), Some(newest)) = (Url::parse(&self.url), open(&self.secret)) else {
            tracing::error!(subscription_id = %self.id, "its url or secret cannot be read: is the master key the one it was sealed under?");
            return None;
        };
        let previous = self.previous_secret.as_deref().filter(|_| self.still_signs()).and_then(open);
        Some(Target { url, secrets: std::iter::once(newest).chain(previous).collect(), mark: self.mark() })
    }

    fn still_signs(&self) -> bool {
        self.previous_until.is_some_and(|until| until > Utc::now())
    }

    /// The same for the same target. Opening secrets every second for every endpoint costs more than anything else here.
    pub fn mark(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.url, &self.secret, &self.previous_secret, self.still_signs()).hash(&mut hasher);
        hasher.finish()
    }
}

fn columns(keys: &[Key]) -> (Vec<Uuid>, Vec<Uuid>) {
    keys.iter().copied().unzip()
}

/// Active subscriptions with something due that nobody else holds, and whether this one does.
pub(super) async fn due_heads(by_key: &PreparedPool, holder: Uuid, most: i64) -> sqlx::Result<Vec<(Key, bool)>> {
    let mut db = by_key.take().await?;
    let rows = sqlx::query_file!("queries/due_heads.sql", most, holder).fetch_all(&mut *db).await?;
    db.put_back();
    Ok(rows.into_iter().map(|row| ((row.tenant_id, row.id), row.is_held)).collect())
}

/// Takes the leases that nobody else has.
pub(super) async fn take_leases(pool: &PgPool, keys: &[Key], holder: Uuid, seconds: f64) -> sqlx::Result<Vec<Looked>> {
    let (tenants, ids) = columns(keys);
    let rows = sqlx::query_file!("queries/take_leases.sql", &tenants, &ids, holder, seconds).fetch_all(pool).await?;
    let looked = rows.into_iter().map(|row| Looked {
        tenant_id: row.tenant_id,
        id: row.id,
        status: SubscriptionStatus::Active,
        failing_since: row.failing_since,
        url: row.url,
        secret: row.secret,
        previous_secret: row.previous_secret,
        previous_until: row.previous_until,
    });
    Ok(looked.collect())
}

/// Renews leases; answers those that are still ours.
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

/// Gives leases back.
pub(super) async fn release_leases(pool: &PgPool, ids: &[Uuid], holder: Uuid) -> sqlx::Result<()> {
    sqlx::query!("delete from webhook_leases where subscription_id = any($1) and holder = $2", ids, holder)
        .execute(pool)
        .await
        .map(drop)
}

/// What these subscriptions are like now.
pub(super) async fn look(by_key: &PreparedPool, keys: &[Key]) -> sqlx::Result<Vec<Looked>> {
    let (tenants, ids) = columns(keys);
    let mut db = by_key.take().await?;
    let rows = sqlx::query_file!("queries/look_at_subscriptions.sql", &tenants, &ids).fetch_all(&mut *db).await?;
    db.put_back();
    let looked = rows.into_iter().map(|row| Looked {
        tenant_id: row.tenant_id,
        id: row.id,
        status: row.status,
        failing_since: row.failing_since,
        url: row.url,
        secret: row.secret,
        previous_secret: row.previous_secret,
        previous_until: row.previous_until,
    });
    Ok(looked.collect())
}

/// Deliveries that are due, by subscription: id and place in the queue.
pub(super) type Due = HashMap<Uuid, Vec<(Uuid, DateTime<Utc>)>>;

/// What is due to these subscriptions, as much as each wants, counting from the most overdue and including what it has.
pub(super) async fn due(by_key: &PreparedPool, wants: &[(Key, Want)]) -> sqlx::Result<Due> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = wants.iter().map(|(key, _)| *key).unzip();
    let rooms: Vec<i64> =
        wants.iter().map(|(_, want)| i64::try_from(want.room + want.held).unwrap_or(i64::MAX)).collect();
    let mut db = by_key.take().await?;
    let rows = sqlx::query_file!("queries/due.sql", &tenants, &ids, &rooms).fetch_all(&mut *db).await?;
    db.put_back();
    let mut due = Due::new();
    for row in rows {
        due.entry(row.subscription_id).or_default().push((row.delivery_id, row.due_at));
    }
    Ok(due)
}

/// The deliveries themselves, with their bodies.
pub(super) async fn load(
    by_key: &PreparedPool,
    wanted: &[(Uuid, Uuid, DateTime<Utc>)],
) -> sqlx::Result<HashMap<Uuid, Job>> {
    let tenants: Vec<Uuid> = wanted.iter().map(|(tenant, ..)| *tenant).collect();
    let ids: Vec<Uuid> = wanted.iter().map(|(_, id, _)| *id).collect();
    let due: HashMap<Uuid, DateTime<Utc>> = wanted.iter().map(|(_, id, due_at)| (*id, *due_at)).collect();
    let mut db = by_key.take().await?;
    let rows = sqlx::query_file!("queries/load_deliveries.sql", &tenants, &ids).fetch_all(&mut *db).await?;
    db.put_back();
    let jobs = rows.into_iter().filter_map(|row| {
        let due_at = *due.get(&row.id)?;
        let job = Job {
            delivery_id: row.id,
            event_id: row.event_id,
            event_type: row.event_type,
            attempts: u16::try_from(row.attempts).unwrap_or(0),
            body: row.body.map(Into::into),
            trace: row.traceparent.and_then(|parent| TraceContext::parse(&parent, None)),
            due_at,
            made_at: (row.replayed == 0).then_some(row.created_at),
        };
        Some((row.id, job))
    });
    Ok(jobs.collect())
}

/// Places in the queue whose delivery has ended, or is so old that it is gone.
pub(super) async fn drop_orphans(pool: &PgPool, places: &[(Uuid, Uuid, DateTime<Utc>)]) -> sqlx::Result<()> {
    if places.is_empty() {
        return Ok(());
    }
    let tenants: Vec<Uuid> = places.iter().map(|(tenant, ..)| *tenant).collect();
    let ids: Vec<Uuid> = places.iter().map(|(_, id, _)| *id).collect();
    let due: Vec<DateTime<Utc>> = places.iter().map(|(.., due_at)| *due_at).collect();
    sqlx::query!(
        "delete from webhook_queue q
         using unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) as w (tenant_id, delivery_id, due_at)
         where q.tenant_id = w.tenant_id and q.delivery_id = w.delivery_id and q.due_at = w.due_at
           and not exists (select from webhook_deliveries d
                           where d.tenant_id = w.tenant_id and d.id = w.delivery_id and d.status = 'pending')",
        &tenants,
        &ids,
        &due
    )
    .execute(pool)
    .await
    .map(drop)
}
