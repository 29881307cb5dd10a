//! Quiet hours: times of the day at which a tenant's mail waits.

use std::collections::BTreeSet;

use chrono::NaiveTime;
use schemars::JsonSchema;
use schemas::Classification;
use serde::{Deserialize, Serialize};

use crate::pipeline::Faults;

/// A time of the day, as callers write it.
const TIME_PATTERN: &str = "^([01][0-9]|2[0-3]):[0-5][0-9]$";
/// The format of [`TIME_PATTERN`], for chrono.
const TIME_FORMAT: &str = "%H:%M";

/// The clock that quiet hours go by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuietZone {
    /// The contact's time zone; the tenant's for a contact without one.
    #[default]
    Recipient,
    /// The tenant's.
    Tenant,
}

/// Times of the day at which mail waits until they are over: from one until another, over midnight if the second is the earlier one.
/// One-off messages and tests of campaigns never wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TenantQuietHours {
    /// As 21:00.
    from: String,
    /// As 08:00: at this time mail leaves again.
    to: String,
    pub(super) time_zone: QuietZone,
    /// The mail that waits.
    pub(super) applies_to: Vec<Classification>,
}

/// Quiet hours that are to be set.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewQuietHours {
    /// As 21:00.
    #[schemars(regex(pattern = TIME_PATTERN))]
    from: String,
    /// As 08:00: at this time mail leaves again. If it is the earlier one, it is that of the next day.
    #[schemars(regex(pattern = TIME_PATTERN))]
    to: String,
    #[serde(default, deserialize_with = "crate::pipeline::or_default")]
    #[schemars(with = "Option<QuietZone>")]
    time_zone: QuietZone,
    /// The mail that waits: marketing, if nothing is said.
    #[schemars(length(min = 1, max = 3), extend("uniqueItems" = true))]
    applies_to: Option<Vec<Classification>>,
}

impl From<NewQuietHours> for TenantQuietHours {
    fn from(NewQuietHours { from, to, time_zone, applies_to }: NewQuietHours) -> Self {
        let applies_to = applies_to.unwrap_or_else(|| vec![Classification::Marketing]);
        Self { from, to, time_zone, applies_to }
    }
}

impl TenantQuietHours {
    /// From the tenant's columns.
    pub(super) fn from_columns(from: NaiveTime, to: NaiveTime, by_contact: bool, applies_to: &[String]) -> Self {
        let time = |time: NaiveTime| time.format(TIME_FORMAT).to_string();
        let time_zone = if by_contact { QuietZone::Recipient } else { QuietZone::Tenant };
        let named = |purpose: &&Classification| applies_to.iter().any(|word| word == purpose.as_str());
        let applies_to = Classification::ALL.iter().filter(named).copied().collect();
        Self { from: time(from), to: time(to), time_zone, applies_to }
    }

    /// When they begin and end.
    pub(super) fn times(&self) -> (Option<NaiveTime>, Option<NaiveTime>) {
        let time = |text: &str| NaiveTime::parse_from_str(text, TIME_FORMAT).ok().filter(|_| text.len() == 5);
        (time(&self.from), time(&self.to))
    }

    /// Names what is wrong.
    pub(super) fn check(&self, faults: &mut Faults) {
        let (from, to) = self.times();
        for (path, time) in [("quiet_hours.from", from), ("quiet_hours.to", to)] {
            faults.require(time.is_some(), path, "invalid", "must be a time of the day such as 21:00");
        }
        faults.require(from.is_none() || from != to, "quiet_hours.to", "invalid", "must not be the time of from");
        let words: BTreeSet<Classification> = self.applies_to.iter().copied().collect();
        faults.require(!words.is_empty(), "quiet_hours.applies_to", "required", "must name some mail");
        let is_set = words.len() == self.applies_to.len();
        faults.require(is_set, "quiet_hours.applies_to", "duplicate", "must name each once");
    }
}
