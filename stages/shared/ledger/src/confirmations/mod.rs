//! Double opt-in: contacts that are asked by mail to confirm their consent.
//!
//! [`request`] notes whom to ask, [`SendConfirmations`] mails them, and [`confirm`] takes the answer of the page. One address gets at most
//! `confirmation-mails-max` mails, none within `confirmation-gap-hours` of another, and a tenant sends `confirmation-rate-per-hour`: a
//! sign-up form that anybody fills is no way to flood a mailbox.

mod mail;
mod sweep;

use chrono::{DateTime, TimeDelta, Utc};
use runtime::{MasterKeys, column};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::preferences::ConsentEvidence;

pub use sweep::SendConfirmations;

/// Contacts whose earlier mails are looked up at once.
const CONTACTS_AT_ONCE: usize = 10_000;

/// How often and how long contacts are asked to confirm their consent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Double opt-in")]
#[group(skip)]
pub struct ConfirmationSettings {
    /// Hours between two confirmation mails to one address, however often it signs up.
    #[arg(long, env = "POSTRIDER_CONFIRMATION_GAP_HOURS", default_value_t = Self::DEFAULT.confirmation_gap_hours, value_parser = clap::value_parser!(i32).range(1..=720))]
    pub confirmation_gap_hours: i32,
    /// Confirmation mails to one contact in all, with reminders and later sign-ups.
    #[arg(long, env = "POSTRIDER_CONFIRMATION_MAILS_MAX", default_value_t = Self::DEFAULT.confirmation_mails_max, value_parser = clap::value_parser!(i32).range(1..=100))]
    pub confirmation_mails_max: i32,
    /// Confirmation mails each tenant sends in an hour, of which imports get eight tenths. More wait.
    #[arg(long, env = "POSTRIDER_CONFIRMATION_RATE_PER_HOUR", default_value_t = Self::DEFAULT.confirmation_rate_per_hour, value_parser = clap::value_parser!(i64).range(1..))]
    pub confirmation_rate_per_hour: i64,
    /// Reminders after the first confirmation mail, unless `PATCH /v1/tenant` says otherwise for a tenant.
    #[arg(long, env = "POSTRIDER_CONFIRMATION_REMINDERS", default_value_t = Self::DEFAULT.confirmation_reminders, value_parser = clap::value_parser!(i32).range(0..=3))]
    pub confirmation_reminders: i32,
    /// Hours before a reminder, unless `PATCH /v1/tenant` says otherwise for a tenant.
    #[arg(long, env = "POSTRIDER_CONFIRMATION_REMINDER_HOURS", default_value_t = Self::DEFAULT.confirmation_reminder_hours, value_parser = clap::value_parser!(i32).range(1..=720))]
    pub confirmation_reminder_hours: i32,
    /// Days after the first mail before its link and those of its reminders expire, unless `PATCH /v1/tenant` says otherwise for a tenant.
    #[arg(long, env = "POSTRIDER_CONFIRMATION_DAYS", default_value_t = Self::DEFAULT.confirmation_days, value_parser = clap::value_parser!(i32).range(1..=90))]
    pub confirmation_days: i32,
}

impl ConfirmationSettings {
    const DEFAULT: Self = Self {
        confirmation_gap_hours: 12,
        confirmation_mails_max: 5,
        confirmation_rate_per_hour: 1_000,
        confirmation_reminders: 1,
        confirmation_reminder_hours: 72,
        confirmation_days: 14,
    };

    /// When the next mail may go to an address that got one at this time.
    #[must_use]
    pub fn next_mail(&self, last: DateTime<Utc>) -> DateTime<Utc> {
        last + TimeDelta::hours(i64::from(self.confirmation_gap_hours))
    }
}

impl Default for ConfirmationSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Asks those of the contacts to confirm whose consent is pending. A contact that was asked lately, or often enough, is not asked again, and
/// neither is a suppressed address. Bulk requests are mailed when no single one waits, and leave later ones a part of the hour. Answers which
/// contacts it asks. Takes effect when the caller commits. `keys`: mails to an address before its contact was erased and made anew count against
/// its limits.
pub async fn request(
    db: &mut PgConnection,
    tenant: Uuid,
    contacts: &[Uuid],
    is_bulk: bool,
    settings: &ConfirmationSettings,
    keys: &MasterKeys,
) -> sqlx::Result<Vec<Uuid>> {
    if contacts.is_empty() {
        return Ok(Vec::new());
    }
    let earlier = mails_before_erasure(&mut *db, tenant, contacts, keys).await?;
    sqlx::query_file_scalar!(
        "queries/confirmations/request.sql",
        tenant,
        contacts,
        settings.confirmation_gap_hours,
        settings.confirmation_mails_max,
        is_bulk,
        &column(&earlier, |earlier| earlier.contact_id),
        &column(&earlier, |earlier| earlier.mails),
        &column(&earlier, |earlier| earlier.last_mail_at) as &[Option<DateTime<Utc>>],
    )
    .fetch_all(db)
    .await
}

/// Mails that asked an address to confirm before its contact was erased.
#[derive(Debug)]
struct EarlierMails {
    /// The contact that has the address now.
    contact_id: Uuid,
    mails: i32,
    last_mail_at: Option<DateTime<Utc>>,
}

