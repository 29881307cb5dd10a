//! When a failed delivery is tried again (API.md §7), as pure decisions.

use std::time::Duration;

/// Added to each pause at most, as a share of it: what failed together does not come back together.
const JITTER: f64 = 0.1;

/// The pauses between attempts. As many attempts as there are pauses: after the last there is none, and what stands there is how
/// far a receiver may stretch the pause before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule(Vec<Duration>);

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// 2xx.
    Delivered,
    /// Anything else; the receiver may have said when to come back.
    Failed { retry_after: Option<Duration> },
    /// 410: the receiver wants no more, ever.
    Gone,
}

/// What becomes of a delivery.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    /// Done.
    Delivered,
    /// Tried again after this time.
    Again(Duration),
    /// Given up.
    Dead,
    /// Given up, and so is its subscription.
    Disable,
}

impl Schedule {
    pub fn new(pauses: Vec<Duration>) -> Self {
        Self(pauses)
    }

    /// How many attempts there are at most.
    fn attempts(&self) -> usize {
        self.0.len().max(1)
    }

    /// What becomes of a delivery after this attempt, counted from 1. `random` is from 0 to 1.
    pub fn verdict(&self, attempt: u16, outcome: Outcome, random: f64) -> Verdict {
        let retry_after = match outcome {
            Outcome::Delivered => return Verdict::Delivered,
            Outcome::Gone => return Verdict::Disable,
            Outcome::Failed { retry_after } => retry_after,
        };
        let attempt = usize::from(attempt.max(1));
        if attempt >= self.attempts() {
            return Verdict::Dead;
        }
        let pause = self.0[attempt - 1];
        let longest = self.0[attempt].max(pause);
        let asked = retry_after.map_or(pause, |asked| asked.clamp(pause, longest));
        Verdict::Again(asked + asked.mul_f64(JITTER * random.clamp(0.0, 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;

    fn schedule() -> Schedule {
        Schedule::new([MINUTE, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 12 * HOUR].map(Duration::from_secs).to_vec())
    }

    fn failed(retry_after: Option<u64>) -> Outcome {
        Outcome::Failed { retry_after: retry_after.map(Duration::from_secs) }
    }

    #[rstest]
    #[case(1, Some(MINUTE))]
    #[case(2, Some(5 * MINUTE))]
    #[case(3, Some(30 * MINUTE))]
    #[case(4, Some(2 * HOUR))]
    #[case(5, None)]
    #[case(6, None)]
    fn five_attempts_and_then_it_is_dead(#[case] attempt: u16, #[case] pause: Option<u64>) {
        let expected = pause.map_or(Verdict::Dead, |seconds| Verdict::Again(Duration::from_secs(seconds)));
        assert_eq!(schedule().verdict(attempt, failed(None), 0.0), expected);
    }

    #[rstest]
    #[case::sooner_than_the_schedule(1, 5, MINUTE)]
    #[case::within_the_next_rung(1, 2 * MINUTE, 2 * MINUTE)]
    #[case::beyond_the_next_rung(1, HOUR, 5 * MINUTE)]
    #[case::the_last_pause_may_be_twelve_hours(4, 24 * HOUR, 12 * HOUR)]
    fn retry_after_is_honoured_up_to_the_next_rung(#[case] attempt: u16, #[case] asked: u64, #[case] pause: u64) {
        let expected = Verdict::Again(Duration::from_secs(pause));
        assert_eq!(schedule().verdict(attempt, failed(Some(asked)), 0.0), expected);
    }

    #[test]
    fn a_pause_is_stretched_by_a_tenth_at_most() {
        let expected = Verdict::Again(Duration::from_secs(66));
        assert_eq!(schedule().verdict(1, failed(None), 1.0), expected);
    }

    #[test]
    fn what_was_delivered_or_is_not_wanted_is_over_at_once() {
        assert_eq!(schedule().verdict(1, Outcome::Delivered, 0.5), Verdict::Delivered);
        assert_eq!(schedule().verdict(1, Outcome::Gone, 0.5), Verdict::Disable);
    }

    #[test]
    fn without_pauses_there_is_one_attempt() {
        assert_eq!(Schedule::new(Vec::new()).verdict(1, failed(None), 0.0), Verdict::Dead);
    }
}
