//! `/v1/campaigns`: drafts, launches, and their state.

mod change;
mod content;
mod copy;
mod draft;
mod launch;
mod preview;
pub(crate) mod quota;
mod retry;
pub(crate) mod rows;
mod rules;
mod sample;
mod schedule;
mod sends;
pub(crate) mod store;

use schemars::JsonSchema;
use schemas::{CampaignStatus, Classification};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use self::{
    draft::{CampaignRequest, CreateCampaign},
    rows::{Campaign, CampaignRow, CampaignSummary},
    store::{SendCounts, TimedSends},
};
use crate::api::templates::{content::ContentWarning, render};
use crate::pipeline::{
    ApiReply, Doc, Faults, NoParameters, RequestContext, Routes, doc::ID, error::ApiError, read, read_page, write,
    write_with_work,
};

pub use change::{PauseRefused, set_paused};

/// Refusals of a campaign whose status does not allow it.
const ALREADY: [&str; 5] = [
    "campaign_already_preflight",
    "campaign_already_scheduled",
    "campaign_already_sending",
    "campaign_already_sent",
    "campaign_already_cancelled",
];
/// Refusals for what a campaign names and the tenant does not have.
const MISSING: [&str; 5] =
    ["list_not_found", "segment_not_found", "tag_not_found", "sender_profile_not_found", "template_not_found"];

pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/campaigns",
            read_page("campaigns:read", list),
            Doc::new("listCampaigns", "List campaigns", "Newest first, without bodies.")
                .page::<CampaignSummary>("A page of campaigns"),
        )
        .post(
            "/v1/campaigns",
            write_with_work("campaigns:write", create),
            Doc::new(
                "createCampaign",
                "Create a campaign",
                "A draft: nothing is sent. It says what its template says, or has a body of its own, as a template has \
                 (see `POST /v1/templates`): `body_html` or `mjml`, with snippets, and a `layout`. The newest snippets \
                 are taken at every change of its content and when it is launched; then it stays as it is.",
            )
                .example(json!({
                    "name": "Spring", "sender_profile_id": ID, "audience_mode": "list", "list_id": ID,
                    "subject": "Hello {{ first_name }}", "body_html": "<p>Hello {{ first_name }}</p>",
                }))
                .answer::<CampaignCreated>(201, "Created")
                .leads_to(
                    "campaign_id",
                    &[
                        "getCampaign",
                        "updateCampaign",
                        "previewCampaign",
                        "testCampaign",
                        "launchCampaign",
                        "duplicateCampaign",
                        "deleteCampaign",
                        "listCampaignSends",
                    ],
                )
                .refuses(404, &MISSING),
        )
        .get(
            "/v1/campaigns/{id}",
            read("campaigns:read", one),
            Doc::new("getCampaign", "Read a campaign", "With one number for each state its sends can be in.")
                .answer::<CampaignAnswer>(200, "The campaign")
                .refuses(404, &["campaign_not_found"]),
        )
        .patch(
            "/v1/campaigns/{id}",
            write_with_work("campaigns:write", change::change),
            Doc::new(
                "updateCampaign",
                "Change, reschedule, cancel or pause a campaign",
                "One thing at a time: fields of a draft; `status: cancelled` before it is sent; `paused` while it is \
                 scheduled or sending; `schedule_for` or `schedule_for_local` while it is scheduled; `status: draft` takes a scheduled one \
                 back, to be changed and launched anew. Another time is refused if the launch, or the decision of its A/B test, \
                 would not come before `not_after`; the audience is not counted again, so quiet hours and time zones may still \
                 keep mail beyond it. While a launch is being worked on, the campaign is in `preflight`: 409 with `Retry-After`.",
            )
            .example(json!({"name": "Spring"}))
            .answer::<change::CampaignChanged>(200, "Changed")
            .refuses(404, &["campaign_not_found"])
            .refuses(404, &MISSING)
            .refuses(422, &["window_missed"])
            .refuses(409, &["campaign_already_draft"])
            .refuses(409, &ALREADY),
        )
        .delete(
            "/v1/campaigns/{id}",
            write("campaigns:write", copy::remove),
            Doc::new(
                "deleteCampaign",
                "Delete a draft",
                "Or a campaign that was cancelled before its launch began. A scheduled one is taken back to draft first. One \
                 that was launched stays: its mails refer to it.",
            )
            .answer::<copy::CampaignDeleted>(200, "Deleted")
            .refuses(404, &["campaign_not_found"])
            .refuses(409, &ALREADY)
            .refuses(409, &["campaign_in_use"]),
        )
        .post(
            "/v1/campaigns/{id}/duplicate",
            write_with_work("campaigns:write", copy::duplicate),
            Doc::new(
                "duplicateCampaign",
                "Duplicate a campaign",
                "A new draft with all that a caller decides about a campaign, whatever the status of the first. It is \
                 checked like a new one. A `not_after` that has passed is left out.",
            )
            .answer::<copy::CampaignDuplicated>(201, "Created")
            .leads_to("campaign_id", &["getCampaign", "updateCampaign", "launchCampaign", "deleteCampaign"])
            .refuses(404, &["campaign_not_found"])
            .refuses(404, &MISSING),
        )
        .post(
            "/v1/campaigns/{id}/preview",
            write_with_work("campaigns:read", preview::preview),
            Doc::new(
                "previewCampaign",
                "Preview a campaign for one contact",
                "The mail that a contact, a `sample` of one, or `test_data` of the template would see, with its footer, \
                 without sending it. Links are the author's own, the unsubscribe address is a placeholder. A draft is \
                 shown with the current versions of its template and of the snippets in a body of its own.",
            )
            .example(json!({"sample": {"first_name": "Ann"}}))
            .answer::<preview::CampaignPreview>(200, "Rendered")
            .refuses(404, &["campaign_not_found", "template_not_found", "contact_not_found"])
            .refuses(422, &render::FAULTS),
        )
        .post(
            "/v1/campaigns/{id}/test",
            write_with_work("campaigns:launch", preview::send_test),
            Doc::new(
                "testCampaign",
                "Send a test of a campaign",
                "The mail that a contact, or a `sample` of one, would see, to up to ten addresses. The subject begins \
                 with `[Test]`, the header `X-Postrider-Test` says so, links are the author's own. It counts against \
                 the send quota and an hourly limit of its own and in no report, makes no events, and its bounces and \
                 complaints suppress nobody. A suppressed address gets no mail, nor does one that has unsubscribed, if \
                 the campaign is marketing; a consent that is not confirmed yet does not matter. \
                 202 means that it is stored; `GET /v1/sends/{send_id}` follows each mail.",
            )
            .example(json!({"to": ["ann@example.com"], "sample": {"first_name": "Ann"}}))
            .answer::<preview::CampaignTestAccepted>(202, "Stored")
            .refuses(404, &["campaign_not_found", "template_not_found", "contact_not_found"])
            .refuses(403, &["tenant_suspended"])
            .refuses(422, &["sender_missing_verified_domain", "all_recipients_suppressed"])
            .refuses(422, &render::FAULTS)
            .refuses(429, &["test_rate_exceeded", "send_quota_exceeded"]),
        )
        .post(
            "/v1/campaigns/{id}/launch",
            write_with_work("campaigns:launch", launch::launch),
            Doc::new(
                "launchCampaign",
                "Launch a campaign",
                "202 means that the launch is committed. Without `schedule_for` it is sent now. `dry_run` answers \
                 what would happen. While the audience is counted the campaign is in `preflight`; another launch \
                 meanwhile is a 409 with `Retry-After`.",
            )
            .answer::<launch::CampaignLaunched>(202, "Launched")
            .leads_to("campaign_id", &["getCampaign", "listCampaignSends"])
            .answer::<launch::LaunchPreview>(200, "What would happen")
            .refuses(403, &["tenant_suspended"])
            .refuses(404, &["campaign_not_found", "template_not_found"])
            .refuses(409, &ALREADY)
            .refuses(409, &["audience_changed"])
            .refuses(422, &["template_archived"])
            .refuses(
                422,
                &[
                    "audience_resolved_to_zero_contacts",
                    "sender_missing_verified_domain",
                    "all_contacts_suppressed_or_bounced",
                    "window_missed",
                ],
            )
            .refuses(429, &["send_quota_exceeded"])
            .refuses(503, &["audience_too_slow"]),
        )
        .post(
            "/v1/campaigns/{id}/retry_failed",
            write("campaigns:launch", retry::retry_failed),
            Doc::new(
                "retryFailedSends",
                "Try failed sends again",
                "Failed and expired sends go back into the queue, and the campaign is sending again. Tried again is \
                 what failed for `mailbox_full`, `block`, `content`, `policy`, `throttled`, `temporary`, `routing`, \
                 `unreachable`, `configuration` or `render`. Not an address that does not exist (`hard`) or is \
                 switched off (`inactive`), nor a contact that may not be mailed now, and never what is `unknown`.",
            )
            .answer::<retry::FailedSendsRetried>(200, "Back in the queue")
            .leads_to("campaign_id", &["getCampaign", "listCampaignSends"])
            .refuses(404, &["campaign_not_found"])
            .refuses(
                409,
                &[
                    "campaign_already_draft",
                    "campaign_already_preflight",
                    "campaign_already_scheduled",
                    "campaign_already_cancelled",
                ],
            )
            .refuses(403, &["tenant_suspended"])
            .refuses(422, &["sender_missing_verified_domain", "window_missed"])
            .refuses(429, &["send_quota_exceeded"]),
        )
        .get(
            "/v1/campaigns/{id}/sends",
            read_page("campaigns:read", sends::list),
            Doc::new("listCampaignSends", "List a campaign's sends", "One for each recipient, newest first.")
                .page::<crate::api::sends::SendRow>("A page of sends")
                .refuses(404, &["campaign_not_found"]),
        )
}

