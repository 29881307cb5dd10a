//! What the edge keeps for a while only: nonces, rate windows, idempotency keys.

use std::time::Duration;

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(60);

/// Deletes what is past its time, every minute, until shut down. Several processes may do so at once.
pub async fn run(pool: PgPool, shutdown: CancellationToken) {
    while shutdown.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        if let Err(error) = sweep(&pool).await {
            tracing::warn!(transient = runtime::db::is_transient(&error), "edge sweep failed; it runs again");
        }
    }
}

/// One sweep.
///
/// # Errors
/// When Postgres is away.
pub async fn sweep(pool: &PgPool) -> sqlx::Result<()> {
    // A timestamp is accepted from five minutes before to five minutes after its time, so a nonce must be known for ten.
    sqlx::query!("delete from nonces where seen_at < now() - interval '15 minutes'").execute(pool).await?;
    sqlx::query!("delete from rate_windows where window_start < now() - interval '5 minutes'").execute(pool).await?;
    // By two seconds (`rate_counts`): what is five minutes old counts no more.
    sqlx::query!("delete from rate_counts where bucket < floor(extract(epoch from now()) / 2) - 150")
        .execute(pool)
        .await?;
    sqlx::query!("delete from idempotency_keys where created_at < now() - interval '24 hours'").execute(pool).await?;
    Ok(())
}
