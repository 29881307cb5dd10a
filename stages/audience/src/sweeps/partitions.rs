//! Makes the month partitions of `sends` and `events` ahead of time.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use sqlx::PgPool;

const INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Months that are there before they are needed.
const MONTHS_AHEAD: i32 = 3;

pub(super) struct CreatePartitions(pub(super) PgPool);

#[async_trait]
impl Sweep for CreatePartitions {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("create_partitions", INTERVAL).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let made =
            sqlx::query_scalar!(r#"select ensure_partitions($1) as "made!""#, MONTHS_AHEAD).fetch_one(&self.0).await?;
        Ok(u64::try_from(made).unwrap_or(0))
    }
}
