//! A rate of our own before a provider's: what an account may do in a second is known, and running into its limit again and again
//! costs it reputation and us a round through the queue.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use schemas::Lane;

use super::{OutgoingMessage, PingFault, PreparedSend, Provider, ProviderKind, Refused, Signing};

/// The longest wait for a turn. Far below a claim's lease: who would wait longer gives the mail back instead.
const TURN_MAX: Duration = Duration::from_secs(60);

/// The turns of an account: so many handovers a second, evenly, over both lanes. Of this process: the account's rate is to be divided
/// by the number of delivery processes.
#[derive(Debug)]
pub(super) struct Turns {
    interval: Duration,
    next: Mutex<Next>,
}

/// When each lane's next handover may begin.
#[derive(Debug, Clone, Copy)]
struct Next {
    bulk: Instant,
    priority: Instant,
}

impl Turns {
    pub fn new(per_second: u32) -> Self {
        let now = Instant::now();
        Self {
            interval: Duration::from_secs(1) / per_second.max(1),
            next: Mutex::new(Next { bulk: now, priority: now }),
        }
    }

    /// Takes the lane's next turn, and answers how long until then. A priority mail waits for no campaign: what it takes is taken from
    /// the turns to come of campaigns.
    ///
    /// # Errors
    /// The wait, when it is too long; no turn was taken.
    fn take(&self, lane: Lane, now: Instant) -> Result<Duration, Duration> {
        // Plain fields: nothing a panic could leave half done.
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = match lane {
            Lane::Bulk => next.bulk,
            Lane::Priority => next.priority,
        };
        let wait = turn.saturating_duration_since(now);
        if wait > TURN_MAX {
            return Err(wait);
        }
        next.bulk = next.bulk.max(now) + self.interval;
        if lane == Lane::Priority {
            next.priority = turn.max(now) + self.interval;
        }
        Ok(wait)
    }
}

/// A provider that begins no more handovers than its turns allow.
pub(super) struct Paced {
    inner: Box<dyn Provider>,
    turns: Arc<Turns>,
    lane: Lane,
}

impl Paced {
    pub fn new(inner: Box<dyn Provider>, turns: Arc<Turns>, lane: Lane) -> Self {
        Self { inner, turns, lane }
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

    async fn turn(&self) -> Result<(), Duration> {
        tokio::time::sleep(self.turns.take(self.lane, Instant::now())?).await;
        Ok(())
    }

    async fn open(&self, parcel: &OutgoingMessage<'_>) -> Result<Box<dyn PreparedSend>, Refused> {
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn handovers_begin_evenly_and_unused_turns_are_not_saved_up() {
        let turns = Turns::new(4);
        let start = Instant::now() + SECOND;
        let waits: Vec<u128> = (0..4).map(|_| turns.take(Lane::Bulk, start).unwrap().as_millis()).collect();
        assert_eq!(waits, [0, 250, 500, 750]);
        let later = start + 60 * SECOND;
        assert_eq!(turns.take(Lane::Bulk, later), Ok(Duration::ZERO));
        assert_eq!(turns.take(Lane::Bulk, later), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn a_priority_mail_waits_for_no_campaign_and_campaigns_make_room_for_it() {
        let turns = Turns::new(1);
        let start = Instant::now() + SECOND;
        assert_eq!(turns.take(Lane::Bulk, start), Ok(Duration::ZERO));
        assert_eq!(turns.take(Lane::Priority, start), Ok(Duration::ZERO));
        assert_eq!(turns.take(Lane::Priority, start), Ok(SECOND));
        assert_eq!(turns.take(Lane::Bulk, start), Ok(3 * SECOND), "both lanes together keep the rate");
    }

    #[test]
    fn a_turn_that_is_too_far_is_not_taken() {
        let turns = Turns::new(1);
        let start = Instant::now() + SECOND;
        let taken = std::iter::repeat_with(|| turns.take(Lane::Bulk, start)).take_while(Result::is_ok).count();
        assert_eq!(taken, 61);
        assert_eq!(turns.take(Lane::Bulk, start), Err(61 * SECOND));
        assert_eq!(
            turns.take(Lane::Bulk, start + SECOND),
            Ok(60 * SECOND),
            "nobody who was sent away keeps others waiting"
        );
    }
}
