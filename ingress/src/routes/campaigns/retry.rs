//! `POST /v1/campaigns/{id}/retry_failed`: what was refused for a reason that may be mended goes back into the queue.

use http::StatusCode;
use schemas::CampaignStatus;
use serde_json::json;

use super::{already, quota, store};
use crate::{
    act::{Act, NoFields, Reply},
    error::ApiError,
    routes::senders::store as senders,
};

/// Reasons of a failure that another attempt may not meet again. Not among them: `hard`, the address does not exist, and
/// `inactive`, it is switched off. What is `unknown` may have arrived, and is never sent again.
pub(super) const RETRYABLE: [&str; 10] = [
    "mailbox_full",
    "block",
    "content",
    "policy",
    "throttled",
    "temporary",
    "routing",
    "unreachable",
    "configuration",
    "render",
];

pub(super) async fn retry_failed(act: &mut Act, _: NoFields) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("campaign")?);
    let not_found = || ApiError::not_found("campaign");
    if !store::lock(act.db(), tenant, id).await? {
        return Err(not_found());
    }
    let row = store::get(act.db(), tenant, id).await?.ok_or_else(not_found)?;
    if !matches!(row.status, CampaignStatus::Sent | CampaignStatus::Sending) {
        return Err(already(row.status));
    }
    let sender = senders::readiness(act.db(), tenant, Some(row.sender_profile_id)).await?;
    if !sender.is_some_and(|sender| sender.may_send()) {
        return Err(ApiError::unprocessable("sender_missing_verified_domain"));
    }
    if store::is_closed(act.db(), tenant, id).await? {
        return Err(ApiError::unprocessable("window_missed").detail("not_after has passed"));
    }
    let retried = ledger::retry::retry_failed(act.db(), tenant, id, &RETRYABLE).await?;
    // Counted by what was put back, which is undone when there is no quota left for it. What counts already needs none.
    let left = quota::remaining(act).await?;
    quota::check(&left, retried.unmetered)?;
    if retried.queued > 0 {
        store::reopen(act.db(), tenant, id).await?;
        act.audit("campaign.retry_failed", &id.to_string(), json!({"queued": retried.queued})).await?;
    }
    let answer = json!({"ok": true, "campaign_id": id, "queued": retried.queued, "skipped": retried.skipped});
    Reply::untyped(StatusCode::OK, &answer)
}
