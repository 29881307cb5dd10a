//! How `/v1/campaigns` is documented.

use schemas::{
    CampaignStatus, Classification, MessagePurpose, OnMiss, PauseReason, SendState, SkipReason, WinnerMetric,
    WinnerReason,
};
use serde_json::{Value, json};

use super::{
    draft::{GOALS, MODES, REASON_MAX, TAGS_MAX, URGENCIES},
    rules::{DECIDE_AFTER, DECIDE_AFTER_MAX, PACE_MAX, TRIPWIRE, VARIANTS_MAX, VARIANTS_MIN, WEIGHT_MAX},
    sends::{CampaignSendPage, ListCampaignSends},
};
use crate::{
    openapi::{
        AT, Doc, ID,
        schema::{
            Field, Schema, any_of, array, array_max, boolean, count, id, integer, line, map_of, name, nullable, number,
            object, one_of, only, optional, page_of, required, success, text, text_max, time, words,
        },
    },
    routes::{
        input::{LINE_MAX, NAME_MAX},
        sends,
    },
};

/// Longest source of a part.
const SOURCE_MAX: usize = 512 * 1024;
const ALREADY: [&str; 5] = [
    "campaign_already_preflight",
    "campaign_already_scheduled",
    "campaign_already_sending",
    "campaign_already_sent",
    "campaign_already_cancelled",
];
const MISSING: [&str; 5] =
    ["list_not_found", "segment_not_found", "tag_not_found", "sender_profile_not_found", "template_not_found"];

fn status() -> Schema {
    one_of(CampaignStatus::ALL.iter().map(|status| status.as_str()))
}

fn classification() -> Schema {
    one_of(Classification::ALL.iter().map(|class| class.as_str()))
}

fn purpose() -> Schema {
    one_of(MessagePurpose::ALL.iter().map(|purpose| purpose.as_str()))
}

/// What a list shows of a campaign: everything but the body.
fn common() -> Vec<Field> {
    vec![
        required("campaign_id", id()),
        required("name", text()),
        required("status", status()),
        required("paused", boolean()),
        required("pause_reason", pause_reason().or_null()),
        required("email_type", classification()),
        required("sender_profile_id", id()),
        required("template_id", id().or_null()),
        required("subject", text().or_null()),
        required("preheader", text().or_null()),
        required("campaign_goal", one_of(GOALS).or_null()),
        required("audience_mode", one_of(MODES)),
        required("list_id", id().or_null()),
        required("segment_id", id().or_null()),
        required("tag_ids", array(id())),
        required("message_purpose", purpose()),
        required("urgency", one_of(URGENCIES)),
        required("audience_reason", text().or_null()),
        required("ab_test", test().or_null()),
        required("not_after", time().or_null()),
        required("on_miss", one_of(OnMiss::ALL.iter().map(|word| word.as_str()))),
        required("max_per_minute", integer(1, PACE_MAX).or_null()),
        required("tripwire", tripwire()),
        required("scheduled_for", time().or_null()),
        required("launched_at", time().or_null()),
        required("completed_at", time().or_null()),
        required("created_at", time()),
        required("updated_at", time()),
    ]
}

fn campaign() -> Schema {
    let variant = object(variant_fields().into_iter().chain([required("body_html", text().or_null())]));
    let more = [required("body_html", text().or_null()), required("variants", array(variant.named("CampaignVariant")))];
    object(common().into_iter().chain(more)).named("Campaign")
}

fn campaign_summary() -> Schema {
    let variant = object(variant_fields()).named("CampaignVariantSummary");
    object(common().into_iter().chain([required("variants", array(variant))])).named("CampaignSummary")
}

fn pause_reason() -> Schema {
    one_of(PauseReason::ALL.iter().map(|reason| reason.as_str())).about(
        "`requested`: by PATCH. `window_missed`: `not_after` passed with `on_miss: hold`; resuming sends what is left. \
         `tripwire_bounces`, `tripwire_complaints`: the tripwire's limit was exceeded; resuming disarms it for this campaign.",
    )
}

fn letter() -> Schema {
    one_of(ledger::audience::VARIANT_NAMES)
}

