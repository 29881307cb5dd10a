//! Counts how often the handling of a message started and did not finish, because its process died. The count is kept in Postgres.
//!
//! JetStream's own count is not enough: it also counts messages that were given back, and those that were fetched and never started. So
//! a start is recorded before a message is handled, and deleted when handling ends. The first delivery writes nothing, so an ordinary
//! message costs nothing; a redelivered message is presumed to have started once. Rows of messages that are never delivered again
//! go after two days (`audience::retention`).

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use runtime::{
    column,
    db::{ANSWER_TIMEOUT, within},
};
use sqlx::PgPool;
use tokio::{
    sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock},
    time::{sleep, timeout},
};

use crate::Incoming;

/// A message with fewer recorded starts is handled together with others. With the first start, which is not recorded, that makes three.
pub(crate) const TOGETHER: i32 = 2;
/// A message with fewer recorded starts is handled alone; one with more is set aside.
pub(crate) const ALONE: i32 = 3;
/// Longest a message that is to be handled alone waits for a moment without others in its process.
const ALONE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a message is then alone. One that ends its process does so soon; one that only takes long stops the others for no longer.
pub(crate) const ALONE_MAX: Duration = Duration::from_secs(10);
/// How often it looks for one.
const ALONE_POLL: Duration = Duration::from_millis(5);
/// Longest the others of a busy process then wait for it to be the next. After that it is given back.
const ALONE_NEXT: Duration = Duration::from_secs(2);
/// Ends remembered while Postgres does not take them.
const OWED_MAX: usize = 10_000;

/// The permanent identity of a message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct StartKey {
    stream: String,
    consumer: String,
    sequence: i64,
    published_at: DateTime<Utc>,
}

impl StartKey {
    pub(crate) fn of(message: &Incoming<'_>, consumer: &str) -> Self {
        let micros = i64::try_from(message.published_ns / 1_000).unwrap_or_default();
        Self {
            stream: message.stream.to_owned(),
            consumer: consumer.to_owned(),
            sequence: i64::try_from(message.sequence).unwrap_or_default(),
            published_at: DateTime::from_timestamp_micros(micros).unwrap_or_default(),
        }
    }
}

/// The counts, and the lock that lets a suspect message be handled alone in this process. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Starts {
    pool: Option<PgPool>,
    /// Ends that Postgres has not taken. Deleted before the next starts are recorded.
    owed: Arc<Mutex<Vec<StartKey>>>,
    /// Locked shared by every group in progress, and exclusively by a message that may end the process.
    in_progress: Arc<RwLock<()>>,
}

impl Starts {
    /// Counts in this database; without one nothing is counted.
    pub(crate) fn new(pool: Option<PgPool>) -> Self {
        Self { pool, owed: Arc::default(), in_progress: Arc::default() }
    }

    /// Records a start of each, all of one consumer, that has fewer than `most` recorded. Answers for each whether it may begin.
    pub(crate) async fn begin(&self, keys: &[StartKey], most: i32) -> sqlx::Result<Vec<bool>> {
        let Some(pool) = &self.pool else { return Ok(vec![true; keys.len()]) };
        let Some(first) = keys.first() else { return Ok(Vec::new()) };
        self.delete_owed(pool).await?;
        let sequences: Vec<i64> = keys.iter().map(|key| key.sequence).collect();
        let begin = sqlx::query_scalar!(
            "insert into message_starts as known (stream, consumer, sequence, published_at, starts)
             select $1, $2, given.sequence, given.published_at, 1
             from unnest($3::bigint[], $4::timestamptz[]) as given (sequence, published_at)
             order by given.sequence
             on conflict (stream, consumer, sequence) do update
             set starts = case when known.published_at = excluded.published_at then known.starts + 1 else 1 end,
                 published_at = excluded.published_at, started_at = now()
             where known.starts < $5 or known.published_at <> excluded.published_at
             returning sequence",
            first.stream,
            first.consumer,
            &sequences,
            &column(keys, |key| key.published_at),
            most,
        );
        let begun: HashSet<i64> = within(ANSWER_TIMEOUT, begin.fetch_all(pool)).await?.into_iter().collect();
        Ok(sequences.iter().map(|sequence| begun.contains(sequence)).collect())
    }

