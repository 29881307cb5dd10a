//! Writes the gate's decisions: a withheld send becomes `skipped` with its reason, and the batch's counters move in the same transaction.

use runtime::Counter;
use schemas::{SendId, SkipReason, month_of};
use sqlx::PgPool;
use uuid::Uuid;

use crate::{gate::BatchFacts, hours::shard_of};

/// Skips these sends, unless a worker has fenced them by now.
pub async fn withhold(pool: &PgPool, batch: &BatchFacts, withheld: &[(Uuid, SkipReason)]) -> sqlx::Result<()> {
    let ids: Vec<Uuid> = withheld.iter().map(|(id, _)| *id).collect();
    let reasons: Vec<String> = withheld.iter().map(|(_, reason)| reason.as_str().to_owned()).collect();
    let mut tx = pool.begin().await?;
    // Batch before sends: the lock order of the whole ledger.
    sqlx::query!(
        "select 1 as one from batches where tenant_id = $1 and id = $2 for update",
        batch.tenant_id,
        batch.batch_id
    )
    .fetch_one(&mut *tx)
    .await?;
    let skipped = sqlx::query_file!(
        "queries/gate/withhold.sql",
        batch.tenant_id,
        batch.batch_id,
        SendId::last_of(batch.batch_id),
        month_of(batch.batch_id),
        &ids,
        &reasons
    )
    .fetch_one(&mut *tx)
    .await?
    .skipped;
    if skipped > 0 {
        sqlx::query!(
            "insert into rollups (tenant_id, hour, kind, event, shard, count)
             values ($1, date_trunc('hour', now(), 'UTC'), $2, 'skipped', $3, $4)
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

/// Batches of a paused campaign go back to waiting for dispatch. A batch with only deferred sends is due at once when the campaign is
/// resumed; a batch with a fenced send is left to its worker.
pub async fn put_back(pool: &PgPool, batches: &[&BatchFacts]) -> sqlx::Result<()> {
    let tenants: Vec<Uuid> = batches.iter().map(|batch| batch.tenant_id).collect();
    let ids: Vec<Uuid> = batches.iter().map(|batch| batch.batch_id).collect();
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
        &tenants,
        &ids
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
