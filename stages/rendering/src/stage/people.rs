//! The recipients' merge data, loaded for all batches of a group with one statement each.

use chrono::NaiveDate;
use runner::StageError;
use runtime::column;
use schemas::{
    Cleared, Lane, MessageKind, SendId,
    messages::{ERASED_COPY, MailCopy, MailOptions, RecipientRole},
    month_of,
};
use serde_json::{Value, json};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use templates::{Contact, MergeData, OwnHeaders};

use super::content::MailShape;

/// One send to render.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwedRecipient {
    /// Index of its batch in the group.
    pub(super) input: usize,
    pub(super) tenant_id: Uuid,
    pub(super) send_id: SendId,
    pub(super) contact_id: Uuid,
    pub(super) kind: MessageKind,
    /// True if the mail may get a second attempt, in either lane: its rendition is stored.
    pub(super) is_kept: bool,
}

/// What one send is rendered from.
#[derive(Debug, Clone)]
pub(super) struct RecipientData {
    pub(super) address: String,
    /// True for a cc or bcc copy: its merge data is that of the mail's own recipient.
    is_copy: bool,
    pub(super) data: MergeData,
    pub(super) shape: MailShape,
    /// True if the mail asks its recipient to confirm: `data` gets the link.
    pub(super) asks_to_confirm: bool,
}

/// All sends of the batches.
pub(super) fn owed(inputs: &[Cleared]) -> Vec<OwedRecipient> {
    let sends = inputs.iter().enumerate().flat_map(|(input, batch)| {
        batch.recipients.iter().map(move |recipient| OwedRecipient {
            input,
            tenant_id: batch.tenant_id,
            send_id: SendId::of(batch.batch_id, recipient.ordinal),
            contact_id: recipient.contact_id,
            kind: batch.kind,
            is_kept: batch.lane == Lane::Priority
                || batch.kind == MessageKind::Transactional
                || batch.kind.is_written(),
        })
    });
    sends.collect()
}

/// The merge data and the shape of each send, in order. `None`: the contact is gone.
pub(super) async fn load_merge_data(
    db: &mut PgConnection,
    sends: &[OwedRecipient],
) -> Result<Vec<Option<RecipientData>>, StageError> {
    if sends.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<RecipientKey> = sends
        .iter()
        .map(|send| RecipientKey {
            tenant_id: send.tenant_id,
            contact_id: send.contact_id,
            // Other mail has no request whose `data` and options it is rendered with.
            request_of: matches!(send.kind, MessageKind::Transactional | MessageKind::OneOff).then_some(send.send_id),
        })
        .collect();
    let mut people: Vec<Option<RecipientData>> = vec![None; sends.len()];
    let mut copies: Vec<(usize, RecipientKey)> = Vec::new();
    for (at, (send, found)) in sends.iter().zip(load_recipients(db, &keys).await?).enumerate() {
        let Some(found) = found else { continue };
        let is_copy = found.copy_of.is_some();
        if let Some(contact_id) = found.copy_of {
            copies.push((at, RecipientKey { tenant_id: send.tenant_id, contact_id, request_of: None }));
        } else if found.is_other && send.kind == MessageKind::Transactional {
            // A copy of a mail whose recipient was erased.
            continue;
        }
        people[at] = Some(RecipientData {
            address: found.contact.email.clone(),
            is_copy,
            shape: MailShape::of(&found.options, is_copy),
            asks_to_confirm: found.options.asks_to_confirm,
            data: MergeData {
                contact: found.contact,
                data: found.data,
                event: Value::Null,
                headers: own_headers(found.options),
            },
        });
    }
    fill_copies(db, copies, &mut people).await?;
    fill_events(db, sends, &mut people).await?;
    fill_names(db, sends, &mut people).await?;
    Ok(people)
}

/// A recipient to look up.
struct RecipientKey {
    tenant_id: Uuid,
    contact_id: Uuid,
    /// The send whose request is looked up as well.
    request_of: Option<SendId>,
}

/// A recipient as it was read.
struct FoundRecipient {
    contact: Contact,
    /// `data` of the request.
    data: Value,
    /// What the caller set for this mail.
    options: MailOptions,
    /// True if the request is that of another send.
    is_other: bool,
    /// The contact that this send is a copy for.
    copy_of: Option<Uuid>,
}

/// These recipients, in order. `None`: the contact is gone.
async fn load_recipients(db: &mut PgConnection, keys: &[RecipientKey]) -> sqlx::Result<Vec<Option<FoundRecipient>>> {
    let mut recipients: Vec<Option<FoundRecipient>> = keys.iter().map(|_| None).collect();
    let rows = sqlx::query_file!(
        "queries/recipients.sql",
        &column(keys, |key| key.tenant_id),
        &column(keys, |key| key.contact_id),
        &column(keys, |key| key.request_of.map(|send| send.0)) as &[Option<Uuid>],
        &column(keys, |key| key.request_of.map(|send| month_of(send.0))) as &[Option<NaiveDate>]
    )
    .fetch_all(db)
    .await?;
    for row in rows {
        let Some(slot) = index(row.place).and_then(|at| recipients.get_mut(at)) else { continue };
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
            fields: row.fields,
        };
        *slot = Some(FoundRecipient {
            contact,
            data: row.data.unwrap_or(Value::Null),
            options: row.options.map(|Json(options)| options).unwrap_or_default(),
            is_other: row.is_other,
            copy_of: row.to_contact_id,
        });
    }
    Ok(recipients)
}

