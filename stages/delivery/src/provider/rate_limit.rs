//! A rate limit in front of a provider whose own limit is known. Running into the provider's limit costs the account's
//! reputation and a round through the queue.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use schemas::Lane;

/// The longest wait for a slot, far below a claim's lease. A mail that would wait longer is released instead.
const SLOT_WAIT_MAX: Duration = Duration::from_secs(60);

/// The slots of one account: a number of mails a second, evenly spaced, over both lanes. The limit holds for this process: an
/// operator divides the account's rate by the number of delivery processes.
#[derive(Debug)]
pub(crate) struct SlotLimiter {
    interval: Duration,
    next: Mutex<NextSlots>,
}

/// When the next mail of each lane may begin.
#[derive(Debug, Clone, Copy)]
struct NextSlots {
    bulk: Instant,
    priority: Instant,
}

impl SlotLimiter {
    pub fn new(per_second: u32) -> Self {
        let now = Instant::now();
        Self {
            interval: Duration::from_secs(1) / per_second.max(1),
            next: Mutex::new(NextSlots { bulk: now, priority: now }),
        }
    }

    /// Waits until the lane's next mail may begin.
    ///
    /// # Errors
    /// The wait, if it is longer than a mail may wait.
    pub async fn wait_for_slot(&self, lane: Lane) -> Result<(), Duration> {
        tokio::time::sleep(self.reserve(lane, Instant::now())?).await;
        Ok(())
    }

    /// Reserves the lane's next slot and returns the time until then. A priority mail never waits for bulk mail: its slot is taken from
    /// the slots to come of the bulk lane.
    ///
    /// # Errors
    /// The wait, if it is too long. No slot is reserved then.
    fn reserve(&self, lane: Lane, now: Instant) -> Result<Duration, Duration> {
        // Plain fields: nothing a panic could leave half done.
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = match lane {
            Lane::Bulk => next.bulk,
            Lane::Priority => next.priority,
        };
        let wait = slot.saturating_duration_since(now);
        if wait > SLOT_WAIT_MAX {
            return Err(wait);
        }
        next.bulk = next.bulk.max(now) + self.interval;
        if lane == Lane::Priority {
            next.priority = slot.max(now) + self.interval;
        }
        Ok(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn sends_begin_evenly_and_unused_slots_are_lost() {
        let limiter = SlotLimiter::new(4);
        let start = Instant::now() + SECOND;
        let waits: Vec<u128> = (0..4).map(|_| limiter.reserve(Lane::Bulk, start).unwrap().as_millis()).collect();
        assert_eq!(waits, [0, 250, 500, 750]);
        let later = start + 60 * SECOND;
        assert_eq!(limiter.reserve(Lane::Bulk, later), Ok(Duration::ZERO));
        assert_eq!(limiter.reserve(Lane::Bulk, later), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn a_priority_mail_waits_for_no_bulk_mail() {
        let limiter = SlotLimiter::new(1);
        let start = Instant::now() + SECOND;
        assert_eq!(limiter.reserve(Lane::Bulk, start), Ok(Duration::ZERO));
        assert_eq!(limiter.reserve(Lane::Priority, start), Ok(Duration::ZERO));
        assert_eq!(limiter.reserve(Lane::Priority, start), Ok(SECOND));
        assert_eq!(limiter.reserve(Lane::Bulk, start), Ok(3 * SECOND), "both lanes together keep the rate");
    }

    #[test]
    fn a_slot_beyond_the_longest_wait_is_not_reserved() {
        let limiter = SlotLimiter::new(1);
        let start = Instant::now() + SECOND;
        let taken = std::iter::repeat_with(|| limiter.reserve(Lane::Bulk, start)).take_while(Result::is_ok).count();
        assert_eq!(taken, 61);
        assert_eq!(limiter.reserve(Lane::Bulk, start), Err(61 * SECOND));
        assert_eq!(
            limiter.reserve(Lane::Bulk, start + SECOND),
            Ok(60 * SECOND),
            "a mail that was sent back reserved no slot"
        );
    }
}
