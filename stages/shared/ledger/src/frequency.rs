//! The frequency cap: at most so many marketing mails of a tenant's campaigns and sequences to a contact within so many times 24 hours.
//!
//! A mail counts from its fence on, unless certainly nothing of it left: one that was refused, or is to be tried again, does not count.
//! One with an unknown outcome does. What counts is written to `capped_sends` in the commit of the fence, for tenants with a cap only: a
//! cap counts mail that is fenced while it is set. It is exact over any number of processes, because a fence of such mail locks the tenant
//! before it counts, as a send quota does. Other mail neither counts nor waits.
//!
//! The gate decides ([`crate::gate::decide_send`]): a campaign skips a contact without room, as `frequency_cap`. A sequence takes its
//! step when there is room, and no other mail of a sequence is on its way that would take it; a mail that another one overtakes on its way
//! to the fence waits there for room, however long that takes.
//!
//! Room goes to the more urgent campaign. While running campaigns that are more urgent owe a contact as many mails as the cap leaves it, that
//! room is spoken for ([`is_spoken_for`]): a less urgent mail is put off by [`YIELD_WAIT`], and decided again. The order is that of
//! [`Urgency`] alone, and equals do not wait for each other, so no two campaigns ever do. A sequence is as urgent as a `normal` campaign,
//! and no campaign waits for one: its mail is decided within moments, or has to wait itself. The wait ends with what
//! the SQL functions `campaigns_first_under_cap` and `is_owed_soon` no longer name: the more urgent mail is decided, or put off by more than
//! an hour, alone or with its batch; or its batch is held for the winner of a test; or its campaign is paused, cancelled or over, its window closed, or its launch three days ago.

use std::collections::HashMap;

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

/// Most mails of a cap.
pub const MESSAGES_MAX: i32 = 1_000;
/// Most days of a cap. What counted is kept for as long.
pub const DAYS_MAX: i32 = 90;
/// How long a mail is put off whose room is spoken for.
pub const YIELD_WAIT: TimeDelta = TimeDelta::minutes(5);

/// A tenant's cap, and what a contact has used of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapUsage {
    /// Mails that the cap allows.
    pub messages: i32,
    /// Mails that count now.
    pub used: i64,
    /// When there is room again; `None`: there is.
    pub opens_at: Option<DateTime<Utc>>,
}

impl CapUsage {
    /// Mails that the cap leaves.
    #[must_use]
    pub fn left(&self) -> i64 {
        (i64::from(self.messages) - self.used).max(0)
    }
}

/// What a contact has used of its tenant's cap. `None`: the tenant has none. Works in either role.
pub async fn load_usage(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<Option<CapUsage>> {
    sqlx::query_file_as!(CapUsage, "queries/gate/cap_usage.sql", tenant, contact).fetch_optional(db).await
}

schemas::named_enum! {
    /// The urgency of a campaign, the most urgent first.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Urgency {
        /// Before all others.
        Emergency = "emergency",
        /// Before the important ones.
        Urgent = "urgent",
        /// Before the normal ones.
        Important = "important",
        /// Unless stated otherwise.
        Normal = "normal",
        /// After all others.
        Low = "low",
    }
}

impl Urgency {
    /// That of the mail of a sequence.
    pub const SEQUENCE: Self = Self::Normal;

    /// From a campaign's column; `None`: the mail is of a sequence.
    #[must_use]
    pub fn from_column(text: Option<&str>) -> Self {
        text.and_then(Self::parse).unwrap_or(Self::SEQUENCE)
    }

    /// The words of those that are more urgent.
    fn words_before(self) -> Vec<&'static str> {
        Self::ALL.iter().filter(|urgency| **urgency < self).map(|urgency| urgency.as_str()).collect()
    }
}

/// The running campaigns of a tenant whose mail goes before mail of this urgency under the frequency cap, and their months.
pub(crate) async fn campaigns_before(
    db: &mut PgConnection,
    tenant: Uuid,
    urgency: Urgency,
) -> sqlx::Result<(Vec<Uuid>, Vec<NaiveDate>)> {
    let rows = sqlx::query!(
        r#"select id as "id!", month as "month!" from campaigns_first_under_cap($1, $2) where month is not null"#,
        tenant,
        &urgency.words_before() as &[&str]
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.month)).unzip())
}