#[derive(Debug, Serialize, JsonSchema)]
struct CampaignCreated {
    campaign_id: Uuid,
    #[schemars(with = "String", extend("enum" = ["draft"]))]
    status: CampaignStatus,
    email_type: Classification,
    /// About the campaign's own bodies, as those of a template.
    warnings: Vec<ContentWarning>,
}

async fn create(ctx: &mut RequestContext, CreateCampaign(body): CreateCampaign) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    for (path, given) in [
        ("status", body.status.is_given()),
        ("paused", body.paused.is_given()),
        ("schedule_for", body.schedule_for.is_given()),
        ("schedule_for_local", body.schedule_for_local.is_given()),
    ] {
        faults.require(!given, path, "unknown_field", "is not a field of this request");
    }
    faults.finish()?;
    let draft = CampaignRequest::new(body).resolve(ctx).await?;
    let id = schemas::new_id();
    store::write(ctx, id, &draft).await?;
    ctx.audit("campaign.created", &id.to_string(), json!({})).await?;
    ApiReply::created(&CampaignCreated {
        campaign_id: id,
        status: CampaignStatus::Draft,
        email_type: draft.classification,
        warnings: draft.warnings,
    })
}

/// Seconds until a launch that is being worked on has probably ended.
const RETRY_PREFLIGHT: u64 = 2;

/// 409: the campaign's status does not allow it. In preflight it is in for a moment only.
fn already(status: CampaignStatus) -> ApiError {
    let conflict = ApiError::conflict(format!("campaign_already_{status}"));
    if status == CampaignStatus::Preflight { conflict.retry_after(RETRY_PREFLIGHT) } else { conflict }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListCampaigns {
    status: Option<CampaignStatus>,
}

async fn list(ctx: &mut RequestContext, query: ListCampaigns) -> Result<ApiReply, ApiError> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    let rows = store::list(ctx.db(), tenant, None, query.status, &page).await?;
    ApiReply::page(page, rows.into_iter().map(CampaignSummary::of).collect())
}

#[derive(Debug, Serialize, JsonSchema)]
struct CampaignAnswer {
    campaign: Campaign,
    send_counts: SendCounts,
    /// Of those that are queued or deferred: how many wait for which time.
    waiting: Vec<TimedSends>,
}

async fn one(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let row = find(ctx).await?;
    let (tenant, id) = (ctx.tenant, row.id);
    let send_counts = store::counts(ctx.db(), tenant, id).await?;
    let waiting = store::timed(ctx.db(), tenant, id).await?;
    ApiReply::ok(&CampaignAnswer { campaign: Campaign::of(row), send_counts, waiting })
}

/// The campaign that the path names.
async fn find(ctx: &mut RequestContext) -> Result<CampaignRow, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("campaign")?);
    store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("campaign"))
}
