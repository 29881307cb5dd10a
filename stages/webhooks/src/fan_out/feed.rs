//! Publishes events on the bus, for products that subscribed there.
//!
//! The transaction that deletes facts' notes from the outbox publishes their events before: an event that is published twice has one
//! id, one that is never published is lost. While the bus is unavailable or too slow, the transaction writes notes about the
//! facts instead, and a sweep publishes the events of the notes when the bus is back. So webhooks wait for the bus no longer
//! than [`PUBLISH_MAX`] in [`PAUSE_AFTER_FAILURE`]. Nothing is written, and no snapshot held, while the bus is waited for.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{Bus, Counter, plans::PreparedPool};
use sqlx::PgConnection;
use uuid::Uuid;

use ledger::outbox::{self, Noted};

use super::{
    compose::{self, ComposedEvent},
    read_pending_events,
    subscribers::Subscribers,
};

/// The longest that a fan-out transaction waits for the bus.
const PUBLISH_MAX: Duration = Duration::from_secs(1);
/// After the bus failed or was too slow, the events of this time are left to the sweep.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(10);
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Publishes the events of fan-out transactions.
#[derive(Debug)]
pub(crate) struct FeedPublisher {
    bus: Bus,
    /// Nothing is published before this time: the bus failed.
    paused_until: Mutex<Instant>,
}

impl FeedPublisher {
    pub fn new(bus: Bus) -> Self {
        Self { bus, paused_until: Mutex::new(Instant::now()) }
    }

    /// Publishes these events, or writes notes about the facts of their tenants in the caller's transaction.
    pub(super) async fn publish_or_note(
        &self,
        db: &mut PgConnection,
        noted: &Noted,
        events: Vec<&ComposedEvent<'_>>,
    ) -> sqlx::Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        let tenants: BTreeSet<Uuid> = events.iter().map(|event| event.pending.tenant_id).collect();
        release_snapshot(&mut *db).await?;
        if !self.publish(events).await {
            outbox::copy_for_feed(db, noted, &tenants).await?;
        }
        Ok(())
    }

    /// True if all were published.
    async fn publish(&self, events: Vec<&ComposedEvent<'_>>) -> bool {
        if Instant::now() < *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner) {
            return false;
        }
        let published = events.len() as u64;
        let failure = match tokio::time::timeout(PUBLISH_MAX, self.bus.publish_all(events)).await {
            Ok(Ok(())) => {
                Counter::FeedEventsTotal.add(published, []);
                return true;
            }
            Ok(Err(error)) => StageError::from(error),
            Err(_) => runtime::BusError::Timeout.into(),
        };
        tracing::warn!(stage = "webhooks", error = %failure.chain(), "events are not published yet; the sweep publishes them when the bus is back");
        *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + PAUSE_AFTER_FAILURE;
        false
    }
}

/// Postgres keeps the snapshot of a prepared statement until the next statement of its transaction, and prunes nothing that changed since.
/// This statement ends at once, with its own.
async fn release_snapshot(db: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::raw_sql("select").execute(db).await.map(drop)
}

pub(crate) struct PublishFeedNotes {
    pub by_key: PreparedPool,
    pub bus: Bus,
}

#[async_trait]
impl Sweep for PublishFeedNotes {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("publish_feed_notes", SWEEP_INTERVAL).when("exists (select from feed_notes)")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.by_key.begin().await?;
        let noted = outbox::read_for_feed(&mut tx).await?;
        if noted.taken.notes == 0 {
            return Ok(0);
        }
        // The copies of facts that this version does not know go: their notes wait for a newer version, which copies them anew.
        let (pending, _) = read_pending_events(&mut tx, &noted.events, &noted.notices, &noted.contacts).await?;
        let subscribers = Subscribers::load(&mut tx, &pending).await?;
        let composed = compose::compose(&pending, &subscribers)?;
        let events = compose::for_bus(&composed);
        // Before the commit: an event that is published twice is recognised by its id, one that is never published is lost.
        let published = events.len() as u64;
        release_snapshot(&mut tx).await?;
        self.bus.publish_all(events).await?;
        outbox::delete_for_feed(&mut tx, &noted).await?;
        tx.commit().await?;
        Counter::FeedEventsTotal.add(published, []);
        Ok(noted.taken.notes as u64)
    }
}
