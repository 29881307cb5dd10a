//! A paused stage against real servers: it starts nothing, and everything is handled once it is resumed.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_nats::jetstream::consumer::{Info, pull};
use async_trait::async_trait;
use runner::{Runner, Stage, StageError, Sweep, SweepSchedule};
use runtime::{Bus, CommitNotifier, Database, Notifier, PauseSwitches, Publication, Role, plans::PreparedPool};
use schemas::{Resolved, subjects::stream};
use secrecy::SecretString;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(60);

async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[derive(Default)]
struct Toy {
    seen: Mutex<Vec<Uuid>>,
}

#[async_trait]
impl Stage for Toy {
    const NAME: &'static str = "compliance";
    type Input = Resolved;

    async fn handle(&self, inputs: &[Resolved]) -> Result<Vec<Publication>, StageError> {
        self.seen.lock().unwrap().extend(inputs.iter().map(|input| input.batch_id));
        Ok(Vec::new())
    }
}

/// Counts its runs.
struct Ticks {
    stops_when_paused: bool,
    runs: Mutex<u64>,
}

impl Ticks {
    fn new(stops_when_paused: bool) -> Arc<Self> {
        Arc::new(Self { stops_when_paused, runs: Mutex::default() })
    }

    fn runs(&self) -> u64 {
        *self.runs.lock().unwrap()
    }
}

#[async_trait]
impl Sweep for Ticks {
    fn schedule(&self) -> SweepSchedule {
        let interval = Duration::from_millis(20);
        match self.stops_when_paused {
            true => SweepSchedule::every("works", interval),
            false => SweepSchedule::every("keeps_house", interval).also_when_paused(),
        }
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        *self.runs.lock().unwrap() += 1;
        Ok(0)
    }
}

struct Rig {
    bus: Bus,
    pool: PgPool,
    switches: PauseSwitches,
    runner: Runner,
    toy: Arc<Toy>,
    shutdown: CancellationToken,
    _database: devtools::servers::TestDatabase,
}

impl Rig {
    /// Without change signals: pauses are found by polling.
    async fn new() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let database = devtools::servers::TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
        let nats = SecretString::from(devtools::servers::shared().await.unwrap().nats_url().to_owned());
        let prefix = format!("pause{:016x}_", Uuid::new_v4().as_u64_pair().0);
        let bus = Bus::connect(&nats, None, &prefix, 1, "test").await.unwrap();
        bus.apply_streams().await.unwrap();
        let pool = Database::pool(&SecretString::from(database.url()), Role::Stages, 4).unwrap();
        let shutdown = CancellationToken::new();
        let switches = PauseSwitches::follow(
            &PreparedPool::new(&pool, 2),
            bus.clone(),
            Notifier::default(),
            true,
            shutdown.clone(),
        );
        let runner =
            Runner::new(bus.clone(), CommitNotifier::default(), shutdown.clone()).with_switches(switches.clone());
        Self { bus, pool, switches, runner, toy: Arc::default(), shutdown, _database: database }
    }

    fn start(&self) {
        self.runner.start(self.toy.clone(), vec![crate::intake("compliance-priority", 2, 4)]);
    }

    async fn pause(&self) {
        sqlx::query("insert into stage_pauses (stage, actor) values ('compliance', 'test')")
            .execute(&self.pool)
            .await
            .unwrap();
        eventually("the pause to be known", || async { self.switches.is_paused("compliance").then_some(()) }).await;
    }

    async fn resume(&self) {
        sqlx::query("delete from stage_pauses").execute(&self.pool).await.unwrap();
    }

    async fn publish(&self) -> Uuid {
        crate::publish(&self.bus, 1).await
    }

    async fn consumer(&self) -> Option<Info> {
        let found = self.bus.jetstream().get_stream(self.bus.prefixed(stream::RESOLVED)).await.ok()?;
        let mut consumer = found.get_consumer::<pull::Config>("compliance-priority").await.ok()?;
        consumer.info().await.ok().cloned()
    }

    fn seen(&self) -> Vec<Uuid> {
        self.toy.seen.lock().unwrap().clone()
    }

    async fn end(self) {
        self.shutdown.cancel();
        assert!(self.runner.drained(PATIENCE).await);
        self.bus.delete_streams().await;
    }
}

