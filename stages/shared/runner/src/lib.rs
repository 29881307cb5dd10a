//! The loop all stages share: pull, decode, handle, publish, acknowledge; sweep, drain, measure.
//!
//! **Invariant:** only this crate acknowledges, and last: read input → write rows → publish outputs (await the store's answer)
//! → acknowledge. A crash anywhere repeats work and never loses it; a repeat is harmless, because rows have natural unique
//! keys and output message ids derive from the input.

mod consume;
mod dead;
mod decode;
mod error;
mod gauges;
mod levels;
mod pause_gate;
mod schedule;
mod starts;
mod sweep;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use runtime::{
    Beat, Bus, CommitNotifier, Counter, Gauge, Heartbeat, PauseSwitches, Publication,
    panics::{caught, supervise},
    plans::PreparedPool,
};
use schemas::Lane;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use dead::DeadLetter;
pub use decode::{Incoming, Origin, StageInput};
pub use error::StageError;
pub use pause_gate::{PauseGate, WorkInProgress};
pub use sweep::{Sweep, SweepSchedule};

use schedule::Scheduler;
use starts::{Failures, Starts};

/// One intake of a stage: a durable consumer with workers of its own.
#[derive(Debug, Clone)]
pub struct Intake {
    /// The lane, also the metric label.
    pub lane: Lane,
    /// The stream it reads, without prefix.
    pub stream: &'static str,
    /// The durable consumer's name: `<stage>-<lane>`.
    pub durable: String,
    /// The subjects it takes, without prefix. Consumers of one stream must not overlap.
    pub subjects: Vec<String>,
    /// Messages worked on at the same time; 0 counts as 1.
    pub workers: usize,
    /// Messages one worker takes at once when they are there: handled together, set-based.
    pub coalesce: usize,
}

/// A stage: inputs become outputs or a typed error. It never acknowledges.
#[async_trait]
pub trait Stage: Send + Sync + 'static {
    /// The stage's name: in subjects, durables and metrics.
    const NAME: &'static str;
    /// The name of its span in a trace: `audience resolve`.
    const SPAN: &'static str = Self::NAME;
    /// Longest a call of the handler may take.
    const TIMEOUT: Duration = WORK_TIMEOUT;
    /// The message it reads.
    type Input: StageInput;

    /// Handles messages that were waiting together (at most `coalesce`), and answers what to publish before they are
    /// acknowledged. Must be harmless to repeat.
    ///
    /// # Errors
    /// After a transient error, all of them are delivered again later. After a rejection of several inputs, the runner handles them one
    /// by one, so that one poison message costs itself only.
    async fn handle(&self, inputs: &[Self::Input]) -> Result<Vec<Publication>, StageError>;

    /// A message that ended its process each time becomes a dead letter. A stage whose ledger would announce the work again, as a new message,
    /// rejects or postpones it here, and answers what else to publish. Must be harmless to repeat.
    ///
    /// # Errors
    /// After any error, the message is delivered again, and given up then.
    async fn given_up(&self, _input: &Self::Input, _code: &'static str) -> Result<Vec<Publication>, StageError> {
        Ok(Vec::new())
    }

    /// True if the handler commits facts. The runner then notifies the webhooks stage. A stage that seldom commits facts answers false and
    /// notifies by itself; the webhooks stage answers false.
    fn commits_facts(&self, _inputs: &[Self::Input]) -> bool {
        true
    }
}

/// Longest a handler or a sweep works, far above what any needs: one that waits for what never answers (see [`runtime::db::within`]) ends.
const WORK_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Does this work within this time.
async fn in_time<T>(limit: Duration, work: impl Future<Output = Result<T, StageError>>) -> Result<T, StageError> {
    tokio::time::timeout(limit, work).await.unwrap_or(Err(StageError::Deferred { reason: "timeout" }))
}

/// How long a message may go without a sign of life before JetStream delivers it again. Workers give one every third of it.
pub(crate) const ACK_WAIT: Duration = Duration::from_secs(30);
/// Attempts at one message in a process before it is set aside; failures of the ledger and the bus do not count. With the backoff this is
/// about six minutes.
pub const MAX_ATTEMPTS: i64 = 12;
/// Messages of one consumer that may be unacknowledged, over all processes. Above every sensible number of workers.
pub const MAX_ACK_PENDING: i64 = 4_096;

