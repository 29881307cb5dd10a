//! A recipient leaves.

use std::collections::BTreeSet;

use chrono::Utc;
use schemas::{SendId, Signal, SignalKind};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{fold, preferences::Evidence};

/// What an opt-out found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptOut {
    /// The recipient is opted out from now on, at once and for good.
    Recorded,
    /// He was already; nothing changed but that this mail may have been the occasion as well.
    Already,
    /// There is no such send.
    UnknownSend,
}

/// Opts the recipient of a send out of marketing: the contact, a suppression that outlives it, and the fact about the send with all
/// that follows from it (event, counters, totals, what products are told). Harmless to repeat: one fact for each send, until the
/// recipient opts in again. `method`: `one_click`, `page` or `preferences`.
///
/// Takes effect when the caller commits, all of it or nothing. The locks come in the order of the whole ledger: the batch, then the
/// contact, as a fence does. A fence that commits before this was mailed before the opt-out was answered, and one that comes later
/// sees it. The transaction has called [`runtime::plans::follow_keys`].
///
/// # Errors
/// When Postgres is away.
pub async fn opt_out(
    db: &mut PgConnection,
    tenant: Uuid,
    send_id: Uuid,
    method: &str,
    evidence: Evidence<'_>,
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
    fold::lock_batches(&mut *db, &BTreeSet::from([(tenant, send_id)])).await?;
    let Some(contact) = sqlx::query!(
        "select address, opted_in_at from contacts where tenant_id = $1 and id = $2 for no key update",
        tenant,
        contact_id,
    )
    .fetch_optional(&mut *db)
    .await?
    else {
        return Ok(OptOut::UnknownSend);
    };
    let changed = sqlx::query!(
        "update contacts set marketing_status = 'unsubscribed', updated_at = now()
         where tenant_id = $1 and id = $2 and marketing_status <> 'unsubscribed'",
        tenant,
        contact_id,
    )
    .execute(&mut *db)
    .await?
    .rows_affected();
    // An opt-out noted by somebody else, or one that runs out, becomes the recipient's own: only he can lift it.
    let suppressed = sqlx::query!(
        "insert into suppressions (tenant_id, id, address, reason, scope, source, send_id)
         values ($1, $2, $3, 'unsubscribe', 'marketing', 'recipient', $4)
         on conflict (tenant_id, address, reason)
         do update set scope = 'marketing', source = 'recipient', send_id = excluded.send_id, expires_at = null
         where suppressions.source <> 'recipient' or suppressions.expires_at is not null",
        tenant,
        schemas::new_id(),
        contact.address,
        send_id,
    )
    .execute(&mut *db)
    .await?
    .rows_affected();
    // One fact, however often it is asked for; another one when the recipient has come back meanwhile.
    let since = contact.opted_in_at.map_or(0, |at| at.timestamp_micros());
    let fact = Signal {
        signal_id: Uuid::new_v5(&send_id, format!("unsubscribed {since}").as_bytes()),
        tenant_id: tenant,
        send_id,
        occurred_at: Utc::now(),
        kind: SignalKind::Unsubscribed { method: method.to_owned() },
        ip: evidence.ip.map(str::to_owned),
        user_agent: evidence.user_agent.map(str::to_owned),
    };
    fold::record(db, &[fact], &[], fold::random_shard()).await?;
    Ok(if changed + suppressed > 0 { OptOut::Recorded } else { OptOut::Already })
}
