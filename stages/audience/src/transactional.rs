//! Transactional requests: one contact, one send, one batch each, for as many requests as are waiting together.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use runner::StageError;
use runtime::Publication;
use schemas::{Lane, RequestAnnounced, messages::TransactionalPayload, month_of};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::announce::RungBatch;

/// An accepted request, with what it asks for.
struct Accepted {
    tenant_id: Uuid,
    request_id: Uuid,
    payload: TransactionalPayload,
}

/// A tenant's address: what a contact is found by.
type ContactKey = (Uuid, String);

/// What requests say of a person beside the address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Details {
    first_name: Option<String>,
    last_name: Option<String>,
    title: Option<String>,
    phone: Option<String>,
}

/// Resolves requests to sends and says what to announce. A request that was handled before is announced once more while its
/// batch has not moved: the process may have died between commit and publication.
pub(crate) async fn resolve(
    pool: &PgPool,
    inputs: &[&RequestAnnounced],
    reannounce: Duration,
) -> Result<Vec<Publication>, StageError> {
    let mut tx = pool.begin().await?;
    let (accepted, handled) = lock(&mut tx, inputs).await?;
    let mut rung = Vec::with_capacity(inputs.len());
    if !accepted.is_empty() {
        let contacts = find_or_create(&mut tx, &wanted_contacts(&accepted)).await?;
        write(&mut tx, &accepted, &contacts, reannounce).await?;
        rung.extend(accepted.iter().map(|request| first_announcement(request.tenant_id, request.payload.send_id)));
    }
    if !handled.is_empty() {
        rung.extend(unmoved(&mut tx, &handled).await?);
    }
    tx.commit().await?;
    rung.iter().map(RungBatch::publication).collect()
}

pub(crate) fn first_announcement(tenant_id: Uuid, batch_id: Uuid) -> RungBatch {
    RungBatch { tenant_id, batch_id, lane: Lane::Priority, announcement: 1 }
}

/// Takes the requests for this transaction: those to handle, and the send ids of those handled before.
async fn lock(
    db: &mut PgConnection,
    inputs: &[&RequestAnnounced],
) -> Result<(Vec<Accepted>, Vec<(Uuid, Uuid)>), StageError> {
    let asked: HashSet<(Uuid, Uuid)> = inputs.iter().map(|input| (input.tenant_id, input.request_id)).collect();
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = asked.iter().copied().unzip();
    let rows = sqlx::query!(
        r#"select r.tenant_id, r.id, r.state, r.payload::text as "payload!"
           from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
           join requests r on r.tenant_id = w.tenant_id and r.id = w.id
           where r.kind = 'transactional'
           order by r.tenant_id, r.id
           for update of r"#,
        &tenants,
        &ids,
    )
    .fetch_all(db)
    .await?;
    if rows.len() < asked.len() {
        return Err(StageError::rejected("unknown_request", "no such transactional request in the ledger"));
    }
    let (mut accepted, mut handled) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        match row.state.as_str() {
            "accepted" => {
                let payload = serde_json::from_str(&row.payload)
                    .map_err(|error| StageError::rejected("malformed_request", position(&error)))?;
                accepted.push(Accepted { tenant_id: row.tenant_id, request_id: row.id, payload });
            }
            "handled" => handled.push((row.tenant_id, row.id)),
            _ => {}
        }
    }
    Ok((accepted, handled))
}

/// Where a payload is at fault. The error's own words quote the value, which may be an address.
fn position(error: &serde_json::Error) -> String {
    format!("the payload is at fault at line {} column {}", error.line(), error.column())
}

/// Each person once; what an earlier request says stands before what a later one says.
fn wanted_contacts(accepted: &[Accepted]) -> HashMap<ContactKey, Details> {
    let mut wanted: HashMap<ContactKey, Details> = HashMap::with_capacity(accepted.len());
    for Accepted { tenant_id, payload, .. } in accepted {
        let details = wanted.entry((*tenant_id, payload.address.as_str().to_owned())).or_default();
        let fill = |field: &mut Option<String>, given: &Option<String>| {
            if field.is_none() {
                field.clone_from(given);
            }
        };
        fill(&mut details.first_name, &payload.first_name);
        fill(&mut details.last_name, &payload.last_name);
        fill(&mut details.title, &payload.title);
        fill(&mut details.phone, &payload.phone);
    }
    wanted
}

/// Finds the contacts, makes those that are missing, and fills what is empty in those that are there.
async fn find_or_create(
    db: &mut PgConnection,
    wanted: &HashMap<ContactKey, Details>,
) -> Result<HashMap<ContactKey, Uuid>, StageError> {
    let mut found = find(db, wanted).await?;
    let missing: Vec<_> = wanted.iter().filter(|(key, _)| !found.contains_key(*key)).collect();
    if !missing.is_empty() {
        create(db, &missing).await?;
        // Looked up again, in a statement of its own: somebody else may have made one at the same moment.
        found = find(db, wanted).await?;
    }
    Ok(found)
}

