//! `notify_owner`: a one-off message to the tenant's owner, or to the address the step names. It passes the pipeline like all one-off
//! messages: stored with its request here, resolved by the audience stage, decided by every gate. It is about the contact, so it is erased
//! with the contact.
//!
//! It needs no consent, so it is bounded: it goes to the owner's address or one on a proven domain of the tenant, at most once an
//! hour for each enrollment, and a tenant has an hourly limit. An enrollment that finds no capacity waits for it.

use std::collections::{BTreeSet, HashMap};

use chrono::{DateTime, TimeDelta, Utc};
use htmlize::escape_text;
use runtime::{Publication, column};
use schemas::{Address, RequestAnnounced, RequestKind, SendId, messages::MessagePayload, new_batch_id, subjects};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Announcements, DueStep, Effect, MALFORMED, StepHold, StepOutcome, StepResult};
use schemas::action::{Action, NotifyOwner};

/// A message to be.
struct Message<'a> {
    item: &'a DueStep<'a>,
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

fn asked<'a>(item: &DueStep<'a>) -> Option<&'a NotifyOwner> {
    match &item.step.action {
        Some(Action::NotifyOwner(notify)) => Some(notify),
        _ => None,
    }
}

fn recipient(item: &DueStep<'_>) -> Option<Address> {
    let to = asked(item)?.to.as_deref().unwrap_or(&item.sequence.owner_email);
    Address::parse(to).ok()
}

/// The window of both limits.
const WINDOW: TimeDelta = TimeDelta::hours(1);

