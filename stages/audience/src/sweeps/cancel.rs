//! Cancels what a cancelled campaign still owes. What a delivery worker holds, it finishes or gives back itself.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep};
use runtime::Counter;
use schemas::SendId;
use sqlx::PgPool;
use uuid::Uuid;

const INTERVAL: Duration = Duration::from_millis(500);
/// Batches per transaction: 10,000 sends, some tens of milliseconds.
const AT_ONCE: i64 = 20;

pub(super) struct Cancel {
    pool: PgPool,
}

impl Cancel {
    pub(super) fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl Sweep for Cancel {
    fn name(&self) -> &'static str {
        "cancel"
    }

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.pool.begin().await?;
        let held = sqlx::query!(
            "select b.tenant_id, b.id, b.month
             from campaigns c
             join batches b on b.tenant_id = c.tenant_id and b.campaign_id = c.id
             where c.status = 'cancelled' and c.completed_at is null and b.state <> 'done' and b.queued + b.deferred > 0
             order by b.tenant_id, b.id
             limit $1
             for update of b skip locked",
            AT_ONCE,
        )
        .fetch_all(&mut *tx)
        .await?;
        if held.is_empty() {
            return Ok(0);
        }
        let tenants: Vec<Uuid> = held.iter().map(|batch| batch.tenant_id).collect();
        let ids: Vec<Uuid> = held.iter().map(|batch| batch.id).collect();
        let last: Vec<Uuid> = ids.iter().map(|id| SendId::last_of(*id)).collect();
        let months: Vec<_> = held.iter().map(|batch| batch.month).collect();
        let cancelled = sqlx::query_file_scalar!("queries/cancel_sends.sql", &tenants, &ids, &last, &months)
            .fetch_one(&mut *tx)
            .await?;
        tx.commit().await?;
        Counter::SendsTotal.add(u64::try_from(cancelled).unwrap_or(0), [("lane", "bulk"), ("state", "cancelled")]);
        Ok(held.len() as u64)
    }
}
