//! A campaign and its variants, as they stand in Postgres.

use chrono::{DateTime, Utc};
use ledger::audience::Split;
use schemas::{CampaignStatus, Classification, OnMiss, PauseReason, WinnerMetric, WinnerReason};
use serde::Deserialize;
use sqlx::types::Json;
use uuid::Uuid;

/// A campaign.
#[derive(Debug, Clone)]
pub(crate) struct CampaignRow {
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) sender_profile_id: Uuid,
    pub(crate) template_id: Option<Uuid>,
    pub(crate) subject: Option<String>,
    pub(crate) preheader: Option<String>,
    pub(crate) body_html: Option<String>,
    pub(crate) content_id: Uuid,
    pub(crate) campaign_goal: Option<String>,
    pub(crate) audience_mode: String,
    pub(crate) list_id: Option<Uuid>,
    pub(crate) segment_id: Option<Uuid>,
    pub(crate) tag_ids: Vec<Uuid>,
    pub(crate) message_purpose: String,
    pub(crate) classification: Classification,
    pub(crate) urgency: String,
    pub(crate) audience_reason: Option<String>,
    pub(crate) status: CampaignStatus,
    pub(crate) paused: bool,
    pub(crate) pause_reason: Option<PauseReason>,
    pub(crate) variants: Json<Vec<VariantRow>>,
    pub(crate) test_percent: Option<i16>,
    pub(crate) winner_metric: Option<WinnerMetric>,
    pub(crate) decide_after_minutes: Option<i32>,
    pub(crate) tested_at: Option<DateTime<Utc>>,
    pub(crate) winner: Option<String>,
    pub(crate) winner_reason: Option<WinnerReason>,
    pub(crate) decided_at: Option<DateTime<Utc>>,
    pub(crate) not_after: Option<DateTime<Utc>>,
    pub(crate) on_miss: OnMiss,
    pub(crate) closes_at: Option<DateTime<Utc>>,
    pub(crate) max_per_minute: Option<i32>,
    pub(crate) bounce_percent: f64,
    pub(crate) complaint_percent: f64,
    pub(crate) tripwire: String,
    pub(crate) scheduled_for: Option<DateTime<Utc>>,
    pub(crate) launched_at: Option<DateTime<Utc>>,
    pub(crate) completed_at: Option<DateTime<Utc>>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) updated_at: DateTime<Utc>,
}

impl CampaignRow {
    /// Who gets which variant. Variants without a test divide the whole audience.
    pub(crate) fn split(&self) -> Split {
        let percent = self.test_percent.and_then(|percent| u8::try_from(percent).ok()).unwrap_or(100);
        let weights: Vec<u32> = self.variants.iter().filter_map(|variant| u32::try_from(variant.weight).ok()).collect();
        Split::new(percent, &weights)
    }
}

/// A variant of a campaign.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct VariantRow {
    /// Its letter.
    pub(crate) variant: String,
    pub(crate) name: String,
    pub(crate) weight: i32,
    pub(crate) subject: Option<String>,
    pub(crate) preheader: Option<String>,
    pub(crate) template_id: Option<Uuid>,
    pub(crate) body_html: Option<String>,
    pub(crate) content_id: Uuid,
}