fn variant_fields() -> Vec<Field> {
    vec![
        required("variant", letter().about("By its place in the caller's list.")),
        required("name", text()),
        required("weight", integer(1, WEIGHT_MAX)),
        required("subject", text().or_null()),
        required("preheader", text().or_null()),
        required("template_id", id().or_null()),
    ]
}

fn metric() -> Schema {
    one_of(WinnerMetric::ALL.iter().map(|metric| metric.as_str()))
}

fn test() -> Schema {
    object([
        required("test_percent", integer(1, 100)),
        required("winner_metric", metric()),
        required("decide_after_minutes", integer(1, DECIDE_AFTER_MAX)),
        required("tested_at", time().or_null().about("When the test's mail was out: the clock starts.")),
        required("decided_at", time().or_null()),
        required("winner", letter().or_null()),
        required(
            "winner_reason",
            one_of(WinnerReason::ALL.iter().map(|reason| reason.as_str())).or_null().about(
                "`highest_rate`; `tie`: the first of those that tied; `too_little_data`: the first variant, because one had sent \
                 fewer than 20 mails, or all together had fewer than 5 responses.",
            ),
        ),
    ])
    .named("AbTest")
}

fn tripwire() -> Schema {
    object([
        required("bounce_percent", percent()),
        required("complaint_percent", percent()),
        required("state", one_of(["armed", "tripped", "disarmed"])),
    ])
    .named("Tripwire")
}

fn percent() -> Schema {
    number().with("minimum", 0).with("maximum", 100)
}

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

fn counts() -> Schema {
    let states = SendState::ALL.iter().map(|state| state.as_str());
    let facts = ["total", "delivered", "bounced", "complained", "opened", "clicked", "unsubscribed"];
    // Told later than the others: answers that were kept before are still read.
    let later = [optional("delivered_confirmed", count())];
    object(states.chain(facts).map(|name| required(name, count())).chain(later)).named("SendCounts")
}

fn counts_example() -> Value {
    json!({
        "total": 3, "queued": 0, "claimed": 0, "fenced": 0, "deferred": 0, "sent": 2, "failed": 0, "unknown": 0, "skipped": 1,
        "cancelled": 0, "expired": 0, "delivered": 2, "delivered_confirmed": 0, "bounced": 0,
        "complained": 0, "opened": 1, "clicked": 0, "unsubscribed": 0,
    })
}

pub(super) fn list() -> Doc {
    Doc::new("listCampaigns", "List campaigns", "Newest first, without bodies.")
        .query_fields([optional("status", status())])
        .paged()
        .answer_schema(
            200,
            "A page of campaigns",
            page_of("campaigns", campaign_summary()),
            json!({"ok": true, "campaigns": [listed()], "next_cursor": null}),
        )
}

/// What a campaign is made of and a draft is changed in; each may be null.
fn words_and_people() -> Vec<Field> {
    vec![
        nullable("template_id", id().about("A template, or subject and body_html; own words replace the template's.")),
        nullable("subject", name(LINE_MAX)),
        nullable("preheader", line(LINE_MAX)),
        nullable("body_html", words(SOURCE_MAX)),
        nullable("campaign_goal", one_of(GOALS)),
        nullable("list_id", id().about("With audience_mode list.")),
        nullable("segment_id", id().about("With audience_mode segment.")),
        nullable("tag_ids", array_max(id(), TAGS_MAX).about("With audience_mode tags: any of them.")),
        nullable(
            "message_purpose",
            purpose().about("Default: marketing_campaign. The classification follows from it."),
        ),
        nullable("urgency", one_of(URGENCIES).about("Default: normal.")),
        nullable("audience_reason", text_max(REASON_MAX).about("Required when message_purpose is not marketing.")),
    ]
}

