//! Limits of what one key (a provider connection, a send) may do in a time, counted in each process.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use moka::future::Cache;
use uuid::Uuid;

/// Keys whose windows are kept; of more, those that are seldom used begin a new one.
const KEPT: u64 = 10_000;

/// When a window began, and how much of it is used.
type RateWindow = Arc<Mutex<(Instant, usize)>>;

/// The current window of each key.
#[derive(Debug)]
pub(crate) struct RateWindows {
    windows: Cache<Uuid, RateWindow>,
    most: usize,
    length: Duration,
}

impl RateWindows {
    /// At most so much of each key in each window.
    pub fn new(most: usize, length: Duration) -> Self {
        Self { windows: Cache::builder().max_capacity(KEPT).time_to_idle(length * 2).build(), most, length }
    }

    /// True if so much more fits into the key's window. What fits is counted.
    pub async fn admit(&self, key: Uuid, amount: usize) -> bool {
        let window = self.windows.get_with(key, async { Arc::new(Mutex::new((Instant::now(), 0))) }).await;
        let mut window = window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.0.elapsed() >= self.length {
            *window = (Instant::now(), 0);
        }
        let fits = window.1.saturating_add(amount) <= self.most;
        if fits {
            window.1 += amount;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_has_at_most_its_amount_in_a_window() {
        let windows = RateWindows::new(5, Duration::from_secs(3600));
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert!(windows.admit(one, 3).await && !windows.admit(one, 3).await && windows.admit(one, 2).await);
        assert!(!windows.admit(one, 1).await && windows.admit(other, 5).await);
        let ended = RateWindows::new(1, Duration::ZERO);
        assert!(ended.admit(one, 1).await && ended.admit(one, 1).await, "a new window");
    }
}