/// The dependencies of a stage.
#[derive(Clone, Debug)]
pub struct Deps {
    /// Starts its workers and sweeps.
    pub runner: Runner,
    /// For announcements of sweeps; the runner publishes the outputs of `handle`.
    pub bus: Bus,
    /// A pool in the stages' role, for statements that are planned anew.
    pub pool: sqlx::PgPool,
    /// Connections in the stages' role that keep their plans, for transactions by key that are made over and over.
    pub by_key: PreparedPool,
    /// For facts that are committed outside of `handle` and of sweeps; the runner notifies for those.
    pub facts: CommitNotifier,
    /// Makes and checks the tokens in mail.
    pub tokens: Arc<schemas::token::TokenKeys>,
    /// Opens secrets at rest.
    pub vault: Arc<runtime::Vault>,
    /// Calls addresses that customers named. One per process: its stages share connections.
    pub outbound: runtime::Outbound,
    /// Reads untrusted bytes in child processes, which cannot end this process.
    pub reader: runtime::Reader,
    /// Cancelled when the process is to stop.
    pub shutdown: CancellationToken,
}

/// Runs stages until the process is to stop.
#[derive(Debug, Clone)]
pub struct Runner {
    bus: Bus,
    facts: CommitNotifier,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    failing: sweep::Failing,
    pause_gate: PauseGate,
    starts: Starts,
    /// `None`: every sweep looks for its work by itself.
    scheduler: Option<Scheduler>,
    ack_wait: Duration,
    alone_max: Duration,
    failures: Failures,
}

impl Runner {
    /// A runner that stops taking work when `shutdown` is cancelled, and notifies `facts` after handlers that commit facts.
    #[must_use]
    pub fn new(bus: Bus, facts: CommitNotifier, shutdown: CancellationToken) -> Self {
        Self {
            bus,
            facts,
            shutdown,
            tasks: TaskTracker::new(),
            failing: sweep::Failing::default(),
            pause_gate: PauseGate::new(PauseSwitches::released()),
            starts: Starts::new(None),
            scheduler: None,
            ack_wait: ACK_WAIT,
            alone_max: starts::ALONE_MAX,
            failures: Failures::default(),
        }
    }

    /// Obeys these pause switches: a paused stage starts no work.
    #[must_use]
    pub fn with_switches(self, switches: PauseSwitches) -> Self {
        Self { pause_gate: PauseGate::new(switches), ..self }
    }

    /// On this ledger, in the stages' role. `pool` counts how often the handling of a message starts, so that one that ends its process each
    /// time is set aside; `by_key` says which sweeps have work.
    #[must_use]
    pub fn on_ledger(self, pool: sqlx::PgPool, by_key: &PreparedPool) -> Self {
        let scheduler = Scheduler::new(by_key);
        Self { starts: Starts::new(Some(pool)), scheduler: Some(scheduler), ..self }
    }

    /// Changes the time without a sign of life after which JetStream delivers a message again. For tests that end processes.
    #[doc(hidden)]
    #[must_use]
    pub fn ack_wait(self, ack_wait: Duration) -> Self {
        Self { ack_wait, ..self }
    }

