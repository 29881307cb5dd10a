//! How long a step waits after the one before it. Pure: the API answers `next_action_at` with it, the stage goes by it.

use crate::DelayUnit;
use chrono::{DateTime, Datelike, Days, LocalResult, NaiveDateTime, TimeDelta, TimeZone, Timelike, Utc, Weekday};
use chrono_tz::Tz;

/// The longest delay of each unit: about ten years.
#[must_use]
pub fn longest(unit: DelayUnit) -> u32 {
    match unit {
        DelayUnit::Minutes => 5_256_000,
        DelayUnit::Hours => 87_600,
        DelayUnit::Days => 3_650,
        DelayUnit::BusinessDays => 2_600,
    }
}

/// The zone that days count in: the contact's, else the tenant's. A name that is none is passed over.
#[must_use]
pub fn zone(contact: Option<&str>, tenant: &str) -> Tz {
    contact.and_then(|name| name.parse().ok()).or_else(|| tenant.parse().ok()).unwrap_or(Tz::UTC)
}

/// When a delay that begins at `from` is over. Minutes and hours are lengths of time. Days keep the time of day in `zone`, over
/// changes of its clock too: a time of day that is left out on that date becomes the first one after it, of one that comes twice
/// the first is taken. Business days are Monday to Friday. No delay is over at once, also on a Sunday.
#[must_use]
pub fn after(from: DateTime<Utc>, amount: u32, unit: DelayUnit, zone: Tz) -> DateTime<Utc> {
    let amount = amount.min(longest(unit));
    if amount == 0 {
        return from;
    }
    match unit {
        DelayUnit::Minutes => from + TimeDelta::minutes(i64::from(amount)),
        DelayUnit::Hours => from + TimeDelta::hours(i64::from(amount)),
        DelayUnit::Days => at_local(from, u64::from(amount), zone),
        DelayUnit::BusinessDays => at_local(from, business_days(from, amount, zone), zone),
    }
}

/// How many days a number of business days takes.
fn business_days(from: DateTime<Utc>, amount: u32, zone: Tz) -> u64 {
    let (mut days, mut left) = (u64::from(amount / 5) * 7, amount % 5);
    // Over a weekend a week is still five business days: from Saturday the fifth is the Friday.
    let mut day = from.with_timezone(&zone).date_naive().weekday();
    if left == 0 {
        // Whole weeks from a weekend would end on a weekend: they end on the Friday before it.
        return days - u64::from(days_into_weekend(day));
    }
    while left > 0 {
        day = day.succ();
        days += 1;
        left -= u32::from(days_into_weekend(day) == 0);
    }
    days
}

fn days_into_weekend(day: Weekday) -> u32 {
    day.num_days_from_monday().saturating_sub(4)
}

/// A time that many days later, at the same time of day.
fn at_local(from: DateTime<Utc>, days: u64, zone: Tz) -> DateTime<Utc> {
    let local = from.with_timezone(&zone).naive_local();
    let Some(wanted) = local.checked_add_days(Days::new(days)) else { return from };
    resolve(wanted, zone).max(from)
}

/// Clocks are put forward by multiples of this.
const GAP_STEP: TimeDelta = TimeDelta::minutes(15);
/// No zone leaves out more than a day (Samoa did, in 2011).
const GAP_STEPS_MAX: usize = 4 * 25;

/// When the clock of a zone shows this: the first moment after a gap that leaves it out; of two such moments the first after `at`.
#[must_use]
pub fn local_after(at: DateTime<Utc>, wanted: NaiveDateTime, zone: Tz) -> DateTime<Utc> {
    match zone.from_local_datetime(&wanted) {
        LocalResult::Ambiguous(first, second) if first <= at => second.with_timezone(&Utc),
        _ => resolve(wanted, zone),
    }
}

fn resolve(wanted: NaiveDateTime, zone: Tz) -> DateTime<Utc> {
    let mut local = wanted;
    for _ in 0..GAP_STEPS_MAX {
        match zone.from_local_datetime(&local) {
            LocalResult::Single(at) | LocalResult::Ambiguous(at, _) => return at.with_timezone(&Utc),
            LocalResult::None => local = quarter_of(local) + GAP_STEP,
        }
    }
    Utc.from_utc_datetime(&wanted)
}

