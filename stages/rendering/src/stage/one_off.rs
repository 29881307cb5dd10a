//! One-off messages: their skeletons and attachments, and when these are purged.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep};
use schemas::{Cleared, MessageKind};
use sqlx::PgPool;

use super::{content::Content, renditions::OwnSkeleton};

/// The skeletons of the messages among these batches.
pub(super) fn skeletons(inputs: &[Cleared], contents: &[Content]) -> Result<Vec<OwnSkeleton>, StageError> {
    let mut skeletons = Vec::new();
    for (batch, content) in inputs.iter().zip(contents) {
        if let (MessageKind::OneOff, Some(ready)) = (batch.kind, content) {
            let body = serde_json::to_value(ready.compiled.skeleton())?;
            skeletons.push(OwnSkeleton { tenant_id: batch.tenant_id, id: ready.skeleton.clone(), body });
        }
    }
    Ok(skeletons)
}

/// Deletes the attachments and skeletons of old messages: a message has its outcome within two days, and this is well past that.
pub(crate) struct PurgeMessages {
    pool: PgPool,
}

impl PurgeMessages {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

/// Most messages purged in one run: some hundred megabytes of attachments.
const PURGE_AT_ONCE: i64 = 100;

#[async_trait]
impl Sweep for PurgeMessages {
    fn name(&self) -> &'static str {
        "purge_messages"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(600)
    }

    fn stops_when_paused(&self) -> bool {
        false
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let purged =
            sqlx::query_file_scalar!("queries/purge_messages.sql", PURGE_AT_ONCE).fetch_one(&self.pool).await?;
        Ok(u64::try_from(purged).unwrap_or(0))
    }
}
