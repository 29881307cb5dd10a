//! Rows of `webhook_subscriptions`. The product is part of every question: a subscription is its.

use schemars::JsonSchema;
use schemas::SubscriptionStatus;
use serde::Serialize;
use uuid::Uuid;

use super::SubscribableEvent;
use crate::pipeline::{
    RequestContext,
    error::ApiError,
    page::{OptionalTime, Time},
    resource,
};

/// A subscription to events, without its secrets.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct WebhookSubscription {
    #[serde(rename = "subscription_id")]
    pub(super) id: Uuid,
    url: String,
    #[schemars(with = "Vec<SubscribableEvent>")]
    events: Vec<String>,
    description: Option<String>,
    pub(super) status: SubscriptionStatus,
    /// Deleted; answered 410; failed for five days.
    #[schemars(extend("enum" = ["deleted", "gone", "failing"]))]
    disabled_reason: Option<String>,
    disabled_at: OptionalTime,
    /// The first failure since the last success, or since days without deliveries.
    failing_since: OptionalTime,
    /// Until then deliveries carry a signature with the replaced secret, too.
    #[serde(rename = "previous_secret_until")]
    previous_until: OptionalTime,
    pub(super) created_at: Time,
    updated_at: Time,
}

resource!(WebhookSubscription, "subscription", "subscriptions", id);

/// Subscriptions of a tenant (`$1`) and product (`$2`), and which of them.
macro_rules! select {
    ($which:tt $(, $value:expr)+ $(,)?) => {
        sqlx::query_as!(
            WebhookSubscription,
            r#"select id, url, events, description, status as "status: SubscriptionStatus", disabled_reason, disabled_at,
                      failing_since, case when previous_until > now() then previous_until end as previous_until,
                      created_at, updated_at
               from webhook_subscriptions where tenant_id = $1 and product = $2 "# + $which,
            $($value),+
        )
    };
}

/// Newest first, one page. Served by `webhook_subscriptions_newest`.
pub(super) async fn list(
    ctx: &mut RequestContext,
    status: Option<SubscriptionStatus>,
) -> sqlx::Result<Vec<WebhookSubscription>> {
    let (tenant, product, page) = (ctx.tenant, ctx.caller.product.clone(), ctx.page);
    select!(
        "and ($3::text is null or status = $3) and ($4::timestamptz is null or (created_at, id) < ($4, $5::uuid))
         order by created_at desc, id desc limit $6",
        tenant,
        product,
        status.map(SubscriptionStatus::as_str),
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await
}

/// A subscription of the calling product.
pub(super) async fn find(ctx: &mut RequestContext, id: Uuid) -> Result<WebhookSubscription, ApiError> {
    let (tenant, product) = (ctx.tenant, ctx.caller.product.clone());
    let found = select!("and id = $3", tenant, product, id).fetch_optional(ctx.db()).await?;
    found.ok_or_else(|| ApiError::not_found("subscription"))
}

/// A subscription, locked, as it was committed last: a locking statement reads the row again after it waited.
pub(super) async fn lock(ctx: &mut RequestContext, id: Uuid) -> Result<WebhookSubscription, ApiError> {
    let (tenant, product) = (ctx.tenant, ctx.caller.product.clone());
    let found = select!("and id = $3 for no key update", tenant, product, id).fetch_optional(ctx.db()).await?;
    found.ok_or_else(|| ApiError::not_found("subscription"))
}
