//! Publishes events on the bus, for products that subscribed there. Webhooks never wait for it.
//!
//! The transaction that creates the deliveries also writes notes about the events for the bus. Normally the events are published a
//! moment later from memory, and the notes are deleted. If the process ends, or the bus is unavailable or too slow, a sweep
//! publishes the events from the notes. An event may be published twice, with the same id.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use runner::{Deps, StageError, Sweep};
use runtime::{Bus, Counter, Publication, panics::caught, plans::PreparedPool};
use sqlx::{PgConnection, PgPool};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use ledger::outbox::{self, Noted};

use super::{compose, read_pending_events, subscribers::Subscribers};

/// Groups that wait in memory; each has a few thousand events at most.
const IN_MEMORY: usize = 8;
/// The sweep takes notes of this age: younger ones are published from memory.
const NOTE_AGE_MIN: Duration = Duration::from_secs(3);
/// How often the sweep runs.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// About how many facts are published from notes in one transaction.
const FACTS_MAX: i64 = 2_000;

/// The events of one fan-out transaction for the bus.
#[derive(Debug)]
pub(crate) struct FeedGroup {
    notes: Vec<i64>,
    publications: Vec<Publication>,
}

/// Writes the notes about events for the bus, in the caller's transaction.
pub(super) async fn record_notes(
    db: &mut PgConnection,
    noted: &Noted,
    tenants: &BTreeSet<Uuid>,
    publications: Vec<Publication>,
) -> sqlx::Result<Option<FeedGroup>> {
    if publications.is_empty() {
        return Ok(None);
    }
    let notes = outbox::copy_for_feed(db, noted, tenants).await?;
    Ok(Some(FeedGroup { notes, publications }))
}

/// The queue of committed groups to publish.
#[derive(Debug, Clone)]
pub(crate) struct FeedQueue {
    groups: mpsc::Sender<FeedGroup>,
    is_up: Arc<AtomicBool>,
}

impl FeedQueue {
    /// Starts publishing, until shut down.
    pub fn start(deps: &Deps) -> Self {
        let (groups, received) = mpsc::channel(IN_MEMORY);
        let is_up = Arc::new(AtomicBool::new(true));
        let publisher = FeedPublisher { pool: deps.pool.clone(), bus: deps.bus.clone(), is_up: Arc::clone(&is_up) };
        deps.runner.spawn("webhooks", publisher.run(received, deps.shutdown.clone()));
        Self { groups, is_up }
    }

    /// Enqueues a group. Waits for capacity while the bus works; while it does not, the group is left to its notes.
    pub async fn enqueue(&self, feed: FeedGroup) {
        let left = match self.groups.try_send(feed) {
            Err(mpsc::error::TrySendError::Full(feed)) if self.is_up.load(Ordering::Relaxed) => {
                self.groups.send(feed).await.is_err()
            }
            sent => sent.is_err(),
        };
        if left {
            tracing::debug!(stage = "webhooks", "events are left to their notes");
        }
    }
}

struct FeedPublisher {
    pool: PgPool,
    bus: Bus,
    is_up: Arc<AtomicBool>,
}

impl FeedPublisher {
    async fn run(self, mut groups: mpsc::Receiver<FeedGroup>, shutdown: CancellationToken) {
        while let Some(Some(feed)) = shutdown.run_until_cancelled(groups.recv()).await {
            let published = caught("webhooks", "task", self.publish(feed)).await;
            let published = published.unwrap_or_else(|panicked| Err(StageError::rejected("panicked", panicked)));
            self.is_up.store(published.is_ok(), Ordering::Relaxed);
            if let Err(error) = published {
                tracing::warn!(stage = "webhooks", error = %error.chain(), "events are not published yet; the sweep publishes them when the bus is back");
            }
        }
    }

    async fn publish(&self, feed: FeedGroup) -> Result<(), StageError> {
        let published = feed.publications.len() as u64;
        self.bus.publish_all(feed.publications).await?;
        Counter::FeedEventsTotal.add(published, []);
        sqlx::query!("delete from feed_notes where id = any($1)", &feed.notes).execute(&self.pool).await?;
        Ok(())
    }
}

/// The sweep that publishes events from old notes.
pub(crate) struct PublishFeedNotes {
    pub by_key: PreparedPool,
    pub bus: Bus,
}

#[async_trait]
impl Sweep for PublishFeedNotes {
    fn name(&self) -> &'static str {
        "publish_feed_notes"
    }

    fn interval(&self) -> Duration {
        SWEEP_INTERVAL
    }

    fn has_work(&self) -> Option<&'static str> {
        Some("exists (select from feed_notes)")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.by_key.begin().await?;
        let noted = outbox::take_for_feed(&mut tx, FACTS_MAX, NOTE_AGE_MIN).await?;
        if noted.taken.notes == 0 {
            return Ok(0);
        }
        let pending = read_pending_events(&mut tx, &noted.events, &noted.notices, &noted.contacts).await?;
        let tenants: BTreeSet<Uuid> = pending.iter().map(|pending| pending.tenant_id).collect();
        let subscribers = Subscribers::load(&mut tx, &tenants).await?;
        let publications = compose::publications(&pending, &subscribers)?;
        // Before the commit: an event that is published twice is recognised by its id, one that is never published is lost.
        let published = publications.len() as u64;
        self.bus.publish_all(publications).await?;
        tx.commit().await?;
        Counter::FeedEventsTotal.add(published, []);
        Ok(noted.taken.notes as u64)
    }
}
