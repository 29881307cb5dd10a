//! The scheduler: asks the ledger for all sweeps of a process at once which of them have work, so that an idle process asks one question
//! instead of one for each sweep.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use runtime::{Notifier, db, plans::PreparedPool};
use sqlx::AssertSqlSafe;
use tokio_util::sync::CancellationToken;

/// How often the ledger is asked about the sweeps that wait least between two runs.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// Every so many questions it is asked about those that wait longest; about the others every one, two or four.
const LONGEST: u32 = 8;
/// Timeout of one question: a sweep must not wait for a connection that is stuck.
const ASK_MAX: Duration = Duration::from_secs(5);

/// The sweeps that wait for work. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Scheduler {
    /// The question is one statement by key: its plan is kept, and it holds a connection for less than a millisecond.
    pool: PreparedPool,
    sweeps: Arc<Mutex<Vec<Waiting>>>,
}

#[derive(Debug, Clone)]
struct Waiting {
    has_work: &'static str,
    /// Asked at each question whose number this divides.
    every: u32,
    found: Notifier,
}

impl Scheduler {
    /// On this ledger, in the stages' role.
    pub(crate) fn new(by_key: &PreparedPool) -> Self {
        Self { pool: by_key.priority("sweeps"), sweeps: Arc::default() }
    }

    /// Answers what is notified whenever this expression is true, and whether it is the first one: then the caller starts [`Self::run`].
    pub(crate) fn watch(&self, has_work: &'static str, interval: Duration) -> (Notifier, bool) {
        // A sweep with this interval is asked about no more often than it would run.
        let every = [1, 2, 4].into_iter().find(|every| interval <= ASK_EVERY * *every).unwrap_or(LONGEST);
        let found = Notifier::default();
        let mut sweeps = self.sweeps();
        sweeps.push(Waiting { has_work, every, found: found.clone() });
        (found, sweeps.len() == 1)
    }

    /// Asks until shut down. When the ledger does not answer, all sweeps run: they report what is wrong.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut asked: u32 = 0;
        while shutdown.run_until_cancelled(tokio::time::sleep(ASK_EVERY)).await.is_some() {
            asked = asked.wrapping_add(1);
            let waiting: Vec<Waiting> =
                self.sweeps().iter().filter(|waiting| asked.is_multiple_of(waiting.every)).cloned().collect();
            if waiting.is_empty() {
                continue;
            }
            let answers = db::within(ASK_MAX, ask(&self.pool, &waiting)).await.unwrap_or_else(|error| {
                tracing::debug!(error = db::describe(&error), "the ledger does not say which sweeps have work");
                vec![true; waiting.len()]
            });
            for (waiting, _) in waiting.iter().zip(answers).filter(|(_, has_work)| *has_work) {
                waiting.found.notify();
            }
        }
    }

    fn sweeps(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.sweeps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(pool: &PreparedPool, waiting: &[Waiting]) -> sqlx::Result<Vec<bool>> {
    // Some sweeps wait for the same.
    let questions: BTreeSet<&str> = waiting.iter().map(|waiting| waiting.has_work).collect();
    // Constants of this program.
    let statement =
        AssertSqlSafe(format!("select array[{}]", questions.iter().copied().collect::<Vec<_>>().join(", ")));
    let mut connection = pool.take().await?;
    let answers: Vec<bool> = sqlx::query_scalar(statement).fetch_one(&mut *connection).await?;
    connection.put_back();
    let known: BTreeMap<&str, bool> = questions.into_iter().zip(answers).collect();
    Ok(waiting.iter().map(|waiting| known[waiting.has_work]).collect())
}
