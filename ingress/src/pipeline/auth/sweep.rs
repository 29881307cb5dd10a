//! What the edge keeps for a while only: nonces, rate counts, idempotency keys.

use std::time::Duration;

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::pipeline::idempotency::KEPT_HOURS;

const EVERY: Duration = Duration::from_secs(60);
/// Rows deleted in one transaction.
const SLICE: i64 = 5_000;

/// Deletes what is past its time, every minute, until shut down. Several processes may do so at once.
pub async fn run(pool: PgPool, shutdown: CancellationToken) {
    while shutdown.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        if let Err(error) = sweep(&pool).await {
            tracing::warn!(transient = runtime::db::is_transient(&error), "edge sweep failed; it runs again");
        }
    }
}

/// Runs a statement that deletes at most so many rows (`$1`) until it finds fewer. Each slice is a transaction: a busy day's keys are
/// millions.
macro_rules! delete_in_slices {
    ($pool:expr, $statement:tt $(, $value:expr)*) => {
        while sqlx::query!($statement, SLICE $(, $value)*).execute($pool).await?.rows_affected() >= SLICE.unsigned_abs() {}
    };
}

/// One sweep.
pub async fn sweep(pool: &PgPool) -> sqlx::Result<()> {
    // A timestamp is accepted from five minutes before to five minutes after its time, so a nonce must be known for ten.
    delete_in_slices!(
        pool,
        "delete from nonces where ctid = any(array(
             select ctid from nonces where seen_at < now() - interval '15 minutes' order by seen_at limit $1))"
    );
    // By two seconds: what is five minutes old counts no more.
    delete_in_slices!(
        pool,
        "delete from rate_counts where ctid = any(array(
             select ctid from rate_counts where bucket < floor(extract(epoch from now()) / 2) - 150 limit $1))"
    );
    // A key that is being claimed anew is another row already: without the lock that one would be deleted.
    delete_in_slices!(
        pool,
        "delete from idempotency_keys where ctid = any(array(
             select ctid from idempotency_keys where created_at < now() - make_interval(hours => $2) order by created_at limit $1
             for update skip locked))",
        KEPT_HOURS
    );
    Ok(())
}
