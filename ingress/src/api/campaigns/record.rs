//! A campaign as callers see it.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use schemas::{CampaignStatus, Classification, MessagePurpose, OnMiss, PauseReason, WinnerMetric, WinnerReason};
use serde::Serialize;
use uuid::Uuid;

use super::{
    draft::{GOALS, MODES, URGENCIES},
    rows::{CampaignRow, VariantRow},
    rules::{DECIDE_AFTER_MAX, PACE_MAX, WEIGHT_MAX},
};
use crate::pipeline::page::{as_optional_time, as_time};

/// One campaign, with its bodies.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Campaign {
    #[serde(flatten)]
    fields: CampaignFields,
    body_html: Option<String>,
    variants: Vec<CampaignVariant>,
}

/// A campaign in a list: without its bodies, which may have half a megabyte each.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CampaignSummary {
    #[serde(flatten)]
    fields: CampaignFields,
    variants: Vec<CampaignVariantSummary>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CampaignFields {
    campaign_id: Uuid,
    name: String,
    status: CampaignStatus,
    paused: bool,
    /// `requested`: by PATCH. `window_missed`: `not_after` passed with `on_miss: hold`; resuming sends what is left.
    /// `tripwire_bounces`, `tripwire_complaints`: the tripwire's limit was exceeded; resuming disarms it for this campaign.
    pause_reason: Option<PauseReason>,
    email_type: Classification,
    sender_profile_id: Uuid,
    template_id: Option<Uuid>,
    subject: Option<String>,
    preheader: Option<String>,
    #[schemars(extend("enum" = GOALS))]
    campaign_goal: Option<String>,
    #[schemars(extend("enum" = MODES))]
    audience_mode: String,
    list_id: Option<Uuid>,
    segment_id: Option<Uuid>,
    tag_ids: Vec<Uuid>,
    #[schemars(with = "MessagePurpose")]
    message_purpose: String,
    #[schemars(extend("enum" = URGENCIES))]
    urgency: String,
    audience_reason: Option<String>,
    ab_test: Option<AbTest>,
    #[serde(serialize_with = "as_optional_time")]
    not_after: Option<DateTime<Utc>>,
    on_miss: OnMiss,
    #[schemars(range(min = 1, max = PACE_MAX))]
    max_per_minute: Option<i32>,
    tripwire: TripwireView,
    #[serde(serialize_with = "as_optional_time")]
    scheduled_for: Option<DateTime<Utc>>,
    #[serde(serialize_with = "as_optional_time")]
    launched_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "as_optional_time")]
    completed_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "as_time")]
    created_at: DateTime<Utc>,
    #[serde(serialize_with = "as_time")]
    updated_at: DateTime<Utc>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Tripwire")]
struct TripwireView {
    #[schemars(range(min = 0, max = 100))]
    bounce_percent: f64,
    #[schemars(range(min = 0, max = 100))]
    complaint_percent: f64,
    #[schemars(extend("enum" = ["armed", "tripped", "disarmed"]))]
    state: String,
}

/// An A/B test and its result.
#[derive(Debug, Serialize, JsonSchema)]
struct AbTest {
    #[schemars(range(min = 1, max = 100))]
    test_percent: i16,
    #[schemars(with = "WinnerMetric")]
    winner_metric: Option<WinnerMetric>,
    #[schemars(with = "i32", range(min = 1, max = DECIDE_AFTER_MAX))]
    decide_after_minutes: Option<i32>,
    /// When the test's mail was out: the clock starts.
    #[serde(serialize_with = "as_optional_time")]
    tested_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "as_optional_time")]
    decided_at: Option<DateTime<Utc>>,
    #[schemars(extend("enum" = ledger::audience::VARIANT_NAMES))]
    winner: Option<String>,
    /// `highest_rate`; `tie`: the first of those that tied; `too_little_data`: the first variant, because one had sent fewer than 20
    /// mails, or all together had fewer than 5 responses.
    winner_reason: Option<WinnerReason>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CampaignVariant {
    #[serde(flatten)]
    summary: CampaignVariantSummary,
    body_html: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CampaignVariantSummary {
    /// By its place in the caller's list.
    #[schemars(extend("enum" = ledger::audience::VARIANT_NAMES))]
    variant: String,
    name: String,
    #[schemars(range(min = 1, max = WEIGHT_MAX))]
    weight: i32,
    subject: Option<String>,
    preheader: Option<String>,
    template_id: Option<Uuid>,
}

impl Campaign {
    pub(super) fn of(mut row: CampaignRow) -> Self {
        let (body_html, variants) = (row.body_html.take(), std::mem::take(&mut row.variants.0));
        Self {
            fields: CampaignFields::of(row),
            body_html,
            variants: variants.into_iter().map(CampaignVariant::of).collect(),
        }
    }
}

impl CampaignSummary {
    pub(super) fn of(mut row: CampaignRow) -> Self {
        let variants = std::mem::take(&mut row.variants.0);
        Self {
            fields: CampaignFields::of(row),
            variants: variants.into_iter().map(CampaignVariantSummary::of).collect(),
        }
    }
}

impl CampaignFields {
    fn of(row: CampaignRow) -> Self {
        Self {
            campaign_id: row.id,
            name: row.name,
            status: row.status,
            paused: row.paused,
            pause_reason: row.pause_reason,
            email_type: row.classification,
            sender_profile_id: row.sender_profile_id,
            template_id: row.template_id,
            subject: row.subject,
            preheader: row.preheader,
            campaign_goal: row.campaign_goal,
            audience_mode: row.audience_mode,
            list_id: row.list_id,
            segment_id: row.segment_id,
            tag_ids: row.tag_ids,
            message_purpose: row.message_purpose,
            urgency: row.urgency,
            audience_reason: row.audience_reason,
            ab_test: row.test_percent.map(|test_percent| AbTest {
                test_percent,
                winner_metric: row.winner_metric,
                decide_after_minutes: row.decide_after_minutes,
                tested_at: row.tested_at,
                decided_at: row.decided_at,
                winner: row.winner,
                winner_reason: row.winner_reason,
            }),
            not_after: row.not_after,
            on_miss: row.on_miss,
            max_per_minute: row.max_per_minute,
            tripwire: TripwireView {
                bounce_percent: row.bounce_percent,
                complaint_percent: row.complaint_percent,
                state: row.tripwire,
            },
            scheduled_for: row.scheduled_for,
            launched_at: row.launched_at,
            completed_at: row.completed_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl CampaignVariant {
    fn of(mut row: VariantRow) -> Self {
        Self { body_html: row.body_html.take(), summary: CampaignVariantSummary::of(row) }
    }
}

impl CampaignVariantSummary {
    fn of(row: VariantRow) -> Self {
        Self {
            variant: row.variant,
            name: row.name,
            weight: row.weight,
            subject: row.subject,
            preheader: row.preheader,
            template_id: row.template_id,
        }
    }
}
