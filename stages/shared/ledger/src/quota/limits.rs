//! Limits, usage and what is left: pure.

use chrono::{DateTime, Datelike, Days, Months, NaiveDate, NaiveTime, Utc};

/// The limits in force for a tenant. `None`: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Mails in a UTC month.
    pub monthly: Option<i64>,
    /// Mails in a UTC day.
    pub daily: Option<i64>,
}

/// Mails that count against a tenant's quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SentCounts {
    /// In this UTC month.
    pub month: i64,
    /// On this UTC day.
    pub day: i64,
}

/// How many mails a tenant may still send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaRemaining {
    /// Mails left; `None`: there is no limit. Never negative.
    pub remaining: Option<i64>,
    /// When the limit that binds starts anew (midnight UTC); without a limit, the start of the next month.
    pub resets_at: DateTime<Utc>,
}

impl QuotaRemaining {
    /// True if so many mails fit.
    #[must_use]
    pub fn fits(&self, sends: i64) -> bool {
        self.remaining.is_none_or(|remaining| sends <= remaining)
    }
}

impl QuotaLimits {
    /// True if there is a limit.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.monthly.is_some() || self.daily.is_some()
    }

    /// The month and the day that `today` is in.
    #[must_use]
    pub fn periods(&self, sent: SentCounts, today: NaiveDate) -> (PeriodUsage, PeriodUsage) {
        let period = |limit: Option<i64>, used: i64, next| PeriodUsage {
            limit,
            used,
            remaining: limit.map(|limit| limit.saturating_sub(used).max(0)),
            resets_at: midnight(next),
        };
        let next_month = today.with_day(1).and_then(|first| first.checked_add_months(Months::new(1)));
        let next_day = today.checked_add_days(Days::new(1));
        (period(self.monthly, sent.month, next_month), period(self.daily, sent.day, next_day))
    }

    /// What is left on `today`. If both limits leave the same, `resets_at` is that of the month.
    #[must_use]
    pub fn remaining(&self, sent: SentCounts, today: NaiveDate) -> QuotaRemaining {
        let (month, day) = self.periods(sent, today);
        let day_binds = day.remaining.is_some_and(|left| month.remaining.is_none_or(|of_month| left < of_month));
        let PeriodUsage { remaining, resets_at, .. } = if day_binds { day } else { month };
        QuotaRemaining { remaining, resets_at }
    }
}

/// Limit and use of one period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeriodUsage {
    /// Mails; `None`: there is no limit.
    pub limit: Option<i64>,
    /// Mails sent so far.
    pub used: i64,
    /// Mails left; `None`: there is no limit. Never negative.
    pub remaining: Option<i64>,
    /// When it starts anew, midnight UTC.
    pub resets_at: DateTime<Utc>,
}

fn midnight(day: Option<NaiveDate>) -> DateTime<Utc> {
    // Only the last day that can be written has no next one.
    day.unwrap_or(NaiveDate::MAX).and_time(NaiveTime::MIN).and_utc()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::QuotaDefaults;
    use rstest::rstest;

    #[rstest]
    #[case::no_limit(None, None, 5, 5, None, "2027-01-01")]
    #[case::month(Some(10), None, 4, 4, Some(6), "2027-01-01")]
    #[case::day(None, Some(10), 400, 4, Some(6), "2026-12-31")]
    #[case::day_binds(Some(100), Some(10), 50, 4, Some(6), "2026-12-31")]
    #[case::month_binds(Some(52), Some(10), 50, 4, Some(2), "2027-01-01")]
    #[case::both_used_up(Some(50), Some(10), 50, 10, Some(0), "2027-01-01")]
    #[case::lowered_below_usage(Some(10), None, 50, 1, Some(0), "2027-01-01")]
    fn what_is_left_is_what_the_tighter_limit_leaves(
        #[case] monthly: Option<i64>,
        #[case] daily: Option<i64>,
        #[case] month: i64,
        #[case] day: i64,
        #[case] remaining: Option<i64>,
        #[case] resets_on: &str,
    ) {
        let today = NaiveDate::from_ymd_opt(2026, 12, 30).unwrap();
        let left = QuotaLimits { monthly, daily }.remaining(SentCounts { month, day }, today);
        assert_eq!(left.remaining, remaining);
        assert_eq!(left.resets_at.to_rfc3339(), format!("{resets_on}T00:00:00+00:00"));
    }

    #[rstest]
    #[case::both_from_the_settings(None, None, Some(1_000), Some(100))]
    #[case::own(Some(5), Some(6), Some(5), Some(6))]
    #[case::lifted(Some(0), Some(0), None, None)]
    fn a_tenants_own_limit_stands_before_the_setting_and_zero_is_no_limit(
        #[case] monthly: Option<i64>,
        #[case] daily: Option<i64>,
        #[case] expected_monthly: Option<i64>,
        #[case] expected_daily: Option<i64>,
    ) {
        let defaults = QuotaDefaults { send_quota_monthly: 1_000, send_quota_daily: 100 };
        let limits = defaults.limits(monthly, daily);
        assert_eq!(limits, QuotaLimits { monthly: expected_monthly, daily: expected_daily });
        assert!(!QuotaDefaults::default().limits(None, None).is_limited());
    }
}
