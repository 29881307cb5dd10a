//! Long work of a handler that runs while the request holds no connection: parsing and rendering templates, making keys, DNS queries.

use std::{
    any::Any,
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, LazyLock},
    time::Duration,
};

use super::{error::ApiError, shares::Shares};

/// Pieces of work on blocking threads at a time in this process, and how many of them for one product.
const CONCURRENT_MAX: usize = 4;
const OF_ONE_PRODUCT: usize = 3;
/// How long a request waits for its turn, before it is answered 503 with `Retry-After`.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Pieces of work one request may have: a campaign and its variants.
const PIECES_MAX: usize = 16;

static PERMITS: LazyLock<Shares> = LazyLock::new(|| Shares::new(CONCURRENT_MAX, OF_ONE_PRODUCT));

type WorkResult = Arc<dyn Any + Send + Sync>;

struct WorkItem {
    label: String,
    work: Pin<Box<dyn Future<Output = Result<WorkResult, ApiError>> + Send>>,
}

/// The results of a request's work so far, and the work to do next.
#[derive(Default)]
pub(crate) struct DeferredWork {
    results: HashMap<String, WorkResult>,
    job: Option<WorkItem>,
}

impl DeferredWork {
    pub(super) fn run_blocking<T: Clone + Send + Sync + 'static>(
        &mut self,
        product: &str,
        label: String,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.result_or_queue(label, on_a_thread(product.to_owned(), move || Arc::new(work()) as WorkResult))
    }

    pub(super) fn wait<T: Clone + Send + Sync + 'static>(
        &mut self,
        label: String,
        answer: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.result_or_queue(label, async move { Ok(Arc::new(answer.await) as WorkResult) })
    }

    /// The result under the label, or else the work is queued.
    fn result_or_queue<T: Clone + Send + Sync + 'static>(
        &mut self,
        label: String,
        work: impl Future<Output = Result<WorkResult, ApiError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        if let Some(result) = self.results.get(&label).and_then(|result| result.downcast_ref::<T>()) {
            return Ok(result.clone());
        }
        self.job = Some(WorkItem { label, work: Box::pin(work) });
        // Never answered: the work is done first.
        Err(ApiError::internal())
    }

    /// True if the handler asked for work and has to be called again.
    pub(super) fn is_queued(&self) -> bool {
        self.job.is_some()
    }

    /// Does the queued work.
    ///
    /// # Errors
    /// 503 when too much other work is being done; 500 when the work panicked.
    pub(super) async fn run_queued(&mut self) -> Result<(), ApiError> {
        let Some(WorkItem { label, work }) = self.job.take() else { return Ok(()) };
        if self.results.len() >= PIECES_MAX {
            return Err(
                ApiError::conflict("changed_meanwhile").detail("what the request names keeps changing; repeat it")
            );
        }
        self.results.insert(label, work.await?);
        Ok(())
    }
}

/// Runs work on a blocking thread, under the concurrency limit.
async fn on_a_thread(
    product: String,
    work: impl FnOnce() -> WorkResult + Send + 'static,
) -> Result<WorkResult, ApiError> {
    let busy = || ApiError::unavailable().detail("too much work of this kind is being done; repeat the request");
    let _permit = tokio::time::timeout(WAIT_MAX, PERMITS.take(&product, 1)).await.map_err(|_| busy())?;
    Ok(tokio::task::spawn_blocking(work).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_once_for_each_label() {
        let mut deferred = DeferredWork::default();
        for label in ["a", "b"] {
            assert!(deferred.run_blocking("shop", label.to_owned(), move || format!("made {label}")).is_err());
            assert!(deferred.is_queued());
            deferred.run_queued().await.unwrap();
            assert!(!deferred.is_queued());
        }
        let again = deferred.run_blocking::<String>("shop", "a".to_owned(), || unreachable!());
        assert_eq!(again.unwrap(), "made a");
    }

    #[tokio::test(start_paused = true)]
    async fn work_beyond_the_limit_is_answered_503_with_retry_after() {
        let _all = PERMITS.take("busy", OF_ONE_PRODUCT).await;
        let mut deferred = DeferredWork::default();
        let _ = deferred.run_blocking("busy", "a".to_owned(), || 1);
        let refused = deferred.run_queued().await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.retry_after.is_some()), (503, true));
        let _ = deferred.run_blocking("rival", "a".to_owned(), || 1);
        deferred.run_queued().await.unwrap();
        assert_eq!(deferred.run_blocking::<i32>("rival", "a".to_owned(), || unreachable!()).unwrap(), 1);
    }
}
