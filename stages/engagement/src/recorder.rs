//! Records what was taken in a group, so that no item and no locked contact delays the items of others.

use std::slice;

use async_trait::async_trait;
use runner::StageError;
use uuid::Uuid;

/// Records items of many tenants.
#[async_trait]
pub(crate) trait GroupRecorder: Send + Sync {
    /// What is recorded.
    type Item: Send + Sync;

    /// The tenant of an item.
    fn tenant(item: &Self::Item) -> Uuid;

    /// Records items in one transaction. It waits for locks as [`runtime::db::WAIT_BRIEFLY`] has it.
    async fn record(&self, items: &[Self::Item]) -> sqlx::Result<()>;

    /// Has items tried again in two seconds: they are not at fault.
    async fn give_back(&self, items: &[Self::Item]);

    /// An item cannot be recorded. It costs itself only.
    async fn refuse(&self, item: &Self::Item, error: StageError);

    /// Records items: together, else tenant by tenant, else one by one. An import may hold a contact for seconds: of its tenant, the item
    /// that needs it and those after it are given back, and the items of other tenants are recorded.
    async fn record_group(&self, items: &mut [Self::Item]) -> Result<(), StageError> {
        if items.is_empty() {
            return Ok(());
        }
        let Err(error) = self.record(items).await else { return Ok(()) };
        tracing::debug!(
            stage = "engagement",
            error = runtime::db::describe(&error),
            "a group is recorded tenant by tenant"
        );
        items.sort_by_key(Self::tenant);
        let items = &*items;
        let tenants: Vec<&[Self::Item]> = items.chunk_by(|one, next| Self::tenant(one) == Self::tenant(next)).collect();
        let mut before = 0;
        for own in tenants {
            let first = before;
            before += own.len();
            // If all are of one tenant, they have just failed together.
            if own.len() < items.len() && self.record(own).await.is_ok() {
                continue;
            }
            for (at, item) in own.iter().enumerate() {
                let Err(error) = self.record(slice::from_ref(item)).await else { continue };
                if runtime::db::is_lock_timeout(&error) {
                    self.give_back(&own[at..]).await;
                    break;
                }
                if runtime::db::is_transient(&error) {
                    self.give_back(&items[first + at..]).await;
                    return Err(error.into());
                }
                self.refuse(item, error.into()).await;
            }
        }
        Ok(())
    }
}