/// How the campaign is sent; each may be null.
fn rules() -> Vec<Field> {
    let variant = object([
        required("name", name(NAME_MAX)),
        required("weight", integer(1, WEIGHT_MAX)),
        nullable("subject", name(LINE_MAX)),
        nullable("preheader", line(LINE_MAX)),
        nullable("template_id", id().about("Then the campaign's own words do not apply to this variant.")),
        nullable("body_html", words(SOURCE_MAX)),
    ]);
    let test = object([
        required(
            "test_percent",
            integer(1, 100).about("How much of the audience the test takes; the rest waits for the winner."),
        ),
        nullable("winner_metric", metric().about("Default: click_rate. People count, machines do not.")),
        nullable(
            "decide_after_minutes",
            integer(1, DECIDE_AFTER_MAX).about("After the test's mail is out.").default(DECIDE_AFTER),
        ),
    ]);
    let tripwire = object([
        nullable("bounce_percent", percent().default(TRIPWIRE.0)),
        nullable("complaint_percent", percent().default(TRIPWIRE.1)),
    ]);
    vec![
        nullable(
            "variants",
            array_max(variant, VARIANTS_MAX)
                .with("minItems", VARIANTS_MIN)
                .about("Who gets which is a stable hash of campaign and contact. What a variant does not say, the campaign says."),
        ),
        nullable("ab_test", test.about("Needs variants. Without it the variants divide the whole audience.")),
        nullable("not_after", time().about("What is not sent by then is missed.")),
        nullable(
            "on_miss",
            one_of(OnMiss::ALL.iter().map(|word| word.as_str()))
                .about("What is missed is skipped as `window_missed`, sent late, or held: the campaign is paused.")
                .default("skip"),
        ),
        nullable("max_per_minute", integer(1, PACE_MAX).about("No minute sees more mails of this campaign.")),
        nullable(
            "tripwire",
            tripwire.about(
                "Pauses the campaign when more than this much of its mail bounces or is complained about, counted of at least 100 \
                 mails for bounces and 1,000 for complaints. 100 never trips.",
            ),
        ),
    ]
}

pub(super) fn create() -> Doc {
    let must = [
        required("name", name(NAME_MAX)),
        required("sender_profile_id", id()),
        required("audience_mode", one_of(MODES)),
    ];
    Doc::new("createCampaign", "Create a campaign", "A draft: nothing is sent.")
        .body_schema(
            object(must.into_iter().chain(words_and_people()).chain(rules())),
            json!({
                "name": "Spring", "sender_profile_id": ID, "audience_mode": "list", "list_id": ID,
                "subject": "Hello {{ first_name }}", "body_html": "<p>Hello {{ first_name }}</p>",
            }),
        )
        .answer_schema(
            201,
            "Created",
            success([
                required("campaign_id", id()),
                required("status", one_of(["draft"])),
                required("email_type", classification()),
            ]),
            json!({"ok": true, "campaign_id": ID, "status": "draft", "email_type": "marketing"}),
        )
        .leads_to("campaign_id", &["getCampaign", "updateCampaign", "launchCampaign", "listCampaignSends"])
        .refuses(404, &MISSING)
}

pub(super) fn show() -> Doc {
    let mut example = listed();
    example["body_html"] = Value::Null;
    Doc::new("getCampaign", "Read a campaign", "With one number for each state its sends can be in.")
        .answer_schema(
            200,
            "The campaign",
            success([required("campaign", campaign()), required("send_counts", counts())]),
            json!({"ok": true, "campaign": example, "send_counts": counts_example()}),
        )
        .refuses(404, &["campaign_not_found"])
}

pub(super) fn change() -> Doc {
    let own = [
        nullable("name", name(NAME_MAX)),
        nullable("sender_profile_id", id()),
        nullable("audience_mode", one_of(MODES)),
    ];
    let fields = object(own.into_iter().chain(words_and_people()).chain(rules()));
    let status_change = object([required("status", one_of(["cancelled", "draft"]))]);
    let pause = object([required("paused", boolean())]);
    let schedule = object([required("schedule_for", time().about("Not more than 5 minutes past nor a year ahead."))]);
    Doc::new(
        "updateCampaign",
        "Change, reschedule, cancel or pause a campaign",
        "One thing at a time: fields of a draft; `status: cancelled` before it is sent; `paused` while it is scheduled or sending; \
         `schedule_for` while it is scheduled; `status: draft` takes a scheduled one back, to be changed and launched anew. While a \
         launch is being worked on, the campaign is in `preflight`: 409 with `Retry-After`.",
    )
  .body_schema(any_of([fields, status_change, pause, schedule]), json!({"name": "Spring"}))
    .answer_schema(
        200,
        "Changed",
        success([
            required("campaign_id", id()),
            required("status", status()),
            required("paused", boolean()),
            required("email_type", classification()),
            optional("scheduled_for", time().or_null()),
        ]),
        json!({
            "ok": true, "campaign_id": ID, "status": "draft", "paused": false, "email_type": "marketing", "scheduled_for": null,
        }),
    )
    .refuses(404, &["campaign_not_found"])
    .refuses(404, &MISSING)
    .refuses(422, &["window_missed"])
    .refuses(409, &["campaign_already_draft"])
    .refuses(409, &ALREADY)
}