/// Gives copies the merge data of the mail's own recipient. A copy whose recipient is gone is not rendered.
async fn fill_copies(
    db: &mut PgConnection,
    copies: Vec<(usize, RecipientKey)>,
    people: &mut [Option<RecipientData>],
) -> Result<(), StageError> {
    if copies.is_empty() {
        return Ok(());
    }
    let (places, keys): (Vec<usize>, Vec<RecipientKey>) = copies.into_iter().unzip();
    for (at, found) in places.into_iter().zip(load_recipients(db, &keys).await?) {
        people[at] = people[at].take().zip(found).map(|(mut person, found)| {
            person.data.contact = found.contact;
            person
        });
    }
    Ok(())
}

/// The sends of these kinds whose contact is there, each with its recipient.
fn of_kind<'a>(
    sends: &'a [OwedRecipient],
    people: &'a mut [Option<RecipientData>],
    is_wanted: impl Fn(MessageKind) -> bool,
) -> Vec<(&'a OwedRecipient, &'a mut RecipientData)> {
    let all = sends.iter().zip(people).filter(|(send, _)| is_wanted(send.kind));
    all.filter_map(|(send, person)| Some((send, person.as_mut()?))).collect()
}

/// Sets the names of a one-off message's recipients as the caller gave them. The contact's stored name is not used.
async fn fill_names(
    db: &mut PgConnection,
    sends: &[OwedRecipient],
    people: &mut [Option<RecipientData>],
) -> Result<(), StageError> {
    let mut wanted = of_kind(sends, people, MessageKind::is_written);
    if wanted.is_empty() {
        return Ok(());
    }
    for (_, person) in &mut wanted {
        (person.data.contact.first_name, person.data.contact.last_name) = (None, None);
    }
    // In To stands the mail's own recipient.
    let named = |send: &OwedRecipient, person: &RecipientData| {
        if person.is_copy { SendId::of(send.send_id.batch(), 0).0 } else { send.send_id.0 }
    };
    let rows = sqlx::query!(
        r#"select w.place as "place!", r.name as "name!"
           from unnest($1::uuid[], $2::uuid[]) with ordinality as w (tenant_id, send_id, place)
           join message_recipients r on r.tenant_id = w.tenant_id and r.send_id = w.send_id
           where r.name is not null"#,
        &column(&wanted, |(send, _)| send.tenant_id),
        &column(&wanted, |(send, person)| named(send, person))
    )
    .fetch_all(db)
    .await?;
    for row in rows {
        if let Some((_, person)) = index(row.place).and_then(|at| wanted.get_mut(at)) {
            person.data.contact.first_name = Some(row.name);
        }
    }
    Ok(())
}

fn own_headers(options: MailOptions) -> OwnHeaders {
    let is_seen = |copy: &MailCopy| copy.role == RecipientRole::Cc && copy.address.as_str() != ERASED_COPY;
    let seen = options.copies.into_iter().filter(is_seen);
    OwnHeaders {
        from_name: options.from_name,
        // A form gave it, which anybody fills in: it could be an advertisement.
        to_name: options.asks_to_confirm.then(String::new),
        reply_to: options.reply_to.map(|address| address.as_str().to_owned()),
        cc: seen.map(|copy| (copy.name.unwrap_or_default(), copy.address.as_str().to_owned())).collect(),
        custom: options.headers.into_iter().collect(),
    }
}

/// `event` of mail of sequences that an event of a product started.
async fn fill_events(
    db: &mut PgConnection,
    sends: &[OwedRecipient],
    people: &mut [Option<RecipientData>],
) -> Result<(), StageError> {
    let mut wanted = of_kind(sends, people, |kind| kind == MessageKind::Sequence);
    if wanted.is_empty() {
        return Ok(());
    }
    let tenants = column(&wanted, |(send, _)| send.tenant_id);
    let ids = column(&wanted, |(send, _)| send.send_id.0);
    let rows = sqlx::query_file!("queries/start_events.sql", &tenants, &ids).fetch_all(db).await?;
    for row in rows {
        if let Some((_, person)) = index(row.place).and_then(|at| wanted.get_mut(at)) {
            person.data.event = json!({"name": row.name, "occurred_at": row.occurred_at, "properties": row.properties});
        }
    }
    Ok(())
}

/// An array index from a position as `with ordinality` counts it, from 1.
fn index(place: i64) -> Option<usize> {
    usize::try_from(place - 1).ok()
}
