//! A recipient leaves.

use schemas::SendId;
use sqlx::PgConnection;
use uuid::Uuid;

/// What an opt-out found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptOut {
    /// The recipient is opted out from now on, at once and for good.
    Recorded,
    /// He was already; nothing changed.
    Already,
    /// There is no such send.
    UnknownSend,
}

/// Opts the recipient of a send out of marketing: the contact, and a suppression that outlives it. Harmless to repeat.
///
/// Takes effect when the caller commits. The contact's row is locked first, as a fence does: a fence that commits before
/// this was mailed before the opt-out was answered, and one that comes later sees it.
///
/// # Errors
/// When Postgres is away.
pub async fn opt_out(db: &mut PgConnection, tenant: Uuid, send_id: Uuid) -> sqlx::Result<OptOut> {
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
    let Some(contact) = sqlx::query!(
        "select address from contacts where tenant_id = $1 and id = $2 for no key update",
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
    .execute(db)
    .await?
    .rows_affected();
    Ok(if changed + suppressed > 0 { OptOut::Recorded } else { OptOut::Already })
}
