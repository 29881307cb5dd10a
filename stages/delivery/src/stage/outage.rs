//! A way out is away, or refuses us as a whole: no recipient is to blame, so nobody fails and nothing is tried for a while. Each
//! way has an outage of its own: a tenant's broken connection stops nobody else.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use uuid::Uuid;

use runtime::Backoff;
use smtp::classify::Class;

/// The shortest pause a provider can ask for.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(300);
/// The pauses, unless the provider asks for one.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(15), LONGEST);

/// So many doubtful outcomes in a row, without any answer in between, are no accident: a relay that takes bodies and answers
/// nothing would turn a whole campaign into `unknown`.
const DOUBTS_IN_A_ROW: u32 = 20;

/// Shared by all workers of the process.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// A tenant's connection; none for the platform's relay.
    connection: Option<Uuid>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    until: Option<Instant>,
    strikes: u32,
    doubts: u32,
}

impl Outage {
    /// Of a tenant's connection.
    pub fn of(connection: Uuid) -> Self {
        Self { connection: Some(connection), ..Self::default() }
    }

    /// How much longer nothing is tried; `None` when the relay may be tried.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining_at(Instant::now())
    }

    fn remaining_at(&self, now: Instant) -> Option<Duration> {
        self.lock().until.and_then(|until| until.checked_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    /// The relay failed. Failures of transactions that were under way at the same time count once.
    /// `asked` is how long the provider itself wants to be left alone.
    pub fn report(&self, class: Class, asked: Option<Duration>) -> Duration {
        let (wait, is_new) = self.report_at(Instant::now(), asked);
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

    fn report_at(&self, now: Instant, asked: Option<Duration>) -> (Duration, bool) {
        let mut state = self.lock();
        if let Some(wait) =
            state.until.and_then(|until| until.checked_duration_since(now)).filter(|wait| !wait.is_zero())
        {
            return (wait, false);
        }
        // Who says when it serves again is not doubted, within reason.
        let wait = match asked {
            Some(asked) => asked.clamp(SHORTEST, LONGEST),
            None => BACKOFF.pause(state.strikes + 1),
        };
        state.strikes += 1;
        state.until = Some(now + wait);
        (wait, true)
    }

    /// A transaction ended without a final answer.
    pub fn doubt(&self) {
        let mut state = self.lock();
        state.doubts += 1;
        let too_many = state.doubts >= DOUBTS_IN_A_ROW;
        if too_many {
            state.doubts = 0;
        }
        drop(state);
        if too_many {
            self.report(Class::Unreachable, None);
        }
    }

    /// The relay answered a transaction, yes or no: it serves.
    pub fn over(&self) {
        let mut state = self.lock();
        state.doubts = 0;
        if state.strikes > 0 {
            *state = State::default();
            drop(state);
            let connection = self.connection.map(tracing::field::display);
            tracing::info!(stage = "delivery", connection, "the relay serves again");
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
            let (wait, is_new) = outage.report_at(now, None);
            assert!(is_new);
            assert!(!outage.report_at(now, None).1);
            assert_eq!(outage.remaining_at(now), Some(wait));
            pauses.push(wait.as_secs());
            now += wait;
            assert_eq!(outage.remaining_at(now), None);
        }
        assert_eq!(pauses, [15, 30, 60, 120, 240, 300, 300]);
    }

    #[test]
    fn many_doubts_in_a_row_stop_the_campaign_and_an_answer_in_between_forgives_them() {
        let outage = Outage::default();
        for _ in 0..DOUBTS_IN_A_ROW - 1 {
            outage.doubt();
        }
        outage.over();
        for _ in 0..DOUBTS_IN_A_ROW - 1 {
            outage.doubt();
        }
        assert_eq!(outage.remaining(), None);
        outage.doubt();
        assert!(outage.remaining().is_some());
    }

    #[test]
    fn a_provider_that_says_how_long_is_left_alone_for_as_long_within_reason() {
        for (asked, waited) in [(0, 1), (7, 7), (86_400, 300)] {
            let outage = Outage::default();
            assert_eq!(outage.report_at(Instant::now(), Some(Duration::from_secs(asked))).0.as_secs(), waited);
        }
    }

    #[test]
    fn a_transaction_that_works_ends_it() {
        let (outage, now) = (Outage::default(), Instant::now());
        outage.report_at(now, None);
        outage.over();
        assert_eq!(outage.remaining_at(now), None);
        assert_eq!(outage.report_at(now, None).0, BACKOFF.pause(1));
    }
}
