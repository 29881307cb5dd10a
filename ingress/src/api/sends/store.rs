//! Rows of `sends` and their events, as callers see them.

use chrono::{DateTime, NaiveDate, Utc};
use schemas::{
    SendId, SendState,
    ids::PROMPT_BATCH_MAX,
    messages::{ERASED_COPY, MailOptions},
};
use serde_json::Value;
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use super::{SendCopy, SendFacts, SendRow, role_of};
use crate::pipeline::ListPage;

/// One fact of a send's timeline.
#[derive(Debug, Clone)]
pub(crate) struct EventRow {
    pub(crate) kind: String,
    pub(crate) occurred_at: DateTime<Utc>,
    pub(crate) detail: Value,
}

/// One send, by its primary key: the month partition is in the id.
pub(crate) async fn get(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<SendRow>> {
    let send = SendId(id);
    sqlx::query_file_as!(SendRow, "queries/send.sql", tenant, id, send.month(), send.batch()).fetch_optional(db).await
}

/// The sends of the mail with copies that this send belongs to.
pub(crate) async fn copies(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    options: &MailOptions,
) -> sqlx::Result<Vec<SendCopy>> {
    let ids: Vec<Uuid> =
        (0..options.recipient_count()).map(|ordinal| SendId::of(SendId(id).batch(), ordinal).0).collect();
    let rows = sqlx::query!(
        r#"select s.id, c.address as "email?", s.state as "state: SendState", s.reason
           from sends s
           left join contacts c on c.tenant_id = s.tenant_id and c.id = s.contact_id and c.status <> 'erased'
           where s.tenant_id = $1 and s.id = any ($2) and s.month = $3
           order by s.id"#,
        tenant,
        &ids,
        SendId(id).month(),
    )
    .fetch_all(db)
    .await?;
    let copies = rows.into_iter().map(|row| SendCopy {
        send_id: row.id,
        email: row.email,
        role: role_of(row.id, options),
        state: row.state,
        skip_reason: row.reason.filter(|_| row.state == SendState::Skipped),
    });
    Ok(copies.collect())
}

/// The sends that a one-off message will become, with the addresses of their recipients.
pub(crate) async fn recipients(
    db: &mut PgConnection,
    tenant: Uuid,
    message: Uuid,
) -> sqlx::Result<Vec<(Uuid, Option<String>)>> {
    let rows = sqlx::query!(
        r#"select p.send_id, c.address as "email?"
           from message_recipients p
           left join contacts c on c.tenant_id = $1 and c.id = p.contact_id and c.status <> 'erased'
           where p.tenant_id = $1 and p.message_id = $2
           order by p.send_id"#,
        tenant,
        message,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.send_id, row.email)).collect())
}

/// Cancels the scheduled request that this send will come from, with all of its sends. False: there is none that waits. A request that is
/// being resolved is locked; once this commits, none of its sends can come to be.
pub(crate) async fn cancel_scheduled(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<bool> {
    // The request of a copy, and of a one-off message, has the id of the batch.
    let send = SendId(id);
    let cancelled = sqlx::query!(
        "update requests set state = 'rejected', outcome = 'cancelled', announce_after = null, handled_at = now()
         where tenant_id = $1
           and (id = $2 and kind = 'transactional'
                or id = $3 and (jsonb_array_length(options -> 'copies') >= $4
                                or exists (select from message_recipients p where p.tenant_id = $1 and p.send_id = $2)))
           and kind in ('transactional', 'message') and state = 'accepted' and options ? 'scheduled_at'",
        tenant,
        id,
        send.batch(),
        i32::from(send.ordinal()),
    )
    .execute(db)
    .await?;
    Ok(cancelled.rows_affected() > 0)
}

/// Events in the timeline of a send; what comes after them is not shown.
const TIMELINE_MAX: i64 = 1_000;

/// What happened to a send, in order.
pub(crate) async fn events(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Vec<EventRow>> {
    sqlx::query_as!(
        EventRow,
        r#"select type as "kind!", occurred_at as "occurred_at!", detail as "detail!" from send_facts
         where tenant_id = $1 and send_id = $2 and month = $3
         order by occurred_at, recorded_at, id limit $4"#,
        tenant,
        id,
        SendId(id).month(),
        TIMELINE_MAX,
    )
    .fetch_all(db)
    .await
}

/// The request a send will come from: a transactional one has the send's id, or that of its batch and the send among its copies; a message
/// names it among its recipients.
pub(crate) async fn pending(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<SendRow>> {
    let send = SendId(id);
    sqlx::query_file_as!(
        SendRow,
        "queries/pending_send.sql",
        tenant,
        id,
        PROMPT_BATCH_MAX as i64,
        send.batch(),
        i32::from(send.ordinal()),
        ERASED_COPY,
    )
    .fetch_optional(db)
    .await
}

/// The contact with this address.
pub(crate) async fn contact_by_address(
    db: &mut PgConnection,
    tenant: Uuid,
    address: &str,
) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!("select id from contacts where tenant_id = $1 and address = $2", tenant, address)
        .fetch_optional(db)
        .await
}

/// The month its sends live in. `None`: there is no such campaign. `Some(None)`: it has no sends yet.
pub(crate) async fn campaign_month(
    db: &mut PgConnection,
    tenant: Uuid,
    campaign: Uuid,
) -> sqlx::Result<Option<Option<NaiveDate>>> {
    sqlx::query_scalar!("select month from campaigns where tenant_id = $1 and id = $2", tenant, campaign)
        .fetch_optional(db)
        .await
}

/// True if the sends of this month are not kept any more.
pub(crate) async fn is_dropped(db: &mut PgConnection, month: NaiveDate) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"select exists (select from dropped_months where month = $1) as "dropped!""#, month)
        .fetch_one(db)
        .await
}

/// The campaign's send to a contact, else the newest to those that were merged into it: a send keeps the contact it was made for. Served by
/// `contacts_merged` and `sends_once_per_campaign`.
pub(crate) async fn to_contact(
    db: &mut PgConnection,
    tenant: Uuid,
    month: NaiveDate,
    campaign: Uuid,
    contact: Uuid,
) -> sqlx::Result<Option<SendRow>> {
    let id = sqlx::query_scalar!(
        "select s.id
         from (select $3::uuid as id union all select m.id from contacts m where m.tenant_id = $1 and m.merged_into = $3) own
         cross join lateral (
             select s.id from sends s
             where s.tenant_id = $1 and s.campaign_id = $2 and s.contact_id = own.id and s.month = $4
             offset 0
         ) s
         order by own.id = $3 desc, s.id desc limit 1",
        tenant,
        campaign,
        contact,
        month,
    )
    .fetch_optional(&mut *db)
    .await?;
    match id {
        Some(id) => get(db, tenant, id).await,
        None => Ok(None),
    }
}

/// Sends of a campaign, newest first. With a state, whole batches that have none in it are passed over: no index could serve
/// that, because an index on the state would cost every update its cheapness.
pub(crate) async fn of_campaign(
    db: &mut PgConnection,
    tenant: Uuid,
    (campaign, month): (Uuid, NaiveDate),
    state: Option<SendState>,
    variant: Option<&str>,
    page: &ListPage,
) -> sqlx::Result<Vec<SendRow>> {
    sqlx::query_file_as!(
        SendRow,
        "queries/campaign_sends.sql",
        tenant,
        campaign,
        month,
        state.map(SendState::as_str),
        page.before_id,
        page.fetch(),
        variant,
    )
    .fetch_all(db)
    .await
}
