//! Processes that die with messages in hand: one message that ends its process each time is set aside, and costs nothing else.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use devtools::servers::TestDatabase;
use runner::{Runner, Stage, StageError};
use runtime::{Bus, CommitNotifier, Database, Publication, Role, plans::PreparedPool};
use schemas::{
    Resolved,
    subjects::{self, header, stream},
};
use secrecy::SecretString;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::{PATIENCE, eventually, intake, publish};

/// A message of a dead process comes again after this.
const ACK_WAIT: Duration = Duration::from_secs(1);
/// What the stage does with an announcement of this number.
const GOOD: i32 = 1;
const DEADLY: i32 = 2;

/// The groups that were begun, over all processes, and how many of them are with a deadly message that hangs.
#[derive(Debug, Default)]
struct Seen {
    groups: Mutex<Vec<Vec<i32>>>,
    /// Those that were given up.
    given_up: Mutex<Vec<(i32, &'static str)>>,
}

impl Seen {
    fn deadly(&self) -> Vec<usize> {
        let groups = self.groups.lock().unwrap();
        groups.iter().filter(|group| group.contains(&DEADLY)).map(Vec::len).collect()
    }
}

struct Toy {
    seen: Arc<Seen>,
}

#[async_trait]
impl Stage for Toy {
    const NAME: &'static str = "compliance";
    type Input = Resolved;

    async fn handle(&self, inputs: &[Resolved]) -> Result<Vec<Publication>, StageError> {
        let numbers: Vec<i32> = inputs.iter().map(|input| input.announcement).collect();
        let is_deadly = numbers.contains(&DEADLY);
        self.seen.groups.lock().unwrap().push(numbers);
        if is_deadly {
            // As in a process that dies: it neither ends nor fails.
            std::future::pending::<()>().await;
        }
        let output = |input: &Resolved| {
            Publication::json(subjects::cleared(input.lane), format!("out-{}", input.message_id()), input)
        };
        Ok(inputs.iter().map(output).collect::<Result<_, _>>()?)
    }

    async fn given_up(&self, input: &Resolved, code: &'static str) -> Result<Vec<Publication>, StageError> {
        self.seen.given_up.lock().unwrap().push((input.announcement, code));
        Ok(Vec::new())
    }
}

struct Rig {
    database: TestDatabase,
    prefix: String,
    bus: Bus,
    pool: PgPool,
    seen: Arc<Seen>,
}

/// A process of its own: ending its runtime ends everything it has in hand, without a word.
struct Process(Option<tokio::runtime::Runtime>);

impl Process {
    fn die(mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Rig {
    async fn new() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
        let prefix = format!("{}_", database.name());
        let bus = Bus::connect(&SecretString::from(database.nats_url()), None, &prefix, 1, "test").await.unwrap();
        bus.apply_streams().await.unwrap();
        let pool = Database::pool(&database.url().into(), Role::Stages, 2).unwrap();
        Self { database, prefix, bus, pool, seen: Arc::default() }
    }

    fn start(&self) -> Process {
        self.start_workers(1, PATIENCE)
    }

    /// A process with so many workers, in which a message that may end it is alone for so long.
    fn start_workers(&self, workers: usize, alone_max: Duration) -> Process {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (url, nats_url, prefix) = (self.database.url(), self.database.nats_url().to_owned(), self.prefix.clone());
        let seen = Arc::clone(&self.seen);
        runtime.spawn(async move {
            let pool = Database::pool(&url.into(), Role::Stages, 2).unwrap();
            let by_key = PreparedPool::new(&pool, 2);
            let bus = Bus::connect(&SecretString::from(nats_url), None, &prefix, 1, "test").await.unwrap();
            let runner = Runner::new(bus, CommitNotifier::default(), CancellationToken::new())
                .on_ledger(pool, &by_key)
                .ack_wait(ACK_WAIT)
                .alone_max(alone_max);
            runner.start(Arc::new(Toy { seen }), vec![intake("compliance-priority", workers, 64)]);
            std::future::pending::<()>().await;
        });
        Process(Some(runtime))
    }

    async fn publish(&self, announcement: i32) {
        publish(&self.bus, announcement).await;
    }

    async fn holds(&self, name: &str) -> u64 {
        let stream = self.bus.jetstream().get_stream(self.bus.prefixed(name)).await.unwrap();
        stream.get_info().await.unwrap().state.messages
    }

    async fn starts(&self) -> i64 {
        sqlx::query_scalar("select count(*) from message_starts").fetch_one(&self.pool).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_ends_its_process_each_time_is_set_aside_at_the_fifth_start_and_its_neighbours_finish() {
    let rig = Rig::new().await;
    for n in 0..10 {
        rig.publish(if n == 4 { DEADLY } else { GOOD }).await;
    }
    for start in 1..=4 {
        let process = rig.start();
        eventually("the deadly one is begun", async || rig.seen.deadly().len() == start).await;
        process.die();
    }
    assert_eq!(rig.seen.deadly().last(), Some(&1), "the fourth time it is handled alone");
    let last = rig.start();
    eventually("it is set aside", async || rig.holds(stream::DEAD).await == 1).await;
    eventually("nothing is left", async || rig.holds(stream::RESOLVED).await == 0).await;
    assert_eq!(rig.seen.deadly().len(), 4, "it was not begun a fifth time");
    assert_eq!(*rig.seen.given_up.lock().unwrap(), [(DEADLY, "never_finished")], "its stage gives it up");
    assert_eq!(rig.holds(stream::CLEARED).await, 9, "its neighbours finish");
    let dead = rig.bus.jetstream().get_stream(rig.bus.prefixed(stream::DEAD)).await.unwrap();
    let letter = dead.get_raw_message(1).await.unwrap();
    assert_eq!(letter.headers.get(header::DEAD_REASON).unwrap().as_str(), "never_finished");
    eventually("no start is left recorded", async || rig.starts().await == 0).await;
    last.die();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_takes_long_alone_stops_the_others_for_a_moment_only() {
    let rig = Rig::new().await;
    rig.publish(DEADLY).await;
    for start in 1..=3 {
        let process = rig.start();
        eventually("it is begun", async || rig.seen.deadly().len() == start).await;
        process.die();
    }
    let process = rig.start_workers(2, Duration::from_millis(200));
    eventually("it is begun alone", async || rig.seen.deadly().len() == 4).await;
    rig.publish(GOOD).await;
    eventually("another is handled meanwhile", async || rig.holds(stream::CLEARED).await == 1).await;
    eventually("only the first is in hand", async || rig.holds(stream::RESOLVED).await == 1).await;
    process.die();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_delivery_records_nothing() {
    let rig = Rig::new().await;
    rig.publish(DEADLY).await;
    let process = rig.start();
    eventually("it is begun", async || rig.seen.deadly().len() == 1).await;
    assert_eq!(rig.starts().await, 0);
    process.die();
    let again = rig.start();
    eventually("it is begun again", async || rig.seen.deadly().len() == 2).await;
    assert_eq!(rig.starts().await, 1);
    again.die();
}
