//! When a campaign is sent: now, at a time, or at a time of the day in each recipient's time zone.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use ledger::{
    audience::WaitFacts,
    gate::{Hold, QuietRule, RecipientEligibility, decide_hold, zone_named},
    local_time::{due_in, first_anywhere, last_anywhere},
};
use schemars::JsonSchema;
use schemas::{Classification, MessageKind};
use serde::Serialize;

use super::rows::{CampaignRow, LOCAL_TIME_FORMAT, LOCAL_TIME_LEN};
use crate::pipeline::{Faults, error::ApiError, page::Time, types::counts, validate::PAST_MAX};

/// How far ahead a time may be.
const AHEAD_MAX: TimeDelta = TimeDelta::days(366);
/// What a time beyond [`AHEAD_MAX`] is refused with.
const TOO_FAR: &str = "is more than a year ahead";

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
        if row.ab_test.is_some() {
            return fault("not_allowed", "a campaign with an A/B test goes out at one time");
        }
        let Some(local) = local_time(text) else {
            return fault("invalid", "must be an existing time without a zone, as 2026-03-01T09:00:00");
        };
        if last_anywhere(local) < now - PAST_MAX {
            return fault("in_the_past", "has passed in every time zone");
        }
        if first_anywhere(local) > now + AHEAD_MAX {
            return fault("too_far_ahead", TOO_FAR);
        }
        Ok(Schedule { due: Some(first_anywhere(local)).filter(|at| *at > now), local: Some(local) })
    }
}

/// Reads a time of the day. Years have four digits: sums of times stay far from their limits. A leap second is refused: it would be shown as
/// it was given, and due as the second after it.
fn local_time(text: &str) -> Option<NaiveDateTime> {
    let is_taken = text.len() == LOCAL_TIME_LEN && !text.ends_with(":60");
    NaiveDateTime::parse_from_str(text, LOCAL_TIME_FORMAT).ok().filter(|_| is_taken)
}

