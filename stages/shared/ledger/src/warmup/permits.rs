//! Permits of this process under a day's cap: what its workers are about to send counts before it is
//! fenced.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::DomainKey;

/// The permits taken, by domain.
#[derive(Debug, Clone, Default)]
pub struct WarmupPermits {
    taken: Arc<Mutex<HashMap<DomainKey, i64>>>,
}

impl WarmupPermits {
    /// A permit, if fewer than `remaining` are taken.
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

/// A permit, given back when it is dropped: after the send's result is committed, or the send is given up.
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
    use super::*;
    use uuid::Uuid;

    #[test]
    fn no_more_permits_are_given_than_remain() {
        let (permits, domain) = (WarmupPermits::default(), (Uuid::nil(), Uuid::nil()));
        let first = permits.take(domain, 2).unwrap();
        let _second = permits.take(domain, 2).unwrap();
        assert!(permits.take(domain, 2).is_none());
        assert!(permits.take((Uuid::nil(), Uuid::max()), 1).is_some());
        drop(first);
        assert!(permits.take(domain, 2).is_some());
    }
}
