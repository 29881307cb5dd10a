//! A rate of our own before a provider's: what an account may do in a second is known, and running into its limit again and again
//! costs it reputation and us a round through the queue.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;

use super::{Opened, Parcel, PingFault, Provider, ProviderKind, Refused, Signing};

/// A provider that begins at most so many handovers a second, evenly. Of this process: the account's rate is to be divided by
/// the number of delivery processes.
pub(super) struct Paced {
    inner: Box<dyn Provider>,
    interval: Duration,
    /// When the next one may begin.
    next: Mutex<Instant>,
}

impl Paced {
    pub fn new(inner: Box<dyn Provider>, per_second: u32) -> Self {
        Self { inner, interval: Duration::from_secs(1) / per_second.max(1), next: Mutex::new(Instant::now()) }
    }

    /// Takes the next turn, and answers when it is.
    fn turn(&self, now: Instant) -> Instant {
        // One plain field: nothing a panic could leave half done.
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = (*next).max(now);
        *next = turn + self.interval;
        turn
    }
}

#[async_trait]
impl Provider for Paced {
    fn kind(&self) -> ProviderKind {
        self.inner.kind()
    }

    fn signing(&self) -> Signing {
        self.inner.signing()
    }

    /// The wait is here, before the fence: nobody waits with a fence in hand.
    async fn open(&self, parcel: &Parcel<'_>) -> Result<Box<dyn Opened>, Refused> {
        tokio::time::sleep_until(self.turn(Instant::now()).into()).await;
        self.inner.open(parcel).await
    }

    async fn ping(&self) -> Result<(), PingFault> {
        self.inner.ping().await
    }

    async fn close_idle(&self) {
        self.inner.close_idle().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Broken;

    #[test]
    fn handovers_begin_evenly_and_unused_turns_are_not_saved_up() {
        let paced = Paced::new(Box::new(Broken(ProviderKind::Ses)), 4);
        let start = Instant::now() + Duration::from_secs(1);
        let turns: Vec<u128> = (0..4).map(|_| (paced.turn(start) - start).as_millis()).collect();
        assert_eq!(turns, [0, 250, 500, 750]);
        let later = start + Duration::from_secs(60);
        assert_eq!(paced.turn(later), later);
        assert_eq!(paced.turn(later) - later, Duration::from_millis(250));
    }
}
