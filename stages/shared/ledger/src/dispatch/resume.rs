//! Brings back what was put aside for a paused tenant, once it is resumed.
//!
//! Those of the bulk lane are handed on like all others. Those of the priority lane are announced as they are made and wait for nobody,
//! so they are announced anew here. Compliance puts a batch aside only while it holds the tenant's row and the row says "paused": once a
//! resumption is committed nothing more is put aside, and one look that finds nothing is the end.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep};
use sqlx::PgPool;

const INTERVAL: Duration = Duration::from_millis(500);
/// Batches woken in one transaction.
const AT_ONCE: i64 = 500;

/// Brings the batches of resumed tenants back.
pub struct ResumeTenants {
    pool: PgPool,
}

impl ResumeTenants {
    /// The sweep.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl Sweep for ResumeTenants {
    fn name(&self) -> &'static str {
        "wake"
    }

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let tenants =
            sqlx::query_scalar!("select id from tenants where wakes order by id").fetch_all(&self.pool).await?;
        let mut found = 0;
        for tenant in tenants {
            let woken = sqlx::query_file!("queries/dispatch/wake_batches.sql", tenant, AT_ONCE)
                .execute(&self.pool)
                .await?
                .rows_affected();
            found += woken;
            if woken == 0 {
                // What another process has locked is being woken by it.
                sqlx::query!(
                    "update tenants set wakes = false
                     where id = $1 and wakes
                       and not exists (select from batches b where b.lane = 'priority' and b.state = 'waiting' and b.tenant_id = $1)",
                    tenant
                )
                .execute(&self.pool)
                .await?;
            }
        }
        Ok(found)
    }
}
