//! `notify_owner`: a one-off message to the tenant's owner, or to whom the step names. It takes the road of all one-off messages:
//! stored with its request here, resolved by the audience stage, judged by every gate. It is about the contact, so it goes with
//! him when he is erased.

use std::collections::HashMap;

use runtime::Publication;
use schemas::{Address, RequestAnnounced, RequestKind, SendId, messages::MessagePayload, new_batch_id, subjects};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Announcements, Effect, Item, MALFORMED, Outcome, Taken};
use crate::action::{Action, NotifyOwner};

/// A message to be.
struct Message<'a> {
    item: &'a Item<'a>,
    id: Uuid,
    sender: Uuid,
    recipient: Uuid,
    subject: String,
    html: String,
    text: String,
}

impl Message<'_> {
    fn send(&self) -> Uuid {
        SendId::of(self.id, 0).0
    }
}

fn asked<'a>(item: &Item<'a>) -> Option<&'a NotifyOwner> {
    match &item.step.action {
        Some(Action::NotifyOwner(notify)) => Some(notify),
        _ => None,
    }
}

fn recipient(item: &Item<'_>) -> Option<Address> {
    let to = asked(item)?.to.as_deref().unwrap_or(&item.sequence.owner_email);
    Address::parse(to).ok()
}

pub(super) async fn notify(
    db: &mut PgConnection,
    items: &[Item<'_>],
    announce: &mut Announcements,
) -> sqlx::Result<Vec<Taken>> {
    let senders = default_senders(&mut *db, items).await?;
    let recipients = find_or_create(&mut *db, items).await?;
    let mut messages = Vec::with_capacity(items.len());
    let mut taken = Vec::with_capacity(items.len());
    for item in items {
        let sender = item.sequence.sender_profile_id.or_else(|| senders.get(&item.due.tenant_id).copied());
        let to = recipient(item);
        let contact = to.as_ref().and_then(|to| recipients.get(&(item.due.tenant_id, to.as_str().to_owned())));
        taken.push(match (asked(item), sender, contact) {
            (None, ..) => MALFORMED,
            (_, None, _) => Taken::Failed("sender_required"),
            (_, _, None) => Taken::Failed("no_recipient"),
            (Some(notify), Some(sender), Some(contact)) => {
                let message = compose(item, notify, sender, *contact);
                let effect = Effect::of(Outcome::Done, json!({"message_id": message.id}));
                let effect = Effect { send_id: Some(message.send()), ..effect };
                messages.push(message);
                Taken::Took(effect)
            }
        });
    }
    insert(db, &messages).await?;
    for message in &messages {
        announce.push(publication(message)?);
    }
    Ok(taken)
}

fn compose<'a>(item: &'a Item<'a>, notify: &NotifyOwner, sender: Uuid, recipient: Uuid) -> Message<'a> {
    let name = [item.person.first_name.as_deref(), item.person.last_name.as_deref()];
    let name = name.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let contact =
        if name.is_empty() { item.person.address.clone() } else { format!("{name} <{}>", item.person.address) };
    let about = [("Contact", contact), ("Sequence", item.sequence.name.clone())];
    let lines: Vec<String> = about.iter().map(|(label, value)| format!("{label}: {value}")).collect();
    let paragraphs: Vec<String> = notify
        .message
        .split("\n\n")
        .map(|paragraph| format!("<p>{}</p>", escaped(paragraph.trim()).replace('\n', "<br>")))
        .collect();
    Message {
        item,
        id: new_batch_id(),
        sender,
        recipient,
        subject: notify.subject.clone(),
        html: format!("{}<hr><p>{}</p>", paragraphs.concat(), escaped(&lines.join("\n")).replace('\n', "<br>")),
        text: format!("{}\n\n-- \n{}\n", notify.message.trim_end(), lines.join("\n")),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The tenants' default senders: for sequences that have none.
async fn default_senders(db: &mut PgConnection, items: &[Item<'_>]) -> sqlx::Result<HashMap<Uuid, Uuid>> {
    let tenants: Vec<Uuid> = items.iter().map(|item| item.due.tenant_id).collect();
    let rows = sqlx::query!(
        "select w.id as \"tenant_id!\", s.id
         from (select distinct id from unnest($1::uuid[]) as w (id)) w
         join senders s on s.tenant_id = w.id and s.is_default",
        &tenants,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant_id, row.id)).collect())
}

/// The contacts of the recipients; those that are missing are made. They get this mail, not marketing: their consent is pending.
async fn find_or_create(db: &mut PgConnection, items: &[Item<'_>]) -> sqlx::Result<HashMap<(Uuid, String), Uuid>> {
    let mut wanted: Vec<(Uuid, String)> =
        items.iter().filter_map(|item| Some((item.due.tenant_id, recipient(item)?.into_string()))).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let (tenants, addresses): (Vec<Uuid>, Vec<String>) = wanted.into_iter().unzip();
    let ids: Vec<Uuid> = tenants.iter().map(|_| schemas::new_id()).collect();
    sqlx::query!(
        "insert into contacts (tenant_id, id, address, marketing_status, source)
         select w.tenant_id, w.id, w.address, 'pending', 'sequence'
         from unnest($1::uuid[], $2::uuid[], $3::text[]) as w (tenant_id, id, address)
         where not exists (select from contacts c where c.tenant_id = w.tenant_id and c.address = w.address)
         order by w.tenant_id, w.address
         on conflict (tenant_id, address) do nothing",
        &tenants,
        &ids,
        &addresses,
    )
    .execute(&mut *db)
    .await?;
    // A statement of its own: somebody else may have made one at the same moment.
    let rows = sqlx::query!(
        "select c.tenant_id, c.id, c.address
         from unnest($1::uuid[], $2::text[]) as w (tenant_id, address)
         join contacts c on c.tenant_id = w.tenant_id and c.address = w.address",
        &tenants,
        &addresses,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| ((row.tenant_id, row.address), row.id)).collect())
}

async fn insert(db: &mut PgConnection, messages: &[Message<'_>]) -> sqlx::Result<()> {
    let ids = |of: fn(&Message<'_>) -> Uuid| messages.iter().map(of).collect::<Vec<Uuid>>();
    let texts = |of: fn(&Message<'_>) -> String| messages.iter().map(of).collect::<Vec<String>>();
    let payloads: Vec<Value> =
        messages.iter().map(|message| json!(MessagePayload { message_id: message.id })).collect();
    sqlx::query_file!(
        "queries/insert_messages.sql",
        &ids(|message| message.item.due.tenant_id),
        &ids(|message| message.id),
        &ids(|message| message.sender),
        &texts(|message| message.subject.clone()),
        &texts(|message| message.html.clone()),
        &texts(|message| message.text.clone()),
    )
    .execute(&mut *db)
    .await?;
    sqlx::query_file!(
        "queries/insert_message_requests.sql",
        &ids(|message| message.item.due.tenant_id),
        &ids(|message| message.id),
        &ids(|message| message.send()),
        &ids(|message| message.recipient),
        &texts(|message| message.item.due.product.clone()),
        &texts(|message| message.item.sequence.environment.to_string()),
        &payloads,
        &ids(|message| message.item.due.sequence_id),
        &ids(|message| message.item.due.id),
        &ids(|message| message.item.step.id),
    )
    .execute(db)
    .await
    .map(drop)
}

fn publication(message: &Message<'_>) -> sqlx::Result<Publication> {
    let due = message.item.due;
    let ring = RequestAnnounced::of(due.tenant_id, message.id, RequestKind::Message);
    let subject = subjects::accepted(&due.product, message.item.sequence.environment, RequestKind::Message);
    Publication::json(subject, format!("request-{}", message.id.simple()), &ring)
        .map_err(|error| sqlx::Error::Encode(error.into()))
}
