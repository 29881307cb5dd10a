//! When a campaign is sent: now, at a time, or at a time of the day in each recipient's time zone.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use ledger::{
    gate::{QuietRule, zone_named},
    local_time::{due_in, first_anywhere, last_anywhere},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::rows::{CampaignRow, LOCAL_TIME_FORMAT, LOCAL_TIME_LEN};
use crate::pipeline::{error::ApiError, page::Time, types::counts};

/// How far a time may be in the past: clocks differ, and requests are repeated.
const PAST_MAX: TimeDelta = TimeDelta::minutes(5);
/// How far ahead it may be.
const AHEAD_MAX: TimeDelta = TimeDelta::days(366);

/// When a campaign is to be sent, as a caller says it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ScheduleText {
    /// `schedule_for`.
    pub(super) at: Option<String>,
    /// `schedule_for_local`.
    pub(super) local: Option<String>,
}

/// When a campaign is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// When its launch is due; `None` is now.
    pub(crate) due: Option<DateTime<Utc>>,
    /// The time of the day in each recipient's time zone.
    pub(crate) local: Option<NaiveDateTime>,
}

impl ScheduleText {
    /// The schedule of a campaign. A time that has just passed is now.
    ///
    /// # Errors
    /// 400 for both at once, for a time that cannot be read or is out of range, and for an A/B test by time zones: its winner is decided at
    /// one time.
    pub(super) fn read(&self, row: &CampaignRow, now: DateTime<Utc>) -> Result<Schedule, ApiError> {
        let Some(text) = &self.local else {
            return Ok(Schedule { due: due_at(self.at.as_deref(), now)?, local: None });
        };
        let fault = |code, detail: &str| Err(ApiError::invalid("schedule_for_local", code, detail));
        if self.at.is_some() {
            return fault("ambiguous", "give schedule_for or schedule_for_local");
        }
        if row.test_percent.is_some() {
            return fault("not_allowed", "a campaign with an A/B test goes out at one time");
        }
        // Years of four digits: sums of times stay far from their limits.
        let local =
            NaiveDateTime::parse_from_str(text, LOCAL_TIME_FORMAT).ok().filter(|_| text.len() == LOCAL_TIME_LEN);
        let Some(local) = local else {
            return fault("invalid", "must be a time without a zone, as 2026-03-01T09:00:00");
        };
        if last_anywhere(local) < now - PAST_MAX {
            return fault("in_the_past", "has passed in every time zone");
        }
        if first_anywhere(local) > now + AHEAD_MAX {
            return fault("too_far_ahead", "is more than a year ahead");
        }
        Ok(Schedule { due: Some(first_anywhere(local)).filter(|at| *at > now), local: Some(local) })
    }
}

/// When to send: `None` is now. A time that has just passed is now, too.
fn due_at(text: Option<&str>, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    let fault = |code, detail: &str| Err(ApiError::invalid("schedule_for", code, detail));
    let Ok(at) = DateTime::parse_from_rfc3339(text).map(|at| at.to_utc()) else {
        return fault("invalid", "must be a time with a zone, as 2026-03-01T09:00:00Z (RFC 3339)");
    };
    if at < now - PAST_MAX {
        return fault("in_the_past", "is more than five minutes past");
    }
    if at > now + AHEAD_MAX {
        return fault("too_far_ahead", "is more than a year ahead");
    }
    Ok(Some(at).filter(|at| *at > now))
}

/// Contacts whose mail waits for its time.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(transform = counts)]
pub(super) struct WaitingContacts {
    /// `time_zone`: for the time of the day where they are. `quiet_hours`: for the end of the tenant's quiet hours.
    #[schemars(extend("enum" = ["quiet_hours", "time_zone"]))]
    reason: &'static str,
    until: Time,
    count: i64,
}

