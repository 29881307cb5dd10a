//! How often each message failed in this process, by its own fault. JetStream's count of deliveries is not that: it also rises while
//! Postgres is away, and while a stage is busy or paused. None of that uses up a message's attempts.
//!
//! Each process counts for itself, so a message that several of them try is set aside later; one that starts again counts anew.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::starts::StartKey;

/// Messages counted at a time, far more than fail together. Those that other processes finished stay until there are so many: then all
/// counts begin anew.
const COUNTED_MAX: usize = 50_000;

/// The counts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failures(Arc<Mutex<HashMap<StartKey, i64>>>);

impl Failures {
    /// How often this message failed.
    pub(crate) fn of(&self, key: &StartKey) -> i64 {
        self.counts().get(key).copied().unwrap_or(0)
    }

    /// Counts a failure.
    pub(crate) fn add(&self, key: &StartKey) {
        let mut counts = self.counts();
        if counts.len() >= COUNTED_MAX && !counts.contains_key(key) {
            counts.clear();
        }
        *counts.entry(key.clone()).or_default() += 1;
    }

    /// The message is finished.
    pub(crate) fn remove(&self, key: &StartKey) {
        self.counts().remove(key);
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<StartKey, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
