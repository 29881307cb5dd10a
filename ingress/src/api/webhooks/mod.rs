//! `/v1/webhooks`: subscriptions to events, and their deliveries. A subscription is
//! one product's: another product of the same tenant neither sees nor changes it. The webhooks stage delivers; this only writes
//! the rows that it reads.

mod deliveries;
mod replays;
mod secret;
mod store;
mod target;

use std::sync::Arc;

use runtime::outbound::URL_MAX_BYTES;
use schemars::JsonSchema;
use schemas::{EventType, SubscriptionStatus};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use self::{
    secret::SigningSecret,
    store::{WebhookSubscription, find, lock},
};
use crate::pipeline::{
    ApiReply, Doc, Faults, NoFields, NoParameters, Patch, RequestContext, Routes, error::ApiError, page::ResourcePage,
    read, read_page, status_answer, tenant, types::Line, write,
};

/// Active subscriptions one product may have for a tenant.
const ACTIVE_MAX: i64 = 10;
/// Active and paused ones together.
const KEPT_MAX: i64 = 20;
/// Longest description, in characters.
const DESCRIPTION_MAX: usize = 500;

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/webhooks",
            read_page("webhooks:read", list),
            Doc::new("listWebhooks", "List webhook subscriptions", "Newest first, those of the calling product.")
                .answer::<WebhookPage>(200, "A page of subscriptions, and the events there are"),
        )
        .post(
            "/v1/webhooks",
            write("webhooks:write", create),
            Doc::new(
                "createWebhook",
                "Subscribe to events",
                "The answer is the only one that shows the signing secret. At most 10 active ones for each tenant \
                 and product, and 20 that are active or paused.",
            )
            .example(json!({"url": "https://app.acme.example/hooks/postrider", "events": ["email.delivered"]}))
            .answer::<WebhookCreated>(201, "Subscribed")
            .leads_to("subscription_id", &["getWebhook", "updateWebhook", "deleteWebhook"])
            .leads_to("subscription_id", &["listWebhookDeliveries", "testWebhook", "replayWebhook"])
            .refuses(409, &["subscription_limit_reached"]),
        )
        .get(
            "/v1/webhooks/{id}",
            read("webhooks:read", show),
            Doc::new("getWebhook", "Read a webhook subscription", "Without its secret.")
                .single::<WebhookSubscription>("The subscription"),
        )
        .patch(
            "/v1/webhooks/{id}",
            write("webhooks:write", change),
            Doc::new(
                "updateWebhook",
                "Change, pause or resume a webhook subscription",
                "While it is paused, deliveries are held, each for 30 days or what the operator set. A disabled one stays disabled.",
            )
            .single::<WebhookSubscription>("The subscription")
            .example(json!({"status": "paused"}))
            .refuses(409, &["invalid_status_transition", "subscription_limit_reached"]),
        )
        .delete(
            "/v1/webhooks/{id}",
            write("webhooks:write", remove),
            Doc::new(
                "deleteWebhook",
                "Disable a webhook subscription",
                "For good: pending deliveries are dropped, replays into it end. Past deliveries can still be read.",
            )
            .answer::<WebhookDisabled>(200, "Disabled")
            .refuses(404, &["subscription_not_found"]),
        )
        .post(
            "/v1/webhooks/{id}/rotate_secret",
            write("webhooks:write", secret::rotate),
            Doc::new(
                "rotateWebhookSecret",
                "Replace the signing secret",
                "Deliveries carry signatures of both for 24 hours. The secret before the replaced one ends at once: \
                 one that leaked is out of use after two calls.",
            )
            .answer::<secret::SecretReplaced>(200, "Replaced")
            .refuses(404, &["subscription_not_found"])
            .refuses(409, &["subscription_not_active"]),
        )
        // A secret is only for callers that may set one.
        .get(
            "/v1/webhooks/call_secret",
            read("webhooks:write", secret::of_calls),
            Doc::new(
                "getWebhookCallSecret",
                "Read the signing secret of sequence calls",
                "Signs the requests of `call_product_webhook` steps, in the same headers as deliveries. One for each \
                 tenant and product.",
            )
            .answer::<secret::CallSecret>(200, "The secret"),
        )
        .post(
            "/v1/webhooks/call_secret/rotate",
            write("webhooks:write", secret::rotate_calls),
            Doc::new(
                "rotateWebhookCallSecret",
                "Replace the signing secret of sequence calls",
                "Calls carry signatures of both for 24 hours. The secret before the replaced one ends at once.",
            )
            .answer::<secret::CallSecretReplaced>(200, "Replaced"),
        )
        .get(
            "/v1/webhooks/{id}/deliveries",
            read_page("webhooks:read", deliveries::list),
            Doc::new("listWebhookDeliveries", "List a subscription's deliveries", "Newest first.")
                .page::<deliveries::WebhookDelivery>("A page of deliveries")
                .refuses(404, &["subscription_not_found"]),
        )
        .get(
            "/v1/webhooks/deliveries/{id}",
            read("webhooks:read", deliveries::show),
            Doc::new("getWebhookDelivery", "Read a delivery", "With the body that is sent.")
                .answer::<deliveries::DeliveryAnswer>(200, "The delivery")
                .refuses(404, &["delivery_not_found"]),
        )
        .post(
            "/v1/webhooks/{id}/test",
            write("webhooks:write", deliveries::test),
            Doc::new(
                "testWebhook",
                "Send a test event",
                "A `webhook.test` for this subscription, delivered as any other event: signed, tried again when it \
                 fails, in the list of deliveries.",
            )
            .answer::<deliveries::WebhookTested>(202, "On its way")
            .leads_to("delivery_id", &["getWebhookDelivery"])
            .refuses(404, &["subscription_not_found"])
            .refuses(409, &["subscription_not_active"]),
        )
        .post(
            "/v1/webhooks/{id}/replay",
            write("webhooks:write", replays::start),
            Doc::new(
                "replayWebhook",
                "Replay the events of a period",
                "Also those from before the subscription was made. Event ids are those of the first time. One replay \
                 at a time.",
            )
            .example(json!({"since": "2025-01-01T00:00:00Z"}))
            .answer::<replays::ReplayStarted>(202, "Begun")
            .leads_to("replay_id", &["getWebhookReplay"])
            .refuses(404, &["subscription_not_found"])
            .refuses(409, &["subscription_not_active", "replay_in_progress"]),
        )
        .get(
            "/v1/webhooks/{id}/replays",
            read_page("webhooks:read", replays::list),
            Doc::new("listWebhookReplays", "List a subscription's replays", "Newest first.")
                .page::<replays::WebhookReplay>("A page of replays")
                .refuses(404, &["subscription_not_found"]),
        )
        .get(
            "/v1/webhooks/replays/{id}",
            read("webhooks:read", replays::show),
            Doc::new("getWebhookReplay", "Read a replay", "How far it is.")
                .single::<replays::WebhookReplay>("The replay"),
        )
}

