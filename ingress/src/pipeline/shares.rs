//! Permits that many owners share: so many in all, and of them at most so many for one owner. An owner that takes all it may leaves the
//! rest to the others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// Longest wait of a request for its turn. Then: 503, with `Retry-After`.
const TURN_MAX: Duration = Duration::from_secs(10);

/// The permits. An owner is a product, or what stands for one.
#[derive(Debug)]
pub struct Shares {
    all: Arc<Semaphore>,
    /// The most permits of one owner.
    most: usize,
    /// The permits of each owner that has some, or waits for some.
    owners: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// Permits of one owner, until dropped.
#[derive(Debug)]
pub struct Share {
    own: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
}

impl Shares {
    /// So many permits in all, and at most so many for one owner.
    pub fn new(all: usize, most: usize) -> Self {
        // A request for permits is counted in 32 bits.
        let all = all.clamp(1, u32::MAX as usize >> 3);
        Self { all: Arc::new(Semaphore::new(all)), most: most.clamp(1, all), owners: Mutex::default() }
    }

    /// Takes permits, if they are free; more than one owner may have are never.
    pub fn try_take(&self, owner: &str, permits: usize) -> Option<Share> {
        let permits = u32::try_from(permits).ok()?;
        let own = self.of(owner).try_acquire_many_owned(permits).ok()?;
        let all = Arc::clone(&self.all).try_acquire_many_owned(permits).ok()?;
        Some(Share { own, all })
    }

    /// Waits for permits. More than one owner may have are all that it may have.
    pub async fn take(&self, owner: &str, permits: usize) -> Share {
        let permits = u32::try_from(permits.min(self.most)).unwrap_or(u32::MAX);
        loop {
            // First the owner's own: an owner that waits for these keeps no other waiting.
            let own = self.of(owner).acquire_many_owned(permits).await;
            let all = Arc::clone(&self.all).acquire_many_owned(permits).await;
            // Neither is ever closed.
            if let (Ok(own), Ok(all)) = (own, all) {
                return Share { own, all };
            }
        }
    }

    /// Waits for one permit: a request that waits here holds no connection.
    ///
    /// # Errors
    /// 503 `unavailable` when its turn does not come.
    pub async fn take_turn(&self, owner: &str) -> Result<Share, ApiError> {
        tokio::time::timeout(TURN_MAX, self.take(owner, 1)).await.map_err(|_| ApiError::unavailable())
    }

    fn of(&self, owner: &str) -> Arc<Semaphore> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = owners.get(owner) {
            return Arc::clone(own);
        }
        // Only owners with permits, or waiting for some, are remembered.
        owners.retain(|_, own| Arc::strong_count(own) > 1);
        let own = Arc::new(Semaphore::new(self.most));
        owners.insert(owner.to_owned(), Arc::clone(&own));
        own
    }

    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.all.available_permits()
    }
}

impl Share {
    pub fn permits(&self) -> usize {
        self.all.num_permits()
    }

    /// Adds permits of the same owner.
    pub fn merge(&mut self, more: Self) {
        self.own.merge(more.own);
        self.all.merge(more.all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_has_its_share_leaves_the_rest_to_others() {
        let shares = Shares::new(4, 2);
        let first = [shares.try_take("shop", 1), shares.try_take("shop", 1)];
        assert!(first.iter().all(Option::is_some));
        assert!(shares.try_take("shop", 1).is_none());
        let rival = shares.try_take("rival", 2);
        assert!(rival.is_some() && shares.try_take("third", 1).is_none());
        drop(first);
        let fourth = shares.try_take("fourth", 1);
        assert!(fourth.is_some() && shares.try_take("fifth", 2).is_none());
        assert_eq!(shares.owners.lock().unwrap().len(), 3, "no owner without permits is remembered for long");
    }

    #[tokio::test]
    async fn an_owner_that_waits_keeps_no_other_waiting() {
        let shares = Arc::new(Shares::new(4, 2));
        let held = shares.take("shop", 9).await;
        assert_eq!(held.permits(), 2, "no more than its share");
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let shares = Arc::clone(&shares);
                tokio::spawn(async move { shares.take("shop", 2).await.permits() })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(shares.take("rival", 2).await.permits(), 2);
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        drop(held);
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap(), 2);
        }
        assert_eq!(shares.free(), 4);
    }
}
