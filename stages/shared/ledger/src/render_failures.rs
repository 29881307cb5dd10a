//! Records render failures: the send fails with its reason, and the other recipients are not affected.

use std::collections::BTreeMap;

use runner::StageError;
use runtime::Counter;
use schemas::{Cleared, SendId, month_of};
use sqlx::{Connection, PgConnection, PgPool};
use uuid::Uuid;

/// A send that could not be rendered.
#[derive(Debug, Clone, Copy)]
pub struct RenderFailure {
    /// Index of its batch among the inputs.
    pub input: usize,
    /// The send.
    pub send_id: SendId,
    /// The code of the failure.
    pub code: &'static str,
}

/// Records failures, a transaction per batch. A send that is no longer queued or deferred is left as it is, so a repeat changes
/// nothing.
///
/// # Errors
/// When Postgres is away.
pub async fn record(
    pool: &PgPool,
    inputs: &[Cleared],
    failures: &[RenderFailure],
    shard: i16,
) -> Result<(), StageError> {
    let mut by_batch: BTreeMap<usize, Vec<RenderFailure>> = BTreeMap::new();
    for failure in failures {
        by_batch.entry(failure.input).or_default().push(*failure);
    }
    for (input, failures) in by_batch {
        let Some(batch) = inputs.get(input) else { continue };
        let mut connection = pool.acquire().await?;
        let failed = record_batch(&mut connection, batch, &failures, shard).await?;
        if failed > 0 {
            Counter::SendsTotal.add(failed, [("lane", batch.lane.as_str()), ("state", "failed")]);
            Counter::SendsFailedTotal.add(failed, [("lane", batch.lane.as_str()), ("class", "render")]);
            tracing::info!(
                tenant_id = %batch.tenant_id, batch_id = %batch.batch_id, failed, code = failures.first().map_or("", |first| first.code),
                "recipients could not be rendered"
            );
        }
    }
    Ok(())
}

async fn record_batch(
    connection: &mut PgConnection,
    batch: &Cleared,
    failures: &[RenderFailure],
    shard: i16,
) -> Result<u64, StageError> {
    let month = month_of(batch.batch_id);
    let last = SendId::last_of(batch.batch_id);
    let (ids, codes): (Vec<Uuid>, Vec<String>) =
        failures.iter().map(|failure| (failure.send_id.0, failure.code.to_owned())).unzip();
    let mut tx = connection.begin().await?;
    // Lock order: batches, then sends, then rollups.
    sqlx::query!("select from batches where tenant_id = $1 and id = $2 for update", batch.tenant_id, batch.batch_id)
        .fetch_optional(&mut *tx)
        .await?;
    let moved =
        sqlx::query_file!("queries/render/fail_sends.sql", batch.tenant_id, month, batch.batch_id, &ids, &codes, last)
            .fetch_one(&mut *tx)
            .await?;
    let failed = moved.queued + moved.deferred;
    if failed > 0 {
        let small = |count: i64| i32::try_from(count).unwrap_or(i32::MAX);
        sqlx::query_file!(
            "queries/render/finish_batch.sql",
            batch.tenant_id,
            batch.batch_id,
            small(moved.queued),
            small(moved.deferred),
            month,
            last
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!(
            "insert into rollups (tenant_id, hour, kind, event, shard, count)
             select $1, date_trunc('hour', now(), 'UTC'), t.kind, t.event, $3, $4
             from (values ($2, 'failed'), ('failure', 'render')) as t (kind, event) where $2 <> 'test'
             on conflict (tenant_id, hour, kind, event, shard) do update set count = rollups.count + excluded.count",
            batch.tenant_id,
            batch.kind.as_str(),
            shard,
            failed
        )
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    Ok(u64::try_from(failed).unwrap_or(0))
}
