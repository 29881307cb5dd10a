//! Erasure: the person goes, the ledger keeps its numbers and a keyed hash, suppressions keep their address.

use sqlx::PgConnection;
use uuid::Uuid;

/// Erases what is known of a contact. Its row is locked by the caller. A suppression stays: it is what keeps the address from
/// being mailed again when somebody imports it.
///
/// # Errors
/// When Postgres is away.
pub(super) async fn erase(
    db: &mut PgConnection,
    tenant: Uuid,
    contact: Uuid,
    address: &str,
    pseudonym: &str,
) -> sqlx::Result<()> {
    sqlx::query!("delete from audience_members where tenant_id = $1 and contact_id = $2", tenant, contact)
        .execute(&mut *db)
        .await?;
    erase_requests(&mut *db, tenant, address).await?;
    erase_import_reports(&mut *db, tenant, address).await?;
    erase_messages(&mut *db, tenant, contact).await?;
    erase_outcomes(&mut *db, tenant, contact, address).await?;
    erase_ledger(&mut *db, tenant, contact).await?;
    // The same address may have been erased before, created again and be erased again: the second one takes its id along.
    sqlx::query!(
        "update contacts set
             address = case when exists (select from contacts where tenant_id = $1 and address = 'erased:' || $3)
                            then 'erased:' || $3 || ':' || $2::uuid::text else 'erased:' || $3 end,
             first_name = null, last_name = null, title = null, phone = null, company = null, dot_number = null, timezone = null,
             locale = null, lifecycle_stage = null, fields = '{}', status = 'erased', marketing_status = 'unsubscribed',
             source = null, consent_basis = null, consent_at = null, opted_in_at = null, consent_source = null, consent_description = null,
             updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        contact,
        pseudonym,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Accepted requests name the address: those not handled yet are taken back, the others lose their payload.
async fn erase_requests(db: &mut PgConnection, tenant: Uuid, address: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "update requests set
             payload = '{\"erased\": true}',
             state = case when state = 'accepted' then 'rejected' else state end,
             outcome = case when state = 'accepted' then 'contact_erased' else outcome end,
             handled_at = coalesce(handled_at, now()),
             announce_after = null
         where tenant_id = $1 and kind = 'transactional' and payload ->> 'address' = $2",
        tenant,
        address,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Outcomes keep whom they were about as an id, and what they were worth; the keys they were told with go. Those that still waited
/// for a contact with this address wait no longer.
async fn erase_outcomes(db: &mut PgConnection, tenant: Uuid, contact: Uuid, address: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "with asked as (
             select id from outcomes where tenant_id = $1 and (contact_id = $2 or contact_email = $3)
             order by id for no key update
         )
         update outcomes o set contact_email = null, dot_number = null from asked where o.tenant_id = $1 and o.id = asked.id",
        tenant,
        contact,
        address,
    )
    .execute(db)
    .await
    .map(drop)
}

/// One-off messages carry the name, and what was written to somebody is about him: bodies and attachments of messages to nobody
/// else go. A message to several keeps its body, which is the others' too. Its compiled form is used up or fails without the contact.
async fn erase_messages(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<()> {
    let mut messages = sqlx::query_scalar!(
        "update message_recipients set name = null where tenant_id = $1 and contact_id = $2 returning message_id",
        tenant,
        contact,
    )
    .fetch_all(&mut *db)
    .await?;
    messages.extend(notifications(&mut *db, tenant, contact).await?);
    if messages.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "with own as (
             select m.id, m.content_id from messages m
             where m.tenant_id = $1 and m.id = any ($2)
               and (exists (select from sequence_sends q where q.tenant_id = m.tenant_id and q.send_id = m.id)
                    or not exists (select from message_recipients r
                                   where r.tenant_id = m.tenant_id and r.message_id = m.id and r.contact_id <> $3))
         ), attachment as (
             delete from message_attachments a using own where a.tenant_id = $1 and a.message_id = own.id
         ), skeleton as (
             delete from skeletons s using own where s.tenant_id = $1 and s.id = 'message-' || replace(own.id::text, '-', '')
         )
         update contents c set subject = '', body_html = '', body_text = null
         from own where c.tenant_id = $1 and c.id = own.content_id",
        tenant,
        &messages,
        contact,
    )
    .execute(db)
    .await
    .map(drop)
}

/// What sequences wrote to the tenant's owner about the contact: each is about him alone, and its first send has its own id.
async fn notifications(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        "select m.id from enrollments e
         join sequence_sends q on q.tenant_id = e.tenant_id and q.enrollment_id = e.id
         join messages m on m.tenant_id = q.tenant_id and m.id = q.send_id
         where e.tenant_id = $1 and e.contact_id = $2",
        tenant,
        contact,
    )
    .fetch_all(db)
    .await
}

/// Reports of imports show the bad cells of rows, and one of them may be the address in another form.
async fn erase_import_reports(db: &mut PgConnection, tenant: Uuid, address: &str) -> sqlx::Result<()> {
    sqlx::query!(
        r#"update imports set summary = jsonb_set(summary, '{errors}', (
               select coalesce(jsonb_agg(case
                   when strpos(lower(fault ->> 'value'), $2) > 0 then fault || '{"value": ""}' else fault
               end order by place), '[]')
               from jsonb_array_elements(summary -> 'errors') with ordinality as faults (fault, place)
           ))
           where tenant_id = $1 and strpos(lower((summary -> 'errors')::text), $2) > 0"#,
        tenant,
        address,
    )
    .execute(db)
    .await
    .map(drop)
}

/// What servers and clients said about the contact's sends. There is no index by contact: each campaign and request of the tenant
/// is looked up by the unique index that ends in the contact.
async fn erase_ledger(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<()> {
    let sends = sqlx::query!(
        r#"select s.id as "id!", s.month as "month!" from campaigns c
           join sends s on s.tenant_id = c.tenant_id and s.campaign_id = c.id and s.contact_id = $2
           where c.tenant_id = $1
           union all
           select s.id, s.month from requests r
           join sends s on s.tenant_id = r.tenant_id and s.request_id = r.id and s.contact_id = $2
           where r.tenant_id = $1
           union all
           select s.id, s.month from enrollments e
           join sequence_sends q on q.tenant_id = e.tenant_id and q.enrollment_id = e.id
           join sends s on s.tenant_id = q.tenant_id and s.id = q.send_id
           where e.tenant_id = $1 and e.contact_id = $2
           order by 1"#,
        tenant,
        contact,
    )
    .fetch_all(&mut *db)
    .await?;
    let (ids, months): (Vec<_>, Vec<_>) = sends.into_iter().map(|send| (send.id, send.month)).unzip();
    sqlx::query!(
        "update sends s set response = null from unnest($2::uuid[], $3::date[]) as known (id, month)
         where s.tenant_id = $1 and s.id = known.id and s.month = known.month and s.response is not null",
        tenant,
        &ids,
        &months,
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "update events e set detail = e.detail - '{response,diagnostic,message_id,ip,user_agent}'::text[]
         from unnest($2::uuid[], $3::date[]) as known (id, month)
         where e.tenant_id = $1 and e.send_id = known.id and e.month = known.month
           and e.detail ?| array['response', 'diagnostic', 'message_id', 'ip', 'user_agent']",
        tenant,
        &ids,
        &months,
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!("delete from captured_mails where tenant_id = $1 and send_id = any ($2)", tenant, &ids)
        .execute(&mut *db)
        .await?;
    sqlx::query!("delete from renditions where tenant_id = $1 and send_id = any ($2)", tenant, &ids)
        .execute(db)
        .await
        .map(drop)
}
