//! The circuit breaker of a provider route. It opens when the provider is unreachable or refuses us as a whole: no recipient
//! is to blame, so no send fails and nothing is tried for a while. Each route has its own circuit breaker: a tenant's broken
//! connection does not stop other tenants. After a pause one transaction tries the provider, and the others wait for its answer.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use runtime::Backoff;
use smtp::classify::Class;

/// The shortest pause a provider can ask for.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// The pauses, unless the provider asks for one.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(15), PAUSE_MAX);

/// How long the others wait before they ask again for the answer of the transaction that tries the provider.
const TRIAL_WAIT: Duration = Duration::from_secs(5);

/// A provider that serves is reported as often as this.
const SERVED_PRECISION: TimeDelta = TimeDelta::minutes(1);

/// Unknown outcomes in a row that open the circuit breaker. A relay that accepts bodies and never answers would otherwise turn a
/// whole campaign into `unknown`.
const UNKNOWNS_MAX: u32 = 20;

/// A circuit breaker, shared by all workers of the process.
#[derive(Debug, Default)]
pub(crate) struct CircuitBreaker {
    /// The tenant's connection; `None` for the platform's relay.
    connection: Option<Uuid>,
    state: Mutex<BreakerState>,
}

#[derive(Debug, Default)]
struct BreakerState {
    open_until: Option<Instant>,
    /// The provider itself asked for the last pause.
    is_asked: bool,
    /// A transaction tries the provider, and has no answer yet.
    is_trial: bool,
    failures: u32,
    unknowns: u32,
    report: CircuitReport,
    /// The report that was stored last.
    reported: CircuitReport,
}

impl BreakerState {
    fn remaining_at(&self, now: Instant) -> Option<Duration> {
        let open = self.open_until?.checked_duration_since(now).filter(|wait| !wait.is_zero())?;
        Some(if self.is_trial { open.min(TRIAL_WAIT) } else { open })
    }
}

/// What a transaction holds while it tries the provider. Dropped without an answer, for the mail may not leave after all, it lets the next
/// one try at once.
#[derive(Debug)]
pub(crate) struct BreakerPermit<'a> {
    breaker: &'a CircuitBreaker,
    /// The failures that were counted with this trial. `None`: the circuit is closed, and everybody may pass.
    trial: Option<u32>,
}

impl Drop for BreakerPermit<'_> {
    fn drop(&mut self) {
        let Some(trial) = self.trial else { return };
        let mut state = self.breaker.lock();
        if state.is_trial && state.failures == trial {
            state.failures -= 1;
            (state.is_trial, state.open_until, state.report.open_until) = (false, None, None);
        }
    }
}

/// What the health of a tenant's connection says of its circuit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CircuitReport {
    /// When an open circuit is tried again.
    pub open_until: Option<DateTime<Utc>>,
    /// The class and the time of the last failure.
    pub failure: Option<(&'static str, DateTime<Utc>)>,
    /// When the provider last served, to the minute.
    pub served_at: Option<DateTime<Utc>>,
}

impl CircuitBreaker {
    /// The circuit breaker of a tenant's connection.
    pub fn of_connection(connection: Uuid) -> Self {
        Self { connection: Some(connection), ..Self::default() }
    }

