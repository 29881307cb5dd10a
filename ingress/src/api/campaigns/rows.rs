//! A campaign and its variants, as they stand in Postgres and as callers see them.

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use ledger::{
    audience::{AudienceSelector, Split},
    frequency::Urgency,
};
use schemars::JsonSchema;
use schemas::{CampaignStatus, Classification, MessagePurpose, OnMiss, PauseReason, WinnerMetric, WinnerReason};
use serde::{Deserialize, Serialize, Serializer};
use sqlx::types::Json;
use uuid::Uuid;

use super::{
    content::{CampaignContent, OwnBody},
    draft::{GOALS, MODES},
    rules::{DECIDE_AFTER_MAX, PACE_MAX, WEIGHT_MAX},
};
use crate::pipeline::{
    page::{OptionalTime, Time},
    resource,
};

/// A campaign. What is skipped has a form of its own in answers: see [`Campaign`] and [`CampaignSummary`].
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct CampaignRow {
    #[serde(rename = "campaign_id")]
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) sender_profile_id: Uuid,
    #[serde(flatten)]
    #[schemars(with = "CampaignContent")]
    pub(crate) content: Json<CampaignContent>,
    #[serde(skip)]
    pub(crate) compiled_html: Option<String>,
    #[serde(skip)]
    pub(crate) content_id: Uuid,
    #[schemars(extend("enum" = GOALS))]
    pub(crate) campaign_goal: Option<String>,
    #[schemars(extend("enum" = MODES))]
    pub(crate) audience_mode: String,
    pub(crate) list_id: Option<Uuid>,
    pub(crate) segment_id: Option<Uuid>,
    pub(crate) tag_ids: Vec<Uuid>,
    #[schemars(with = "MessagePurpose")]
    pub(crate) message_purpose: String,
    #[serde(rename = "email_type")]
    pub(crate) classification: Classification,
    #[schemars(extend("enum" = Urgency::NAMES))]
    pub(crate) urgency: String,
    pub(crate) audience_reason: Option<String>,
    pub(crate) status: CampaignStatus,
    pub(crate) paused: bool,
    /// `requested`: by PATCH. `window_missed`: `not_after` passed with `on_miss: hold`; resuming sends what is left.
    /// `tripwire_bounces`, `tripwire_complaints`: the tripwire's limit was exceeded; resuming disarms it for this campaign.
    pub(crate) pause_reason: Option<PauseReason>,
    #[serde(skip)]
    pub(crate) variants: Json<Vec<VariantRow>>,
    #[schemars(with = "Option<AbTest>")]
    pub(crate) ab_test: Option<Json<AbTest>>,
    pub(crate) not_after: OptionalTime,
    pub(crate) on_miss: OnMiss,
    #[serde(skip)]
    pub(crate) closes_at: Option<DateTime<Utc>>,
    #[schemars(range(min = 1, max = PACE_MAX))]
    pub(crate) max_per_minute: Option<i32>,
    #[schemars(with = "TripwireView")]
    pub(crate) tripwire: Json<TripwireView>,
    pub(crate) scheduled_for: OptionalTime,
    /// The time of the day in each recipient's time zone; `scheduled_for` is then when the first zone of the world reaches it.
    #[serde(serialize_with = "as_local_time")]
    #[schemars(with = "Option<String>")]
    pub(crate) scheduled_for_local: Option<NaiveDateTime>,
    pub(crate) launched_at: OptionalTime,
    pub(crate) completed_at: OptionalTime,
    pub(crate) created_at: Time,
    pub(crate) updated_at: Time,
}

/// An A/B test and its result.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct AbTest {
    #[schemars(range(min = 1, max = 100))]
    pub(crate) test_percent: i16,
    pub(crate) winner_metric: WinnerMetric,
    #[schemars(range(min = 1, max = DECIDE_AFTER_MAX))]
    pub(crate) decide_after_minutes: i32,
    /// When the test's mail was out: the clock starts.
    tested_at: OptionalTime,
    decided_at: OptionalTime,
    /// What the rest of the audience got, also where no variant was better: analytics then has no winner, nor has a test of all.
    #[schemars(extend("enum" = ledger::audience::VARIANT_NAMES))]
    winner: Option<String>,
    /// `highest_rate`; `tie`: the first of those that tied; `too_little_data`: the first variant, because one had sent fewer than 20
    /// mails, or all together had fewer than 5 responses.
    winner_reason: Option<WinnerReason>,
}

