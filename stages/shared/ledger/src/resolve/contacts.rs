//! The recipients of transactional requests: found by their address or created, and their empty fields filled.

use std::collections::HashMap;

use runner::StageError;
use runtime::column;
use schemas::messages::ContactDetails;
use sqlx::PgConnection;
use uuid::Uuid;

use super::transactional::MailRequest;

/// A tenant's address: the key of a contact.
pub(super) type ContactKey = (Uuid, String);

/// A contact that exists already.
struct Known {
    id: Uuid,
    /// Which of its fields are empty, in the order of [`ContactDetails::fields`].
    empty: [bool; 4],
}

/// The contacts of these requests: finds those that exist and fills their empty fields, and creates the others.
pub(super) async fn find_or_create(
    db: &mut PgConnection,
    requests: &[MailRequest<'_>],
) -> Result<HashMap<ContactKey, Uuid>, StageError> {
    let wanted = wanted_contacts(requests);
    let mut known = find(db, &wanted).await?;
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

/// Each contact once; the fields of an earlier request win over those of a later one.
fn wanted_contacts(requests: &[MailRequest<'_>]) -> HashMap<ContactKey, ContactDetails> {
    let mut wanted: HashMap<ContactKey, ContactDetails> = HashMap::with_capacity(requests.len());
    for request in requests {
        for (_, address) in request.sends() {
            wanted.entry((request.tenant_id, address.to_owned())).or_default();
        }
        let payload = request.payload;
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
