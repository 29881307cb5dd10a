//! Erasure: what is known of the person goes at once, what others wrote of them in slices (`ledger::erasure::request_erasure`). The ledger
//! keeps its numbers and a keyed hash, suppressions keep their address.

use ledger::suppressions::{self, NewSuppression, SuppressionReason};
use sqlx::PgConnection;
use uuid::Uuid;

/// Keeps a contact's opt-out as a suppression of its address, and of those of the contacts that were merged into it, before their rows are
/// emptied: otherwise the next import of the address would subscribe it. Opt-outs of topics name the contact and not the address, so a topic
/// that was left becomes an opt-out of all marketing, which the tenant can lift. The rows are locked by the caller.
pub(super) async fn keep_opt_outs(
    db: &mut PgConnection,
    tenant: Uuid,
    contact: Uuid,
    has_left: bool,
    people: &[(Uuid, String)],
) -> sqlx::Result<()> {
    let is_opted_out = sqlx::query_scalar!(
        r#"select $3::boolean
                  or exists (select from topic_opt_outs where tenant_id = $1 and contact_id = $2) as "is_opted_out!""#,
        tenant,
        contact,
        has_left,
    )
    .fetch_one(&mut *db)
    .await?;
    if !is_opted_out {
        return Ok(());
    }
    let opt_out = |(_, address): &(Uuid, String)| {
        NewSuppression::new(tenant, address.clone(), SuppressionReason::Unsubscribe, "api")
    };
    suppressions::suppress(db, people.iter().map(opt_out).collect()).await.map(drop)
}

/// Erases a contact's own row, takes back what waits for it, and asks for the rest. The row is locked by the caller. A suppression in force
/// stays: it keeps the address from being mailed again after an import. `erased` stands for the address from now on.
pub(super) async fn erase(
    db: &mut PgConnection,
    tenant: Uuid,
    contact: Uuid,
    address: &str,
    erased: &str,
) -> sqlx::Result<()> {
    // First: it waits for those who hold the contact, and the statements after it see what they wrote.
    // The same address may have been erased before, created again and be erased again: the second one takes its id along.
    sqlx::query!(
        "update contacts set
             address = case when exists (select from contacts where tenant_id = $1 and address = $3::text)
                            then $3::text || ':' || $2::uuid::text else $3::text end,
             external_id = null, first_name = null, last_name = null, title = null, phone = null, company = null, dot_number = null, timezone = null,
             locale = null, lifecycle_stage = null, fields = '{}', status = 'erased', marketing_status = 'unsubscribed',
             source = null, consent_basis = null, consent_at = null, opted_in_at = null, consent_source = null, consent_description = null,
             consent_evidence = null, updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        contact,
        erased,
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!("delete from audience_members where tenant_id = $1 and contact_id = $2", tenant, contact)
        .execute(&mut *db)
        .await?;
    suppressions::delete_expired(&mut *db, tenant, address).await?;
    ledger::confirmations::erase(&mut *db, tenant, contact, erased).await?;
    ledger::erasure::take_back_requests(&mut *db, tenant, address).await?;
    ledger::erasure::request_erasure(db, tenant, contact, address).await
}
