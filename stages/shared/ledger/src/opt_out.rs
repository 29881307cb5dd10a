//! Opt-outs of recipients by the links of their mail.

use std::collections::BTreeSet;

use chrono::Utc;
use runtime::column;
use schemas::{SendId, Signal, SignalKind};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    facts, hours,
    people::{self, LockedContact, Person},
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
    /// There is no such send, or its recipient is erased.
    UnknownSend,
}

/// Opts the recipient of a send out of marketing: the contact, a suppression that outlives it, and the fact about the send with its
/// consequences (event, counters, totals, webhooks). Harmless to repeat: one fact for each send, until the
/// recipient opts in again. `method`: `one_click`, `page` or `preferences`.
///
/// Takes effect when the caller commits, all of it or nothing. The locks come in the order of the whole ledger: the batch, then the
/// contact, as a fence does. A fence that commits before this one is mail sent before the opt-out was answered; a later
/// fence sees the opt-out. The transaction is one by key.
pub async fn opt_out(
    db: &mut PgConnection,
    tenant: Uuid,
    send_id: Uuid,
    method: &str,
    evidence: &ConsentEvidence,
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
    let Some(person) = people::lock_person(&mut *db, tenant, contact_id).await? else {
        return Ok(OptOut::UnknownSend);
    };
    let outcome = leave(&mut *db, &person, Some(send_id)).await?;
    // One fact for repeated requests; a new one if the recipient has opted in again meanwhile.
    let since = person.opted_in_at().map_or(0, |at| at.timestamp_micros());
    let fact = Signal {
        signal_id: Uuid::new_v5(&send_id, format!("unsubscribed {since}").as_bytes()),
        tenant_id: tenant,
        send_id,
        occurred_at: Utc::now(),
        kind: SignalKind::Unsubscribed { method: method.to_owned() },
        ip: evidence.ip.clone(),
        user_agent: evidence.user_agent.clone(),
    };
    facts::record(db, &[fact], &[], hours::random_shard()).await?;
    Ok(outcome)
}

/// Opts the contact out, with the one that it was merged into, and with a suppression that outlives them. An opt-out from another source, or
/// one that expires, becomes the recipient's own: only the recipient can lift it.
pub(crate) async fn leave(db: &mut PgConnection, person: &Person, send_id: Option<Uuid>) -> sqlx::Result<OptOut> {
    let contact = &person.contact;
    let has_left = sqlx::query_scalar!(
        r#"select exists (select from own_opt_outs($1, $2)) as "has_left!""#,
        contact.tenant_id,
        contact.address
    )
    .fetch_one(&mut *db)
    .await?;
    let changed = mark_unsubscribed(&mut *db, &person.leaving()).await?;
    let new =
        NewSuppression::new(contact.tenant_id, contact.address.clone(), SuppressionReason::Unsubscribe, "recipient");
    suppressions::suppress(db, vec![NewSuppression { send_id, ..new }]).await?;
    Ok(if changed > 0 || !has_left { OptOut::Recorded } else { OptOut::Already })
}

/// Takes the consent of contacts back. Answers how many had some.
pub(crate) async fn mark_unsubscribed(db: &mut PgConnection, contacts: &[&LockedContact]) -> sqlx::Result<u64> {
    let changed = sqlx::query!(
        "update contacts c set marketing_status = 'unsubscribed', updated_at = now()
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
         where c.tenant_id = w.tenant_id and c.id = w.id and c.marketing_status <> 'unsubscribed'",
        &column(contacts, |contact| contact.tenant_id),
        &column(contacts, |contact| contact.id),
    );
    Ok(changed.execute(db).await?.rows_affected())
}
