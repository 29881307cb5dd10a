//! Transactional requests: one contact and one send each, for as many requests as are waiting together. Requests that were accepted
//! together, with one content and sender, are one batch: the batch is in the send's id, and all of them are handled in one transaction.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use runner::StageError;
use runtime::{Publication, column, db::is_lock_timeout, plans::PreparedPool};
use schemas::{
    Classification, MessageKind, RequestAnnounced, SendId,
    ids::PROMPT_BATCH_MAX,
    messages::{ContactDetails, ERASED_COPY, MailOptions, TransactionalPayload},
    month_of,
};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use super::PromptBatch;
use crate::{hours::BatchKey, recipient_eligibility};

/// Sends made in one transaction, about: limits how long its rows are locked.
const AT_ONCE: usize = 1_000;

/// Batches of a tenant under way in the priority lane. Scheduled mail beyond these takes the bulk lane, where tenants take turns.
const PROMPT_OPEN_MAX: i64 = 1_000;

/// As [`runtime::db::BEGIN_ASYNC_COMMIT`]: if a crash of Postgres loses the commit, the requests are still accepted, and are announced again.
/// Locks are waited for as long as it takes those who resolve beside it. An import holds contacts of its tenant for a minute.
const BEGIN: &str = "begin; set local synchronous_commit = off; set local lock_timeout = '100ms'";

/// An accepted request with its payload.
struct Accepted {
    tenant_id: Uuid,
    request_id: Uuid,
    payload: TransactionalPayload,
    options: MailOptions,
}

impl Accepted {
    fn batch(&self) -> BatchKey {
        (self.tenant_id, SendId(self.payload.send_id).batch())
    }

    /// The sends it becomes, each with the address of its recipient: the mail, and its copies, but for those whose recipient was erased.
    fn sends(&self) -> impl Iterator<Item = (Uuid, &str)> {
        let copies = (1..).zip(&self.options.copies).filter(|(_, copy)| copy.address.as_str() != ERASED_COPY);
        let copies = copies.map(|(ordinal, copy)| (SendId::of(self.batch().1, ordinal).0, copy.address.as_str()));
        std::iter::once((self.payload.send_id, self.payload.address.as_str())).chain(copies)
    }
}

/// A tenant's address: the key of a contact.
type ContactKey = (Uuid, String);

/// A contact that exists already.
struct Known {
    id: Uuid,
    /// Which of its fields are empty, in the order of [`ContactDetails::fields`].
    empty: [bool; 4],
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
    let mut tx = by_key.begin_with(BEGIN).await?;
    let (accepted, known) = lock(&mut tx, asked).await?;
    let mut publications = Vec::new();
    if !accepted.is_empty() {
        let contacts = find_or_create(&mut tx, &accepted, known).await?;
        publications = write(&mut tx, &accepted, &contacts, reannounce).await?;
    }
    tx.commit().await?;
    Ok(publications)
}

/// Locks the requests of these batches, and answers those that are to be handled, with the contacts of them that exist; those of copies are
/// left out.
async fn lock(
    db: &mut PgConnection,
    asked: &BTreeSet<BatchKey>,
) -> Result<(Vec<Accepted>, HashMap<ContactKey, Known>), StageError> {
    let (tenants, batches): (Vec<Uuid>, Vec<Uuid>) = asked.iter().copied().unzip();
    // Batch by batch in the given order, which is that of tenants and ids; each by its range of the primary key.
    let rows = sqlx::query!(
        r#"select r.tenant_id as "tenant_id!", r.id as "id!", r.state as "state!", r.payload as "payload!",
                  r.options as "options: Json<MailOptions>", c.id as "contact_id?", c.first_name is null as "no_first_name!",
                  c.last_name is null as "no_last_name!", c.title is null as "no_title!", c.phone is null as "no_phone!"
           from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as w (tenant_id, first, last)
           cross join lateral (
               select q.tenant_id, q.id, q.state, q.payload::text as payload, q.payload ->> 'address' as address, q.options
               from requests q
               where q.tenant_id = w.tenant_id and q.id between w.first and w.last and q.kind = 'transactional'
               order by q.id
               for update
           ) r
           left join contacts c on c.tenant_id = r.tenant_id and c.address = r.address"#,
        &tenants,
        &batches,
        &column(&batches, |batch| SendId::last_of(*batch)),
    )
    .fetch_all(db)
    .await?;
    let (mut accepted, mut known) = (Vec::with_capacity(rows.len()), HashMap::new());
    let mut found = BTreeSet::new();
    for row in rows {
        found.insert((row.tenant_id, SendId(row.id).batch()));
        if row.state == "accepted" {
            let payload: TransactionalPayload =
                serde_json::from_str(&row.payload).map_err(|error| StageError::malformed(&error))?;
            if let Some(id) = row.contact_id {
                let empty = [row.no_first_name, row.no_last_name, row.no_title, row.no_phone];
                known.insert((row.tenant_id, payload.address.as_str().to_owned()), Known { id, empty });
            }
            let options = row.options.map(|Json(options)| options).unwrap_or_default();
            accepted.push(Accepted { tenant_id: row.tenant_id, request_id: row.id, payload, options });
        }
    }
    if found.len() < asked.len() {
        return Err(StageError::rejected("unknown_request", "no such transactional request in the ledger"));
    }
    Ok((accepted, known))
}

