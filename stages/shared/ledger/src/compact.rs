//! Compacts the tables that analytics read: folds logs into totals, and merges the shards of past hours.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use sqlx::PgPool;

/// Rows of a log folded at a time; a sweep that found so many runs again at once.
const AT_ONCE: i64 = 5_000;

/// Folds the logs of suppressions and contents. Several processes may run it: each takes rows that no other has locked.
pub struct FoldLogs(pub PgPool);

#[async_trait]
impl Sweep for FoldLogs {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("fold_logs", Duration::from_secs(10))
            .when("exists (select from suppression_changes) or exists (select from content_changes)")
            .also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let suppressions =
            sqlx::query_file_scalar!("queries/compact/compact_suppressions.sql", AT_ONCE).fetch_one(&self.0).await?;
        let contents =
            sqlx::query_file_scalar!("queries/compact/compact_contents.sql", AT_ONCE).fetch_one(&self.0).await?;
        // Below the limit everything is folded, and the next run may wait.
        let full = suppressions.max(contents) >= AT_ONCE;
        Ok(if full { u64::try_from(suppressions + contents).unwrap_or(0) } else { 0 })
    }
}

/// Merges the shards of past hours.
pub struct MergeHours(pub PgPool);

#[async_trait]
impl Sweep for MergeHours {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("merge_hours", Duration::from_secs(300)).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let saved = sqlx::query_file_scalar!("queries/compact/compact_hours.sql", AT_ONCE).fetch_one(&self.0).await?;
        Ok(u64::try_from(saved).unwrap_or(0))
    }
}
