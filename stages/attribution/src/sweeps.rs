//! Sweeps: find outcomes in the ledger that were not announced.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::plans::PreparedPool;

use crate::credit;

/// The most late facts that are taken in one transaction.
const NOTES_MAX: i64 = 200;

/// The sweep for late clicks, bounces and contacts: makes the outcomes due that they may affect.
pub(crate) struct LateFacts(pub(crate) PreparedPool);

#[async_trait]
impl Sweep for LateFacts {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("late_facts", Duration::from_secs(1)).when("exists (select from late_facts)")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.0.begin().await?;
        let taken = sqlx::query_file_scalar!("queries/late_facts.sql", NOTES_MAX).fetch_one(&mut *tx).await?;
        tx.commit().await?;
        Ok(u64::try_from(taken).unwrap_or(0))
    }
}

/// The sweep for due outcomes: not announced, affected by late facts, or due for a recheck. What is due now comes before outcomes that a change
/// of the model makes due.
pub(crate) struct DueOutcomes(pub(crate) PreparedPool);

#[async_trait]
impl Sweep for DueOutcomes {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("due_outcomes", Duration::from_secs(1)).when(
            "exists (select from outcomes where credit_due <= now())
                   or exists (select from attribution_settings where restate_after is not null)",
        )
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let counts = credit::credit_due_outcomes(&self.0).await?;
        counts.count();
        if counts.outcomes == credit::OUTCOMES_MAX.unsigned_abs() {
            return Ok(counts.outcomes);
        }
        let mut tx = self.0.begin().await?;
        let restated =
            sqlx::query_file_scalar!("queries/restate.sql", credit::OUTCOMES_MAX).fetch_one(&mut *tx).await?;
        tx.commit().await?;
        Ok(counts.outcomes + u64::try_from(restated).unwrap_or(0))
    }
}
