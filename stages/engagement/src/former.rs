//! Opt-outs and complaints about mail whose month the ledger does not keep any more. There is no send to keep a fact about: what they
//! say of the contact takes effect all the same.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::OptOut;

/// Opts a contact out of marketing whose send is gone: the contact, and a suppression that outlives it. Harmless to repeat. Takes effect
/// when the caller commits.
///
/// # Errors
/// When Postgres is away.
pub async fn opt_out_contact(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<OptOut> {
    let Some(address) = lock_contact(&mut *db, tenant, contact).await? else {
        return Ok(OptOut::UnknownSend);
    };
    let changed = sqlx::query!(
        "with left_now as (
             update contacts set marketing_status = 'unsubscribed', updated_at = now()
             where tenant_id = $1 and id = $2 and marketing_status <> 'unsubscribed' returning 1
         ), suppressed as (
             insert into suppressions (tenant_id, id, address, reason, scope, source)
             values ($1, $3, $4, 'unsubscribe', 'marketing', 'recipient')
             on conflict (tenant_id, address, reason)
             do update set scope = 'marketing', source = 'recipient', expires_at = null
             where suppressions.source <> 'recipient' or suppressions.expires_at is not null
             returning 1
         )
         select exists (select from left_now) or exists (select from suppressed) as \"changed!\"",
        tenant,
        contact,
        schemas::new_id(),
        address,
    )
    .fetch_one(db)
    .await?
    .changed;
    Ok(if changed { OptOut::Recorded } else { OptOut::Already })
}

/// Suppresses a contact entirely that has reported a mail as spam whose send is gone. Harmless to repeat. Takes effect when the caller
/// commits.
///
/// # Errors
/// When Postgres is away.
pub(crate) async fn complaint_of_contact(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<()> {
    let Some(address) = lock_contact(&mut *db, tenant, contact).await? else { return Ok(()) };
    sqlx::query!(
        "insert into suppressions (tenant_id, id, address, reason, scope, source)
         values ($1, $2, $3, 'complaint', 'all', 'recipient')
         on conflict (tenant_id, address, reason)
         do update set scope = 'all', source = 'recipient', expires_at = null
         where suppressions.scope <> 'all' or suppressions.expires_at is not null",
        tenant,
        schemas::new_id(),
        address,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Locks a contact, as a fence and every writer of suppressions do, and answers its address; none of one that was erased.
async fn lock_contact(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar!(
        "select address from contacts where tenant_id = $1 and id = $2 and status <> 'erased' for no key update",
        tenant,
        contact,
    )
    .fetch_optional(db)
    .await
}
