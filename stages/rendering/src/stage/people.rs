//! The recipients' merge data, loaded for all batches of a group with one statement each.

use runner::StageError;
use schemas::{Cleared, MessageKind, SendId, month_of};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use templates::{Contact, MergeData};

/// A contact's own fields.
type Fields = sqlx::types::Json<serde_json::Map<String, Value>>;

/// One send to render.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwedRecipient {
    /// Index of its batch in the group.
    pub(super) input: usize,
    pub(super) tenant_id: Uuid,
    pub(super) send_id: SendId,
    pub(super) contact_id: Uuid,
}

/// All sends of the batches.
pub(super) fn owed(inputs: &[Cleared]) -> Vec<OwedRecipient> {
    let sends = inputs.iter().enumerate().flat_map(|(input, batch)| {
        batch.recipients.iter().map(move |recipient| OwedRecipient {
            input,
            tenant_id: batch.tenant_id,
            send_id: SendId::of(batch.batch_id, recipient.ordinal),
            contact_id: recipient.contact_id,
        })
    });
    sends.collect()
}

/// The merge data of each send, in order. `None`: the contact is gone.
pub(super) async fn load_merge_data(
    db: &mut PgConnection,
    inputs: &[Cleared],
    sends: &[OwedRecipient],
) -> Result<Vec<Option<MergeData>>, StageError> {
    if sends.is_empty() {
        return Ok(Vec::new());
    }
    let mut people: Vec<Option<MergeData>> = vec![None; sends.len()];
    let tenants: Vec<Uuid> = sends.iter().map(|send| send.tenant_id).collect();
    let contacts: Vec<Uuid> = sends.iter().map(|send| send.contact_id).collect();
    let rows = sqlx::query_file!("queries/contacts.sql", &tenants, &contacts).fetch_all(&mut *db).await?;
    for row in rows {
        let Some(person) = index(row.place).and_then(|at| people.get_mut(at)) else { continue };
        let contact = Contact {
            email: row.address,
            first_name: row.first_name,
            last_name: row.last_name,
            title: row.title,
            phone: row.phone,
            company: row.company,
            timezone: row.timezone,
            locale: row.locale,
            lifecycle_stage: row.lifecycle_stage,
            dot_number: row.dot_number.map(|number| number.to_string()),
            fields: row.fields.0,
        };
        *person = Some(MergeData { contact, data: Value::Null });
    }
    fill_data(db, inputs, sends, &mut people).await?;
    fill_names(db, inputs, sends, &mut people).await?;
    Ok(people)
}

/// Sets the names of a one-off message's recipients as the caller gave them. The contact's stored name is not used.
async fn fill_names(
    db: &mut PgConnection,
    inputs: &[Cleared],
    sends: &[OwedRecipient],
    people: &mut [Option<MergeData>],
) -> Result<(), StageError> {
    let is_one_off =
        |send: &OwedRecipient| inputs.get(send.input).is_some_and(|batch| batch.kind == MessageKind::OneOff);
    let wanted: Vec<(usize, &OwedRecipient)> = sends.iter().enumerate().filter(|(_, send)| is_one_off(send)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    for (at, _) in &wanted {
        if let Some(Some(person)) = people.get_mut(*at) {
            (person.contact.first_name, person.contact.last_name) = (None, None);
        }
    }
    let tenants: Vec<Uuid> = wanted.iter().map(|(_, send)| send.tenant_id).collect();
    let ids: Vec<Uuid> = wanted.iter().map(|(_, send)| send.send_id.0).collect();
    let rows = sqlx::query!(
        r#"select w.place as "place!", r.name as "name!"
           from unnest($1::uuid[], $2::uuid[]) with ordinality as w (tenant_id, send_id, place)
           join message_recipients r on r.tenant_id = w.tenant_id and r.send_id = w.send_id
           where r.name is not null"#,
        &tenants,
        &ids
    )
    .fetch_all(db)
    .await?;
    for row in rows {
        let at = index(row.place).and_then(|place| wanted.get(place)).map(|(at, _)| *at);
        if let Some(Some(person)) = at.and_then(|at| people.get_mut(at)) {
            person.contact.first_name = Some(row.name);
        }
    }
    Ok(())
}

/// `data` of transactional requests.
async fn fill_data(
    db: &mut PgConnection,
    inputs: &[Cleared],
    sends: &[OwedRecipient],
    people: &mut [Option<MergeData>],
) -> Result<(), StageError> {
    let is_transactional =
        |send: &OwedRecipient| inputs.get(send.input).is_some_and(|batch| batch.kind == MessageKind::Transactional);
    let wanted: Vec<(usize, &OwedRecipient)> =
        sends.iter().enumerate().filter(|(_, send)| is_transactional(send)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let tenants: Vec<Uuid> = wanted.iter().map(|(_, send)| send.tenant_id).collect();
    let ids: Vec<Uuid> = wanted.iter().map(|(_, send)| send.send_id.0).collect();
    let months: Vec<chrono::NaiveDate> = ids.iter().map(|id| month_of(*id)).collect();
    let rows = sqlx::query_file!("queries/request_data.sql", &tenants, &ids, &months).fetch_all(db).await?;
    for row in rows {
        let at = index(row.place).and_then(|place| wanted.get(place)).map(|(at, _)| *at);
        if let Some(Some(person)) = at.and_then(|at| people.get_mut(at)) {
            person.data = row.data.unwrap_or(Value::Null);
        }
    }
    Ok(())
}

/// An array index from a position as `with ordinality` counts it, from 1.
pub(super) fn index(place: i64) -> Option<usize> {
    usize::try_from(place - 1).ok()
}
