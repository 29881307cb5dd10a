//! Transactional requests: a send for the mail and for each of its copies. Requests that were accepted together, with one content and
//! sender, are one batch: the batch is in the send's id.
//!
//! What is due now is resolved in the transaction that accepts it: one commit, and one message on the bus, lie between a caller and the
//! rendering of the mail. The audience stage resolves what is due later, and what had to wait for rows that an import holds.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use chrono::{DateTime, Utc};
use runner::StageError;
use runtime::{
    Publication, column,
    db::{BEGIN_ASYNC_COMMIT, WAIT_FOR_PEERS, is_lock_timeout},
    plans::PreparedPool,
};
use schemas::{
    Classification, MessageKind, RequestAnnounced, RequestKind, SendId,
    ids::PROMPT_BATCH_MAX,
    messages::{ERASED_COPY, MailOptions, TransactionalPayload},
    month_of,
};
use sqlx::{AssertSqlSafe, PgConnection, types::Json};
use uuid::Uuid;

use super::{
    PromptBatch,
    contacts::{ContactKey, find_or_create},
};
use crate::{
    dispatch::PRIORITY_REANNOUNCE,
    hours::BatchKey,
    recipient_eligibility,
    requests::{self, RequestRow, Requester, mark_resolved},
};

/// Sends made in one transaction, about: limits how long its rows are locked.
const AT_ONCE: usize = 1_000;

/// Batches of a tenant under way in the priority lane. Scheduled mail beyond these takes the bulk lane, where tenants take turns.
const PROMPT_OPEN_MAX: i64 = 1_000;

/// From here on, what is written can be taken back, and locks are waited for a moment only: the connection is one that all tenants share.
const BEGIN_RESOLVE: &str = "savepoint resolve; set local lock_timeout = '20ms'";
/// A rollback takes the setting back, a release does not.
const KEEP_RESOLVED: &str = "release savepoint resolve; set local lock_timeout to default";
const UNDO_RESOLVE: &str = "rollback to savepoint resolve";

/// A transactional request. It is stored under the id of its send.
#[derive(Debug, Clone, Copy)]
pub struct MailRequest<'a> {
    /// Whose it is.
    pub tenant_id: Uuid,
    /// What to send to whom.
    pub payload: &'a TransactionalPayload,
    /// What the caller set for this mail, if anything.
    pub options: Option<&'a MailOptions>,
}

impl<'a> MailRequest<'a> {
    fn batch_id(&self) -> Uuid {
        SendId(self.payload.send_id).batch()
    }

    /// The sends it becomes, each with the address of its recipient: the mail, and its copies, but for those whose recipient was erased.
    pub(super) fn sends(&self) -> impl Iterator<Item = (Uuid, &'a str)> {
        let (payload, batch) = (self.payload, self.batch_id());
        let copies = (1..).zip(self.options.into_iter().flat_map(|options| &options.copies));
        let copies = copies.filter(|(_, copy)| copy.address.as_str() != ERASED_COPY);
        let copies = copies.map(move |(ordinal, copy)| (SendId::of(batch, ordinal).0, copy.address.as_str()));
        std::iter::once((payload.send_id, payload.address.as_str())).chain(copies)
    }

    /// How many sends it becomes, about.
    fn size(&self) -> usize {
        1 + self.options.map_or(0, |options| options.copies.len())
    }

    /// When it is due, if later.
    fn due_at(&self) -> Option<DateTime<Utc>> {
        self.options.and_then(|options| options.scheduled_at)
    }

    fn row(&self) -> RequestRow<'a, TransactionalPayload> {
        RequestRow { id: self.payload.send_id, payload: self.payload, options: self.options, due_at: self.due_at() }
    }
}