/// The limits of a campaign's tripwire, and whether it tripped.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Tripwire")]
pub(crate) struct TripwireView {
    #[schemars(range(min = 0, max = 100))]
    pub(crate) bounce_percent: f64,
    #[schemars(range(min = 0, max = 100))]
    pub(crate) complaint_percent: f64,
    #[schemars(extend("enum" = ["armed", "tripped", "disarmed"]))]
    state: String,
}

/// A time of the day as callers write it: without a zone.
pub(super) const LOCAL_TIME_PATTERN: &str = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}$";
/// The format of [`LOCAL_TIME_PATTERN`], for chrono.
pub(super) const LOCAL_TIME_FORMAT: &str = "%Y-%m-%dT%H:%M:%S";

pub(super) const LOCAL_TIME_LEN: usize = 19;

pub(super) fn as_local_time<S: Serializer>(at: &Option<NaiveDateTime>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(|at| at.format(LOCAL_TIME_FORMAT).to_string()).serialize(serializer)
}

impl CampaignRow {
    /// The audience. `None`: it is not there any more.
    pub(crate) fn selector(&self) -> Option<AudienceSelector> {
        AudienceSelector::from_columns(&self.audience_mode, self.list_id, self.segment_id, &self.tag_ids)
    }

    /// How the audience is divided among the variants. Variants without a test divide the whole audience.
    pub(crate) fn split(&self) -> Split {
        let percent = self.ab_test.as_ref().and_then(|test| u8::try_from(test.test_percent).ok()).unwrap_or(100);
        let weights: Vec<u32> = self.variants.iter().filter_map(|variant| u32::try_from(variant.weight).ok()).collect();
        Split::new(percent, &weights)
    }

    /// How long after its test the remainder of the audience gets its mail. `None`: there is no remainder.
    pub(crate) fn remainder_delay(&self) -> Option<TimeDelta> {
        let test = self.ab_test.as_ref().filter(|test| test.test_percent < 100);
        test.map(|test| TimeDelta::minutes(test.decide_after_minutes.into()))
    }

    /// When the remainder of the audience gets its mail, should the test begin at `start`. `None`: there is none, or it does not wait any more.
    pub(crate) fn remainder_due(&self, start: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let test = self.ab_test.as_ref().filter(|test| test.decided_at.is_none())?;
        Some(test.tested_at.unwrap_or(start) + self.remainder_delay()?)
    }
}

/// A variant of a campaign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CampaignVariantSummary")]
pub(crate) struct VariantRow {
    /// By its place in the caller's list.
    #[schemars(extend("enum" = ledger::audience::VARIANT_NAMES))]
    pub(crate) variant: String,
    pub(crate) name: String,
    #[schemars(range(min = 1, max = WEIGHT_MAX))]
    pub(crate) weight: i32,
    #[serde(flatten)]
    pub(crate) content: CampaignContent,
    #[serde(skip_serializing)]
    pub(crate) compiled_html: Option<String>,
    #[serde(skip_serializing)]
    pub(crate) content_id: Uuid,
}

/// One campaign, with its bodies.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Campaign {
    #[serde(flatten)]
    row: CampaignRow,
    #[serde(flatten)]
    body: OwnBody,
    variants: Vec<CampaignVariant>,
}

/// A campaign in a list: without its bodies, which may have half a megabyte each.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CampaignSummary {
    #[serde(flatten)]
    row: CampaignRow,
    variants: Vec<VariantRow>,
}

resource!(CampaignSummary, "campaign", "campaigns", view => (*view.row.created_at, view.row.id));

#[derive(Debug, Serialize, JsonSchema)]
struct CampaignVariant {
    #[serde(flatten)]
    summary: VariantRow,
    #[serde(flatten)]
    body: OwnBody,
}

impl Campaign {
    pub(super) fn of(mut row: CampaignRow) -> Self {
        let body = std::mem::take(&mut row.content.0.body).with_compiled(row.compiled_html.take());
        let variants = std::mem::take(&mut row.variants.0).into_iter().map(|mut row| CampaignVariant {
            body: std::mem::take(&mut row.content.body).with_compiled(row.compiled_html.take()),
            summary: row,
        });
        Self { body, variants: variants.collect(), row }
    }
}

impl CampaignSummary {
    pub(super) fn of(mut row: CampaignRow) -> Self {
        Self { variants: std::mem::take(&mut row.variants.0), row }
    }
}
