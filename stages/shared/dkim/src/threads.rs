//! Where signatures are made: threads of their own, as many as there are cores.

use std::{
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Sender},
    },
    thread,
};

use tokio::sync::oneshot;

/// How far bulk jobs stand back, as `nice` counts it: for whatever else the machine could do, and for urgent mail above all, they wait.
#[cfg(target_os = "linux")]
const BULK_NICENESS: i32 = 10;

type Job = Box<dyn FnOnce() + Send>;

/// Runs CPU-bound jobs beside the reactor, a bounded number at once: more would only make each slower and the
/// connections wait. Urgent jobs have threads of their own and do not queue behind a campaign.
#[derive(Debug, Clone)]
pub struct SigningThreads {
    bulk: Sender<Job>,
    urgent: Sender<Job>,
}

impl SigningThreads {
    /// Starts as many threads for bulk jobs as this machine has cores, and as many for urgent ones.
    ///
    /// # Panics
    /// When the machine gives no more threads, at start-up.
    #[must_use]
    pub fn start() -> Self {
        Self { bulk: start_threads(stand_back), urgent: start_threads(|| {}) }
    }

    /// Runs a job on a thread that is free. `None`: the job panicked.
    pub async fn run<T: Send + 'static>(&self, urgent: bool, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (done, result) = oneshot::channel();
        let jobs = if urgent { &self.urgent } else { &self.bulk };
        jobs.send(Box::new(move || drop(done.send(job())))).ok()?;
        result.await.ok()
    }
}

/// Starts threads that end with the last sender.
fn start_threads(prepare: fn()) -> Sender<Job> {
    let (jobs, queue) = mpsc::channel::<Job>();
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..thread::available_parallelism().map_or(1, NonZeroUsize::get) {
        let queue = Arc::clone(&queue);
        let work = move || {
            prepare();
            loop {
                // The lock is held while a thread waits for a job, never while it works.
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(job) = next else { break };
                // A panic ends the job, which owns what it works on, and not the thread.
                drop(catch_unwind(AssertUnwindSafe(job)));
            }
        };
        thread::Builder::new().name("sign".to_owned()).spawn(work).expect("a thread at start-up");
    }
    jobs
}

/// Lowers the priority of this thread. Elsewhere than on Linux the call would lower that of the whole process.
fn stand_back() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, BULK_NICENESS) {
        tracing::debug!(%error, "signatures of bulk mail have the priority of all else");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    #[tokio::test(flavor = "multi_thread")]
    async fn no_more_jobs_run_at_once_than_there_are_cores() {
        let threads = SigningThreads::start();
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let jobs = (0..64).map(|_| {
            let (running, most) = (running.clone(), most.clone());
            threads.run(false, move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
            })
        });
        assert!(futures::future::join_all(jobs).await.iter().all(Option::is_some));
        assert!(most.load(Ordering::SeqCst) <= thread::available_parallelism().unwrap().get());
    }

    #[tokio::test]
    async fn an_urgent_job_does_not_wait_for_bulk_jobs() {
        let threads = SigningThreads::start();
        let (release, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let busy = (0..thread::available_parallelism().unwrap().get()).map(|_| {
            let (threads, wait) = (threads.clone(), wait.clone());
            tokio::spawn(async move { threads.run(false, move || wait.lock().unwrap().recv()).await })
        });
        let busy: Vec<_> = busy.collect();
        tokio::task::yield_now().await;
        let urgent = tokio::time::timeout(Duration::from_secs(5), threads.run(true, || 7)).await;
        assert_eq!(urgent.unwrap(), Some(7));
        drop(release);
        futures::future::join_all(busy).await;
    }

    #[tokio::test]
    async fn a_job_that_panics_leaves_its_thread_to_the_next() {
        let threads = SigningThreads::start();
        for _ in 0..=thread::available_parallelism().unwrap().get() {
            assert_eq!(threads.run(false, || panic!("test")).await, None::<()>);
        }
        assert_eq!(threads.run(false, || 7).await, Some(7));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn bulk_jobs_stand_back_and_urgent_ones_do_not() {
        let threads = SigningThreads::start();
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let own = niceness();
        assert_eq!(threads.run(false, niceness).await, Some(BULK_NICENESS.max(own)));
        assert_eq!(threads.run(true, niceness).await, Some(own));
    }
}
