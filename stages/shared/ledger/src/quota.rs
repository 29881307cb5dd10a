//! The send quota: how many mails a tenant may send in a UTC month and a UTC day.
//!
//! Metered at the fence, in the ledger writer's commit: a send counts when it passes its first fence, further attempts of the
//! same send do not, and a fence after which nothing left is taken back. So the usage equals a recount of sends with
//! a fence (`sends.fenced_at`). A tenant with a limit is exact over any number of delivery processes: its row in `tenants` is
//! locked, in tenant order, before its usage is read. A tenant without a limit is metered in shards, so no process waits for another.
//!
//! It stops campaigns, their tests and one-off messages. Transactional mail and sequences count against it, and are always sent.
//!
//! A launch, a retry and `POST /v1/messages` ask [`quota_usage`] or [`remaining_quota`], which lock nothing: a caller cannot queue what
//! cannot be sent. The fence enforces the limit.

use chrono::{DateTime, Datelike, Days, Months, NaiveDate, NaiveTime, Utc};
use schemas::MessageKind;
use sqlx::PgConnection;
use uuid::Uuid;

/// How many mails a tenant may send, unless `postrider quota set` says otherwise for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Send quota")]
#[group(skip)]
pub struct QuotaDefaults {
    /// Mails a tenant may send in a month (UTC) before its campaigns and one-off messages are refused. 0: no limit.
    #[arg(long, env = "POSTRIDER_SEND_QUOTA_MONTHLY", default_value_t = 0)]
    pub send_quota_monthly: u64,
    /// Mails a tenant may send in a day (UTC) before its campaigns and one-off messages are refused. 0: no limit.
    #[arg(long, env = "POSTRIDER_SEND_QUOTA_DAILY", default_value_t = 0)]
    pub send_quota_daily: u64,
}

impl QuotaDefaults {
    /// The monthly and the daily limit in force for a tenant for which these are set (null: not set; 0: no limit). `None`: no limit.
    pub(crate) fn limits(&self, monthly: Option<i64>, daily: Option<i64>) -> (Option<i64>, Option<i64>) {
        let effective = |set: Option<i64>, default: u64| {
            let limit = set.unwrap_or_else(|| i64::try_from(default).unwrap_or(i64::MAX));
            (limit > 0).then_some(limit)
        };
        (effective(monthly, self.send_quota_monthly), effective(daily, self.send_quota_daily))
    }
}

