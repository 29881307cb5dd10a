//! A tenant's quiet hours, as they hold for a batch.

use chrono::{DateTime, NaiveTime, Utc};
use chrono_tz::Tz;
use schemas::{Classification, MessageKind, delay, quiet::QuietHours};
use sqlx::PgConnection;
use uuid::Uuid;

/// The quiet hours that hold for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuietRule {
    /// The hours.
    pub hours: QuietHours,
    /// The tenant's time zone.
    pub zone: Tz,
}

impl QuietRule {
    /// The quiet hours for mail of this kind, from the tenant's columns `quiet_from`, `quiet_to`, `quiet_for` and `timezone`. One-off messages
    /// and tests of campaigns have none: a person sends them now.
    #[must_use]
    pub fn of(
        (from, to): (Option<NaiveTime>, Option<NaiveTime>),
        classifications: Option<&[String]>,
        timezone: &str,
        (kind, classification): (MessageKind, Classification),
    ) -> Option<Self> {
        let hours = QuietHours { from: from?, to: to? };
        let holds = classifications?.iter().any(|word| word == classification.as_str());
        let is_direct = matches!(kind, MessageKind::OneOff | MessageKind::Test);
        (holds && !is_direct).then(|| Self { hours, zone: delay::zone(None, timezone) })
    }

    /// Until when mail to a contact is put off at this time. `contact`: the contact's own zone, if the tenant goes by it.
    #[must_use]
    pub fn until(&self, contact: Option<Tz>, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.hours.until(at, contact.unwrap_or(self.zone))
    }
}

/// A time zone by its name; `None` for a name that is none.
#[must_use]
pub fn zone_named(name: Option<&str>) -> Option<Tz> {
    name.and_then(|name| name.parse().ok())
}

/// The quiet hours for mail of this kind, and whether contacts' own time zones count. Works in either role.
pub async fn load_rule(
    db: &mut PgConnection,
    tenant: Uuid,
    mail: (MessageKind, Classification),
) -> sqlx::Result<Option<(QuietRule, bool)>> {
    let row = sqlx::query!(
        "select quiet_from, quiet_to, quiet_for, quiet_by_contact, timezone from tenants where id = $1",
        tenant
    )
    .fetch_one(db)
    .await?;
    let by_contact = row.quiet_by_contact.unwrap_or(false);
    let rule = QuietRule::of((row.quiet_from, row.quiet_to), row.quiet_for.as_deref(), &row.timezone, mail);
    Ok(rule.map(|rule| (rule, by_contact)))
}
