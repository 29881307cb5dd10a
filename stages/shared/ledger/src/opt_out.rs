//! Opt-outs of recipients by the links of their mail.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use schemas::{SendId, Signal, SignalKind};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    facts, hours,
    preferences::ConsentEvidence,
    suppressions::{self, NewSuppression, SuppressionReason},
};

/// The result of an opt-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptOut {
    /// The recipient is now opted out, at once and for good.
    Recorded,
    /// The recipient was opted out before; only the fact of this mail was recorded.
    Already,
    /// There is no such send.
    UnknownSend,
}

/// Opts the recipient of a send out of marketing: the contact, a suppression that outlives it, and the fact about the send with its
/// consequences (event, counters, totals, webhooks). Harmless to repeat: one fact for each send, until the
/// recipient opts in again. `method`: `one_click`, `page` or `preferences`.
///
/// Takes effect when the caller commits, all of it or nothing. The locks come in the order of the whole ledger: the batch, then the
/// contact, as a fence does. A fence that commits before this one is mail sent before the opt-out was answered; a later
/// fence sees the opt-out. The transaction is one by key.
///
/// # Errors
/// When Postgres is away.
pub async fn opt_out(
    db: &mut PgConnection,
    tenant: Uuid,
    send_id: Uuid,
    method: &str,
    evidence: ConsentEvidence<'_>,
) -> sqlx::Result<OptOut> {
    let Some(contact_id) = sqlx::query_scalar!(
        "select contact_id from sends where tenant_id = $1 and id = $2 and month = $3",
        tenant,
        send_id,
        SendId(send_id).month(),
    )
    .fetch_optional(&mut *db)
    .await?
    else {
        return Ok(OptOut::UnknownSend);
    };
    facts::lock_batches(&mut *db, &BTreeSet::from([(tenant, send_id)])).await?;
    let Some(recipient) = lock_recipient(&mut *db, tenant, contact_id).await? else {
        return Ok(OptOut::UnknownSend);
    };
    let outcome = leave(&mut *db, tenant, &recipient, Some(send_id)).await?;
    // One fact for repeated requests; a new one if the recipient has opted in again meanwhile.
    let since = recipient.opted_in_at.map_or(0, |at| at.timestamp_micros());
    let fact = Signal {
        signal_id: Uuid::new_v5(&send_id, format!("unsubscribed {since}").as_bytes()),
        tenant_id: tenant,
        send_id,
        occurred_at: Utc::now(),
        kind: SignalKind::Unsubscribed { method: method.to_owned() },
        ip: evidence.ip.map(str::to_owned),
        user_agent: evidence.user_agent.map(str::to_owned),
    };
    facts::record(db, &[fact], &[], hours::random_shard()).await?;
    Ok(outcome)
}

/// A contact whose row is locked.
pub(crate) struct LockedContact {
    pub(crate) id: Uuid,
    pub(crate) address: String,
    /// When the recipient last opted in.
    pub(crate) opted_in_at: Option<DateTime<Utc>>,
    pub(crate) is_erased: bool,
    /// True if the recipient has opted out before, for good.
    has_left: bool,
}

/// Locks a contact, as a fence and every writer of suppressions do.
pub(crate) async fn lock_recipient(
    db: &mut PgConnection,
    tenant: Uuid,
    contact: Uuid,
) -> sqlx::Result<Option<LockedContact>> {
    sqlx::query_as!(
        LockedContact,
        r#"select c.id, c.address, c.opted_in_at, c.status = 'erased' as "is_erased!", exists (
               select from suppressions s
               where s.tenant_id = c.tenant_id and s.address = c.address and s.reason = 'unsubscribe'
                 and s.source = 'recipient' and s.expires_at is null) as "has_left!"
           from contacts c where c.tenant_id = $1 and c.id = $2 for no key update of c"#,
        tenant,
        contact,
    )
    .fetch_optional(db)
    .await
}

/// Opts the contact out, with a suppression that outlives it. An opt-out from another source, or one that expires, becomes the recipient's
/// own: only the recipient can lift it.
pub(crate) async fn leave(
    db: &mut PgConnection,
    tenant: Uuid,
    recipient: &LockedContact,
    send_id: Option<Uuid>,
) -> sqlx::Result<OptOut> {
    let changed = sqlx::query!(
        "update contacts set marketing_status = 'unsubscribed', updated_at = now()
         where tenant_id = $1 and id = $2 and marketing_status <> 'unsubscribed'",
        tenant,
        recipient.id,
    )
    .execute(&mut *db)
    .await?
    .rows_affected();
    let address = recipient.address.clone();
    let new = NewSuppression::new(tenant, address, SuppressionReason::Unsubscribe, "recipient");
    suppressions::suppress(db, vec![NewSuppression { send_id, ..new }]).await?;
    Ok(if changed > 0 || !recipient.has_left { OptOut::Recorded } else { OptOut::Already })
}
