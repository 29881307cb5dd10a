//! How many mails a day a new domain may send: pure.

/// How many mails receivers accept from an unknown domain on its first, second … day of sending: about twice as many every other
/// day. After the last day there is no limit.
pub const DEFAULT_CAPS: &[i64] = &[
    50, 100, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 40_000, 70_000, 100_000, 150_000, 250_000, 400_000, 600_000,
    1_000_000,
];

/// The cap on the day after `days_before` days of sending. `own` is a plan set for the domain. `None`: the warm-up is over.
#[must_use]
pub fn cap(own: Option<&[i64]>, days_before: i64) -> Option<i64> {
    let day = usize::try_from(days_before).unwrap_or(0);
    own.unwrap_or(DEFAULT_CAPS).get(day).copied()
}

/// What is left of a cap; never negative.
#[must_use]
pub fn remaining(cap: Option<i64>, used: i64) -> Option<i64> {
    cap.map(|cap| cap.saturating_sub(used).max(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::first(None, 0, Some(50))]
    #[case::second(None, 1, Some(100))]
    #[case::last(None, 15, Some(1_000_000))]
    #[case::warm(None, 16, None)]
    #[case::own(Some(&[7, 9][..]), 1, Some(9))]
    #[case::own_is_over(Some(&[7, 9][..]), 2, None)]
    fn each_day_of_sending_has_its_cap_and_after_the_last_there_is_none(
        #[case] own: Option<&[i64]>,
        #[case] days_before: i64,
        #[case] expected: Option<i64>,
    ) {
        assert_eq!(cap(own, days_before), expected);
    }

    #[test]
    fn the_plan_rises() {
        assert!(DEFAULT_CAPS.is_sorted());
    }

    #[test]
    fn what_is_left_is_never_negative() {
        assert_eq!((remaining(Some(5), 3), remaining(Some(5), 9), remaining(None, 9)), (Some(2), Some(0), None));
    }
}
