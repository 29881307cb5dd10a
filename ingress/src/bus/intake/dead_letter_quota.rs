//! The dead letters that refused requests of a product may leave. All share one stream, which drops its oldest when it is full: without
//! a quota, one product would push out the dead letters of others.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

const WINDOW: Duration = Duration::from_secs(60 * 60);
/// Dead letters of a product and environment in a window, for each ingress process.
const DEAD_LETTERS_MAX: u32 = 1_000;
/// Bytes of them: a sixteenth of the stream.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Products counted at once. The subject names them, and the server allows each user its own only.
const PRODUCTS_MAX: usize = 1_000;

/// The usage of each product in its window.
#[derive(Debug, Default)]
pub(super) struct DeadLetterQuota(Mutex<HashMap<String, ProductUsage>>);

#[derive(Debug)]
struct ProductUsage {
    since: Instant,
    count: u32,
    bytes: usize,
}

impl DeadLetterQuota {
    /// True if one more dead letter of so many bytes fits into the product's quota. Counts it if so.
    pub(super) fn admit(&self, product: &str, bytes: usize) -> bool {
        self.admit_at(product, bytes, Instant::now())
    }

    fn admit_at(&self, product: &str, bytes: usize, now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(product) && all.len() >= PRODUCTS_MAX {
            all.retain(|_, usage| now.duration_since(usage.since) < WINDOW);
            if all.len() >= PRODUCTS_MAX {
                return false;
            }
        }
        let usage = all.entry(product.to_owned()).or_insert(ProductUsage { since: now, count: 0, bytes: 0 });
        if now.duration_since(usage.since) >= WINDOW {
            *usage = ProductUsage { since: now, count: 0, bytes: 0 };
        }
        let fits = usage.count < DEAD_LETTERS_MAX && usage.bytes.saturating_add(bytes) <= BYTES_MAX;
        if fits {
            usage.count += 1;
            usage.bytes += bytes;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_products_refusals_leave_the_quota_of_others() {
        let (quota, now) = (DeadLetterQuota::default(), Instant::now());
        let megabytes = |n: usize| n * 1024 * 1024;
        assert!((0..8).all(|_| quota.admit_at("shop.production", megabytes(8), now)));
        assert!(!quota.admit_at("shop.production", megabytes(8), now), "too many bytes");
        assert!(quota.admit_at("rival.production", megabytes(8), now));
        let small = (0..DEAD_LETTERS_MAX + 5).filter(|_| quota.admit_at("third.production", 10, now)).count();
        assert_eq!(small, DEAD_LETTERS_MAX as usize, "too many dead letters");
        assert!(quota.admit_at("shop.production", megabytes(8), now + WINDOW), "a new window");
    }
}
