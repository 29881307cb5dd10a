//! The deliveries of a subscription, and a test event.

use schemars::JsonSchema;
use schemas::{DeliveryStatus, Event, EventType};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};
use uuid::Uuid;

use super::{find, lock_active};
use crate::pipeline::{
    ApiReply, NoFields, NoParameters, RequestContext,
    error::ApiError,
    page::{OptionalTime, Time},
    resource,
};

/// One event for one subscription.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WebhookDelivery {
    /// `X-Service-Delivery`: the same in every attempt and replay.
    #[serde(rename = "delivery_id")]
    id: Uuid,
    subscription_id: Uuid,
    /// `id` of the body, and `webhook-id`.
    event_id: Uuid,
    #[schemars(with = "EventType")]
    event: String,
    status: DeliveryStatus,
    #[schemars(range(min = 0))]
    attempts: i16,
    next_attempt_at: OptionalTime,
    /// The last attempt.
    attempted_at: OptionalTime,
    /// The HTTP status that the last attempt was answered with.
    #[schemars(range(min = 0))]
    status_code: Option<i16>,
    /// Why the last attempt failed, as `timed_out` or `dns_failed`.
    error_code: Option<String>,
    #[schemars(range(min = 0))]
    duration_ms: Option<i32>,
    delivered_at: OptionalTime,
    /// How often a replay asked for it.
    #[schemars(range(min = 0))]
    replayed: i32,
    created_at: Time,
}

resource!(WebhookDelivery, "delivery", "deliveries", id);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListDeliveries {
    status: Option<DeliveryStatus>,
    event: Option<EventType>,
}

pub(super) async fn list(ctx: &mut RequestContext, query: ListDeliveries) -> Result<ApiReply, ApiError> {
    let (tenant, id, page) = (ctx.tenant, ctx.id("subscription")?, ctx.page);
    find(ctx, id).await?;
    let deliveries = sqlx::query_file_as!(
        WebhookDelivery,
        "queries/deliveries.sql",
        tenant,
        id,
        query.status.map(DeliveryStatus::as_str),
        query.event.map(EventType::as_str),
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::page(page, deliveries)
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeliveryAnswer {
    delivery: WebhookDelivery,
    /// Null once it is gone: the contact it is about was erased, or it is too old to be kept.
    #[schemars(with = "Option<Map<String, Value>>")]
    body: Option<Box<RawValue>>,
}

/// One delivery with the bytes that are sent.
pub(super) async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (id, tenant, product) = (ctx.id("delivery")?, ctx.tenant, ctx.caller.product.clone());
    let delivery = sqlx::query_as!(
        WebhookDelivery,
        r#"select id, subscription_id, event_id, type as event, status as "status: DeliveryStatus", attempts, next_attempt_at,
                  attempted_at, status_code, error_code, duration_ms, delivered_at, replayed, created_at
           from webhook_deliveries where tenant_id = $1 and id = $2 and product = $3"#,
        tenant,
        id,
        product,
    )
    .fetch_optional(ctx.db())
    .await?
    .ok_or_else(|| ApiError::not_found("delivery"))?;
    let body = sqlx::query_scalar!(
        "select body from webhook_events where tenant_id = $1 and product = $2 and id = $3",
        tenant,
        product,
        delivery.event_id,
    )
    .fetch_optional(ctx.db())
    .await?;
    // Kept as it was written, not read and written again.
    let body = body.and_then(|bytes| RawValue::from_string(String::from_utf8(bytes).ok()?).ok());
    ApiReply::ok(&DeliveryAnswer { delivery, body })
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WebhookTested {
    subscription_id: Uuid,
    delivery_id: Uuid,
    event_id: Uuid,
}

/// Asks for a `webhook.test`: a notice for this subscription alone, delivered as any other event.
pub(super) async fn test(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let id = ctx.id("subscription")?;
    lock_active(ctx, id).await?;
    let (tenant, product, event) = (ctx.tenant, ctx.caller.product.clone(), Uuid::new_v4());
    sqlx::query!(
        "insert into notices (tenant_id, id, type, product, subject_id, data) values ($1, $2, $3, $4, $5, $6)",
        tenant,
        event,
        EventType::WebhookTest.as_str(),
        product,
        id,
        json!({"subscription_id": id}),
    )
    .execute(ctx.db())
    .await?;
    ctx.audit("webhook.tested", &format!("webhook:{id}"), json!({"event_id": event})).await?;
    let delivery_id = Event::delivery_of(id, event);
    ApiReply::accepted(&WebhookTested { subscription_id: id, delivery_id, event_id: event })
}
