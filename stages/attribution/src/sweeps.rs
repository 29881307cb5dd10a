//! Sweeps: what nobody announced is found in the ledger.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep};
use runtime::plans::PreparedPool;

use crate::{credit, stage};

/// Notes taken out in one transaction, at most.
const NOTES_AT_ONCE: i64 = 200;

/// Late clicks, bounces and contacts: the outcomes they may be about are to be looked at.
pub(crate) struct LateFacts(pub(crate) PreparedPool);

#[async_trait]
impl Sweep for LateFacts {
    fn name(&self) -> &'static str {
        "late_facts"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.0.begin().await?;
        let taken = sqlx::query_file_scalar!("queries/late_facts.sql", NOTES_AT_ONCE).fetch_one(&mut *tx).await?;
        tx.commit().await?;
        Ok(u64::try_from(taken).unwrap_or(0))
    }
}

/// Outcomes that are due: not announced, touched by late facts, or to be looked at again.
pub(crate) struct DueOutcomes(pub(crate) PreparedPool);

#[async_trait]
impl Sweep for DueOutcomes {
    fn name(&self) -> &'static str {
        "due_outcomes"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let looked = credit::look_at_due(&self.0).await?;
        stage::count(looked);
        Ok(looked.outcomes)
    }
}
