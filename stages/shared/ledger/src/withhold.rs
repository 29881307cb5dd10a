//! Writes the gate's decisions: a withheld send becomes `skipped` with its reason, and the batch's counters move in the same transaction.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use runtime::{Counter, column};
use schemas::{SendId, SendState, SkipReason, month_of};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::{
    counters::{self, CounterDelta, Totals, UsageTotals},
    endings::{Ending, end_sends},
    gate::{self, BatchFacts, Hold},
    hours::BatchKey,
};

/// Skips these sends, unless a worker has fenced them by now. Mail in doubt stays unknown.
pub async fn withhold(pool: &PgPool, batch: &BatchFacts, withheld: &[(Uuid, SkipReason)]) -> sqlx::Result<()> {
    let of = ((batch.tenant_id, batch.batch_id), batch.kind);
    let endings = column(withheld, |(send, reason)| Ending::new(of, Some(*send), SendState::Skipped, reason.as_str()));
    let mut tx = pool.begin().await?;
    let ended = end_sends(&mut tx, &endings).await?;
    tx.commit().await?;
    for skipped in ended.iter().filter(|ended| ended.to == SendState::Skipped) {
        Counter::SendsWithheldTotal.add(skipped.sends, [("stage", "compliance"), ("reason", skipped.ending.reason)]);
    }
    Ok(())
}

/// Puts sends off until these times, unless a worker has fenced them by now.
pub async fn put_off(pool: &PgPool, batch: &BatchFacts, held: &[(Uuid, Hold, DateTime<Utc>)]) -> sqlx::Result<()> {
    let key = (batch.tenant_id, batch.batch_id);
    let mut tx = pool.begin().await?;
    counters::lock_batches(&mut tx, &[key]).await?;
    let queued = sqlx::query_file_scalar!(
        "queries/gate/put_off.sql",
        batch.tenant_id,
        batch.batch_id,
        SendId::last_of(batch.batch_id),
        month_of(batch.batch_id),
        &column(held, |(id, ..)| *id),
        &column(held, |(.., until)| *until),
        &column(held, |(_, hold, _)| hold.as_str()) as &[&str]
    )
    .fetch_one(&mut *tx)
    .await?;
    let mut delta = CounterDelta::default();
    delta.all_moved(SendState::Queued, SendState::Deferred, queued);
    counters::move_counters(&mut tx, &BTreeMap::from([(key, delta)]), (&Totals::new(), 0), &UsageTotals::new()).await?;
    tx.commit().await
}

/// Gives a batch of which nothing was tried a time: it waits for dispatch then. The sends stay as they are, so that a million of them are
/// two thousand rows. Its mail is dated by it, unless it may be of an attempt that is in doubt: that is repeated with the same bytes.
/// If the tenant's quiet hours are no longer those by which it was decided, or are being changed, the batch stays announced and is decided
/// anew: a change closes the gate, so it is seen here, or finds the batch ([`resume_timed`]).
pub async fn set_time(pool: &PgPool, batch: &BatchFacts, until: DateTime<Utc>) -> sqlx::Result<()> {
    let mut tx = pool.begin().await?;
    counters::lock_batches(&mut tx, &[(batch.tenant_id, batch.batch_id)]).await?;
    let is_open = sqlx::query_scalar!(r#"select try_gate($1) as "open!""#, batch.tenant_id).fetch_one(&mut *tx).await?;
    let decided_by = batch.eligibility.quiet.map(|rule| (rule, batch.quiet_by_contact));
    if !is_open || gate::load_rule(&mut tx, batch.tenant_id, (batch.kind, batch.classification)).await? != decided_by {
        return tx.rollback().await;
    }
    sqlx::query!(
        "update batches set state = 'timed', announce_after = $3, quiet_at = now(),
                            due_at = case when classification = 'marketing' then $3 else due_at end
         where tenant_id = $1 and id = $2 and state = 'announced' and fenced + deferred = 0",
        batch.tenant_id,
        batch.batch_id,
        until
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await
}

/// The tenant's quiet hours have changed: its batches that wait for their end are due, and the gate decides anew. Those of a campaign by its
/// recipients' clocks keep their times. Works in either role.
pub async fn resume_timed(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "with quiet as (
             select b.tenant_id, b.id
             from batches b
             left join campaigns c on c.tenant_id = b.tenant_id and c.id = b.campaign_id
             where b.lane in ('priority', 'bulk') and b.state = 'timed' and b.tenant_id = $1 and c.scheduled_for_local is null
             order by b.id
             for no key update of b skip locked
         )
         update batches b set announce_after = least(b.announce_after, now()), due_at = least(b.due_at, now())
         from quiet q where b.tenant_id = q.tenant_id and b.id = q.id",
        tenant
    )
    .execute(db)
    .await
    .map(drop)
}

/// Batches of a paused campaign go back to waiting for dispatch. A batch with a fenced send is left to its worker.
pub async fn put_back(pool: &PgPool, batches: &[&BatchFacts]) -> sqlx::Result<()> {
    sqlx::query!(
        "with held as (
             select b.tenant_id, b.id
             from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
             join batches b on b.tenant_id = w.tenant_id and b.id = w.id
             where b.state = 'announced' and b.fenced = 0
             order by b.tenant_id, b.id
             for update of b
         )
         update batches b
         set state = 'waiting', quiet_at = now(), announce_after = null
         from held h where b.tenant_id = h.tenant_id and b.id = h.id",
        &column(batches, |batch| batch.tenant_id),
        &column(batches, |batch| batch.batch_id)
    )
    .execute(pool)
    .await
    .map(drop)
}

/// Sets aside the batches of a paused tenant until it is resumed: dispatch takes those of campaigns, the sweep `resume_tenants` the others.
/// The order is: lock the batches, lock the tenants, then check that they are still paused. A resumption waits for this transaction or is
/// seen by it, so no batch is set aside that nothing would bring back. A batch with fenced sends is left to its worker, and comes
/// here again.
pub async fn put_aside(pool: &PgPool, batches: &[&BatchFacts]) -> sqlx::Result<()> {
    let keys: BTreeSet<BatchKey> = batches.iter().map(|batch| (batch.tenant_id, batch.batch_id)).collect();
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = keys.iter().copied().unzip();
    let mut tx = pool.begin().await?;
    counters::lock_batches(&mut tx, &keys.into_iter().collect::<Vec<_>>()).await?;
    sqlx::query!("select id from tenants where id = any($1) order by id for share", &tenants)
        .fetch_all(&mut *tx)
        .await?;
    sqlx::query_file!("queries/gate/put_aside.sql", &tenants, &ids).execute(&mut *tx).await?;
    tx.commit().await
}
