//! A time of the day in each recipient's time zone: "at nine in the morning, wherever you are".
//!
//! The launch of such a campaign is due when the first zone of the world has reached the time ([`first_anywhere`]). It then writes batches
//! of their own for each moment at which a zone reaches it, and each waits for its moment (state `timed`). A contact without a zone has the
//! tenant's. A zone that changes after the launch has no effect.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Days, NaiveDateTime, TimeDelta, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};
use schemas::delay;

/// Contacts where it was this time less than so long ago get the mail at once, all others where it has passed at the next day's time.
pub const LATE_MAX: TimeDelta = TimeDelta::hours(1);
/// How far ahead of UTC the first zone of the world is.
const FIRST_ZONE: TimeDelta = TimeDelta::hours(14);
/// How far behind UTC the last zone is.
const LAST_ZONE: TimeDelta = TimeDelta::hours(12);

/// When the first zone of the world reaches a local time.
#[must_use]
pub fn first_anywhere(local: NaiveDateTime) -> DateTime<Utc> {
    (local - FIRST_ZONE).and_utc()
}

/// When the last zone of the world reaches it.
#[must_use]
pub fn last_anywhere(local: NaiveDateTime) -> DateTime<Utc> {
    (local + LAST_ZONE).and_utc()
}

/// When mail to a zone is due that is launched at `launch`: at the local time, or a day later each time that it has passed.
#[must_use]
pub fn due_in(local: NaiveDateTime, zone: Tz, launch: DateTime<Utc>) -> DateTime<Utc> {
    let after = launch - LATE_MAX;
    let mut day = local.date().max(after.with_timezone(&zone).date_naive());
    // One day may have passed already, and a zone may leave one out.
    for _ in 0..3 {
        let due = delay::local_after(after, day.and_time(local.time()), zone);
        if due > after {
            return due.max(launch);
        }
        day = day.checked_add_days(Days::new(1)).unwrap_or(day);
    }
    launch
}

/// When mail to each zone of the world is due that is launched at `launch`.
pub(crate) fn due_by_zone(
    local: NaiveDateTime,
    launch: DateTime<Utc>,
) -> impl Iterator<Item = (&'static str, DateTime<Utc>)> {
    TZ_VARIANTS.iter().map(move |zone| (zone.name(), due_in(local, *zone, launch)))
}

/// The moments at which a campaign is due, and which zone has which: the parts of its audience.
#[derive(Debug)]
pub struct DueTimes {
    /// The moments, in order.
    pub dues: Vec<DateTime<Utc>>,
    /// The moment of each zone: an index of `dues`.
    pub moments: BTreeMap<&'static str, i32>,
    /// That of contacts without a zone.
    pub without_zone: i32,
}

impl DueTimes {
    /// The moments of a campaign that is launched at `launch`.
    #[must_use]
    pub fn of(local: NaiveDateTime, tenant_zone: Tz, launch: DateTime<Utc>) -> Self {
        let due = |zone: &Tz| due_in(local, *zone, launch);
        let dues: Vec<DateTime<Utc>> = TZ_VARIANTS.iter().map(due).collect::<BTreeSet<_>>().into_iter().collect();
        let moment = |zone: &Tz| i32::try_from(dues.partition_point(|at| *at < due(zone))).unwrap_or(0);
        Self {
            moments: TZ_VARIANTS.iter().map(|zone| (zone.name(), moment(zone))).collect(),
            without_zone: moment(&tenant_zone),
            dues,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case::east_of_utc("2026-07-01T09:00:00", "Europe/Berlin", "2026-06-30T19:00:00Z", "2026-07-01T07:00:00Z")]
    #[case::west_of_utc("2026-07-01T09:00:00", "America/Los_Angeles", "2026-06-30T19:00:00Z", "2026-07-01T16:00:00Z")]
    #[case::first_zone("2026-07-01T09:00:00", "Pacific/Kiritimati", "2026-06-30T19:00:00Z", "2026-06-30T19:00:00Z")]
    #[case::just_passed("2026-07-01T09:00:00", "Europe/Berlin", "2026-07-01T07:59:59Z", "2026-07-01T07:59:59Z")]
    #[case::passed("2026-07-01T09:00:00", "Europe/Berlin", "2026-07-01T08:00:00Z", "2026-07-02T07:00:00Z")]
    #[case::passed_days_ago("2026-07-01T09:00:00", "Europe/Berlin", "2026-07-05T08:30:00Z", "2026-07-06T07:00:00Z")]
    // 02:30 is left out on the 29th of March, and comes twice on the 25th of October.
    #[case::in_the_gap("2026-03-29T02:30:00", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z")]
    #[case::comes_twice("2026-10-25T02:30:00", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z")]
    fn mail_is_due_at_the_local_time_or_at_the_next_days(
        #[case] local: &str,
        #[case] zone: &str,
        #[case] launch: &str,
        #[case] due: &str,
    ) {
        let expected: DateTime<Utc> = due.parse().unwrap();
        assert_eq!(due_in(local.parse().unwrap(), zone.parse().unwrap(), launch.parse().unwrap()), expected);
    }

    proptest! {
        #[test]
        fn every_zone_is_due_within_its_day(second in 1_700_000_000..2_000_000_000_i64, quarter in 0..96_u32, late in 0..40_i64) {
            let day = DateTime::from_timestamp(second, 0).unwrap().date_naive();
            let local = day.and_hms_opt(quarter / 4, quarter % 4 * 15, 0).unwrap();
            let launch = first_anywhere(local) + TimeDelta::hours(late);
            let times = DueTimes::of(local, Tz::UTC, launch);
            prop_assert!(times.dues.is_sorted());
            for (name, part) in &times.moments {
                let due = times.dues[usize::try_from(*part).unwrap()];
                prop_assert_eq!(due, due_in(local, name.parse().unwrap(), launch));
                prop_assert!(due >= launch && due - launch <= TimeDelta::hours(52), "{name} {due}");
                if late == 0 {
                    prop_assert!(due <= last_anywhere(local) + TimeDelta::hours(1), "{name} {due}");
                }
            }
        }
    }
}