/// What decides when a contact gets the mail of a campaign.
#[derive(Debug, Clone, Copy)]
pub(super) struct ContactTimes {
    /// The quiet hours for its mail, and whether contacts' own time zones count.
    pub(super) quiet: Option<(QuietRule, bool)>,
    /// The time zone of contacts without one.
    pub(super) tenant_zone: Tz,
}

impl ContactTimes {
    /// The contacts that get their mail later than others, by reason and time. `zones`: how many there are of each time zone.
    pub(super) fn waiting(
        &self,
        zones: &BTreeMap<Option<String>, i64>,
        schedule: &Schedule,
        now: DateTime<Utc>,
    ) -> Vec<WaitingContacts> {
        let start = schedule.due.unwrap_or(now);
        let mut counts: BTreeMap<(DateTime<Utc>, &str), i64> = BTreeMap::new();
        for (name, count) in zones {
            let own = zone_named(name.as_deref());
            let zone = own.unwrap_or(self.tenant_zone);
            let due = schedule.local.map_or(start, |local| due_in(local, zone, start));
            let quiet = self.quiet.and_then(|(rule, by_contact)| rule.until(own.filter(|_| by_contact), due));
            match quiet {
                Some(until) => *counts.entry((until, "quiet_hours")).or_default() += count,
                None if schedule.local.is_some() && due > now => {
                    *counts.entry((due, "time_zone")).or_default() += count
                }
                None => {}
            }
        }
        counts
            .into_iter()
            .map(|((until, reason), count)| WaitingContacts { reason, until: until.into(), count })
            .collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::omitted(None, Ok(None))]
    #[case::ahead(Some("2026-03-01T12:00:01Z"), Ok(Some("2026-03-01T12:00:01Z")))]
    #[case::in_a_zone(Some("2026-03-01T14:30:00+02:00"), Ok(Some("2026-03-01T12:30:00Z")))]
    #[case::just_past(Some("2026-03-01T11:55:00Z"), Ok(None))]
    #[case::past(Some("2026-03-01T11:54:59Z"), Err("in_the_past"))]
    #[case::a_year(Some("2027-03-01T12:00:00Z"), Ok(Some("2027-03-01T12:00:00Z")))]
    #[case::too_far(Some("2027-03-03T12:00:00Z"), Err("too_far_ahead"))]
    #[case::no_zone(Some("2026-03-01T12:30:00"), Err("invalid"))]
    #[case::no_time(Some("tomorrow"), Err("invalid"))]
    fn a_launch_is_scheduled_within_a_year(#[case] text: Option<&str>, #[case] expected: Result<Option<&str>, &str>) {
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        let found = due_at(text, now);
        let expected = expected.map(|at| at.map(|at| at.parse::<DateTime<Utc>>().unwrap()));
        assert_eq!(found.map_err(|error| error.fields[0].code.to_string()), expected.map_err(str::to_owned));
    }

    #[test]
    fn contacts_wait_for_their_time_and_for_the_end_of_the_night() {
        let now: DateTime<Utc> = "2026-07-01T10:00:00Z".parse().unwrap();
        let zones: BTreeMap<Option<String>, i64> =
            [(None, 1), (Some("America/New_York".to_owned()), 2), (Some("Asia/Tokyo".to_owned()), 4)].into();
        let times = ContactTimes { quiet: None, tenant_zone: Tz::UTC };
        let local = |text: &str| Schedule { due: None, local: Some(text.parse().unwrap()) };
        let until = |reason, at: &str, count| WaitingContacts {
            reason,
            until: Time::from(at.parse::<DateTime<Utc>>().unwrap()),
            count,
        };
        assert_eq!(times.waiting(&zones, &Schedule { due: None, local: None }, now), []);
        // In New York it is six in the morning, in Tokyo seven in the evening, and half past nine was half an hour ago where the tenant is.
        let expected = [until("time_zone", "2026-07-01T13:30:00Z", 2), until("time_zone", "2026-07-02T00:30:00Z", 4)];
        assert_eq!(times.waiting(&zones, &local("2026-07-01T09:30:00"), now), expected);
    }
}
