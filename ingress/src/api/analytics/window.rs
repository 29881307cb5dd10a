//! The time a report is about: full hours, shown in days of the tenant's time zone.

use chrono::{DateTime, Datelike, DurationRound, NaiveDate, TimeDelta, Utc};
use chrono_tz::Tz;
use schemars::JsonSchema;
use serde::Serialize;

use crate::pipeline::{Faults, page::Time, validate::FIRST_YEAR};

/// Length of the window, where the caller does not say.
const DEFAULT_DAYS: i64 = 30;
/// The longest window.
pub(super) const DAYS_MAX: i64 = 366;

/// From the start of an hour to the start of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HourWindow {
    pub(super) from: DateTime<Utc>,
    pub(super) to: DateTime<Utc>,
    pub(super) timezone: Tz,
}

impl HourWindow {
    /// From the query's `from` and `to`. Totals are kept by the hour, so `from` is rounded down and `to` up to a full hour. Faults are a
    /// time that is none, a window that ends before it begins, and one over [`DAYS_MAX`].
    pub(super) fn new(
        from: Option<&str>,
        to: Option<&str>,
        timezone: Tz,
        now: DateTime<Utc>,
        faults: &mut Faults,
    ) -> Self {
        let to = moment("to", to, faults).unwrap_or(now);
        let from = moment("from", from, faults).unwrap_or(to - TimeDelta::days(DEFAULT_DAYS));
        faults.require(from < to, "from", "out_of_range", "must be before `to`");
        let fits = to - from <= TimeDelta::days(DAYS_MAX);
        faults.require(fits, "from", "out_of_range", "may be at most 366 days before `to`");
        let floor = |at: DateTime<Utc>| at.duration_trunc(TimeDelta::hours(1)).unwrap_or(at);
        let end = floor(to);
        let to = if end < to { end + TimeDelta::hours(1) } else { end };
        Self { from: floor(from), to, timezone }
    }

    /// The days of the window in its time zone, the first and last perhaps in part.
    pub(super) fn days(&self) -> impl Iterator<Item = NaiveDate> {
        let first = self.from.with_timezone(&self.timezone).date_naive();
        let last = (self.to - TimeDelta::nanoseconds(1)).with_timezone(&self.timezone).date_naive();
        first.iter_days().take_while(move |day| *day <= last)
    }

    /// True if a day of the window begins within an hour of UTC, which hourly totals cannot separate: in some zones in one season only.
    pub(super) fn splits_hours(&self) -> bool {
        use chrono::{Offset, TimeZone};
        let offset =
            |at: DateTime<Utc>| self.timezone.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc();
        let days = std::iter::successors(Some(self.from), |at| Some(*at + TimeDelta::days(1)));
        days.take_while(|at| *at < self.to).chain([self.to]).any(|at| offset(at) % 3_600 != 0)
    }
}

/// The window as a report shows it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReportWindow {
    from: Time,
    to: Time,
    /// The tenant's; its days are those of the report.
    timezone: &'static str,
}

impl From<&HourWindow> for ReportWindow {
    fn from(window: &HourWindow) -> Self {
        Self { from: window.from.into(), to: window.to.into(), timezone: window.timezone.name() }
    }
}

fn moment(name: &'static str, text: Option<&str>, faults: &mut Faults) -> Option<DateTime<Utc>> {
    let at = faults.time(name, text?)?;
    // The hour that the last one of the year 9999 is taken forward to is none that an answer can name.
    let is_known = (FIRST_YEAR..9999).contains(&at.year());
    faults.require(is_known, name, "out_of_range", "must be of the years 2000 to 9998");
    is_known.then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::error::ApiError;
    use rstest::rstest;

    fn window(from: Option<&str>, to: Option<&str>, timezone: Tz) -> Result<HourWindow, ApiError> {
        let mut faults = Faults::default();
        let window = HourWindow::new(from, to, timezone, now(), &mut faults);
        faults.finish().map(|()| window)
    }

    fn now() -> DateTime<Utc> {
        "2026-03-31T10:20:00Z".parse().unwrap()
    }

    #[test]
    fn the_default_is_the_trailing_30_days() {
        let window = window(None, None, Tz::UTC).unwrap();
        assert_eq!(
            (window.from.to_rfc3339(), window.to.to_rfc3339()),
            ("2026-03-01T10:00:00+00:00".to_owned(), "2026-03-31T11:00:00+00:00".to_owned())
        );
        assert_eq!(window.days().count(), 31, "30 days and a part touch 31");
    }

    #[test]
    fn days_are_those_of_the_time_zone() {
        let zone = Tz::America__New_York;
        let window = window(Some("2026-03-08T05:00:00Z"), Some("2026-03-10T04:00:00Z"), zone).unwrap();
        // The 8th has 23 hours: clocks go forward.
        let days: Vec<String> = window.days().map(|day| day.to_string()).collect();
        assert_eq!(days, ["2026-03-08", "2026-03-09"]);
        assert!(!window.splits_hours() && HourWindow { timezone: Tz::Asia__Kolkata, ..window }.splits_hours());
    }

    #[test]
    fn a_window_over_a_season_of_half_hours_splits_them() {
        let zone = Tz::Australia__Lord_Howe;
        let of = |from, to| window(Some(from), Some(to), zone).unwrap().splits_hours();
        // Eleven hours ahead in summer, ten and a half in winter.
        assert!(!of("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"));
        assert!(of("2026-01-01T00:00:00Z", "2026-12-01T00:00:00Z"));
    }

    #[rstest]
    #[case(Some("yesterday"), None, "from", "invalid")]
    #[case(Some("2026-03-01"), None, "from", "invalid")]
    #[case(None, Some("2026-03-01T00:00:00"), "to", "invalid")]
    #[case(Some("1999-03-01T00:00:00Z"), Some("1999-03-02T00:00:00Z"), "to", "out_of_range")]
    #[case(None, Some("9999-12-31T23:30:00Z"), "to", "out_of_range")]
    #[case(Some("2026-03-02T00:00:00Z"), Some("2026-03-01T00:00:00Z"), "from", "out_of_range")]
    #[case(Some("2024-03-02T00:00:00Z"), Some("2026-03-01T00:00:00Z"), "from", "out_of_range")]
    fn a_window_that_is_none_is_refused(
        #[case] from: Option<&str>,
        #[case] to: Option<&str>,
        #[case] path: &str,
        #[case] code: &str,
    ) {
        let error = window(from, to, Tz::UTC).unwrap_err();
        assert_eq!((error.fields[0].path.as_str(), error.fields[0].code.as_ref()), (path, code), "{error:?}");
    }
}
