//! `POST /v1/campaigns/{id}/duplicate` and `DELETE /v1/campaigns/{id}`.

use schemars::JsonSchema;
use schemas::{CampaignStatus, Classification};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{already, draft::CampaignRequest, find, store};
use crate::{
    api::{references, segments},
    pipeline::{ApiReply, NoFields, RequestContext, error::ApiError, status_answer, types::Name, validate::NAME_MAX},
};

/// What the name of a copy ends with.
const SUFFIX: &str = " (copy)";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DuplicateCampaign {
    /// Default: that of the campaign, and ` (copy)`.
    #[schemars(with = "Option<Name<NAME_MAX>>")]
    name: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CampaignDuplicated {
    campaign_id: Uuid,
    #[schemars(with = "String", extend("enum" = ["draft"]))]
    status: CampaignStatus,
    email_type: Classification,
    name: String,
}

/// Makes a new draft of what a caller decided about a campaign: it is checked like a new one, and nothing of its history is taken over.
pub(super) async fn duplicate(ctx: &mut RequestContext, body: DuplicateCampaign) -> Result<ApiReply, ApiError> {
    let row = find(ctx).await?;
    let from = row.id;
    let kept = NAME_MAX - SUFFIX.len();
    let name = body.name.unwrap_or_else(|| row.name.chars().take(kept).chain(SUFFIX.chars()).collect());
    let draft = CampaignRequest::copy_of(row, name).resolve(ctx).await?;
    let id = schemas::new_id();
    store::write(ctx, id, &draft).await?;
    ctx.audit("campaign.duplicated", &id.to_string(), json!({"from": from})).await?;
    ApiReply::created(&CampaignDuplicated {
        campaign_id: id,
        status: CampaignStatus::Draft,
        email_type: draft.classification,
        name: draft.name,
    })
}

status_answer!(pub(super) CampaignDeleted, campaign_id, "deleted");

/// Removes a draft, or a campaign that was cancelled before its launch began. One that was launched stays: its mails refer to it.
pub(super) async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("campaign")?);
    if !store::begin_preflight(ctx.db(), tenant, id).await? {
        return Err(already(CampaignStatus::Preflight));
    }
    // Writers of segments take turns: none names the campaign while it goes.
    segments::lock_all(ctx.db(), tenant).await?;
    // The launch of one that was cancelled may still be announced.
    store::lock_waiting_launch(ctx.db(), tenant, id).await?;
    let row = store::lock(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("campaign"))?;
    let detail = match row.status {
        CampaignStatus::Draft => None,
        CampaignStatus::Cancelled if row.launched_at.is_none() => None,
        CampaignStatus::Preflight | CampaignStatus::Scheduled => {
            Some("take it back to draft first (PATCH status: draft)")
        }
        CampaignStatus::Sending => Some("cancel it instead (PATCH status: cancelled)"),
        CampaignStatus::Sent | CampaignStatus::Cancelled => Some("it was launched: its reports and mails refer to it"),
    };
    if let Some(detail) = detail {
        return Err(already(row.status).detail(detail));
    }
    let references = references::to_campaign(ctx.db(), tenant, id).await?;
    references::refuse("campaign", references, "change them first")?;
    store::back_to_draft(ctx.db(), tenant, id).await?;
    store::delete_draft(ctx.db(), tenant, id).await?;
    store::empty_replaced_contents(ctx.db(), tenant, id, &store::contents_of(&row)).await?;
    ctx.audit("campaign.deleted", &id.to_string(), json!({})).await?;
    CampaignDeleted::reply(id)
}