/// True if a contact has room left, and mail that is more urgent needs all of it.
#[must_use]
pub fn is_spoken_for(left: Option<i64>, more_urgent: i64) -> bool {
    left.is_some_and(|left| left > 0 && left <= more_urgent)
}

/// A mail under the frequency cap that is to be decided.
#[derive(Debug, Clone, Copy)]
pub struct CappedMail {
    /// Whose cap it is.
    pub tenant_id: Uuid,
    /// The recipient.
    pub contact_id: Uuid,
    /// How urgent the mail is.
    pub urgency: Urgency,
    /// Mails that the cap leaves the recipient; `None`: the tenant has no cap.
    pub cap_left: Option<i64>,
}

/// The mails that running campaigns owe contacts of capped tenants.
#[derive(Debug, Default)]
pub struct OwedMail {
    by_contact: HashMap<Uuid, HashMap<Uuid, Urgency>>,
}

impl OwedMail {
    /// Reads what is more urgent than these mails. Asks nothing where the cap leaves nothing anyway, or does not exist. Works in either role.
    pub async fn load(db: &mut PgConnection, mails: impl IntoIterator<Item = CappedMail>) -> sqlx::Result<Self> {
        let asked: Vec<CappedMail> =
            mails.into_iter().filter(|mail| mail.cap_left.is_some_and(|left| left > 0)).collect();
        let names = asked.iter().map(|mail| mail.urgency).max().map(Urgency::words_before).unwrap_or_default();
        let mut owed = Self::default();
        if names.is_empty() {
            return Ok(owed);
        }
        let (tenants, contacts): (Vec<Uuid>, Vec<Uuid>) =
            asked.iter().map(|mail| (mail.tenant_id, mail.contact_id)).unzip();
        let rows = sqlx::query_file!("queries/gate/owed_by_urgency.sql", &tenants, &contacts, &names as &[&str])
            .fetch_all(db)
            .await?;
        for row in rows {
            let urgency = Urgency::from_column(Some(&row.urgency));
            owed.by_contact.entry(row.contact_id).or_default().insert(row.send_id, urgency);
        }
        Ok(owed)
    }

    /// How many mails a contact is owed that are more urgent than this.
    #[must_use]
    pub fn more_urgent(&self, contact: Uuid, than: Urgency) -> i64 {
        let owed = self.by_contact.get(&contact).map_or(0, |owed| owed.values().filter(|of| **of < than).count());
        i64::try_from(owed).unwrap_or(i64::MAX)
    }

    /// A mail is decided, and not owed any more.
    pub(crate) fn decided(&mut self, contact: Uuid, send: Uuid) {
        if let Some(owed) = self.by_contact.get_mut(&contact) {
            owed.remove(&send);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::no_cap(None, 5, false)]
    #[case::no_room(Some(0), 1, false)]
    #[case::nothing_owed(Some(1), 0, false)]
    #[case::room_for_both(Some(2), 1, false)]
    #[case::the_last_room(Some(1), 1, true)]
    #[case::all_rooms(Some(2), 3, true)]
    fn room_is_spoken_for_that_more_urgent_mail_needs(
        #[case] left: Option<i64>,
        #[case] more_urgent: i64,
        #[case] expected: bool,
    ) {
        assert_eq!(is_spoken_for(left, more_urgent), expected);
    }

    #[test]
    fn mail_yields_to_more_urgent_mail_only() {
        let contact = Uuid::max();
        let sends: Vec<Uuid> = (1..=5).map(Uuid::from_u128).collect();
        let by_send = sends.iter().copied().zip(Urgency::ALL.iter().copied()).collect();
        let mut owed = OwedMail { by_contact: HashMap::from([(contact, by_send)]) };
        for (more, urgency) in (0..).zip(Urgency::ALL) {
            assert_eq!(owed.more_urgent(contact, *urgency), more);
        }
        assert_eq!(Urgency::from_column(None), Urgency::Normal);
        owed.decided(contact, sends[0]);
        assert_eq!((owed.more_urgent(contact, Urgency::Normal), owed.more_urgent(Uuid::nil(), Urgency::Low)), (2, 0));
    }
}
