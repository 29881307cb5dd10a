//! When a deferred send is tried again.

use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;

/// How long a message is worth retrying.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RetryDeadline {
    /// Mail of campaigns and sequences: 72 hours of attempts.
    Bulk,
    /// Transactional and one-off mail: 24 hours; later mail is of no use.
    Prompt,
}

impl RetryDeadline {
    /// The age at which a message is given up.
    #[must_use]
    pub const fn limit(self) -> Duration {
        match self {
            Self::Bulk => Duration::from_secs(72 * HOUR),
            Self::Prompt => Duration::from_secs(24 * HOUR),
        }
    }
}

/// Waits after the first, second … attempt, in seconds; the last one repeats. The first ones are short because greylisting,
/// the most frequent deferral, lifts within minutes.
const WAITS: &[u64] = &[MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 6 * HOUR];

/// The wait before the next attempt, after `attempt` attempts (from 1), for a message of this age. `None`: its
/// retry deadline has passed. Jitter of up to a fifth, chosen by `seed`, spreads the sends of a batch; the last attempt is made
/// exactly at the deadline.
#[must_use]
pub fn next_attempt(attempt: u32, age: Duration, deadline: RetryDeadline, seed: u64) -> Option<Duration> {
    let left = deadline.limit().checked_sub(age).filter(|left| !left.is_zero())?;
    let step = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX).min(WAITS.len() - 1);
    let base = Duration::from_secs(WAITS[step]);
    let jitter = base.mul_f64(fraction(seed, attempt) / 5.0);
    Some((base + jitter).min(left))
}

/// How long after the first attempt this attempt (from 1) is made, by the schedule and without jitter.
#[must_use]
pub fn elapsed_before(attempt: u32) -> Duration {
    let waits = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
    let listed: u64 = WAITS.iter().take(waits).sum();
    let repeated = u64::try_from(waits.saturating_sub(WAITS.len())).unwrap_or(u64::MAX);
    Duration::from_secs(listed.saturating_add(repeated.saturating_mul(WAITS[WAITS.len() - 1])))
}

/// The number (from 1) of this attempt of bulk mail in its round. A send that has expired and is retried by a caller stays counted, and
/// begins a round of its own: as many attempts as the retry deadline has time for.
#[must_use]
pub fn attempt_in_round(attempt: u32) -> u32 {
    let limit = RetryDeadline::Bulk.limit();
    let last = (1..u32::MAX).find(|attempt| elapsed_before(*attempt) >= limit).unwrap_or(u32::MAX);
    attempt.saturating_sub(1) % last + 1
}

/// A number in 0..1 from a seed: the same send and attempt always get the same jitter. SplitMix64's finaliser.
pub fn fraction(seed: u64, attempt: u32) -> f64 {
    let mut mixed = seed.wrapping_add(u64::from(attempt).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let high = u32::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap_or(0);
    f64::from(high) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case(1, 60)]
    #[case(2, 300)]
    #[case(3, 900)]
    #[case(4, 1_800)]
    #[case(5, 3_600)]
    #[case(6, 7_200)]
    #[case(7, 14_400)]
    #[case(8, 21_600)]
    #[case(30, 21_600)]
    fn the_waits_grow_to_six_hours(#[case] attempt: u32, #[case] seconds: u64) {
        let wait = next_attempt(attempt, Duration::ZERO, RetryDeadline::Bulk, 7).unwrap().as_secs_f64();
        let base = Duration::from_secs(seconds).as_secs_f64();
        assert!((base..=base * 1.2).contains(&wait), "{wait}");
    }

    #[rstest]
    #[case::bulk(RetryDeadline::Bulk, 72)]
    #[case::prompt(RetryDeadline::Prompt, 24)]
    fn at_the_limit_there_is_no_further_attempt(#[case] deadline: RetryDeadline, #[case] hours: u64) {
        let limit = Duration::from_secs(hours * HOUR);
        assert_eq!(next_attempt(9, limit, deadline, 1), None);
        assert_eq!(next_attempt(9, limit - Duration::from_secs(10), deadline, 1), Some(Duration::from_secs(10)));
    }

    proptest! {
        #[test]
        fn a_wait_is_positive_bounded_and_the_same_for_the_same_send(attempt in 0u32..1000, age in 0u64..400_000, seed: u64) {
            let age = Duration::from_secs(age);
            let wait = next_attempt(attempt, age, RetryDeadline::Bulk, seed);
            prop_assert_eq!(wait, next_attempt(attempt, age, RetryDeadline::Bulk, seed));
            match wait {
                Some(wait) => {
                    prop_assert!(!wait.is_zero() && wait <= Duration::from_secs(6 * HOUR).mul_f64(1.2));
                    prop_assert!(age + wait <= RetryDeadline::Bulk.limit());
                }
                None => prop_assert!(age >= RetryDeadline::Bulk.limit()),
            }
        }

        #[test]
        fn later_attempts_never_wait_less(seed: u64) {
            let waits: Vec<_> = (1..=8).map(|attempt| next_attempt(attempt, Duration::ZERO, RetryDeadline::Bulk, seed).unwrap()).collect();
            prop_assert!(waits.is_sorted());
        }

        #[test]
        fn counting_time_in_attempts_ends_as_well(seed: u64) {
            let attempts = (1u32..).take_while(|&attempt| next_attempt(attempt, elapsed_before(attempt), RetryDeadline::Bulk, seed).is_some()).count();
            prop_assert!((15..25).contains(&attempts), "{}", attempts);
        }

        #[test]
        fn a_send_that_expired_and_is_retried_has_a_whole_round_again(seed: u64) {
            let waits = |attempt: u32| {
                let attempt = attempt_in_round(attempt);
                next_attempt(attempt, elapsed_before(attempt), RetryDeadline::Bulk, seed)
            };
            let last = (1..).find(|attempt| waits(*attempt).is_none()).unwrap();
            prop_assert!((1..=last).all(|attempt| waits(last + attempt) == waits(attempt)));
        }

        #[test]
        fn every_message_ends(seed: u64) {
            for deadline in [RetryDeadline::Bulk, RetryDeadline::Prompt] {
                let (mut age, mut attempts) = (Duration::ZERO, 1);
                while let Some(wait) = next_attempt(attempts, age, deadline, seed) {
                    age += wait;
                    attempts += 1;
                    prop_assert!(attempts < 25);
                }
                prop_assert_eq!(age, deadline.limit());
            }
        }
    }
}
