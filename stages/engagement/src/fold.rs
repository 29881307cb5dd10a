//! Signals into the ledger: one transaction for all that came together.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, NaiveDate, Utc};
use schemas::{SendId, Signal, SignalKind};
use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::days::{BatchKey, Days, moves};

/// Rows a day's total is spread over.
const SHARDS: u128 = 16;

/// A shard for this process, so that two processes seldom wait for each other's totals.
pub(crate) fn random_shard() -> i16 {
    i16::try_from(schemas::new_id().as_u128() % SHARDS).unwrap_or(0)
}

/// How many signals were new, by fact.
#[derive(Debug, Default)]
pub(crate) struct Fresh([u64; 3]);

impl Fresh {
    pub(crate) fn len(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> {
        FACTS.into_iter().zip(self.0).filter(|(_, count)| *count > 0)
    }
}

/// The facts that signals tell of a send, in the order of every array of three here.
const FACTS: [&str; 3] = ["opened", "clicked", "unsubscribed"];
/// The totals in which each single one counts, also a repeated one.
const TOTALS: [Option<&str>; 3] = [Some("opened_total"), Some("clicked_total"), None];

/// A send: tenant and id.
type SendKey = (Uuid, Uuid);
/// When each fact happened.
type Times = [Option<DateTime<Utc>>; 3];

fn fact_of(signal: &Signal) -> usize {
    match signal.kind {
        SignalKind::Opened => 0,
        SignalKind::Clicked { .. } => 1,
        SignalKind::Unsubscribed { .. } => 2,
    }
}

fn batch_of((tenant, send): SendKey) -> BatchKey {
    (tenant, SendId(send).batch())
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

/// Records the signals that are new: facts, first times on the sends, counters on their batches, totals of the days.
pub(crate) async fn record(pool: &PgPool, inputs: &[Signal], shard: i16) -> sqlx::Result<Fresh> {
    let mut tx = pool.begin().await?;
    lock_batches(&mut tx, inputs).await?;
    let new = insert_events(&mut tx, inputs).await?;
    let mut fresh = Fresh::default();
    let mut told: BTreeMap<SendKey, Times> = BTreeMap::new();
    let mut days = Days::default();
    for signal in new {
        let send = (signal.tenant_id, signal.send_id);
        let fact = fact_of(signal);
        fresh.0[fact] += 1;
        let earliest = &mut told.entry(send).or_default()[fact];
        *earliest = Some(earliest.map_or(signal.occurred_at, |earliest| earliest.min(signal.occurred_at)));
        if let Some(total) = TOTALS[fact] {
            days.add(batch_of(send), total, signal.occurred_at.date_naive(), 1);
        }
    }
    if !told.is_empty() {
        let firsts = fold_sends(&mut tx, &told, &mut days).await?;
        count_firsts(&mut tx, &firsts).await?;
        days.write(&mut tx, shard).await?;
    }
    tx.commit().await?;
    Ok(fresh)
}

/// Stores the facts, and answers the signals that were not stored before.
async fn insert_events<'a>(db: &mut PgConnection, inputs: &'a [Signal]) -> sqlx::Result<Vec<&'a Signal>> {
    // One id twice in one group is one fact; the order is that of the key, for everybody.
    let signals: BTreeMap<(Uuid, Uuid, Uuid), &Signal> =
        inputs.iter().map(|signal| ((signal.tenant_id, signal.send_id, signal.signal_id), signal)).collect();
    let tenants: Vec<Uuid> = signals.keys().map(|(tenant, ..)| *tenant).collect();
    let sends: Vec<Uuid> = signals.keys().map(|(_, send, _)| *send).collect();
    let ids: Vec<Uuid> = signals.keys().map(|(.., id)| *id).collect();
    let months: Vec<NaiveDate> = sends.iter().map(|send| SendId(*send).month()).collect();
    let types: Vec<String> = signals.values().map(|signal| FACTS[fact_of(signal)].to_owned()).collect();
    let at: Vec<DateTime<Utc>> = signals.values().map(|signal| signal.occurred_at).collect();
    let details: Vec<Value> = signals.values().map(|signal| detail_of(signal)).collect();
    let rows = sqlx::query!(
        "insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
         select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[], $5::text[], $6::timestamptz[], $7::jsonb[])
         on conflict do nothing
         returning tenant_id, send_id, id",
        &tenants,
        &sends,
        &ids,
        &months,
        &types,
        &at,
        &details
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().filter_map(|row| signals.get(&(row.tenant_id, row.send_id, row.id)).copied()).collect())
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

/// Sets the earliest times on the sends, and answers for each batch how many sends have a fact for the first time.
async fn fold_sends(
    db: &mut PgConnection,
    told: &BTreeMap<SendKey, Times>,
    days: &mut Days,
) -> sqlx::Result<BTreeMap<BatchKey, [i32; 3]>> {
    let (tenants, sends): (Vec<Uuid>, Vec<Uuid>) = told.keys().copied().unzip();
    let months: Vec<NaiveDate> = sends.iter().map(|send| SendId(*send).month()).collect();
    let column = |fact: usize| told.values().map(|times| times[fact]).collect::<Vec<Option<DateTime<Utc>>>>();
    let before = sqlx::query_file!(
        "queries/fold.sql",
        &tenants,
        &sends,
        &months,
        &column(0) as &[Option<DateTime<Utc>>],
        &column(1) as &[Option<DateTime<Utc>>],
        &column(2) as &[Option<DateTime<Utc>>],
    )
    .fetch_all(db)
    .await?;
    let mut firsts: BTreeMap<BatchKey, [i32; 3]> = BTreeMap::new();
    for row in before {
        let send = (row.tenant_id, row.send_id);
        let Some(told) = told.get(&send) else { continue };
        for (fact, before) in [row.opened_at, row.clicked_at, row.unsubscribed_at].into_iter().enumerate() {
            let Some(told) = told[fact] else { continue };
            if before.is_none() {
                firsts.entry(batch_of(send)).or_default()[fact] += 1;
            }
            for (day, by) in moves(before, told).into_iter().flatten() {
                days.add(batch_of(send), FACTS[fact], day, by);
            }
        }
    }
    Ok(firsts)
}

/// Counts first facts on their batches, which are locked.
async fn count_firsts(db: &mut PgConnection, firsts: &BTreeMap<BatchKey, [i32; 3]>) -> sqlx::Result<()> {
    if firsts.is_empty() {
        return Ok(());
    }
    let (tenants, batches): (Vec<Uuid>, Vec<Uuid>) = firsts.keys().copied().unzip();
    let column = |fact: usize| firsts.values().map(|counts| counts[fact]).collect::<Vec<i32>>();
    sqlx::query!(
        "update batches b set opened = b.opened + d.opened, clicked = b.clicked + d.clicked,
                unsubscribed = b.unsubscribed + d.unsubscribed
         from unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::int[]) as d (tenant_id, id, opened, clicked, unsubscribed)
         where b.tenant_id = d.tenant_id and b.id = d.id",
        &tenants,
        &batches,
        &column(0),
        &column(1),
        &column(2)
    )
    .execute(db)
    .await
    .map(drop)
}
