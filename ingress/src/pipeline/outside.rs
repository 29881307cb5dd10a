//! Long work of a request that is done while it holds no connection: reading and rendering templates, asking the DNS.

use std::{any::Any, collections::HashMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use crate::pipeline::error::ApiError;

/// Templates that are read or rendered at one time, in this process.
const AT_ONCE: usize = 4;
/// How long a request waits for its turn, before it is answered 503 with `Retry-After`.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Pieces of work one request may have: a campaign and its variants.
const PIECES_MAX: usize = 16;

static PERMITS: Semaphore = Semaphore::const_new(AT_ONCE);

/// What a piece of work made.
type Made = Arc<dyn Any + Send + Sync>;

/// A piece of work that is to be done.
struct Job {
    label: String,
    work: Pin<Box<dyn Future<Output = Result<Made, ApiError>> + Send>>,
}

/// What a request's work made so far, and what it asks for next.
#[derive(Default)]
pub(crate) struct Outside {
    made: HashMap<String, Made>,
    job: Option<Job>,
}

impl Outside {
    pub(super) fn answer<T: Clone + Send + Sync + 'static>(
        &mut self,
        label: String,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.made_or(label, on_a_thread(move || Arc::new(work()) as Made))
    }

    pub(super) fn wait<T: Clone + Send + Sync + 'static>(
        &mut self,
        label: String,
        answer: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.made_or(label, async move { Ok(Arc::new(answer.await) as Made) })
    }

    /// What was made under the label; else it is to be made.
    fn made_or<T: Clone + Send + Sync + 'static>(
        &mut self,
        label: String,
        work: impl Future<Output = Result<Made, ApiError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        if let Some(made) = self.made.get(&label).and_then(|made| made.downcast_ref::<T>()) {
            return Ok(made.clone());
        }
        self.job = Some(Job { label, work: Box::pin(work) });
        // Never answered: the work is done first.
        Err(ApiError::internal())
    }

    /// Whether the handler asked for work, and is to be called again.
    pub(super) fn is_asked(&self) -> bool {
        self.job.is_some()
    }

    /// Does the work that was asked for.
    ///
    /// # Errors
    /// 503 when too much other work is being done; 500 when the work panicked.
    pub(super) async fn work(&mut self) -> Result<(), ApiError> {
        let Some(Job { label, work }) = self.job.take() else { return Ok(()) };
        if self.made.len() >= PIECES_MAX {
            return Err(
                ApiError::conflict("changed_meanwhile").detail("what the request names keeps changing; repeat it")
            );
        }
        self.made.insert(label, work.await?);
        Ok(())
    }
}

/// Does work on a thread that may block, when it is its turn.
async fn on_a_thread(work: impl FnOnce() -> Made + Send + 'static) -> Result<Made, ApiError> {
    let busy = || ApiError::unavailable().detail("too many templates are being read; repeat the request");
    let permit = tokio::time::timeout(WAIT_MAX, PERMITS.acquire()).await.map_err(|_| busy())?;
    let _permit = permit.map_err(|error| ApiError::unexpected(&error))?;
    Ok(tokio::task::spawn_blocking(work).await?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_once_for_each_label() {
        let mut outside = Outside::default();
        for label in ["a", "b"] {
            assert!(outside.answer(label.to_owned(), move || format!("made {label}")).is_err());
            assert!(outside.is_asked());
            outside.work().await.unwrap();
            assert!(!outside.is_asked());
        }
        let again = outside.answer::<String>("a".to_owned(), || unreachable!());
        assert_eq!(again.unwrap(), "made a");
    }

    #[tokio::test(start_paused = true)]
    async fn work_beyond_the_limit_is_answered_503_with_retry_after() {
        let _all = PERMITS.acquire_many(u32::try_from(AT_ONCE).unwrap()).await.unwrap();
        let mut outside = Outside::default();
        let _ = outside.answer("a".to_owned(), || 1);
        let refused = outside.work().await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.retry_after.is_some()), (503, true));
    }
}