/// The contacts there are. Fills their empty fields on the way, when a request knows better.
async fn find(
    db: &mut PgConnection,
    wanted: &HashMap<ContactKey, Details>,
) -> Result<HashMap<ContactKey, Uuid>, StageError> {
    let tenants: Vec<Uuid> = wanted.keys().map(|(tenant, _)| *tenant).collect();
    let addresses: Vec<String> = wanted.keys().map(|(_, address)| address.clone()).collect();
    let rows = sqlx::query!(
        r#"select c.tenant_id, c.id, c.address, c.first_name is null as "no_first_name!", c.last_name is null as "no_last_name!",
                  c.title is null as "no_title!", c.phone is null as "no_phone!"
           from unnest($1::uuid[], $2::text[]) as w (tenant_id, address)
           join contacts c on c.tenant_id = w.tenant_id and c.address = w.address"#,
        &tenants,
        &addresses,
    )
    .fetch_all(&mut *db)
    .await?;
    let mut contacts = HashMap::with_capacity(rows.len());
    let mut to_fill = Vec::new();
    for row in rows {
        let key = (row.tenant_id, row.address);
        if let Some(details) = wanted.get(&key) {
            let known = [
                (row.no_first_name, &details.first_name),
                (row.no_last_name, &details.last_name),
                (row.no_title, &details.title),
                (row.no_phone, &details.phone),
            ];
            if known.iter().any(|(empty, given)| *empty && given.is_some()) {
                to_fill.push((row.tenant_id, row.id, details));
            }
        }
        contacts.insert(key, row.id);
    }
    if !to_fill.is_empty() {
        fill(db, &to_fill).await?;
    }
    Ok(contacts)
}

/// The details of many contacts as the columns of an `unnest`.
#[derive(Default)]
struct Columns {
    first_names: Vec<Option<String>>,
    last_names: Vec<Option<String>>,
    titles: Vec<Option<String>>,
    phones: Vec<Option<String>>,
}

impl<'a> FromIterator<&'a Details> for Columns {
    fn from_iter<I: IntoIterator<Item = &'a Details>>(all: I) -> Self {
        let mut columns = Self::default();
        for details in all {
            columns.first_names.push(details.first_name.clone());
            columns.last_names.push(details.last_name.clone());
            columns.titles.push(details.title.clone());
            columns.phones.push(details.phone.clone());
        }
        columns
    }
}

async fn fill(db: &mut PgConnection, to_fill: &[(Uuid, Uuid, &Details)]) -> Result<(), StageError> {
    let tenants: Vec<Uuid> = to_fill.iter().map(|(tenant, ..)| *tenant).collect();
    let ids: Vec<Uuid> = to_fill.iter().map(|(_, id, _)| *id).collect();
    let columns: Columns = to_fill.iter().map(|(.., details)| *details).collect();
    sqlx::query_file!(
        "queries/fill_contacts.sql",
        &tenants,
        &ids,
        &columns.first_names as &[Option<String>],
        &columns.last_names as &[Option<String>],
        &columns.titles as &[Option<String>],
        &columns.phones as &[Option<String>],
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Makes contacts. They have asked for this mail, not for marketing: their consent is pending.
async fn create(db: &mut PgConnection, missing: &[(&ContactKey, &Details)]) -> Result<(), StageError> {
    let tenants: Vec<Uuid> = missing.iter().map(|((tenant, _), _)| *tenant).collect();
    let ids: Vec<Uuid> = missing.iter().map(|_| schemas::new_id()).collect();
    let addresses: Vec<String> = missing.iter().map(|((_, address), _)| address.clone()).collect();
    let columns: Columns = missing.iter().map(|(_, details)| *details).collect();
    // In the order of the unique key, so that two processes with the same new people do not wait for each other in a circle.
    sqlx::query!(
        "insert into contacts (tenant_id, id, address, first_name, last_name, title, phone, marketing_status, source)
         select w.tenant_id, w.id, w.address, w.first_name, w.last_name, w.title, w.phone, 'pending', 'transactional'
         from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
             as w (tenant_id, id, address, first_name, last_name, title, phone)
         order by w.tenant_id, w.address
         on conflict (tenant_id, address) do nothing",
        &tenants,
        &ids,
        &addresses,
        &columns.first_names as &[Option<String>],
        &columns.last_names as &[Option<String>],
        &columns.titles as &[Option<String>],
        &columns.phones as &[Option<String>],
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Writes batch and send of each request, and that it is handled.
async fn write(
    db: &mut PgConnection,
    accepted: &[Accepted],
    contacts: &HashMap<ContactKey, Uuid>,
    reannounce: Duration,
) -> Result<(), StageError> {
    let mut contact_ids = Vec::with_capacity(accepted.len());
    for request in accepted {
        let key = (request.tenant_id, request.payload.address.as_str().to_owned());
        let contact = contacts.get(&key).ok_or(StageError::Deferred { reason: "contact_vanished" })?;
        contact_ids.push(*contact);
    }
    let column = |of: fn(&Accepted) -> Uuid| accepted.iter().map(of).collect::<Vec<Uuid>>();
    let months: Vec<_> = accepted.iter().map(|request| month_of(request.payload.send_id)).collect();
    sqlx::query_file!(
        "queries/resolve_transactional.sql",
        &column(|request| request.tenant_id),
        &column(|request| request.request_id),
        &column(|request| request.payload.send_id),
        &months,
        &contact_ids,
        &column(|request| request.payload.content_id),
        &column(|request| request.payload.sender_id),
        reannounce.as_secs_f64(),
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Of handled requests, the batches that nobody has touched since their first announcement.
async fn unmoved(db: &mut PgConnection, handled: &[(Uuid, Uuid)]) -> Result<Vec<RungBatch>, StageError> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = handled.iter().copied().unzip();
    let rows = sqlx::query!(
        "select b.tenant_id, b.id
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
         join requests r on r.tenant_id = w.tenant_id and r.id = w.id
         join batches b on b.tenant_id = r.tenant_id and b.id = (r.payload ->> 'send_id')::uuid
         where b.state = 'announced' and b.announcement = 1 and b.queued = 1",
        &tenants,
        &ids,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| first_announcement(row.tenant_id, row.id)).collect())
}