/// Accepts requests of one tenant: stores each under the id of its send, so that a caller finds it by this id before the
/// send exists. Writes the contacts and sends of those that are due now, and answers the announcements of their batches,
/// for after the commit; of what is due later, none: a sweep announces it.
///
/// `None`: the audience stage has to resolve what is due now, as when not `at_once`.
pub async fn accept(
    db: &mut PgConnection,
    requester: &Requester<'_>,
    requests: &[MailRequest<'_>],
    at_once: bool,
) -> sqlx::Result<Option<Vec<Publication>>> {
    let (due, later): (Vec<MailRequest<'_>>, Vec<MailRequest<'_>>) =
        requests.iter().copied().partition(|request| request.due_at().is_none());
    let batches = match (due.is_empty(), at_once) {
        (true, _) => Some(Vec::new()),
        (false, true) => resolve_accepted(&mut *db, &due).await?,
        (false, false) => None,
    };
    for (mails, are_resolved) in [(due, batches.is_some()), (later, false)] {
        if !mails.is_empty() {
            let rows = column(&mails, MailRequest::row);
            requests::insert(&mut *db, requester, RequestKind::Transactional, &rows, are_resolved).await?;
        }
    }
    Ok(batches)
}

/// Resolves requests in the transaction that accepts them, and answers the announcements of their batches.
///
/// `None`: they are more than one transaction should hold, or Postgres refused, mostly because another transaction holds rows of theirs, as
/// an import does. Nothing is done then, and the requests are stored as accepted: the audience stage resolves them, or says why not.
async fn resolve_accepted(
    db: &mut PgConnection,
    requests: &[MailRequest<'_>],
) -> sqlx::Result<Option<Vec<Publication>>> {
    if requests.iter().map(MailRequest::size).sum::<usize>() > AT_ONCE {
        return Ok(None);
    }
    sqlx::raw_sql(BEGIN_RESOLVE).execute(&mut *db).await?;
    match write_all(&mut *db, requests, PRIORITY_REANNOUNCE).await {
        Ok(publications) => {
            sqlx::raw_sql(KEEP_RESOLVED).execute(db).await?;
            Ok(Some(publications))
        }
        Err(error) => {
            sqlx::raw_sql(UNDO_RESOLVE).execute(db).await?;
            if !matches!(&error, StageError::Ledger(error) if is_lock_timeout(error)) {
                tracing::warn!(error = error.chain(), "requests are left to the audience stage");
            }
            Ok(None)
        }
    }
}

/// Resolves requests to sends, and answers their announcements. A request that was handled before is left alone: if its batch was not
/// announced, the sweep announces it.
pub async fn resolve(
    by_key: &PreparedPool,
    inputs: &[&RequestAnnounced],
    reannounce: Duration,
) -> Result<Vec<Publication>, StageError> {
    let mut publications = Vec::new();
    for asked in portions(inputs) {
        match resolve_portion(by_key, &asked, reannounce).await {
            Err(StageError::Ledger(error)) if is_lock_timeout(&error) => {
                publications.extend(resolve_by_tenant(by_key, asked, reannounce).await?);
            }
            resolved => publications.extend(resolved?),
        }
    }
    Ok(publications)
}

/// Resolves a portion tenant by tenant, so that one tenant's import delays no mail of others. What waits for it is postponed.
async fn resolve_by_tenant(
    by_key: &PreparedPool,
    asked: BTreeSet<BatchKey>,
    reannounce: Duration,
) -> Result<Vec<Publication>, StageError> {
    let mut publications = Vec::new();
    let asked: Vec<BatchKey> = asked.into_iter().collect();
    for own in asked.chunk_by(|(one, _), (next, _)| one == next) {
        match resolve_portion(by_key, &own.iter().copied().collect(), reannounce).await {
            Err(StageError::Ledger(error)) if is_lock_timeout(&error) => postpone(by_key, own).await?,
            resolved => publications.extend(resolved?),
        }
    }
    Ok(publications)
}

/// Has the requests of these batches announced again in two seconds.
async fn postpone(by_key: &PreparedPool, batches: &[BatchKey]) -> Result<(), StageError> {
    let mut db = by_key.take().await?;
    sqlx::query!(
        "update requests r set announce_after = now() + interval '2 seconds'
         from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as w (tenant_id, first, last)
         where r.tenant_id = w.tenant_id and r.id between w.first and w.last and r.kind = 'transactional' and r.state = 'accepted'",
        &column(batches, |(tenant, _)| *tenant),
        &column(batches, |(_, batch)| *batch),
        &column(batches, |(_, batch)| SendId::last_of(*batch)),
    )
    .execute(&mut *db)
    .await?;
    db.put_back();
    Ok(())
}

/// The batches of the requests, each once, in portions of about [`AT_ONCE`] sends. An announcement says how many sends its batches have
/// together; each counts as if they were alike.
fn portions(inputs: &[&RequestAnnounced]) -> Vec<BTreeSet<BatchKey>> {
    let (mut portions, mut held) = (vec![BTreeSet::new()], 0);
    for input in inputs {
        let count = input.count().div_ceil(1 + input.more.len());
        for request in input.requests() {
            if held > 0 && held + count > AT_ONCE {
                portions.push(BTreeSet::new());
                held = 0;
            }
            held += count;
            if let Some(portion) = portions.last_mut() {
                portion.insert((input.tenant_id, SendId(request).batch()));
            }
        }
    }
    portions
}

async fn resolve_portion(
    by_key: &PreparedPool,
    asked: &BTreeSet<BatchKey>,
    reannounce: Duration,
) -> Result<Vec<Publication>, StageError> {
    // If a crash of Postgres loses this commit, the requests are still accepted, and are announced again.
    let begin = format!("{BEGIN_ASYNC_COMMIT}; {WAIT_FOR_PEERS}");
    let mut tx = by_key.begin_with(AssertSqlSafe(begin)).await?;
    let accepted = lock(&mut tx, asked).await?;
    let mut publications = Vec::new();
    if !accepted.is_empty() {
        let requests: Vec<MailRequest<'_>> = accepted.iter().map(Accepted::request).collect();
        publications = write_all(&mut tx, &requests, reannounce).await?;
        let keys = column(&requests, |request| (request.tenant_id, request.payload.send_id));
        mark_resolved(&mut tx, &keys).await?;
    }
    tx.commit().await?;
    Ok(publications)
}

/// An accepted request as it is stored.
struct Accepted {
    tenant_id: Uuid,
    payload: TransactionalPayload,
    options: Option<MailOptions>,
}

impl Accepted {
    fn request(&self) -> MailRequest<'_> {
        MailRequest { tenant_id: self.tenant_id, payload: &self.payload, options: self.options.as_ref() }
    }
}

/// Locks the requests of these batches, and answers those that are to be handled.
async fn lock(db: &mut PgConnection, asked: &BTreeSet<BatchKey>) -> Result<Vec<Accepted>, StageError> {
    let (tenants, batches): (Vec<Uuid>, Vec<Uuid>) = asked.iter().copied().unzip();
    // Batch by batch in the given order, which is that of tenants and ids; each by its range of the primary key.
    let rows = sqlx::query!(
        r#"select r.tenant_id as "tenant_id!", r.id as "id!", r.payload as "payload?", r.options as "options: Json<MailOptions>"
           from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as w (tenant_id, first, last)
           cross join lateral (
               select q.tenant_id, q.id, case when q.state = 'accepted' then q.payload::text end as payload, q.options
               from requests q
               where q.tenant_id = w.tenant_id and q.id between w.first and w.last and q.kind = 'transactional'
               order by q.id
               for update
           ) r"#,
        &tenants,
        &batches,
        &column(&batches, |batch| SendId::last_of(*batch)),
    )
    .fetch_all(db)
    .await?;
    let (mut accepted, mut found) = (Vec::with_capacity(rows.len()), BTreeSet::new());
    for row in rows {
        found.insert((row.tenant_id, SendId(row.id).batch()));
        if let Some(payload) = row.payload {
            let payload = serde_json::from_str(&payload).map_err(|error| StageError::malformed(&error))?;
            accepted.push(Accepted {
                tenant_id: row.tenant_id,
                payload,
                options: row.options.map(|Json(options)| options),
            });
        }
    }
    if found.len() < asked.len() {
        return Err(StageError::rejected("unknown_request", "no such transactional request in the ledger"));
    }
    Ok(accepted)
}

/// Writes the contacts, batches and sends of these requests. Answers the announcements of the priority batches.
async fn write_all(
    db: &mut PgConnection,
    requests: &[MailRequest<'_>],
    reannounce: Duration,
) -> Result<Vec<Publication>, StageError> {
    let contacts = find_or_create(&mut *db, requests).await?;
    let mut sends: Vec<(&MailRequest<'_>, Uuid, Uuid)> = Vec::with_capacity(requests.len());
    for request in requests {
        for (send, address) in request.sends() {
            let key: ContactKey = (request.tenant_id, address.to_owned());
            let contact = contacts.get(&key).ok_or(StageError::Deferred { reason: "contact_vanished" })?;
            sends.push((request, send, *contact));
        }
    }
    let rows = sqlx::query_file!(
        "queries/resolve/resolve_transactional.sql",
        &column(&sends, |(request, ..)| request.tenant_id),
        &column(&sends, |(request, ..)| request.payload.send_id),
        &column(&sends, |(request, ..)| request.batch_id()),
        &column(&sends, |(_, send, _)| month_of(*send)),
        &column(&sends, |(_, _, contact)| *contact),
        &column(&sends, |(request, ..)| request.payload.content_id),
        &column(&sends, |(request, ..)| request.payload.sender_id),
        reannounce.as_secs_f64(),
        PROMPT_BATCH_MAX as i64,
        &column(&sends, |(_, send, _)| *send),
        &column(&sends, |(request, ..)| request.options.is_some_and(|options| options.is_bulk)),
        PROMPT_OPEN_MAX,
        &column(&sends, |(request, ..)| request.due_at().is_some()),
    )
    .fetch_all(db)
    .await?;
    let (mut batches, mut eligibility) = (BTreeMap::new(), HashMap::with_capacity(rows.len()));
    for row in rows {
        eligibility.insert((row.tenant_id, row.contact_id), recipient_eligibility!(row, timezone));
        batches.entry((row.tenant_id, row.batch_id)).or_insert_with(|| PromptBatch {
            tenant_id: row.tenant_id,
            batch_id: row.batch_id,
            kind: MessageKind::Transactional,
            classification: row.classification,
            content_id: row.content_id,
            sender_id: row.sender_id,
            send_ids: row.send_ids,
            contact_ids: row.contact_ids,
            notify: None,
        });
    }
    batches.into_values().map(|batch| batch.publication(&eligibility)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_handled_in_portions_and_a_batch_named_twice_once() {
        let (tenant, batch) = (schemas::new_id(), schemas::new_batch_id());
        let request = |id, count| RequestAnnounced {
            count: Some(count),
            ..RequestAnnounced::of(tenant, id, RequestKind::Transactional)
        };
        let inputs = [request(batch, 500), request(SendId::of(batch, 9).0, 500), request(schemas::new_batch_id(), 500)];
        let portions = portions(&inputs.iter().collect::<Vec<_>>());
        assert_eq!(portions.iter().map(BTreeSet::len).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn five_hundred_mails_with_copies_are_many_transactions() {
        let more = (1..500).map(|_| schemas::new_batch_id()).collect();
        let array = RequestAnnounced {
            count: Some(500 * 50),
            more,
            ..RequestAnnounced::of(schemas::new_id(), schemas::new_batch_id(), RequestKind::Transactional)
        };
        let portions = portions(&[&array]);
        assert!(portions.iter().all(|portion| portion.len() * 50 <= AT_ONCE));
        assert_eq!(portions.iter().map(BTreeSet::len).sum::<usize>(), 500);
    }
}