    /// How much longer the circuit breaker stays open; `None` if the provider may be tried.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining_at(Instant::now())
    }

    fn remaining_at(&self, now: Instant) -> Option<Duration> {
        self.lock().remaining_at(now)
    }

    /// Called right before a mail may leave. As [`Self::remaining`], but after a failure only one transaction passes: each that passes may
    /// become a mail whose outcome is unknown. For the others the circuit is open for another pause, which ends with its success. If it
    /// never ends, the next one passes after the pause.
    ///
    /// # Errors
    /// How long to wait before asking again.
    pub fn enter(&self) -> Result<BreakerPermit<'_>, Duration> {
        self.enter_at(Instant::now())
    }

    fn enter_at(&self, now: Instant) -> Result<BreakerPermit<'_>, Duration> {
        let mut state = self.lock();
        if let Some(wait) = state.remaining_at(now) {
            return Err(wait);
        }
        let mut trial = None;
        if state.failures > 0 {
            state.failures += 1;
            let pause = BACKOFF.pause(state.failures);
            (state.open_until, state.is_asked, state.is_trial) = (Some(now + pause), false, true);
            state.report.open_until = Some(Utc::now() + pause);
            trial = Some(state.failures);
        }
        Ok(BreakerPermit { breaker: self, trial })
    }

    /// Records that the provider failed. Failures of transactions that ran at the same time count once.
    /// `asked` is the wait the provider asked for.
    pub fn record_failure(&self, class: Class, asked: Option<Duration>) -> Duration {
        let (wait, is_new) = self.record_failure_at(Instant::now(), class, asked);
        if is_new {
            tracing::error!(
                stage = "delivery",
                class = class.as_str(),
                connection = self.connection.map(tracing::field::display),
                wait_ms = wait.as_millis() as u64,
                "the relay does not serve; sends go back to the queue"
            );
        }
        wait
    }

    fn record_failure_at(&self, now: Instant, class: Class, asked: Option<Duration>) -> (Duration, bool) {
        let mut state = self.lock();
        // That a transaction tries the provider has been counted as a failure.
        let is_trial = std::mem::take(&mut state.is_trial);
        if let Some(wait) = state.remaining_at(now).filter(|_| !is_trial) {
            return (wait, false);
        }
        state.failures += u32::from(!is_trial);
        // The provider's own time is believed, within limits.
        let wait = match asked {
            Some(asked) => asked.clamp(PAUSE_MIN, PAUSE_MAX),
            None => BACKOFF.pause(state.failures),
        };
        (state.open_until, state.is_asked) = (Some(now + wait), asked.is_some());
        // With the circuit: a success that comes in between would leave a closed one reported as open.
        let failed_at = Utc::now();
        state.report.open_until = Some(failed_at + wait);
        state.report.failure = Some((class.as_str(), failed_at));
        (wait, true)
    }

    /// Records that a transaction ended without an answer. After a failure one is enough, until the provider answers again: each may be
    /// a mail whose outcome stays unknown.
    pub fn record_unknown(&self) {
        let mut state = self.lock();
        state.unknowns += 1;
        let too_many = state.unknowns >= UNKNOWNS_MAX || state.failures > 0;
        if too_many {
            state.unknowns = 0;
        }
        drop(state);
        if too_many {
            self.record_failure(Class::Unreachable, None);
        }
    }

    /// Records that the provider answered a transaction, yes or no. Closes the circuit breaker, but ends no pause that the provider asked
    /// for: the transaction began before.
    pub fn record_success(&self) {
        let (mut state, now) = (self.lock(), Utc::now());
        state.unknowns = 0;
        if state.is_asked && state.remaining_at(Instant::now()).is_some() {
            return;
        }
        if state.failures > 0 || state.report.served_at.is_none_or(|at| now - at > SERVED_PRECISION) {
            state.report = CircuitReport { open_until: None, served_at: Some(now), ..state.report };
        }
        if state.failures > 0 {
            (state.failures, state.open_until, state.is_trial) = (0, None, false);
            drop(state);
            let connection = self.connection.map(tracing::field::display);
            tracing::info!(stage = "delivery", connection, "the relay serves again");
        }
    }

    /// What is new of a tenant's connection since the report that was stored last.
    pub fn new_report(&self) -> Option<CircuitReport> {
        let state = self.lock();
        (state.report != state.reported).then_some(state.report)
    }

    /// Records that a report is stored.
    pub fn record_reported(&self, report: CircuitReport) {
        self.lock().reported = report;
    }

    /// Ends the pause, as time would.
    #[cfg(test)]
    pub fn end_pause(&self) {
        self.lock().open_until = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BreakerState> {
        // Plain fields: nothing a panic could leave half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simultaneous_failures_count_once_and_pauses_double() {
        let (breaker, mut now, mut pauses) = (CircuitBreaker::default(), Instant::now(), Vec::new());
        for _ in 0..7 {
            let (wait, is_new) = breaker.record_failure_at(now, Class::Unreachable, None);
            assert!(is_new);
            assert!(!breaker.record_failure_at(now, Class::Unreachable, None).1);
            assert_eq!(breaker.remaining_at(now), Some(wait));
            pauses.push(wait.as_secs());
            now += wait;
            assert_eq!(breaker.remaining_at(now), None);
        }
        assert_eq!(pauses, [15, 30, 60, 120, 240, 300, 300]);
    }

    #[test]
    fn unknown_outcomes_in_a_row_open_the_circuit_breaker() {
        let breaker = CircuitBreaker::default();
        for _ in 0..UNKNOWNS_MAX - 1 {
            breaker.record_unknown();
        }
        breaker.record_success();
        for _ in 0..UNKNOWNS_MAX - 1 {
            breaker.record_unknown();
        }
        assert_eq!(breaker.remaining(), None);
        breaker.record_unknown();
        assert!(breaker.remaining().is_some());
    }

    #[test]
    fn after_a_failure_one_unknown_outcome_is_enough() {
        let breaker = CircuitBreaker::default();
        breaker.record_failure(Class::Unreachable, None);
        breaker.end_pause();
        breaker.record_unknown();
        assert!(breaker.remaining().is_some());
        breaker.record_success();
        breaker.record_unknown();
        assert_eq!(breaker.remaining(), None);
    }

    #[test]
    fn after_a_pause_one_transaction_tries_the_provider() {
        let (breaker, now) = (CircuitBreaker::default(), Instant::now());
        let wait = |now| breaker.enter_at(now).err();
        assert!(breaker.enter_at(now).is_ok_and(|_first| wait(now).is_none()), "it has not failed");
        let (first, _) = breaker.record_failure_at(now, Class::Unreachable, None);
        let now = now + first;
        let trial = breaker.enter_at(now).unwrap();
        assert_eq!(wait(now), Some(TRIAL_WAIT), "its answer may come soon");
        // It hangs: the next one passes after a longer pause, and the others go on asking.
        assert_eq!(breaker.remaining_at(now + TRIAL_WAIT), Some(TRIAL_WAIT));
        let now = now + BACKOFF.pause(2);
        let next = breaker.enter_at(now).unwrap();
        drop(trial);
        assert_eq!(wait(now), Some(TRIAL_WAIT), "an old trial ends no newer one");
        // It fails, and counts once.
        assert_eq!(breaker.record_failure_at(now, Class::Unreachable, None), (BACKOFF.pause(3), true));
        drop(next);
        assert!(!breaker.record_failure_at(now, Class::Unreachable, None).1);
        assert_eq!(wait(now), Some(BACKOFF.pause(3)));
        let now = now + BACKOFF.pause(3);
        let trial = breaker.enter_at(now).unwrap();
        breaker.record_success();
        drop(trial);
        assert!(breaker.enter_at(now).is_ok_and(|_first| wait(now).is_none()), "it serves again");
    }

    #[test]
    fn a_trial_without_an_answer_lets_the_next_one_try_at_once() {
        let (breaker, now) = (CircuitBreaker::default(), Instant::now());
        let (first, _) = breaker.record_failure_at(now, Class::Unreachable, None);
        let now = now + first;
        for _ in 0..3 {
            // The fence did not let its mail pass.
            drop(breaker.enter_at(now).unwrap());
        }
        let _trial = breaker.enter_at(now).unwrap();
        assert_eq!(
            breaker.record_failure_at(now, Class::Unreachable, None),
            (BACKOFF.pause(2), true),
            "only answers count"
        );
    }

    #[test]
    fn a_success_ends_no_pause_that_the_provider_asked_for() {
        let breaker = CircuitBreaker::of_connection(Uuid::nil());
        breaker.record_failure(Class::Throttled, Some(Duration::from_secs(60)));
        let open = breaker.new_report();
        breaker.record_success();
        assert!(breaker.remaining().is_some());
        assert_eq!(breaker.new_report(), open);
    }

    #[test]
    fn the_wait_a_provider_asks_for_is_kept_within_limits() {
        for (asked, waited) in [(0, 1), (7, 7), (86_400, 300)] {
            let breaker = CircuitBreaker::default();
            assert_eq!(
                breaker
                    .record_failure_at(Instant::now(), Class::Throttled, Some(Duration::from_secs(asked)))
                    .0
                    .as_secs(),
                waited
            );
        }
    }

    #[test]
    fn a_change_of_the_circuit_is_reported_until_it_is_stored() {
        let breaker = CircuitBreaker::of_connection(Uuid::nil());
        assert_eq!(breaker.new_report(), None);
        breaker.record_failure(Class::Unreachable, None);
        let open = breaker.new_report();
        assert!(open.is_some_and(|report| report.open_until.is_some() && report.served_at.is_none()), "{open:?}");
        assert_eq!(breaker.new_report(), open, "it may not have been stored");
        breaker.record_reported(open.unwrap_or_default());
        assert_eq!(breaker.new_report(), None);
        breaker.record_success();
        let closed = breaker.new_report();
        assert!(closed.is_some_and(|report| report.open_until.is_none() && report.served_at.is_some()), "{closed:?}");
        assert_eq!(closed.and_then(|report| report.failure), open.and_then(|report| report.failure));
        breaker.record_reported(closed.unwrap_or_default());
        breaker.record_success();
        assert_eq!(breaker.new_report(), None, "a provider that serves is reported every minute");
    }

    #[test]
    fn a_success_closes_the_circuit_breaker() {
        let (breaker, now) = (CircuitBreaker::default(), Instant::now());
        breaker.record_failure_at(now, Class::Unreachable, None);
        breaker.record_success();
        assert_eq!(breaker.remaining_at(now), None);
        assert_eq!(breaker.record_failure_at(now, Class::Unreachable, None).0, BACKOFF.pause(1));
    }
}
