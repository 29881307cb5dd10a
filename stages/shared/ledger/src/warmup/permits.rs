//! Places of this process in a day's cap: what one worker has claimed and not yet handed over, another must not claim as well.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::DomainKey;

/// The places taken, by domain.
#[derive(Debug, Clone, Default)]
pub struct WarmupPermits {
    taken: Arc<Mutex<HashMap<DomainKey, i64>>>,
}

impl WarmupPermits {
    /// A place in what is left, if there is one.
    pub fn take(&self, domain: DomainKey, remaining: i64) -> Option<WarmupPermit> {
        let mut taken = self.lock();
        let count = taken.entry(domain).or_default();
        if *count >= remaining {
            return None;
        }
        *count += 1;
        drop(taken);
        Some(WarmupPermit { permits: self.clone(), domain })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<DomainKey, i64>> {
        // The lock is held for map operations only.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place, given back when dropped: when the send's result is committed, or it was given up.
#[derive(Debug)]
pub struct WarmupPermit {
    permits: WarmupPermits,
    domain: DomainKey,
}

impl Drop for WarmupPermit {
    fn drop(&mut self) {
        let mut taken = self.permits.lock();
        if let Some(count) = taken.get_mut(&self.domain) {
            *count -= 1;
            if *count <= 0 {
                taken.remove(&self.domain);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use uuid::Uuid;

    #[test]
    fn no_more_places_are_taken_than_there_is_room_and_what_ends_gives_back() {
        let (permits, domain) = (WarmupPermits::default(), (Uuid::nil(), Uuid::nil()));
        let first = permits.take(domain, 2).unwrap();
        let _second = permits.take(domain, 2).unwrap();
        assert!(permits.take(domain, 2).is_none());
        assert!(permits.take((Uuid::nil(), Uuid::max()), 1).is_some());
        drop(first);
        assert!(permits.take(domain, 2).is_some());
    }
}
