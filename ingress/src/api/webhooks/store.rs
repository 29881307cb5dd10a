//! Rows of `webhook_subscriptions`. The product is part of every question: a subscription is its.

use std::time::Duration;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use schemas::SubscriptionStatus;
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{SubscribableEvent, target::SubscriptionRequest};
use crate::pipeline::{
    auth::keys::Caller,
    page::{ListPage, OptionalTime, Time},
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

/// How many there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct SubscriptionCount {
    pub(super) active: i64,
    /// Active or paused.
    pub(super) kept: i64,
}

/// What is to change; `None` stays.
#[derive(Debug)]
pub(super) struct SubscriptionChange<'a> {
    pub(super) url: Option<&'a str>,
    pub(super) events: Option<&'a [String]>,
    pub(super) status: Option<SubscriptionStatus>,
    /// `Some(None)` removes it.
    pub(super) description: Option<Option<&'a str>>,
}

/// Served by `webhook_subscriptions_live`.
pub(super) async fn count(db: &mut PgConnection, tenant: Uuid, product: &str) -> sqlx::Result<SubscriptionCount> {
    sqlx::query_as!(
        SubscriptionCount,
        r#"select count(*) filter (where status = 'active') as "active!", count(*) as "kept!"
           from webhook_subscriptions where tenant_id = $1 and product = $2 and status <> 'disabled'"#,
        tenant,
        product,
    )
    .fetch_one(db)
    .await
}

pub(super) async fn insert(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    caller: &Caller,
    wanted: &SubscriptionRequest<'_>,
    secret: &[u8],
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into webhook_subscriptions (tenant_id, id, product, environment, url, events, description, secret)
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        tenant,
        id,
        caller.product,
        caller.environment.as_str(),
        wanted.url,
        wanted.events,
        wanted.description,
        secret,
    )
    .execute(db)
    .await
    .map(drop)
}

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
    db: &mut PgConnection,
    tenant: Uuid,
    product: &str,
    status: Option<SubscriptionStatus>,
    page: &ListPage,
) -> sqlx::Result<Vec<WebhookSubscription>> {
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
    .fetch_all(db)
    .await
}

pub(super) async fn find(
    db: &mut PgConnection,
    tenant: Uuid,
    product: &str,
    id: Uuid,
) -> sqlx::Result<Option<WebhookSubscription>> {
    select!("and id = $3", tenant, product, id).fetch_optional(db).await
}

/// A subscription, locked, as it was committed last: a locking statement reads the row again after it waited.
pub(super) async fn lock(
    db: &mut PgConnection,
    tenant: Uuid,
    product: &str,
    id: Uuid,
) -> sqlx::Result<Option<WebhookSubscription>> {
    select!("and id = $3 for no key update", tenant, product, id).fetch_optional(db).await
}

/// Changes a subscription. A new address, or a resumption, ends the count of failures. Call under [`lock`].
pub(super) async fn update(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    change: &SubscriptionChange<'_>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update webhook_subscriptions
         set failing_since = case when $3 <> url or (status = 'paused' and $5 = 'active') then null else failing_since end,
             url = coalesce($3, url), events = coalesce($4, events), status = coalesce($5, status),
             description = case when $6 then $7 else description end, updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        change.url,
        change.events,
        change.status.map(SubscriptionStatus::as_str),
        change.description.is_some(),
        change.description.flatten(),
    )
    .execute(db)
    .await
    .map(drop)
}

/// Disables it, and cancels replays into it. The webhooks stage drops its pending deliveries. Call under [`lock`].
pub(super) async fn disable(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "update webhook_subscriptions set status = 'disabled', disabled_reason = 'deleted', disabled_at = now(), updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "update webhook_replays set status = 'cancelled', finished_at = now()
         where tenant_id = $1 and subscription_id = $2 and status = 'running'",
        tenant,
        id,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Replaces the secret, and answers until when the one before is used, too. Call under [`lock`].
pub(super) async fn replace_secret(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    secret: &[u8],
    overlap: Duration,
) -> sqlx::Result<DateTime<Utc>> {
    sqlx::query_scalar!(
        r#"update webhook_subscriptions
           set previous_secret = secret, previous_until = now() + make_interval(secs => $4), secret = $3, updated_at = now()
           where tenant_id = $1 and id = $2
           returning previous_until as "until!""#,
        tenant,
        id,
        secret,
        overlap.as_secs_f64(),
    )
    .fetch_one(db)
    .await
}

/// How often the secret of a product's calls was rotated.
pub(super) async fn call_generation(db: &mut PgConnection, tenant: Uuid, product: &str) -> sqlx::Result<i32> {
    sqlx::query_scalar!("select generation from call_secrets where tenant_id = $1 and product = $2", tenant, product)
        .fetch_optional(db)
        .await
        .map(Option::unwrap_or_default)
}

/// Rotates the secret of a product's calls. Answers its number, and until when the one before is used, too.
pub(super) async fn rotate_calls(
    db: &mut PgConnection,
    tenant: Uuid,
    product: &str,
    overlap: Duration,
) -> sqlx::Result<(i32, DateTime<Utc>)> {
    let row = sqlx::query!(
        r#"insert into call_secrets (tenant_id, product, generation) values ($1, $2, 1)
           on conflict (tenant_id, product) do update set generation = call_secrets.generation + 1, rotated_at = now()
           returning generation, rotated_at + make_interval(secs => $3) as "until!""#,
        tenant,
        product,
        overlap.as_secs_f64(),
    )
    .fetch_one(db)
    .await?;
    Ok((row.generation, row.until))
}