    /// Changes how long a message that may end the process is alone in it. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn alone_max(self, alone_max: Duration) -> Self {
        Self { alone_max, ..self }
    }

    /// The pause gate, for tasks that start work by themselves.
    #[must_use]
    pub fn pause_gate(&self) -> &PauseGate {
        &self.pause_gate
    }

    /// Starts a stage's workers on each intake, and its gauges. Answers at once; the consumers are made when JetStream is there.
    pub fn start<S: Stage>(&self, stage: Arc<S>, intakes: Vec<Intake>) {
        let intakes: Vec<Arc<Intake>> = intakes.into_iter().map(Arc::new).collect();
        for intake in &intakes {
            let turn = consume::PullTurn::default();
            for _ in 0..intake.workers.max(1) {
                let worker = consume::Worker::new(stage.clone(), intake.clone(), turn.clone(), self.clone());
                self.tasks.spawn(worker.run());
            }
        }
        for lane in Lane::ALL {
            let of_lane: Vec<_> = intakes.iter().filter(|intake| intake.lane == *lane).cloned().collect();
            if !of_lane.is_empty() {
                gauges::begin(S::NAME, *lane);
                let (bus, shutdown) = (self.bus.clone(), self.shutdown.clone());
                let export = move || gauges::export(S::NAME, *lane, of_lane.clone(), bus.clone(), shutdown.clone());
                self.tasks.spawn(supervise(S::NAME, "gauges", export));
            }
        }
    }

    /// Starts a sweep: run now and then every interval, until shut down.
    pub fn start_sweep(&self, stage: &'static str, sweep: Arc<dyn Sweep>) {
        let (failing, facts, pause_gate) = (self.failing.clone(), self.facts.clone(), self.pause_gate.clone());
        let shutdown = self.shutdown.clone();
        let schedule = sweep.schedule();
        let work = self.scheduler.as_ref().zip(schedule.has_work).map(|(scheduler, has_work)| {
            let (work, is_first) = scheduler.watch(has_work, schedule.interval);
            if is_first {
                let (scheduler, shutdown) = (scheduler.clone(), shutdown.clone());
                let ask = move || scheduler.clone().run(shutdown.clone());
                self.tasks.spawn(supervise(stage, "sweep", ask));
            }
            work
        });
        // Exported from the start.
        let labels = [("stage", stage), ("sweep", schedule.name)];
        Counter::SweepFoundTotal.add(0, labels);
        Counter::SweepFailedTotal.add(0, labels);
        let run = move || {
            let (failing, facts, pause_gate) = (failing.clone(), facts.clone(), pause_gate.clone());
            sweep::run(stage, sweep.clone(), failing, facts, pause_gate, work.clone(), shutdown.clone())
        };
        self.tasks.spawn(supervise(stage, "sweep", run));
    }

    /// Starts a task of a stage. It must end by itself once the process is to stop; draining waits for it. A panic ends the task; see
    /// [`Runner::supervise`] for a task that continues.
    pub fn spawn(&self, stage: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            let _ = caught(stage, "task", task).await;
        });
    }

    /// Starts a task of a stage that is started again when it panics. It must end by itself once the process is to stop; draining waits
    /// for it.
    pub fn supervise<F>(&self, stage: &'static str, start: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tasks.spawn(supervise(stage, "task", start));
    }

    /// Writes this process's heartbeats under its name, with its stages and the names of the settings it was given, and exports the backlog
    /// of the whole installation, until shut down.
    pub fn beat(
        &self,
        (pool, by_key): (sqlx::PgPool, &PreparedPool),
        name: &str,
        stages: Vec<&'static str>,
        settings: Vec<String>,
    ) {
        let (failing, pause_gate) = (self.failing.clone(), self.pause_gate.clone());
        // These tasks belong to the process; their panics are counted under its first stage.
        let counted_under = stages.first().copied().unwrap_or("ingress");
        let beats = move || {
            let beat = |stage: &&'static str| Beat {
                stage,
                failing_sweeps: failing.of(stage),
                // In this order: a stage that is already paused starts no more work before the count is read.
                is_paused: pause_gate.is_paused(stage),
                in_hand: pause_gate.in_progress(stage),
            };
            let beats: Vec<Beat> = stages.iter().map(beat).collect();
            for beat in &beats {
                Gauge::StageRunning.set(1.0, [("stage", beat.stage)]);
            }
            beats
        };
        let (bus, shutdown) = (self.bus.clone(), self.shutdown.clone());
        let export = move || levels::export(pool.clone(), bus.clone(), shutdown.clone());
        self.tasks.spawn(supervise(counted_under, "gauges", export));
        let heartbeat = Heartbeat::new(by_key.priority("heartbeat"), name, settings);
        let (switches, shutdown) = (self.pause_gate.switches.clone(), self.shutdown.clone());
        let beat = move || heartbeat.clone().run(beats.clone(), switches.clone(), shutdown.clone());
        self.tasks.spawn(supervise(counted_under, "heartbeat", beat));
    }

    /// Waits, at most `grace`, until work in progress is finished and acknowledged. Call after cancelling the token. True if everything was
    /// finished; unfinished messages are delivered again elsewhere.
    pub async fn drained(&self, grace: Duration) -> bool {
        self.tasks.close();
        tokio::time::timeout(grace, self.tasks.wait()).await.is_ok()
    }
}
