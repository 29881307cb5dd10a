//! `/v1/webhooks`: subscriptions to events, and their deliveries. A subscription is
//! one product's: another product of the same tenant neither sees nor changes it. The webhooks stage delivers; this only writes
//! the rows that it reads.

mod deliveries;
mod replays;
mod secret;
mod store;
mod target;

use runtime::outbound::URL_MAX_BYTES;
use schemars::JsonSchema;
use schemas::{EventType, SubscriptionStatus};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use self::{secret::SigningSecret, store::WebhookSubscription, target::SubscriptionRequest};
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
                 and product.",
            )
            .example(json!({"url": "https://app.acme.example/hooks/postrider", "events": ["email.delivered"]}))
            .answer::<WebhookCreated>(201, "Subscribed")
            .leads_to(
                "subscription_id",
                &[
                    "getWebhook",
                    "updateWebhook",
                    "deleteWebhook",
                    "listWebhookDeliveries",
                    "testWebhook",
                    "replayWebhook",
                ],
            )
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
                "While it is paused, deliveries are held, not dropped. A disabled one stays disabled.",
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
    let (tenant, product, page) = (ctx.tenant, ctx.caller.product.clone(), ctx.page);
    let page = page.answer(store::list(ctx.db(), tenant, &product, query.status, &page).await?);
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

    check_limits(ctx).await?;
    let id = schemas::new_id();
    let (fresh, sealed) = secret::fresh(ctx)?;
    let wanted = SubscriptionRequest { url: &url, events: &events, description: description.as_deref() };
    let (tenant, caller) = (ctx.tenant, std::sync::Arc::clone(&ctx.caller));
    store::insert(ctx.db(), tenant, id, &caller, &wanted, &sealed).await?;
    ctx.audit("webhook.created", &format!("webhook:{id}"), json!({"events": events})).await?;
    let subscription = find(ctx, id).await?;
    let signing_secret = SigningSecret::from(&fresh);
    Ok(ApiReply::created(&WebhookCreated { subscription_id: id, subscription, signing_secret })?.with_secret())
}

/// Refuses one more active subscription over the limits. The count is exact: the tenant's row is locked, so that subscriptions are
/// made one after the other, and a statement of its own counts, which sees what was committed while this waited.
async fn check_limits(ctx: &mut RequestContext) -> Result<(), ApiError> {
    let (tenant, product) = (ctx.tenant, ctx.caller.product.clone());
    tenant::lock_row(ctx.db(), tenant).await?;
    let count = store::count(ctx.db(), tenant, &product).await?;
    if count.active >= ACTIVE_MAX || count.kept >= KEPT_MAX {
        return Err(ApiError::conflict("subscription_limit_reached")
            .detail(format!("at most {ACTIVE_MAX} subscriptions may be active, and {KEPT_MAX} active or paused")));
    }
    Ok(())
}

async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let id = ctx.id("subscription")?;
    ApiReply::single(find(ctx, id).await?)
}

async fn find(ctx: &mut RequestContext, id: Uuid) -> Result<WebhookSubscription, ApiError> {
    let (tenant, product) = (ctx.tenant, ctx.caller.product.clone());
    store::find(ctx.db(), tenant, &product, id).await?.ok_or_else(|| ApiError::not_found("subscription"))
}

/// A subscription, locked until this transaction ends.
async fn lock(ctx: &mut RequestContext, id: Uuid) -> Result<WebhookSubscription, ApiError> {
    let (tenant, product) = (ctx.tenant, ctx.caller.product.clone());
    store::lock(ctx.db(), tenant, &product, id).await?.ok_or_else(|| ApiError::not_found("subscription"))
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
    url: Option<String>,
    #[schemars(with = "Option<Vec<SubscribableEvent>>", length(min = 1))]
    events: Option<Vec<String>>,
    #[schemars(extend("enum" = CHOSEN_STATUSES))]
    status: Option<String>,
    #[schemars(with = "Option<Line<DESCRIPTION_MAX>>")]
    description: Patch<String>,
}

async fn change(ctx: &mut RequestContext, body: ChangeWebhook) -> Result<ApiReply, ApiError> {
    let rules = ctx.ingress.settings.outbound.rules();
    let mut faults = Faults::default();
    let url = body.url.and_then(|text| faults.target("url", &text, &rules));
    let events = body.events.map(|events| faults.events("events", events));
    if let Some(status) = &body.status {
        faults.one_of("status", status, &CHOSEN_STATUSES);
    }
    let description = body.description.value().map(String::as_str).unwrap_or_default();
    faults.one_line("description", description, DESCRIPTION_MAX);
    faults.finish()?;

    let id = ctx.id("subscription")?;
    let wished = body.status.as_deref().and_then(SubscriptionStatus::parse);
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
        check_active_limit(ctx).await?;
    }
    let change = store::SubscriptionChange {
        url: url.as_deref(),
        events: events.as_deref(),
        status: wished,
        description: body.description.is_given().then(|| Some(description).filter(|text| !text.trim().is_empty())),
    };
    let tenant = ctx.tenant;
    store::update(ctx.db(), tenant, id, &change).await?;
    // Where a product's events go is what an intruder would change. The address itself may hold a secret.
    let given = [("url", url.is_some()), ("events", events.is_some()), ("status", wished.is_some())];
    let changed: Vec<&str> = given.into_iter().filter_map(|(field, given)| given.then_some(field)).collect();
    if !changed.is_empty() {
        ctx.audit("webhook.changed", &format!("webhook:{id}"), json!({"fields": changed, "status": wished})).await?;
    }
    ApiReply::single(find(ctx, id).await?)
}

async fn check_active_limit(ctx: &mut RequestContext) -> Result<(), ApiError> {
    let (tenant, product) = (ctx.tenant, ctx.caller.product.clone());
    if store::count(ctx.db(), tenant, &product).await?.active < ACTIVE_MAX {
        return Ok(());
    }
    Err(ApiError::conflict("subscription_limit_reached")
        .detail(format!("at most {ACTIVE_MAX} subscriptions may be active")))
}

status_answer!(WebhookDisabled, subscription_id, SubscriptionStatus::Disabled.as_str());

/// Disables it; a repeat changes nothing.
async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let id = ctx.id("subscription")?;
    let row = lock(ctx, id).await?;
    if row.status != SubscriptionStatus::Disabled {
        let tenant = ctx.tenant;
        store::disable(ctx.db(), tenant, id).await?;
        ctx.audit("webhook.deleted", &format!("webhook:{id}"), json!({})).await?;
    }
    WebhookDisabled::reply(id)
}
