//! Events to the bus, for products that subscribed there: a road of its own, so that webhooks never wait for it.
//!
//! What is to be published is noted in the transaction that makes the deliveries. Mostly it is published a moment later from memory,
//! and the note goes. What is not (the process ended, the bus was away, or slower than the facts) is published from the notes, by
//! whoever looks next. An event may be published twice, under the same id.

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

use super::{compose, read, subscribers::Subscribers};

/// Groups that wait in memory: each has some thousand events at most.
const IN_MEMORY: usize = 8;
/// How long a note is left to whoever has it in memory.
const OLD: Duration = Duration::from_secs(3);
/// How often old notes are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// About so many facts are published from notes in one transaction.
const FACTS_MAX: i64 = 2_000;

/// What of one group goes to the bus.
#[derive(Debug)]
pub(crate) struct Feed {
    notes: Vec<i64>,
    publications: Vec<Publication>,
}

/// Notes what is to be published, of the tenants who have a feed. Takes effect with the caller's commit.
pub(super) async fn note(
    db: &mut PgConnection,
    noted: &Noted,
    tenants: &BTreeSet<Uuid>,
    publications: Vec<Publication>,
) -> sqlx::Result<Option<Feed>> {
    if publications.is_empty() {
        return Ok(None);
    }
    let notes = outbox::copy_for_feed(db, noted, tenants).await?;
    Ok(Some(Feed { notes, publications }))
}

/// Where what was committed is handed over to be published.
#[derive(Debug, Clone)]
pub(crate) struct FeedDoor {
    groups: mpsc::Sender<Feed>,
    is_up: Arc<AtomicBool>,
}

impl FeedDoor {
    /// Starts publishing, until shut down.
    pub fn start(deps: &Deps) -> Self {
        let (groups, received) = mpsc::channel(IN_MEMORY);
        let is_up = Arc::new(AtomicBool::new(true));
        let publisher = Publisher { pool: deps.pool.clone(), bus: deps.bus.clone(), is_up: Arc::clone(&is_up) };
        deps.runner.spawn("webhooks", publisher.run(received, deps.shutdown.clone()));
        Self { groups, is_up }
    }

    /// Hands a group over. Waits for room while the bus takes what it is given; while it does not, the notes are enough.
    pub async fn hand_over(&self, feed: Feed) {
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

struct Publisher {
    pool: PgPool,
    bus: Bus,
    is_up: Arc<AtomicBool>,
}

impl Publisher {
    async fn run(self, mut groups: mpsc::Receiver<Feed>, shutdown: CancellationToken) {
        while let Some(Some(feed)) = shutdown.run_until_cancelled(groups.recv()).await {
            let published = caught("webhooks", "task", self.publish(feed)).await;
            let published = published.unwrap_or_else(|panicked| Err(StageError::rejected("panicked", panicked)));
            self.is_up.store(published.is_ok(), Ordering::Relaxed);
            if let Err(error) = published {
                tracing::warn!(stage = "webhooks", error = %error.chain(), "events are not published yet; they are when the bus is back");
            }
        }
    }

    async fn publish(&self, feed: Feed) -> Result<(), StageError> {
        let published = feed.publications.len() as u64;
        self.bus.publish_all(feed.publications).await?;
        Counter::FeedEventsTotal.add(published, []);
        sqlx::query!("delete from feed_notes where id = any($1)", &feed.notes).execute(&self.pool).await?;
        Ok(())
    }
}

/// Notes whose events nobody has published.
pub(crate) struct LeftOver {
    pub by_key: PreparedPool,
    pub bus: Bus,
}

#[async_trait]
impl Sweep for LeftOver {
    fn name(&self) -> &'static str {
        "feed_notes"
    }

    fn interval(&self) -> Duration {
        LOOK_EVERY
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.by_key.begin().await?;
        let noted = outbox::take_for_feed(&mut tx, FACTS_MAX, OLD).await?;
        if noted.taken.notes == 0 {
            return Ok(0);
        }
        let told = read(&mut tx, &noted.events, &noted.notices, &noted.contacts).await?;
        let tenants: BTreeSet<Uuid> = told.iter().map(|told| told.tenant_id).collect();
        let hearers = Subscribers::load(&mut tx, &tenants).await?;
        let publications = compose::publications(&told, &hearers)?;
        // Before the commit: what is published twice is recognised by its id, what is not published is lost.
        let published = publications.len() as u64;
        self.bus.publish_all(publications).await?;
        tx.commit().await?;
        Counter::FeedEventsTotal.add(published, []);
        Ok(noted.taken.notes as u64)
    }
}