/// Each contact once; the fields of an earlier request win over those of a later one.
fn wanted_contacts(accepted: &[Accepted]) -> HashMap<ContactKey, ContactDetails> {
    let mut wanted: HashMap<ContactKey, ContactDetails> = HashMap::with_capacity(accepted.len());
    for request in accepted {
        for (_, address) in request.sends() {
            wanted.entry((request.tenant_id, address.to_owned())).or_default();
        }
        let payload = &request.payload;
        let details = wanted.entry((request.tenant_id, payload.address.as_str().to_owned())).or_default();
        let fill = |field: &mut Option<String>, given: &Option<String>| {
            if field.is_none() {
                field.clone_from(given);
            }
        };
        fill(&mut details.first_name, &payload.contact.first_name);
        fill(&mut details.last_name, &payload.contact.last_name);
        fill(&mut details.title, &payload.contact.title);
        fill(&mut details.phone, &payload.contact.phone);
    }
    wanted
}

/// The contacts of these requests, of which some are known: finds others, creates missing ones, and fills empty fields of existing ones.
async fn find_or_create(
    db: &mut PgConnection,
    accepted: &[Accepted],
    mut known: HashMap<ContactKey, Known>,
) -> Result<HashMap<ContactKey, Uuid>, StageError> {
    let wanted = wanted_contacts(accepted);
    if accepted.iter().any(|request| !request.options.copies.is_empty()) {
        known = find(db, &wanted).await?;
    }
    // Those that exist before those that do not: an import locks them in this order.
    fill(db, &wanted, &known).await?;
    let missing: Vec<_> = wanted.iter().filter(|(key, _)| !known.contains_key(*key)).collect();
    let mut created = Vec::new();
    if !missing.is_empty() {
        created = create(db, &missing).await?;
        if created.len() < missing.len() {
            // Read again, in a statement of its own: another process has created one at the same moment.
            known = find(db, &wanted).await?;
            fill(db, &wanted, &known).await?;
        }
    }
    Ok(known.into_iter().map(|(key, contact)| (key, contact.id)).chain(created).collect())
}

/// The existing contacts.
async fn find(
    db: &mut PgConnection,
    wanted: &HashMap<ContactKey, ContactDetails>,
) -> Result<HashMap<ContactKey, Known>, StageError> {
    let rows = sqlx::query!(
        r#"select c.tenant_id, c.id, c.address, c.first_name is null as "no_first_name!", c.last_name is null as "no_last_name!",
                  c.title is null as "no_title!", c.phone is null as "no_phone!"
           from unnest($1::uuid[], $2::text[]) as w (tenant_id, address)
           join contacts c on c.tenant_id = w.tenant_id and c.address = w.address"#,
        &column(wanted.keys(), |(tenant, _)| *tenant),
        &column(wanted.keys(), |(_, address)| address.clone()),
    )
    .fetch_all(db)
    .await?;
    let found = rows.into_iter().map(|row| {
        let empty = [row.no_first_name, row.no_last_name, row.no_title, row.no_phone];
        ((row.tenant_id, row.address), Known { id: row.id, empty })
    });
    Ok(found.collect())
}

