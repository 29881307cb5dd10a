//! Adaptive pacing: how fast mail goes from one sending domain to one receiver.
//!
//! - [`rate`](self::Rate): the rate of one throttle key. Deferrals halve it, good answers raise it; mail that may not go gets a slot.
//! - [`throttles`](self::Throttles): all throttle keys, bounded; [`Pacer`] shares them between tasks.
//! - [`schemas::receiver`]: which domains belong to one receiver.
//! - [`share`](self::PaceShare): shares reduced rates between processes through the ledger.
//!
//! A mail that may not go now holds no connection and no worker: it is deferred in the ledger until its slot, and the attempt
//! does not count. Each process paces its own mail and adopts within seconds what other processes learn about a receiver.

mod rate;
mod share;
mod throttles;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;
use uuid::Uuid;

use self::throttles::Throttles;
use ledger::schedule::RetryDeadline;

pub(crate) use self::{
    rate::{FLOOR, PacePriority},
    share::PaceShare,
    throttles::{Feedback, PaceRefusal, ThrottleKey},
};

/// How long a mail waits for another transaction with the same receiver to end.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Paces the mail of the process; shared by all its tasks.
#[derive(Debug, Clone)]
pub struct Pacer {
    shared: Arc<SharedThrottles>,
}

#[derive(Debug)]
struct SharedThrottles {
    throttles: Mutex<Throttles>,
    freed: Notify,
}

impl Pacer {
    /// A pacer with at most `limit` transactions of campaigns at once to one receiver, through the platform's relay and through each
    /// tenant's connection, and `ceiling` mails a second for one throttle key.
    pub fn new(limit: usize, ceiling: Option<f64>) -> Self {
        let throttles = Mutex::new(Throttles::new(limit, ceiling, RetryDeadline::Bulk.limit()));
        Self { shared: Arc::new(SharedThrottles { throttles, freed: Notify::new() }) }
    }

    /// True if a throttle key has a rate limit now.
    #[cfg(test)]
    pub fn is_limited(&self, key: &ThrottleKey) -> bool {
        self.shared.lock().is_limited(key)
    }

    /// A permit for mail whose throttle key has a rate limit. `None`: there is no limit, or the receiver is busy for a moment; call
    /// [`Self::acquire`] before sending. `over`: the tenant's connection that carries it; `None`: the platform's relay.
    ///
    /// # Errors
    /// [`PaceRefusal`] if the mail may not go now.
    pub fn try_acquire(
        &self,
        key: &ThrottleKey,
        over: Option<Uuid>,
        turn: PacePriority,
        was_tried: bool,
    ) -> Result<Option<PacePermit>, PaceRefusal> {
        let now = Instant::now();
        let mut throttles = self.shared.lock();
        if !throttles.is_limited(key) {
            return Ok(None);
        }
        let started = throttles.start(key, over, turn, was_tried, now)?;
        drop(throttles);
        Ok(started.then(|| self.permit(key.clone(), over, now)))
    }

    fn permit(&self, key: ThrottleKey, over: Option<Uuid>, began: Instant) -> PacePermit {
        PacePermit { shared: self.shared.clone(), key, over, feedback: Feedback::Silent, began }
    }

    /// Waits until a transaction may start, for a moment at most. `over`: the tenant's connection that carries it; `None`: the platform's
    /// relay. `was_tried`: the mail was deferred before.
    ///
    /// # Errors
    /// [`PaceRefusal`] if it may not: the caller defers the send and frees its worker.
    pub async fn acquire(
        &self,
        key: ThrottleKey,
        over: Option<Uuid>,
        turn: PacePriority,
        was_tried: bool,
    ) -> Result<PacePermit, PaceRefusal> {
        let give_up = tokio::time::Instant::now() + BUSY_WAIT;
        loop {
            // Registered before asking, so that a transaction ending in between is not missed.
            let freed = self.shared.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            let now = Instant::now();
            let started = self.shared.lock().start(&key, over, turn, was_tried, now)?;
            if started {
                return Ok(self.permit(key, over, now));
            }
            if tokio::time::Instant::now() >= give_up {
                return Err(PaceRefusal::Throttled(BUSY_WAIT));
            }
            drop(tokio::time::timeout_at(give_up, freed).await);
        }
    }
}

impl SharedThrottles {
    fn lock(&self) -> std::sync::MutexGuard<'_, Throttles> {
        // The lock is held for map operations only; a panic between them leaves counts that are off by one at worst.
        self.throttles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A permit for one transaction, which ends on drop.
#[derive(Debug)]
pub struct PacePermit {
    shared: Arc<SharedThrottles>,
    key: ThrottleKey,
    over: Option<Uuid>,
    feedback: Feedback,
    began: Instant,
}

impl PacePermit {
    /// Records what the receiver answered.
    pub fn record_answer(&mut self, feedback: Feedback) {
        self.feedback = feedback;
    }

    /// The receiver's family, for metrics.
    pub fn family(&self) -> &'static str {
        self.key.receiver.family
    }
}

impl Drop for PacePermit {
    fn drop(&mut self) {
        let is_cut = self.shared.lock().finish(&self.key, self.over, self.feedback, self.began, Instant::now());
        self.shared.freed.notify_waiters();
        if is_cut {
            tracing::info!(
                stage = "delivery",
                tenant_id = %self.key.tenant,
                family = self.key.receiver.family,
                "a receiver defers; mail to it goes at half the rate"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(domain: &str) -> ThrottleKey {
        ThrottleKey::new(Uuid::nil(), "acme.example", domain)
    }

    #[tokio::test]
    async fn a_waiting_task_starts_when_another_ends() {
        let pacer = Pacer::new(1, None);
        let first = pacer.acquire(key("a.example"), None, PacePriority::New, false).await.unwrap();
        let waiting = tokio::spawn({
            let pacer = pacer.clone();
            async move { pacer.acquire(key("a.example"), None, PacePriority::New, false).await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn bulk_mail_does_not_wait_long_for_a_busy_receiver() {
        let pacer = Pacer::new(1, None);
        let _first = pacer.acquire(key("a.example"), None, PacePriority::New, false).await.unwrap();
        let second = pacer.acquire(key("a.example"), None, PacePriority::New, false).await;
        assert_eq!(second.unwrap_err(), PaceRefusal::Throttled(BUSY_WAIT));
        assert!(pacer.acquire(key("b.example"), None, PacePriority::New, false).await.is_ok());
    }

    #[tokio::test]
    async fn only_the_receiver_that_defers_is_slowed_down() {
        let pacer = Pacer::new(9, None);
        for _ in 0..2 {
            pacer
                .acquire(key("a.example"), None, PacePriority::New, false)
                .await
                .unwrap()
                .record_answer(Feedback::Deferred);
        }
        assert!(pacer.is_limited(&key("a.example")));
        assert!(matches!(
            pacer.acquire(key("a.example"), None, PacePriority::New, false).await,
            Err(PaceRefusal::Throttled(_))
        ));
        assert!(pacer.acquire(key("b.example"), None, PacePriority::New, false).await.is_ok());
    }
}