/// Streams of a test go with it: the server is shared.
trait DeleteStreams {
    async fn delete_streams(&self);
}

impl DeleteStreams for Bus {
    async fn delete_streams(&self) {
        for spec in runtime::streams::STREAMS {
            let _ = self.jetstream().delete_stream(self.prefixed(spec.name)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_stage_fetches_nothing_and_a_resumed_one_handles_all() {
    let rig = Rig::new().await;
    rig.start();
    let before = rig.publish().await;
    eventually("the first message", || async { (rig.seen() == [before]).then_some(()) }).await;

    rig.pause().await;
    // No worker waits at the server any more: nobody can be handed anything.
    eventually("the last pull to end", || async { rig.consumer().await.filter(|info| info.num_waiting == 0) }).await;
    let waiting = [rig.publish().await, rig.publish().await, rig.publish().await];
    let info =
        eventually("the messages to wait", || async { rig.consumer().await.filter(|info| info.num_pending == 3) });
    assert_eq!(info.await.num_waiting, 0);
    assert_eq!(rig.seen(), [before]);
    assert_eq!(rig.runner.pause_gate().in_progress("compliance"), 0);

    rig.resume().await;
    let all = eventually("what waited to be handled", || async { (rig.seen().len() == 4).then(|| rig.seen()) }).await;
    assert!(waiting.iter().all(|batch| all.contains(batch)));
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sweeps_of_a_paused_stage_rest_unless_they_keep_house() {
    let rig = Rig::new().await;
    let (works, keeps_house) = (Ticks::new(true), Ticks::new(false));
    rig.runner.start_sweep("compliance", works.clone());
    rig.runner.start_sweep("compliance", keeps_house.clone());
    eventually("both to run", || async { (works.runs() > 0 && keeps_house.runs() > 0).then_some(()) }).await;
    rig.pause().await;
    eventually("nothing to be in hand", || async {
        (rig.runner.pause_gate().in_progress("compliance") == 0).then_some(())
    })
    .await;
    let (rested, kept) = (works.runs(), keeps_house.runs());
    eventually("the house to be kept", || async { (keeps_house.runs() > kept + 5).then_some(()) }).await;
    assert_eq!(works.runs(), rested);
    rig.resume().await;
    eventually("work to go on", || async { (works.runs() > rested).then_some(()) }).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_back_does_not_stop_the_epoch() {
    let rig = Rig::new().await;
    let set_back = "update ledger set marked_at = now() + interval '1 hour' returning mark";
    let before: i64 = sqlx::query_scalar(set_back).fetch_one(&rig.pool).await.unwrap();
    eventually("the epoch to advance", || async {
        let mark: i64 = sqlx::query_scalar("select mark from ledger").fetch_one(&rig.pool).await.ok()?;
        (mark > before).then_some(())
    })
    .await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_outlives_a_restart() {
    let rig = Rig::new().await;
    rig.pause().await;
    // A process that starts now reads the pause switches before it fetches anything.
    let shutdown = CancellationToken::new();
    let again = PauseSwitches::follow(
        &PreparedPool::new(&rig.pool, 2),
        rig.bus.clone(),
        Notifier::default(),
        true,
        shutdown.clone(),
    );
    assert!(again.is_paused("compliance"), "before the pause switches are read everything rests");
    eventually("the pause switches to be read", || async { (!again.is_paused("audience")).then_some(()) }).await;
    assert!(again.is_paused("compliance"));
    shutdown.cancel();
    rig.end().await;
}