/// True if a used-up quota stops mail of this kind.
#[must_use]
pub fn stops(kind: MessageKind) -> bool {
    match kind {
        MessageKind::Campaign | MessageKind::OneOff | MessageKind::Test => true,
        MessageKind::Transactional | MessageKind::Sequence => false,
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

impl PeriodUsage {
    fn of(limit: Option<i64>, used: i64, next: Option<NaiveDate>) -> Self {
        // Only the last day that can be written has no next one.
        let resets_at = next.unwrap_or(NaiveDate::MAX).and_time(NaiveTime::MIN).and_utc();
        Self { limit, used, remaining: limit.map(|limit| limit.saturating_sub(used).max(0)), resets_at }
    }
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

/// A tenant's quota: limits and usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaUsage {
    /// What is set for the tenant itself: null takes the default, 0 is no limit.
    pub set_monthly: Option<i64>,
    /// The daily limit set for the tenant itself: null takes the default, 0 is no limit.
    pub set_daily: Option<i64>,
    /// This month, with the limit in force.
    pub month: PeriodUsage,
    /// Today, with the limit in force.
    pub day: PeriodUsage,
}

impl QuotaUsage {
    /// With these limits set for the tenant, and so many mails sent in the month and on the day that `today` is in.
    fn of(
        defaults: &QuotaDefaults,
        (set_monthly, set_daily): (Option<i64>, Option<i64>),
        (used_month, used_day): (i64, i64),
        today: NaiveDate,
    ) -> Self {
        let (monthly, daily) = defaults.limits(set_monthly, set_daily);
        let (next_month, next_day) = next_periods(today);
        let (month, day) =
            (PeriodUsage::of(monthly, used_month, next_month), PeriodUsage::of(daily, used_day, next_day));
        Self { set_monthly, set_daily, month, day }
    }

    /// What is left at a time that is now or later, should nothing be sent before it: a period that has started anew by then leaves its
    /// whole limit.
    #[must_use]
    pub fn left_at(&self, at: DateTime<Utc>) -> QuotaRemaining {
        let (next_month, next_day) = next_periods(at.date_naive());
        let then = |period: PeriodUsage, next| match period.resets_at <= at {
            true => PeriodUsage::of(period.limit, 0, next),
            false => period,
        };
        Self { month: then(self.month, next_month), day: then(self.day, next_day), ..*self }.left()
    }

    /// What is left. If both limits leave the same, `resets_at` is that of the month.
    #[must_use]
    pub fn left(&self) -> QuotaRemaining {
        let (month, day) = (self.month, self.day);
        let day_binds = day.remaining.is_some_and(|left| month.remaining.is_none_or(|of_month| left < of_month));
        let PeriodUsage { remaining, resets_at, .. } = if day_binds { day } else { month };
        QuotaRemaining { remaining, resets_at }
    }
}

/// The first days of the month and of the day after those that a day is in.
fn next_periods(day: NaiveDate) -> (Option<NaiveDate>, Option<NaiveDate>) {
    let next_month = day.with_day(1).and_then(|first| first.checked_add_months(Months::new(1)));
    (next_month, day.checked_add_days(Days::new(1)))
}

/// How many mails a tenant may still send. Locks nothing; in the ingress's role the transaction must be confined to the tenant.
pub async fn remaining_quota(
    db: &mut PgConnection,
    tenant: Uuid,
    defaults: &QuotaDefaults,
) -> sqlx::Result<QuotaRemaining> {
    quota_usage(db, tenant, defaults).await.map(|usage| usage.left())
}

/// A tenant's limits and usage.
pub async fn quota_usage(db: &mut PgConnection, tenant: Uuid, defaults: &QuotaDefaults) -> sqlx::Result<QuotaUsage> {
    let usage = quota_usages(db, &[tenant], defaults).await?.pop();
    usage.map(|(_, usage)| usage).ok_or(sqlx::Error::RowNotFound)
}

/// The limits and usage of these tenants. It is exact only while their rows are locked.
pub(crate) async fn quota_usages(
    db: &mut PgConnection,
    tenants: &[Uuid],
    defaults: &QuotaDefaults,
) -> sqlx::Result<Vec<(Uuid, QuotaUsage)>> {
    let rows = sqlx::query_file!("queries/quota/quota_usage.sql", tenants).fetch_all(db).await?;
    let usage = rows.into_iter().map(|row| {
        let (set, used) = ((row.monthly, row.daily), (row.used_month, row.used_day));
        (row.tenant_id, QuotaUsage::of(defaults, set, used, row.today))
    });
    Ok(usage.collect())
}

/// Sets a tenant's own limits. `None` leaves a limit as it is, `Some(None)` goes back to the default, `Some(Some(0))` is no limit.
///
/// # Errors
/// When Postgres is away, or there is no such tenant (a foreign key violation).
pub async fn set(
    db: &mut PgConnection,
    tenant: Uuid,
    monthly: Option<Option<i64>>,
    daily: Option<Option<i64>>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into send_limits (tenant_id, monthly, daily) values ($1, $2, $3)
         on conflict (tenant_id) do update
         set monthly = case when $4 then excluded.monthly else send_limits.monthly end,
             daily = case when $5 then excluded.daily else send_limits.daily end",
        tenant,
        monthly.flatten(),
        daily.flatten(),
        monthly.is_some(),
        daily.is_some()
    )
    .execute(db)
    .await
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let left = QuotaUsage::of(&QuotaDefaults::default(), (monthly, daily), (month, day), today).left();
        assert_eq!(left.remaining, remaining);
        assert_eq!(left.resets_at.to_rfc3339(), format!("{resets_on}T00:00:00+00:00"));
    }

    #[rstest]
    #[case::the_same_day("2026-12-30T23:59:59Z", Some(0), "2026-12-31")]
    #[case::the_next_day("2026-12-31T00:00:00Z", Some(10), "2027-01-01")]
    #[case::the_next_month("2027-01-02T12:00:00Z", Some(10), "2027-01-03")]
    fn a_period_that_has_started_anew_leaves_its_whole_limit(
        #[case] at: DateTime<Utc>,
        #[case] remaining: Option<i64>,
        #[case] resets_on: &str,
    ) {
        let today = NaiveDate::from_ymd_opt(2026, 12, 30).unwrap();
        let usage = QuotaUsage::of(&QuotaDefaults::default(), (Some(100), Some(10)), (80, 10), today);
        let left = usage.left_at(at);
        assert_eq!(left.remaining, remaining);
        assert_eq!(left.resets_at.to_rfc3339(), format!("{resets_on}T00:00:00+00:00"));
        let month_used_up = QuotaUsage::of(&QuotaDefaults::default(), (Some(100), Some(10)), (100, 10), today);
        let fits = month_used_up.left_at(at).fits(1);
        assert_eq!(fits, at.month() == 1, "a new day helps nothing while the month is used up");
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
        assert_eq!(defaults.limits(monthly, daily), (expected_monthly, expected_daily));
        assert_eq!(QuotaDefaults::default().limits(None, None), (None, None));
    }
}
