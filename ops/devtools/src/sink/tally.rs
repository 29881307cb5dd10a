//! Counting a million keys in a few dozen bytes each.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A counter per key. Keys are kept as 64-bit hashes: two of a million keys share one with a chance of 1 in 37
/// million.
#[derive(Debug)]
pub(crate) struct KeyedCounts {
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
}

type Shard = HashMap<u64, Entry, Identity>;

/// How often a key was seen, and when. Times are microseconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) count: u32,
    pub(crate) first_at_us: u64,
    pub(crate) last_at_us: u64,
}

/// Enough that connections rarely meet.
const SHARDS: usize = 64;

impl KeyedCounts {
    pub(crate) fn new() -> Self {
        Self { hasher: RandomState::new(), shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// The key of an address or a Message-ID; ASCII case does not matter.
    pub(crate) fn key(&self, text: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        // Lower-cased in pieces, without an allocation.
        let mut piece = [0; 64];
        for chunk in text.chunks(piece.len()) {
            let lower = &mut piece[..chunk.len()];
            lower.copy_from_slice(chunk);
            lower.make_ascii_lowercase();
            hasher.write(lower);
        }
        hasher.finish()
    }

    /// Counts once more and answers the new count.
    pub(crate) fn add(&self, key: u64, at_us: u64) -> u32 {
        let mut shard = self.shard(key);
        let entry = shard.entry(key).or_default();
        if entry.count == 0 {
            entry.first_at_us = at_us;
        }
        entry.count = entry.count.saturating_add(1);
        entry.last_at_us = at_us;
        entry.count
    }

    pub(crate) fn get(&self, key: u64) -> Entry {
        self.shard(key).get(&key).copied().unwrap_or_default()
    }

    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            *lock(shard) = Shard::default();
        }
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Shard> {
        // The map uses the low bits.
        lock(&self.shards[(key >> 58) as usize % SHARDS])
    }
}

/// A panic while a count is changed leaves a count; going on is right.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The keys are hashes already.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Identity;

impl BuildHasher for Identity {
    type Hasher = IdentityHasher;

    fn build_hasher(&self) -> IdentityHasher {
        IdentityHasher(0)
    }
}

pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        // Keys of one shard share their highest bits, and the map looks at those: turn other bits up.
        self.0 = key.rotate_left(6);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_counted_whatever_its_case_and_length() {
        let tally = KeyedCounts::new();
        let long = format!("{}@Example.com", "A".repeat(200));
        for (text, at_us) in [("Ann@x.com", 5), ("ann@X.com", 9), (&long, 1)] {
            tally.add(tally.key(text.as_bytes()), at_us);
        }
        let ann = tally.get(tally.key(b"ANN@x.com"));
        assert_eq!((ann.count, ann.first_at_us, ann.last_at_us), (2, 5, 9));
        assert_eq!(tally.get(tally.key(long.to_lowercase().as_bytes())).count, 1);
        assert_eq!(tally.get(tally.key(b"bob@x.com")), Entry::default());
    }

    #[test]
    fn keys_of_one_length_block_do_not_run_together() {
        let tally = KeyedCounts::new();
        assert_ne!(tally.key(b"ab@x.com"), tally.key(b"ba@x.com"));
    }
}
