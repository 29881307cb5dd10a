//! Enrollments follow their sequence: after a resumption those that came due meanwhile are due again, after an archiving all end.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep};
use runtime::Counter;
use schemas::ExitReason;
use sqlx::PgPool;

/// Enrollments moved in one transaction.
const AT_ONCE: i64 = 5_000;

pub(crate) struct Settle {
    pub(crate) pool: PgPool,
}

#[async_trait]
impl Sweep for Settle {
    fn name(&self) -> &'static str {
        "settle"
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn rests(&self) -> bool {
        false
    }

    /// One sequence and a part of its enrollments per run. A step that began before the change may still park one: so a sequence is
    /// looked at until no transaction can be that old.
    async fn sweep(&self) -> Result<u64, StageError> {
        let settled = sqlx::query_file!("queries/settle.sql", AT_ONCE).fetch_one(&self.pool).await?;
        let count = |count: i64| u64::try_from(count).unwrap_or(0);
        if settled.archived > 0 {
            let reason = ExitReason::SequenceArchived.as_str();
            Counter::EnrollmentsEndedTotal.add(count(settled.archived), [("reason", reason)]);
        }
        Ok(count(settled.archived + settled.resumed))
    }
}
