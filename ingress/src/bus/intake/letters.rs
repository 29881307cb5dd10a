//! How many dead letters a product may leave. They share one stream, which forgets its oldest when it is full: without a bound, refused
//! requests of one product would push out what others have to look at.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

const WINDOW: Duration = Duration::from_secs(60 * 60);
/// Letters of a product and environment in a window, for each ingress process.
const LETTERS_MAX: u32 = 1_000;
/// Bytes of theirs: a sixteenth of the stream.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Products remembered at once. The subject names them, and the servers hold each user to its own.
const PRODUCTS_MAX: usize = 1_000;

/// What each product left in its window.
#[derive(Debug, Default)]
pub(super) struct Letters(Mutex<HashMap<String, Left>>);

#[derive(Debug)]
struct Left {
    since: Instant,
    letters: u32,
    bytes: usize,
}

impl Letters {
    /// Whether one more of so many bytes may be kept for this product. It is counted if so.
    pub(super) fn admit(&self, product: &str, bytes: usize) -> bool {
        self.admit_at(product, bytes, Instant::now())
    }

    fn admit_at(&self, product: &str, bytes: usize, now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(product) && all.len() >= PRODUCTS_MAX {
            all.retain(|_, left| now.duration_since(left.since) < WINDOW);
            if all.len() >= PRODUCTS_MAX {
                return false;
            }
        }
        let left = all.entry(product.to_owned()).or_insert(Left { since: now, letters: 0, bytes: 0 });
        if now.duration_since(left.since) >= WINDOW {
            *left = Left { since: now, letters: 0, bytes: 0 };
        }
        let fits = left.letters < LETTERS_MAX && left.bytes.saturating_add(bytes) <= BYTES_MAX;
        if fits {
            left.letters += 1;
            left.bytes += bytes;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_products_refusals_leave_room_for_the_letters_of_others() {
        let (letters, now) = (Letters::default(), Instant::now());
        let megabytes = |n: usize| n * 1024 * 1024;
        assert!((0..8).all(|_| letters.admit_at("shop.production", megabytes(8), now)));
        assert!(!letters.admit_at("shop.production", megabytes(8), now), "too many bytes");
        assert!(letters.admit_at("rival.production", megabytes(8), now));
        let small = (0..LETTERS_MAX + 5).filter(|_| letters.admit_at("third.production", 10, now)).count();
        assert_eq!(small, LETTERS_MAX as usize, "too many letters");
        assert!(letters.admit_at("shop.production", megabytes(8), now + WINDOW), "a new window");
    }
}
