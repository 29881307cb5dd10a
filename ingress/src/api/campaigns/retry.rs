//! `POST /v1/campaigns/{id}/retry_failed`: what was refused for a reason that may be mended goes back into the queue.

use schemars::JsonSchema;
use schemas::{CampaignStatus, answers::Class};
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use super::{already, quota, store};
use crate::{
    api::senders::store as senders,
    pipeline::{ApiReply, NoFields, RequestContext, error::ApiError, types::counts},
};

/// Reasons of a failure that another attempt may not meet again. What is `unknown` may have arrived, and is never sent again.
fn retryable() -> Vec<&'static str> {
    let classes = Class::ALL.iter().filter(|class| class.may_succeed_later()).map(|class| class.as_str());
    classes.chain(["render"]).collect()
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = counts)]
pub(super) struct FailedSendsRetried {
    campaign_id: Uuid,
    /// Will be attempted again.
    queued: i64,
    /// Failed for good, or may not be mailed now.
    skipped: i64,
}

pub(super) async fn retry_failed(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("campaign")?);
    let row = store::lock(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("campaign"))?;
    if !matches!(row.status, CampaignStatus::Sent | CampaignStatus::Sending) {
        return Err(already(row.status));
    }
    senders::require_ready(ctx.db(), tenant, row.sender_profile_id).await?;
    if store::is_closed(ctx.db(), tenant, id).await? {
        return Err(ApiError::unprocessable("window_missed").detail("not_after has passed"));
    }
    let retried = ledger::retry::retry_failed(ctx.db(), tenant, id, &retryable()).await?;
    // Counted by what was put back, which is undone when there is no quota left for it. What counts already needs none.
    let left = quota::remaining(ctx).await?;
    quota::check(&left, retried.unmetered)?;
    if retried.queued > 0 {
        store::reopen(ctx.db(), tenant, id).await?;
        ctx.audit("campaign.retry_failed", &id.to_string(), json!({"queued": retried.queued})).await?;
    }
    ApiReply::ok(&FailedSendsRetried { campaign_id: id, queued: retried.queued, skipped: retried.skipped })
}
