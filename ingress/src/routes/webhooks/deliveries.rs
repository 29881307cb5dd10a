//! What became of each telling, and one to try a subscription out.

use chrono::{DateTime, Utc};
use schemas::{DeliveryStatus, Event, EventType};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{find, hold_active};
use crate::{
    act::{Act, Faults, NoFields, NoParameters, Page, Reply, time},
    error::ApiError,
};

#[derive(Debug)]
struct DeliveryRow {
    id: Uuid,
    subscription_id: Uuid,
    event_id: Uuid,
    event: String,
    status: DeliveryStatus,
    attempts: i16,
    next_attempt_at: Option<DateTime<Utc>>,
    attempted_at: Option<DateTime<Utc>>,
    status_code: Option<i16>,
    error_code: Option<String>,
    duration_ms: Option<i32>,
    delivered_at: Option<DateTime<Utc>>,
    replayed: i32,
    created_at: DateTime<Utc>,
}

fn record(row: &DeliveryRow) -> Value {
    json!({
        "delivery_id": row.id,
        "subscription_id": row.subscription_id,
        "event_id": row.event_id,
        "event": row.event,
        "status": row.status.as_str(),
        "attempts": row.attempts,
        "next_attempt_at": row.next_attempt_at.map(time),
        "attempted_at": row.attempted_at.map(time),
        "status_code": row.status_code,
        "error_code": row.error_code,
        "duration_ms": row.duration_ms,
        "delivered_at": row.delivered_at.map(time),
        "replayed": row.replayed,
        "created_at": time(row.created_at),
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    status: Option<String>,
    event: Option<String>,
    limit: Option<i64>,
    cursor: Option<String>,
}

pub(super) async fn list(act: &mut Act, query: ListQuery) -> Result<Reply, ApiError> {
    let page = Page::new(query.limit, query.cursor.as_deref())?;
    let mut faults = Faults::default();
    if let Some(status) = &query.status {
        let words: Vec<&str> = DeliveryStatus::ALL.iter().map(|status| status.as_str()).collect();
        faults.one_of("status", status, &words);
    }
    if let Some(event) = &query.event {
        let words: Vec<&str> = EventType::ALL.iter().map(|event| event.as_str()).collect();
        faults.one_of("event", event, &words);
    }
    faults.finish()?;
    let id = act.id("subscription")?;
    find(act, id).await?;
    let tenant = act.tenant;
    let mut rows = page_of(act.db(), tenant, id, &query, &page).await?;
    let next_cursor = page.cut(&mut rows, |row| (row.created_at, row.id));
    let deliveries: Vec<Value> = rows.iter().map(record).collect();
    Reply::untyped_ok(&json!({"ok": true, "deliveries": deliveries, "next_cursor": next_cursor}))
}

/// Newest first.
async fn page_of(
    db: &mut PgConnection,
    tenant: Uuid,
    subscription: Uuid,
    query: &ListQuery,
    page: &Page,
) -> sqlx::Result<Vec<DeliveryRow>> {
    sqlx::query_file_as!(
        DeliveryRow,
        "queries/deliveries.sql",
        tenant,
        subscription,
        query.status.as_deref(),
        query.event.as_deref(),
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(db)
    .await
}

/// One delivery with the very bytes that are sent; null when whom they are about was erased.
pub(super) async fn show(act: &mut Act, _: NoParameters) -> Result<Reply, ApiError> {
    let (id, tenant, product) = (act.id("delivery")?, act.tenant, act.caller.product.clone());
    let row = sqlx::query_as!(
        DeliveryRow,
        r#"select id, subscription_id, event_id, type as event, status as "status: DeliveryStatus", attempts, next_attempt_at,
                  attempted_at, status_code, error_code, duration_ms, delivered_at, replayed, created_at
           from webhook_deliveries where tenant_id = $1 and id = $2 and product = $3"#,
        tenant,
        id,
        product,
    )
    .fetch_optional(act.db())
    .await?
    .ok_or_else(|| ApiError::not_found("delivery"))?;
    let body = sqlx::query_scalar!(
        "select body from webhook_events where tenant_id = $1 and product = $2 and id = $3",
        tenant,
        product,
        row.event_id,
    )
    .fetch_optional(act.db())
    .await?;
    // Kept as it was written, not read and written again.
    let body = body.and_then(|bytes| RawValue::from_string(String::from_utf8(bytes).ok()?).ok());
    Reply::untyped_ok(&Shown { ok: true, delivery: record(&row), body })
}

#[derive(serde::Serialize)]
struct Shown {
    ok: bool,
    delivery: Value,
    body: Option<Box<RawValue>>,
}

/// Asks for a `webhook.test`: a notice for this subscription alone, which then goes the ordinary road.
pub(super) async fn test(act: &mut Act, _: NoFields) -> Result<Reply, ApiError> {
    let id = act.id("subscription")?;
    hold_active(act, id).await?;
    let (tenant, product, event) = (act.tenant, act.caller.product.clone(), Uuid::new_v4());
    sqlx::query!(
        "insert into notices (tenant_id, id, type, product, subject_id, data) values ($1, $2, $3, $4, $5, $6)",
        tenant,
        event,
        EventType::WebhookTest.as_str(),
        product,
        id,
        json!({"subscription_id": id}),
    )
    .execute(act.db())
    .await?;
    let delivery = Event::delivery_of(id, event);
    Reply::untyped_accepted(&json!({"ok": true, "subscription_id": id, "delivery_id": delivery, "event_id": event}))
}
