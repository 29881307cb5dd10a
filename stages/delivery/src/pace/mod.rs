//! Adaptive pacing: how fast mail goes from one sending domain to one receiver.
//!
//! - [`rate`](self::Rate): the pace of one path. Deferrals halve it, good answers raise it; what may not go gets a slot.
//! - [`paths`](self::Paths): all of them, bounded; [`Paces`] shares them between tasks.
//! - [`schemas::receiver`]: which domains are one receiver.
//! - [`share`](self::Share): processes tell each other through the ledger.
//!
//! A mail that may not go now holds no connection and no worker: it is deferred in the ledger, uncounted, until its slot. Each
//! process paces its own mail; what one finds out the others take over within seconds, and several processes divide what a
//! receiver takes as connections divide a line.

mod paths;
mod rate;
mod share;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use self::{
    paths::{Paths, Start},
    rate::Held,
};
use ledger::schedule::RetryDeadline;

pub(crate) use self::share::Share;
pub use self::{
    paths::{Feedback, Level, MAX_PATHS, Path},
    rate::{FLOOR, FREE, Turn},
};

/// How long a mail waits in place for another one to the same receiver to end.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Why a mail may not go now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PutOff {
    /// It has its turn after so long.
    #[error("its turn comes later")]
    Throttled(Duration),
    /// All turns within this time are taken.
    #[error("all turns for some time are taken")]
    QueueFull(Duration),
    /// Its receiver has taken nothing for so long that it is given up.
    #[error("its receiver takes nothing")]
    RetryDeadlinePassed,
}

/// All paths of the process, shared.
#[derive(Debug, Clone)]
pub struct Paces {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    paths: Mutex<Paths>,
    freed: Notify,
}

impl Paces {
    /// At most `limit` transactions at once to one receiver, and `ceiling` mails a second on one path.
    #[must_use]
    pub fn new(limit: usize, ceiling: Option<f64>) -> Self {
        let paths = Mutex::new(Paths::new(limit, ceiling, RetryDeadline::Bulk.limit()));
        Self { shared: Arc::new(Shared { paths, freed: Notify::new() }) }
    }

    /// Whether a path is held to a pace now.
    #[must_use]
    pub fn is_held(&self, path: &Path) -> bool {
        self.shared.lock().is_held(path)
    }

    /// A permit for mail on a path that is held to a pace. `None`: it is free, or busy for a moment; ask when it comes to it.
    ///
    /// # Errors
    /// [`PutOff`] when it may not go now.
    pub fn try_acquire(&self, path: &Path, turn: Turn, was_tried: bool) -> Result<Option<PacePermit>, PutOff> {
        let now = Instant::now();
        let mut paths = self.shared.lock();
        if !paths.is_held(path) {
            return Ok(None);
        }
        let answer = paths.start(path, turn, was_tried, now);
        drop(paths);
        match answer {
            Start::Go => Ok(Some(self.permit(path.clone(), now))),
            Start::Busy => Ok(None),
            Start::Later(wait) => Err(PutOff::Throttled(wait)),
            Start::Far(wait) => Err(PutOff::QueueFull(wait)),
            Start::RetryDeadlinePassed => Err(PutOff::RetryDeadlinePassed),
        }
    }

    /// Takes over what other processes found out.
    fn adopt(&self, told: impl Iterator<Item = (Path, Held)>, now: Instant) {
        let mut paths = self.shared.lock();
        for (path, held) in told {
            paths.adopt(&path, held, now);
        }
    }

    /// Forgets what is idle; answers how the paths are, by family.
    fn tidy(&self) -> HashMap<&'static str, Level> {
        let now = Instant::now();
        let mut paths = self.shared.lock();
        paths.tidy(now);
        paths.levels(now)
    }

    fn permit(&self, path: Path, began: Instant) -> PacePermit {
        PacePermit { shared: self.shared.clone(), path, feedback: Feedback::Silent, began }
    }

    /// Waits, for a moment at most, until a transaction may start. `was_tried`: the mail was refused before.
    ///
    /// # Errors
    /// [`PutOff`] when it may not: the caller defers the send instead of holding its place.
    pub async fn acquire(&self, path: Path, turn: Turn, was_tried: bool) -> Result<PacePermit, PutOff> {
        let give_up = tokio::time::Instant::now() + BUSY_WAIT;
        loop {
            // Registered before asking, so that a transaction ending in between is not missed.
            let freed = self.shared.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            let now = Instant::now();
            let answer = self.shared.lock().start(&path, turn, was_tried, now);
            match answer {
                Start::Go => return Ok(self.permit(path, now)),
                Start::Later(wait) => return Err(PutOff::Throttled(wait)),
                Start::Far(wait) => return Err(PutOff::QueueFull(wait)),
                Start::RetryDeadlinePassed => return Err(PutOff::RetryDeadlinePassed),
                Start::Busy if turn == Turn::Prompt => freed.await,
                Start::Busy if tokio::time::Instant::now() >= give_up => return Err(PutOff::Throttled(BUSY_WAIT)),
                Start::Busy => drop(tokio::time::timeout_at(give_up, freed).await),
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Paths> {
        // The lock is held for map operations only; a panic between them leaves counts that are off by one at worst.
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transaction on its way. Ends when dropped.
#[derive(Debug)]
pub struct PacePermit {
    shared: Arc<Shared>,
    path: Path,
    feedback: Feedback,
    began: Instant,
}

impl PacePermit {
    /// What the receiver has answered.
    pub fn heard(&mut self, feedback: Feedback) {
        self.feedback = feedback;
    }

    /// The receiver's family.
    #[must_use]
    pub fn family(&self) -> &'static str {
        self.path.receiver.family
    }
}

impl Drop for PacePermit {
    fn drop(&mut self) {
        let is_cut = self.shared.lock().finish(&self.path, self.feedback, self.began, Instant::now());
        self.shared.freed.notify_waiters();
        if is_cut {
            tracing::info!(
                stage = "delivery",
                tenant_id = %self.path.tenant,
                family = self.path.receiver.family,
                "a receiver defers; mail to it goes at half the pace"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use uuid::Uuid;

    fn path(domain: &str) -> Path {
        Path::new(Uuid::nil(), "acme.example", domain)
    }

    #[tokio::test]
    async fn a_waiting_task_starts_when_another_ends() {
        let paces = Paces::new(1, None);
        let first = paces.acquire(path("a.example"), Turn::New, false).await.unwrap();
        let waiting = tokio::spawn({
            let paces = paces.clone();
            async move { paces.acquire(path("a.example"), Turn::Prompt, false).await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn bulk_mail_does_not_wait_long_for_a_busy_receiver() {
        let paces = Paces::new(1, None);
        let _first = paces.acquire(path("a.example"), Turn::New, false).await.unwrap();
        let second = paces.acquire(path("a.example"), Turn::New, false).await;
        assert_eq!(second.unwrap_err(), PutOff::Throttled(BUSY_WAIT));
        assert!(paces.acquire(path("b.example"), Turn::New, false).await.is_ok());
    }

    #[tokio::test]
    async fn a_receiver_that_defers_is_held_and_another_is_not() {
        let paces = Paces::new(9, None);
        for _ in 0..2 {
            paces.acquire(path("a.example"), Turn::New, false).await.unwrap().heard(Feedback::Deferred);
        }
        assert!(paces.is_held(&path("a.example")));
        assert!(matches!(paces.acquire(path("a.example"), Turn::New, false).await, Err(PutOff::Throttled(_))));
        assert!(paces.acquire(path("b.example"), Turn::New, false).await.is_ok());
    }
}
