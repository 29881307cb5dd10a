//! The scheduler against a real ledger: sweeps rest until there is work for them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use runner::{Runner, StageError, Sweep, SweepSchedule};
use runtime::{Bus, CommitNotifier, Database, Role, plans::PreparedPool};
use secrecy::SecretString;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(25);

/// Counts its runs, and never finds anything.
struct Resting {
    has_work: &'static str,
    runs: AtomicU64,
}

#[async_trait]
impl Sweep for Resting {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("rests", Duration::from_millis(10)).when(self.has_work)
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        Ok(0)
    }
}

impl Resting {
    /// Waits for more than so many runs, less than it takes until a sweep runs without work.
    async fn runs_more_than(&self, runs: u64) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while self.runs.load(Ordering::SeqCst) <= runs {
            assert!(tokio::time::Instant::now() < deadline, "{} rests on", self.has_work);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Finds something in every run, and notes when it ran.
#[derive(Default)]
struct NeverDone(Mutex<Vec<Instant>>);

const PAUSE: Duration = Duration::from_millis(400);

#[async_trait]
impl Sweep for NeverDone {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("never_done", PAUSE)
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        self.0.lock().unwrap().push(Instant::now());
        Ok(1)
    }
}

struct Rig {
    pool: PgPool,
    runner: Runner,
    shutdown: CancellationToken,
    _database: devtools::servers::TestDatabase,
}

impl Rig {
    async fn new() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let database = devtools::servers::TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
        let nats = SecretString::from(devtools::servers::shared().await.unwrap().nats_url().to_owned());
        let bus = Bus::connect(&nats, None, "schedule_", 1, "test").await.unwrap();
        let pool = Database::pool(&SecretString::from(database.url()), Role::Stages, 2).unwrap();
        let shutdown = CancellationToken::new();
        let by_key = PreparedPool::new(&pool, 2);
        let runner = Runner::new(bus, CommitNotifier::default(), shutdown.clone()).on_ledger(pool.clone(), &by_key);
        Self { pool, runner, shutdown, _database: database }
    }

    fn start(&self, has_work: &'static str) -> Arc<Resting> {
        let sweep = Arc::new(Resting { has_work, runs: AtomicU64::new(0) });
        self.runner.start_sweep("compliance", sweep.clone());
        sweep
    }

    async fn end(self) {
        self.shutdown.cancel();
        assert!(self.runner.drained(PATIENCE).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_rests_until_the_ledger_has_work_for_it() {
    let rig = Rig::new().await;
    let sweep = rig.start("exists (select from stage_pauses where stage = 'webhooks')");
    let busy = rig.start("true");
    sweep.runs_more_than(0).await;
    busy.runs_more_than(4).await;
    assert_eq!(sweep.runs.load(Ordering::SeqCst), 1, "it has no work");
    let pause = "insert into stage_pauses (stage, actor) values ('webhooks', 'test')";
    sqlx::query(pause).execute(&rig.pool).await.unwrap();
    sweep.runs_more_than(2).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sweeps_run_while_the_ledger_does_not_answer() {
    let rig = Rig::new().await;
    let sweep = rig.start("exists (select from stage_pauses)");
    rig.start("exists (select from no_such_table)");
    sweep.runs_more_than(2).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_that_always_finds_something_pauses_after_twenty_runs() {
    let rig = Rig::new().await;
    let sweep = Arc::new(NeverDone::default());
    rig.runner.start_sweep("compliance", sweep.clone());
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while sweep.0.lock().unwrap().len() < 61 {
        assert!(tokio::time::Instant::now() < deadline, "it rests on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let runs = sweep.0.lock().unwrap()[..61].to_vec();
    let pauses = runs.windows(2).filter(|pair| pair[1] - pair[0] >= PAUSE).count();
    assert!((3..20).contains(&pauses), "{pauses} pauses in 61 runs");
    rig.end().await;
}