pub(super) fn launch() -> Doc {
    let fault = object([required("contact_id", id().or_null()), required("code", text()), required("detail", text())]);
    let counted = || {
        vec![
            required("campaign_id", id()),
            required("queued", count().about("Will be attempted.")),
            required("skipped", count().about("Suppressed, opted out or invalid at this moment.")),
            required("scheduled_for", time().or_null()),
            required("ab_variants", array(variant())),
        ]
    };
    let reasons = map_of(count()).with("propertyNames", json!({"enum": SkipReason::ALL}));
    let quota = object([
        required("remaining", count().or_null().about("Null: no limit.")),
        required("resets_at", time()),
        required("exceeded", boolean().about("The launch would be answered 429.")),
    ]);
    let mut dry = counted();
    dry.extend([
        required("dry_run", only(true)),
        required("skipped_by_reason", reasons),
        required(
            "digest",
            text().about("Give it to the launch, and it sends to exactly this audience or answers 409."),
        ),
        required("sampled", count()),
        required("render_faults", array(fault)),
        required("send_quota", quota),
    ]);
    Doc::new(
        "launchCampaign",
        "Launch a campaign",
        "202 means that the launch is committed. Without `schedule_for` it is sent now. `dry_run` answers what would happen. While the \
         audience is counted the campaign is in `preflight`; another launch meanwhile is a 409 with `Retry-After`.",
    )
  .body_schema(
        object([
            nullable("schedule_for", time().about("Not more than 5 minutes past nor a year ahead.")),
            nullable("dry_run", boolean()),
            nullable("digest", text()),
        ]),
        json!({}),
    )
    .answer_schema(
        202,
        "Launched",
        success(counted()),
        json!({"ok": true, "campaign_id": ID, "queued": 2, "skipped": 1, "scheduled_for": null, "ab_variants": []}),
    )
    .leads_to("campaign_id", &["getCampaign", "listCampaignSends"])
    .answer_schema(
        200,
        "What would happen",
        success(dry),
        json!({
            "ok": true, "campaign_id": ID, "queued": 2, "skipped": 1, "scheduled_for": null, "ab_variants": [], "dry_run": true,
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

fn variant() -> Schema {
    object([
        required("variant", letter()),
        required("name", text()),
        required("count", count().about("Will be attempted in the test.")),
    ])
    .named("LaunchedVariant")
}

pub(super) fn retry_failed() -> Doc {
    const ABOUT: &str = "Failed and expired sends go back into the queue, and the campaign is sending again. Tried again is what failed \
        for `mailbox_full`, `block`, `content`, `policy`, `throttled`, `temporary`, `routing`, `unreachable`, `configuration` or \
        `render`. Not an address that does not exist (`hard`) or is switched off (`inactive`), and never what is `unknown`.";
    Doc::new("retryFailedSends", "Try failed sends again", ABOUT)
        .body_schema(object([]), json!({}))
        .answer_schema(
            200,
            "Back in the queue",
            success([
                required("campaign_id", id()),
                required("queued", count().about("Will be attempted again.")),
                required("skipped", count().about("Failed for good.")),
            ]),
            json!({"ok": true, "campaign_id": ID, "queued": 12, "skipped": 3}),
        )
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
    Doc::new("listCampaignSends", "List what became of a campaign's sends", "One for each recipient, newest first.")
        .query::<ListCampaignSends>()
        .answer::<CampaignSendPage>(
            200,
            "A page of sends",
            json!({"sends": [sends::doc::summary_example()], "next_cursor": null}),
        )
        .refuses(404, &["campaign_not_found"])
}
