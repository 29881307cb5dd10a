//! The rows of a message.

use std::collections::HashMap;

use schemas::{MessageKind, SendId};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{attachment::ValidAttachment, draft::MessageDraft};
use crate::pipeline::error::ApiError;

/// The source of a contact that a test of a campaign made; `is_made_by_test` and `is_known_from_mail` read it. Not `test`, which products
/// write themselves.
const TEST_SOURCE: &str = "campaign_test";

/// The contact of each recipient, in order; missing contacts are inserted with a pending consent: they get this mail and no
/// marketing. What a test makes is no event and starts no sequence. An upsert, an import or an enrollment makes it a contact as any that
/// is known from one-off mail only; it does not count as created then either.
pub(super) async fn find_or_create_contacts(
    db: &mut PgConnection,
    tenant: Uuid,
    draft: &MessageDraft,
) -> Result<Vec<Uuid>, ApiError> {
    let addresses: Vec<String> =
        draft.recipients.iter().map(|recipient| recipient.address.as_str().to_owned()).collect();
    let ids: Vec<Uuid> = addresses.iter().map(|_| schemas::new_id()).collect();
    let source = if draft.kind == MessageKind::Test { TEST_SOURCE } else { "message" };
    // In the order of the unique key, so that two messages to the same new contacts do not deadlock.
    sqlx::query!(
        "insert into contacts (tenant_id, id, address, dot_number, marketing_status, source)
         select $1, w.id, w.address, $4, 'pending', $5
         from unnest($2::uuid[], $3::text[]) as w (id, address)
         where not exists (select from contacts c where c.tenant_id = $1 and c.address = w.address)
         order by w.address
         on conflict (tenant_id, address) do nothing",
        tenant,
        &ids,
        &addresses,
        draft.dot_number,
        source,
    )
    .execute(&mut *db)
    .await?;
    // A statement of its own: another transaction may have inserted one meanwhile.
    let rows = sqlx::query!(
        r#"select c.id as "id!", w.address as "address!"
           from unnest($2::text[]) as w (address)
           cross join lateral (
               select c.id from contacts c where c.tenant_id = $1 and c.address = w.address offset 0
           ) c"#,
        tenant,
        &addresses
    )
    .fetch_all(&mut *db)
    .await?;
    let found: HashMap<String, Uuid> = rows.into_iter().map(|row| (row.address, row.id)).collect();
    // A contact may have been erased between the two statements: a repeat inserts it again.
    let contacts: Option<Vec<Uuid>> = addresses.iter().map(|address| found.get(address).copied()).collect();
    let contacts = contacts.ok_or_else(ApiError::unavailable)?;
    if let Some(dot_number) = draft.dot_number {
        fill_dot_number(db, tenant, &contacts, dot_number).await?;
    }
    Ok(contacts)
}

/// Fills an empty DOT number; never replaces one. Locks contacts in id order, like every other writer.
async fn fill_dot_number(db: &mut PgConnection, tenant: Uuid, contacts: &[Uuid], dot_number: i64) -> sqlx::Result<()> {
    sqlx::query!(
        "with held as (
             select c.id
             from (select id from unnest($2::uuid[]) as u (id) order by id) w
             cross join lateral (
                 select c.id from contacts c
                 where c.tenant_id = $1 and c.id = w.id and c.dot_number is null
                 offset 0 for no key update
             ) c
         )
         update contacts c set dot_number = $3, updated_at = now()
         from held where c.tenant_id = $1 and c.id = held.id",
        tenant,
        contacts,
        dot_number,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Stores content, message and recipients, whose contacts stand in their order. Every recipient becomes a send, blocked ones too: the gate
/// gives them their reason in the ledger.
pub(super) async fn insert_message(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    draft: &MessageDraft,
    contacts: &[Uuid],
) -> sqlx::Result<()> {
    sqlx::query!(
        "with content as (
             insert into contents (tenant_id, id, kind, subject, body_html, body_text) values ($1, $2, 'one_off', $4, $5, $6)
         )
         insert into messages (tenant_id, id, sender_id, content_id, reply_to, dot_number, is_test, classification, due_at, rendered_for)
         values ($1, $2, $3, $2, $7, $8, $9, $10, coalesce($11, now()), $12)",
        tenant,
        id,
        draft.sender_id,
        draft.subject,
        draft.html,
        draft.text,
        draft.reply_to.as_ref().map(|address| address.as_str()),
        draft.dot_number,
        draft.kind == MessageKind::Test,
        draft.classification.as_str(),
        draft.due_at(),
        draft.rendered_for,
    )
    .execute(&mut *db)
    .await?;
    let sends: Vec<Uuid> = (0..).zip(contacts).map(|(ordinal, _)| SendId::of(id, ordinal).0).collect();
    let names: Vec<Option<String>> = draft.recipients.iter().map(|recipient| recipient.name.clone()).collect();
    sqlx::query!(
        "insert into message_recipients (tenant_id, message_id, send_id, contact_id, name)
         select $1, $2, w.send_id, w.contact_id, w.name
         from unnest($3::uuid[], $4::uuid[], $5::text[]) as w (send_id, contact_id, name)
         order by w.contact_id",
        tenant,
        id,
        &sends,
        contacts,
        &names as &[Option<String>],
    )
    .execute(db)
    .await
    .map(drop)
}

/// Stores the attachments of mails, whose requests are stored, in one statement.
pub(crate) async fn insert_attachments(
    db: &mut PgConnection,
    tenant: Uuid,
    mails: Vec<(Uuid, Vec<ValidAttachment>)>,
) -> sqlx::Result<()> {
    let (mut ids, mut places, mut filenames) = (Vec::new(), Vec::<i16>::new(), Vec::new());
    let (mut media_types, mut content_ids, mut encoded) = (Vec::new(), Vec::new(), Vec::new());
    for (mail, attachments) in mails {
        for (place, attachment) in (0..).zip(attachments) {
            ids.push(mail);
            places.push(place);
            filenames.push(attachment.filename);
            media_types.push(attachment.media_type);
            content_ids.push(attachment.content_id);
            encoded.push(attachment.encoded);
        }
    }
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "insert into message_attachments (tenant_id, message_id, place, filename, media_type, content_id, encoded)
         select $1, w.message_id, w.place, w.filename, w.media_type, w.content_id, w.encoded
         from unnest($2::uuid[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::bytea[])
             as w (message_id, place, filename, media_type, content_id, encoded)",
        tenant,
        &ids,
        &places,
        &filenames,
        &media_types as &[&str],
        &content_ids as &[Option<String>],
        // Moved, so that they are freed once the statement has its copy: sending makes another.
        { encoded } as _,
    )
    .execute(db)
    .await
    .map(drop)
}
