//! Signals into the ledger: one transaction for all that came together.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, NaiveDate, Utc};
use schemas::{SendId, Signal, SignalKind};
use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// Rows a day's total is spread over.
const SHARDS: u128 = 16;

/// A shard for this process, so that two processes seldom wait for each other's totals.
pub(crate) fn random_shard() -> i16 {
    i16::try_from(schemas::new_id().as_u128() % SHARDS).unwrap_or(0)
}

/// Signals that were new, by kind.
#[derive(Debug, Default)]
pub(crate) struct Fresh(BTreeMap<&'static str, u64>);

impl Fresh {
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.0.values().sum::<u64>()).unwrap_or(usize::MAX)
    }

    pub(crate) fn by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(kind, count)| (*kind, *count))
    }
}

fn kind_of(signal: &Signal) -> &'static str {
    match signal.kind {
        SignalKind::Opened => "opened",
        SignalKind::Clicked { .. } => "clicked",
        SignalKind::Unsubscribed { .. } => "unsubscribed",
    }
}

fn detail_of(signal: &Signal) -> Value {
    let mut detail = match &signal.kind {
        SignalKind::Opened => json!({}),
        SignalKind::Clicked { url, link } => json!({"url": url, "link": link}),
        SignalKind::Unsubscribed { method } => json!({"method": method}),
    };
    for (name, value) in [("ip", &signal.ip), ("user_agent", &signal.user_agent)] {
        if let Some(value) = value {
            detail[name] = json!(value);
        }
    }
    detail
}

/// The sends that are named by signals and are not in the ledger.
pub(crate) async fn unknown_sends(pool: &PgPool, inputs: &[Signal]) -> sqlx::Result<Vec<Uuid>> {
    let tenants: Vec<Uuid> = inputs.iter().map(|input| input.tenant_id).collect();
    let ids: Vec<Uuid> = inputs.iter().map(|input| input.send_id).collect();
    let months: Vec<NaiveDate> = inputs.iter().map(|input| SendId(input.send_id).month()).collect();
    sqlx::query_scalar!(
        r#"select w.id as "id!" from unnest($1::uuid[], $2::uuid[], $3::date[]) as w (tenant_id, id, month)
           where not exists (select from sends s where s.tenant_id = w.tenant_id and s.id = w.id and s.month = w.month)"#,
        &tenants,
        &ids,
        &months
    )
    .fetch_all(pool)
    .await
}

/// Opts out the recipients of unsubscribe signals. The edge did so before it answered; this holds for signals from elsewhere.
pub(crate) async fn leave(pool: &PgPool, inputs: &[Signal]) -> sqlx::Result<()> {
    let leaving: Vec<&Signal> =
        inputs.iter().filter(|input| matches!(input.kind, SignalKind::Unsubscribed { .. })).collect();
    if leaving.is_empty() {
        return Ok(());
    }
    let tenants: Vec<Uuid> = leaving.iter().map(|input| input.tenant_id).collect();
    let ids: Vec<Uuid> = leaving.iter().map(|input| input.send_id).collect();
    let months: Vec<NaiveDate> = leaving.iter().map(|input| SendId(input.send_id).month()).collect();
    let at: Vec<DateTime<Utc>> = leaving.iter().map(|input| input.occurred_at).collect();
    let suppression_ids: Vec<Uuid> = leaving.iter().map(|_| schemas::new_id()).collect();
    let mut tx = pool.begin().await?;
    // The rows first, in id order, as every suppression writer does: a fence and an opt-out cannot pass each other.
    sqlx::query!(
        "select 1 as one from contacts c
         join (select distinct s.tenant_id, s.contact_id
               from unnest($1::uuid[], $2::uuid[], $3::date[]) as w (tenant_id, id, month)
               join sends s on s.tenant_id = w.tenant_id and s.id = w.id and s.month = w.month) as who
           on who.tenant_id = c.tenant_id and who.contact_id = c.id
         order by c.id for no key update of c",
        &tenants,
        &ids,
        &months
    )
    .fetch_all(&mut *tx)
    .await?;
    sqlx::query_file!("queries/leave.sql", &tenants, &ids, &months, &at, &suppression_ids).execute(&mut *tx).await?;
    tx.commit().await
}