/// When to send: `None` is now. A time that has just passed is now, too.
fn due_at(text: Option<&str>, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, ApiError> {
    let mut faults = Faults::default();
    let at = text.and_then(|text| faults.due("schedule_for", text, AHEAD_MAX, TOO_FAR, now));
    faults.finish().map(|()| at.filter(|at| *at > now))
}

/// Contacts whose mail waits, each with what it waits for first.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(transform = counts)]
pub(super) struct WaitingContacts {
    /// `time_zone`: for the time of the day where they are. `quiet_hours`: for the end of the tenant's quiet hours. `frequency_cap`: the
    /// frequency cap leaves them no more mails than more urgent campaigns owe them, as it is at the moment of the answer.
    #[schemars(extend("enum" = ["frequency_cap", "quiet_hours", "time_zone"]))]
    reason: &'static str,
    /// When the mail is due; for `frequency_cap`, when it is decided again.
    until: Time,
    count: i64,
}

/// What decides when a contact gets the mail of a campaign.
#[derive(Debug, Clone, Copy)]
pub(super) struct ContactTimes {
    /// Marketing or not.
    pub(super) classification: Classification,
    /// The quiet hours for its mail, and whether contacts' own time zones count.
    pub(super) quiet: Option<(QuietRule, bool)>,
    /// The time zone of contacts without one.
    pub(super) tenant_zone: Tz,
}

impl ContactTimes {
    /// The contacts that get their mail later than others, by reason and time. `mailed`: how many there are, by what decides that.
    pub(super) fn waiting(
        &self,
        mailed: &BTreeMap<WaitFacts, i64>,
        schedule: &Schedule,
        now: DateTime<Utc>,
    ) -> Vec<WaitingContacts> {
        let mut counts: BTreeMap<(DateTime<Utc>, &str), i64> = BTreeMap::new();
        for (facts, count) in mailed {
            if let (until, Some(reason)) = self.leaves(facts, schedule, now) {
                *counts.entry((until, reason)).or_default() += count;
            }
        }
        counts
            .into_iter()
            .map(|((until, reason), count)| WaitingContacts { reason, until: until.into(), count })
            .collect()
    }

    /// When the mail of a contact may leave, and what it waits for until then. The gate decides ([`decide_hold`]), about the moment at which
    /// the mail is due.
    pub(super) fn leaves(
        &self,
        facts: &WaitFacts,
        schedule: &Schedule,
        now: DateTime<Utc>,
    ) -> (DateTime<Utc>, Option<&'static str>) {
        let start = schedule.due.unwrap_or(now);
        let own = zone_named(facts.timezone.as_deref());
        let due = schedule.local.map_or(start, |local| due_in(local, own.unwrap_or(self.tenant_zone), start));
        match self.hold(facts, own, due) {
            Some(hold @ Hold::QuietHours { until }) => (until, Some(hold.as_str())),
            _ if schedule.local.is_some() && due > now => (due, Some("time_zone")),
            Some(hold @ Hold::MoreUrgent { until }) => (until, Some(hold.as_str())),
            // The mail of a campaign does not wait for a full cap.
            Some(Hold::FrequencyCap) | None => (due, None),
        }
    }

    fn hold(&self, facts: &WaitFacts, own: Option<Tz>, due: DateTime<Utc>) -> Option<Hold> {
        let by_contact = self.quiet.is_some_and(|(_, by_contact)| by_contact);
        let zone = own.filter(|_| by_contact);
        let contact = RecipientEligibility { cap_left: facts.cap_left, zone, ..RecipientEligibility::CLEAN };
        let mail = (MessageKind::Campaign, self.classification);
        decide_hold(&contact, self.quiet.map(|(rule, _)| rule), mail, facts.more_urgent, due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use schemas::quiet::QuietHours;

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
    #[case::leap_second(Some("2026-03-01T12:30:60Z"), Err("invalid"))]
    fn a_launch_is_scheduled_within_a_year(#[case] text: Option<&str>, #[case] expected: Result<Option<&str>, &str>) {
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        let found = due_at(text, now);
        let expected = expected.map(|at| at.map(|at| at.parse::<DateTime<Utc>>().unwrap()));
        assert_eq!(found.map_err(|error| error.fields[0].code.to_string()), expected.map_err(str::to_owned));
    }

    #[rstest]
    #[case::a_time("2026-11-30T18:10:59", true)]
    #[case::leap_second("2026-11-30T18:10:60", false)]
    #[case::no_such_day("2026-02-29T18:10:00", false)]
    #[case::five_digits("12026-11-30T18:10:00", false)]
    #[case::in_a_zone("2026-11-30T18:10:00Z", false)]
    fn a_time_of_the_day_is_one_of_the_calendar(#[case] text: &str, #[case] is_one: bool) {
        assert_eq!(local_time(text).is_some(), is_one);
    }

    const NEW_YORK: Option<&str> = Some("America/New_York");
    const TOKYO: Option<&str> = Some("Asia/Tokyo");

    /// What decides how long mail waits to a contact of this zone, with so much room and so many mails before it.
    fn facts(zone: Option<&str>, cap_left: Option<i64>, more_urgent: i64) -> WaitFacts {
        WaitFacts { part: 0, timezone: zone.map(str::to_owned), cap_left, more_urgent }
    }

    fn until(reason: &'static str, at: &str, count: i64) -> WaitingContacts {
        WaitingContacts { reason, until: Time::from(at.parse::<DateTime<Utc>>().unwrap()), count }
    }

    #[test]
    fn contacts_wait_for_their_time_and_for_the_end_of_the_night() {
        let now: DateTime<Utc> = "2026-07-01T10:00:00Z".parse().unwrap();
        let mailed = [(facts(None, None, 0), 1), (facts(NEW_YORK, None, 0), 2), (facts(TOKYO, None, 0), 4)].into();
        let times = ContactTimes { classification: Classification::Marketing, quiet: None, tenant_zone: Tz::UTC };
        let local = |text: &str| Schedule { due: None, local: Some(text.parse().unwrap()) };
        assert_eq!(times.waiting(&mailed, &Schedule { due: None, local: None }, now), []);
        // In New York it is six in the morning, in Tokyo seven in the evening, and half past nine was half an hour ago where the tenant is.
        let expected = [until("time_zone", "2026-07-01T13:30:00Z", 2), until("time_zone", "2026-07-02T00:30:00Z", 4)];
        assert_eq!(times.waiting(&mailed, &local("2026-07-01T09:30:00"), now), expected);
    }

    #[rstest]
    #[case::room_is_spoken_for(NEW_YORK, (Some(1), 1), None, Some(("frequency_cap", "2026-07-01T12:05:00Z")))]
    #[case::room_for_both(NEW_YORK, (Some(2), 1), None, None)]
    #[case::no_cap(NEW_YORK, (None, 0), None, None)]
    #[case::asleep_first(TOKYO, (Some(1), 1), None, Some(("quiet_hours", "2026-07-01T23:00:00Z")))]
    #[case::its_time_first(NEW_YORK, (Some(1), 1), Some("2026-07-01T09:00:00"), Some(("time_zone", "2026-07-01T13:00:00Z")))]
    fn each_contact_is_counted_with_what_its_mail_waits_for_first(
        #[case] zone: Option<&str>,
        #[case] (left, more_urgent): (Option<i64>, i64),
        #[case] local: Option<&str>,
        #[case] expected: Option<(&'static str, &str)>,
    ) {
        let now: DateTime<Utc> = "2026-07-01T12:00:00Z".parse().unwrap();
        let hours = QuietHours { from: "21:00:00".parse().unwrap(), to: "08:00:00".parse().unwrap() };
        let times = ContactTimes {
            classification: Classification::Marketing,
            quiet: Some((QuietRule { hours, zone: Tz::UTC }, true)),
            tenant_zone: Tz::UTC,
        };
        let mailed = [(facts(zone, left, more_urgent), 3)].into();
        let schedule = Schedule { due: None, local: local.map(|text| text.parse().unwrap()) };
        let expected: Vec<_> = expected.map(|(reason, at)| until(reason, at, 3)).into_iter().collect();
        assert_eq!(times.waiting(&mailed, &schedule, now), expected);
        // Nothing that is no marketing waits for room.
        let notice = ContactTimes { classification: Classification::Operational, quiet: None, ..times };
        assert!(notice.waiting(&mailed, &schedule, now).iter().all(|waiting| waiting.reason != "frequency_cap"));
    }
}
