//! An outcome into the ledger: each telling of the same source event is the same outcome.

use chrono::{DateTime, SubsecRound, Utc};
use schemas::new_id;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    NewOutcome,
    contacts::{self, Keys},
};

/// A recorded outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Its id: the same for every telling.
    pub outcome_id: Uuid,
    /// Whether there is a contact it is about.
    pub contact_matched: bool,
    /// Whether this telling changed anything. Only then there is something to credit.
    pub changed: bool,
}

/// Why an outcome is not recorded.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Address and number lead to different contacts.
    #[error("contact_email and dot_number are different contacts")]
    ContactConflict,
    /// Postgres refused or was away.
    #[error("the ledger")]
    Ledger(#[from] sqlx::Error),
}

/// Records an outcome of `source_system`, or what is told of it anew. It is credited by the stage.
///
/// # Errors
/// See [`Refusal`].
pub async fn record(
    db: &mut PgConnection,
    tenant: Uuid,
    source_system: &str,
    new: &NewOutcome,
) -> Result<Recorded, Refusal> {
    let email = new.contact_email.as_ref().map(schemas::Address::as_str);
    let found = contacts::find(&mut *db, &[Keys { tenant, email, dot_number: new.dot_number }]).await?.remove(0);
    if found.is_conflict() {
        return Err(Refusal::ContactConflict);
    }
    let (candidates, key) = found.candidates();
    let contact = candidates.first().copied();
    // As Postgres keeps it, so that the same time told again is the same.
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
        return Ok(Recorded { outcome_id: row.id, contact_matched: row.contact_matched, changed: true });
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
    Ok(Recorded { outcome_id: known.id, contact_matched: known.contact_matched, changed: false })
}
