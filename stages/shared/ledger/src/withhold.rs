//! Writes the gate's decisions: a withheld send becomes `skipped` with its reason, and the batch's counters move in the same transaction.

use chrono::{DateTime, Utc};
use runtime::{Counter, column};
use schemas::{SendId, SkipReason, month_of};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::{
    gate::{BatchFacts, Hold},
    hours::shard_of,
};

/// Skips these sends, unless a worker has fenced them by now.
pub async fn withhold(pool: &PgPool, batch: &BatchFacts, withheld: &[(Uuid, SkipReason)]) -> sqlx::Result<()> {
    let mut tx = pool.begin().await?;
    lock_batch(&mut tx, batch).await?;
    let skipped = sqlx::query_file!(
        "queries/gate/withhold.sql",
        batch.tenant_id,
        batch.batch_id,
        SendId::last_of(batch.batch_id),
        month_of(batch.batch_id),
        &column(withheld, |(id, _)| *id),
        &column(withheld, |(_, reason)| reason.as_str().to_owned())
    )
    .fetch_one(&mut *tx)
    .await?
    .skipped;
    if skipped > 0 {
        sqlx::query!(
            "insert into rollups (tenant_id, hour, kind, event, shard, count)
             select $1, date_trunc('hour', now(), 'UTC'), $2, 'skipped', $3, $4 where $2 <> 'test'
             on conflict (tenant_id, hour, kind, event, shard) do update set count = rollups.count + excluded.count",
            batch.tenant_id,
            batch.kind.as_str(),
            shard_of(batch.batch_id),
            skipped
        )
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    for (_, reason) in withheld.iter().take(usize::try_from(skipped).unwrap_or(0)) {
        Counter::SendsWithheldTotal.add(1, [("stage", "compliance"), ("reason", reason.as_str())]);
    }
    Ok(())
}

/// Puts sends off until these times, unless a worker has fenced them by now.
///
/// # Errors
/// When Postgres is away.
pub async fn put_off(pool: &PgPool, batch: &BatchFacts, held: &[(Uuid, Hold, DateTime<Utc>)]) -> sqlx::Result<()> {
    let mut tx = pool.begin().await?;
    lock_batch(&mut tx, batch).await?;
    sqlx::query_file!(
        "queries/gate/put_off.sql",
        batch.tenant_id,
        batch.batch_id,
        SendId::last_of(batch.batch_id),
        month_of(batch.batch_id),
        &column(held, |(id, ..)| *id),
        &column(held, |(.., until)| *until),
        &column(held, |(_, hold, _)| hold.as_str()) as &[&str]
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await
}

/// Gives a batch of which nothing was tried a time: it waits for dispatch then. The sends stay as they are, so that a million of them are
/// two thousand rows. Its mail is dated by it, unless it may be of an attempt that is in doubt: that is repeated with the same bytes.
///
/// # Errors
/// When Postgres is away.
pub async fn set_time(pool: &PgPool, batch: &BatchFacts, until: DateTime<Utc>) -> sqlx::Result<()> {
    sqlx::query!(
        "update batches set state = 'timed', announce_after = $3, quiet_at = now(),
                            due_at = case when classification = 'marketing' then $3 else due_at end
         where tenant_id = $1 and id = $2 and state = 'announced' and fenced + deferred = 0",
        batch.tenant_id,
        batch.batch_id,
        until
    )
    .execute(pool)
    .await
    .map(drop)
}

/// Locks a batch: it comes before its sends, the lock order of the whole ledger.
async fn lock_batch(db: &mut PgConnection, batch: &BatchFacts) -> sqlx::Result<()> {
    sqlx::query!(
        "select 1 as one from batches where tenant_id = $1 and id = $2 for update",
        batch.tenant_id,
        batch.batch_id
    )
    .fetch_one(db)
    .await
    .map(drop)
}

/// Batches of a paused campaign go back to waiting for dispatch. A batch with only deferred sends is due at once when the campaign is
/// resumed; a batch with a fenced send is left to its worker.
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
         set state = case when b.queued > 0 then 'waiting' else b.state end,
             quiet_at = case when b.queued > 0 then now() else b.quiet_at end,
             announce_after = case when b.queued = 0 then now() end
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
    let tenants: Vec<Uuid> = batches.iter().map(|batch| batch.tenant_id).collect();
    let ids: Vec<Uuid> = batches.iter().map(|batch| batch.batch_id).collect();
    let mut tx = pool.begin().await?;
    sqlx::query!(
        "select b.id
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
         join batches b on b.tenant_id = w.tenant_id and b.id = w.id
         order by b.tenant_id, b.id
         for update of b",
        &tenants,
        &ids
    )
    .fetch_all(&mut *tx)
    .await?;
    sqlx::query!("select id from tenants where id = any($1) order by id for share", &tenants)
        .fetch_all(&mut *tx)
        .await?;
    sqlx::query_file!("queries/gate/put_aside.sql", &tenants, &ids).execute(&mut *tx).await?;
    tx.commit().await
}