fn quarter_of(local: NaiveDateTime) -> NaiveDateTime {
    let into = TimeDelta::minutes(i64::from(local.minute() % 15))
        + TimeDelta::seconds(i64::from(local.second()))
        + TimeDelta::nanoseconds(i64::from(local.nanosecond() % 1_000_000_000));
    local - into
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn at(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().with_timezone(&Utc)
    }

    #[rstest]
    #[case("2026-03-02T10:00:00Z", 0, DelayUnit::BusinessDays, "UTC", "2026-03-02T10:00:00Z")]
    #[case("2026-03-02T10:00:00Z", 90, DelayUnit::Minutes, "UTC", "2026-03-02T11:30:00Z")]
    #[case("2026-03-02T10:00:00Z", 3, DelayUnit::Hours, "UTC", "2026-03-02T13:00:00Z")]
    // Hours are hours: over a change of the clock it is another time of day.
    #[case("2026-03-28T10:00:00Z", 24, DelayUnit::Hours, "Europe/Berlin", "2026-03-29T10:00:00Z")]
    // Days keep the time of day: 11:00 in winter, 11:00 in summer.
    #[case("2026-03-28T10:00:00Z", 1, DelayUnit::Days, "Europe/Berlin", "2026-03-29T09:00:00Z")]
    #[case("2026-10-24T09:00:00Z", 1, DelayUnit::Days, "Europe/Berlin", "2026-10-25T10:00:00Z")]
    // 02:30 is left out on the 29th of March: the first moment after the gap.
    #[case("2026-03-28T01:30:00Z", 1, DelayUnit::Days, "Europe/Berlin", "2026-03-29T01:00:00Z")]
    // 02:30 comes twice on the 25th of October: the first one.
    #[case("2026-10-24T00:30:00Z", 1, DelayUnit::Days, "Europe/Berlin", "2026-10-25T00:30:00Z")]
    // A zone whose clock moves by half an hour.
    #[case("2026-10-02T15:45:00Z", 1, DelayUnit::Days, "Australia/Lord_Howe", "2026-10-03T15:30:00Z")]
    // Samoa left out the 30th of December 2011 altogether.
    #[case("2011-12-29T20:00:00Z", 1, DelayUnit::Days, "Pacific/Apia", "2011-12-30T10:00:00Z")]
    // Friday to Monday, Saturday and Sunday to Monday, a week, two weeks and a day.
    #[case("2026-03-06T10:00:00Z", 1, DelayUnit::BusinessDays, "UTC", "2026-03-09T10:00:00Z")]
    #[case("2026-03-07T10:00:00Z", 1, DelayUnit::BusinessDays, "UTC", "2026-03-09T10:00:00Z")]
    #[case("2026-03-08T10:00:00Z", 1, DelayUnit::BusinessDays, "UTC", "2026-03-09T10:00:00Z")]
    #[case("2026-03-05T10:00:00Z", 5, DelayUnit::BusinessDays, "UTC", "2026-03-12T10:00:00Z")]
    #[case("2026-03-07T10:00:00Z", 5, DelayUnit::BusinessDays, "UTC", "2026-03-13T10:00:00Z")]
    #[case("2026-03-05T10:00:00Z", 11, DelayUnit::BusinessDays, "UTC", "2026-03-20T10:00:00Z")]
    // Friday evening in New York is Saturday in UTC: the contact's Friday counts.
    #[case("2026-03-07T02:00:00Z", 1, DelayUnit::BusinessDays, "America/New_York", "2026-03-10T01:00:00Z")]
    fn a_delay_ends_when_its_unit_says(
        #[case] from: &str,
        #[case] amount: u32,
        #[case] unit: DelayUnit,
        #[case] zone: &str,
        #[case] end: &str,
    ) {
        assert_eq!(after(at(from), amount, unit, zone.parse().unwrap()), at(end));
    }

    #[test]
    fn the_contacts_zone_counts_before_the_tenants() {
        assert_eq!(zone(Some("Asia/Tokyo"), "Europe/Berlin"), Tz::Asia__Tokyo);
        assert_eq!(zone(Some("Middle/Earth"), "Europe/Berlin"), Tz::Europe__Berlin);
        assert_eq!(zone(None, "nowhere"), Tz::UTC);
    }

    const ZONES: [Tz; 6] = [
        Tz::UTC,
        Tz::Europe__Berlin,
        Tz::America__New_York,
        Tz::Australia__Lord_Howe,
        Tz::Pacific__Apia,
        Tz::Asia__Kathmandu,
    ];

    proptest! {
        #[test]
        fn no_delay_is_over_early(seconds in 1_300_000_000_i64..2_000_000_000, amount in 0_u32..400, unit in 0_usize..4, zone in 0_usize..6) {
            let (from, unit, zone) = (Utc.timestamp_opt(seconds, 0).unwrap(), DelayUnit::ALL[unit], ZONES[zone]);
            let end = after(from, amount, unit, zone);
            prop_assert!(end >= from);
            let (began, ended) = (from.with_timezone(&zone).naive_local(), end.with_timezone(&zone).naive_local());
            match unit {
                DelayUnit::Minutes => prop_assert_eq!(end - from, TimeDelta::minutes(amount.into())),
                DelayUnit::Hours => prop_assert_eq!(end - from, TimeDelta::hours(amount.into())),
                DelayUnit::Days => prop_assert!(ended >= began + Days::new(amount.into())),
                DelayUnit::BusinessDays => prop_assert!(ended - began >= TimeDelta::days((amount / 5 * 7).into()) - TimeDelta::days(2)),
            }
        }

        #[test]
        fn days_keep_the_time_of_day_unless_the_clock_leaves_it_out(seconds in 1_300_000_000_i64..2_000_000_000, amount in 1_u32..400, zone in 0_usize..6) {
            let (from, zone) = (Utc.timestamp_opt(seconds, 0).unwrap(), ZONES[zone]);
            let wanted = from.with_timezone(&zone).naive_local() + Days::new(amount.into());
            let ended = after(from, amount, DelayUnit::Days, zone).with_timezone(&zone).naive_local();
            let is_left_out = zone.from_local_datetime(&wanted) == LocalResult::None;
            prop_assert!(ended == wanted || is_left_out && ended > wanted);
        }

        #[test]
        fn business_days_end_on_a_working_day_after_so_many_of_them(seconds in 1_300_000_000_i64..2_000_000_000, amount in 1_u32..60) {
            let from = Utc.timestamp_opt(seconds, 0).unwrap();
            let end = after(from, amount, DelayUnit::BusinessDays, Tz::UTC);
            prop_assert!(days_into_weekend(end.weekday()) == 0);
            let mut day = from.date_naive();
            let mut working = 0;
            while day < end.date_naive() {
                day = day.succ_opt().unwrap();
                working += u32::from(days_into_weekend(day.weekday()) == 0);
            }
            prop_assert_eq!(working, amount);
        }
    }
}
