//! What the stages tell this process while somebody waits: a doorbell for the ledger, on a subject of the process's own.
//!
//! Core NATS, without any guarantee. Whoever waits also looks into the ledger every second.

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

/// Who waits for what in this process.
#[derive(Debug)]
pub struct Inbox {
    subject: String,
    waiting: Mutex<HashMap<Uuid, Arc<Notify>>>,
}

impl Inbox {
    /// With a subject nobody else has.
    pub(crate) fn new() -> Self {
        Self { subject: subjects::reply(&Uuid::new_v4().simple().to_string()), waiting: Mutex::default() }
    }

    /// Where this process listens.
    pub(crate) fn subject(&self) -> &str {
        &self.subject
    }

    /// Waits for the decision on a batch, from now on.
    pub(crate) fn wait_for(&self, batch: Uuid) -> Waiter<'_> {
        let bell = Arc::clone(self.lock().entry(batch).or_default());
        Waiter { inbox: self, batch, bell }
    }

    /// Hears until shut down.
    pub(crate) async fn listen(&self, bus: &Bus, shutdown: CancellationToken) {
        let heard = |payload: &[u8]| {
            if let Ok(decided) = serde_json::from_slice::<Decided>(payload) {
                self.ring(decided.batch_id);
            }
        };
        bus.receive(self.subject(), &shutdown, heard).await;
    }

    fn ring(&self, batch: Uuid) {
        if let Some(bell) = self.lock().get(&batch) {
            // Kept for one who looks into the ledger just now; a second one waits for the next look.
            bell.notify_one();
            bell.notify_waiters();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Uuid, Arc<Notify>>> {
        // A map of bells: nothing a panic could leave half done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who waits; gone from the list when dropped.
pub(crate) struct Waiter<'a> {
    inbox: &'a Inbox,
    batch: Uuid,
    bell: Arc<Notify>,
}

impl Waiter<'_> {
    /// Until it rings, at most so long.
    pub(crate) async fn rung_within(&self, patience: Duration) {
        // Either way the ledger is looked at next.
        let _ = tokio::time::timeout(patience, self.bell.notified()).await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.inbox.lock();
        // The map's and this one's: nobody else waits for it.
        if Arc::strong_count(&self.bell) <= 2 {
            waiting.remove(&self.batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_ring_wakes_who_waits_also_if_it_came_a_moment_before() {
        let inbox = Inbox::new();
        let batch = schemas::new_batch_id();
        let waiter = inbox.wait_for(batch);
        inbox.ring(batch);
        let begun = tokio::time::Instant::now();
        waiter.rung_within(Duration::from_secs(9)).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        inbox.ring(schemas::new_batch_id());
        waiter.rung_within(Duration::from_secs(9)).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(9));
    }

    #[test]
    fn nobody_is_kept_who_has_gone() {
        let inbox = Inbox::new();
        let batch = schemas::new_batch_id();
        let (one, other) = (inbox.wait_for(batch), inbox.wait_for(batch));
        drop(one);
        assert_eq!(inbox.lock().len(), 1);
        drop(other);
        assert!(inbox.lock().is_empty());
    }
}