/// The mails to the addresses of those contacts that were not asked yet, from before an erasure.
async fn mails_before_erasure(
    db: &mut PgConnection,
    tenant: Uuid,
    contacts: &[Uuid],
    keys: &MasterKeys,
) -> sqlx::Result<Vec<EarlierMails>> {
    let mut found = Vec::new();
    for some in contacts.chunks(CONTACTS_AT_ONCE) {
        let unasked = sqlx::query!(
            "select c.id, c.address from contacts c
             where c.tenant_id = $1 and c.id = any ($2)
               and not exists (select from confirmations f where f.tenant_id = $1 and f.contact_id = c.id)",
            tenant,
            some,
        )
        .fetch_all(&mut *db)
        .await?;
        if unasked.is_empty() {
            continue;
        }
        let (ids, erased): (Vec<Uuid>, Vec<String>) = unasked
            .iter()
            .flat_map(|contact| keys.erased_addresses(tenant, &contact.address).map(|erased| (contact.id, erased)))
            .unzip();
        let earlier = sqlx::query_as!(
            EarlierMails,
            r#"select w.contact_id as "contact_id!", max(f.mails) as "mails!", max(f.last_mail_at) as last_mail_at
               from unnest($2::uuid[], $3::text[]) as w (contact_id, erased)
               join contacts c on c.tenant_id = $1 and c.address = w.erased
               join confirmations f on f.tenant_id = $1 and f.contact_id = c.id
               group by w.contact_id"#,
            tenant,
            &ids,
            &erased,
        );
        found.extend(earlier.fetch_all(&mut *db).await?);
    }
    Ok(found)
}

/// What became of a confirmation, for the page behind the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfirmationLink {
    /// The contact is asked for consent.
    Pending,
    /// The contact has confirmed, and is subscribed.
    Confirmed,
    /// The link confirms nothing: it has expired, the contact has left or was never asked, or the address is suppressed.
    Closed,
}

/// What the link of a contact leads to now, with the contact's address. `None`: there is no such contact.
pub async fn find_link(
    db: &mut PgConnection,
    tenant: Uuid,
    contact: Uuid,
) -> sqlx::Result<Option<(ConfirmationLink, String)>> {
    let row = sqlx::query!(
        r#"select g.address as "address!", g.marketing_status = 'subscribed' as "is_subscribed!",
                  g.may_be_asked as "may_be_asked!",
                  confirmation_state(f.state, f.expires_at, g.marketing_status) as "state?"
           from recipient_eligibility($1, array[$2::uuid]) g
           left join confirmations f on f.tenant_id = $1 and f.contact_id = $2"#,
        tenant,
        contact,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|row| {
        let link = match row.state.as_deref() {
            Some("pending") if row.may_be_asked => ConfirmationLink::Pending,
            Some("confirmed") if row.is_subscribed => ConfirmationLink::Confirmed,
            _ => ConfirmationLink::Closed,
        };
        (link, row.address)
    }))
}

/// Confirms a contact's consent by the link of this send: the contact is subscribed, with the proof, and the event
/// `contact.confirmed`. `text` is what the page showed. Harmless to repeat. It brings back no contact that left, was suppressed or erased.
/// `None`: there is no such contact. Takes effect when the caller commits.
pub async fn confirm(
    db: &mut PgConnection,
    tenant: Uuid,
    contact: Uuid,
    send_id: Uuid,
    evidence: &ConsentEvidence,
    text: &str,
) -> sqlx::Result<Option<ConfirmationLink>> {
    // Before what it decides by is read: a suppression of the address locks the contact, too.
    sqlx::query!("select from contacts where tenant_id = $1 and id = $2 for no key update", tenant, contact)
        .fetch_optional(&mut *db)
        .await?;
    let proof = evidence.with("text", text);
    let confirmed = sqlx::query_file_scalar!("queries/confirmations/confirm.sql", tenant, contact, proof, send_id)
        .fetch_one(&mut *db);
    if confirmed.await? {
        return Ok(Some(ConfirmationLink::Confirmed));
    }
    Ok(find_link(db, tenant, contact).await?.map(|(link, _)| link))
}

/// Ends what a contact that is merged away was asked. Answers whether it was asked: the contact that is left may then be.
pub async fn withdraw(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<bool> {
    let withdrawn = sqlx::query!(
        "update confirmations set state = 'withdrawn', due_at = null
         where tenant_id = $1 and contact_id = $2 and state = 'pending'",
        tenant,
        contact,
    );
    Ok(withdrawn.execute(db).await?.rows_affected() > 0)
}

/// Deletes what is held of a contact that is erased, but for how many mails its address got, and when: an erasure is no way to get more of
/// them. `erased` stands for the address; the first contact that was erased with it keeps the numbers.
pub async fn erase(db: &mut PgConnection, tenant: Uuid, contact: Uuid, erased: &str) -> sqlx::Result<()> {
    let held = sqlx::query!(
        "delete from confirmations where tenant_id = $1 and contact_id = $2 returning mails, last_mail_at",
        tenant,
        contact,
    );
    let Some(held) = held.fetch_optional(&mut *db).await?.filter(|held| held.mails > 0) else { return Ok(()) };
    sqlx::query!(
        "insert into confirmations (tenant_id, contact_id, state, mails, last_mail_at)
         select c.tenant_id, c.id, 'withdrawn', $3::integer, $4::timestamptz from contacts c where c.tenant_id = $1 and c.address = $2
         on conflict (tenant_id, contact_id) do update
         set mails = greatest(confirmations.mails, excluded.mails),
             last_mail_at = greatest(confirmations.last_mail_at, excluded.last_mail_at)",
        tenant,
        erased,
        held.mails,
        held.last_mail_at,
    )
    .execute(db)
    .await
    .map(drop)
}
