//! Notifications ("something was committed, look") within a process and over the bus: coalesced, and without any guarantee. The work itself
//! stands in the ledger, so a listener that misses one finds it a moment later.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use schemas::{
    messages::{FactsAnnounced, Message},
    subjects::{self, header},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{Bus, plans::PreparedPool};

/// Commits within this time after a notification are the next one: its listener takes all the work there is, and composing the events of many
/// facts at once costs a fraction. A lone fact does not wait.
const GATHER: Duration = Duration::from_millis(200);
/// How soon a process knows that there are listeners.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Notifies one listener. Notifications before it listens are delivered as one. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Notifier(Arc<Notify>);

impl Notifier {
    /// Notifies. Never waits.
    pub fn notify(&self) {
        self.0.notify_one();
    }

    /// Returns at the next notification; at once, if there was one since the last call.
    pub async fn notified(&self) {
        self.0.notified().await;
    }

    /// Publishes notifications to a subject of the bus, at most once in `gather`, until shut down.
    pub async fn carry<M: Message>(self, bus: Bus, subject: String, gather: Duration, shutdown: CancellationToken) {
        let subject = bus.prefixed(&subject);
        let mut headers = async_nats::HeaderMap::new();
        headers.insert(header::SCHEMA, M::SCHEMA);
        while shutdown.run_until_cancelled(self.notified()).await.is_some() {
            if let Err(error) = bus.client().publish_with_headers(subject.clone(), headers.clone(), "{}".into()).await {
                tracing::debug!(%error, "a notification was not published; a sweep finds the work");
            }
            tokio::time::sleep(gather).await;
        }
    }
}

/// Notifies the webhooks stage of facts that were committed: they stand in `outbox`. While no tenant has a listener, it publishes nothing.
#[derive(Debug, Clone, Default)]
pub struct CommitNotifier {
    committed: Notifier,
    has_listeners: Arc<AtomicBool>,
}

impl CommitNotifier {
    /// Notifies as `stage` until shut down. `by_key` may be in either role.
    #[must_use]
    pub fn start(stage: &'static str, bus: Bus, by_key: &PreparedPool, shutdown: CancellationToken) -> Self {
        let notifier = Self::default();
        tokio::spawn(watch(notifier.clone(), by_key.priority("listeners"), shutdown.clone()));
        let carried = notifier.committed.clone();
        tokio::spawn(carried.carry::<FactsAnnounced>(bus, subjects::fact(stage), GATHER, shutdown));
        notifier
    }

    /// Says that facts may have been committed. Never waits.
    pub fn notify(&self) {
        if self.has_listeners.load(Ordering::Relaxed) {
            self.committed.notify();
        }
    }
}

/// Keeps in mind whether anybody listens at all.
async fn watch(notifier: CommitNotifier, by_key: PreparedPool, shutdown: CancellationToken) {
    loop {
        // Postgres away: nothing is committed either.
        if let Ok(listens) = anybody_listens(&by_key).await {
            notifier.has_listeners.store(listens, Ordering::Relaxed);
        }
        if shutdown.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_none() {
            return;
        }
    }
}

async fn anybody_listens(by_key: &PreparedPool) -> sqlx::Result<bool> {
    let mut db = by_key.take().await?;
    let listens = sqlx::query_scalar!(r#"select (exists (select from event_feeds) or anybody_listens()) as "heard!""#)
        .fetch_one(&mut *db)
        .await?;
    db.put_back();
    Ok(listens)
}