    /// Forgets the starts of messages whose handling has ended. While Postgres is away it is remembered, and done later.
    pub(crate) async fn end(&self, keys: Vec<StartKey>) {
        let Some(pool) = &self.pool else { return };
        if keys.is_empty() {
            return;
        }
        self.owe(keys);
        if let Err(error) = self.delete_owed(pool).await {
            tracing::debug!(error = runtime::db::describe(&error), "ends of messages are recorded later");
        }
    }

    async fn delete_owed(&self, pool: &PgPool) -> sqlx::Result<()> {
        let owed = std::mem::take(&mut *self.owed.lock().unwrap_or_else(PoisonError::into_inner));
        if owed.is_empty() {
            return Ok(());
        }
        let delete = sqlx::query!(
            "delete from message_starts as known
             using unnest($1::text[], $2::text[], $3::bigint[]) as ended (stream, consumer, sequence)
             where known.stream = ended.stream and known.consumer = ended.consumer and known.sequence = ended.sequence",
            &column(&owed, |key| key.stream.clone()),
            &column(&owed, |key| key.consumer.clone()),
            &column(&owed, |key| key.sequence),
        );
        let deleted = within(ANSWER_TIMEOUT, delete.execute(pool)).await;
        if deleted.is_err() {
            self.owe(owed);
        }
        deleted.map(drop)
    }

    fn owe(&self, keys: Vec<StartKey>) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let capacity = OWED_MAX.saturating_sub(owed.len());
        owed.extend(keys.into_iter().take(capacity));
    }

    /// A place for a group of messages beside others.
    pub(crate) async fn beside_others(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.in_progress).read_owned().await
    }

    /// The exclusive lock for a message that is handled alone; `None` if the other messages of this process are not finished in time.
    pub(crate) async fn alone(&self) -> Option<OwnedRwLockWriteGuard<()>> {
        let lock = || Arc::clone(&self.in_progress);
        let found_free = async {
            loop {
                match lock().try_write_owned() {
                    Ok(alone) => return alone,
                    Err(_) => sleep(ALONE_POLL).await,
                }
            }
        };
        match timeout(ALONE_TIMEOUT, found_free).await {
            Ok(alone) => Some(alone),
            // The lock is fair: nothing else begins while this waits for it.
            Err(_) => timeout(ALONE_NEXT, lock().write_owned()).await.ok(),
        }
    }
}

/// Messages counted at a time, far more than fail together. Those that other processes finished stay until there are so many: then all
/// counts begin anew.
const COUNTED_MAX: usize = 50_000;

/// How often each message failed in this process, by its own fault. JetStream's count of deliveries is not that: it also rises while
/// Postgres is away, and while a stage is busy or paused. None of that uses up a message's attempts. Each process counts for itself, so a
/// message that several of them try is set aside later; one that starts again counts anew. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failures(Arc<Mutex<HashMap<StartKey, i64>>>);

impl Failures {
    /// How often this message failed.
    pub(crate) fn of(&self, key: &StartKey) -> i64 {
        self.counts().get(key).copied().unwrap_or(0)
    }

    /// Counts a failure.
    pub(crate) fn add(&self, key: &StartKey) {
        let mut counts = self.counts();
        if counts.len() >= COUNTED_MAX && !counts.contains_key(key) {
            counts.clear();
        }
        *counts.entry(key.clone()).or_default() += 1;
    }

    /// The message is finished.
    pub(crate) fn remove(&self, key: &StartKey) {
        self.counts().remove(key);
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<StartKey, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_message_that_waits_to_be_alone_keeps_others_waiting_for_two_seconds_at_most() {
        let starts = Starts::new(None);
        let mut alone = pin!(starts.alone());
        let mut busy = starts.beside_others().await;
        let begun = Instant::now();
        let mut longest = Duration::ZERO;
        // There is always a message in progress.
        loop {
            let asked = Instant::now();
            tokio::select! {
                biased;
                is_alone = &mut alone => { assert!(is_alone.is_none()); break }
                () = async { busy = { let next = starts.beside_others().await; sleep(Duration::from_millis(7)).await; next } } => {}
            }
            longest = longest.max(asked.elapsed());
        }
        assert!(begun.elapsed() >= ALONE_TIMEOUT, "{:?}", begun.elapsed());
        assert!(longest <= ALONE_NEXT + Duration::from_millis(10), "{longest:?}");
        drop(busy);
        assert!(starts.alone().await.is_some());
    }
}