pub(super) async fn notify(
    db: &mut PgConnection,
    items: &[DueStep<'_>],
    announce: &mut Announcements,
    per_hour: u32,
) -> sqlx::Result<Vec<StepResult>> {
    let allowed = allowed(&mut *db, items).await?;
    let earlier = earlier(&mut *db, items).await?;
    let mut capacity = capacity(&mut *db, items, per_hour).await?;
    let recipients = find_or_create(&mut *db, items, &allowed).await?;
    let mut messages = Vec::with_capacity(items.len());
    let mut taken = Vec::with_capacity(items.len());
    for (item, is_allowed) in items.iter().zip(&allowed) {
        let tenant = item.due.tenant_id;
        let sender = item.sequence.sender_profile_id.or(item.sequence.default_sender_id);
        let to = recipient(item);
        if asked(item).is_some() && to.is_some() && !is_allowed {
            let detail = json!({"reason": "recipient_not_allowed"});
            taken.push(StepResult::Took(Effect::of(StepOutcome::Withheld, detail)));
            continue;
        }
        let contact = to.as_ref().and_then(|to| recipients.get(&(tenant, to.as_str().to_owned())));
        taken.push(match (asked(item), sender, contact) {
            (None, ..) => MALFORMED,
            (_, None, _) => StepResult::Failed("sender_required"),
            (_, _, None) => StepResult::Failed("no_recipient"),
            (Some(notify), Some(sender), Some(contact)) => {
                let wait = match earlier.get(&(tenant, item.due.id)) {
                    Some(at) => Some(*at + WINDOW),
                    None => capacity.get_mut(&tenant).and_then(Capacity::take),
                };
                if let Some(until) = wait {
                    taken.push(StepResult::Wait(StepHold::OwnerMails, until));
                    continue;
                }
                let message = compose(item, notify, sender, *contact);
                let effect = Effect::of(StepOutcome::Done, json!({"message_id": message.id}));
                let effect = Effect { send_id: Some(message.send()), ..effect };
                messages.push(message);
                StepResult::Took(effect)
            }
        });
    }
    insert(db, &messages).await?;
    for message in &messages {
        announce.push(publication(message)?);
    }
    Ok(taken)
}

/// What a tenant may still send in this hour.
#[derive(Debug)]
struct Capacity {
    limit: usize,
    /// When the mails of the last hour were made, oldest first.
    used: Vec<DateTime<Utc>>,
    granted: usize,
    refused: usize,
}

impl Capacity {
    /// Takes a mail, or says when to ask again: each of those that wait waits for another mail to leave the window, so that they do
    /// not all come back at once.
    fn take(&mut self) -> Option<DateTime<Utc>> {
        if self.used.len() + self.granted < self.limit {
            self.granted += 1;
            return None;
        }
        let (round, place) = (self.refused / self.limit, self.refused % self.limit);
        self.refused += 1;
        let leaves = self.used.get(place).copied().unwrap_or_else(Utc::now);
        Some(leaves + WINDOW * i32::try_from(round + 1).unwrap_or(i32::MAX))
    }
}

/// The capacity of the items' tenants; none without a limit. Holds each tenant's lock until the transaction ends, in order, so that of
/// two groups one counts the other.
async fn capacity(
    db: &mut PgConnection,
    items: &[DueStep<'_>],
    per_hour: u32,
) -> sqlx::Result<HashMap<Uuid, Capacity>> {
    let limit = usize::try_from(per_hour).unwrap_or(usize::MAX);
    if limit == 0 {
        return Ok(HashMap::new());
    }
    let tenants: BTreeSet<Uuid> = items.iter().map(|item| item.due.tenant_id).collect();
    let tenants: Vec<Uuid> = tenants.into_iter().collect();
    sqlx::query!(
        "select pg_advisory_xact_lock(hashtextextended('postrider owner mail ' || w.tenant_id, 0)) as locked
         from unnest($1::uuid[]) as w (tenant_id)",
        &tenants
    )
    .fetch_all(&mut *db)
    .await?;
    // In a statement of its own, whose snapshot is taken under the locks.
    let rows =
        sqlx::query_file!("queries/owner_capacity.sql", &tenants, i64::from(per_hour)).fetch_all(&mut *db).await?;
    let capacity = |used| Capacity { limit, used, granted: 0, refused: 0 };
    Ok(rows.into_iter().map(|row| (row.tenant_id, capacity(row.used))).collect())
}

/// The mails that these enrollments had in the last hour: when the latest was made. By the steps' primary key.
async fn earlier(db: &mut PgConnection, items: &[DueStep<'_>]) -> sqlx::Result<HashMap<(Uuid, Uuid), DateTime<Utc>>> {
    let (tenants, enrollments): (Vec<Uuid>, Vec<Uuid>) =
        items.iter().map(|item| (item.due.tenant_id, item.due.id)).unzip();
    let rows = sqlx::query!(
        r#"select w.tenant_id as "tenant_id!", w.id as "id!", max(p.done_at) as "done_at!"
           from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
           join enrollment_steps p on p.tenant_id = w.tenant_id and p.enrollment_id = w.id
           where p.step_type = 'notify_owner' and p.send_id is not null and p.done_at > now() - interval '1 hour'
           group by w.tenant_id, w.id"#,
        &tenants,
        &enrollments,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| ((row.tenant_id, row.id), row.done_at)).collect())
}

/// For each item, whether its recipient is the owner or has an address on a proven domain of the tenant, now.
async fn allowed(db: &mut PgConnection, items: &[DueStep<'_>]) -> sqlx::Result<Vec<bool>> {
    sqlx::query_scalar!(
        r#"select is_owners_address(w.tenant_id, w.address) as "allowed!"
           from unnest($1::uuid[], $2::text[]) with ordinality as w (tenant_id, address, place)
           order by w.place"#,
        &column(items, |item| item.due.tenant_id),
        &column(items, |item| recipient(item).map(Address::into_string).unwrap_or_default()),
    )
    .fetch_all(db)
    .await
}

fn compose<'a>(item: &'a DueStep<'a>, notify: &NotifyOwner, sender: Uuid, recipient: Uuid) -> Message<'a> {
    let name = [item.person.first_name.as_deref(), item.person.last_name.as_deref()];
    let name = name.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let contact =
        if name.is_empty() { item.person.address.clone() } else { format!("{name} <{}>", item.person.address) };
    let about = [("Contact", contact), ("Sequence", item.sequence.name.clone())];
    let lines: Vec<String> = about.iter().map(|(label, value)| format!("{label}: {value}")).collect();
    let paragraphs: Vec<String> = notify
        .message
        .split("\n\n")
        .map(|paragraph| format!("<p>{}</p>", escape_text(paragraph.trim()).replace('\n', "<br>")))
        .collect();
    Message {
        item,
        id: new_batch_id(),
        sender,
        recipient,
        subject: notify.subject.clone(),
        html: format!("{}<hr><p>{}</p>", paragraphs.concat(), escape_text(lines.join("\n")).replace('\n', "<br>")),
        text: format!("{}\n\n-- \n{}\n", notify.message.trim_end(), lines.join("\n")),
    }
}

/// The contacts of the recipients; those that are missing are made, as all that are first seen by a one-off message. They get this mail, not
/// marketing: their consent is pending.
async fn find_or_create(
    db: &mut PgConnection,
    items: &[DueStep<'_>],
    allowed: &[bool],
) -> sqlx::Result<HashMap<(Uuid, String), Uuid>> {
    let wanted: BTreeSet<(Uuid, String)> = items
        .iter()
        .zip(allowed)
        .filter(|(_, allowed)| **allowed)
        .filter_map(|(item, _)| Some((item.due.tenant_id, recipient(item)?.into_string())))
        .collect();
    let (tenants, addresses): (Vec<Uuid>, Vec<String>) = wanted.into_iter().unzip();
    sqlx::query!(
        "insert into contacts (tenant_id, id, address, marketing_status, source)
         select w.tenant_id, w.id, w.address, 'pending', 'message'
         from unnest($1::uuid[], $2::uuid[], $3::text[]) as w (tenant_id, id, address)
         where not exists (select from contacts c where c.tenant_id = w.tenant_id and c.address = w.address)
         order by w.tenant_id, w.address
         on conflict (tenant_id, address) do nothing",
        &tenants,
        &column(&tenants, |_| schemas::new_id()),
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
    sqlx::query_file!(
        "queries/insert_messages.sql",
        &column(messages, |message| message.item.due.tenant_id),
        &column(messages, |message| message.id),
        &column(messages, |message| message.sender),
        &column(messages, |message| message.subject.clone()),
        &column(messages, |message| message.html.clone()),
        &column(messages, |message| message.text.clone()),
        &column(messages, |message| message.send()),
        &column(messages, |message| message.recipient),
        &column(messages, |message| message.item.due.product.clone()),
        &column(messages, |message| message.item.sequence.environment.to_string()),
        &column(messages, |message| json!(MessagePayload { message_id: message.id })),
        &column(messages, |message| message.item.due.sequence_id),
        &column(messages, |message| message.item.due.id),
        &column(messages, |message| message.item.step.id),
    )
    .execute(db)
    .await
    .map(drop)
}

fn publication(message: &Message<'_>) -> sqlx::Result<Publication> {
    let due = message.item.due;
    let announced = RequestAnnounced::of(due.tenant_id, message.id, RequestKind::Message);
    let subject = subjects::accepted(&due.product, message.item.sequence.environment, RequestKind::Message);
    Publication::json(subject, format!("request-{}", message.id.simple()), &announced)
        .map_err(|error| sqlx::Error::Encode(error.into()))
}
