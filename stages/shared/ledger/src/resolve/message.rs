//! One-off messages: a batch of up to 50 sends each.
//!
//! Contacts, content and recipients are in the ledger already: the ingress wrote them. A message that is due now becomes sends in the same
//! transaction; the audience stage resolves what is due later, and messages that no caller sends.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use runner::StageError;
use runtime::{Publication, db::BEGIN_ASYNC_COMMIT, plans::PreparedPool};
use schemas::{Classification, MessageKind, RequestAnnounced, month_of};
use sqlx::PgConnection;
use uuid::Uuid;

use super::PromptBatch;
use crate::{
    dispatch::PRIORITY_REANNOUNCE,
    gate::{RecipientEligibility, load_eligibility},
    requests::mark_resolved,
};

/// A tenant's message.
type MessageKey = (Uuid, Uuid);

/// Resolves a message in the transaction that accepts it, by the `eligibility` of its recipients, and answers the announcement of its batch,
/// for after the commit. The caller stores the request as resolved. `notify`: the subject of a caller that waits for the outcome.
pub async fn resolve_accepted(
    db: &mut PgConnection,
    message: MessageKey,
    eligibility: &HashMap<(Uuid, Uuid), RecipientEligibility>,
    notify: Option<String>,
) -> Result<Vec<Publication>, StageError> {
    let batches = write(db, &[message], PRIORITY_REANNOUNCE).await?;
    batches.into_iter().map(|batch| PromptBatch { notify: notify.clone(), ..batch }.publication(eligibility)).collect()
}

/// Resolves messages that were stored before, as those that are due later, and answers the announcements of their batches. A message that was
/// handled before is left alone: if its batch was not announced, the sweep announces it.
pub async fn resolve(
    by_key: &PreparedPool,
    inputs: &[&RequestAnnounced],
    reannounce: Duration,
) -> Result<Vec<Publication>, StageError> {
    let asked: BTreeSet<MessageKey> = inputs.iter().map(|input| (input.tenant_id, input.request_id)).collect();
    // If a crash of Postgres loses this commit, the message is still accepted, and is announced again.
    let mut tx = by_key.begin_with(BEGIN_ASYNC_COMMIT).await?;
    let accepted = lock(&mut tx, &asked).await?;
    let mut publications = Vec::new();
    if !accepted.is_empty() {
        let batches = write(&mut tx, &accepted, reannounce).await?;
        let recipients =
            || batches.iter().flat_map(|batch| batch.contact_ids.iter().map(|contact| (batch.tenant_id, *contact)));
        let (tenants, contacts): (Vec<Uuid>, Vec<Uuid>) = recipients().unzip();
        let eligibility = load_eligibility(&mut tx, &tenants, &contacts).await?;
        publications = batches.into_iter().map(|batch| batch.publication(&eligibility)).collect::<Result<_, _>>()?;
        mark_resolved(&mut tx, &accepted).await?;
    }
    tx.commit().await?;
    Ok(publications)
}

/// Locks the requests for this transaction, and answers those that are to be handled, in order.
async fn lock(db: &mut PgConnection, asked: &BTreeSet<MessageKey>) -> Result<Vec<MessageKey>, StageError> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = asked.iter().copied().unzip();
    let rows = sqlx::query!(
        r#"select r.tenant_id, r.id, r.state = 'accepted' as "is_accepted!"
           from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
           join requests r on r.tenant_id = w.tenant_id and r.id = w.id
           join messages m on m.tenant_id = r.tenant_id and m.id = r.id
           where r.kind = 'message'
           order by r.tenant_id, r.id
           for update of r"#,
        &tenants,
        &ids,
    )
    .fetch_all(db)
    .await?;
    if rows.len() < asked.len() {
        return Err(StageError::rejected("unknown_request", "no such message in the ledger"));
    }
    Ok(rows.into_iter().filter(|row| row.is_accepted).map(|row| (row.tenant_id, row.id)).collect())
}

/// Writes batch and sends of each message.
async fn write(db: &mut PgConnection, messages: &[MessageKey], reannounce: Duration) -> sqlx::Result<Vec<PromptBatch>> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = messages.iter().copied().unzip();
    let months: Vec<_> = ids.iter().map(|id| month_of(*id)).collect();
    let rows =
        sqlx::query_file!("queries/resolve/resolve_messages.sql", &tenants, &ids, &months, reannounce.as_secs_f64())
            .fetch_all(db)
            .await?;
    let batches = rows.into_iter().map(|row| PromptBatch {
        tenant_id: row.tenant_id,
        batch_id: row.batch_id,
        kind: if row.is_test { MessageKind::Test } else { MessageKind::OneOff },
        classification: row.classification,
        content_id: row.content_id,
        sender_id: row.sender_id,
        send_ids: row.send_ids,
        contact_ids: row.contact_ids,
        notify: None,
    });
    Ok(batches.collect())
}
