//! One-off messages: a batch of up to 50 sends each, for as many requests as are waiting together.
//!
//! Contacts, content and recipients are in the ledger already: the ingress wrote them with the request.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use runner::StageError;
use runtime::{Publication, db::BEGIN_ASYNC_COMMIT, plans::PreparedPool};
use schemas::{Classification, MessageKind, RequestAnnounced, month_of};
use sqlx::PgConnection;
use uuid::Uuid;

use super::PromptBatch;
use crate::gate::load_eligibility;

/// A tenant's message.
type MessageKey = (Uuid, Uuid);

/// Resolves messages to sends, and answers their announcements. A message that was handled before is left alone: if its batch was not
/// announced, the sweep announces it.
pub async fn resolve(
    by_key: &PreparedPool,
    inputs: &[&RequestAnnounced],
    reannounce: Duration,
) -> Result<Vec<Publication>, StageError> {
    let mut asked: BTreeMap<MessageKey, Option<&String>> = BTreeMap::new();
    for input in inputs {
        // Of several announcements of a message, the one with a waiting caller counts.
        let notify = asked.entry((input.tenant_id, input.request_id)).or_default();
        *notify = notify.or(input.notify.as_ref());
    }
    // If a crash of Postgres loses this commit, the message is still accepted, and is announced again.
    let mut tx = by_key.begin_with(BEGIN_ASYNC_COMMIT).await?;
    let states = lock(&mut tx, &asked).await?;
    let mut accepted: Vec<MessageKey> =
        states.into_iter().filter(|(_, state)| state == "accepted").map(|(key, _)| key).collect();
    accepted.sort_unstable();
    let mut publications = Vec::new();
    if !accepted.is_empty() {
        publications = write(&mut tx, &accepted, &asked, reannounce).await?;
    }
    tx.commit().await?;
    Ok(publications)
}

/// Locks the requests for this transaction, and answers the state of each.
async fn lock(
    db: &mut PgConnection,
    asked: &BTreeMap<MessageKey, Option<&String>>,
) -> Result<HashMap<MessageKey, String>, StageError> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = asked.keys().copied().unzip();
    let rows = sqlx::query!(
        "select r.tenant_id, r.id, r.state
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
         join requests r on r.tenant_id = w.tenant_id and r.id = w.id
         join messages m on m.tenant_id = r.tenant_id and m.id = r.id
         where r.kind = 'message'
         order by r.tenant_id, r.id
         for update of r",
        &tenants,
        &ids,
    )
    .fetch_all(db)
    .await?;
    if rows.len() < asked.len() {
        return Err(StageError::rejected("unknown_request", "no such message in the ledger"));
    }
    Ok(rows.into_iter().map(|row| ((row.tenant_id, row.id), row.state)).collect())
}

/// Writes batch and sends of each message, and marks its request as handled. Answers the announcements of the batches.
async fn write(
    db: &mut PgConnection,
    accepted: &[MessageKey],
    asked: &BTreeMap<MessageKey, Option<&String>>,
    reannounce: Duration,
) -> Result<Vec<Publication>, StageError> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = accepted.iter().copied().unzip();
    let months: Vec<_> = ids.iter().map(|id| month_of(*id)).collect();
    let rows =
        sqlx::query_file!("queries/resolve/resolve_messages.sql", &tenants, &ids, &months, reannounce.as_secs_f64())
            .fetch_all(&mut *db)
            .await?;
    let tenants: Vec<Uuid> = rows.iter().flat_map(|row| row.contact_ids.iter().map(move |_| row.tenant_id)).collect();
    let contacts: Vec<Uuid> = rows.iter().flat_map(|row| row.contact_ids.iter().copied()).collect();
    let eligibility = load_eligibility(db, &tenants, &contacts).await?;
    let publication = rows.into_iter().map(|row| {
        let batch = PromptBatch {
            tenant_id: row.tenant_id,
            batch_id: row.batch_id,
            kind: if row.is_test { MessageKind::Test } else { MessageKind::OneOff },
            classification: row.classification,
            content_id: row.content_id,
            sender_id: row.sender_id,
            send_ids: row.send_ids,
            contact_ids: row.contact_ids,
            notify: asked.get(&(row.tenant_id, row.batch_id)).copied().flatten().cloned(),
        };
        batch.publication(&eligibility)
    });
    publication.collect()
}
