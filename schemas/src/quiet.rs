//! Quiet hours: times of the day at which mail is put off. Pure.

use chrono::{DateTime, Days, Duration, NaiveTime, Utc};
use chrono_tz::Tz;

use crate::delay;

/// From one time of the day until another, over midnight if the second is the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuietHours {
    /// When they begin.
    pub from: NaiveTime,
    /// When they end; this moment is not quiet any more.
    pub to: NaiveTime,
}

impl QuietHours {
    /// When the quiet hours end that `at` falls into, by the clock of `zone`. `None`: it falls into none.
    ///
    /// An end that the clock leaves out is the first moment after it; of one that comes twice the first that is still to come.
    #[must_use]
    pub fn until(&self, at: DateTime<Utc>, zone: Tz) -> Option<DateTime<Utc>> {
        let local = at.with_timezone(&zone);
        let (day, time) = (local.date_naive(), local.time());
        let over_midnight = self.from >= self.to;
        let is_quiet =
            if over_midnight { time >= self.from || time < self.to } else { self.from <= time && time < self.to };
        if !is_quiet {
            return None;
        }
        let last_day = if time < self.to { Some(day) } else { day.checked_add_days(Days::new(1)) };
        last_day.map(|day| delay::local_after(at, day.and_time(self.to), zone))
    }

    /// How long they are by the clock.
    #[must_use]
    pub fn length(&self) -> std::time::Duration {
        let length = self.to - self.from;
        let length = if length > Duration::zero() { length } else { length + Duration::days(1) };
        length.to_std().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn hours(from: &str, to: &str) -> QuietHours {
        let time = |text| NaiveTime::parse_from_str(text, "%H:%M").unwrap();
        QuietHours { from: time(from), to: time(to) }
    }

    #[rstest]
    #[case::before("21:00", "08:00", "2026-07-01T18:59:59Z", "Europe/Berlin", None)]
    #[case::evening("21:00", "08:00", "2026-07-01T19:00:00Z", "Europe/Berlin", Some("2026-07-02T06:00:00Z"))]
    #[case::morning("21:00", "08:00", "2026-07-02T05:59:59Z", "Europe/Berlin", Some("2026-07-02T06:00:00Z"))]
    #[case::end("21:00", "08:00", "2026-07-02T06:00:00Z", "Europe/Berlin", None)]
    #[case::at_noon("12:00", "13:30", "2026-07-01T10:30:00Z", "Europe/Berlin", Some("2026-07-01T11:30:00Z"))]
    #[case::elsewhere("21:00", "08:00", "2026-07-01T19:00:00Z", "America/New_York", None)]
    #[case::half_an_hour("21:00", "08:00", "2026-07-01T16:00:00Z", "Asia/Kolkata", Some("2026-07-02T02:30:00Z"))]
    // The clock goes from 02:00 to 03:00 on the 29th of March: 02:30 is left out.
    #[case::in_the_gap("21:00", "02:30", "2026-03-28T23:00:00Z", "Europe/Berlin", Some("2026-03-29T01:00:00Z"))]
    #[case::over_the_gap("21:00", "08:00", "2026-03-28T23:00:00Z", "Europe/Berlin", Some("2026-03-29T06:00:00Z"))]
    // It goes from 03:00 to 02:00 on the 25th of October: 02:30 comes twice.
    #[case::first_of_two("21:00", "02:30", "2026-10-25T00:00:00Z", "Europe/Berlin", Some("2026-10-25T00:30:00Z"))]
    #[case::between_the_two("21:00", "02:30", "2026-10-25T00:45:00Z", "Europe/Berlin", None)]
    #[case::second_of_two("21:00", "02:30", "2026-10-25T01:10:00Z", "Europe/Berlin", Some("2026-10-25T01:30:00Z"))]
    fn quiet_hours_end_by_the_clock_of_the_zone(
        #[case] from: &str,
        #[case] to: &str,
        #[case] at: &str,
        #[case] zone: &str,
        #[case] expected: Option<&str>,
    ) {
        let until = hours(from, to).until(at.parse().unwrap(), zone.parse().unwrap());
        assert_eq!(until, expected.map(|at| at.parse().unwrap()));
    }

    #[rstest]
    #[case("21:00", "08:00", 11 * 60)]
    #[case("12:00", "13:30", 90)]
    fn their_length_is_that_of_the_clock(#[case] from: &str, #[case] to: &str, #[case] minutes: u64) {
        assert_eq!(hours(from, to).length().as_secs(), minutes * 60);
    }

    proptest! {
        #[test]
        fn the_end_is_to_come_and_is_not_quiet(
            from in 0..96_u32, length in 1..96_u32, second in 1_600_000_000..2_000_000_000_i64, zone in 0..chrono_tz::TZ_VARIANTS.len()
        ) {
            let time = |quarter: u32| NaiveTime::from_hms_opt(quarter % 96 / 4, quarter % 4 * 15, 0).unwrap();
            let hours = QuietHours { from: time(from), to: time(from + length) };
            let (at, zone) = (DateTime::from_timestamp(second, 0).unwrap(), chrono_tz::TZ_VARIANTS[zone]);
            if let Some(until) = hours.until(at, zone) {
                prop_assert!(until > at && until - at <= Duration::hours(26), "{until}");
                prop_assert_eq!(hours.until(until, zone), None);
            }
        }
    }
}
