//! Notifications from the stages that sends were decided, on a subject of this process's own.
//!
//! Core NATS, without any guarantee: a request that waits also reads the ledger every second.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use runtime::Bus;
use schemas::{messages::Decided, subjects};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The requests of this process that wait for the outcome of a batch.
#[derive(Debug)]
pub struct ReplyInbox {
    subject: String,
    waiting: Mutex<HashMap<Uuid, Arc<Notify>>>,
}

impl ReplyInbox {
    /// Makes an inbox with a random subject of its own.
    pub(crate) fn new() -> Self {
        Self { subject: subjects::reply(&Uuid::new_v4().simple().to_string()), waiting: Mutex::default() }
    }

    /// The subject this process listens on.
    pub(crate) fn subject(&self) -> &str {
        &self.subject
    }

    /// Registers a waiter for the decision on a batch, from now on.
    pub(crate) fn wait_for(&self, batch: Uuid) -> Waiter<'_> {
        let notify = Arc::clone(self.lock().entry(batch).or_default());
        Waiter { inbox: self, batch, notify }
    }

    /// Receives notifications until shut down.
    pub(crate) async fn listen(&self, bus: &Bus, shutdown: CancellationToken) {
        let received = |payload: &[u8]| {
            if let Ok(decided) = serde_json::from_slice::<Decided>(payload) {
                self.notify(decided.batch_id);
            }
        };
        bus.receive(self.subject(), &shutdown, received).await;
    }

    fn notify(&self, batch: Uuid) {
        if let Some(notify) = self.lock().get(&batch) {
            // The first call leaves a permit for a waiter that reads the ledger at this moment.
            notify.notify_one();
            notify.notify_waiters();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Uuid, Arc<Notify>>> {
        // No panic can leave the map half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that waits for a batch. Dropping it removes it from the inbox.
pub(crate) struct Waiter<'a> {
    inbox: &'a ReplyInbox,
    batch: Uuid,
    notify: Arc<Notify>,
}

impl Waiter<'_> {
    /// Waits for a notification, for at most `wait_max`.
    pub(crate) async fn wait_at_most(&self, wait_max: Duration) {
        // With or without a notification, the caller reads the ledger next.
        let _ = tokio::time::timeout(wait_max, self.notify.notified()).await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.inbox.lock();
        // One reference in the map and one here: no other waiter.
        if Arc::strong_count(&self.notify) <= 2 {
            waiting.remove(&self.batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_notification_resumes_a_waiter_also_if_it_came_before() {
        let inbox = ReplyInbox::new();
        let batch = schemas::new_batch_id();
        let waiter = inbox.wait_for(batch);
        inbox.notify(batch);
        let begun = tokio::time::Instant::now();
        waiter.wait_at_most(Duration::from_secs(9)).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        inbox.notify(schemas::new_batch_id());
        waiter.wait_at_most(Duration::from_secs(9)).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(9));
    }

    #[test]
    fn a_dropped_waiter_leaves_the_inbox() {
        let inbox = ReplyInbox::new();
        let batch = schemas::new_batch_id();
        let (one, other) = (inbox.wait_for(batch), inbox.wait_for(batch));
        drop(one);
        assert_eq!(inbox.lock().len(), 1);
        drop(other);
        assert!(inbox.lock().is_empty());
    }
}
