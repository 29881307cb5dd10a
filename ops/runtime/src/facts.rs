//! The bell that says "facts were committed": rung after a commit, heard by the webhooks stage on `MAIL_FACTS`.
//!
//! What is to be told stands in `outbox`, so a bell may be lost: a sweep looks by itself. While nobody listens for any tenant,
//! nothing is rung.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use schemas::{messages::FactsAnnounced, messages::Message, subjects, subjects::header};
use sqlx::PgPool;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::Bus;

/// Commits within this time ring once: whoever hears takes all there is.
const GATHER: Duration = Duration::from_millis(5);
/// How soon a process knows that somebody listens.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Rings for facts that were committed. Cheap to clone; a lost ring costs a moment, never a fact.
#[derive(Debug, Clone, Default)]
pub struct CommitNotifier {
    rung: Arc<Notify>,
    heard: Arc<AtomicBool>,
}

impl CommitNotifier {
    /// A bell that rings as `stage` until shut down. `pool` may be in either role.
    #[must_use]
    pub fn start(stage: &'static str, bus: Bus, pool: PgPool, shutdown: CancellationToken) -> Self {
        let bell = Self::default();
        tokio::spawn(watch(bell.clone(), pool, shutdown.clone()));
        tokio::spawn(carry(stage, bell.clone(), bus, shutdown));
        bell
    }

    /// Says that facts may have been committed. Never waits.
    pub fn ring(&self) {
        if self.heard.load(Ordering::Relaxed) {
            self.rung.notify_one();
        }
    }
}

/// Keeps in mind whether anybody listens at all.
async fn watch(bell: CommitNotifier, pool: PgPool, shutdown: CancellationToken) {
    loop {
        // Postgres away: nothing is committed either.
        if let Ok(heard) =
            sqlx::query_scalar!(r#"select (exists (select from event_feeds) or anybody_listens()) as "heard!""#)
                .fetch_one(&pool)
                .await
        {
            bell.heard.store(heard, Ordering::Relaxed);
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

async fn carry(stage: &'static str, bell: CommitNotifier, bus: Bus, shutdown: CancellationToken) {
    let subject = bus.prefixed(&subjects::fact(stage));
    let mut headers = async_nats::HeaderMap::new();
    headers.insert(header::SCHEMA, FactsAnnounced::SCHEMA);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = bell.rung.notified() => {}
        }
        if let Err(error) = bus.client().publish_with_headers(subject.clone(), headers.clone(), "{}".into()).await {
            tracing::debug!(%error, "nobody was rung; the sweep looks by itself");
        }
        tokio::time::sleep(GATHER).await;
    }
}
