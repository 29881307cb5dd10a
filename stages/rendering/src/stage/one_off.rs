//! Mail with content of its own: one-off messages and mail with attachments. Its skeletons and attachments, and when these are purged.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use schemas::Cleared;
use sqlx::PgPool;

use super::{BatchContents, renditions::OwnSkeleton};

/// The skeletons that only one mail uses.
pub(super) fn skeletons(inputs: &[Cleared], contents: &BatchContents) -> Result<Vec<OwnSkeleton>, StageError> {
    let mut skeletons = Vec::new();
    for ((input, _), content) in contents {
        let ready = content.as_ref().filter(|ready| ready.owns_skeleton);
        if let (Some(batch), Some(ready)) = (inputs.get(*input), ready) {
            let body = serde_json::to_value(ready.compiled.skeleton())?;
            skeletons.push(OwnSkeleton {
                tenant_id: batch.tenant_id,
                id: ready.skeleton.clone(),
                body,
                message_id: batch.batch_id,
                content_id: batch.kind.is_written().then_some(batch.content_id),
            });
        }
    }
    Ok(skeletons)
}

/// Deletes the attachments and skeletons of old mail. Mail that is still open, as that of a paused tenant, keeps them.
pub(crate) struct PurgeMessages(pub(crate) PgPool);

/// Most messages purged in one transaction: some hundred megabytes of attachments.
const PURGE_AT_ONCE: i64 = 100;
/// Most transactions of one run.
const PURGE_SLICES: u32 = 50;

#[async_trait]
impl Sweep for PurgeMessages {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("purge_messages", Duration::from_secs(600)).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut purged = 0;
        for _ in 0..PURGE_SLICES {
            let slice =
                sqlx::query_file_scalar!("queries/purge_messages.sql", PURGE_AT_ONCE).fetch_one(&self.0).await?;
            purged += u64::try_from(slice).unwrap_or(0);
            if slice < PURGE_AT_ONCE {
                break;
            }
        }
        Ok(purged)
    }
}
