//! A panic ends one piece of work. The task catches it and continues with the next piece.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use futures::FutureExt;
use thiserror::Error;

use crate::Counter;

/// Pause before a task that panicked is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// A piece of work panicked. The log says where, without the panic's message: it may quote data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a panic")]
pub struct Panicked;

/// Runs `work` and catches its panic, which is counted by stage and kind of task (`mail_panics_total`).
/// Values of work that panics are dropped: its locks are poisoned, its transactions rolled back.
pub async fn caught<T>(stage: &'static str, task: &'static str, work: impl Future<Output = T>) -> Result<T, Panicked> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|_| count(stage, task))
}

/// Runs synchronous `work` and catches its panic as [`caught`] does.
pub fn caught_here<T>(stage: &'static str, task: &'static str, work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| count(stage, task))
}

/// Runs a task until it ends, and starts it again, after a pause, when it panics. `start` makes the task: what it must not lose is kept
/// outside of it.
pub async fn supervise<F>(stage: &'static str, task: &'static str, mut start: impl FnMut() -> F)
where
    F: Future<Output = ()>,
{
    while caught(stage, task, start()).await.is_err() {
        tokio::time::sleep(RESTART_PAUSE).await;
    }
}

fn count(stage: &'static str, task: &'static str) -> Panicked {
    Counter::PanicsTotal.add(1, [("stage", stage), ("task", task)]);
    tracing::error!(stage, task, "a panic was caught; the task goes on");
    Panicked
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_started_again_until_it_ends() {
        let starts = AtomicUsize::new(0);
        supervise("delivery", "task", || async {
            assert!(starts.fetch_add(1, Ordering::SeqCst) == 2, "not yet");
        })
        .await;
        assert_eq!(starts.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_an_answer_stays_one() {
        assert_eq!(caught("delivery", "task", async { 7 }).await, Ok(7));
        let none: Vec<u8> = Vec::new();
        assert_eq!(caught("delivery", "task", async { none[none.len()] }).await, Err(Panicked));
        assert_eq!(caught_here("delivery", "task", || none[none.len()]), Err(Panicked));
    }
}
