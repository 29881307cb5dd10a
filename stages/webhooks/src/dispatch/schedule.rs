//! When a failed delivery is attempted again, as pure decisions.

use std::time::Duration;

/// The most that is added to a pause, as a share of it: deliveries that failed together are spread over time.
const JITTER: f64 = 0.1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptOutcome {
    /// 2xx.
    Delivered,
    /// Any other answer, or none; the receiver may have named a time for the next attempt.
    Failed { retry_after: Option<Duration> },
    /// 410: the receiver never wants another delivery.
    Gone,
    /// There is nothing to post any more: the contact it is about was erased, or the body was too old to be kept.
    BodyGone,
}

/// What follows from an attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RetryDecision {
    Delivered,
    /// The delivery is attempted again after this time.
    Retry(Duration),
    Dead,
    /// The delivery is dead, and the subscription is disabled.
    Disable,
}

/// Decides what follows from this attempt, counted from 1. There are as many attempts as pauses: none follows the last one, whose pause is
/// the limit for a receiver's `Retry-After` on the pause before. `random` is from 0 to 1.
pub(super) fn decide_retry(pauses: &[Duration], attempt: u16, outcome: AttemptOutcome, random: f64) -> RetryDecision {
    let retry_after = match outcome {
        AttemptOutcome::Delivered => return RetryDecision::Delivered,
        AttemptOutcome::Gone => return RetryDecision::Disable,
        AttemptOutcome::BodyGone => return RetryDecision::Dead,
        AttemptOutcome::Failed { retry_after } => retry_after,
    };
    let attempt = usize::from(attempt);
    let Some(&[pause, limit]) = pauses.get(attempt - 1..=attempt) else { return RetryDecision::Dead };
    let asked = retry_after.map_or(pause, |asked| asked.clamp(pause, limit.max(pause)));
    RetryDecision::Retry(asked + asked.mul_f64(JITTER * random))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;

    fn decide(attempt: u16, outcome: AttemptOutcome, random: f64) -> RetryDecision {
        let pauses = [MINUTE, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 12 * HOUR].map(Duration::from_secs);
        decide_retry(&pauses, attempt, outcome, random)
    }

    fn failed(retry_after: Option<u64>) -> AttemptOutcome {
        AttemptOutcome::Failed { retry_after: retry_after.map(Duration::from_secs) }
    }

    #[rstest]
    #[case(1, Some(MINUTE))]
    #[case(2, Some(5 * MINUTE))]
    #[case(3, Some(30 * MINUTE))]
    #[case(4, Some(2 * HOUR))]
    #[case(5, None)]
    #[case(6, None)]
    fn five_attempts_and_then_it_is_dead(#[case] attempt: u16, #[case] pause: Option<u64>) {
        let expected = pause.map_or(RetryDecision::Dead, |seconds| RetryDecision::Retry(Duration::from_secs(seconds)));
        assert_eq!(decide(attempt, failed(None), 0.0), expected);
    }

    #[rstest]
    #[case::sooner_than_the_schedule(1, 5, MINUTE)]
    #[case::within_the_next_pause(1, 2 * MINUTE, 2 * MINUTE)]
    #[case::beyond_the_next_pause(1, HOUR, 5 * MINUTE)]
    #[case::the_last_pause_may_be_twelve_hours(4, 24 * HOUR, 12 * HOUR)]
    fn retry_after_is_honoured_up_to_the_next_pause(#[case] attempt: u16, #[case] asked: u64, #[case] pause: u64) {
        let expected = RetryDecision::Retry(Duration::from_secs(pause));
        assert_eq!(decide(attempt, failed(Some(asked)), 0.0), expected);
    }

    #[test]
    fn a_pause_is_stretched_by_a_tenth_at_most() {
        let expected = RetryDecision::Retry(Duration::from_secs(66));
        assert_eq!(decide(1, failed(None), 1.0), expected);
    }

    #[test]
    fn a_delivered_unwanted_or_erased_event_is_not_retried() {
        assert_eq!(decide(1, AttemptOutcome::Delivered, 0.5), RetryDecision::Delivered);
        assert_eq!(decide(1, AttemptOutcome::Gone, 0.5), RetryDecision::Disable);
        assert_eq!(decide(1, AttemptOutcome::BodyGone, 0.5), RetryDecision::Dead);
    }

    #[test]
    fn without_pauses_there_is_one_attempt() {
        assert_eq!(decide_retry(&[], 1, failed(None), 0.0), RetryDecision::Dead);
    }
}