/// The types of events that may be subscribed to.
fn supported_events() -> Vec<&'static str> {
    EventType::ALL.iter().filter(|event| event.is_subscribable()).map(|event| event.as_str()).collect()
}

/// An event that may be subscribed to.
#[derive(JsonSchema)]
#[schemars(extend("enum" = supported_events()))]
#[expect(dead_code, reason = "described, not built")]
struct SubscribableEvent(String);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListWebhooks {
    status: Option<SubscriptionStatus>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct WebhookPage {
    #[serde(flatten)]
    page: ResourcePage<WebhookSubscription>,
    #[schemars(with = "Vec<SubscribableEvent>")]
    supported_events: Vec<&'static str>,
}

async fn list(ctx: &mut RequestContext, query: ListWebhooks) -> Result<ApiReply, ApiError> {
    let rows = store::list(ctx, query.status).await?;
    let page = ctx.page.answer(rows);
    ApiReply::ok(&WebhookPage { page, supported_events: supported_events() })
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateWebhook {
    /// https, on the public internet, port 443 or one from 1024 on, without user name and fragment.
    #[schemars(with = "String", length(max = URL_MAX_BYTES))]
    url: Option<String>,
    #[schemars(with = "Vec<SubscribableEvent>", length(min = 1))]
    events: Option<Vec<String>>,
    #[schemars(with = "Option<Line<DESCRIPTION_MAX>>")]
    description: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct WebhookCreated {
    subscription_id: Uuid,
    subscription: WebhookSubscription,
    signing_secret: SigningSecret,
}

/// The answer is the only one that shows the secret.
async fn create(ctx: &mut RequestContext, body: CreateWebhook) -> Result<ApiReply, ApiError> {
    let rules = ctx.ingress.settings.outbound.rules();
    let mut faults = Faults::default();
    let url = faults.required("url", body.url).and_then(|text| faults.target("url", &text, &rules));
    let events = faults.required("events", body.events).map(|events| faults.events("events", events));
    let description = body.description.filter(|text| !text.trim().is_empty());
    faults.one_line("description", description.as_deref().unwrap_or_default(), DESCRIPTION_MAX);
    faults.finish()?;
    let (Some(url), Some(events)) = (url, events) else { return Err(ApiError::internal()) };

    let (tenant, caller, id) = (ctx.tenant, Arc::clone(&ctx.caller), schemas::new_id());
    tenant::lock_row(ctx.db(), tenant).await?;
    check_limits(ctx, true).await?;
    let (fresh, sealed) = secret::fresh(ctx)?;
    sqlx::query!(
        "insert into webhook_subscriptions (tenant_id, id, product, environment, url, events, description, secret)
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        tenant,
        id,
        caller.product,
        caller.environment.as_str(),
        url,
        &events,
        description,
        sealed,
    )
    .execute(ctx.db())
    .await?;
    ctx.audit("webhook.created", &format!("webhook:{id}"), json!({"events": events})).await?;
    let subscription = find(ctx, id).await?;
    let signing_secret = SigningSecret::from(&fresh);
    Ok(ApiReply::created(&WebhookCreated { subscription_id: id, subscription, signing_secret })?.with_secret())
}

/// Refuses one more active subscription over the limits, be it a new one or one that is resumed. The count is exact: the caller has locked
/// the tenant's row, so that subscriptions are made one after the other, and a statement of its own counts, which sees what was committed
/// while the lock waited. Served by `webhook_subscriptions_live`.
async fn check_limits(ctx: &mut RequestContext, is_new: bool) -> Result<(), ApiError> {
    let (tenant, product) = (ctx.tenant, ctx.caller.product.clone());
    let count = sqlx::query!(
        r#"select count(*) filter (where status = 'active') as "active!", count(*) as "kept!"
           from webhook_subscriptions where tenant_id = $1 and product = $2 and status <> 'disabled'"#,
        tenant,
        product,
    )
    .fetch_one(ctx.db())
    .await?;
    if count.active < ACTIVE_MAX && (!is_new || count.kept < KEPT_MAX) {
        return Ok(());
    }
    let kept = if is_new { format!(", and {KEPT_MAX} active or paused") } else { String::new() };
    Err(ApiError::conflict("subscription_limit_reached")
        .detail(format!("at most {ACTIVE_MAX} subscriptions may be active{kept}")))
}

async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let id = ctx.id("subscription")?;
    ApiReply::single(find(ctx, id).await?)
}

/// A locked subscription that is active.
async fn lock_active(ctx: &mut RequestContext, id: Uuid) -> Result<WebhookSubscription, ApiError> {
    let row = lock(ctx, id).await?;
    match row.status {
        SubscriptionStatus::Active => Ok(row),
        SubscriptionStatus::Paused | SubscriptionStatus::Disabled => Err(ApiError::conflict("subscription_not_active")
            .detail(format!("the subscription is {}", row.status.as_str()))),
    }
}

/// The states a caller can choose.
const CHOSEN_STATUSES: [&str; 2] = ["active", "paused"];

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ChangeWebhook {
    /// https, on the public internet, port 443 or one from 1024 on, without user name and fragment.
    #[schemars(length(max = URL_MAX_BYTES))]
    url: Patch<String>,
    #[schemars(with = "Option<Vec<SubscribableEvent>>", length(min = 1))]
    events: Patch<Vec<String>>,
    #[schemars(extend("enum" = CHOSEN_STATUSES))]
    status: Patch<String>,
    #[schemars(with = "Option<Line<DESCRIPTION_MAX>>")]
    description: Patch<String>,
}

async fn change(ctx: &mut RequestContext, body: ChangeWebhook) -> Result<ApiReply, ApiError> {
    let rules = ctx.ingress.settings.outbound.rules();
    let mut faults = Faults::default();
    // `null` is no value of these.
    let url = body.url.into_option().and_then(|text| faults.required("url", text));
    let url = url.and_then(|text| faults.target("url", &text, &rules));
    let events = body.events.into_option().and_then(|events| faults.required("events", events));
    let events = events.map(|events| faults.events("events", events));
    let status = body.status.into_option().and_then(|status| faults.required("status", status));
    if let Some(status) = &status {
        faults.one_of("status", status, &CHOSEN_STATUSES);
    }
    let description = body.description.value().map(String::as_str).unwrap_or_default();
    faults.one_line("description", description, DESCRIPTION_MAX);
    faults.finish()?;

    let id = ctx.id("subscription")?;
    let wished = status.as_deref().and_then(SubscriptionStatus::parse);
    // The tenant's row before the subscription's, as when one is made. Whether this resumes is only known under the lock.
    if wished == Some(SubscriptionStatus::Active) {
        let tenant = ctx.tenant;
        tenant::lock_row(ctx.db(), tenant).await?;
    }
    let row = lock(ctx, id).await?;
    if row.status == SubscriptionStatus::Disabled {
        return Err(ApiError::conflict("invalid_status_transition")
            .detail("the subscription is disabled for good: make a new one and replay what it missed"));
    }
    if row.status == SubscriptionStatus::Paused && wished == Some(SubscriptionStatus::Active) {
        check_limits(ctx, false).await?;
    }
    let tenant = ctx.tenant;
    // A new address, or a resumption, ends the count of failures.
    sqlx::query!(
        "update webhook_subscriptions
         set failing_since = case when $3 <> url or (status = 'paused' and $5 = 'active') then null else failing_since end,
             url = coalesce($3, url), events = coalesce($4, events), status = coalesce($5, status),
             description = case when $6 then $7 else description end, updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        url,
        events.as_deref(),
        wished.map(SubscriptionStatus::as_str),
        body.description.is_given(),
        Some(description).filter(|text| !text.trim().is_empty()),
    )
    .execute(ctx.db())
    .await?;
    // Where a product's events go is what an intruder would change. The address itself may hold a secret.
    let given = [("url", url.is_some()), ("events", events.is_some()), ("status", wished.is_some())];
    let changed: Vec<&str> = given.into_iter().filter_map(|(field, given)| given.then_some(field)).collect();
    if !changed.is_empty() {
        ctx.audit("webhook.changed", &format!("webhook:{id}"), json!({"fields": changed, "status": wished})).await?;
    }
    ApiReply::single(find(ctx, id).await?)
}

status_answer!(WebhookDisabled, subscription_id, SubscriptionStatus::Disabled.as_str());

/// Disables it, and cancels replays into it; a repeat changes nothing. The webhooks stage drops its pending deliveries.
async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let id = ctx.id("subscription")?;
    let row = lock(ctx, id).await?;
    if row.status != SubscriptionStatus::Disabled {
        let tenant = ctx.tenant;
        sqlx::query!(
            "update webhook_subscriptions set status = 'disabled', disabled_reason = 'deleted', disabled_at = now(), updated_at = now()
             where tenant_id = $1 and id = $2",
            tenant,
            id,
        )
        .execute(ctx.db())
        .await?;
        sqlx::query!(
            "update webhook_replays set status = 'cancelled', finished_at = now()
             where tenant_id = $1 and subscription_id = $2 and status = 'running'",
            tenant,
            id,
        )
        .execute(ctx.db())
        .await?;
        ctx.audit("webhook.deleted", &format!("webhook:{id}"), json!({})).await?;
    }
    WebhookDisabled::reply(id)
}
