//! How `/v1/campaigns` is documented.

use serde_json::{Value, json};

use super::{
    CampaignAnswer, CampaignChanged, CampaignCreated, CampaignPage, ListCampaigns,
    draft::{ChangeCampaign, CreateCampaign},
    launch::{CampaignLaunched, LaunchCampaign, LaunchPreview},
    retry::FailedSendsRetried,
    sends::{CampaignSendPage, ListCampaignSends},
};
use crate::{
    api::sends,
    pipeline::{
        Doc, NoFields,
        doc::{AT, ID},
    },
};

const ALREADY: [&str; 5] = [
    "campaign_already_preflight",
    "campaign_already_scheduled",
    "campaign_already_sending",
    "campaign_already_sent",
    "campaign_already_cancelled",
];
const MISSING: [&str; 5] =
    ["list_not_found", "segment_not_found", "tag_not_found", "sender_profile_not_found", "template_not_found"];

fn listed() -> Value {
    json!({
        "campaign_id": ID, "name": "Spring", "status": "sending", "paused": false, "pause_reason": null,
        "email_type": "marketing", "sender_profile_id": ID, "template_id": ID, "subject": null, "preheader": null,
        "campaign_goal": "newsletter", "audience_mode": "list", "list_id": ID, "segment_id": null, "tag_ids": [],
        "message_purpose": "marketing_campaign", "urgency": "normal", "audience_reason": null, "variants": [],
        "ab_test": null, "not_after": null, "on_miss": "skip", "max_per_minute": null,
        "tripwire": {"bounce_percent": 5.0, "complaint_percent": 0.3, "state": "armed"}, "scheduled_for": null,
        "launched_at": AT, "completed_at": null, "created_at": AT, "updated_at": AT,
    })
}

fn counts_example() -> Value {
    json!({
        "total": 3, "queued": 0, "fenced": 0, "deferred": 0, "sent": 2, "failed": 0, "unknown": 0, "skipped": 1,
        "cancelled": 0, "expired": 0, "delivered": 2, "delivered_confirmed": 0, "bounced": 0,
        "complained": 0, "opened": 1, "clicked": 0, "unsubscribed": 0,
    })
}

pub(super) fn list() -> Doc {
    Doc::new("listCampaigns", "List campaigns", "Newest first, without bodies.")
        .query::<ListCampaigns>()
        .answer::<CampaignPage>(200, "A page of campaigns", json!({"campaigns": [listed()], "next_cursor": null}))
}

pub(super) fn create() -> Doc {
    Doc::new("createCampaign", "Create a campaign", "A draft: nothing is sent.")
        .body::<CreateCampaign>(json!({
            "name": "Spring", "sender_profile_id": ID, "audience_mode": "list", "list_id": ID,
            "subject": "Hello {{ first_name }}", "body_html": "<p>Hello {{ first_name }}</p>",
        }))
        .answer::<CampaignCreated>(
            201,
            "Created",
            json!({"campaign_id": ID, "status": "draft", "email_type": "marketing"}),
        )
        .leads_to("campaign_id", &["getCampaign", "updateCampaign", "launchCampaign", "listCampaignSends"])
        .refuses(404, &MISSING)
}

pub(super) fn show() -> Doc {
    let mut example = listed();
    example["body_html"] = Value::Null;
    Doc::new("getCampaign", "Read a campaign", "With one number for each state its sends can be in.")
        .answer::<CampaignAnswer>(200, "The campaign", json!({"campaign": example, "send_counts": counts_example()}))
        .refuses(404, &["campaign_not_found"])
}

pub(super) fn change() -> Doc {
    Doc::new(
        "updateCampaign",
        "Change, reschedule, cancel or pause a campaign",
        "One thing at a time: fields of a draft; `status: cancelled` before it is sent; `paused` while it is scheduled or sending; \
         `schedule_for` while it is scheduled; `status: draft` takes a scheduled one back, to be changed and launched anew. While a \
         launch is being worked on, the campaign is in `preflight`: 409 with `Retry-After`.",
    )
    .body::<ChangeCampaign>(json!({"name": "Spring"}))
    .answer::<CampaignChanged>(
        200,
        "Changed",
        json!({"campaign_id": ID, "status": "draft", "paused": false, "email_type": "marketing", "scheduled_for": null}),
    )
    .refuses(404, &["campaign_not_found"])
    .refuses(404, &MISSING)
    .refuses(422, &["window_missed"])
    .refuses(409, &["campaign_already_draft"])
    .refuses(409, &ALREADY)
}

pub(super) fn launch() -> Doc {
    Doc::new(
        "launchCampaign",
        "Launch a campaign",
        "202 means that the launch is committed. Without `schedule_for` it is sent now. `dry_run` answers what would happen. While the \
         audience is counted the campaign is in `preflight`; another launch meanwhile is a 409 with `Retry-After`.",
    )
    .body::<LaunchCampaign>(json!({}))
    .answer::<CampaignLaunched>(
        202,
        "Launched",
        json!({"campaign_id": ID, "queued": 2, "skipped": 1, "scheduled_for": null, "ab_variants": []}),
    )
    .leads_to("campaign_id", &["getCampaign", "listCampaignSends"])
    .answer::<LaunchPreview>(
        200,
        "What would happen",
        json!({
            "campaign_id": ID, "queued": 2, "skipped": 1, "scheduled_for": null, "ab_variants": [], "dry_run": true,
            "skipped_by_reason": {"unsubscribed": 1}, "digest": "0f1e2d", "sampled": 2, "render_faults": [],
            "send_quota": {"remaining": null, "resets_at": AT, "exceeded": false},
        }),
    )
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
}

pub(super) fn retry_failed() -> Doc {
    const ABOUT: &str = "Failed and expired sends go back into the queue, and the campaign is sending again. Tried again is what failed \
        for `mailbox_full`, `block`, `content`, `policy`, `throttled`, `temporary`, `routing`, `unreachable`, `configuration` or \
        `render`. Not an address that does not exist (`hard`) or is switched off (`inactive`), and never what is `unknown`.";
    Doc::new("retryFailedSends", "Try failed sends again", ABOUT)
        .body::<NoFields>(json!({}))
        .answer::<FailedSendsRetried>(200, "Back in the queue", json!({"campaign_id": ID, "queued": 12, "skipped": 3}))
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
        .refuses(422, &["sender_missing_verified_domain", "window_missed"])
        .refuses(429, &["send_quota_exceeded"])
}

pub(super) fn list_sends() -> Doc {
    Doc::new("listCampaignSends", "List a campaign's sends", "One for each recipient, newest first.")
        .query::<ListCampaignSends>()
        .answer::<CampaignSendPage>(
            200,
            "A page of sends",
            json!({"sends": [sends::doc::summary_example()], "next_cursor": null}),
        )
        .refuses(404, &["campaign_not_found"])
}
