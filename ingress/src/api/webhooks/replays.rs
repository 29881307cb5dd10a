//! Replays: events of a time are delivered again, also to a subscription that was not there yet.

use chrono::{DateTime, Datelike, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{find, lock_active};
use crate::pipeline::{
    ApiReply, Faults, GivenTime, NoParameters, RequestContext,
    error::ApiError,
    page::{OptionalTime, Time},
    resource,
    validate::FIRST_YEAR,
};

/// `Retry-After` while another replay runs, in seconds.
const RETRY_RUNNING: u64 = 60;

/// A period whose events are delivered again.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WebhookReplay {
    #[serde(rename = "replay_id")]
    id: Uuid,
    subscription_id: Uuid,
    since: Time,
    until: Time,
    #[schemars(extend("enum" = ["running", "completed", "cancelled"]))]
    status: String,
    /// How many it has asked for so far.
    #[schemars(range(min = 0))]
    deliveries: i64,
    created_at: Time,
    finished_at: OptionalTime,
}

resource!(WebhookReplay, "replay", "replays", id);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayWebhook {
    #[schemars(with = "GivenTime")]
    since: Option<GivenTime>,
    /// Left out: now.
    until: Option<GivenTime>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReplayStarted {
    replay_id: Uuid,
    replay: WebhookReplay,
}

/// A time that has begun, and its end if one is given.
fn validate(body: &ReplayWebhook, now: DateTime<Utc>) -> Result<(DateTime<Utc>, Option<DateTime<Utc>>), ApiError> {
    let mut faults = Faults::default();
    let since = faults.required("since", body.since).map_or(now, |since| since.0);
    let until = body.until.map(|until| until.0);
    if body.since.is_some() {
        faults.require(since.year() >= FIRST_YEAR, "since", "out_of_range", "must not be before 2000");
        faults.require(since < now, "since", "out_of_range", "must be in the past");
    }
    if let Some(until) = until {
        faults.require(until <= now, "until", "out_of_range", "must not be in the future");
        faults.require(since < until, "until", "out_of_range", "must be after since");
    }
    faults.finish().map(|()| (since, until))
}

/// The webhooks stage works it off in slices.
pub(super) async fn start(ctx: &mut RequestContext, body: ReplayWebhook) -> Result<ApiReply, ApiError> {
    let (since, until) = validate(&body, Utc::now())?;
    let subscription = ctx.id("subscription")?;
    lock_active(ctx, subscription).await?;
    let (tenant, id) = (ctx.tenant, schemas::new_id());
    // One at a time, so that what is asked for is bounded. Asked in a statement after the lock.
    let running = sqlx::query_scalar!(
        r#"select exists (select from webhook_replays
                          where tenant_id = $1 and subscription_id = $2 and status = 'running') as "running!""#,
        tenant,
        subscription,
    )
    .fetch_one(ctx.db())
    .await?;
    if running {
        return Err(ApiError::conflict("replay_in_progress")
            .retry_after(RETRY_RUNNING)
            .detail("one replay at a time: wait until it is completed"));
    }
    // Without an end: now, by the clock that facts are recorded by. A `since` that is later by that clock has nothing to replay yet.
    sqlx::query!(
        "insert into webhook_replays (tenant_id, id, subscription_id, since, until, cursor_at)
         values ($1, $2, $3, $4, coalesce($5, greatest(now(), $4::timestamptz + interval '1 microsecond')), $4)",
        tenant,
        id,
        subscription,
        since,
        until,
    )
    .execute(ctx.db())
    .await?;
    ctx.audit("webhook.replayed", &format!("webhook:{subscription}"), json!({"replay_id": id})).await?;
    let replay = find_replay(ctx, id).await?;
    ApiReply::accepted(&ReplayStarted { replay_id: id, replay })
}

async fn find_replay(ctx: &mut RequestContext, id: Uuid) -> Result<WebhookReplay, ApiError> {
    let (tenant, product) = (ctx.tenant, ctx.caller.product.clone());
    sqlx::query_as!(
        WebhookReplay,
        "select r.id, r.subscription_id, r.since, r.until, r.status, r.deliveries, r.created_at, r.finished_at
         from webhook_replays r
         join webhook_subscriptions s on s.tenant_id = r.tenant_id and s.id = r.subscription_id and s.product = $3
         where r.tenant_id = $1 and r.id = $2",
        tenant,
        id,
        product,
    )
    .fetch_optional(ctx.db())
    .await?
    .ok_or_else(|| ApiError::not_found("replay"))
}

pub(super) async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let id = ctx.id("replay")?;
    ApiReply::single(find_replay(ctx, id).await?)
}

/// Newest first. Served by `webhook_replays_newest`.
pub(super) async fn list(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let page = ctx.page;
    let subscription = ctx.id("subscription")?;
    find(ctx, subscription).await?;
    let tenant = ctx.tenant;
    let replays = sqlx::query_as!(
        WebhookReplay,
        "select id, subscription_id, since, until, status, deliveries, created_at, finished_at
         from webhook_replays
         where tenant_id = $1 and subscription_id = $2 and ($3::timestamptz is null or (created_at, id) < ($3, $4::uuid))
         order by created_at desc, id desc
         limit $5",
        tenant,
        subscription,
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::page(page, replays)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;
    use rstest::rstest;

    #[rstest]
    #[case(Some(-60), None, None)]
    #[case(Some(-60), Some(-30), None)]
    #[case(None, None, Some(("since", "required")))]
    #[case(Some(0), None, Some(("since", "out_of_range")))]
    #[case(Some(-60), Some(60), Some(("until", "out_of_range")))]
    #[case(Some(-60), Some(-60), Some(("until", "out_of_range")))]
    #[case(Some(-60 * 60 * 24 * 365 * 100), None, Some(("since", "out_of_range")))]
    fn a_replay_is_of_a_time_that_was(
        #[case] since: Option<i64>,
        #[case] until: Option<i64>,
        #[case] fault: Option<(&str, &str)>,
    ) {
        let now = Utc::now();
        let at = |seconds: i64| GivenTime(now + TimeDelta::seconds(seconds));
        let found = validate(&ReplayWebhook { since: since.map(at), until: until.map(at) }, now);
        let found = found.err().map(|error| (error.fields[0].path.clone(), error.fields[0].code.to_string()));
        assert_eq!(found, fault.map(|(path, code)| (path.to_owned(), code.to_owned())));
    }
}
