//! Sweeps: periodic jobs that find the work whose notification was lost. The bus only notifies; the ledger knows what is owed.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use runtime::{CommitNotifier, Counter, Notifier, panics::caught};
use tokio_util::sync::CancellationToken;

use crate::{PauseGate, StageError, WORK_TIMEOUT, in_time};

/// When a sweep runs, and under which name.
#[derive(Debug, Clone, Copy)]
pub struct SweepSchedule {
    pub(crate) name: &'static str,
    pub(crate) interval: Duration,
    pub(crate) has_work: Option<&'static str>,
    pub(crate) stops_when_paused: bool,
}

impl SweepSchedule {
    /// The sweep has this name, a metric label, and pauses for `interval` between two runs that found nothing. A run that found work is
    /// followed by the next at once.
    #[must_use]
    pub const fn every(name: &'static str, interval: Duration) -> Self {
        Self { name, interval, has_work: None, stops_when_paused: true }
    }

    /// `has_work` is an SQL expression that is true while there is work, and perhaps a little longer: `exists (…)`, by the head of an
    /// index. After the interval the sweep rests until it is true; without one it runs after every interval.
    #[must_use]
    pub const fn when(self, has_work: &'static str) -> Self {
        Self { has_work: Some(has_work), ..self }
    }

    /// The sweep runs also while its stage is paused. Only for a sweep that cleans up: it starts no work, and a pause may last for weeks.
    #[must_use]
    pub const fn also_when_paused(self) -> Self {
        Self { stops_when_paused: false, ..self }
    }
}

/// A periodic job of a stage. It must be correct in any number of processes at once.
#[async_trait]
pub trait Sweep: Send + Sync + 'static {
    /// Its name and when it runs.
    fn schedule(&self) -> SweepSchedule;

    /// Returns when the pause is to end at once.
    async fn woken(&self) {
        std::future::pending().await
    }

    /// Runs once; answers how many pieces of work it found and handled.
    ///
    /// # Errors
    /// Logged and counted; the sweep runs again.
    async fn sweep(&self) -> Result<u64, StageError>;
}

/// After this many runs in a row that found work, a pause all the same: a sweep that always finds something must not spin.
const EAGER_RUNS: u32 = 20;
/// The pause after a failed run.
const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// A sweep runs this long after its interval even if the scheduler found no work for it.
const REST_MAX: Duration = Duration::from_secs(30);

/// The sweeps whose last run failed, by stage. Shared by all sweeps of a runner; the heartbeats report them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failing(Arc<Mutex<BTreeSet<(&'static str, &'static str)>>>);

impl Failing {
    fn set(&self, stage: &'static str, sweep: &'static str, fails: bool) {
        let mut failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if fails {
            failing.insert((stage, sweep));
        } else {
            failing.remove(&(stage, sweep));
        }
    }

    /// The failing sweeps of a stage.
    pub(crate) fn of(&self, stage: &str) -> Vec<String> {
        let failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failing.iter().filter(|(of, _)| *of == stage).map(|(_, sweep)| (*sweep).to_owned()).collect()
    }
}

pub(crate) async fn run(
    stage: &'static str,
    sweep: Arc<dyn Sweep>,
    failing: Failing,
    facts: CommitNotifier,
    pause_gate: PauseGate,
    work: Option<Notifier>,
    shutdown: CancellationToken,
) {
    let mut eager = 0;
    while !shutdown.is_cancelled() {
        let SweepSchedule { name, interval, stops_when_paused, .. } = sweep.schedule();
        let labels = [("stage", stage), ("sweep", name)];
        let in_progress = if stops_when_paused { pause_gate.start(stage, 1) } else { None };
        if stops_when_paused && in_progress.is_none() {
            // A paused sweep does not count as failing.
            failing.set(stage, name, false);
            shutdown.run_until_cancelled(pause_gate.until_running(stage)).await;
            continue;
        }
        let result = caught(stage, "sweep", in_time(WORK_TIMEOUT, sweep.sweep())).await;
        let result = result.unwrap_or_else(|panicked| Err(panicked.into()));
        drop(in_progress);
        failing.set(stage, name, result.is_err());
        let pause = match result {
            Ok(0) => {
                eager = 0;
                shutdown.run_until_cancelled(rest(&*sweep, work.as_ref())).await;
                continue;
            }
            Ok(found) => {
                Counter::SweepFoundTotal.add(found, labels);
                facts.notify();
                eager = (eager + 1) % EAGER_RUNS;
                if eager == 0 { interval } else { Duration::ZERO }
            }
            Err(error) => {
                Counter::SweepFailedTotal.add(1, labels);
                tracing::warn!(stage, sweep = name, code = error.code(), error = %error.chain(), "sweep failed");
                interval.max(FAILED_PAUSE)
            }
        };
        shutdown.run_until_cancelled(tokio::time::sleep(pause)).await;
    }
}

/// Waits after a run that found nothing, until the next run is due. `work`: notifies when there is some.
async fn rest(sweep: &dyn Sweep, work: Option<&Notifier>) {
    let due = async {
        tokio::time::sleep(sweep.schedule().interval).await;
        if let Some(work) = work {
            let _ = tokio::time::timeout(REST_MAX, work.notified()).await;
        }
    };
    tokio::select! {
        () = sweep.woken() => {}
        () = due => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use runtime::PauseSwitches;

    use super::*;

    /// Never ends at first.
    struct Hangs {
        runs: AtomicUsize,
        shutdown: CancellationToken,
    }

    #[async_trait]
    impl Sweep for Hangs {
        fn schedule(&self) -> SweepSchedule {
            SweepSchedule::every("hangs", Duration::from_secs(1))
        }

        async fn sweep(&self) -> Result<u64, StageError> {
            if self.runs.fetch_add(1, Ordering::SeqCst) == 0 {
                std::future::pending::<()>().await;
            }
            self.shutdown.cancel();
            Ok(0)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_sweep_that_waits_for_ever_runs_again() {
        let shutdown = CancellationToken::new();
        let sweep = Arc::new(Hangs { runs: AtomicUsize::new(0), shutdown: shutdown.clone() });
        let gate = PauseGate::new(PauseSwitches::released());
        let running =
            run("compliance", sweep.clone(), Failing::default(), CommitNotifier::default(), gate, None, shutdown);
        tokio::time::timeout(2 * WORK_TIMEOUT, running).await.unwrap();
        assert_eq!(sweep.runs.load(Ordering::SeqCst), 2);
    }
}
