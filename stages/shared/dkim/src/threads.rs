//! Where signatures are made: threads of their own, as many at once as there are cores.

use std::{num::NonZeroUsize, sync::Arc};

use tokio::sync::Semaphore;

/// The blocking threads went away under a job: the process is stopping. Nothing was sent; retry elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the signing threads have stopped")]
pub struct ThreadsStopped;

/// Runs CPU-bound jobs beside the reactor, a bounded number at once: more would only make each slower and the
/// connections wait. Urgent jobs have a slot of their own and do not queue behind a campaign.
#[derive(Debug, Clone)]
pub struct SigningThreads {
    bulk: Arc<Semaphore>,
    urgent: Arc<Semaphore>,
}

impl SigningThreads {
    /// As many bulk jobs at once as this machine has cores, and as many urgent ones.
    #[must_use]
    pub fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self { bulk: Arc::new(Semaphore::new(cores)), urgent: Arc::new(Semaphore::new(cores)) }
    }

    /// Runs a job on a blocking thread when a slot is free.
    ///
    /// # Errors
    /// [`ThreadsStopped`] when the runtime is shutting down or the job panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        urgent: bool,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ThreadsStopped> {
        let slots = if urgent { &self.urgent } else { &self.bulk };
        let permit = slots.clone().acquire_owned().await.map_err(|_| ThreadsStopped)?;
        tokio::task::spawn_blocking(move || {
            let done = job();
            drop(permit);
            done
        })
        .await
        .map_err(|_| ThreadsStopped)
    }
}

impl Default for SigningThreads {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(flavor = "multi_thread")]
    async fn no_more_jobs_run_at_once_than_there_are_cores() {
        let threads = SigningThreads::new();
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let jobs = (0..64).map(|_| {
            let (running, most) = (running.clone(), most.clone());
            threads.run(false, move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
            })
        });
        assert!(futures::future::join_all(jobs).await.iter().all(Result::is_ok));
        assert!(most.load(Ordering::SeqCst) <= std::thread::available_parallelism().unwrap().get());
    }

    #[tokio::test]
    async fn an_urgent_job_does_not_wait_for_bulk_jobs() {
        let threads = SigningThreads::new();
        let all = u32::try_from(threads.bulk.available_permits()).unwrap();
        let _busy = threads.bulk.acquire_many(all).await.unwrap();
        assert_eq!(threads.run(true, || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn a_job_that_panics_frees_its_slot() {
        let threads = SigningThreads::new();
        let before = threads.bulk.available_permits();
        assert_eq!(threads.run(false, || panic!("test")).await, Err::<(), _>(ThreadsStopped));
        assert_eq!(threads.bulk.available_permits(), before);
    }
}