/// Fills empty fields of existing contacts from the requests.
async fn fill(
    db: &mut PgConnection,
    wanted: &HashMap<ContactKey, ContactDetails>,
    known: &HashMap<ContactKey, Known>,
) -> Result<(), StageError> {
    let to_fill = wanted.iter().filter_map(|(key, details)| {
        let contact = known.get(key)?;
        let fills = contact.empty.iter().zip(details.fields()).any(|(empty, (_, given))| *empty && given.is_some());
        fills.then_some((key.0, contact.id, details))
    });
    let to_fill: Vec<(Uuid, Uuid, &ContactDetails)> = to_fill.collect();
    if to_fill.is_empty() {
        return Ok(());
    }
    sqlx::query_file!(
        "queries/resolve/fill_contacts.sql",
        &column(&to_fill, |(tenant, ..)| *tenant),
        &column(&to_fill, |(_, id, _)| *id),
        &column(&to_fill, |(.., details)| details.first_name.clone()) as &[Option<String>],
        &column(&to_fill, |(.., details)| details.last_name.clone()) as &[Option<String>],
        &column(&to_fill, |(.., details)| details.title.clone()) as &[Option<String>],
        &column(&to_fill, |(.., details)| details.phone.clone()) as &[Option<String>],
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Creates contacts, except those that another transaction has created. They requested this mail, not marketing: their consent is pending.
async fn create(
    db: &mut PgConnection,
    missing: &[(&ContactKey, &ContactDetails)],
) -> Result<Vec<(ContactKey, Uuid)>, StageError> {
    // In the order of the unique key, so that two processes with the same new contacts cannot deadlock.
    let rows = sqlx::query!(
        "insert into contacts (tenant_id, id, address, first_name, last_name, title, phone, marketing_status, source)
         select w.tenant_id, w.id, w.address, w.first_name, w.last_name, w.title, w.phone, 'pending', 'transactional'
         from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
             as w (tenant_id, id, address, first_name, last_name, title, phone)
         order by w.tenant_id, w.address
         on conflict (tenant_id, address) do nothing
         returning tenant_id, address, id",
        &column(missing, |((tenant, _), _)| *tenant),
        &column(missing, |_| schemas::new_id()),
        &column(missing, |((_, address), _)| address.clone()),
        &column(missing, |(_, details)| details.first_name.clone()) as &[Option<String>],
        &column(missing, |(_, details)| details.last_name.clone()) as &[Option<String>],
        &column(missing, |(_, details)| details.title.clone()) as &[Option<String>],
        &column(missing, |(_, details)| details.phone.clone()) as &[Option<String>],
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| ((row.tenant_id, row.address), row.id)).collect())
}

/// Writes batch and send of each request, and marks it as handled. Answers the announcements of the priority batches.
async fn write(
    db: &mut PgConnection,
    accepted: &[Accepted],
    contacts: &HashMap<ContactKey, Uuid>,
    reannounce: Duration,
) -> Result<Vec<Publication>, StageError> {
    let mut sends: Vec<(&Accepted, Uuid, Uuid)> = Vec::with_capacity(accepted.len());
    for request in accepted {
        for (send, address) in request.sends() {
            let contact = contacts.get(&(request.tenant_id, address.to_owned()));
            sends.push((request, send, *contact.ok_or(StageError::Deferred { reason: "contact_vanished" })?));
        }
    }
    let rows = sqlx::query_file!(
        "queries/resolve/resolve_transactional.sql",
        &column(&sends, |(request, ..)| request.tenant_id),
        &column(&sends, |(request, ..)| request.request_id),
        &column(&sends, |(request, ..)| request.batch().1),
        &column(&sends, |(_, send, _)| month_of(*send)),
        &column(&sends, |(_, _, contact)| *contact),
        &column(&sends, |(request, ..)| request.payload.content_id),
        &column(&sends, |(request, ..)| request.payload.sender_id),
        reannounce.as_secs_f64(),
        PROMPT_BATCH_MAX as i64,
        &column(&sends, |(_, send, _)| *send),
        &column(&sends, |(request, ..)| request.options.is_bulk),
        PROMPT_OPEN_MAX,
        &column(&sends, |(request, ..)| request.options.scheduled_at.is_some()),
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
    use schemas::RequestKind;

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
