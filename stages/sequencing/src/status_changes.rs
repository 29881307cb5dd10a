//! Applies a sequence's new status to its enrollments: after a resumption, also of its tenant, the paused ones are due again, after archiving
//! all end.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::Counter;
use schemas::ExitReason;
use sqlx::PgPool;

/// Enrollments moved in one transaction.
const AT_ONCE: i64 = 5_000;

pub(crate) struct StatusChanges(pub(crate) PgPool);

#[async_trait]
impl Sweep for StatusChanges {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("apply_status_changes", Duration::from_millis(500))
            .when("exists (select from sequences where unapplied_since is not null)")
            .also_when_paused()
    }

    /// One run takes up to a hundred archived sequences and a hundred others, of whichever tenants, and a part of their enrollments. A group that
    /// was writing its moves at the change may still pause an enrollment, so a sequence is visited for a minute.
    async fn sweep(&self) -> Result<u64, StageError> {
        let applied = sqlx::query_file!("queries/apply_status_changes.sql", AT_ONCE).fetch_one(&self.0).await?;
        let count = |count: i64| u64::try_from(count).unwrap_or(0);
        if applied.archived > 0 {
            let reason = ExitReason::SequenceArchived.as_str();
            Counter::EnrollmentsEndedTotal.add(count(applied.archived), [("reason", reason)]);
        }
        Ok(count(applied.archived + applied.resumed))
    }
}
