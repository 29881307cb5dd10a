//! A campaign and its variants, as they stand in Postgres.

use chrono::{DateTime, NaiveDateTime, Utc};
use ledger::{audience::Split, frequency::Urgency};
use schemars::JsonSchema;
use schemas::{CampaignStatus, Classification, MessagePurpose, OnMiss, PauseReason, WinnerMetric, WinnerReason};
use serde::{Deserialize, Serialize, Serializer};
use sqlx::types::Json;
use uuid::Uuid;

use super::{
    content::OwnBody,
    draft::{GOALS, MODES},
    rules::{PACE_MAX, WEIGHT_MAX},
};
use crate::pipeline::page::{OptionalTime, Time};

/// A campaign. What is skipped has a form of its own in answers: see [`super::record`].
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct CampaignRow {
    #[serde(rename = "campaign_id")]
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) sender_profile_id: Uuid,
    pub(crate) template_id: Option<Uuid>,
    pub(crate) subject: Option<String>,
    pub(crate) preheader: Option<String>,
    #[serde(skip)]
    pub(crate) body: Json<OwnBody>,
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
    #[serde(skip)]
    pub(crate) test_percent: Option<i16>,
    #[serde(skip)]
    pub(crate) winner_metric: Option<WinnerMetric>,
    #[serde(skip)]
    pub(crate) decide_after_minutes: Option<i32>,
    #[serde(skip)]
    pub(crate) tested_at: Option<DateTime<Utc>>,
    #[serde(skip)]
    pub(crate) winner: Option<String>,
    #[serde(skip)]
    pub(crate) winner_reason: Option<WinnerReason>,
    #[serde(skip)]
    pub(crate) decided_at: Option<DateTime<Utc>>,
    pub(crate) not_after: OptionalTime,
    pub(crate) on_miss: OnMiss,
    #[serde(skip)]
    pub(crate) closes_at: Option<DateTime<Utc>>,
    #[schemars(range(min = 1, max = PACE_MAX))]
    pub(crate) max_per_minute: Option<i32>,
    #[serde(skip)]
    pub(crate) bounce_percent: f64,
    #[serde(skip)]
    pub(crate) complaint_percent: f64,
    #[serde(skip)]
    pub(crate) tripwire: String,
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

/// A time of the day as callers write it: without a zone.
pub(super) const LOCAL_TIME_PATTERN: &str = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}$";
/// The format of [`LOCAL_TIME_PATTERN`], for chrono.
pub(super) const LOCAL_TIME_FORMAT: &str = "%Y-%m-%dT%H:%M:%S";

/// The length of a local time.
pub(super) const LOCAL_TIME_LEN: usize = 19;

/// Writes a local time.
pub(super) fn as_local_time<S: Serializer>(at: &Option<NaiveDateTime>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(|at| at.format(LOCAL_TIME_FORMAT).to_string()).serialize(serializer)
}

impl CampaignRow {
    /// How the audience is divided among the variants. Variants without a test divide the whole audience.
    pub(crate) fn split(&self) -> Split {
        let percent = self.test_percent.and_then(|percent| u8::try_from(percent).ok()).unwrap_or(100);
        let weights: Vec<u32> = self.variants.iter().filter_map(|variant| u32::try_from(variant.weight).ok()).collect();
        Split::new(percent, &weights)
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
    pub(crate) subject: Option<String>,
    pub(crate) preheader: Option<String>,
    pub(crate) template_id: Option<Uuid>,
    #[serde(skip_serializing)]
    pub(crate) body: OwnBody,
    #[serde(skip_serializing)]
    pub(crate) compiled_html: Option<String>,
    #[serde(skip_serializing)]
    pub(crate) content_id: Uuid,
}
