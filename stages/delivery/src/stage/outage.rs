//! The relay is away, or refuses us as a whole: no recipient is to blame, so nobody fails and nothing is tried for a while.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::classify::Class;

/// The first pause.
const FIRST: Duration = Duration::from_secs(15);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(300);

/// Shared by all workers of the process.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    until: Option<Instant>,
    strikes: u32,
}

impl Outage {
    /// How much longer nothing is tried; `None` when the relay may be tried.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining_at(Instant::now())
    }

    fn remaining_at(&self, now: Instant) -> Option<Duration> {
        self.lock().until.and_then(|until| until.checked_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    /// The relay failed. Failures of transactions that were under way at the same time count once.
    pub fn report(&self, class: Class) -> Duration {
        let (wait, is_new) = self.report_at(Instant::now());
        if is_new {
            tracing::error!(
                stage = "delivery",
                class = class.as_str(),
                wait_ms = wait.as_millis() as u64,
                "the relay does not serve; sends go back to the queue"
            );
        }
        wait
    }

    fn report_at(&self, now: Instant) -> (Duration, bool) {
        let mut state = self.lock();
        if let Some(wait) =
            state.until.and_then(|until| until.checked_duration_since(now)).filter(|wait| !wait.is_zero())
        {
            return (wait, false);
        }
        let wait = FIRST.saturating_mul(1 << state.strikes.min(8)).min(LONGEST);
        state.strikes += 1;
        state.until = Some(now + wait);
        (wait, true)
    }

    /// The relay brought a transaction to 354: it serves.
    pub fn over(&self) {
        let mut state = self.lock();
        if state.strikes > 0 {
            *state = State::default();
            drop(state);
            tracing::info!(stage = "delivery", "the relay serves again");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Two plain fields: nothing a panic could leave half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_at_the_same_time_count_once_and_the_pause_doubles_to_five_minutes() {
        let (outage, mut now, mut pauses) = (Outage::default(), Instant::now(), Vec::new());
        for _ in 0..7 {
            let (wait, is_new) = outage.report_at(now);
            assert!(is_new);
            assert!(!outage.report_at(now).1);
            assert_eq!(outage.remaining_at(now), Some(wait));
            pauses.push(wait.as_secs());
            now += wait;
            assert_eq!(outage.remaining_at(now), None);
        }
        assert_eq!(pauses, [15, 30, 60, 120, 240, 300, 300]);
    }

    #[test]
    fn a_transaction_that_works_ends_it() {
        let (outage, now) = (Outage::default(), Instant::now());
        outage.report_at(now);
        outage.over();
        assert_eq!(outage.remaining_at(now), None);
        assert_eq!(outage.report_at(now).0, FIRST);
    }
}
