//! Forgets the traces of work that is long done.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep};
use runtime::trace::KEPT_FOR_DAYS;
use sqlx::PgPool;

const INTERVAL: Duration = Duration::from_secs(60 * 60);

pub(super) struct Traces {
    pool: PgPool,
}

impl Traces {
    pub(super) fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl Sweep for Traces {
    fn name(&self) -> &'static str {
        "traces"
    }

    fn interval(&self) -> Duration {
        INTERVAL
    }

    fn rests(&self) -> bool {
        false
    }

    /// Tidying up is nothing that was found and put right.
    async fn sweep(&self) -> Result<u64, StageError> {
        sqlx::query!("delete from traces where kept_at < now() - make_interval(days => $1)", KEPT_FOR_DAYS)
            .execute(&self.pool)
            .await?;
        Ok(0)
    }
}