/// Records the signals that are new: facts, first times on the sends, counters on their batches, totals of the day.
pub(crate) async fn record(pool: &PgPool, inputs: &[Signal], shard: i16) -> sqlx::Result<Fresh> {
    let mut tx = pool.begin().await?;
    lock_batches(&mut tx, inputs).await?;
    let mut signals: Vec<&Signal> = inputs.iter().collect();
    signals.sort_by_key(|signal| (signal.send_id, signal.signal_id));
    let tenants: Vec<Uuid> = signals.iter().map(|signal| signal.tenant_id).collect();
    let sends: Vec<Uuid> = signals.iter().map(|signal| signal.send_id).collect();
    let ids: Vec<Uuid> = signals.iter().map(|signal| signal.signal_id).collect();
    let months: Vec<NaiveDate> = signals.iter().map(|signal| SendId(signal.send_id).month()).collect();
    let types: Vec<String> = signals.iter().map(|signal| kind_of(signal).to_owned()).collect();
    let at: Vec<DateTime<Utc>> = signals.iter().map(|signal| signal.occurred_at).collect();
    let details: Vec<Value> = signals.iter().map(|signal| detail_of(signal)).collect();
    let new: BTreeSet<Uuid> = sqlx::query_scalar!(
        "insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
         select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[], $5::text[], $6::timestamptz[], $7::jsonb[])
         on conflict do nothing
         returning id",
        &tenants,
        &sends,
        &ids,
        &months,
        &types,
        &at,
        &details
    )
    .fetch_all(&mut *tx)
    .await?
    .into_iter()
    .collect();
    let mut fresh = Fresh::default();
    let mut counted = BTreeSet::new();
    for signal in &signals {
        // One id twice in one group is one fact.
        if new.contains(&signal.signal_id) && counted.insert(signal.signal_id) {
            *fresh.0.entry(kind_of(signal)).or_default() += 1;
        }
    }
    if !new.is_empty() {
        let new: Vec<Uuid> = new.into_iter().collect();
        fold(&mut tx, &tenants, &sends, &months, &new, shard).await?;
    }
    tx.commit().await?;
    Ok(fresh)
}

/// Batches before sends, in id order: the lock order of the whole ledger.
async fn lock_batches(db: &mut PgConnection, inputs: &[Signal]) -> sqlx::Result<()> {
    let keys: BTreeSet<(Uuid, Uuid)> =
        inputs.iter().map(|input| (input.tenant_id, SendId(input.send_id).batch())).collect();
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = keys.into_iter().unzip();
    sqlx::query!(
        "select 1 as one from batches b
         join unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id) on b.tenant_id = w.tenant_id and b.id = w.id
         order by b.tenant_id, b.id for no key update of b",
        &tenants,
        &ids
    )
    .fetch_all(db)
    .await
    .map(drop)
}

/// Folds new facts into sends, batches and totals. The facts are read back from `events`: what counts is what is stored.
async fn fold(
    db: &mut PgConnection,
    tenants: &[Uuid],
    sends: &[Uuid],
    months: &[NaiveDate],
    new: &[Uuid],
    shard: i16,
) -> sqlx::Result<()> {
    let firsts = sqlx::query_file!("queries/fold.sql", tenants, sends, months, new).fetch_all(&mut *db).await?;
    let mut batches: BTreeMap<(Uuid, Uuid), [i32; 3]> = BTreeMap::new();
    for row in &firsts {
        let counts = batches.entry((row.tenant_id, SendId(row.send_id).batch())).or_default();
        counts[0] += i32::from(row.first_open);
        counts[1] += i32::from(row.first_click);
        counts[2] += i32::from(row.first_unsubscribe);
    }
    let column = |at: usize| batches.values().map(|counts| counts[at]).collect::<Vec<i32>>();
    let (batch_tenants, batch_ids): (Vec<Uuid>, Vec<Uuid>) = batches.keys().copied().unzip();
    sqlx::query!(
        "update batches b set opened = b.opened + d.opened, clicked = b.clicked + d.clicked,
                unsubscribed = b.unsubscribed + d.unsubscribed
         from unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::int[]) as d (tenant_id, id, opened, clicked, unsubscribed)
         where b.tenant_id = d.tenant_id and b.id = d.id and d.opened + d.clicked + d.unsubscribed > 0",
        &batch_tenants,
        &batch_ids,
        &column(0),
        &column(1),
        &column(2)
    )
    .execute(&mut *db)
    .await?;
    sqlx::query_file!(
        "queries/rollups.sql",
        &batch_tenants,
        &batch_ids,
        &column(0),
        &column(1),
        &column(2),
        tenants,
        sends,
        months,
        new,
        shard
    )
    .execute(db)
    .await
    .map(drop)
}
