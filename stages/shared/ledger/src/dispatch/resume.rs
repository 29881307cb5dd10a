//! Brings back the batches of a paused tenant after it is resumed.
//!
//! Dispatch takes those of the bulk lane. Those of the priority lane do not pass through dispatch, so this sweep announces them. Compliance
//! sets a batch aside only while it has the tenant's row locked and the row says "paused": after a resumption is committed no more batches
//! are set aside, and a sweep that finds none ends the resumption.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use sqlx::PgPool;

const INTERVAL: Duration = Duration::from_millis(500);
/// Batches resumed in one transaction.
const AT_ONCE: i64 = 500;

/// Brings the batches of resumed tenants back.
pub struct ResumeTenants(pub PgPool);

#[async_trait]
impl Sweep for ResumeTenants {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("resume_tenants", INTERVAL).when("exists (select from tenants where resuming)")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let tenants =
            sqlx::query_scalar!("select id from tenants where resuming order by id").fetch_all(&self.0).await?;
        let mut found = 0;
        for tenant in tenants {
            let resumed = sqlx::query_file!("queries/dispatch/resume_batches.sql", tenant, AT_ONCE)
                .execute(&self.0)
                .await?
                .rows_affected();
            found += resumed;
            if resumed == 0 {
                // What another process has locked is being resumed by it.
                sqlx::query!(
                    "update tenants set resuming = false
                     where id = $1 and resuming
                       and not exists (select from batches b where b.lane = 'priority' and b.state = 'waiting' and b.tenant_id = $1)",
                    tenant
                )
                .execute(&self.0)
                .await?;
            }
        }
        Ok(found)
    }
}
