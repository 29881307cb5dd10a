//! One-off messages: a batch of up to 50 sends each, for as many requests as are waiting together.
//!
//! Contacts, content and recipients are in the ledger already: the ingress wrote them with the request.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use runner::StageError;
use runtime::{Publication, db::BEGIN_ASYNC_COMMIT, plans::PreparedPool};
use schemas::{RequestAnnounced, month_of};
use sqlx::PgConnection;
use uuid::Uuid;

use super::transactional::first_announcement;

/// A tenant's message.
type MessageKey = (Uuid, Uuid);

/// Resolves messages to sends, and answers their announcements. A message that was handled before is announced once more while its
/// batch has not moved: the process may have died between commit and publication.
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
    let accepted: Vec<MessageKey> = in_state(&states, "accepted");
    let handled: Vec<MessageKey> = in_state(&states, "handled");
    let mut announced = accepted.clone();
    if !accepted.is_empty() {
        write(&mut tx, &accepted, reannounce).await?;
    }
    if !handled.is_empty() {
        announced.extend(unmoved(&mut tx, &handled).await?);
    }
    tx.commit().await?;
    announced
        .iter()
        .map(|key| {
            let notify = asked.get(key).copied().flatten().cloned();
            first_announcement(key.0, key.1).publication_notifying(notify)
        })
        .collect()
}

fn in_state(states: &HashMap<MessageKey, String>, wanted: &str) -> Vec<MessageKey> {
    let mut keys: Vec<MessageKey> = states.iter().filter(|(_, state)| *state == wanted).map(|(key, _)| *key).collect();
    keys.sort_unstable();
    keys
}

/// Locks the requests for this transaction, and answers the state of each.
async fn lock(
    db: &mut PgConnection,
    asked: &BTreeMap<MessageKey, Option<&String>>,
) -> Result<HashMap<MessageKey, String>, StageError> {
    let (tenants, ids) = columns(asked.keys().copied());
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

/// Writes batch and sends of each message, and marks its request as handled.
async fn write(db: &mut PgConnection, accepted: &[MessageKey], reannounce: Duration) -> Result<(), StageError> {
    let (tenants, ids) = columns(accepted.iter().copied());
    let months: Vec<_> = ids.iter().map(|id| month_of(*id)).collect();
    sqlx::query_file!("queries/resolve/resolve_messages.sql", &tenants, &ids, &months, reannounce.as_secs_f64())
        .execute(db)
        .await?;
    Ok(())
}

/// Handled messages whose batch has not moved since its first announcement.
async fn unmoved(db: &mut PgConnection, handled: &[MessageKey]) -> Result<Vec<MessageKey>, StageError> {
    let (tenants, ids) = columns(handled.iter().copied());
    let rows = sqlx::query!(
        "select b.tenant_id, b.id
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
         join batches b on b.tenant_id = w.tenant_id and b.id = w.id
         where b.state = 'announced' and b.announcement = 1 and b.queued = b.size",
        &tenants,
        &ids,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant_id, row.id)).collect())
}

fn columns(keys: impl Iterator<Item = MessageKey>) -> (Vec<Uuid>, Vec<Uuid>) {
    keys.unzip()
}
