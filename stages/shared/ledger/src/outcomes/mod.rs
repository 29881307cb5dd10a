//! Outcomes: business results that a product reports, recorded once for each event of its source. The attribution stage credits them to mail.

mod amount;
pub mod contacts;

use chrono::{DateTime, SubsecRound, Utc};
use schemas::{Address, OutcomeType, new_id};
use sqlx::PgConnection;
use uuid::Uuid;

use self::contacts::ContactKeys;
pub use amount::{PREMIUM_MAX, PREMIUM_UNITS, Premium, VALUE_CENTS_MAX};

/// A whole outcome, in millionths: what its credits' shares add up to.
pub const SHARE_WHOLE: i64 = 1_000_000;

/// An outcome that may be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOutcome {
    /// The address, canonical.
    pub contact_email: Option<Address>,
    /// The number.
    pub dot_number: Option<i64>,
    /// Its type.
    pub outcome_type: OutcomeType,
    /// The premium.
    pub premium: Option<Premium>,
    /// The value.
    pub value_cents: Option<i64>,
    /// When it happened; `None`: now, or, in a later report, the time of the first report.
    pub occurred_at: Option<DateTime<Utc>>,
    /// The product's own id of the event.
    pub source_event_id: Option<String>,
}

/// A recorded outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedOutcome {
    /// Its id: the same for every report.
    pub outcome_id: Uuid,
    /// True if a contact matches.
    pub contact_matched: bool,
    /// True if this report changed the outcome. Only then it is credited again.
    pub changed: bool,
}

/// Why an outcome is not recorded.
#[derive(Debug, thiserror::Error)]
pub enum OutcomeRefusal {
    /// Address and number lead to different contacts.
    #[error("contact_email and dot_number are different contacts")]
    ContactConflict,
    /// Postgres refused or was away.
    #[error("the ledger")]
    Ledger(#[from] sqlx::Error),
}

/// Records an outcome of `source_system`, or changes it by a later report. The attribution stage credits it.
///
/// # Errors
/// See [`OutcomeRefusal`].
pub async fn record(
    db: &mut PgConnection,
    tenant: Uuid,
    source_system: &str,
    new: &NewOutcome,
) -> Result<RecordedOutcome, OutcomeRefusal> {
    let email = new.contact_email.as_ref().map(Address::as_str);
    let found = contacts::find(&mut *db, &[ContactKeys { tenant, email, dot_number: new.dot_number }]).await?.remove(0);
    if found.is_conflict() {
        return Err(OutcomeRefusal::ContactConflict);
    }
    let (candidates, key) = found.candidates();
    let contact = candidates.first().copied();
    // With the precision of Postgres, so that a repeated report has the same time.
    let occurred_at: Option<DateTime<Utc>> = new.occurred_at.map(|at| at.trunc_subsecs(6));
    let written = sqlx::query_file!(
        "queries/outcomes/record.sql",
        tenant,
        new_id(),
        source_system,
        new.source_event_id,
        email,
        new.dot_number,
        contact,
        contact.map(|_| key),
        new.outcome_type.as_str(),
        new.premium.map(|premium| premium.0),
        new.value_cents,
        occurred_at,
    )
    .fetch_optional(&mut *db)
    .await?;
    if let Some(row) = written {
        return Ok(RecordedOutcome { outcome_id: row.id, contact_matched: row.contact_matched, changed: true });
    }
    let known = sqlx::query!(
        r#"select id, contact_id is not null as "contact_matched!" from outcomes
           where tenant_id = $1 and source_system = $2 and source_event_id = $3"#,
        tenant,
        source_system,
        new.source_event_id,
    )
    .fetch_one(db)
    .await?;
    Ok(RecordedOutcome { outcome_id: known.id, contact_matched: known.contact_matched, changed: false })
}
