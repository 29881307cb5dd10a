//! Facts about mail of months that the ledger does not keep any more. There is no send for a fact, but what the fact means for the
//! recipient still counts.

use chrono::{DateTime, NaiveDate, Utc};
use schemas::{Address, SignalKind};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    facts,
    opt_out::{self, OptOut},
    people::{self, Person},
    suppressions::{self, NewSuppression},
};

/// The recipient of a mail whose month the ledger does not keep any more.
#[derive(Debug, Clone)]
pub enum PastRecipient {
    /// The contact, as a token of the engine names it.
    Contact(Uuid),
    /// The address, as the provider of the tenant names it.
    Address(Address),
    /// The contact with this address, if there is one: as the provider names it where it names no mail. Other systems may send by the same
    /// account.
    ContactAt(Address),
}

/// Those of these months that the ledger does not keep any more.
pub async fn dropped_months(db: &mut PgConnection, months: &[NaiveDate]) -> sqlx::Result<Vec<NaiveDate>> {
    sqlx::query_scalar!("select month from dropped_months where month = any ($1)", months).fetch_all(db).await
}

/// True if a fact suppresses the recipient of its mail.
#[must_use]
pub fn suppresses(kind: &SignalKind) -> bool {
    facts::suppression_of(kind).is_some()
}

/// Applies a fact about a mail whose month the ledger does not keep any more to its recipient: an opt-out, a complaint and a hard bounce
/// suppress the address as they do with the send, and an opt-out is a notice for products. Other facts change nothing. Harmless
/// to repeat. Takes effect when the caller commits.
///
/// The caller has proof that mail of the tenant went to this recipient: a token of the engine, or an event that the tenant's own provider
/// has signed. It applies one fact in a transaction: contacts are locked in id order, and this locks one.
///
/// `at`: when it happened, for an event that may arrive late: it does not undo a newer opt-in. `None`: now, by the clock of Postgres, which
/// sets the times of opt-ins. An opt-out of now is newer than any of them.
pub async fn apply_to_past_recipient(
    db: &mut PgConnection,
    tenant: Uuid,
    recipient: &PastRecipient,
    kind: &SignalKind,
    at: Option<DateTime<Utc>>,
) -> sqlx::Result<OptOut> {
    let Some((reason, source)) = facts::suppression_of(kind) else { return Ok(OptOut::UnknownSend) };
    let person = lock_recipient(&mut *db, tenant, recipient).await?;
    let address = match (&person, recipient) {
        (Some(person), _) => person.contact.address.clone(),
        (None, PastRecipient::Address(address)) => address.as_str().to_owned(),
        (None, PastRecipient::Contact(_) | PastRecipient::ContactAt(_)) => return Ok(OptOut::UnknownSend),
    };
    let (SignalKind::Unsubscribed { method }, Some(person)) = (kind, &person) else {
        let written = suppressions::suppress(db, vec![NewSuppression::new(tenant, address, reason, source)]).await?;
        let is_new = written.iter().any(|suppressed| !suppressed.already_existed);
        return Ok(if is_new { OptOut::Recorded } else { OptOut::Already });
    };
    if at.is_some_and(|at| person.has_opted_in_since(at)) {
        return Ok(OptOut::Already);
    }
    let outcome = opt_out::leave(&mut *db, person, None).await?;
    if outcome == OptOut::Recorded {
        sqlx::query!(
            "insert into notices (tenant_id, id, type, contact_id, occurred_at, data)
             values ($1, $2, 'email.unsubscribed', $3, coalesce($4::timestamptz, now()),
                     jsonb_build_object('unsubscribe', jsonb_build_object('method', $5::text, 'scope', 'marketing')))",
            tenant,
            schemas::new_id(),
            person.contact.id,
            at,
            method,
        )
        .execute(db)
        .await?;
    }
    Ok(outcome)
}

/// Locks the recipient, if there is one.
async fn lock_recipient(
    db: &mut PgConnection,
    tenant: Uuid,
    recipient: &PastRecipient,
) -> sqlx::Result<Option<Person>> {
    let contact = match recipient {
        PastRecipient::Contact(contact) => Some(*contact),
        PastRecipient::Address(address) | PastRecipient::ContactAt(address) => {
            sqlx::query_scalar!(
                "select id from contacts where tenant_id = $1 and address = $2",
                tenant,
                address.as_str()
            )
            .fetch_optional(&mut *db)
            .await?
        }
    };
    let Some(contact) = contact else { return Ok(None) };
    people::lock_person(db, tenant, contact).await
}
